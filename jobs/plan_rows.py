"""The rows of a plan, by what is to become of them: asked, rejected, or waiting for the answers of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jobs.answer_schemas import AnswerSchema
from jobs.prompt_segments import SegmentedPrompt, SharedPrefix
from jobs.source import InputRow
from jobs.store_records import KeyState


@dataclass(frozen=True, slots=True)
class Part:
    """What of a row a prompt asks, if the row's document is asked in pieces.

    `kind` is `piece`, with `document[start:end]` in code points, or `combine`, which makes one answer of those of the
    calls `uses`. `call` numbers the parts of a row, `count` says how many there are of its level.
    """

    kind: str
    call: int
    count: int
    document_tokens: int
    start: int | None = None
    end: int | None = None
    uses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row that will run.

    `minimum_tokens` counts the prompt positions that no earlier row of the plan has; of a row that waited for answers,
    and so has its place late, all behind its document.

    `same_as` is the place in the plan of an earlier row that asks the model the very same: prompt, schema, settings.
    `samples` is how often it is asked.
    """

    row: InputRow
    schema: AnswerSchema
    segments: SegmentedPrompt
    digest: str
    parts: Mapping[str, str]
    minimum_tokens: int
    max_output_tokens: int
    same_as: int | None = None
    samples: int = 1
    part: Part | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it stands for its row: not if it is one of several parts, but the first."""
        return self.part is None or (self.part.kind == "piece" and self.part.call == 0)

    @property
    def prompt(self) -> np.ndarray:
        """int32 token ids, put together anew each time."""
        return self.segments.ids()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.segments)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that can't run: `status` as in the answers table, and why."""

    row: InputRow
    status: str
    error: str
    schema_name: str | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A row that can be asked, before it has a place in the order; in `pieces`, if its `prompt` is too long."""

    row: InputRow
    schema: AnswerSchema
    prompt: SegmentedPrompt
    digest: str
    parts: Mapping[str, str]
    samples: int = 1
    pieces: tuple[tuple[Part, SegmentedPrompt], ...] = ()


@dataclass(eq=False, slots=True)
class DependentRow:
    """A row whose prompt needs answers that the run is still to find.

    `answers` has those that are known, as JSON texts by question id, `missing` the ids of the others, `stored` valid
    answers of earlier runs to questions that are only asked again, `earlier` the prompt that a follow-up goes on from,
    once it is known, `own_answer` its own valid answer of before, if others wait for it. Its prompt begins with
    `prefix` and `known_rest`; behind the prefix, with its answer, it has about `reserve_tokens`. `state` is what the
    database knows of its key, None if it must be asked in any case.
    """

    row: InputRow
    schema: AnswerSchema
    prefix: SharedPrefix
    known_rest: np.ndarray
    reserve_tokens: int
    answers: dict[str, str]
    missing: set[str]
    stored: dict[str, str]
    earlier: SegmentedPrompt | None
    state: KeyState | None
    own_answer: str | None = None

    @property
    def known_tokens(self) -> int:
        """Tokens that its prompt begins with."""
        return len(self.prefix) + len(self.known_rest)

    def known_prompt(self) -> np.ndarray:
        """The int32 token ids that its prompt begins with."""
        return np.concatenate([self.prefix.ids(), self.known_rest])


@dataclass(frozen=True, slots=True)
class RowFate:
    """What a run does with a row that others come after.

    `runs`: it is asked; otherwise it has an `answer` (JSON text), or was rejected with `status`, or is left alone.
    `prompt` is None while it is not known, `stored` a valid answer of before to the very same request.
    """

    runs: bool = False
    answer: str | None = None
    status: str | None = None
    stored: str | None = None
    prompt: SegmentedPrompt | None = None
    dependent: DependentRow | None = None

    @property
    def is_left(self) -> bool:
        """Whether it needs an answer that this run is not to find."""
        return not self.runs and self.answer is None and self.status is None
