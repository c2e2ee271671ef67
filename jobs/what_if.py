"""What other ways to cache would compute for a job, and how many KV pages they would hold: simulated, without a model.

Each way runs the job's prompts one after the other, and counts prompts alone: no answers, and no rows side by side. So
the figures compare orders and caches, and are less than what a run holds.

The working set is the prefix tree of all prompts, every distinct token position once. A pool of that size has room for
everything that is asked for again; half and a quarter of it show which way needs less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jobs.plan import PlannedRow
from jobs.plan_order import first_positions_in_order
from jobs.prompt_segments import SharedPrefix
from jobs.source import InputRow
from jobs.what_if_block_cache import BlockCache, BlockNames, PromptBlocks
from jobs.what_if_plan import PlannedCache
from jobs.what_if_radix_cache import RecencyRadixCache

POOL_SHARES = (1.0, 0.5, 0.25)
"""Sizes of the pool, as shares of the working set."""

MOST_TOKENS = 20_000_000
"""Prompt tokens that are simulated at most, some seconds' work; of more, whole documents are drawn."""


class TooLargeToSimulate(ValueError):
    """One document alone has more prompt tokens than are simulated."""


@dataclass(frozen=True)
class Outcome:
    """What one way to cache computes in a pool of `pool_pages`, and the pages that it holds at its peak."""

    pool_pages: int
    computed_tokens: int
    peak_pages: int


@dataclass(frozen=True)
class Strategy:
    """One way to cache, with its outcome in each pool of POOL_SHARES."""

    name: str
    description: str
    pools: list[Outcome]


@dataclass(frozen=True)
class WhatIf:
    """The whole comparison, of `rows` of the plan. `notes` says what was left out or changed, a sentence each."""

    rows: int
    prompt_tokens: int
    minimum_tokens: int
    page_size: int
    working_set_pages: int
    strategies: list[Strategy]
    notes: list[str]


@dataclass(frozen=True)
class Simulation:
    """Rows in the plan's order, and their order in the input as places in `rows`."""

    rows: Sequence[PlannedRow]
    input_order: Sequence[int]
    page_size: int

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(row.prompt_tokens for row in self.rows)

    @cached_property
    def longest_pages(self) -> int:
        """Pages of the longest prompt: the least pool in which all can run."""
        return max((-(-row.prompt_tokens // self.page_size) for row in self.rows), default=0)

    @cached_property
    def _blocks(self) -> list[PromptBlocks]:
        names = BlockNames(self.page_size)
        return [names.of(row.prompt) for row in self.rows]

    def no_reuse(self, pages: int) -> Outcome:
        """Every prompt from its first token."""
        return Outcome(pages, self.prompt_tokens, self.longest_pages)

    def block_hash(self, pages: int) -> Outcome:
        """Shared by full blocks of a page, in the order of the input."""
        cache = BlockCache(pages, self.page_size)
        found = sum(cache.ask(self._blocks[index]) for index in self.input_order)
        return Outcome(pages, self.prompt_tokens - found, cache.peak_pages)

    def radix_recency(self, pages: int) -> Outcome:
        """Shared to the token, what was used longest ago goes, in the order of the input."""
        cache = RecencyRadixCache(pages * self.page_size)
        found = sum(cache.ask(self.rows[index].prompt) for index in self.input_order)
        return Outcome(pages, self.prompt_tokens - found, -(-cache.peak_tokens // self.page_size))

    def our_plan(self, pages: int) -> Outcome:
        """Depth first, and pages are freed when nothing planned needs them."""
        cache = PlannedCache(pages, self.page_size)
        found = sum(cache.ask_all(row.prompt for row in self.rows))
        return Outcome(pages, self.prompt_tokens - found, cache.peak_pages)


def simulation(
    rows: Sequence[PlannedRow], input_rows: Sequence[InputRow], page_size: int
) -> tuple[Simulation, list[str]]:
    """A simulation of the plan's rows, and what is to be said of it; `input_rows` has them in the input's order.

    Of more than MOST_TOKENS, every n-th document is taken, with all its rows. Raises TooLargeToSimulate if there is too
    much even so.
    """
    chosen = list(range(len(rows)))
    notes = []
    tokens = sum(row.prompt_tokens for row in rows)
    if tokens > MOST_TOKENS:
        every = -(-tokens // MOST_TOKENS)
        number: dict[SharedPrefix, int] = {}
        for row in rows:
            number.setdefault(row.segments.prefix, len(number))
        chosen = [index for index in chosen if number[rows[index].segments.prefix] % every == 0]
        drawn = sum(rows[index].prompt_tokens for index in chosen)
        if drawn > 2 * MOST_TOKENS:
            raise TooLargeToSimulate(
                f"the prompts have {tokens:,} tokens, and {drawn:,} of them on too few documents to draw from; at most "
                f"{MOST_TOKENS:,} are simulated, so try a part of the input"
            )
        notes.append(
            f"the prompts have {tokens:,} tokens; {drawn:,} were simulated, those of one in {every} documents with all "
            "their rows"
        )
    places = {id(row): place for place, row in enumerate(input_rows)}
    taken = [rows[index] for index in chosen]
    order = sorted(range(len(taken)), key=lambda index: places[id(taken[index].row)])
    return Simulation(taken, order, page_size), notes


def what_if(rows: Sequence[PlannedRow], input_rows: Sequence[InputRow], page_size: int) -> WhatIf:
    """Compare the ways to cache on the plan's rows; see `simulation`."""
    simulated, notes = simulation(rows, input_rows, page_size)
    minimum_tokens = sum(first_positions_in_order([row.segments for row in simulated.rows]))
    working_set = -(-minimum_tokens // page_size)
    wanted = [max(1, -(-working_set // round(1 / share))) for share in POOL_SHARES]
    pools = [max(pages, simulated.longest_pages) for pages in wanted]
    if pools != wanted:
        notes.append(f"pools below {simulated.longest_pages:,} pages were raised to that: the longest prompt needs it")
    ways = [
        ("no reuse", "every prompt from its first token", simulated.no_reuse),
        ("block hash", "as vLLM: full blocks, input order, least recently used goes", simulated.block_hash),
        ("radix LRU", "as SGLang: to the token, input order, least recently used goes", simulated.radix_recency),
        ("our plan", "to the token, documents together, what nothing planned needs goes", simulated.our_plan),
    ]
    return WhatIf(
        rows=len(simulated.rows),
        prompt_tokens=simulated.prompt_tokens,
        minimum_tokens=minimum_tokens,
        page_size=page_size,
        working_set_pages=working_set,
        strategies=[Strategy(name, description, [run(pages) for pages in pools]) for name, description, run in ways],
        notes=notes,
    )
