"""`docqa plan`: what a run would do."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from docqa.job_options import JobOptions, job_options
from docqa.options import json_option, quiet_option
from docqa.plain_console import plain_console
from docqa.run_log import TextLog, observer_of
from docqa.what_if_view import print_what_if, what_if_summary
from engine.kv_memory import kv_page_bytes
from jobs.near_documents import near_documents
from jobs.prompt_order import order_costs
from jobs.run import PreparedJob, prepare

SHOWN_REJECTED_ROWS = 20


@click.command("plan")
@job_options
@quiet_option
@json_option
@click.option(
    "--what-if",
    "with_what_if",
    is_flag=True,
    envvar="DOCQA_WHAT_IF",
    help="Also simulate what other orders and caches would compute, in pools of several sizes.",
)
def command(job_options: JobOptions, quiet: bool, as_json: bool, with_what_if: bool) -> None:
    """Say what a run would do, without loading weights."""
    with TextLog(quiet=quiet) as log:
        prepared = prepare(job_options.load(default_output="answers.duckdb"), observer_of(log))
        summary = plan_summary(prepared)
        if with_what_if:
            log.stage("simulating")
            summary["what_if"] = what_if_summary(prepared)
    if as_json:
        click.echo(json.dumps(summary, ensure_ascii=False))
        return
    console = plain_console()
    print_plan(summary, console)
    if with_what_if:
        print_what_if(summary["what_if"], console)


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
        "rows_identical": plan.rows_same,
        "rows_cut": plan.rows_cut,
        "documents_cut": plan.documents_cut,
        "rows_answered": plan.answered_rows,
        "rows_new": plan.rows_new,
        "rows_changed": plan.rows_changed,
        "changed_by": dict(plan.changed_by),
        "rows_failed_before": plan.rows_failed_before,
        "rows_done": plan.rows_done,
        "rows_gone": plan.rows_gone,
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
        "warnings": plan_warnings(prepared),
        "bad_files": [{"file": name, "reason": reason} for name, reason in data.bad_files],
        "shared_tokens": prompt_tokens - plan.minimum_tokens,
        "longest_prompt_tokens": max((planned.prompt_tokens for planned in plan.rows), default=0),
        "smallest_kv_bytes": {
            dtype: (plan.pages_for_longest_row(page_size) + 1) * kv_page_bytes(config, page_size, size)
            for dtype, size in (("bfloat16", 2), ("float32", 4))
        },
    }


def plan_warnings(prepared: PreparedJob) -> list[str]:
    """What makes the job compute more than it would have to, a sentence each."""
    plan, documents, prompts = prepared.plan, prepared.data.documents, prepared.prompts
    near = near_documents((documents[name] for name in plan.document_tokens), prompts.text_ids).sentence()
    return [cost.sentence() for cost in order_costs(plan.rows, prompts)] + [near] * bool(near)


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
    row("  new", summary["rows_new"])
    if summary["rows_changed"]:
        parts = sorted(summary["changed_by"].items(), key=lambda part: (-part[1], part[0]))
        row("  changed", summary["rows_changed"], ", ".join(f"{name} of {rows:,}" for name, rows in parts))
    if summary["rows_failed_before"]:
        row("  failed before", summary["rows_failed_before"])
    row("  done", summary["rows_done"], "have a valid answer already")
    row("to run", summary["rows_to_run"])
    if summary["rows_identical"]:
        row("  identical", summary["rows_identical"], "ask the same as another row, and get its answer")
    if summary["rows_cut"]:
        row("  cut", summary["rows_cut"], f"get the beginning of their document ({summary['documents_cut']:,} of them)")
    row("that can't run", summary["rows_rejected"])
    if summary["rows_gone"]:
        row("gone", summary["rows_gone"], "answered once, not in the input any more")
    row("documents", summary["documents"])
    row("prompt tokens", prompt_tokens, f"longest prompt {summary['longest_prompt_tokens']:,}")
    row(
        "  shared", summary["shared_tokens"], f"{summary['shared_tokens'] / prompt_tokens:.1%}" if prompt_tokens else ""
    )
    row("minimum tokens", summary["minimum_tokens"], "the least that must be computed")
    smallest = summary["smallest_kv_bytes"]
    row("smallest KV memory", smallest["bfloat16"], f"bytes in bfloat16; {smallest['float32']:,} in float32")
    console.print(table)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", soft_wrap=True)
    for rejected in summary["rejected_rows"][:SHOWN_REJECTED_ROWS]:
        key = f"{rejected['doc_id']} / {rejected['question_id']}"
        console.print(f"{rejected['status']}: {key}: {rejected['error']}", soft_wrap=True)
    more = len(summary["rejected_rows"]) - SHOWN_REJECTED_ROWS
    if more > 0:
        console.print(f"and {more} more rows that can't run; --json lists all")
    console.print(f"model {summary['model']}, answers to {summary['database']}", soft_wrap=True)
