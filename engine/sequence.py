"""A request on its way through the engine: what it has produced, where its KV is, what it still has to compute."""

from __future__ import annotations

from collections import Counter

import numpy as np

from engine.grammar import GrammarState
from engine.radix_cache import Claim
from engine.radix_node import Node
from engine.request import Completion, FinishReason, RepeatCause, Request


class Sequence:
    """State of one request. Its KV is valid for the first `computed` tokens of prompt + output."""

    def __init__(self, request: Request, leaf: Node, max_output_tokens: int) -> None:
        self.request = request
        self.leaf = leaf
        self.max_output_tokens = max_output_tokens
        self.grammar: GrammarState | None = request.grammar.start() if request.grammar else None
        self.output: list[int] = []
        self.log_probabilities: list[float] | None = [] if request.log_probabilities else None
        self.draft: list[int] = []  # guesses at the next output, each allowed by the grammar after the ones before
        self.computed = 0
        self.page_table = np.empty(0, dtype=np.int32)
        self.private_pages: list[int] = []
        self.cached_tokens: int | None = None  # set by the first claim
        self.copied_tokens = 0
        self.repeated_tokens: Counter[RepeatCause] = Counter()
        self.repeated_output_tokens = 0
        self._computed_before = 0  # tokens that were computed when it was preempted
        self.forced_tokens = 0
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def length(self) -> int:
        """Tokens of prompt and output so far."""
        return self.prompt_length + len(self.output)

    @property
    def to_compute(self) -> int:
        """Tokens whose KV is missing before the next token can be drawn."""
        return self.length - self.computed

    @property
    def is_decoding(self) -> bool:
        """Whether the whole prompt is computed and output has begun."""
        return bool(self.output) and self.computed >= self.prompt_length

    def tokens(self, first_position: int, count: int) -> np.ndarray:
        """`count` token ids from `first_position` of prompt, output and draft."""
        end = first_position + count
        prompt_part = self.request.prompt[first_position:end]
        if end <= self.prompt_length:
            return prompt_part
        output_start = max(first_position - self.prompt_length, 0)
        written = self.output + self.draft if self.draft else self.output
        output_part = np.asarray(written[output_start : end - self.prompt_length], dtype=np.int32)
        return np.concatenate([prompt_part, output_part])

    def admit(self, claim: Claim, now: float) -> None:
        """Take over the pages of a claim; counts reuse when the request is admitted for the first time."""
        self.page_table = np.asarray(claim.page_table, dtype=np.int32)
        self.private_pages = list(claim.private_pages)
        self.computed = claim.matched
        if self.cached_tokens is None:
            self.cached_tokens = claim.matched
            self.admitted_at = now
            self.copied_tokens = 0 if claim.tail_copy is None else claim.tail_copy.slots
            self._count_repeated(RepeatCause.EVICTED, claim.repeated)
        else:
            again = range(claim.matched, self._computed_before)
            of_prompt = len(again[: max(self.prompt_length - claim.matched, 0)])
            self._count_repeated(RepeatCause.PREEMPTED, of_prompt)
            self.repeated_output_tokens += len(again) - of_prompt

    def run_last_token_again(self) -> None:
        """The whole prompt is in the cache, and its last token is run for the state in which the answer begins."""
        assert self.cached_tokens is not None
        if self.cached_tokens == self.prompt_length:
            self.cached_tokens -= 1
            self.copied_tokens = min(self.copied_tokens, self.cached_tokens)
            self._count_repeated(RepeatCause.LAST_TOKEN, 1)
        else:  # it computed the prompt itself, and was preempted at its end
            self._count_repeated(RepeatCause.PREEMPTED, 1)

    def _count_repeated(self, cause: RepeatCause, tokens: int) -> None:
        if tokens:
            self.repeated_tokens[cause] += tokens

    def add_pages(self, pages: list[int]) -> None:
        """Append pages for more output."""
        self.private_pages += pages
        self.page_table = np.concatenate([self.page_table, np.asarray(pages, dtype=np.int32)])

    def give_up_pages(self) -> list[int]:
        """Forget the pages, so that the request can be claimed anew; returns what it held itself."""
        pages, self.private_pages = self.private_pages, []
        self._computed_before = self.computed
        self.draft = []
        self.page_table = np.empty(0, dtype=np.int32)
        self.computed = 0
        return pages

    def completion(self, reason: FinishReason, now: float) -> Completion:
        """The result of this request, ended at `now` (seconds of the engine's clock)."""
        assert self.cached_tokens is not None
        assert self.admitted_at is not None
        first_token_at = self.first_token_at if self.first_token_at is not None else now
        return Completion(
            request_id=self.request.request_id,
            finish_reason=reason,
            output_tokens=self.output,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens,
            computed_tokens=self.prompt_length - self.cached_tokens,
            copied_tokens=self.copied_tokens,
            repeated_tokens=dict(self.repeated_tokens),
            repeated_output_tokens=self.repeated_output_tokens,
            forced_tokens=self.forced_tokens,
            ttft_seconds=first_token_at - self.admitted_at,
            latency_seconds=now - self.admitted_at,
            log_probabilities=self.log_probabilities,
        )
