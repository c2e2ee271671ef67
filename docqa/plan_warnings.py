"""What a plan warns of: a sentence each, with the cause and what to do."""

from __future__ import annotations

from collections import Counter
from typing import Any

from docqa.wording import duration
from engine.kv_memory import kv_page_bytes, kv_pages_in
from jobs.near_documents import near_documents
from jobs.prepare import PreparedJob
from jobs.prompt_order import order_costs


def plan_warnings(prepared: PreparedJob, bytes_per_value: int) -> list[str]:
    """Of rows that will fail, and of what makes the job compute more than it would have to."""
    plan, documents, prompts = prepared.plan, prepared.data.documents, prepared.prompts
    near = near_documents((documents[name] for name in plan.document_tokens), prompts.text_ids).sentence()
    return [
        *_answers_cut(prepared),
        *_rows_without_room(prepared, bytes_per_value),
        *(cost.sentence() for cost in order_costs(plan.rows, prompts)),
        *([near] if near else []),
    ]


def time_warnings(prepared: PreparedJob, estimate: dict[str, Any] | None) -> list[str]:
    """Of an estimate that is longer than the time the run may take."""
    budget = prepared.job.run.time_budget
    if estimate is None or budget is None or estimate["seconds"] <= budget:
        return []
    return [
        f"the run is expected to take {duration(estimate['seconds'])}, and run.time_budget is {duration(budget)}: "
        "it will stop there and leave the rest to the next run"
    ]


def _answers_cut(prepared: PreparedJob) -> list[str]:
    """Schemas whose shortest answer is longer than rows may write."""
    rows: Counter[tuple[str, int, int]] = Counter()
    for planned in prepared.plan.rows:
        shortest = planned.schema.grammar.shortest_tokens
        if planned.max_output_tokens < shortest:
            rows[planned.schema.name, shortest, planned.max_output_tokens] += 1
    return [
        f"the shortest answer of the schema {name} has {shortest:,} tokens, and {count:,} rows may write {limit:,}: "
        "they will be truncated; raise sampling.max_tokens"
        for (name, shortest, limit), count in rows.items()
    ]


def _rows_without_room(prepared: PreparedJob, bytes_per_value: int) -> list[str]:
    """Rows that are larger than engine.kv_memory."""
    engine, config = prepared.job.engine, prepared.model.config
    if engine.kv_memory is None:
        return []
    pages = kv_pages_in(engine.kv_memory, config, engine.page_size, bytes_per_value)
    room = pages * engine.page_size
    larger = sum(row.prompt_tokens + row.max_output_tokens - 1 > room for row in prepared.plan.rows)
    if not larger:
        return []
    needed = prepared.plan.pages_for_longest_row(engine.page_size) + 1
    least = needed * kv_page_bytes(config, engine.page_size, bytes_per_value)
    if pages < 1:
        return [
            f"engine.kv_memory of {engine.kv_memory:,} bytes holds no KV page of this model, so a run will refuse the "
            f"job; raise it to {least:,}"
        ]
    return [
        f"engine.kv_memory of {engine.kv_memory:,} bytes has room for {room:,} tokens, and {larger:,} rows need more "
        f"for prompt and answer: they will be too_long; raise it to {least:,}, or lower sampling.max_tokens"
    ]
