"""Compiled grammars and the states of answers in them.

An expression R is indexed as `\\x01(?:R)\\x02`, with two made-up tokens for these bytes. The first keeps outlines-core
from building an automaton that searches anywhere, the second from dropping tokens near the end of a text that may end
or go on, such as `1` before `12`. Neither is ever shown to the engine: the first is taken at once, the second means
"may stop".
"""

import json
from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from numpy.typing import NDArray
from outlines_core import Guide, Index

from .errors import GrammarTooLarge, InvalidSchema, UnsupportedSchema
from .forced_text import ForcedText
from .fragment import Fragment
from .limits import LADDER, MAX_TRANSITIONS
from .schema_references import Located, SchemaDocument
from .schema_regex import SchemaCompiler
from .vocabulary import END_BYTE, START_BYTE, TokenVocabulary

Words = NDArray[np.int32]


class JsonGrammar:
    """The tokens that may come next in an answer to one schema. Shared by all rows; made by `compile_schema`.

    `regex` is the expression of the whole answer, `schema` what it was made from. `notes` says in words where the
    grammar allows less than the schema. `shortest_tokens` is an upper bound on the tokens of the shortest complete
    answer: the fewest tokens that spell one particular answer, the one with the shortest text that was found.
    """

    def __init__(self, schema: Any, body: Fragment, notes: tuple[str, ...], vocabulary: TokenVocabulary) -> None:
        self.schema = schema
        self.regex = body.regex
        self.notes = notes
        self.vocabulary = vocabulary
        self.shortest_text = body.shortest
        self.shortest_tokens = vocabulary.fewest_tokens(body.shortest)
        framed = START_BYTE.decode() + f"(?:{body.regex})" + END_BYTE.decode()
        try:
            self._index = Index(framed, vocabulary.outlines)
        except ValueError as problem:
            reason = str(problem).splitlines()[0][:200] if str(problem) else "unknown"
            raise UnsupportedSchema("", "", f"no index could be built ({reason})") from None
        first = self._index.get_next_state(self._index.get_initial_state(), vocabulary.start_id)
        assert first is not None
        self._first = first
        self._words = -(-vocabulary.size // 32)
        self._rows: dict[int, Words] = {}
        self._must_stop: dict[int, bool] = {}
        self._only: dict[int, int | None] = {}
        self.forced_text = ForcedText(self._index, vocabulary)

    def start(self) -> "JsonGrammarState":
        """A new state at the beginning of an answer."""
        return JsonGrammarState(self)

    def first_state(self) -> int:
        """The state of the index before an answer's first token."""
        return self._first

    def following(self, state: int, token_id: int) -> int | None:
        """The state after a token, or None if the token isn't allowed."""
        if not 0 <= token_id < self.vocabulary.size:
            return None
        return self._index.get_next_state(state, token_id)

    def may_stop(self, state: int) -> bool:
        """True if the answer is complete in this state."""
        return self._index.get_next_state(state, self.vocabulary.end_id) is not None

    def must_stop(self, state: int) -> bool:
        """True if the answer is complete in this state and nothing may follow."""
        if state not in self._must_stop:
            tokens = self._index.get_allowed_tokens(state) if self.may_stop(state) else None
            self._must_stop[state] = tokens == [self.vocabulary.end_id]
        return self._must_stop[state]

    def only_token(self, state: int, tokens: list[int]) -> int | None:
        """The one token that may follow, or None if there are several or the answer may stop; `tokens` as for `row`."""
        if state not in self._only:
            row = self.row(state, tokens)
            single = int(np.bitwise_count(row).sum()) == 1 and not self.may_stop(state)
            word = int(row.nonzero()[0][0]) if single else 0
            self._only[state] = (
                word * 32 + int(row[word : word + 1].view(np.uint32)[0]).bit_length() - 1 if single else None
            )
        return self._only[state]

    def row(self, state: int, tokens: list[int]) -> Words:
        """The mask of a state, which `tokens` lead to from the start. Built once; callers must not change it."""
        row = self._rows.get(state)
        if row is None:
            guide = Guide(self._index)
            for token_id in (self.vocabulary.start_id, *tokens):
                guide.advance(token_id, return_tokens=False)
            # Wide enough for the made-up tokens too; then cut to the model's own.
            size = self.vocabulary.size
            buffer = np.zeros(-(-(size + 4) // 32), dtype=np.int32)
            guide.write_mask_into(buffer.ctypes.data, buffer.size, buffer.itemsize)
            row = buffer[: self._words].copy()
            if size % 32:
                row[-1] &= np.int32((1 << size % 32) - 1)
            row.setflags(write=False)
            self._rows[state] = row
        return row


class JsonGrammarState:
    """Where one answer stands; implements the engine's `GrammarState`."""

    __slots__ = ("_grammar", "_states", "_tokens")

    def __init__(self, grammar: JsonGrammar) -> None:
        self._grammar = grammar
        self._states = [grammar.first_state()]
        self._tokens: list[int] = []

    @property
    def may_stop(self) -> bool:
        """True when the text so far is a complete answer."""
        return self._grammar.may_stop(self._states[-1])

    @property
    def must_stop(self) -> bool:
        """True when the answer is complete and no token may follow."""
        return self._grammar.must_stop(self._states[-1])

    @property
    def only_token(self) -> int | None:
        """The token that must come next, if exactly one is allowed and the answer may not stop here."""
        return self._grammar.only_token(self._states[-1], self._tokens)

    def forced_tokens(self) -> list[int]:
        """Tokens that spell the text that must come next; a proposal, since the text may be split otherwise."""
        return self._grammar.forced_text.tokens(self._states[-1])

    def write_mask(self, words: Words) -> None:
        """Write the tokens allowed next into `words`, int32 of at least [ceil(size / 32)], overwritten whole."""
        row = self._grammar.row(self._states[-1], self._tokens)
        words[: row.size] = row
        words[row.size :] = 0

    def advance(self, token_id: int) -> None:
        """Accept one token. Raises ValueError, with the state unchanged, if it is not allowed here."""
        following = self._grammar.following(self._states[-1], token_id)
        if following is None:
            raise ValueError(f"Token {token_id} is not allowed after {len(self._tokens)} tokens of this answer.")
        self._states.append(following)
        self._tokens.append(token_id)

    def roll_back(self, tokens: int) -> None:
        """Take back the last `tokens` accepted tokens. Raises ValueError if there are fewer."""
        if not 0 <= tokens <= len(self._tokens):
            raise ValueError(f"Can't take back {tokens} of {len(self._tokens)} tokens.")
        if tokens:
            del self._states[-tokens:]
            del self._tokens[-tokens:]


def compile_schema(schema: Any, vocabulary: TokenVocabulary) -> JsonGrammar:
    """Compile a Draft 2020-12 schema (dict or bool).

    Every text the grammar allows is valid under the schema. Where it allows less than the schema, `notes` says so.
    Raises InvalidSchema if it isn't a schema, UnsupportedSchema if no such grammar can be guaranteed, or none that
    fits the memory set aside for it.
    """
    _check(schema)
    document = SchemaDocument(schema)
    missing = [character for character in '{}[]",:\\-+.eE0123456789truefalsn' if character not in vocabulary.alphabet]
    if missing:
        raise UnsupportedSchema("", "", f"the model's vocabulary has no token for {missing[0]!r} alone")
    reason = ""
    for body, notes in _attempts(document, vocabulary):
        if isinstance(body, Fragment):
            return JsonGrammar(schema, body, notes, vocabulary)
        reason = body
    raise UnsupportedSchema("", "", reason)


def _attempts(
    document: SchemaDocument, vocabulary: TokenVocabulary
) -> Iterator[tuple[Fragment | str, tuple[str, ...]]]:
    """For each step of the ladder of limits, an expression that fits, or the reason why none did."""
    for limits in LADDER:
        compiler = SchemaCompiler(document, vocabulary.alphabet, limits)
        try:
            body = compiler.value((Located(document.root.schema, ""),), ("",), limits.free_depth)
        except GrammarTooLarge as problem:
            yield problem.reason, ()
            continue
        except RecursionError:
            yield "it is nested too deeply", ()
            continue
        if body is None:
            raise UnsupportedSchema("", "", "no value that can be written satisfies it")
        transitions = body.wide * len(vocabulary.usable)
        if transitions > MAX_TRANSITIONS:
            characters = MAX_TRANSITIONS // len(vocabulary.usable)
            yield f"its bounded strings need {body.wide:,} characters of grammar, more than {characters:,}", ()
            continue
        yield body, tuple(compiler.notes)


def _check(schema: Any) -> None:
    if not isinstance(schema, dict | bool):
        raise InvalidSchema("", f"a schema is an object or a boolean, not {type(schema).__name__}")
    try:
        if json.loads(json.dumps(schema, allow_nan=False)) != schema:
            raise InvalidSchema("", "it doesn't survive a round trip through JSON")
        problem = best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema))
    except InvalidSchema:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidSchema("", f"it isn't JSON ({error})") from None
    except RecursionError:
        raise UnsupportedSchema("", "", "it is nested too deeply") from None
    if problem is not None:
        path = "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in problem.absolute_path)
        raise InvalidSchema(path, problem.message[:200].rstrip("."))


class GrammarCache:
    """Grammars of one vocabulary, each distinct schema compiled once (the order of properties counts)."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        self.vocabulary = vocabulary
        self._grammars: dict[str, JsonGrammar] = {}
        self._lock = Lock()

    def get(self, schema: Any) -> JsonGrammar:
        """The grammar of a schema; raises as `compile_schema` does."""
        try:
            key = json.dumps(schema, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError):
            return compile_schema(schema, self.vocabulary)
        with self._lock:
            if key not in self._grammars:
                self._grammars[key] = compile_schema(schema, self.vocabulary)
            return self._grammars[key]
