"""How much of a proof belongs to the normal run. `make test-slow` does the rest."""

import pytest
from hypothesis import settings

_DEFAULT_EXAMPLES = 100


def examples(normal, **options):
    """Settings of a property test with so many examples; as many times more as the profile has more than 100."""
    return settings(max_examples=normal * settings.default.max_examples // _DEFAULT_EXAMPLES, **options)


def in_part(values, normal):
    """Values for `parametrize`: the first `normal` of them, and the others in the slow run."""
    values = list(values)
    return values[:normal] + [pytest.param(value, marks=pytest.mark.slow) for value in values[normal:]]
