"""One command for named workloads: python benchmarks/run.py contracts [--without drafts,order] [--ablation] [--json].

Prints rows and tokens per second, computed against least tokens, latencies, how full steps were, pages at peak, and
how much of the machine's measured matrix-product rate was reached. Everything is measured in this one process.
Processor seconds are of all its threads: they hardly move when the machine has other work, which seconds do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine as _engine  # noqa: F401, I001  # before torch, for what it sets
import numpy as np
import torch

from benchmarks.workloads import WORKLOADS, write_job
from engine.engine import Engine
from engine.kv_memory import kv_page_bytes
from engine.model_config import ModelConfig
from engine.request import Completion, FinishReason, Request, SamplingParameters
from jobs.job_file import load_job
from jobs.model import choose_dtype, engine_settings, load_decoder, make_engine_of
from jobs.run import PreparedJob, prepare

SWITCHES = {
    "drafts": {"drafts": False},
    "shared-prefix": {"share_prefixes": False},
    "reuse": {"reuse": False},
    "native": {"attention": "torch"},
    "overlap": {"overlap": False},
    "order": {},
    "confidence": {},
    "determinism": {"deterministic": False},
}
"""What can be left out, and the engine settings that do it; the order is left out by running rows as they came, and
confidence by not asking for it."""


def main() -> None:
    """Run the workload of the command line, once or in all variants."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["[model]", f'dtype = "{arguments.dtype}"'] if arguments.dtype else []
        job = load_job(write_job(arguments.workload, arguments.size, Path(folder), settings), arguments.set)
        prepared = prepare(job)
    model = prepared.model
    if arguments.export:
        export(prepared, Path(arguments.export))
        return
    dtype = choose_dtype(job.model.dtype, "cpu")
    decoder = load_decoder(model, dtype, "cpu")
    peak = matrix_product_flops(dtype)
    leave_out = [name for name in (arguments.without or "").split(",") if name]
    switches = [name for name in SWITCHES if name != "determinism"]
    variants = [leave_out] if not arguments.ablation else [[], *([name] for name in switches)]
    if arguments.compare:
        variants = [[], leave_out]
    first_answers: dict[int, list[int]] | None = None
    for without in variants * arguments.repeat:
        settings = engine_settings(job, model, prepared.plan, dtype, "cpu")
        for name in without:
            settings = replace(settings, **SWITCHES[name])
        if arguments.warm:
            settings = replace(settings, keep_unneeded=True)
        if arguments.pool:
            pages = max(round(settings.kv_pages * arguments.pool), _pages_of_longest_row(prepared, settings.page_size))
            settings = replace(settings, kv_pages=pages)
        engine = make_engine_of(decoder, model, settings, dtype, "cpu")
        for temperature in ("cold", "warm")[: 1 + arguments.warm]:
            result, answers = measure(
                engine, prepared, ordered="order" not in without, confidence="confidence" not in without
            )
            first_answers = first_answers or answers
            result["rows_that_differ"] = sum(answers[i] != first_answers[i] for i in answers)
            result |= {"workload": arguments.workload, "without": without, "cache": temperature, "dtype": str(dtype)}
            result["peak_share"] = result["flops"] / result["seconds"] / peak
            result["peak_gflops"] = peak / 1e9
            print(json.dumps(result) if arguments.json else table(result), flush=True)
        del engine


