"""What `docqa plan` prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from engine.kv_memory import kv_page_bytes
from jobs.run import PreparedJob

SHOWN_REJECTED_ROWS = 20


def plan_summary(prepared: PreparedJob) -> dict[str, Any]:
    """The plan as JSON-ready values."""
    plan, data, config = prepared.plan, prepared.data, prepared.model.config
    page_size = prepared.job.engine.page_size
    prompt_tokens = plan.prompt_tokens
    return {
        "job": prepared.job.name,
        "model": prepared.model.source.name,
        "database": str(prepared.database),
        "files": len(data.files),
        "layout": data.layout,
        "rows": plan.total_rows,
        "rows_to_run": len(plan.rows),
        "rows_answered": plan.answered_rows,
        "rows_rejected": len(plan.rejected),
        "rejected_by_status": plan.rejected_by_status,
        "rejected_rows": [
            {
                "doc_id": rejected.row.doc_id,
                "question_id": rejected.row.question_id,
                "status": rejected.status,
                "error": rejected.error,
            }
            for rejected in plan.rejected
        ],
        "documents": len(plan.document_tokens),
        "document_tokens": sum(plan.document_tokens.values()),
        "prompt_tokens": prompt_tokens,
        "minimum_tokens": plan.minimum_tokens,
        "shared_tokens": prompt_tokens - plan.minimum_tokens,
        "longest_prompt_tokens": max((len(planned.prompt) for planned in plan.rows), default=0),
        "smallest_kv_bytes": {
            dtype: (plan.pages_for_longest_row(page_size) + 1) * kv_page_bytes(config, page_size, size)
            for dtype, size in (("bfloat16", 2), ("float32", 4))
        },
    }


def print_plan(summary: dict[str, Any], console: Console) -> None:
    """The same for people."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")

    def row(name: str, value: int, note: str = "") -> None:
        table.add_row(name, f"{value:,}", note)

    prompt_tokens = summary["prompt_tokens"]
    row("rows", summary["rows"], f"{summary['layout']} layout, {summary['files']} files")
    row("  to run", summary["rows_to_run"])
    row("  answered before", summary["rows_answered"])
    row("  that can't run", summary["rows_rejected"])
    row("documents", summary["documents"])
    row("prompt tokens", prompt_tokens, f"longest prompt {summary['longest_prompt_tokens']:,}")
    row(
        "  shared", summary["shared_tokens"], f"{summary['shared_tokens'] / prompt_tokens:.1%}" if prompt_tokens else ""
    )
    row("minimum tokens", summary["minimum_tokens"], "the least that must be computed")
    smallest = summary["smallest_kv_bytes"]
    row("smallest KV memory", smallest["bfloat16"], f"bytes in bfloat16; {smallest['float32']:,} in float32")
    console.print(table)
    for rejected in summary["rejected_rows"][:SHOWN_REJECTED_ROWS]:
        key = f"{rejected['doc_id']} / {rejected['question_id']}"
        console.print(f"{rejected['status']}: {key}: {rejected['error']}", markup=False, soft_wrap=True)
    more = len(summary["rejected_rows"]) - SHOWN_REJECTED_ROWS
    if more > 0:
        console.print(f"and {more} more rows that can't run; --json lists all", markup=False)
    console.print(f"model {summary['model']}, answers to {summary['database']}", markup=False, soft_wrap=True)
