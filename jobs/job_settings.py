"""The settings of a job as frozen dataclasses, one a section of the job file, every value resolved."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

DEFAULT_SYSTEM = "You answer questions about one document. Reply with one JSON object."
DEFAULT_DOCUMENT = "Document:\n{{ document }}"
DEFAULT_QUESTION = "Question: {{ question }}"
DEFAULT_COMBINE = """\
The document is too long to be read at once, so it was read in parts. The answers from them, in their order:
{% for answer in answers %}{{ loop.index }}. {{ answer }}
{% endfor %}Make one answer for the whole document of them."""
DEFAULT_MODEL = "smollm2-135m-instruct"

# What [input.columns] may map: the names the input layouts know.
COLUMN_NAMES = (
    "doc_id",
    "document",
    "question_id",
    "question",
    "questions",
    "schema",
    "gold",
    "after",
    "follow_up",
    "samples",
)


@dataclass(frozen=True)
class FailureLimit:
    """How many rows may fail: a share of all rows, or a count. Exactly one of the two is set."""

    share: Fraction | None = None
    count: int | None = None

    @classmethod
    def from_text(cls, text: str) -> "FailureLimit":
        """Read `5%`, `2.5%` or `10`. Raises ValueError for anything else, and above 100%."""
        found = re.fullmatch(r"\s*(?:(\d+(?:\.\d+)?)\s*%|(\d+))\s*", text, re.ASCII)
        if not found or (found[1] and Decimal(found[1]) > 100):
            raise ValueError(text)
        return cls(count=int(found[2])) if found[2] else cls(share=Fraction(found[1]) / 100)

    def exceeded(self, failed: int, total: int) -> bool:
        """Whether `failed` of `total` rows are more than allowed; exactly the limit is still allowed."""
        return failed > (self.count if self.share is None else self.share * total)  # type: ignore[operator]

    def __str__(self) -> str:
        # A share came from a decimal text, so as a percentage it is a finite decimal again.
        return str(self.count) if self.share is None else f"{float(self.share * 100):.15g}%"


@dataclass(frozen=True)
class InputSettings:
    """`[input]`: where documents and questions are; `columns` maps a wanted name to a file's own column name."""

    documents: tuple[str, ...]
    questions: tuple[str, ...] = ()
    on_bad_file: str = "fail"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSettings:
    """`[prompt]`: the text parts of a prompt, as templates; shared text first, the question last."""

    system: str = DEFAULT_SYSTEM
    document: str = DEFAULT_DOCUMENT
    question: str = DEFAULT_QUESTION


@dataclass(frozen=True)
class AnswerSettings:
    """`[answer]`: the schema of answers (a file or a stock name), and the names a row's `schema` may use.

    `lenient`: run also with a schema that decoding can't enforce whole; the rest is checked after. `backend`: what
    enforces it. `confidence`: store how sure the model was of each property.
    """

    schema: str | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False
    backend: str = "auto"
    confidence: bool = True


@dataclass(frozen=True)
class ModelSettings:
    """`[model]`: which weights, in which number format, on which device."""

    path: str = DEFAULT_MODEL
    dtype: str = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class EngineSettings:
    """`[engine]`: `kv_memory` in bytes and `step_tokens` in tokens; None means that the engine decides.

    `kv_dtype` is the format of cached keys and values: `auto` is that of the model, the others have 8 bits.
    """

    kv_memory: int | None = None
    page_size: int = 16
    kv_dtype: str = "auto"
    step_tokens: int | None = None
    deterministic: bool = False


@dataclass(frozen=True)
class SamplingSettings:
    """`[sampling]`: `top_k` 0 and `top_p` 1.0 mean off.

    `samples` is how often each question is asked, `choose` which of the answers counts.
    """

    temperature: float = 0.0
    max_tokens: int = 256
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    samples: int = 1
    choose: str = "majority"


@dataclass(frozen=True)
class RunSettings:
    """`[run]`: `time_budget` in seconds, None for no limit."""

    time_budget: float | None = None
    max_failures: FailureLimit = field(default_factory=lambda: FailureLimit.from_text("5%"))
    on_too_long: str = "error"


@dataclass(frozen=True)
class SplitSettings:
    """`[split]`: how a document is cut where run.on_too_long is split; `piece_tokens` None for as many as fit."""

    piece_tokens: int | None = None
    overlap_tokens: int = 64
    combine: str = DEFAULT_COMBINE


@dataclass(frozen=True)
class OutputSettings:
    """`[output]`: the DuckDB file."""

    database: str = "answers.duckdb"


@dataclass(frozen=True)
class Job:
    """A whole job. Paths are kept as written; relative ones are relative to `folder` (see `resolve_path`)."""

    name: str
    input: InputSettings
    prompt: PromptSettings
    answer: AnswerSettings
    model: ModelSettings
    engine: EngineSettings
    sampling: SamplingSettings
    run: RunSettings
    split: SplitSettings
    output: OutputSettings
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready settings to store with a run; `job_from_settings` makes the same job of them."""
        settings: dict[str, Any] = {"job": {"name": self.name}}
        for section in SECTION_CLASSES:
            values = {
                f.name: getattr(getattr(self, section), f.name) for f in dataclasses.fields(SECTION_CLASSES[section])
            }
            settings[section] = {key: _plain(value) for key, value in values.items()}
        for section, key in (("engine", "kv_memory"), ("engine", "step_tokens"), ("split", "piece_tokens")):
            if settings[section][key] is None:
                settings[section][key] = "auto"
        return settings


SECTION_CLASSES: dict[str, type] = {
    "input": InputSettings,
    "prompt": PromptSettings,
    "answer": AnswerSettings,
    "model": ModelSettings,
    "engine": EngineSettings,
    "sampling": SamplingSettings,
    "run": RunSettings,
    "split": SplitSettings,
    "output": OutputSettings,
}


def _plain(value: Any) -> Any:
    if isinstance(value, FailureLimit):
        return str(value) if value.count is None else value.count
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
