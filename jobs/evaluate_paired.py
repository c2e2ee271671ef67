"""Is one run better than another, or was it luck? Paired tests over the rows that both answered."""

from __future__ import annotations

import math


def sign_test(better: int, worse: int) -> float:
    """Two-sided p-value of the exact sign test: of rows that differ, as many as this or more on one side by chance.

    Ties are left out. With X ~ Binomial(better + worse, 1/2): p = min(1, 2 P(X <= min(better, worse))); Conover,
    "Practical Nonparametric Statistics" (1999), section 3.4. On rows that are right in one run and wrong in the other
    it is McNemar's exact test; Agresti, "Categorical Data Analysis" (2013), section 11.1.
    """
    rows, fewer = better + worse, min(better, worse)
    if better == worse:
        return 1.0
    # The binomials have thousands of digits for large runs, their logarithms do not.
    logarithms = [
        math.lgamma(rows + 1) - math.lgamma(k + 1) - math.lgamma(rows - k + 1) - rows * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(math.exp(value) for value in logarithms))
