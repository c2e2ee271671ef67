"""Numbers between bounds as regular expressions over their decimal text.

Every number that is written reads back, as a Python int or float, as a number within the bounds.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from .errors import GrammarTooLarge
from .fragment import Fragment, any_literal, raw

# Integers of 15 digits are exact in every JSON reader; numbers end there where the schema sets no bound.
FREE_DIGITS = 15
LARGEST_FREE = 10**FREE_DIGITS - 1
LARGEST_BOUND = 10**19 - 1
FRACTION_DIGITS = 12
MAX_LISTED_MULTIPLES = 4096

# Wide enough for 19 digits before the point and 12 behind it.
_CONTEXT = Context(prec=60)

ANY_NUMBER = raw(
    rf"-?(?:0|[1-9][0-9]{{0,{FREE_DIGITS - 1}}})(?:\.[0-9]{{1,20}})?"
    # No exponent leads beyond a double: 15 digits and 289 more are fewer than 308.
    r"(?:[eE](?:[+-]?[0-9]{1,2}|[+]?(?:1[0-9]{2}|2[0-8][0-9])|-(?:[12][0-9]{2}|30[0-9])))?",
    "0",
    4 * FREE_DIGITS,
)


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


def integers(bounds: Bounds, step: int = 1) -> Fragment | None:
    """The integers within `bounds` that `step` divides; None if there are none.

    Without a bound they end at 15 digits. Raises GrammarTooLarge for a step whose multiples are too many to list
    and don't show in their last three digits.
    """
    low, high = _closed_range(bounds)
    if low > high:
        return None
    if step == 1:
        return _integer_fragment(low, high)
    first, last = -(-low // step) * step, high // step * step
    if first > last:
        return None
    if (last - first) // step < MAX_LISTED_MULTIPLES:
        return any_literal([str(value) for value in range(first, last + 1, step)])
    for digits in (1, 2, 3):
        if 10**digits % step == 0:
            return _multiples(low, high, step, digits)
    raise GrammarTooLarge(f"multiples of {step} can't be told by their last digits, and there are too many to list")


def numbers(bounds: Bounds) -> Fragment | None:
    """Numbers within `bounds`, with up to 12 digits after the point and no exponent; None if there are none."""
    if bounds.low is None and bounds.high is None:
        return ANY_NUMBER
    low, high = _closed_range(bounds)
    pieces = []
    if bounds.high is None or bounds.high >= 0:
        start = (bounds.low, bounds.low_open) if bounds.low is not None and bounds.low > 0 else (Decimal(0), False)
        if bounds.low == 0:
            start = (Decimal(0), bounds.low_open)
        pieces += _nonnegative(start[0], start[1], bounds.high, bounds.high_open)
    if bounds.low is None or bounds.low < 0:
        start = (-bounds.high, bounds.high_open) if bounds.high is not None and bounds.high < 0 else (Decimal(0), True)
        end = None if bounds.low is None else -bounds.low
        pieces += ["-" + piece for piece in _nonnegative(start[0], start[1], end, bounds.low_open)]
    if not pieces:
        return None
    regex = "|".join(pieces)
    shortest = _shortest_integer(low, high) if low <= high else _example(bounds)
    return raw(regex, shortest, 60 + len(regex) // 4)


def _shortest_integer(low: int, high: int) -> str:
    return "0" if low <= 0 <= high else str(low if low > 0 else high)


def _example(bounds: Bounds) -> str:
    """A number strictly between two bounds that have no integer between them."""
    low, high = bounds.low, bounds.high
    assert low is not None
    assert high is not None
    candidate = (low + high) / 2
    for digits in range(1, FRACTION_DIGITS + 1):
        rounded = candidate.quantize(Decimal(1).scaleb(-digits), context=_CONTEXT)
        if low < rounded < high:
            return format(rounded, "f")
    return format(low if not bounds.low_open else high, "f")


def _closed_range(bounds: Bounds) -> tuple[int, int]:
    low, high = bounds.integers()
    if low is None:
        low = -LARGEST_FREE if high is None or high >= -LARGEST_FREE else high * 10
    if high is None:
        high = LARGEST_FREE if low <= LARGEST_FREE else low * 10
    return max(low, -LARGEST_BOUND), min(high, LARGEST_BOUND)


def _integer_fragment(low: int, high: int) -> Fragment:
    options = []
    if high >= 0:
        options.append(_digits_between(max(low, 0), high))
    if low < 0:
        options.append("-" + _digits_between(max(-high, 1), -low))
    regex = "|".join(options)
    return raw(regex, _shortest_integer(low, high), 20 + len(regex) // 4)


def _multiples(low: int, high: int, step: int, digits: int) -> Fragment:
    """Multiples of a divisor of 10**digits: any leading digits, then one of a few endings."""
    options: list[str] = []
    modulus = 10**digits
    endings = "|".join(f"{ending:0{digits}d}" for ending in range(0, modulus, step))
    shortest: list[str] = []
    for sign, start, end in (("", max(low, 0), high), ("-", max(-high, 1), -low)):
        if end < start:
            continue
        first_lead, last_lead = max(-(-start // modulus), 1), (end + 1) // modulus - 1
        edges = [*range(start, min(first_lead * modulus, end + 1))]
        edges += range(max((last_lead + 1) * modulus, first_lead * modulus), end + 1)
        listed = [f"{sign}{value}" for value in edges if value % step == 0]
        options += listed
        shortest += listed
        if first_lead <= last_lead:
            options.append(f"{sign}(?:{_digits_between(first_lead, last_lead)})(?:{endings})")
            shortest.append(f"{sign}{first_lead * modulus}")
    regex = "|".join(options)
    return raw(regex, min(shortest, key=len), 20 + len(regex) // 4)


def _digits_between(low: int, high: int) -> str:
    """The decimal texts of low..high (0 <= low <= high), as an alternation in a group."""
    options = []
    full: list[int] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        last = min(high, 10**length - 1)
        if length > 1 and first == 10 ** (length - 1) and last == 10**length - 1:
            full.append(length)
        else:
            options.append(_same_length(str(first), str(last)))
    if full:
        options.append(f"[1-9][0-9]{{{full[0] - 1},{full[-1] - 1}}}")
    return "(?:" + "|".join(options) + ")"


def _same_length(low: str, high: str) -> str:
    if low == high:
        return low
    if low.strip("0") == "" and high.strip("9") == "":
        return f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    rest = len(low) - 1
    if not rest:
        return _digit_class(int(low), int(high))
    options = []
    first, last = int(low[0]), int(high[0])
    if low[1:].strip("0"):
        options.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    if high[1:].strip("9"):
        options.append(high[0] + _same_length("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        options.append(f"{_digit_class(first, last)}[0-9]{{{rest}}}")
    return "(?:" + "|".join(options) + ")"


def _digit_class(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _nonnegative(low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> list[str]:
    """Texts of numbers from low (>= 0) to high, as alternatives."""
    # Two decimals of at most 15 digits never round to the same float, so an open bound holds after reading back.
    open_digits = [len(str(int(end))) for end, is_open in ((low, low_open), (high, high_open)) if is_open and end]
    places = max(0, min([FRACTION_DIGITS, *(FREE_DIGITS - digits for digits in open_digits)]))
    unit = Decimal(1).scaleb(-places)
    if low > LARGEST_BOUND:
        return []
    rounded = low.quantize(unit, ROUND_CEILING, _CONTEXT)
    low, low_open = rounded, low_open and rounded == low
    if high is None or high > LARGEST_BOUND:
        high, high_open = Decimal(10 ** max(FREE_DIGITS, len(str(int(low))) + 1)), True
    else:
        rounded = high.quantize(unit, ROUND_FLOOR, _CONTEXT)
        high, high_open = rounded, high_open and rounded == high
    if low > high or (low == high and (low_open or high_open)):
        return []
    low_whole, low_digits = _split(low)
    high_whole, high_digits = _split(high)
    pieces = []
    if low_whole == high_whole:
        fraction = _fraction(low_digits, low_open, high_digits, high_open, places)
        return [] if fraction is None else [f"{low_whole}{fraction}"]
    fraction = _fraction(low_digits, low_open, None, False, places if low_whole <= LARGEST_FREE else 0)
    if fraction is not None:
        pieces.append(f"{low_whole}{fraction}")
    fraction = _fraction("", False, high_digits, high_open, places if high_whole <= LARGEST_FREE else 0)
    if fraction is not None:
        pieces.append(f"{high_whole}{fraction}")
    any_fraction = f"(?:\\.[0-9]{{1,{places}}})?" if places else ""
    first, last = low_whole + 1, high_whole - 1
    if first <= min(last, LARGEST_FREE):
        pieces.append(_digits_between(first, min(last, LARGEST_FREE)) + any_fraction)
    if max(first, LARGEST_FREE + 1) <= last:
        pieces.append(_digits_between(max(first, LARGEST_FREE + 1), last))
    return pieces


def _split(value: Decimal) -> tuple[int, str]:
    whole = int(value)
    fraction = format(_CONTEXT.subtract(value, Decimal(whole)), "f").partition(".")[2].rstrip("0")
    return whole, fraction


def _fraction(low: str, low_open: bool, high: str | None, high_open: bool, places: int) -> str | None:
    """The part after the integer digits: nothing, or a point and digits whose value lies within; None if neither."""
    empty, digits = _fraction_digits(low, low_open, high, high_open, places)
    if digits is None:
        return "" if empty else None
    return f"(?:\\.{digits})" + ("?" if empty else "")


def _fraction_digits(
    low: str, low_open: bool, high: str | None, high_open: bool, places: int
) -> tuple[bool, str | None]:
    """Whether no digits at all is within, and the expression for one digit or more (None: there is none)."""
    empty = (low == "" and not low_open) and (high is None or high != "" or not high_open)
    if places == 0 or (high == "" and high_open):
        return empty, None
    if low == "" and not low_open and high is None:
        return empty, f"[0-9]{{1,{places}}}"
    options: dict[str, list[int]] = {}
    for digit in range(10):
        least = int(low[0]) if low else 0
        most = 9 if high is None else int(high[0]) if high else 0
        if not least <= digit <= most:
            continue
        rest_low, rest_low_open = (low[1:], low_open) if digit == least else ("", False)
        rest_high, rest_high_open = (high[1:], high_open) if high is not None and digit == most else (None, False)
        rest_empty, rest = _fraction_digits(rest_low, rest_low_open, rest_high, rest_high_open, places - 1)
        if rest is None and not rest_empty:
            continue
        tail = "" if rest is None else f"(?:{rest})" + ("?" if rest_empty else "")
        options.setdefault(tail, []).append(digit)
    if not options:
        return empty, None
    texts = ["[" + "".join(map(str, digits)) + "]" + tail for tail, digits in options.items()]
    return empty, "(?:" + "|".join(texts) + ")"


def as_decimal(value: int | float) -> Decimal:
    """The decimal that a schema's number was written as.

    Whole floats are taken exactly: the shortest text of a float beyond 2**53 is only close to it.
    """
    return Decimal(int(value)) if isinstance(value, int) or value.is_integer() else Decimal(repr(value))


def as_divisor(value: int | float) -> int | None:
    """A multipleOf as an integer, or None if it isn't one."""
    exact = Fraction(as_decimal(value))
    return int(exact) if exact.denominator == 1 else None
