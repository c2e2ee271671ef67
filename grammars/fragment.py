"""Regular expressions with what is known about them: their size, and a shortest text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

from .characters import CharacterSet
from .errors import GrammarTooLarge

MAX_REGEX_CHARACTERS = 4_000_000
MAX_POSITIONS = 600_000
MAX_STATES = 80_000
MAX_LISTED_SUBSETS = 1_000

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A regular expression over the text of JSON, safe to stand next to another one.

    `positions` estimates the size of the nondeterministic automaton, `states` that of the deterministic one.
    `wide` is how many of these states let most tokens through: they make up nearly all of an index's memory.
    """

    regex: str
    shortest: str
    states: int
    wide: int
    positions: int

    def __post_init__(self) -> None:
        for amount, limit, unit in (
            (len(self.regex), MAX_REGEX_CHARACTERS, "characters of regular expression"),
            (self.positions, MAX_POSITIONS, "positions"),
            (self.states, MAX_STATES, "states"),
        ):
            if amount > limit:
                raise GrammarTooLarge(f"its grammar needs more than {limit:,} {unit}")


EMPTY = Fragment("", "", 0, 0, 0)


def literal(text: str) -> Fragment:
    """Exactly `text`."""
    return Fragment(_escape(text), text, len(text.encode()), 0, len(text.encode()))


