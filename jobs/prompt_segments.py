"""A prompt in segments: what many prompts share is held once, and a whole prompt is put together when it is asked for.

A million prompts of a thousand tokens are 4 GB as arrays. In segments they are as large as their documents and
questions, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jobs.spill_file import SpillFile

_NO_IDS = np.empty(0, dtype=np.int32)


class Segment:
    """int32 token ids that many prompts share, once `hold` was called; in memory, or in a file that holds many."""

    __slots__ = ("_ids", "_place", "_spill", "tokens")

    def __init__(self, ids: np.ndarray | None = None) -> None:
        self.tokens = -1  # how many there are; below 0 until the text has been encoded
        if ids is not None:
            self.hold(ids)

    def hold(self, ids: np.ndarray, spill: SpillFile | None = None) -> None:
        """Take the ids, which with a `spill` go there."""
        self.tokens = len(ids)
        self._ids, self._spill, self._place = ids, spill, 0
        if spill is not None and len(ids):
            self._ids, self._place = _NO_IDS, spill.write(np.ascontiguousarray(ids, dtype=np.int32).data)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The ids from `start` to before `stop`."""
        assert self.tokens >= 0, "the text has not been encoded yet"
        stop = self.tokens if stop is None else min(stop, self.tokens)
        if self._spill is None or stop <= start:
            return self._ids[start:stop]
        return np.frombuffer(self._spill.read(self._place + 4 * start, 4 * (stop - start)), dtype=np.int32)

    def beginning(self, tokens: int) -> Segment:
        """The first `tokens` of it, held where these are."""
        first = Segment()
        first._ids, first._spill, first._place = self._ids[:tokens], self._spill, self._place
        first.tokens = min(tokens, self.tokens)
        return first


class SharedPrefix:
    """What the prompts of all questions on one document begin with. Two are the same only if they are one object.

    `whole` is the document's part before it was cut, if it was.
    """

    __slots__ = ("_document", "_whole", "opening")

    def __init__(self, opening: np.ndarray, document: Segment, whole: Segment | None = None) -> None:
        self.opening = opening
        self._document = document
        self._whole = whole or document

    @property
    def document(self) -> np.ndarray:
        """int32 token ids of the document's part."""
        return self._document.read()

    @property
    def document_tokens(self) -> int:
        """Tokens of the document's part."""
        return self._document.tokens

    def beginning(self, tokens: int) -> SharedPrefix:
        """The same with the first `tokens` of the document's part only."""
        return SharedPrefix(self.opening, self._document.beginning(tokens), self._whole)

    @property
    def whole_document_tokens(self) -> int:
        """Tokens of the document's part before it was cut."""
        return self._whole.tokens

    def __len__(self) -> int:
        return len(self.opening) + self._document.tokens

    def ids(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """int32 token ids from `start` to before `stop`, put together anew."""
        opening = len(self.opening)
        document = self._document.read(max(start - opening, 0), None if stop is None else max(stop - opening, 0))
        return np.concatenate([self.opening[start:stop], document])


class SegmentedPrompt:
    """The prompt of one row: a prefix that other rows share, and its own `rest` (int32 token ids).

    Of a document that was cut, the last `document_tokens_in_rest` tokens stand at the beginning of `rest`.
    """

    __slots__ = ("document_tokens_in_rest", "prefix", "rest")

    def __init__(self, prefix: SharedPrefix, rest: np.ndarray, document_tokens_in_rest: int = 0) -> None:
        self.prefix = prefix
        self.rest = rest
        self.document_tokens_in_rest = document_tokens_in_rest

    @property
    def document_tokens(self) -> int:
        """Tokens of the document's part as a whole."""
        return self.prefix.whole_document_tokens

    @property
    def used_document_tokens(self) -> int:
        """Tokens of the document's part that the prompt has: fewer if it was cut."""
        return self.prefix.document_tokens + self.document_tokens_in_rest

    @property
    def is_cut(self) -> bool:
        """Whether the prompt lacks the end of its document."""
        return self.used_document_tokens < self.document_tokens

    def __len__(self) -> int:
        return len(self.prefix) + len(self.rest)

    def segments(self) -> Iterator[np.ndarray]:
        """The segments in their order, as they are held."""
        yield self.prefix.opening
        yield self.prefix.document
        yield self.rest

    def segment_tokens(self) -> dict[str, int]:
        """How many tokens each segment has, by name and in their order; they add up to the prompt's.

        `instructions` begins with the chat template and has the system text, `question` ends where the answer begins.
        """
        return {
            "instructions": len(self.prefix.opening),
            "document": self.used_document_tokens,
            "question": len(self.rest) - self.document_tokens_in_rest,
        }

    def ids(self) -> np.ndarray:
        """int32 token ids of the whole prompt, put together anew."""
        return np.concatenate(list(self.segments()))
