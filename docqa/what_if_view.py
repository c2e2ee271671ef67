"""`docqa plan --what-if`: other ways to cache beside our plan, as JSON-ready values and as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from docqa.plan_summary import BYTES_PER_VALUE, kv_dtype
from docqa.wording import bytes_text
from engine.kv_memory import kv_page_bytes
from jobs.prepare import PreparedJob
from jobs.what_if import POOL_SHARES, TooLargeToSimulate, WhatIf, what_if

_SHARE_NAMES = ("all", "1/2", "1/4")
"""Of the working set, in the order of POOL_SHARES."""


def what_if_summary(prepared: PreparedJob) -> dict[str, Any]:
    """The simulation of the plan's rows; `refused` says why there is none, and is None otherwise."""
    page_size = prepared.job.engine.page_size
    if not prepared.plan.rows:
        return {"refused": "there is no row to run"}
    try:
        found = what_if(prepared.plan.rows, prepared.data.rows, page_size)
    except TooLargeToSimulate as error:
        return {"refused": str(error)}
    dtype = kv_dtype(prepared)
    page_bytes = kv_page_bytes(prepared.model.config, page_size, BYTES_PER_VALUE[dtype])
    values = _values(found) | {"kv_dtype": dtype, "page_bytes": page_bytes}
    waiting = len(prepared.plan.dependents)
    if waiting:
        values["notes"].append(
            f"{waiting:,} rows that wait for answers of others are left out: their prompts are not known"
        )
    return values


def _values(found: WhatIf) -> dict[str, Any]:
    return {
        "refused": None,
        "rows": found.rows,
        "prompt_tokens": found.prompt_tokens,
        "minimum_tokens": found.minimum_tokens,
        "page_size": found.page_size,
        "working_set_pages": found.working_set_pages,
        "strategies": [
            {
                "name": strategy.name,
                "description": strategy.description,
                "pools": [
                    {
                        "share_of_working_set": share,
                        "pool_pages": outcome.pool_pages,
                        "computed_tokens": outcome.computed_tokens,
                        "peak_pages": outcome.peak_pages,
                    }
                    for share, outcome in zip(POOL_SHARES, strategy.pools, strict=True)
                ],
            }
            for strategy in found.strategies
        ],
        "notes": found.notes,
    }


def print_what_if(found: dict[str, Any], console: Console) -> None:
    """The same for people."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    say("")
    if found["refused"] is not None:
        say(f"what if: not simulated, {found['refused']}")
        return
    page_bytes = found["page_bytes"]
    say(
        f"what if: {found['rows']:,} prompts, one after the other and without answers; working set (the prefix tree of "
        f"all prompts) {found['working_set_pages']:,} pages of {found['page_size']} tokens, "
        f"{bytes_text(found['working_set_pages'] * page_bytes)} in {found['kv_dtype']}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("pool in pages", no_wrap=True)
    table.add_column("cache", no_wrap=True)
    for title in ("computed", "x least", "peak pages", "peak KV"):
        table.add_column(title, justify="right", no_wrap=True)
    for place, share_name in enumerate(_SHARE_NAMES):
        if place:
            table.add_row()
        for line, strategy in enumerate(found["strategies"]):
            outcome = strategy["pools"][place]
            table.add_row(
                f"{share_name}: {outcome['pool_pages']:,}" if line == 0 else "",
                strategy["name"],
                f"{outcome['computed_tokens']:,}",
                f"{outcome['computed_tokens'] / found['minimum_tokens']:.2f}",
                f"{outcome['peak_pages']:,}",
                bytes_text(outcome["peak_pages"] * page_bytes),
            )
    console.print(table)
    for strategy in found["strategies"]:
        say(f"{strategy['name']}: {strategy['description']}")
    for note in found["notes"]:
        say(f"note: {note}")
