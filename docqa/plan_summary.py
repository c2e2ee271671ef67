"""A plan as JSON-ready values: `docqa plan --json` prints them, and `plan_view` makes them readable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from docqa.plan_warnings import plan_warnings, time_warnings
from engine.forward_work import ForwardWork
from engine.kv_memory import SCALE_BYTES, kv_page_bytes, kv_pages_in
from engine.scheduler import MAX_ROWS
from jobs.kv_forecast import expected_peak_pages
from jobs.prepare import PreparedJob
from jobs.shared_parts import SharedPart, segment_names, shared_parts
from jobs.time_estimate import PlannedWork, speed_setting, time_estimate
from jobs.what_if import TooLargeToSimulate, simulation

BYTES_PER_VALUE = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "fp8": 1}
"""Of the types that KV can have."""

WORTH_SHOWING = 0.005
"""A shared part that saves less than this share of all that is saved is left out."""

SHOWN_DEPTH = 3
SHOWN_PARTS = 8
"""Levels of the tree of shared parts, and parts that continue one part."""


def plan_summary(prepared: PreparedJob, *, prepare_seconds: float) -> dict[str, Any]:
    """Everything that `docqa plan` says of a job, but what other caches would do; `prepare` took `prepare_seconds`."""
    plan, data = prepared.plan, prepared.data
    prompt_tokens, minimum_tokens = plan.prompt_tokens, plan.minimum_tokens
    dtype = kv_dtype(prepared)
    estimate = _time_estimate(prepared, prepare_seconds)
    return {
        "job": prepared.job.name,
        "model": prepared.model.source.name,
        "database": str(prepared.database),
        "files": len(data.files),
        "layout": data.layout,
        "rows": plan.total_rows,
        "rows_to_run": plan.rows_to_run,
        "rows_waiting": len(plan.dependents),
        "waiting_known_tokens": plan.dependent_known_tokens,
        "rows_identical": plan.rows_same,
        "rows_cut": plan.rows_cut,
        "rows_split": plan.rows_split,
        "piece_calls": plan.piece_calls,
        "rows_sampled": plan.rows_sampled,
        "sample_calls": plan.sample_calls,
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
        "minimum_tokens": minimum_tokens,
        "shared_tokens": prompt_tokens - minimum_tokens,
        "hit_share": (prompt_tokens - minimum_tokens) / prompt_tokens if prompt_tokens else None,
        "longest_prompt_tokens": max((planned.prompt_tokens for planned in plan.rows), default=0),
        "input_order": _input_order(prepared, dtype),
        **_kv_memory(prepared, dtype),
        "schemas": prepared.schemas.compiled(),
        "shared_parts": _shared_parts(prepared),
        "time_estimate": estimate,
        "warnings": plan_warnings(prepared, BYTES_PER_VALUE[dtype]) + time_warnings(prepared, estimate),
        "bad_files": [{"file": name, "reason": reason} for name, reason in data.bad_files],
    }


def kv_dtype(prepared: PreparedJob) -> str:
    """What KV is counted in: the job's kv_dtype, else its dtype; for `auto`, which depends on the device, bfloat16."""
    if prepared.job.engine.kv_dtype != "auto":
        return prepared.job.engine.kv_dtype
    dtype = prepared.job.model.dtype
    return dtype if dtype in BYTES_PER_VALUE else "bfloat16"


def _kv_memory(prepared: PreparedJob, dtype: str) -> dict[str, Any]:
    """Bytes count the null page in, as engine.kv_memory does."""
    plan, config, page_size = prepared.plan, prepared.model.config, prepared.job.engine.page_size
    peak, smallest = expected_peak_pages(plan, page_size), plan.pages_for_longest_row(page_size)
    page_bytes = {name: kv_page_bytes(config, page_size, size) for name, size in BYTES_PER_VALUE.items()}
    per_token = page_bytes[dtype] // page_size
    head = f"{config.head_size} x {BYTES_PER_VALUE[dtype]} bytes"
    if BYTES_PER_VALUE[dtype] == 1:
        head = f"({config.head_size} bytes and a scale of {SCALE_BYTES})"
    return {
        "kv_dtype": dtype,
        "kv_bytes_per_token": per_token,
        "kv_bytes_per_token_derived": (
            f"keys and values x {config.layers} layers x {config.kv_heads} KV heads x {head}"
        ),
        "rows_at_a_time": MAX_ROWS,
        "peak_kv_pages": peak,
        "peak_kv_bytes": {name: (peak + 1) * size for name, size in page_bytes.items()},
        "smallest_kv_pages": smallest,
        "smallest_kv_bytes": {name: (smallest + 1) * size for name, size in page_bytes.items()},
    }


