"""Integers between bounds, and their multiples, as regular expressions over their digits."""

from .errors import GrammarTooLarge
from .fragment import Fragment, any_literal, raw
from .number_bounds import Bounds

MAX_LISTED_MULTIPLES = 4096

LARGEST_BOUND = 10**40
"""Bounds beyond are taken for this, so that expressions stay small."""


def integers(bounds: Bounds, step: int = 1) -> Fragment | None:
    """The integers within `bounds` that `step` divides, of any size where there is no bound; None if there are none.

    Raises GrammarTooLarge for a step whose multiples are too many to list and don't show in their last three digits.
    """
    low, high = bounds.integers()
    if low is not None:
        low = max(low, -LARGEST_BOUND)
    if high is not None:
        high = min(high, LARGEST_BOUND)
    if low is not None and high is not None and low > high:
        return None
    if step == 1:
        return _integer_fragment(low, high)
    if low is not None and high is not None:
        first, last = -(-low // step) * step, high // step * step
        if first > last:
            return None
        if (last - first) // step < MAX_LISTED_MULTIPLES:
            return any_literal([str(value) for value in range(first, last + 1, step)])
    for digits in (1, 2, 3):
        if 10**digits % step == 0:
            return _multiples(low, high, step, digits)
    raise GrammarTooLarge(f"multiples of {step} can't be told by their last digits, and there are too many to list")


def _integer_fragment(low: int | None, high: int | None) -> Fragment:
    options = []
    if high is None or high >= 0:
        options.append(digits_between(max(low or 0, 0), high))
    if low is None or low < 0:
        options.append("-" + digits_between(1 if high is None else max(-high, 1), None if low is None else -low))
    regex = "|".join(options)
    shortest = "0" if (low or 0) <= 0 <= (high or 0) else str(low if low is not None and low > 0 else high)
    return raw(regex, shortest, 20 + len(regex) // 4)


def _multiples(low: int | None, high: int | None, step: int, digits: int) -> Fragment:
    """Multiples of a divisor of 10**digits: any leading digits, then one of a few endings."""
    options: list[str] = []
    modulus = 10**digits
    endings = "|".join(f"{ending:0{digits}d}" for ending in range(0, modulus, step))
    shortest: list[str] = []
    for sign, start, end in (
        ("", max(low or 0, 0), high),
        ("-", 1 if high is None else max(-high, 1), None if low is None else -low),
    ):
        if end is not None and end < start:
            continue
        first_lead = max(-(-start // modulus), 1)
        last_lead = None if end is None else (end + 1) // modulus - 1
        edges = [*range(start, first_lead * modulus if end is None else min(first_lead * modulus, end + 1))]
        if end is not None and last_lead is not None:
            edges += range(max((last_lead + 1) * modulus, first_lead * modulus), end + 1)
        listed = [f"{sign}{value}" for value in edges if value % step == 0]
        options += listed
        shortest += listed
        if last_lead is None or first_lead <= last_lead:
            options.append(f"{sign}(?:{digits_between(first_lead, last_lead)})(?:{endings})")
            shortest.append(f"{sign}{first_lead * modulus}")
    regex = "|".join(options)
    return raw(regex, min(shortest, key=len), 20 + len(regex) // 4)


def digits_between(low: int, high: int | None) -> str:
    """The decimal texts of low..high (0 <= low <= high, None: without end), as an alternation in a group."""
    longer = ""
    if high is None:
        digits = len(str(low))
        high, longer = 10**digits - 1, f"|[1-9][0-9]{{{digits},}}"
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
    return "(?:" + "|".join(options) + longer + ")"


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