def _pages_of_longest_row(prepared: PreparedJob, page_size: int) -> int:
    """KV pages that the longest row needs; with fewer it could never run."""
    longest = max(len(planned.prompt) for planned in prepared.plan.rows)
    return -(-(longest + prepared.job.sampling.max_tokens - 1) // page_size)


def export(prepared: PreparedJob, path: Path) -> None:
    """Write the prompts as text, in input order, in the form that the scripts of ../shared/peers read."""
    tokenizer = prepared.model.tokenizer
    place = {id(row): index for index, row in enumerate(prepared.data.rows)}
    planned = sorted(prepared.plan.rows, key=lambda planned: place[id(planned.row)])
    rows = [
        {"id": f"{row.row.doc_id}/{row.row.question_id}", "prompt": tokenizer.decode(row.prompt.tolist())}
        for row in planned
    ]
    content = {
        "schema": planned[0].schema.schema,
        "rows": rows,
        "prompt_tokens": prepared.plan.prompt_tokens,
        "minimum_tokens": prepared.plan.minimum_tokens,
    }
    path.write_text(json.dumps(content))


def measure(
    engine: Engine, prepared: PreparedJob, *, ordered: bool, confidence: bool = True
) -> tuple[dict[str, Any], dict[int, list[int]]]:
    """Answer every row of the plan once; `ordered` False runs the rows as the input has them.

    `confidence` asks for the probability of every token, as jobs do unless told otherwise.
    Returns the figures, and the output tokens by the row's place in the plan.
    """
    planned = prepared.plan.rows
    place = {id(row): index for index, row in enumerate(prepared.data.rows)}
    order = range(len(planned)) if ordered else sorted(range(len(planned)), key=lambda i: place[id(planned[i].row)])
    sampling = SamplingParameters(max_tokens=prepared.job.sampling.max_tokens)
    requests = [
        Request(
            i,
            planned[i].prompt,
            sampling,
            planned[i].schema.grammar,
            planned[i].schema.grammar.shortest_tokens,
            log_probabilities=confidence,
        )
        for i in order
    ]
    before = replace(engine.statistics)
    started, processor_started = time.perf_counter(), time.process_time()
    completions = engine.submit(requests)
    first_token_seconds = None
    prompt_seconds, prompt_flops = 0.0, 0
    decode_processor_seconds = 0.0
    while engine.has_work:
        decode_seconds, step_started = engine.statistics.decode_seconds, time.process_time()
        completions += engine.step()
        if engine.last_step is not None:
            prompt_seconds += engine.last_step.prompt_seconds
            prompt_flops += engine.last_step.prompt_flops
        if engine.statistics.decode_seconds > decode_seconds:
            decode_processor_seconds += time.process_time() - step_started
        if first_token_seconds is None and completions:
            first_token_seconds = time.perf_counter() - started
    seconds = time.perf_counter() - started
    processor_seconds = time.process_time() - processor_started
    engine.check()
    figures = _figures(engine, prepared, completions, seconds, first_token_seconds, before)
    # As docqa report derives it; with --compare --without reuse it stands beside what computing everything took.
    saved_flops = sum(engine.work.flops(0, completion.cached_tokens) for completion in completions)
    figures["prompt_seconds"] = prompt_seconds
    figures["saved_seconds"] = prompt_seconds * saved_flops / prompt_flops if prompt_flops else 0.0
    figures |= {"processor_seconds": processor_seconds, "decode_processor_seconds": decode_processor_seconds}
    return figures, {completion.request_id: completion.output_tokens for completion in completions}


def _figures(
    engine: Engine,
    prepared: PreparedJob,
    completions: list[Completion],
    seconds: float,
    first: float | None,
    before: Any,
) -> dict[str, Any]:
    vocabulary = prepared.model.grammars.vocabulary
    texts = {
        c.request_id: b"".join(vocabulary.tokens[token] for token in c.output_tokens).decode(errors="replace")
        for c in completions
    }
    planned = prepared.plan.rows
    valid = sum(
        c.finish_reason is FinishReason.STOP
        and planned[c.request_id].schema.validator.check(texts[c.request_id]).error is None
        for c in completions
    )
    after = engine.statistics
    steps = after.steps - before.steps
    step_rows = after.step_rows - before.step_rows
    output_tokens = sum(len(c.output_tokens) for c in completions)
    minimum = prepared.plan.minimum_tokens
    return {
        "rows": len(completions),
        "valid": valid,
        "seconds": seconds,
        "rows_per_second": len(completions) / seconds,
        "prompt_tokens": prepared.plan.prompt_tokens,
        "prompt_tokens_per_second": prepared.plan.prompt_tokens / seconds,
        "computed_tokens": sum(c.computed_tokens for c in completions),
        "minimum_tokens": minimum,
        "output_tokens": output_tokens,
        "output_tokens_per_second": output_tokens / seconds,
        "first_answer_seconds": first,
        **_latencies(completions),
        "steps": steps,
        "rows_per_step": step_rows / max(steps, 1),
        "prefill_seconds": after.prefill_seconds - before.prefill_seconds,
        "decode_seconds": after.decode_seconds - before.decode_seconds,
        "mask_seconds": after.mask_seconds - before.mask_seconds,
        "log_probability_seconds": after.log_probability_seconds - before.log_probability_seconds,
        "drafted_tokens": after.drafted_tokens - before.drafted_tokens,
        "accepted_tokens": after.accepted_tokens - before.accepted_tokens,
        "peak_pages": after.peak_pages,
        "pages": engine.settings.kv_pages,
        "peak_kv_bytes": after.peak_pages * kv_page_bytes(engine.config, engine.settings.page_size, 2),
        "flops": _flops(engine.config, completions, planned, step_rows),
    }


def _latencies(completions: list[Completion]) -> dict[str, float]:
    values = {}
    for name in ("ttft_seconds", "latency_seconds"):
        seconds = [getattr(c, name) for c in completions if getattr(c, name) is not None]
        for share in (50, 95):
            values[f"{name}_p{share}"] = float(np.percentile(seconds, share)) if seconds else 0.0
    return values


def _flops(config: ModelConfig, completions: list[Completion], planned: Any, step_rows: int) -> float:
    """Multiply-adds of what had to be computed, twice: the layers' products, the head, and attention over all keys."""
    heads = config.heads * config.head_size
    layer = config.hidden_size * (2 * heads + 2 * config.kv_heads * config.head_size + 3 * config.intermediate_size)
    total = 2.0 * step_rows * config.layers * layer
    for c in completions:
        length = c.prompt_tokens
        attended = c.computed_tokens * (c.cached_tokens + c.computed_tokens / 2) + len(c.output_tokens) * length
        total += 4.0 * attended * heads * config.layers
        total += 2.0 * len(c.output_tokens) * config.hidden_size * config.vocabulary_size
    return total


def matrix_product_flops(dtype: torch.dtype) -> float:
    """The measured rate of large matrix products in this dtype, in flops a second: the best of several runs."""
    left, right = torch.randn(1024, 1536, dtype=dtype), torch.randn(1536, 1536, dtype=dtype)
    rates = []
    for _ in range(12):
        started = time.perf_counter()
        for _ in range(4):
            left @ right
        rates.append(4 * 2 * 1024 * 1536 * 1536 / (time.perf_counter() - started))
    return statistics.quantiles(rates, n=10)[-1]


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    without = f" without {', '.join(result['without'])}" if result["without"] else ""
    accepted = result["accepted_tokens"] / result["drafted_tokens"] if result["drafted_tokens"] else 0.0
    return (
        f"{result['workload']}{without}, {result['cache']}, {result['dtype']}: {result['seconds']:.1f} s "
        f"({result['processor_seconds']:.1f} s of processors), {result['rows']} rows ({result['valid']} valid), "
        f"{result['rows_per_second']:.2f} rows/s\n"
        f"  prompt {result['prompt_tokens']:,} tokens ({result['prompt_tokens_per_second']:,.0f}/s), computed "
        f"{result['computed_tokens']:,} / least {result['minimum_tokens']:,} = "
        f"{result['computed_tokens'] / result['minimum_tokens']:.3f}; output {result['output_tokens']:,} tokens\n"
        f"  steps {result['steps']} of {result['rows_per_step']:.0f} rows; prefill {result['prefill_seconds']:.1f} s, "
        f"decode {result['decode_seconds']:.1f} s ({result['decode_processor_seconds']:.1f} of processors); "
        f"drafts {result['drafted_tokens']:,}, {accepted:.0%} right\n"
        f"  computing prompts {result['prompt_seconds']:.1f} s, and by reuse saved {result['saved_seconds']:.1f} s: "
        f"{result['prompt_seconds'] + result['saved_seconds']:.1f} s without it\n"
        f"  first token p50/p95 {result['ttft_seconds_p50']:.2f}/{result['ttft_seconds_p95']:.2f} s, answer "
        f"{result['latency_seconds_p50']:.2f}/{result['latency_seconds_p95']:.2f} s; pages at peak "
        f"{result['peak_pages']:,} of {result['pages']:,}; {result['peak_share']:.0%} of the matrix-product rate "
        f"({result['peak_gflops']:.0f} GFLOP/s)\n"
        f"  rows that differ from the first run: {result['rows_that_differ']}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--size", type=int, help="documents or questions, instead of the workload's own number")
    parser.add_argument("--without", help=f"leave out, comma-separated: {', '.join(SWITCHES)}")
    parser.add_argument("--ablation", action="store_true", help="everything, then without each switch in turn")
    parser.add_argument("--compare", action="store_true", help="run with everything, then without what --without names")
    parser.add_argument("--repeat", type=int, default=1, help="run the variants so many times, in turn")
    parser.add_argument("--export", metavar="FILE", help="write the prompts as text for other engines, and stop")
    parser.add_argument(
        "--pool", type=float, help="KV pages as a share of what the work could use, or what the longest row needs"
    )
    parser.add_argument("--warm", action="store_true", help="run again on the warm cache")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any job setting")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    return parser.parse_args()


if __name__ == "__main__":
    main()
