"""Numbers between bounds as regular expressions over their decimal text.

Every number that is written reads back, as a Python int or float, as a number within the bounds.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from math import inf, nextafter

from .fragment import Fragment, raw
from .integer_ranges import LARGEST_BOUND, digits_between
from .number_bounds import Bounds

EXACT_DIGITS = 15
"""Whole numbers of so many digits are floats; with one digit more, they are at least near one."""

BOUND_PLACES = 20
"""Digits behind the point that count of a bound. Numbers have any number of them: more digits are one loop more."""

LEAST_PLACES = 7
"""The nearest to zero where zero itself is no bound; what is nearer has an exponent."""

LARGEST_EXPONENT, LEAST_EXPONENT = 307, 324
"""Below ten times the power of ten all is a float; above half of ten to minus 324 all is one other than zero."""

# Wide enough for the digits before the point of the largest bound and those behind it.
_CONTEXT = Context(prec=80)

_MANTISSA = r"[1-9](?:\.[0-9]+)?"
_LARGEST_FLOATS = r"1(?:\.(?:[0-6][0-9]*|7[0-8][0-9]*|79[0-6][0-9]*|797693134862315[0-7]))?[eE]\+?308"


def numbers(bounds: Bounds) -> Fragment | None:
    """Numbers within `bounds`; None if none can be written.

    Exponents are written where they can't lead out of the bounds.
    """
    if bounds.low is None and bounds.high is None:
        return any_number()
    positive = negative = None
    if bounds.high is None or bounds.high >= 0:
        above_zero = bounds.low is not None and bounds.low >= 0
        start = (bounds.low or Decimal(0), bounds.low_open) if above_zero else (Decimal(0), False)
        positive = _magnitudes(start[0], start[1], bounds.high, bounds.high_open)
    if bounds.low is None or bounds.low < 0:
        below_zero = bounds.high is not None and bounds.high <= 0
        start = (-(bounds.high or Decimal(0)), bounds.high_open) if below_zero else (Decimal(0), False)
        negative = _magnitudes(start[0], start[1], None if bounds.low is None else -bounds.low, bounds.low_open)
    options = [] if positive is None else [positive]
    if negative is not None:
        options.append(("-" + negative[0], "-" + negative[1]))
    if not options:
        return None
    regex = "|".join(option for option, _ in options)
    shortest = min(("0" if example == "-0" else example for _, example in options), key=len)
    return raw(regex, shortest, 40 + len(regex) // 8)


@lru_cache(maxsize=1)
def any_number() -> Fragment:
    """Every number that a reader of doubles can take."""
    return raw("-?" + _any_magnitude(), "0", 76)


def _any_magnitude() -> str:
    """The texts of all numbers from zero on."""
    small = f"(?:0|[1-9][0-9]{{0,{EXACT_DIGITS}}})"
    # 16 digits and an exponent of 291 are below 10**307.
    exponent = f"(?:\\+?{_exponents(0, LARGEST_EXPONENT - EXACT_DIGITS - 1)}|-{_exponents(0, 399)})"
    plain = f"{small}(?:\\.[0-9]+)?(?:[eE]{exponent})?"
    large = f"{_MANTISSA}[eE]\\+?{_exponents(0, LARGEST_EXPONENT)}"
    return f"(?:{plain}|[1-9][0-9]{{{EXACT_DIGITS + 1},}}|{large}|{_LARGEST_FLOATS})"


def _exponents(low: int, high: int) -> str:
    """The texts of an exponent from low to high (0 <= low <= high); one digit may have a zero before it."""
    options = [f"0?{digits_between(low, min(high, 9))}"] if low <= 9 else []
    if high > 9:
        options.append(digits_between(max(low, 10), high))
    return "(?:" + "|".join(options) + ")"


def _magnitudes(low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> tuple[str, str] | None:
    """The texts of the numbers from low (>= 0) to high, as one group, and a short one of them; None if there are none.

    An open end is closed at the next float; between closed ends any digits are right, because rounding to a float
    keeps the order.
    """
    if low > LARGEST_BOUND:
        return None
    if not low and not low_open and high is None:
        return _any_magnitude(), "0"
    least = _next(low, 1) if low_open else low.quantize(_unit(BOUND_PLACES), ROUND_CEILING, _CONTEXT)
    most = None
    if high is not None:
        if high_open and not high:
            return None
        high, high_open = (high, high_open) if high < LARGEST_BOUND else (Decimal(LARGEST_BOUND), False)
        most = _next(high, -1) if high_open else high.quantize(_unit(BOUND_PLACES), ROUND_FLOOR, _CONTEXT)
        if least > most:
            return None
    pieces = _plain(least, most)
    if most is None:
        # One power of ten more than its digits need: beyond 10**22, powers of ten are rounded to floats, too.
        lowest = len(str(int(least))) + 1 if least else 0
        if lowest <= LARGEST_EXPONENT:
            pieces += [f"{_MANTISSA}[eE]\\+?{_exponents(lowest, LARGEST_EXPONENT)}", _LARGEST_FLOATS]
    if not low:
        # Below 10**(1 - exponent), which must not be above the bound.
        first = 1 if most is None or most >= 1 else 1 - most.adjusted() if most else LEAST_EXPONENT
        if first < LEAST_EXPONENT:
            pieces.append(f"{_MANTISSA}[eE]-{_exponents(first, LEAST_EXPONENT - 1)}")
            pieces.append(rf"[5-9](?:\.[0-9]+)?[eE]-{LEAST_EXPONENT}")
    if not pieces:  # within one whole number of 16 digits or more, which has no digits behind the point
        return None
    return "(?:" + "|".join(pieces) + ")", _short_decimal(least, most)


def _plain(low: Decimal, high: Decimal | None) -> list[str]:
    """Texts without exponent of the numbers from low to high, both within the context's digits, as alternatives."""
    low_whole, low_digits = _split(low)
    # Without an upper bound, rounding to a float may go up.
    largest_exact = 10 ** (EXACT_DIGITS + (high is None)) - 1
    pieces = []
    if high is None:
        high_whole, high_digits = max(largest_exact, 10 ** len(str(low_whole)) - 1), None
        pieces.append(f"[1-9][0-9]{{{len(str(high_whole))},}}")
    else:
        high_whole, high_digits = _split(high)

    def fraction(whole: int, least: str, most: str | None) -> str | None:
        return _fraction(least, most) if whole < 10**EXACT_DIGITS else _no_fraction(least)

    if low_whole == high_whole:
        found = fraction(low_whole, low_digits, high_digits)
        return pieces if found is None else [*pieces, f"{low_whole}{found}"]
    for whole, found in (
        (low_whole, fraction(low_whole, low_digits, None)),
        (high_whole, fraction(high_whole, "", high_digits)),
    ):
        if found is not None:
            pieces.append(f"{whole}{found}")
    first, last = low_whole + 1, high_whole - 1
    if first <= min(last, largest_exact):
        pieces.append(digits_between(first, min(last, largest_exact)) + r"(?:\.[0-9]+)?")
    if max(first, largest_exact + 1) <= last:
        pieces.append(digits_between(max(first, largest_exact + 1), last))
    return pieces


