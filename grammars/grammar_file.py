"""Compiled grammars as bytes: what a compiling process hands back, and what lies in the cache on disk.

    magic · SHA-256 of the rest · length of the header (4 bytes) · header (JSON) · index · end distances

A refusal is a result too: its header says what was refused and why. The schema and the vocabulary are not in it;
they are in the name that `result_key` makes.
"""

import hashlib
import json
from functools import lru_cache
from importlib import resources
from importlib.metadata import version
from typing import Any

import numpy as np
from outlines_core import Index

from .compile import AnswerGrammar
from .end_distances import EndDistances
from .errors import InvalidSchema, UnsupportedSchema
from .grammar import Compiled, JsonGrammar
from .guidance_grammar import GuidanceGrammar
from .vocabulary import TokenVocabulary

MAGIC = b"docqa grammar 1\n"
_HASH_BYTES = 32

Refusal = InvalidSchema | UnsupportedSchema


def dump_grammar(grammar: AnswerGrammar) -> bytes:
    """The bytes of a grammar."""
    about = grammar.about
    header: dict[str, Any] = {
        "backend": about.backend,
        "notes": about.notes,
        "checked_after": about.checked_after,
        "shortest_text": about.shortest_text,
        "shortest_tokens": about.shortest_tokens,
        "regex": about.regex,
    }
    index = distances = b""
    if isinstance(grammar, JsonGrammar):
        # What pickle would store; its own way to bytes has no public name.
        index = grammar.index.__reduce__()[1][0]
        known = grammar.end_distances.tokens
        distances = np.array([list(known), list(known.values())], dtype=np.int64).tobytes()
    else:
        header["source"] = grammar.source
    return _framed(header | {"index_bytes": len(index)}, index + distances)


def dump_refusal(refusal: Refusal) -> bytes:
    """The bytes of a refusal."""
    keyword = refusal.keyword if isinstance(refusal, UnsupportedSchema) else None
    return _framed({"refused": [refusal.path, keyword, refusal.reason]}, b"")


def load_result(content: bytes, schema: Any, vocabulary: TokenVocabulary) -> AnswerGrammar | Refusal:
    """What `content` holds. Raises ValueError if it is damaged or of another kind."""
    start = len(MAGIC) + _HASH_BYTES
    rest = memoryview(content)[start:]
    if not content.startswith(MAGIC) or hashlib.sha256(rest).digest() != content[len(MAGIC) : start]:
        raise ValueError("no grammar, or a damaged one")
    length = int.from_bytes(rest[:4], "little")
    header = json.loads(bytes(rest[4 : 4 + length]))
    blobs = rest[4 + length :]
    if "refused" in header:
        path, keyword, reason = header["refused"]
        return InvalidSchema(path, reason) if keyword is None else UnsupportedSchema(path, keyword, reason)
    about = Compiled(
        schema,
        header["backend"],
        tuple(header["notes"]),
        tuple((pointer, reason) for pointer, reason in header["checked_after"]),
        header["shortest_text"],
        header["shortest_tokens"],
        header["regex"],
    )
    if "source" in header:
        return GuidanceGrammar(about, header["source"], vocabulary)
    index = Index.from_binary(bytes(blobs[: header["index_bytes"]]))
    states, tokens = np.frombuffer(blobs[header["index_bytes"] :], dtype=np.int64).reshape(2, -1).tolist()
    return JsonGrammar(about, index, vocabulary, EndDistances(dict(zip(states, tokens, strict=True))))


def result_key(schema_text: str, backend: str, lenient: bool, vocabulary: TokenVocabulary) -> str:
    """SHA-256 (hex) of everything that a result depends on: schema, settings, vocabulary, and the code."""
    parts = [schema_text, backend, lenient, vocabulary.digest, *_code_versions()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _code_versions() -> tuple[str, ...]:
    content = hashlib.sha256()
    folder = resources.files(__package__)
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            content.update(entry.name.encode() + entry.read_bytes())
    return content.hexdigest(), version("outlines_core"), version("llguidance"), version("jsonschema")


def _framed(header: dict[str, Any], blobs: bytes) -> bytes:
    text = json.dumps(header).encode()
    rest = len(text).to_bytes(4, "little") + text + blobs
    return MAGIC + hashlib.sha256(rest).digest() + rest