def _input_order(prepared: PreparedJob, dtype: str) -> dict[str, Any] | None:
    """What the rows would compute in the order of the input, with a cache that gives up what was used longest ago.

    Its pool is the job's engine.kv_memory, or the smallest in which our order computes everything once. None where
    nothing runs; `computed_tokens` is None where the input is too large to simulate.
    """
    plan, page_size = prepared.plan, prepared.job.engine.page_size
    if not plan.rows:
        return None
    pages, memory = plan.pages_for_longest_row(page_size), prepared.job.engine.kv_memory
    if memory is not None:
        pages = max(pages, kv_pages_in(memory, prepared.model.config, page_size, BYTES_PER_VALUE[dtype]))
    try:
        simulated, notes = simulation(plan.rows, prepared.data.rows, page_size)
    except TooLargeToSimulate as error:
        return {"pool_pages": pages, "computed_tokens": None, "saved_tokens": None, "note": str(error)}
    computed = simulated.radix_recency(pages).computed_tokens
    ours = simulated.our_plan(pages).computed_tokens
    return {
        "pool_pages": pages,
        "computed_tokens": computed,
        "saved_tokens": computed - ours,
        "note": notes[0] if notes else None,
    }


def _time_estimate(prepared: PreparedJob, prepare_seconds: float) -> dict[str, Any] | None:
    """The run's time and how it is made up, in seconds; None where no run on this machine says how fast it is."""
    job = prepared.job
    work = ForwardWork.of(prepared.model.config)
    planned = PlannedWork.of(prepared.plan, work, job.sampling.max_tokens)
    setting = speed_setting(job, prepared.model)
    found = time_estimate(planned, work, setting)
    if found is None:
        return None
    if not prepared.plan.rows:  # then the model is not loaded
        found = replace(found, model_seconds=0.0)
    return {
        "seconds": prepare_seconds + found.seconds,
        "error": found.error,
        "runs": found.runs,
        "same_answers": found.same_answers,
        "machine": setting.machine,
        "prepare_seconds": prepare_seconds,
        "model_seconds": found.model_seconds,
        "prompt_seconds": found.prompt_seconds,
        "output_seconds": found.output_seconds,
        "other_seconds": found.other_seconds,
        "output_tokens": round(found.output_tokens * planned.requests),
    }


def _shared_parts(prepared: PreparedJob) -> dict[str, Any]:
    root = shared_parts(prepared.plan.rows)
    return _part_values(prepared, root, WORTH_SHOWING * root.saved_in_all, depth=0)


def _part_values(prepared: PreparedJob, part: SharedPart, least_saved: float, depth: int) -> dict[str, Any]:
    rows = prepared.plan.rows
    sharing = rows[part.first : part.first + part.rows]
    documents = {planned.row.document_hash: planned.row.doc_id for planned in reversed(sharing)}
    shown = _largest_below(part, least_saved) if depth < SHOWN_DEPTH else []
    return {
        "segments": segment_names(rows[part.first], part.start, part.end) if part.tokens else [],
        "rows": part.rows,
        "documents": len(documents),
        "doc_id": next(iter(documents.values())) if len(documents) == 1 else None,
        "tokens": part.tokens,
        "saved_tokens": part.saved_tokens,
        "saved_tokens_below": part.saved_below,
        "parts": [_part_values(prepared, below, least_saved, depth + 1) for below in shown],
        "saved_tokens_left_out": part.saved_below - sum(below.saved_in_all for below in shown),
    }


def _largest_below(part: SharedPart, least_saved: float) -> list[SharedPart]:
    """The parts below that save most. One that saves little itself, as two first words, gives way to those below it."""
    found, pending = [], list(part.children)
    while pending:
        below = pending.pop()
        if below.saved_in_all < least_saved:
            continue
        if below.saved_tokens >= least_saved:
            found.append(below)
        else:
            pending += below.children
    return sorted(found, key=lambda below: (-below.saved_in_all, below.first))[:SHOWN_PARTS]
