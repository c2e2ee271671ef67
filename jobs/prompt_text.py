"""Text of documents and questions as tokens, none of which is a control token."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Put before a text and cut off again, so that the text itself is not the beginning.
_ANCHORS = ("\n", ".", "x")
_PUTS_SPACE_FIRST = ("\u2581", "\u0120")


class TextTokenizer:
    """Encodes text that stands inside a prompt: no control token, no added token, no leading space put before it.

    `control_ids` are the ids that no text gets, whatever it says.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        # Runs of blanks are added tokens of some tokenizers and part of ordinary text.
        hidden = {
            token["content"]: token["id"]
            for token in description["added_tokens"]
            if token["special"] or not token["content"].isspace()
        }
        self.control_ids = frozenset(hidden.values())
        _rename(description, {content: f"{secrets.token_hex(16)}-{content}" for content in hidden})
        description["post_processor"] = None
        description["truncation"] = description["padding"] = None
        self._backend = Tokenizer.from_str(json.dumps(description))
        first = self._backend.encode(".", add_special_tokens=False).tokens[0]
        # SentencePiece-like tokenizers put a space before any text; an anchor in front takes it.
        self._anchors = _ANCHORS if first[:1] in _PUTS_SPACE_FIRST else ()

    def encode(self, text: str) -> np.ndarray:
        """int32 token ids of `text`."""
        for anchor in self._anchors:
            start = self._ids(anchor)
            ids = self._ids(anchor + text)
            if ids[: len(start)] == start:  # else the anchor and the text have become one token
                return np.asarray(ids[len(start) :], dtype=np.int32)
        return np.asarray(self._ids(text), dtype=np.int32)

    def character_ends(self, text: str) -> np.ndarray:
        """int64: the code point where each token of a text by itself ends; never less than that of one before."""
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        return np.maximum.accumulate(np.array([end for _, end in offsets], dtype=np.int64))

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, on all cores, without holding Python's lock for most of the time.

        Takes about 100 bytes a token on the way, so what a batch holds in characters is the caller's business.
        """
        anchor = self._anchors[0] if self._anchors else ""
        start = self._ids(anchor) if anchor else []
        encodings = self._backend.encode_batch_fast([anchor + text for text in texts], add_special_tokens=False)
        arrays = []
        for text, encoding in zip(texts, encodings, strict=True):
            ids = encoding.ids
            fits = ids[: len(start)] == start
            arrays.append(np.asarray(ids[len(start) :], dtype=np.int32) if fits else self.encode(text))
        return arrays

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def encode_frame(tokenizer: PreTrainedTokenizerFast, text: str, *, first: bool) -> np.ndarray:
    """int32 ids of a piece of the chat template, control tokens included; only the first piece may get a space."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    if not first and ids and tokenizer.convert_ids_to_tokens(ids[:1])[0].startswith(_PUTS_SPACE_FIRST):
        for anchor in _ANCHORS:
            start = tokenizer.encode(anchor, add_special_tokens=False)
            anchored = tokenizer.encode(anchor + text, add_special_tokens=False)
            if anchored[: len(start)] == start:
                ids = anchored[len(start) :]
                break
    return np.asarray(ids, dtype=np.int32)


def _rename(description: dict[str, Any], names: dict[str, str]) -> None:
    """Give tokens of a tokenizer's description names that no text has; their ids, and all others', stay.

    Leaving them out would not do: some vocabularies hold control tokens as ordinary pieces, and what was added after
    them would move to other ids.
    """
    for token in description["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = description["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):  # ids by piece; hundreds of thousands, of which few are renamed
        for piece in names.keys() & vocabulary.keys():
            vocabulary[names[piece]] = vocabulary.pop(piece)
    else:  # a piece and its score at each id
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("merges"):
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [
            pair for pair in pairs if not (pair[0] in names or pair[1] in names or pair[0] + pair[1] in names)
        ]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
