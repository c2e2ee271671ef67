"""A prompt in segments: what many prompts share is held once, and a whole prompt is put together when it is asked for.

A million prompts of a thousand tokens are 4 GB as arrays. In segments they are as large as their documents and
questions, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


class Segment:
    """int32 token ids that many prompts share; `ids` is None until the text has been encoded."""

    __slots__ = ("ids",)

    def __init__(self, ids: np.ndarray | None = None) -> None:
        self.ids = ids


class SharedPrefix:
    """What the prompts of all questions on one document begin with. Two are the same only if they are one object."""

    __slots__ = ("_document", "opening")

    def __init__(self, opening: np.ndarray, document: Segment) -> None:
        self.opening = opening
        self._document = document

    @property
    def document(self) -> np.ndarray:
        """int32 token ids of the document's part."""
        assert self._document.ids is not None, "the document has not been encoded yet"
        return self._document.ids

    def __len__(self) -> int:
        return len(self.opening) + len(self.document)

    def ids(self) -> np.ndarray:
        """int32 token ids, put together anew."""
        return np.concatenate([self.opening, self.document])


class SegmentedPrompt:
    """The prompt of one row: a prefix that other rows share, and its own `rest` (int32 token ids)."""

    __slots__ = ("prefix", "rest")

    def __init__(self, prefix: SharedPrefix, rest: np.ndarray) -> None:
        self.prefix = prefix
        self.rest = rest

    def __len__(self) -> int:
        return len(self.prefix) + len(self.rest)

    def segments(self) -> Iterator[np.ndarray]:
        """The segments in their order, as they are held."""
        yield self.prefix.opening
        yield self.prefix.document
        yield self.rest

    def ids(self) -> np.ndarray:
        """int32 token ids of the whole prompt, put together anew."""
        return np.concatenate(list(self.segments()))
