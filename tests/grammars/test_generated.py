"""Generated schemas: nothing that is finished breaks its schema, and valid instances can be written.

A few in the normal run; 2,000 with `-m slow`. Shapes of schemas and their valid instances come from
hypothesis-jsonschema.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.utils import many
from hypothesis_jsonschema import from_schema
from hypothesis_jsonschema._canonicalise import FALSEY

from grammars import AnswerGrammar, InvalidSchema, UnsupportedSchema, compile_schema
from grammars.limits import LADDER
from grammars.schema_walk import rewritten
from tests.grammars.helpers import accepts, byte_vocabulary, is_valid, preferring, random_writer, write_answer
from tests.grammars.instances import UndeclaredKey, in_schema_order


def _more(self: Any) -> bool:
    """What hypothesis-jsonschema 0.23 calls; newer versions of Hypothesis have only the iterator."""
    if self._depth is None:
        self.__enter__()
        self.steps = iter(self)
    return next(self.steps, self) is not self


if not hasattr(many, "more"):
    many.more = _more

VOCABULARY = byte_vocabulary()
ADVERSARIES = {
    "white space": [b"\n\n", b"\n", b"\t", b"  ", b" "],
    "goes on": [b"a", b",", b"1", b'"', b"["],
    "control bytes": [b"\x01", b"\x00", b"\t", b"\\u", b"\\", b"ud800"],
    "closes": [b'"}', b'"}]', b"}", b"]", b'"'],
    "repeats keys": [b'"a"', b'"a', b"a", b'","', b":", b"1"],
}
MAX_TOKENS = 90


def _optional(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"const": value} for name, value in required.items()} | optional,
        "required": list(required),
        "additionalProperties": False,
    }


_COUNT = {"type": "integer", "minimum": 0, "maximum": 7}
_LIMIT = {"anyOf": [{"type": "integer", "minimum": -300, "maximum": 1200}, {"enum": [0.5, -1.25, 99.9, 1e3]}]}
_PATTERNS = {"enum": ["^[a-c]+$", "b", "^x?[0-9]{2,4}$", "^(no|yes)", "é$", "\\d", "^\\S+$"]}
_FORMATS = {"enum": ["date", "time", "email", "ipv4", "uuid", "colour"]}
_SCALARS = [
    _optional({"type": "string"}, minLength=_COUNT, maxLength=_COUNT),
    _optional({"type": "string"}, pattern=_PATTERNS, maxLength=_COUNT),
    _optional({"type": "string"}, format=_FORMATS),
    _optional({"type": "integer"}, minimum=_LIMIT, maximum=_LIMIT, multipleOf={"enum": [1, 2, 3, 7, 10]}),
    _optional({"type": "number"}, exclusiveMinimum=_LIMIT, maximum=_LIMIT),
    _optional({}, minLength=_COUNT, maximum=_LIMIT, type={"enum": ["boolean", "null", ["string", "integer"]]}),
    _optional({}, enum={"type": "array", "minItems": 1, "maxItems": 4}),
    _optional({}, const={}),
]
_NAMES = st.sampled_from(["a", "ab", "b", 'q"', "é", "a b", "$x", "answer"])


def schemas(depth: int) -> st.SearchStrategy[Any]:
    """Schemas nested at most `depth` deep."""
    scalars = st.one_of([from_schema(shape) for shape in _SCALARS])
    if depth == 0:
        return scalars | st.booleans()
    inner = st.deferred(lambda: schemas(depth - 1))
    count = st.integers(0, 4)
    objects = st.fixed_dictionaries(
        {"properties": st.dictionaries(_NAMES, inner, max_size=4)},
        optional={
            "type": st.just("object"), "required": st.lists(_NAMES, unique=True, max_size=2),
            "additionalProperties": inner | st.just(False), "minProperties": st.integers(0, 2), "maxProperties": count,
        },
    )  # fmt: skip
    maps = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "additionalProperties": inner, "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner),
            "propertyNames": from_schema(_SCALARS[0]), "minProperties": count, "maxProperties": count,
        },
    )  # fmt: skip
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner, "minItems": count, "maxItems": count, "uniqueItems": st.booleans(), "contains": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
        },
    )  # fmt: skip
    options = st.lists(inner, min_size=1, max_size=3)
    combined = st.fixed_dictionaries(
        {}, optional={"anyOf": options, "oneOf": options, "allOf": options, "not": inner, "if": inner, "then": inner}
    )
    both = st.builds(lambda one, other: {**one, **other}, objects, combined)
    return scalars | objects | maps | arrays | combined | both


def check_soundness(grammar: AnswerGrammar, number: int) -> int:
    """Random and adversarial stubs, with and without a limit on tokens. Returns how many answers were finished."""
    finished = 0
    stubs = [(kind, preferring(VOCABULARY, wanted, number)) for kind, wanted in ADVERSARIES.items()]
    stubs += [("random", random_writer(grammar, number + place)) for place in range(3)]
    for kind, stub in stubs:
        answer = write_answer(grammar, stub, MAX_TOKENS, in_time=True)
        if answer is None:
            # An index knows how far the end is; llguidance keeps a margin.
            assert grammar.backend == "llguidance" or grammar.end_distances.most > MAX_TOKENS, (kind, grammar.schema)
            continue
        finished += 1
        assert is_valid(grammar.schema, answer.decode("utf-8")), (kind, answer, grammar.schema, grammar.backend)
    assert is_valid(grammar.schema, grammar.shortest_text)
    return finished


def mended() -> None:
    """hypothesis-jsonschema 0.23 can take the keyword out of its own `{"not": {}}`, and stumbles from then on."""
    FALSEY.clear()
    FALSEY["not"] = {}


def instances_of(schema: Any, chosen_seed: int) -> list[Any]:
    """Valid instances as a grammar would write them; often none are found."""
    found = []
    mended()

    def keep(value: Any) -> None:
        if is_valid(schema, json.dumps(value)):
            with suppress(UndeclaredKey):
                found.append(in_schema_order(value, schema))

    with suppress(Exception):  # hypothesis-jsonschema gives up on many schemas, in many ways
        generated(2, chosen_seed)(given(from_schema(schema))(keep))()
    return found


def generated(examples: int, chosen_seed: int) -> Callable[[Any], Any]:
    """Settings of a run that only generates."""
    chosen = settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda function: seed(chosen_seed)(chosen(function))


FREE_DEPTH = LADDER[0].free_depth
BY_DESIGN = ("formats", "no type is given", "free values nest deeper", "keys that match no pattern")
"""A known `format` is kept although Draft 2020-12 doesn't ask for it, a schema without `type` is written as what its
keywords speak of, the depth of values that may be anything has a limit, and beside `patternProperties` no other keys
are written. The lint says each of it."""


def cause_of(grammar: AnswerGrammar, text: str) -> str:
    """Why a valid instance can't be written."""
    if '"format"' in json.dumps(grammar.schema):
        without = rewritten(grammar.schema, lambda part, _: {name: part[name] for name in part if name != "format"})
        if accepts(compile_schema(without, VOCABULARY, backend=grammar.backend), text):
            return "formats"
    if any("no type is given" in note for note in grammar.notes):
        return "no type is given"
    if any("only keys that match" in note for note in grammar.notes):
        return "keys that match no pattern"
    if any("nested at most" in note for note in grammar.notes) and depth(json.loads(text)) > FREE_DEPTH:
        return "free values nest deeper"
    return "DEL" if "\x7f" in text and grammar.backend == "llguidance" else "unknown"


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def run(examples: int, chosen_seed: int) -> tuple[Counter[str], list[Any]]:
    counts: Counter[str] = Counter()
    misses: list[Any] = []
    accepted: list[AnswerGrammar] = []
    mended()

    @generated(examples, chosen_seed)
    @given(schemas(2))
    def check(schema: Any) -> None:
        counts["schemas"] += 1
        try:
            grammar = compile_schema(schema, VOCABULARY)
        except (UnsupportedSchema, InvalidSchema):
            counts["refused"] += 1
            return
        counts[grammar.backend] += 1
        counts["finished"] += check_soundness(grammar, random.Random(json.dumps(schema)).randrange(1 << 30))
        accepted.append(grammar)

    check()
    for number, grammar in enumerate(accepted):
        for value in instances_of(grammar.schema, number):
            counts["instances"] += 1
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            if accepts(grammar, text):
                counts["written"] += 1
                continue
            cause = cause_of(grammar, text)
            counts[f"not written: {cause}"] += 1
            if cause not in BY_DESIGN:
                misses.append((cause, grammar.backend, grammar.schema, ascii(text)))
    return counts, misses


def report(counts: Counter[str], misses: list[Any]) -> None:
    print(dict(counts))
    for miss in misses:
        print("not written:", *miss)


def test_a_few_generated_schemas() -> None:
    counts, misses = run(25, chosen_seed=5)
    report(counts, misses)
    assert counts["finished"] > 40


@pytest.mark.slow
@pytest.mark.parametrize("chosen_seed", range(4))
def test_many_generated_schemas(chosen_seed: int) -> None:
    counts, misses = run(800, chosen_seed=100 + chosen_seed)
    report(counts, misses)
    assert counts["schemas"] - counts["refused"] >= 400
    wanted = counts["instances"] - sum(counts[f"not written: {cause}"] for cause in BY_DESIGN)
    assert counts["written"] >= 0.99 * wanted