def _unit(places: int) -> Decimal:
    return Decimal(1).scaleb(-places)


def _next(end: Decimal, direction: int) -> Decimal:
    """The nearest decimal in a direction that no reader takes for `end`, at most so many places behind the point."""
    if not end:
        return _unit(LEAST_PLACES)
    if end >= 10**EXACT_DIGITS:
        return _CONTEXT.add(end.to_integral_value(ROUND_FLOOR if direction > 0 else ROUND_CEILING), direction)
    neighbour = Decimal(repr(nextafter(float(end), direction * inf)))
    return neighbour.quantize(_unit(BOUND_PLACES), ROUND_CEILING if direction > 0 else ROUND_FLOOR, _CONTEXT)


def _short_decimal(low: Decimal, high: Decimal | None) -> str:
    """The text with the fewest digits behind the point of a number from low to high."""
    for places in range(BOUND_PLACES):
        rounded = low.quantize(_unit(places), ROUND_CEILING, _CONTEXT)
        if high is None or rounded <= high:
            return format(rounded, "f")
    return format(low, "f")


def _split(value: Decimal) -> tuple[int, str]:
    whole = int(value)
    fraction = format(_CONTEXT.subtract(value, Decimal(whole)), "f").partition(".")[2].rstrip("0")
    return whole, fraction


def _no_fraction(low: str) -> str | None:
    return None if low else ""


def _fraction(low: str, high: str | None) -> str | None:
    """The part after the integer digits: nothing, or a point and digits whose value lies within; None if neither.

    `low` and `high` are digits behind a point (high None: without end).
    """
    digits = _fraction_digits(low, high)
    if digits is None:
        return None if low else ""
    return f"(?:\\.{digits})" + ("" if low else "?")


def _fraction_digits(low: str, high: str | None) -> str | None:
    """One digit or more from low to high; None if there are none. Without digits is within where low has none."""
    if high == "":
        return None if low else "0+"
    if not low and high is None:
        return "[0-9]+"
    options: dict[str, list[int]] = {}
    for digit in range(int(low[0]) if low else 0, 10 if high is None else int(high[0]) + 1):
        rest_low = low[1:] if low and digit == int(low[0]) else ""
        rest_high = high[1:] if high is not None and digit == int(high[0]) else None
        rest = _fraction_digits(rest_low, rest_high)
        if rest is None and rest_low:
            continue
        tail = "" if rest is None else f"(?:{rest})" + ("" if rest_low else "?")
        options.setdefault(tail, []).append(digit)
    if not options:
        return None
    texts = ["[" + "".join(map(str, digits)) + "]" + tail for tail, digits in options.items()]
    return "(?:" + "|".join(texts) + ")"
