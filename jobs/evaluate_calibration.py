"""Is the model as sure as it should be? Confidence held against how often answers are right.

Reliability table and expected calibration error as in Guo et al., "On Calibration of Modern Neural Networks" (2017),
section 2, with equal bins: the sum over bins of |accuracy - mean confidence|, weighted by their rows. Brier score:
the mean of (confidence - right)^2, right being 1 or 0; Brier, "Verification of forecasts expressed in terms of
probability" (1950), for two classes and one of them counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

BINS = 10


def calibration(confidences: Sequence[float], correct: Sequence[bool]) -> dict[str, Any] | None:
    """The figures over answers whose confidence, from 0 to 1, is known; None if there are none.

    Bins are [0, 0.1), [0.1, 0.2), ..., [0.9, 1]; an empty one has None for its means.
    """
    if not confidences:
        return None
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for pair in zip(confidences, correct, strict=True):
        bins[min(int(pair[0] * BINS), BINS - 1)].append(pair)
    table = [
        {
            "from": number / BINS,
            "to": (number + 1) / BINS,
            "rows": len(pairs),
            "mean_confidence": fmean(confidence for confidence, _ in pairs) if pairs else None,
            "accuracy": fmean(right for _, right in pairs) if pairs else None,
        }
        for number, pairs in enumerate(bins)
    ]
    # |accuracy - mean confidence| of a bin, times its rows, is the difference of the two sums.
    gaps = [abs(sum(right - confidence for confidence, right in pairs)) for pairs in bins]
    return {
        "rows": len(confidences),
        "mean_confidence": fmean(confidences),
        "accuracy": fmean(correct),
        "expected_calibration_error": sum(gaps) / len(confidences),
        "brier_score": fmean((one - right) ** 2 for one, right in zip(confidences, correct, strict=True)),
        "bins": table,
    }
