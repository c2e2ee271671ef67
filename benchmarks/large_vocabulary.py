"""Measures both backends with a vocabulary of 151,643 tokens, as large as Qwen's, beside the embedded model's 49,152.

    python benchmarks/large_vocabulary.py

The large vocabulary is made up: the embedded model's tokens, words made of two of them, and pairs of Chinese and
Cyrillic letters, in about the shares that Qwen's has. Prints a Markdown table: seconds to compile, size of the index,
and microseconds for the mask at each place of a passage: new, again, and with so few tokens left that it must end with
the passage. Times are of the processor, but for the compiling process.
"""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.model_config import ModelConfig
from engine.model_source import resolve_model
from engine.tokenizer import load_tokenizer
from grammars import GrammarCache, JsonGrammar, TokenVocabulary, UnsupportedSchema, compile_schema
from grammars.grammar_file import dump_grammar

TOKENS = 151_643
SHARE_OF_OTHER_SCRIPTS = 0.25
PASSAGE = "the contract ends on the last day of the month and may be renewed "

SCHEMAS: dict[str, tuple[Any, str]] = {
    "verdict, quote of 160": (
        {"type": "object", "properties": {"quote": {"type": "string", "maxLength": 160},
                                          "verdict": {"enum": ["yes", "no", "unclear"]}},
         "required": ["quote", "verdict"], "additionalProperties": False},
        '{"quote":"' + PASSAGE,
    ),
    "two free strings": (
        {"type": "object", "properties": {"answer": {"type": "string"}, "quote": {"type": "string"}},
         "required": ["answer", "quote"], "additionalProperties": False},
        '{"answer":"' + PASSAGE * 3,
    ),
    "list of objects": (
        {"type": "array", "items": {"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 40}, "amount": {"type": "number", "minimum": 0},
            "date": {"type": "string", "format": "date"}}, "required": ["name", "amount"]}},
        '[{"name":"' + PASSAGE[:24],
    ),
    "map to any value": ({"type": "object", "additionalProperties": True}, '{"' + PASSAGE),
    "string of 1,000": ({"type": "string", "maxLength": 1000}, '"' + PASSAGE),
}  # fmt: skip


def large_vocabulary(small: TokenVocabulary, size: int) -> TokenVocabulary:
    """`small` with made-up tokens up to `size`."""
    rng = random.Random(7)
    known = set(small.tokens.values())
    words = [text for text in known if text.strip().isalpha() and len(text) > 2]
    tokens = dict(small.tokens)
    number = small.size
    scripts = [(0x4E00, 0x7000), (0x430, 0x44F)]
    while number < size:
        if rng.random() < SHARE_OF_OTHER_SCRIPTS:
            first, last = rng.choice(scripts)
            text = "".join(chr(rng.randint(first, last)) for _ in range(rng.choice((1, 2, 2, 3)))).encode()
        else:
            text = rng.choice(words) + rng.choice(words).strip()[:5]
        if text not in known:
            known.add(text)
            tokens[number] = text
            number += 1
    return TokenVocabulary(tokens, size)


def microseconds(state: Any, words: np.ndarray, tokens_left: int | None) -> float:
    """Of one mask."""
    started = time.process_time()
    state.write_mask(words, tokens_left)
    return (time.process_time() - started) * 1e6


def measure(schema: Any, text: str, vocabulary: TokenVocabulary, backend: str) -> str:
    """The columns of one grammar."""
    started = time.process_time()
    try:
        grammar = compile_schema(schema, vocabulary, backend=backend)
    except UnsupportedSchema as refusal:
        return f"refused: {refusal.reason} | | | | |"
    seconds = time.process_time() - started
    size = len(dump_grammar(grammar)) / 1e6 if isinstance(grammar, JsonGrammar) else 0
    fresh: list[float] = []
    again: list[float] = []
    ending: list[float] = []
    words = np.zeros(-(-vocabulary.size // 32), dtype=np.int32)
    state = grammar.start()
    tokens = vocabulary.spell(text.encode())
    for token in tokens:
        fresh.append(microseconds(state, words, 1000))
        again.append(microseconds(state, words, 1000))
        state.advance(token)
    state = grammar.start()
    for place, token in enumerate(tokens):
        left = grammar.shortest_tokens + len(tokens) + 2 - place
        ending.append(microseconds(state, words, left))
        state.advance(token)
    return (
        f"{seconds:.3f} | {size:.1f} | {np.median(fresh):.0f} / {max(fresh):.0f} | {np.median(again):.0f} "
        f"| {np.median(ending):.0f} / {max(ending):.0f}"
    )


def main() -> None:
    """Measure, and print the table."""
    source = resolve_model("smollm2-135m-instruct")
    size = ModelConfig.from_folder(source.folder).vocabulary_size
    small = TokenVocabulary.from_tokenizer(load_tokenizer(source.folder), size)
    large = large_vocabulary(small, TOKENS)
    print("| schema | backend | tokens | compile s | index MB | new mask p50 / max µs | again | near the end |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for vocabulary in (small, large):
        started = time.process_time()
        assert vocabulary.outlines is not None
        compile_schema({}, vocabulary, backend="llguidance")
        prepared = time.process_time() - started
        for name, (schema, text) in SCHEMAS.items():
            for backend in ("index", "llguidance"):
                columns = measure(schema, text, vocabulary, backend)
                print(f"| {name} | {backend} | {vocabulary.size:,} | {columns} |", flush=True)
        grammars = GrammarCache(vocabulary)
        chosen = [grammars.get(schema).backend for schema, _ in SCHEMAS.values()]
        seconds = grammars.compile_seconds
        grammars.close()
        print(
            f"\n{vocabulary.size:,} tokens: {prepared:.1f} s to prepare both libraries' vocabularies; in the compiling "
            f"process, all five in {seconds:.1f} s, with {json.dumps(chosen)}\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
