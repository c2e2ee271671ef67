"""Sets of Unicode characters, and which of them a vocabulary can spell."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

LAST_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """An immutable set of code points, as sorted ranges that neither touch nor overlap. Never holds surrogates."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> "CharacterSet":
        """The set of all code points in `ranges` (inclusive ends, any order), surrogates left out."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(_without_surrogates(ranges)):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def from_text(cls, text: str) -> "CharacterSet":
        """The characters of `text`."""
        return cls.of((ord(character), ord(character)) for character in text)

    def __contains__(self, character: str) -> bool:
        return any(first <= ord(character) <= last for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: "CharacterSet") -> "CharacterSet":
        return CharacterSet.of(self.ranges + other.ranges)

    def __and__(self, other: "CharacterSet") -> "CharacterSet":
        if self == EVERYTHING or other == EVERYTHING:
            return other if self == EVERYTHING else self
        found = []
        left, right = 0, 0
        while left < len(self.ranges) and right < len(other.ranges):
            first = max(self.ranges[left][0], other.ranges[right][0])
            last = min(self.ranges[left][1], other.ranges[right][1])
            if first <= last:
                found.append((first, last))
            if self.ranges[left][1] < other.ranges[right][1]:
                left += 1
            else:
                right += 1
        return CharacterSet.of(found)

    def __invert__(self) -> "CharacterSet":
        gaps = []
        start = 0
        for first, last in self.ranges:
            gaps.append((start, first - 1))
            start = last + 1
        gaps.append((start, LAST_CODE_POINT))
        return CharacterSet.of(gap for gap in gaps if gap[0] <= gap[1])

    def __sub__(self, other: "CharacterSet") -> "CharacterSet":
        return self & ~other

    @property
    def count(self) -> int:
        """How many code points the set holds."""
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def ascii_only(self) -> bool:
        """True if every member is below U+0080."""
        return not self.ranges or self.ranges[-1][1] < 0x80

    def regex(self) -> str:
        """The set as a character class of Rust's regex syntax."""
        return "[" + "".join(_class_range(first, last) for first, last in self.ranges) + "]"

    def example(self) -> str:
        """A member, a letter or digit where there is one."""
        for preferred in "a0AZz1":
            if preferred in self:
                return preferred
        return chr(self.ranges[0][0])


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    low, high = SURROGATES
    for first, last in ranges:
        if last < low or first > high:
            yield first, last
            continue
        if first < low:
            yield first, low - 1
        if last > high:
            yield high + 1, last


def _class_character(code_point: int) -> str:
    character = chr(code_point)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code_point:x}}}"


def _class_range(first: int, last: int) -> str:
    if first == last:
        return _class_character(first)
    return f"{_class_character(first)}-{_class_character(last)}"


EVERYTHING = CharacterSet.of([(0, LAST_CODE_POINT)])
NON_ASCII = CharacterSet.of([(0x80, LAST_CODE_POINT)])
ASCII_DIGITS = CharacterSet.from_text("0123456789")
ASCII_SPACES = CharacterSet.from_text(" \t\n\r\f\v")
ASCII_WORD = CharacterSet.of([(ord("0"), ord("9")), (ord("A"), ord("Z")), (ord("a"), ord("z")), (ord("_"), ord("_"))])
LINE_ENDS = CharacterSet.from_text("\n\r\u2028\u2029")
CONTROLS = CharacterSet.of([(0, 0x1F)])

# What `\s`, `\d` and `\w` can mean at most, in Python's `re` or in ECMA-262.
WIDEST_SPACES = CharacterSet.from_text(
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"
) | CharacterSet.of([(0x2000, 0x200A)])


@lru_cache(maxsize=1)
def widest_digits() -> CharacterSet:
    """Every character that `\\d` matches in Python's `re`."""
    return CharacterSet.of((point, point) for point in range(LAST_CODE_POINT + 1) if chr(point).isdecimal())


def spellable(single_bytes: frozenset[int]) -> CharacterSet:
    """The characters whose UTF-8 bytes each have a token of their own.

    Only these are allowed in free text: wherever a token may end inside one of them, a token that goes on exists,
    so an answer can never be stuck.
    """
    ranges = [(byte, byte) for byte in single_bytes if byte < 0x80]
    if single_bytes.issuperset(range(0x80, 0xC0)):
        ranges += [
            ((lead & 0x1F) << 6, (lead & 0x1F) << 6 | 0x3F) for lead in range(0xC2, 0xE0) if lead in single_bytes
        ]
        for lead in range(0xE0, 0xF0):
            if lead in single_bytes:
                ranges.append((max((lead & 0x0F) << 12, 0x800), (lead & 0x0F) << 12 | 0xFFF))
        for lead in range(0xF0, 0xF5):
            if lead in single_bytes:
                first = max((lead & 0x07) << 18, 0x10000)
                ranges.append((first, min((lead & 0x07) << 18 | 0x3FFFF, LAST_CODE_POINT)))
    return CharacterSet.of(ranges)
