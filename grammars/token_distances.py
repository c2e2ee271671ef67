"""How far the end of an answer is after each token that a state allows, found for the whole vocabulary at once."""

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index

from .end_distances import EndDistances
from .vocabulary import TokenVocabulary

_DEAD = 0
_NEVER = np.iinfo(np.uint16).max


class TokenDistances:
    """Distances after the tokens of the states of one index.

    All tokens walk at once, by their common beginnings, over a table of the states that single bytes lead to. Its rows
    are states, made when a token first comes by; row 0 stands for "not allowed". Single bytes reach every state that
    tokens reach.
    """

    def __init__(self, index: Index, vocabulary: TokenVocabulary, distances: EndDistances) -> None:
        self._index = index
        self._vocabulary = vocabulary
        self._distances = distances
        self._row_of_state: dict[int, int] = {}
        self._states = [-1]
        self._following = np.zeros((64, 256), dtype=np.int32)  # [rows, bytes] the row after a byte
        self._is_made = np.arange(64) == _DEAD
        self._distance = np.full(64, _NEVER, dtype=np.uint16)

    def after(self, state: int) -> tuple[NDArray[np.int32], NDArray[np.uint16]]:
        """The tokens allowed in `state`, and for each the fewest tokens to the end after it, 65,535 at most."""
        rows = np.array([self._row(state)], dtype=np.int32)
        allowed, needed = [], []
        for level in self._vocabulary.trie:
            self._make(rows)
            rows = self._following[rows[level.parents], level.last_bytes]
            reached = rows[level.nodes]
            is_allowed = reached != _DEAD
            allowed.append(level.ids[is_allowed])
            needed.append(self._distance[reached[is_allowed]])
            if not rows.any():
                break
        return np.concatenate(allowed), np.concatenate(needed)

    def _row(self, state: int) -> int:
        row = self._row_of_state.setdefault(state, len(self._states))
        if row == len(self._states):
            self._states.append(state)
            if row == len(self._is_made):
                self._following = np.concatenate([self._following, np.zeros_like(self._following)])
                self._is_made = np.concatenate([self._is_made, np.zeros_like(self._is_made)])
                self._distance = np.concatenate([self._distance, np.full_like(self._distance, _NEVER)])
            self._distance[row] = min(self._distances.tokens.get(state, _NEVER), _NEVER)
        return row

    def _make(self, rows: NDArray[np.int32]) -> None:
        """Fill in the rows of the table that aren't yet."""
        step = self._index.get_next_state
        for row in np.unique(rows[~self._is_made[rows]]).tolist():
            state = self._states[row]
            for byte, token_id in self._vocabulary.single_bytes.items():
                following = step(state, token_id)
                if following is not None:
                    # The row first: it may make the table grow.
                    after = self._row(following)
                    self._following[row, byte] = after
            self._is_made[row] = True
