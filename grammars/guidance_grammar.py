"""Grammars that llguidance runs: for schemas that can't be compiled to an index, or only to one that is too large.

llguidance parses as the answer goes on, so there are no states to cache masks by; each mask is computed anew. It is
never lenient here: a keyword that it doesn't know refuses the schema.
"""

import json
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from .completion import ends_in_string, shortest_completion
from .errors import UnsupportedSchema
from .grammar import Compiled, DescribedGrammar
from .growth import growth_margin, has_shaped_strings
from .guidance_schema import for_guidance, given_types, refuse_unsure
from .vocabulary import TokenVocabulary

Words = NDArray[np.int32]

LAST_TOKENS = 4
"""With so few tokens to spare, a string must not go on: a character may need as many to be complete."""

LEAST_CARE_TOKENS = 64
"""The care for what one token can begin takes up a quarter of an answer's tokens at most, or this many."""

TRIED_TOKENS = 24
"""Where the tokens run short, so many of the allowed ones, the shortest, are tried; the others are left out."""


def _limits() -> LLParserLimits:
    """Far above the defaults. Matchers of one grammar share their lexer.

    Where one runs out of fuel, llguidance 1.9 keeps "no way on" for all of them: after one such answer, others were
    refused tokens that the schema allows.
    """
    return LLParserLimits(
        initial_lexer_fuel=200_000_000, step_lexer_fuel=50_000_000, step_max_items=5_000_000, max_lexer_states=2_000_000
    )


class _Tokens:
    """The vocabulary as llguidance wants it; ids without usable bytes become special, which no schema allows."""

    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        usable = {token_id: text for text, ids in vocabulary.usable.items() for token_id in ids}
        self.eos_token_id = vocabulary.size
        self.tokens = [usable.get(token_id, b"<special %d>" % token_id) for token_id in range(vocabulary.size + 1)]
        self.special_token_ids = [token_id for token_id in range(vocabulary.size + 1) if token_id not in usable]
        self._vocabulary = vocabulary

    def __call__(self, text: bytes | str) -> list[int]:
        return self._vocabulary.spell(text.encode() if isinstance(text, str) else text)


def guidance_tokenizer(vocabulary: TokenVocabulary) -> LLTokenizer:
    """The vocabulary in llguidance's form, built once."""
    found = vocabulary.other_forms.get("llguidance")
    if found is None:
        found = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)),
            n_vocab=vocabulary.size + 1,
            eos_token=vocabulary.size,
            slices=LLTokenizer.json_slices(),
        )
        vocabulary.other_forms["llguidance"] = found
    return found


