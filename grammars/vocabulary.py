"""Which bytes each token of a model stands for."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from outlines_core import Vocabulary

from .characters import CharacterSet, spellable

# The two bytes that stand around every regular expression; see `grammar.py`.
START_BYTE = b"\x01"
END_BYTE = b"\x02"

_WORD_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTROL_TOKEN = re.compile(r"<\|.*\|>|</?s>|<(?:pad|unk|bos|eos|mask|start_of_turn|end_of_turn)>")


@dataclass(frozen=True, slots=True)
class TrieLevel:
    """The beginnings of tokens that are one byte longer than those of the level before (at first: the empty one).

    `parents` [beginnings] says which beginning of the level before each one continues, `last_bytes` [beginnings] by
    which byte. `ids` [tokens] are the tokens that end here, `nodes` [tokens] which of the beginnings they are.
    """

    parents: NDArray[np.intp]
    last_bytes: NDArray[np.intp]
    ids: NDArray[np.int32]
    nodes: NDArray[np.intp]


class TokenVocabulary:
    """The bytes of every token that may appear in an answer's text.

    `tokens` maps token ids to bytes; ids that it lacks (special tokens, padding of the logits) are never allowed.
    `size` is the width of the model's logits. Ids at or beyond it and tokens without bytes are left out.
    """

    def __init__(self, tokens: Mapping[int, bytes], size: int) -> None:
        if size < 1:
            raise ValueError(f"The vocabulary's size must be positive, not {size}.")
        self.size = size
        self.other_forms: dict[str, Any] = {}
        self.tokens: dict[int, bytes] = {
            token_id: bytes(tokens[token_id])
            for token_id in sorted(tokens)
            if 0 <= token_id < size and tokens[token_id]
        }

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, size: int) -> "TokenVocabulary":
        """Read a fast tokenizer of transformers: byte-level BPE, or SentencePiece with or without byte fallback.

        Special and added tokens are left out: as text inside a string they would be control tokens to the model.
        Raises ValueError if the tokenizer is of neither kind.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(f"{type(tokenizer).__name__} is not a fast tokenizer; its tokens' bytes are unknown.")
        parts = json.loads(backend.to_str())
        kinds = _component_types(parts.get("decoder")) | _component_types(parts.get("pre_tokenizer"))
        left_out = set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)
        left_out |= {added["id"] for added in parts.get("added_tokens", ())}
        texts = {
            token_id: text
            for text, token_id in tokenizer.get_vocab().items()
            if token_id not in left_out and not _CONTROL_TOKEN.fullmatch(text)
        }
        if "ByteLevel" in kinds:
            decode = _byte_level_bytes
        elif parts["model"].get("byte_fallback") or kinds & {"Metaspace", "ByteFallback"}:
            decode = _sentencepiece_bytes
        else:
            raise ValueError(
                f"{type(tokenizer).__name__} is neither byte-level nor SentencePiece; its tokens' bytes are unknown."
            )
        return cls({token_id: decode(text) for token_id, text in texts.items()}, size)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the vocabulary's content."""
        content = hashlib.sha256(f"{self.size}\n".encode())
        for token_id, text in self.tokens.items():
            content.update(f"{token_id} {text.hex()}\n".encode())
        return content.hexdigest()

    @cached_property
    def usable(self) -> dict[bytes, list[int]]:
        """Token ids by their bytes, without tokens that hold a raw control byte: no grammar ever allows one."""
        by_bytes: dict[bytes, list[int]] = {}
        for token_id, text in self.tokens.items():
            if min(text) >= 0x20:
                by_bytes.setdefault(text, []).append(token_id)
        return by_bytes

    @cached_property
    def single_bytes(self) -> dict[int, int]:
        """Token ids by byte, of the usable tokens of one byte."""
        return {text[0]: ids[0] for text, ids in self.usable.items() if len(text) == 1}

    @cached_property
    def ids_by_length(self) -> NDArray[np.intp]:
        """Ids of the usable tokens, the shortest first."""
        return np.array([token for text in sorted(self.usable, key=len) for token in self.usable[text]], dtype=np.intp)

    @cached_property
    def trie(self) -> tuple[TrieLevel, ...]:
        """The usable tokens by their beginnings, for walking all tokens at once."""
        ids = self.ids_by_length[::-1].astype(np.int32)
        texts = [self.tokens[token] for token in ids.tolist()]
        content = np.frombuffer(b"".join(texts), dtype=np.uint8)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        starts = np.cumsum(lengths) - lengths
        nodes = np.zeros(len(texts), dtype=np.intp)
        levels = []
        for place in range(self.longest):
            # The longest tokens stand first.
            longer, still_longer = (int((lengths > length).sum()) for length in (place, place + 1))
            beginnings, nodes = np.unique(nodes[:longer] * 256 + content[starts[:longer] + place], return_inverse=True)
            ends = slice(still_longer, longer)
            levels.append(TrieLevel(beginnings // 256, beginnings % 256, ids[ends], nodes[ends]))
        return tuple(levels)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest usable token."""
        return max(map(len, self.usable), default=1)

    def spell(self, text: bytes) -> list[int]:
        """Ids of the longest tokens that spell `text`, from the left, as far as there are tokens for it."""
        ids: list[int] = []
        while text:
            length = min(len(text), self.longest)
            while length and text[:length] not in self.usable:
                length -= 1
            if not length:
                break
            ids.append(self.usable[text[:length]][0])
            text = text[length:]
        return ids

    @cached_property
    def text_only(self) -> NDArray[np.int32]:
        """Packed mask of the tokens that, inside a string, are nothing but more of its text."""
        bits = np.zeros(-(-self.size // 32) * 32, dtype=bool)
        for text, ids in self.usable.items():
            if b'"' not in text and b"\\" not in text:
                bits[ids] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    @cached_property
    def alphabet(self) -> CharacterSet:
        """The characters that can be spelled byte by byte."""
        return spellable(frozenset(self.single_bytes))

    @property
    def start_id(self) -> int:
        """The made-up token id of the byte before every answer."""
        return self.size

    @property
    def end_id(self) -> int:
        """The made-up token id of the byte after every answer."""
        return self.size + 1

    @cached_property
    def outlines(self) -> Vocabulary:
        """The vocabulary as outlines-core wants it, built once. Its end-of-text id is made up as well."""
        entries = {text: list(token_ids) for text, token_ids in self.usable.items()}
        entries[START_BYTE] = [self.start_id]
        entries[END_BYTE] = [self.end_id]
        return Vocabulary(self.size + 2, entries)

    def fewest_tokens(self, text: str) -> int:
        """The least number of tokens that spell `text`, whose characters all have single-byte tokens."""
        return len(self.shortest_spelling(text.encode()))

    def shortest_spelling(self, content: bytes) -> list[int]:
        """The ids of the fewest tokens that spell `content`, whose bytes all have tokens of their own."""
        longest = min(self.longest, len(content))
        fewest = [0] + [len(content) + 1] * len(content)
        starts = [0] * (len(content) + 1)
        for end in range(1, len(content) + 1):
            for start in range(max(0, end - longest), end):
                if fewest[start] + 1 < fewest[end] and content[start:end] in self.usable:
                    fewest[end], starts[end] = fewest[start] + 1, start
        ids: list[int] = []
        end = len(content)
        while end:
            ids.append(self.usable[content[starts[end] : end]][0])
            end = starts[end]
        return ids[::-1]


def _component_types(component: dict[str, Any] | None) -> set[str]:
    if not component:
        return set()
    kinds = {component["type"]}
    for nested in (*component.get("decoders", ()), *component.get("pretokenizers", ())):
        kinds |= _component_types(nested)
    return kinds


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return stand_ins | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTE_OF_STAND_IN = _byte_level_alphabet()


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes(_BYTE_OF_STAND_IN[character] for character in text)
    except KeyError:
        return b""


def _sentencepiece_bytes(text: str) -> bytes:
    byte_token = _BYTE_TOKEN.fullmatch(text)
    if byte_token:
        return bytes([int(byte_token[1], 16)])
    return text.replace(_WORD_MARK, " ").encode("utf-8", "ignore")
