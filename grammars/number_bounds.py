"""Bounds of numbers, exactly as a schema states them."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower and upper bound of a number, each with whether the bound itself is left out; None: no bound."""

    low: Decimal | None = None
    low_open: bool = False
    high: Decimal | None = None
    high_open: bool = False

    def tightened(self, *, low: Decimal | None = None, high: Decimal | None = None, is_open: bool = False) -> "Bounds":
        """The bounds with one more lower or upper bound."""
        bounds = self
        if low is not None and (self.low is None or (low, is_open) > (self.low, self.low_open)):
            bounds = Bounds(low, is_open, bounds.high, bounds.high_open)
        if high is not None and (self.high is None or (high, not is_open) < (self.high, not self.high_open)):
            bounds = Bounds(bounds.low, bounds.low_open, high, is_open)
        return bounds

    def apart_from(self, other: "Bounds") -> bool:
        """True if no number satisfies both."""
        return _ends_before(self, other) or _ends_before(other, self)

    def integers(self) -> tuple[int | None, int | None]:
        """The smallest and largest integer within."""
        low = None if self.low is None else int(self.low.to_integral_value(ROUND_CEILING))
        if low is not None and self.low_open and low == self.low:
            low += 1
        high = None if self.high is None else int(self.high.to_integral_value(ROUND_FLOOR))
        if high is not None and self.high_open and high == self.high:
            high -= 1
        return low, high


def _ends_before(left: Bounds, right: Bounds) -> bool:
    if left.high is None or right.low is None:
        return False
    return left.high < right.low or (left.high == right.low and (left.high_open or right.low_open))


def as_decimal(value: int | float) -> Decimal:
    """The decimal that a schema's number was written as.

    Whole floats are taken exactly: the shortest text of a float beyond 2**53 is only close to it.
    """
    return Decimal(int(value)) if isinstance(value, int) or value.is_integer() else Decimal(repr(value))


def as_divisor(value: int | float) -> int | None:
    """A multipleOf as an integer, or None if it isn't one."""
    exact = Fraction(as_decimal(value))
    return int(exact) if exact.denominator == 1 else None
