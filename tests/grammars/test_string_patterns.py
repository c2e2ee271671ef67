"""Pattern trees against Python's `re`, which is what jsonschema judges by."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from grammars.pattern_automaton import are_disjoint, count_states, includes
from grammars.string_formats import FORMAT_PATTERNS
from grammars.string_patterns import (
    NOTHING,
    Characters,
    Node,
    Sequence,
    UnsupportedPattern,
    at_least,
    at_most,
    length_range,
    parse_pattern,
)

PATTERNS = [
    "abc", "^abc", "abc$", "^abc$", "", "^$", "a|b", "^a|b$", "^(a|b)*$", "(^a|b)c", "^(?:a|bc){2,3}$", "[^a]",
    "^[^a-c\\d]*$",
    "^\\w+$", "^\\W$", "\\s", "^\\S+$", "^\\D\\d$", "^.$", "^a?b*c+$", "^(ab)?(c|$)", "^[\\w.-]+@[a-c]+$", "a{2}",
    "^(a*b)*c?$",
    "^a.*b$", "[ab][ab]$", "^((a|b)c|d)+$", "^\\x61\\u00e9$", "^[\\]a-]$",
]  # fmt: skip
TEXT = st.text("abcdé1٣_ \n\u2028.@-]", max_size=6)


def holds(tree: Node, text: str) -> bool:
    exactly = Sequence(tuple(Characters(parse_pattern(f"^{re.escape(c)}$").items[0].members) for c in text))  # type: ignore[union-attr]
    return includes(tree, exactly)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_narrow_and_wide_trees_enclose_the_language(pattern: str) -> None:
    narrow, wide = parse_pattern(pattern), parse_pattern(pattern, widest=True)
    assert includes(wide, narrow)

    @settings(max_examples=40, deadline=None)
    @given(TEXT)
    def check(text: str) -> None:
        found = re.search(pattern, text) is not None
        assert not holds(narrow, text) or found
        assert holds(wide, text) or not found
        if text.isascii() and "\n" not in text:
            assert holds(narrow, text) == found

    check()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("low", "high"), [(0, 3), (2, 4), (5, 5)])
def test_length_limits_only_take_away(pattern: str, low: int, high: int) -> None:
    tree = parse_pattern(pattern)
    limited = at_least(tree, low)
    if limited != NOTHING:
        limited = at_most(limited, high)
    if limited == NOTHING:
        return
    assert includes(tree, limited)
    longest = length_range(limited)[1]
    assert longest is not None
    assert longest <= high


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("(?=a)", "look-around"), ("(?<!a)b", "look-around"), ("(a)\\1", "back-references"), ("\\bx", "boundary"),
     ("(?i)a", "flags"), ("(?i:a)", "flags"), ("\\p{L}", "expression"), ("a++", "same way"),
      ("a^b", "anchor"), ("(", "expression")],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(UnsupportedPattern, match=reason):
        parse_pattern(pattern)


def test_questions_between_patterns() -> None:
    assert are_disjoint(parse_pattern("^a"), parse_pattern("^b", widest=True))
    assert not are_disjoint(parse_pattern("a"), parse_pattern("b"))
    assert includes(parse_pattern("^[a-z]+$"), parse_pattern("^(ab|cd)+$"))
    assert not includes(parse_pattern("^(ab|cd)+$"), parse_pattern("^[a-z]+$"))
    assert count_states(parse_pattern("^a{3}$")) == 4


@pytest.mark.parametrize(
    ("text", "good"),
    [("a/b:c", True), ("", True), ("?q#f", True), ("/x", True), ("h:x", True), ("1:2", False), (":a", False)],
)
def test_references_to_uris(text: str, good: bool) -> None:
    assert bool(re.fullmatch(FORMAT_PATTERNS["uri-reference"], text)) == good


@pytest.mark.parametrize("name", sorted(FORMAT_PATTERNS))
def test_formats_are_subsets(name: str) -> None:
    checker = Draft202012Validator.FORMAT_CHECKER
    if name not in checker.checkers:
        pytest.skip(f"jsonschema can't check {name} here")

    @settings(max_examples=60, deadline=None)
    @given(st.from_regex(FORMAT_PATTERNS[name].replace("^", "\\A", 1)[:-1] + "\\Z"))
    def check(text: str) -> None:
        assert checker.conforms(text, name), text

    check()