def raw(regex: str, shortest: str, states: int) -> Fragment:
    """A hand-written expression over digits and punctuation; it is grouped here."""
    return Fragment(f"(?:{regex})", shortest, states, 0, max(states, len(regex) // 2))


@lru_cache(maxsize=4096)
def json_character(characters: CharacterSet, alphabet: CharacterSet) -> Fragment | None:
    """One character of `characters` inside a JSON string, escaped where JSON wants it; None if none can be spelled.

    `\\uXXXX` is written for control characters only, in the digits that json.dumps uses, so that no lone surrogate can
    appear.
    """
    plain = (characters & alphabet) - _MUST_ESCAPE
    options = [plain.regex()] if plain else []
    letters = codes = ""
    if "\\" in alphabet:
        letters = "".join(spelling[1] for character, spelling in _ESCAPES.items() if character in characters)
        letters += "/" if "/" in characters else ""
        letters = "".join(letter for letter in letters if letter in alphabet)
        codes = _control_codes(characters, alphabet)
    escapes = [CharacterSet.from_text(letters).regex()] if letters else []
    escapes += [f"u00(?:{codes})"] if codes else []
    if escapes:
        options.append(r"\\" + (escapes[0] if len(escapes) == 1 else f"(?:{'|'.join(escapes)})"))
    if not options:
        return None
    shortest = plain.example() if plain else "\\" + (letters[0] if letters else f"u00{codes[0]}{codes[2]}")
    many_bytes = not plain.ascii_only
    regex = options[0] if len(options) == 1 and plain else "(?:" + "|".join(options) + ")"
    return Fragment(
        regex,
        shortest,
        (10 if many_bytes else 1) + bool(escapes) + 3 * bool(codes),
        int(plain.count >= 20),
        (25 if many_bytes else 3) + 8 * bool(codes),
    )


def _control_codes(characters: CharacterSet, alphabet: CharacterSet) -> str:
    """An expression for the last two digits of the `\\u00XX` of control characters that have no shorter escape.

    Where all control characters are asked for, all are escaped so: one state fewer, whose tokens are many.
    """
    if not all(digit in alphabet for digit in "u01"):
        return ""
    allowed = [
        [point for point in range(first, first + 16) if chr(point) in characters and f"{point % 16:x}" in alphabet]
        for first in (0x00, 0x10)
    ]
    if len(allowed[0]) == len(allowed[1]) == 16:
        return "[01][0-9a-f]"
    options = []
    for first, points in enumerate(allowed):
        digits = "".join(f"{point % 16:x}" for point in points if chr(point) not in _ESCAPES)
        options += [f"{first}[{digits}]"] if digits else []
    return "|".join(options)


def sequence(parts: Sequence[Fragment]) -> Fragment:
    """One after the other."""
    return Fragment(
        "".join(part.regex for part in parts),
        "".join(part.shortest for part in parts),
        sum(part.states for part in parts),
        sum(part.wide for part in parts),
        sum(part.positions for part in parts),
    )


def choice(options: Sequence[Fragment]) -> Fragment:
    """One of them; at least one is needed."""
    if len(options) == 1:
        return options[0]
    return Fragment(
        "(?:" + "|".join(option.regex for option in options) + ")",
        min((option.shortest for option in options), key=_byte_length),
        sum(option.states for option in options),
        sum(option.wide for option in options),
        sum(option.positions for option in options),
    )


def optional(part: Fragment) -> Fragment:
    """It, or nothing."""
    if not part.regex:
        return part
    return Fragment(f"(?:{part.regex})?", "", part.states, part.wide, part.positions)


def repeat(part: Fragment, low: int, high: int | None) -> Fragment:
    """From `low` to `high` times (None: without end)."""
    if high == 0 or not part.regex:
        return EMPTY
    if (low, high) == (1, 1):
        return part
    copies = max(low, 1) if high is None else high
    bounds = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
    if high is None and low <= 1:
        bounds = "+" if low else "*"
    return Fragment(
        f"(?:{part.regex}){bounds}",
        part.shortest * low,
        part.states * copies,
        part.wide * copies,
        part.positions * copies,
    )


def separated(item: Fragment, low: int, high: int | None) -> Fragment:
    """From `low` to `high` items with commas between them.

    The last item is written apart from the ones before it, `(?:X,)*X`: both copies run in step, so the states of
    nested lists add up, where `X(?:,X)*` would double them at every level.
    """
    if high == 0:
        return EMPTY
    repeated = repeat(sequence([item, literal(",")]), max(low - 1, 0), None if high is None else high - 1)
    full = sequence([repeated, item])
    # The last copy shares the states of the others.
    merged = Fragment(
        full.regex, full.shortest, max(repeated.states, item.states), max(repeated.wide, item.wide), full.positions
    )
    return optional(merged) if low == 0 else merged


def subsequence(parts: Sequence[Fragment], needed: Sequence[bool], allow_none: bool) -> Fragment | None:
    """A subset of `parts` in their order with commas between, all the `needed` ones among them.

    None if `parts` is empty and `allow_none` is false. States add up, and so does the length of the expression.
    """
    if not parts:
        return EMPTY if allow_none else None
    if any(needed):
        first = list(needed).index(True)
        pieces = [optional(sequence([part, literal(",")])) for part in parts[:first]]
        pieces.append(parts[first])
        for part, is_needed in zip(parts[first + 1 :], needed[first + 1 :], strict=True):
            piece = sequence([literal(","), part])
            pieces.append(piece if is_needed else optional(piece))
        return sequence(pieces)
    some = _nonempty_subsequence(list(parts))
    return optional(some) if allow_none else some


def counted_subsequence(parts: Sequence[Fragment], needed: Sequence[bool], low: int, high: int) -> Fragment | None:
    """Like `subsequence`, of at least `low` and at most `high` parts; None if there is no such subset.

    Raises GrammarTooLarge if the subsets must be listed and are too many.
    """
    least, most = max(low, sum(needed)), min(high, len(parts))
    if least > most:
        return None
    if most == len(parts) and (least == sum(needed) or (least == 1 and not any(needed))):
        return subsequence(parts, needed, allow_none=least == 0)
    free = [index for index, is_needed in enumerate(needed) if not is_needed]
    sizes = range(least - sum(needed), most - sum(needed) + 1)
    if sum(comb(len(free), size) for size in sizes) > MAX_LISTED_SUBSETS:
        raise GrammarTooLarge("there are too many combinations to count properties or unique items")
    options = []
    for size in sizes:
        for chosen in combinations(free, size):
            members = [part for index, part in enumerate(parts) if needed[index] or index in chosen]
            options.append(subsequence(members, [True] * len(members), allow_none=True) or EMPTY)
    return choice(options)


def _nonempty_subsequence(parts: list[Fragment]) -> Fragment:
    if len(parts) == 1:
        return parts[0]
    # One part at a time keeps the expression linear; halves keep its nesting below the parser's limit of 250.
    middle = 1 if len(parts) <= 16 else len(parts) // 2
    head, tail = _nonempty_subsequence(parts[:middle]), _nonempty_subsequence(parts[middle:])
    return Fragment(
        f"(?:(?:{head.regex},)?{tail.regex}|{head.regex})",
        min(head.shortest, tail.shortest, key=_byte_length),
        head.states + tail.states + 1,
        head.wide + tail.wide,
        2 * head.positions + tail.positions,
    )


def any_literal(texts: Sequence[str]) -> Fragment:
    """One of `texts`, factored by common prefixes so that thousands of them stay cheap."""
    ordered = sorted(set(texts))
    regex, characters = _factored(ordered, 0)
    return Fragment(f"(?:{regex})", min(texts, key=_byte_length), characters, 0, characters)


def _factored(texts: list[str], start: int) -> tuple[str, int]:
    groups: dict[str, list[str]] = {}
    ends = False
    for text in texts:
        if len(text) == start:
            ends = True
        else:
            groups.setdefault(text[start], []).append(text)
    options: list[str] = []
    size = 0
    for members in groups.values():
        shared = start + 1
        shortest, longest = members[0], members[-1]
        while shared < len(shortest) and shared < len(longest) and shortest[shared] == longest[shared]:
            shared += 1
        rest, rest_size = _factored(members, shared) if len(members) > 1 else (_escape(shortest[shared:]), 0)
        options.append(_escape(shortest[start:shared]) + rest)
        size += len(shortest[start:shared].encode()) + rest_size
        if len(members) == 1:
            size += len(shortest[shared:].encode())
    if not options:
        return "", 0
    body = "(?:" + "|".join(options) + ")"
    return (body + "?" if ends else body), size


def _escape(text: str) -> str:
    # Only what must be: an escaped `<` or `>`, for one, is a word boundary to Rust's regex.
    return "".join("\\" + character if character in "\\.+*?()|[]{}^$#&-~" else character for character in text)


def _byte_length(text: str) -> int:
    return len(text.encode())


_MUST_ESCAPE = CharacterSet.of([(0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\"))])
