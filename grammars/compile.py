"""From a schema to a grammar: which backend, and what to do about keywords that none can enforce.

`auto` tries, in this order: an index that holds the whole schema and stays within the budget; llguidance; an
index with tighter bounds (see `limits.LADDER`), up to MAX_TRANSITIONS. Only then is the schema refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import GrammarTooLarge, UnsupportedSchema
from .fragment import Fragment
from .grammar import Compiled, JsonGrammar, build_index
from .guidance_grammar import GuidanceGrammar
from .limits import BUDGET_SECONDS, BUDGET_TRANSITIONS, LADDER, MAX_TRANSITIONS, building_seconds
from .relaxation import relaxed
from .schema_check import check_schema
from .schema_references import Located, SchemaDocument
from .schema_regex import SchemaCompiler
from .vocabulary import TokenVocabulary

AnswerGrammar = JsonGrammar | GuidanceGrammar

AUTO, INDEX, LLGUIDANCE = BACKENDS = ("auto", "index", "llguidance")


def compile_schema(
    schema: Any, vocabulary: TokenVocabulary, *, backend: str = AUTO, lenient: bool = False
) -> AnswerGrammar:
    """Compile a Draft 2020-12 schema (dict or bool).

    Every text the grammar allows is valid under the schema. Where it allows less than the schema, `notes` says so.
    Raises InvalidSchema if it isn't a schema, UnsupportedSchema if no such grammar can be guaranteed, or none that
    fits the memory set aside for it. With `lenient`, keywords that can't be guaranteed are left out instead, and
    `checked_after` names them.
    """
    check_schema(schema)
    try:
        return _compile(schema, schema, (), vocabulary, backend)
    except UnsupportedSchema as problem:
        if not lenient:
            raise
        refusal = problem
    weaker = schema
    left_out: dict[str, str] = {}
    while (step := relaxed(weaker, refusal)) is not None:
        weaker, pointer, reason = step
        left_out[pointer] = reason
        try:
            grammar = _compile(weaker, schema, tuple(left_out.items()), vocabulary, backend)
        except UnsupportedSchema as problem:
            refusal = problem
        else:
            return grammar
    raise refusal


def _compile(
    schema: Any, original: Any, checked_after: tuple[tuple[str, str], ...], vocabulary: TokenVocabulary, backend: str
) -> AnswerGrammar:
    if backend == LLGUIDANCE:
        return _guidance(schema, original, checked_after, vocabulary)
    attempts = index_attempts(schema, vocabulary)
    refusal: UnsupportedSchema | None = None
    attempt = Attempt("")
    try:
        attempt = next(attempts)
    except UnsupportedSchema as problem:
        refusal = problem
    body = attempt.body
    fits = (
        isinstance(body, Fragment)
        and not attempt.cuts
        and transitions(body, vocabulary) <= BUDGET_TRANSITIONS
        and building_seconds(body.states, body.positions, len(vocabulary.usable)) <= BUDGET_SECONDS
    )
    if backend == AUTO and not fits:
        try:
            return _guidance(schema, original, checked_after, vocabulary)
        except UnsupportedSchema as problem:
            if refusal is not None and refusal.keyword == "":
                refusal = UnsupportedSchema(refusal.path, "", f"{refusal.reason}, and {problem.reason}")
    if refusal is not None:
        raise refusal
    while not isinstance(body, Fragment) or transitions(body, vocabulary) > MAX_TRANSITIONS:
        reason = body if isinstance(body, str) else _too_wide(body, vocabulary)
        following = next(attempts, None)
        if following is None:
            raise UnsupportedSchema("", "", reason)
        attempt, body = following, following.body
    notes = attempt.cuts + attempt.habits
    about = Compiled(
        original, INDEX, notes, checked_after, body.shortest, vocabulary.fewest_tokens(body.shortest), body.regex
    )
    return JsonGrammar(about, build_index(body.regex, vocabulary), vocabulary)


def _guidance(
    schema: Any, original: Any, checked_after: tuple[tuple[str, str], ...], vocabulary: TokenVocabulary
) -> GuidanceGrammar:
    try:
        return GuidanceGrammar.compile(schema, original, checked_after, vocabulary)
    except RecursionError:
        raise UnsupportedSchema("", "", "it is nested too deeply") from None


def transitions(body: Fragment, vocabulary: TokenVocabulary) -> int:
    """About how many transitions an index would have: they make up its memory and the time to build it."""
    return body.wide * len(vocabulary.usable)


def _too_wide(body: Fragment, vocabulary: TokenVocabulary) -> str:
    most = MAX_TRANSITIONS // len(vocabulary.usable)
    return f"its bounded strings need {body.wide:,} characters of grammar, more than {most:,}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An expression, or the reason why there is none.

    `cuts` say where it stops short of the schema for want of room, `habits` where it writes less on purpose.
    """

    body: Fragment | str
    cuts: tuple[str, ...] = ()
    habits: tuple[str, ...] = ()


def index_attempts(schema: Any, vocabulary: TokenVocabulary) -> Iterator[Attempt]:
    """An attempt for each step of the ladder of limits.

    Raises UnsupportedSchema where no limits would help.
    """
    missing = [character for character in '{}[]",:\\-+.eE0123456789truefalsn' if character not in vocabulary.alphabet]
    if missing:
        raise UnsupportedSchema("", "", f"the model's vocabulary has no token for {missing[0]!r} alone")
    document = SchemaDocument(schema)
    for limits in LADDER:
        compiler = SchemaCompiler(document, vocabulary.alphabet, limits)
        try:
            body = compiler.value((Located(document.root.schema, ""),), ("",), limits.free_depth)
        except GrammarTooLarge as problem:
            yield Attempt(problem.reason)
            continue
        except RecursionError:
            yield Attempt("it is nested too deeply")
            continue
        if body is None:
            raise UnsupportedSchema("", "", "no value that can be written satisfies it")
        yield Attempt(body, tuple(compiler.cuts), tuple(compiler.habits))
