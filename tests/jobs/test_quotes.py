import json
import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammars import stock_schema
from jobs.job_settings import InputSettings
from jobs.quote_answers import QuoteLocator, has_quotes, locate_quotes, quote_properties
from jobs.quotes import QuoteFinder, QuotePlace, fold
from jobs.source import Document, read_input

# Letters of several scripts, what folding changes, and what composes: é both ways, Hangul parts, a Bengali vowel sign,
# a Tibetan vowel whose decomposition begins with a mark, and characters outside the first plane.
ALPHABET = (
    "abé \n\t\u00a0\u3000\u201c\u201d\"'\u2019\u2014-\u2212e\u0301\u0323中国。\U0001d4b3😊"
    "\u1112\u1161\u11ab\u09c7\u09be\u0f73\u212b\u2126"
)
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=30)


@settings(deadline=None)
@given(TEXTS, st.data())
def test_a_piece_of_the_document_is_found_letter_for_letter(document, data):
    start = data.draw(st.integers(0, len(document)))
    end = data.draw(st.integers(start, len(document)))
    quote = document[start:end]
    place = QuoteFinder(document).find(quote)
    if quote.strip():
        assert place.exact
        assert document[place.start : place.end] == quote
        assert place.start <= start
    else:
        assert place == QuotePlace()


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_what_is_found_is_there(document, quote):
    place = QuoteFinder(document).find(quote)
    if not place.found:
        assert place.end is None
        assert not quote.strip() or quote not in document
        assert not quote.strip() or fold(quote).strip() not in fold(document)
        return
    there = document[place.start : place.end]
    assert place.exact == (there == quote)
    assert fold(quote).strip() in fold(there)


@settings(deadline=None)
@given(TEXTS, st.data())
def test_an_altered_quote_is_found_by_its_normal_form(document, data):
    start = data.draw(st.integers(0, len(document)))
    quote = document[start : data.draw(st.integers(start, len(document)))]
    form = data.draw(st.sampled_from(["NFC", "NFD"]))
    changed = unicodedata.normalize(form, quote).replace("\u201c", '"').replace("\u2014", "-").replace(" ", "\n ")
    place = QuoteFinder(document).find(changed)
    # A quote that begins or ends inside a cluster can compose otherwise than the whole.
    if fold(changed).strip() and fold(changed).strip() in fold(document):
        assert place.found
        assert fold(changed).strip() in fold(document[place.start : place.end])


@settings(deadline=None)
@given(TEXTS)
def test_folding_is_the_same_piece_by_piece_and_at_once(document):
    assert QuoteFinder(document)._folded.text == fold(document)
    assert fold(fold(document)) == fold(document)


@pytest.mark.parametrize(
    ("document", "quote", "there"),
    [
        ("Er sagte: „Ja \u2013 gewiss“.", 'sagte: "Ja - gewiss"', "sagte: „Ja \u2013 gewiss“"),
        ("one\n  two\tthree", " one two three ", "one\n  two\tthree"),
        ("cafe\u0301 noir", "café noir", "cafe\u0301 noir"),
        ("le café", "cafe\u0301", "café"),
        ("它说\uff1a「和平」。", '说:"和平"', None),  # a full-width colon is another character
        ("它说\uff1a「和平」。", '说\uff1a"和平"', "说\uff1a「和平」"),
        ("A\u030angstro\u0308m", "\u212bngström", "A\u030angstro\u0308m"),
        ("an Abc", "abc", None),
        ("x", "", None),
        ("x y", " ", None),
        ("", "x", None),
    ],
)
def test_examples(document, quote, there):
    place = QuoteFinder(document).find(quote)
    assert (document[place.start : place.end] if place.found else None) == there


