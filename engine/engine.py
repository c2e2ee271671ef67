"""The engine: requests in plan order go in, completions come out, every shared prefix is computed once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.attention_choice import make_attention
from engine.cache_check import check_cache, page_counts
from engine.drafts import Drafter
from engine.engine_settings import EngineSettings
from engine.engine_statistics import EngineStatistics
from engine.forward_work import ForwardWork
from engine.hold import Hold
from engine.kv_cache import KVCache
from engine.kv_memory import kv_page_bytes, kv_value_bytes
from engine.kv_quantization import KV_DTYPES
from engine.page_pool import PagePool
from engine.prefix_order import depth_first_order
from engine.radix_cache import RadixCache
from engine.radix_node import Node
from engine.request import Completion, FinishReason, Request
from engine.runner import Model, Runner
from engine.scheduler import Scheduler
from engine.sequence import Sequence as RunningSequence
from engine.step import Step
from engine.step_record import StepRecord, prompt_and_output_flops
from engine.token_draw import LaunchedDraw, TokenDraw

if TYPE_CHECKING:
    from engine.attention import AttentionBackend
    from engine.model_config import ModelConfig
    from engine.padded_decode import PaddedDecode


GRAPH_ROWS_A_SEQUENCE = 4
"""Decoding steps of up to this many rows a sequence, drafts included, are CUDA graphs; larger ones gain little."""

DETERMINISTIC_ROW_BLOCK = 64
"""Rows of every matrix product in deterministic mode: another number of rows may be summed in another order."""


CPU_FIXED_COST_ROWS, GPU_FIXED_COST_ROWS = 12, 256
"""A decoding step's fixed cost (reading the weights, mostly) in rows, for the drafter. Measured on 2 cores with
SmolLM2-135M: 11 rows with one document of 2,000 tokens, 20 with four; a GPU reads weights for hundreds."""


@dataclass(frozen=True)
class _Flight:
    """A step that is launched: what it runs, the tokens it draws, and what was measured of it so far."""

    step: Step
    draw: LaunchedDraw | None
    running_rows: int
    pages_used: int
    mask_seconds: float
    launch_seconds: float


class Engine:
    """Runs requests over one model. Not thread-safe; torch's inference mode is its own business.

    `last_step` is the record of the step that `step` or `drain` finished, None if there was none; `work` is the model's
    arithmetic.
    """

    def __init__(
        self, model: Model, config: ModelConfig, settings: EngineSettings, stop_token_ids: Iterable[int], *,
        dtype: torch.dtype = torch.float32, device: str = "cpu",
    ) -> None:  # fmt: skip
        self.config = config
        self.settings = settings
        self.statistics = EngineStatistics()
        self.last_step: StepRecord | None = None
        self.work = ForwardWork.of(config)
        value_bytes = kv_value_bytes(settings.kv_dtype, dtype.itemsize)
        self.kv_page_bytes = kv_page_bytes(config, settings.page_size, value_bytes)
        pool = PagePool(settings.kv_pages)
        self.cache = RadixCache(pool, settings.page_size, keep_unneeded=settings.keep_unneeded)
        self._scheduler = Scheduler(
            self.cache,
            step_tokens=settings.step_tokens,
            max_rows=settings.max_rows,
            reserved_output=settings.reserved_output,
        )
        kv_cache = KVCache(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            pages=settings.kv_pages,
            page_size=settings.page_size,
            dtype=KV_DTYPES.get(settings.kv_dtype, dtype),
            device=device,
        )
        attention = make_attention(
            settings.attention,
            config,
            settings.page_size,
            dtype,
            device,
            deterministic=settings.deterministic,
            kv_dtype=settings.kv_dtype,
        )
        # Where a document ends depends on what else is planned, so sharing would let other rows into a row's sums.
        share_prefixes = settings.share_prefixes and not settings.deterministic
        row_block = DETERMINISTIC_ROW_BLOCK if settings.deterministic else None
        self._runner = Runner(
            model,
            kv_cache,
            attention,
            vocabulary_size=config.vocabulary_size,
            share_prefixes=share_prefixes,
            row_block=row_block,
            padded=self._padded_decode(model, kv_cache, attention, dtype),
        )
        drafter = None
        if settings.drafts:
            drafter = Drafter(CPU_FIXED_COST_ROWS if device == "cpu" else GPU_FIXED_COST_ROWS)
        self._token_draw = TokenDraw(self._runner, sorted(stop_token_ids), drafter)
        self._runs_ahead = settings.overlap and self._runner.stream.runs_ahead
        self._in_flight: _Flight | None = None  # the step that is launched and not finished
        self._rejected: list[Completion] = []  # of coming requests, to be returned by the next step
        self._holds_made = 0
        self._coming: Iterator[Request] | None = None  # requests to be planned when their turn is near
        self._stored_hidden: dict[Node, torch.Tensor] = {}  # at the end of prompts that wait to be answered again

    @property
    def has_work(self) -> bool:
        """Whether a request is running, waiting or coming."""
        return bool(self._scheduler.running or self._scheduler.waiting or self._coming is not None)

    def feed(self, requests: Iterable[Request]) -> None:
        """Take requests in depth-first order, each only when its turn is near, so that few are held at a time.

        `step` returns the completions of all of them, also of those that can never run. Until the last is taken, more
        wait than one step can start. So the last one taken has not begun when the next is planned; and what a later
        request shares with any earlier one, it shares with this one. So no prefix is given up that is still to come.
        """
        assert self._coming is None, "the requests of the feed before have not all been taken"
        self._coming = iter(requests)

    def submit(self, requests: Sequence[Request], *, first: bool = False) -> list[Completion]:
        """Plan requests, in this order, behind those that wait, or with `first` before them, as during a `feed`.

        Returns the completions of those that can never run.
        """

        def place(sequence: RunningSequence) -> None:
            self._scheduler.add(sequence, first=first)

        return self._plan(reversed(requests) if first else requests, place)

    def hold(self, prefixes: Iterable[np.ndarray], reserve_tokens: int) -> Hold:
        """Keep what begins with these prefixes (int32 token ids) together for rows that are yet to come.

        Made when the first request that carries it is about to be planned, in the order of the plan; ended by
        `end_hold`. `reserve_tokens` is the most that a row which comes has, prompt and answer, behind the longest
        prefix that is computed by then. If it has more, and the pool is small, held prefixes may be computed again.
        """
        leaves = [self.cache.hold(np.ascontiguousarray(prefix, dtype=np.int32)) for prefix in prefixes]
        self._holds_made += 1
        hold = Hold(self._holds_made, leaves, self.cache.pages_for(reserve_tokens) + 1)  # one more: a shared page ends
        self._scheduler.holds.append(hold)
        return hold

    def submit_held(self, requests: Sequence[Request]) -> list[Completion]:
        """Plan requests of open holds, in this order, each behind the others of its hold; as `submit` otherwise."""
        return self._plan(requests, self._scheduler.add_held)

    def end_hold(self, hold: Hold) -> None:
        """All rows that a hold was for have been planned, or won't come."""
        if hold in self._scheduler.holds:  # else it went with an abort
            self._scheduler.end_hold(hold)

    def _plan(self, requests: Iterable[Request], place: Callable[[RunningSequence], None]) -> list[Completion]:
        rejected = []
        for request in requests:
            max_output_tokens = min(request.sampling.max_tokens, self.config.context_length - len(request.prompt))
            error = self._reason_not_to_run(request, max_output_tokens)
            if error is not None:
                rejected.append(
                    Completion(request.request_id, FinishReason.TOO_LONG, [], len(request.prompt), error=error)
                )
                continue
            plan = self.cache.plan if self.settings.reuse else self.cache.plan_alone
            prompt = np.ascontiguousarray(request.prompt, dtype=np.int32)
            sequence = RunningSequence(replace(request, prompt=prompt), plan(prompt), max_output_tokens)
            place(sequence)
        return rejected

    def run(self, requests: Sequence[Request], *, sort: bool = True) -> list[Completion]:
        """Answer all requests; completions in the order of `requests`. With `sort`, sharers stand together."""
        order = depth_first_order([request.prompt for request in requests]) if sort else range(len(requests))
        place = {request.request_id: index for index, request in enumerate(requests)}
        assert len(place) == len(requests), "request ids must be distinct"
        completions = self.submit([requests[index] for index in order])
        while self.has_work:
            completions += self.step()
        return sorted(completions, key=lambda completion: place[completion.request_id])

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Finish one forward step; returns the requests that it ended.

        On a device that runs ahead, the next step is launched before this returns, so that the device works while the
        caller deals with the completions: the step that would be next if the caller submitted nothing meanwhile.
        """
        flight = self._in_flight or self._launch()
        assert flight is not None or not self.has_work, "the scheduler is stuck"
        self._in_flight = None
        if flight is not None:
            completions = self._finish(flight)
            if self._runs_ahead:
                self._in_flight = self._launch()
        else:
            completions = []
            self.last_step = None
        self._rejected, rejected = [], self._rejected
        return completions + rejected

    @torch.inference_mode()
    def drain(self) -> list[Completion]:
        """Finish the step that is launched, if there is one, without another; returns the requests that it ended."""
        flight, self._in_flight = self._in_flight, None
        self.last_step = None
        return [] if flight is None else self._finish(flight)

    def abort(self) -> list[int]:
        """Drop all running, waiting and coming requests, and end all holds; returns the ids of those that run or wait.

        What is ready stays in the cache.
        """
        self._coming = self._in_flight = None
        self._stored_hidden.clear()
        return [sequence.request.request_id for sequence in self._scheduler.abort()]

    def check(self) -> None:
        """AssertionError if a counter of cache or pool is off: for tests, and after every job."""
        check_cache(self.cache, [sequence.private_pages for sequence in self._scheduler.running])
        counts = page_counts(self.cache)
        assert counts.free + counts.cached + counts.in_use == counts.total
        if not self.has_work and not self._scheduler.holds:
            assert counts.in_use == 0, "pages are in use although nothing runs"
            assert all(node.planned == 0 and node.locks == 0 for node in self.cache.nodes())

    def _padded_decode(
        self, model: Model, cache: KVCache, attention: AttentionBackend, dtype: torch.dtype
    ) -> PaddedDecode | None:
        """Decoding steps as CUDA graphs, on a GPU unless the settings say no."""
        if not self.settings.graphs or cache.keys.device.type != "cuda" or not attention.fuses_rotation:
            return None
        from engine.attention_triton import TritonAttention  # not at the top: Triton is there on Linux only
        from engine.padded_decode import PaddedDecode

        assert isinstance(attention, TritonAttention)
        rows = min(self.settings.step_tokens, GRAPH_ROWS_A_SEQUENCE * self.settings.max_rows)
        return PaddedDecode(model.forward, self.config, cache, attention, dtype=dtype, most_rows=rows, replay=True)

    def _reason_not_to_run(self, request: Request, max_output_tokens: int) -> str | None:
        prompt_tokens, context = len(request.prompt), self.config.context_length
        if prompt_tokens + request.shortest_answer_tokens > context:
            return (
                f"The prompt has {prompt_tokens} tokens and its shortest answer {request.shortest_answer_tokens}, but "
                f"the model's context is {context}; shorten the document or choose a model with a longer context."
            )
        needed = -(-(prompt_tokens + max_output_tokens - 1) // self.settings.page_size)
        if needed > self.settings.kv_pages:
            return (
                f"The prompt has {prompt_tokens} tokens and its answer up to {max_output_tokens}, which need {needed} "
                f"KV pages, but there are {self.settings.kv_pages}; raise engine.kv_memory or lower max_tokens."
            )
        return None

    def _take_coming(self) -> None:
        """Plan requests of the feed until enough wait."""
        while self._coming is not None and len(self._scheduler.waiting) <= self._scheduler.max_rows:
            request = next(self._coming, None)
            if request is None:
                self._coming = None
            else:
                self._rejected += self.submit([request])

    def _launch(self) -> _Flight | None:
        """Plan the next step and launch it, up to the draw of its tokens. None if nothing can run."""
        started = time.monotonic()
        masks_before = self._token_draw.counts.mask_seconds
        self._take_coming()
        step = self._scheduler.next_step()
        if step is None:
            return None
        running_rows, pages_used = len(self._scheduler.running), self.cache.pool.total - self.cache.pool.free
        self._runner.stream.begin_step()
        hidden = self._hidden_of(step)
        draw = None
        if step.sampled or step.resumed:
            sequences = [*(rows.sequence for rows in step.sampled), *step.resumed]
            self.statistics.decoding_rows += sum(1 for sequence in sequences if sequence.output)
            draw = self._token_draw.launch(sequences, hidden)
        for leaf in [leaf for leaf in self._stored_hidden if not self._scheduler.stored_end_is_needed(leaf)]:
            del self._stored_hidden[leaf]
        if self._runs_ahead:
            self._take_coming()  # for the step after this one, while the device is busy
        return _Flight(
            step=step,
            draw=draw,
            running_rows=running_rows,
            pages_used=pages_used,
            mask_seconds=self._token_draw.counts.mask_seconds - masks_before,
            launch_seconds=time.monotonic() - started,
        )

    def _finish(self, flight: _Flight) -> list[Completion]:
        """Wait for a step's tokens, if it draws any, and deal them out."""
        started = time.monotonic()
        drawn_before = self._token_draw.counts.drawn
        completions = [] if flight.draw is None else self._deal_tokens(flight.draw)
        seconds = flight.launch_seconds + time.monotonic() - started
        step = flight.step
        self._count(step, seconds, flight.pages_used)
        prompt_flops, output_flops = prompt_and_output_flops(step, self.work)
        share = prompt_flops / (prompt_flops + output_flops) if prompt_flops else 0.0
        self.last_step = StepRecord(
            prompt_tokens=step.prompt_rows,
            prompt_flops=prompt_flops,
            output_tokens=self._token_draw.counts.drawn - drawn_before,
            running_rows=flight.running_rows,
            pages_used=flight.pages_used,
            prompt_seconds=share * (seconds - flight.mask_seconds),
            output_seconds=(1 - share) * (seconds - flight.mask_seconds),
            mask_seconds=flight.mask_seconds,
        )
        return completions

    def _hidden_of(self, step: Step) -> torch.Tensor:
        """Hidden states of the rows that predict tokens: of `step.sampled`, then of `step.resumed`."""
        parts = []
        if len(step.token_ids):
            hidden, items = self._runner.forward(step)
            parts.append(hidden)
            self.statistics.work_items += len(items)
            self.statistics.shared_items += sum(item.first_position is None for item in items)
            row = 0
            for rows in step.sampled:
                sequence = rows.sequence
                if not sequence.output and self._scheduler.must_store_end(sequence):
                    self._stored_hidden[sequence.leaf] = hidden[row].clone()
                    self._scheduler.end_was_stored(sequence.leaf)
                row += rows.row_count
        if step.resumed:
            parts.append(torch.stack([self._stored_hidden[sequence.leaf] for sequence in step.resumed]))
        return torch.cat(parts)

    def _deal_tokens(self, draw: LaunchedDraw) -> list[Completion]:
        reasons = self._token_draw.finish(draw)
        now = time.monotonic()
        completions = []
        for sequence, reason in zip(draw.sequences, reasons, strict=True):
            if sequence.first_token_at is None:
                sequence.first_token_at = now
            if reason is not None:
                completions.append(sequence.completion(reason, now))
                self._scheduler.finish(sequence)
        return completions

    def _count(self, step: Step, seconds: float, pages_used: int) -> None:
        statistics = self.statistics
        statistics.steps += 1
        statistics.step_rows += len(step.token_ids)
        statistics.peak_pages = max(statistics.peak_pages, pages_used)
        statistics.preemptions = self._scheduler.preemptions
        statistics.drafted_tokens = self._token_draw.counts.drafted
        statistics.accepted_tokens = self._token_draw.counts.accepted
        statistics.mask_seconds = self._token_draw.counts.mask_seconds
        statistics.log_probability_seconds = self._token_draw.counts.log_probability_seconds
        if step.prompt_rows:
            statistics.prefill_seconds += seconds
        else:
            statistics.decode_seconds += seconds