class GuidanceGrammar(DescribedGrammar):
    """The tokens that may come next in an answer to one schema. Shared by all rows; made by `compile_schema`."""

    def __init__(self, about: Compiled, source: str, vocabulary: TokenVocabulary) -> None:
        super().__init__(about, vocabulary)
        self.source = source
        self.margin = growth_margin(about.schema, vocabulary)
        self.has_shaped_strings = has_shaped_strings(about.schema)
        self._start = LLMatcher(guidance_tokenizer(vocabulary), source, log_level=0, limits=_limits())
        self.words = -(-vocabulary.size // 32)

    @classmethod
    def compile(
        cls, schema: Any, original: Any, checked_after: tuple[tuple[str, str], ...], vocabulary: TokenVocabulary
    ) -> "GuidanceGrammar":
        """The grammar of `schema`, made for `original`. Raises UnsupportedSchema if llguidance refuses it."""
        if schema is False:
            raise UnsupportedSchema("", "", "no value that can be written satisfies it")
        schema = {} if schema is True else schema
        refuse_unsure(schema)
        _check_spelling(schema, vocabulary)
        source = LLMatcher.grammar_from_json_schema(
            json.dumps(for_guidance(schema)), overrides={"whitespace_flexible": False, "lenient": False}
        )
        matcher = LLMatcher(guidance_tokenizer(vocabulary), source, log_level=0, limits=_limits())
        problem = matcher.get_error() or "; ".join(matcher.get_grammar_warnings())
        if problem:
            raise UnsupportedSchema("", "", f"llguidance refuses it ({_first_line(problem)})")
        tokens = shortest_completion(matcher, b"", vocabulary, 4096)
        if tokens is None:
            raise UnsupportedSchema("", "", "no way to the end of an answer was found with llguidance")
        text = b"".join(vocabulary.tokens[token] for token in tokens).decode()
        notes = tuple(
            f"{path or 'the root'}: no type is given; only what its keywords speak of: {' or '.join(types)}"
            for path, types in given_types(schema).items()
        )
        about = Compiled(original, "llguidance", notes, checked_after, text, len(tokens))
        return cls(about, source, vocabulary)

    def start(self) -> "GuidanceState":
        """A new state at the beginning of an answer."""
        return GuidanceState(self, self._start.deep_copy())


class GuidanceState:
    """Where one answer stands; implements the engine's `GrammarState`."""

    __slots__ = ("_grammar", "_masks", "_matcher", "_tokens", "_ways")

    def __init__(self, grammar: GuidanceGrammar, matcher: LLMatcher) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._tokens: list[int] = []
        self._masks: dict[int, Words] = {}  # by the number of tokens before
        self._ways: dict[int, list[int] | None] = {}  # to the end, likewise

    @property
    def may_stop(self) -> bool:
        """True when the text so far is a complete answer."""
        return bool(self._matcher.is_accepting())

    @property
    def must_stop(self) -> bool:
        """True when the answer is complete and no token may follow."""
        return self.may_stop and (bool(self._matcher.is_stopped()) or not self._mask().any())

    @property
    def only_token(self) -> int | None:
        """The token that must come next, if exactly one is allowed and the answer may not stop here."""
        if self.may_stop:
            return None
        row = self._mask()
        words = row.nonzero()[0]
        if words.size != 1 or int(np.bitwise_count(row[words].view(np.uint32)).sum()) != 1:
            return None
        word = int(words[0])
        return word * 32 + int(row[word : word + 1].view(np.uint32)[0]).bit_length() - 1

    def forced_tokens(self) -> list[int]:
        """Tokens that spell the text that must come next; a proposal, since the text may be split otherwise."""
        return self._grammar.vocabulary.spell(bytes(self._matcher.compute_ff_bytes()))

    def same_text(self) -> dict[int, list[int]]:
        """Tokens allowed next that come to the same text, by each of them: here only those of text that is forced."""
        forced = bytes(self._matcher.compute_ff_bytes())
        usable = self._grammar.vocabulary.usable
        tokens = [token for end in range(1, len(forced) + 1) for token in usable.get(forced[:end], ())]
        return dict.fromkeys(tokens, tokens) if len(tokens) > 1 else {}

    def write_mask(self, words: Words, tokens_left: int | None = None) -> None:
        """Write the tokens allowed next into `words`, int32 of at least [ceil(size / 32)], overwritten whole.

        With `tokens_left`, the tokens that this answer may still have, the choice narrows in time to what leads to
        the end. How far the end is after each token isn't known here, as it is in an index; a margin stands for it.
        """
        row = self._mask()
        if tokens_left is not None:
            row = self._in_time(row, tokens_left)
        words[: row.size] = row
        words[row.size :] = 0

    def advance(self, token_id: int) -> None:
        """Accept one token. Raises ValueError, with the state unchanged, if it is not allowed here."""
        if (
            not 0 <= token_id < self._grammar.vocabulary.size
            or self._matcher.is_stopped()
            or self._matcher.try_consume_tokens([token_id]) != 1
        ):
            raise ValueError(f"Token {token_id} is not allowed after {len(self._tokens)} tokens of this answer.")
        self._tokens.append(token_id)

    def roll_back(self, tokens: int) -> None:
        """Take back the last `tokens` accepted tokens. Raises ValueError if there are fewer."""
        if not 0 <= tokens <= len(self._tokens):
            raise ValueError(f"Can't take back {tokens} of {len(self._tokens)} tokens.")
        if tokens:
            for length in range(len(self._tokens) - tokens + 1, len(self._tokens) + 1):
                self._masks.pop(length, None)
                self._ways.pop(length, None)
            del self._tokens[-tokens:]
            self._matcher.rollback(tokens)

    def _mask(self) -> Words:
        length = len(self._tokens)
        row = self._masks.get(length)
        if row is None:
            size = self._grammar.vocabulary.size
            buffer = np.zeros(-(-(size + 1) // 32), dtype=np.int32)
            if not self._matcher.is_stopped():
                self._matcher.unsafe_compute_mask_ptr(buffer.ctypes.data, buffer.nbytes)
            row = buffer[: self._grammar.words]
            if size % 32:
                row[-1] &= np.int32((1 << size % 32) - 1)
            self._masks = {length: row}
        return row

    def _in_time(self, row: Words, tokens_left: int) -> Words:
        """The tokens of `row` after which the answer can end with `tokens_left` tokens in all from here."""
        grammar = self._grammar
        margin = min(grammar.margin, max((len(self._tokens) + tokens_left) // 4, LEAST_CARE_TOKENS))
        # Far from the limit nobody looks for the way to the end, which costs several masks.
        if tokens_left > grammar.shortest_tokens + 4 * margin:
            return row
        way = self._way()
        if way is None or len(way) > tokens_left or tokens_left > len(way) + margin:
            return row
        pieces = grammar.vocabulary.tokens
        text = b"".join(pieces[token] for token in self._tokens)
        narrow = np.zeros_like(row)
        if ends_in_string(text) and not grammar.has_shaped_strings:
            if tokens_left > len(way) + LAST_TOKENS:
                narrow = row & grammar.vocabulary.text_only
        elif tokens_left > len(way):
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            shortest_first = grammar.vocabulary.ids_by_length
            for token in shortest_first[bits[shortest_first] == 1][:TRIED_TOKENS].tolist():
                self.advance(token)
                following = shortest_completion(
                    self._matcher, text + pieces[token], grammar.vocabulary, 8 * tokens_left
                )
                self.roll_back(1)
                if following is not None and len(following) < tokens_left:
                    narrow.view(np.uint8)[token // 8] |= np.uint8(1 << token % 8)
        if way:
            narrow.view(np.uint8)[way[0] // 8] |= np.uint8(1 << way[0] % 8)
        return narrow

    def _way(self) -> list[int] | None:
        """Tokens that lead from here to the end; None if none were found."""
        length = len(self._tokens)
        if length not in self._ways:
            vocabulary = self._grammar.vocabulary
            text = b"".join(vocabulary.tokens[token] for token in self._tokens)
            found = shortest_completion(self._matcher, text, vocabulary, 4096)
            before = self._ways.get(length - 1)
            if before and before[0] == self._tokens[-1] and (found is None or len(before) <= len(found)):
                found = before[1:]
            self._ways[length] = found
        return self._ways[length]


def _check_spelling(schema: Any, vocabulary: TokenVocabulary) -> None:
    """llguidance doesn't know which characters a vocabulary can't spell: an answer could get stuck inside one."""
    text = "é日" + json.dumps(schema, ensure_ascii=False)
    for character in sorted(set(text)):
        if character not in vocabulary.alphabet:
            raise UnsupportedSchema("", "", f"llguidance can't be used, because no token spells {character!r}")


def _first_line(problem: str) -> str:
    return " ".join(problem.split())[:200].rstrip(".")