def test_a_long_document_with_many_quotes():
    """2 MB and 200 quotes, found, altered and absent; also where a naive search would need their product."""
    words = random.Random(0)
    document = " ".join(f"wort{words.randrange(10**6)}\u2014" for _ in range(160_000))
    finder = QuoteFinder(document)
    for number in range(200):
        start = words.randrange(len(document) - 400)
        quote = document[start : start + 300]
        if number % 3 == 0:
            assert document[slice(*_span(finder.find(quote)))] == quote
        elif number % 3 == 1:
            altered = quote.replace("\u2014", "-").replace(" ", "\n")
            assert fold(document[slice(*_span(finder.find(altered)))]).strip() == fold(quote).strip()
        else:
            assert not finder.find(quote + "missing").found
    same = QuoteFinder("a" * 2_000_000)
    assert not same.find("a" * 1000 + "b" + "a" * 1000).found
    assert not same.find("b" + "a" * 50_000).found


def _span(place):
    assert place.found
    return place.start, place.end


@pytest.mark.parametrize("language", ["en", "zh"])
def test_gold_answers_of_xquad(shared_data, language):
    data = read_input(InputSettings(documents=("nested.parquet",)), shared_data / f"xquad_{language}")
    exact = found = total = 0
    finders = {name: QuoteFinder(document.text) for name, document in data.documents.items()}
    for row in data.rows:
        for gold in row.gold:
            document = data.documents[row.document_hash].text
            place = finders[row.document_hash].find(gold)
            total += 1
            found += place.found
            exact += place.exact
            assert not place.exact or document[place.start : place.end] == gold
    assert exact >= 0.95 * total
    assert found >= exact


SCHEMA = {
    "type": "object",
    "properties": {
        "quote": {"type": "string", "x-docqa": "quote"},
        "verdict": {"enum": ["true", "false"]},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
        "a/b": {"anyOf": [{"type": "null"}, {"type": "string", "x-docqa": "quote"}]},
    },
    "$defs": {
        "part": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "x-docqa": "quote"},
                "inner": {"type": "array", "items": {"$ref": "#/$defs/part"}},
            },
        }
    },
}


def test_marked_strings_wherever_they_are():
    answer = {
        "quote": "one",
        "verdict": "true",
        "parts": [{"text": "two", "inner": [{"text": "nowhere"}]}, {"text": "one"}],
        "a/b": "two",
    }
    found = locate_quotes(SCHEMA, answer, QuoteFinder("one two"))
    assert [(quote.pointer, quote.text, quote.place.start) for quote in found] == [
        ("/quote", "one", 0),
        ("/parts/0/text", "two", 4),
        ("/parts/0/inner/0/text", "nowhere", None),
        ("/parts/1/text", "one", 0),
        ("/a~1b", "two", 4),
    ]
    assert has_quotes(SCHEMA)
    assert not has_quotes({"properties": {"quote": {"type": "string"}}})
    endless = {"$ref": "#"}
    assert locate_quotes(endless, "x", QuoteFinder("x")) == []
    assert locate_quotes({"type": "string", "x-docqa": "quote"}, "x", QuoteFinder("ax"))[0].pointer == ""


@pytest.mark.parametrize("name", ["answer", "verdict"])
def test_quotes_of_the_stock_schemas_are_looked_up(name):
    assert quote_properties(stock_schema(name)) == ["quote"]


def test_places_as_they_are_stored():
    documents = {f"h{number}": Document(f"h{number}", f"document {number} says this") for number in range(20)}
    locator = QuoteLocator(documents)
    for number in (0, 1, 0, *range(20), 0):
        places = json.loads(locator.places(SCHEMA, {"quote": f"{number}\nsays", "verdict": "true"}, f"h{number}"))
        start = len("document ")
        end = start + len(f"{number} says")
        assert places == {"/quote": {"start": start, "end": end, "found": True, "exact": False}}
    assert locator.places({"type": "object"}, {}, "h0") is None
    assert json.loads(locator.places(SCHEMA, {"quote": "none"}, "h0"))["/quote"] == {
        "start": None, "end": None, "found": False, "exact": False,
    }  # fmt: skip
    assert len(locator._finders) == QuoteLocator.KEPT_DOCUMENTS
    assert quote_properties(SCHEMA) == ["quote", "a/b"]
