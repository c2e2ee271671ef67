"""The identity of a request: a digest of everything that can change its answer, and digests of its parts.

The whole decides whether an answer counts; the parts say why one does not. The document and the question of an answer
stand in its row, so their parts need no digest of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jobs.answer_schemas import AnswerSchema
from jobs.job_settings import PromptSettings, SamplingSettings
from jobs.prompt_segments import SegmentedPrompt
from jobs.source import InputRow

DIGEST_VERSION = 1
"""Raise it when a change to docqa may change answers, so that rows answered before are answered again."""

QUESTION_PART = "question"

DECIDING_PARTS = ("model", "engine")
"""Parts that hold what the whole digest does not: an answer whose digests of them are known must share them."""

_BACKEND_PACKAGES = {"index": "outlines_core", "llguidance": "llguidance"}


class RequestIdentity:
    """Makes the digests for the rows of one job with one model.

    `dtype` and `kv_dtype` are the job's settings, not what `auto` became: the same job on another machine is the same
    request.
    """

    def __init__(
        self,
        *,
        prompt: PromptSettings,
        sampling: SamplingSettings,
        model_fingerprint: str,
        dtype: str = "auto",
        kv_dtype: str = "auto",
    ) -> None:
        # How often a question is asked, and by what rule one answer counts, is in the identity of rows asked several
        # times only: so those that are asked once are the same requests as ever.
        self._sampling = {name: value for name, value in asdict(sampling).items() if name not in ("samples", "choose")}
        self._choose = sampling.choose
        self._fingerprint = model_fingerprint
        self._common = {
            "prompt": short_digest(asdict(prompt)),
            # Answers from before there was a kv_dtype had that of the model.
            "model": short_digest([model_fingerprint, dtype, *([] if kv_dtype == "auto" else [kv_dtype])]),
        }
        self._parts: dict[tuple[str, str, int], dict[str, str]] = {}
        self._settings: dict[tuple[str, int], str] = {}

    @property
    def keys_share_answers(self) -> bool:
        """Whether rows that differ in nothing but their key get the same answer: not if seeds, which differ, matter."""
        return self._sampling["temperature"] == 0

    def digest(self, row: InputRow, schema: AnswerSchema, prompt: SegmentedPrompt, samples: int = 1) -> str:
        """SHA-256 (hex) of the key, the model, the sampling settings and the schema, and of the prompt's tokens.

        The first part is hashed as the JSON text of a list, the second as int32 ids.
        """
        settings = self._settings.get((schema.text, samples))
        if settings is None:
            settings = json.dumps([self._fingerprint, self._sampling_of(samples), schema.text])[1:]
            self._settings[schema.text, samples] = settings
        key = json.dumps([DIGEST_VERSION, row.doc_id, row.question_id])[:-1]
        digest = hashlib.sha256(f"{key}, {settings}".encode())
        for ids in prompt.segments():
            digest.update(ids.data)
        return digest.hexdigest()

    def parts(self, schema: AnswerSchema, samples: int = 1) -> Mapping[str, str]:
        """A short digest of each part that does not stand in the answer's row: prompt, schema, sampling, ..."""
        key = (schema.text, schema.grammar.backend, samples)
        if key not in self._parts:
            engine = [DIGEST_VERSION, schema.grammar.backend, _backend_version(schema.grammar.backend)]
            parts = {**self._common, "schema": short_digest(schema.text), "engine": short_digest(engine)}
            self._parts[key] = parts | {"sampling": short_digest(self._sampling_of(samples))}
        return self._parts[key]

    def _sampling_of(self, samples: int) -> dict[str, Any]:
        return self._sampling if samples == 1 else {**self._sampling, "samples": samples, "choose": self._choose}


def short_digest(value: Any) -> str:
    """The first 12 hex digits of the SHA-256 of a JSON-ready value: enough to tell one job's versions apart."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


@lru_cache(maxsize=8)
def _backend_version(backend: str) -> str:
    try:
        return version(_BACKEND_PACKAGES[backend])
    except (KeyError, PackageNotFoundError):
        return ""
