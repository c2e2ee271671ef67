"""Every number that a range lets through reads back within the range; every integer within is let through."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammars.integer_ranges import integers
from grammars.number_bounds import Bounds, as_decimal
from grammars.number_ranges import numbers
from tests.thorough import examples

SMALL = st.integers(-1200, 1200)
BOUND = st.one_of(
    SMALL, st.integers(-(10**26), 10**26), st.floats(-50, 50), st.floats(-1e17, 1e17), st.sampled_from([0.1, 0.3, -0.5])
)


def make_bounds(low: Any, low_open: bool, high: Any, high_open: bool) -> Bounds:
    bounds = Bounds()
    if low is not None:
        bounds = bounds.tightened(low=as_decimal(low), is_open=low_open)
    if high is not None:
        bounds = bounds.tightened(high=as_decimal(high), is_open=high_open)
    return bounds


def within(value: Any, low: Any, low_open: bool, high: Any, high_open: bool) -> bool:
    """As jsonschema compares: Python numbers, exactly."""
    above = low is None or (value > low if low_open else value >= low)
    below = high is None or (value < high if high_open else value <= high)
    return bool(above and below)


@examples(50)
@given(st.none() | SMALL, st.booleans(), st.none() | SMALL, st.booleans(), st.lists(SMALL, max_size=30))
def test_integers_are_exact(low: Any, low_open: bool, high: Any, high_open: bool, values: list[int]) -> None:
    fragment = integers(make_bounds(low, low_open, high, high_open))
    near = [bound + step for bound in (low, high) if bound is not None for step in (-11, -1, 0, 1, 11)]
    for value in values + near:
        matched = fragment is not None and re.fullmatch(fragment.regex, str(value)) is not None
        assert matched == within(value, low, low_open, high, high_open)
    if fragment is not None:
        assert re.fullmatch(fragment.regex, fragment.shortest)


@examples(50)
@given(SMALL, SMALL, st.sampled_from([2, 3, 4, 5, 8, 10, 20, 25, 50, 100, 125, 250, 500, 1000]), SMALL)
def test_multiples(low: int, high: int, step: int, value: int) -> None:
    for bounds, inside in (
        (make_bounds(low, False, high, False), within(value, low, False, high, False)),
        (make_bounds(low, False, None, False) if 1000 % step == 0 else None, value >= low),
        (make_bounds(None, False, high, False) if 1000 % step == 0 else None, value <= high),
    ):
        if bounds is None:
            continue
        fragment = integers(bounds, step)
        matched = fragment is not None and re.fullmatch(fragment.regex, str(value)) is not None
        assert matched == (inside and value % step == 0)
        if fragment is not None:
            assert re.fullmatch(fragment.regex, fragment.shortest)


def test_a_range_between_two_whole_numbers_of_sixteen_digits_has_none() -> None:
    """A float has no digits behind the point there, so nothing is written, and not the empty text either."""
    half = 10**15 + 0.5
    for low, high in ((half, half), (-half, -half), (half, half + 0.25)):
        assert numbers(make_bounds(low, False, high, False)) is None
    fragment = numbers(make_bounds(half, False, half + 1, False))
    assert fragment is not None
    assert re.fullmatch(fragment.regex, fragment.shortest)
    assert not re.fullmatch(fragment.regex, "")


@st.composite
def near_texts(draw: Any, bounds: list[Any]) -> str:
    """Numbers in text close to the bounds: a few digits appended to or changed in a bound's own text."""
    text = format(as_decimal(draw(st.sampled_from(bounds or [0]))), "f")
    if "." not in text and draw(st.booleans()):
        text += "."
    text = text[: draw(st.integers(1, len(text)))] + draw(st.text("0123456789", max_size=24))
    return text + ("0" if text.endswith((".", "-")) else "") + draw(st.sampled_from(["", "", "e-05", "E7", "e+23"]))


@examples(100)
@given(st.data(), st.none() | BOUND, st.booleans(), st.none() | BOUND, st.booleans())
def test_numbers_are_sound(data: Any, low: Any, low_open: bool, high: Any, high_open: bool) -> None:
    fragment = numbers(make_bounds(low, low_open, high, high_open))
    if fragment is None:
        return
    assert re.fullmatch(fragment.regex, fragment.shortest), fragment
    texts = [fragment.shortest]
    texts += data.draw(st.lists(near_texts([bound for bound in (low, high) if bound is not None]), max_size=20))
    texts += data.draw(st.lists(st.from_regex(f"\\A(?:{fragment.regex})\\Z"), max_size=5))
    for text in texts:
        if re.fullmatch(fragment.regex, text):
            assert within(json.loads(text), low, low_open, high, high_open), text


@examples(100)
@given(st.none() | BOUND, st.none() | BOUND, st.floats(-1e15, 1e15) | st.floats(-2, 2))
def test_numbers_accept_floats_between(low: Any, high: Any, value: float) -> None:
    fragment = numbers(make_bounds(low, False, high, False))
    # Near zero, Python writes an exponent; one of the bound's own size is not written.
    if within(value, low, False, high, False) and (value == 0 or abs(value) >= 1e-4) and repr(value) != "-0.0":
        assert fragment is not None
        assert re.fullmatch(fragment.regex, repr(value)), fragment


@pytest.mark.parametrize("low", [None, 0, 1, -3])
def test_numbers_of_any_size(low: int | None) -> None:
    bounds = make_bounds(low, False, None, False)
    for text in ("1" + "0" * 400, "5e-05", "1.5e+16", "1.7976931348623157e+308", "2e300", "0.30000000000000004"):
        fragment = integers(bounds) if text.isdigit() else numbers(bounds)
        assert fragment is not None
        assert bool(re.fullmatch(fragment.regex, text)) == within(json.loads(text), low, False, None, False)
    fragment = numbers(bounds)
    assert fragment is not None
    for text in ("1.8e308", "1e309", "1" * 310 + ".5", "9" * 16 + "e300"):
        assert not re.fullmatch(fragment.regex, text)


@examples(50)
@given(SMALL, SMALL, st.decimals(-1300, 1300, places=3))
def test_numbers_accept_what_is_between(low: int, high: int, value: Decimal) -> None:
    fragment = numbers(make_bounds(low, True, high, False))
    if low < value <= high:
        assert fragment is not None
        text = format(value, "f")
        # Minus zero is the one number with two texts.
        assert re.fullmatch(fragment.regex, text) or float(text) == 0
