"""Real schemas: whatever is compiled is sound. The full corpus is measured by hand; here is a sample of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from grammars import InvalidSchema, TokenVocabulary, UnsupportedSchema, compile_schema
from tests.grammars.helpers import accepts_value, assert_sound, is_valid

MAX_SCHEMA_CHARACTERS = 2500
EVERY = pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])


def tally(records: list[dict[str, Any]], vocabulary: TokenVocabulary, samples: int) -> dict[str, int]:
    counts = {"compiled": 0, "refused": 0, "samples": 0, "valid": 0, "accepted": 0}
    for record in records:
        try:
            grammar = compile_schema(record["schema"], vocabulary)
        except (UnsupportedSchema, InvalidSchema):
            counts["refused"] += 1
            continue
        counts["compiled"] += 1
        counts["samples"] += assert_sound(grammar, samples)
        for value in record["valid"]:
            counts["valid"] += 1
            counts["accepted"] += accepts_value(grammar, value)
        schema = record["schema"]
        for value in record["invalid"]:
            if not is_valid(schema, json.dumps(value)):
                assert not accepts_value(grammar, value), (record["id"], value)
    return counts


def small(chosen: Callable[[str], bool], corpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        record
        for record in corpus
        if chosen(record["source"]) and len(json.dumps(record["schema"])) <= MAX_SCHEMA_CHARACTERS
    ]


def test_question_schemas(corpus: list[dict[str, Any]], vocabulary: TokenVocabulary) -> None:
    counts = tally(small(lambda source: source == "qa", corpus), vocabulary, samples=5)
    assert counts["refused"] == 0
    assert counts["accepted"] == counts["valid"]


@EVERY
def test_real_schemas(corpus: list[dict[str, Any]], vocabulary: TokenVocabulary, every: int) -> None:
    records = small(lambda source: source.startswith("maskbench/"), corpus)[::every]
    counts = tally(records, vocabulary, samples=2)
    assert counts["compiled"] >= 0.85 * len(records), counts
    assert counts["accepted"] >= 0.8 * counts["valid"], counts


@EVERY
def test_the_official_suite(corpus: list[dict[str, Any]], vocabulary: TokenVocabulary, every: int) -> None:
    # Formats are annotations in Draft 2020-12; the groups that assert them are judged by jsonschema without.
    records = small(lambda source: source.startswith("jts/"), corpus)[::every]
    counts = tally(records, vocabulary, samples=1)
    assert counts["compiled"] > len(records) / 3, counts


def test_on_the_real_vocabulary(corpus: list[dict[str, Any]], smollm2: tuple[Any, TokenVocabulary]) -> None:
    records = small(lambda source: source == "qa", corpus)[:6]
    assert tally(records, smollm2[1], samples=3)["refused"] == 0


@pytest.mark.parametrize("schema", [{"$ref": "#/definitions/a~0b", "definitions": {"a~b": {"enum": ["<x>", "a-b"]}}}])
def test_angle_brackets_are_no_word_boundaries(schema: dict[str, Any], vocabulary: TokenVocabulary) -> None:
    assert accepts_value(compile_schema(schema, vocabulary), "<x>")
