"""What goes into the engine and what comes out: a request and its completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from engine.grammar import Grammar
from engine.hold import Hold


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop id, or an answer to which the grammar allows no more
    LENGTH = "length"  # cut by max_tokens or by the model's context
    TOO_LONG = "too_long"  # never ran: it fits neither the context nor the KV memory
    NO_TOKEN = "no_token"  # the grammar allowed no token: a fault of the grammar


class RepeatCause(StrEnum):
    """Why tokens of a prompt were computed once more."""

    EVICTED = "evicted"  # their pages were taken while a planned row still needed them: the KV memory is small
    LAST_TOKEN = "last_token"  # the prompt was in the cache, but not the state in which its answer begins
    PREEMPTED = "preempted"  # the row gave up its pages so that others could go on


@dataclass(frozen=True)
class SamplingParameters:
    """How tokens are drawn. Temperature 0 takes the most likely one; `seed` belongs to this request alone."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    max_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt to answer. `prompt` is int32 token ids, at least one."""

    request_id: int
    prompt: np.ndarray
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    grammar: Grammar | None = None
    shortest_answer_tokens: int = 1  # a row runs only if this many output tokens still fit the context
    log_probabilities: bool = False  # whether the completion says how likely each token was
    hold: Hold | None = None  # it belongs to the rows that are kept together by this


@dataclass(frozen=True)
class Completion:
    """The end of a request. `cached_tokens + computed_tokens == prompt_tokens` if it reached the model.

    `repeated_tokens` counts prompt tokens that had been computed since they were planned, for any request, and were
    computed again by this one. Those of EVICTED and LAST_TOKEN are among the `computed_tokens`, so that without them
    the computed tokens of all requests are the distinct positions of the prefix tree. Those of PREEMPTED come on top.
    """

    request_id: int
    finish_reason: FinishReason
    output_tokens: list[int]  # without the stop id
    prompt_tokens: int
    cached_tokens: int = 0
    computed_tokens: int = 0
    copied_tokens: int = 0  # of the cached ones: copied, because others write on in the page where they end
    repeated_tokens: Mapping[RepeatCause, int] = field(default_factory=dict)  # causes with 0 tokens are left out
    repeated_output_tokens: int = 0  # computed again because the request was preempted
    forced_tokens: int = 0  # output tokens where the grammar left one choice
    ttft_seconds: float | None = None  # from admission to a step until the first token
    latency_seconds: float | None = None  # from admission to a step until the last token
    error: str | None = None
    log_probabilities: list[float] | None = None
    """If asked for: the logarithm (base e) of the probability of each output token, and of the stop id if one was
    drawn, among those that the grammar allowed, at temperature 1. Tokens that come to the same text count together, so
    it is 0 where the text was certain. NaN where unknown."""

    @property
    def minimum_tokens(self) -> int:
        """Prompt positions that this request was the first to compute."""
        again = self.repeated_tokens.get
        return self.computed_tokens - again(RepeatCause.EVICTED, 0) - again(RepeatCause.LAST_TOKEN, 0)
