"""What keys and values in 8 bits change: answers, memory and time, run by turns in one process.

python benchmarks/kv_dtype.py [--workload sample] [--size N] [--kv int8] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine as _engine  # noqa: F401, I001  # before torch, for what it sets
import numpy as np
import torch

from benchmarks.run import measure
from benchmarks.workloads import WORKLOADS, write_job
from engine.kv_check import PROBE_TEXT, mean_divergence
from engine.kv_memory import kv_page_bytes, kv_value_bytes
from jobs.job_file import load_job
from jobs.model import choose_dtype, engine_settings, load_decoder, make_engine_of
from jobs.run import prepare


def main() -> None:
    """Print one line a format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="sample")
    parser.add_argument("--size", type=int)
    parser.add_argument("--kv", choices=("int8", "fp8"), default="int8")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(write_job(options.workload, options.size, Path(folder), []), [])
        prepared = prepare(job)
    dtype = choose_dtype("auto", "cpu")
    decoder = load_decoder(prepared.model, dtype, "cpu")
    ids = np.array(prepared.model.tokenizer.encode(PROBE_TEXT, add_special_tokens=False))
    error = mean_divergence(decoder, ids, options.kv, dtype, "cpu")
    print(f"{options.kv} against {dtype}: {error:.5f} nats a token on {len(ids)} tokens")
    seconds: dict[str, list[float]] = {"auto": [], options.kv: []}
    parts: dict[str, list[tuple[float, float]]] = {"auto": [], options.kv: []}
    answers, page_bytes, valid = {}, {}, {}
    for _ in range(options.repeats):
        for name in seconds:
            settings = replace(engine_settings(job, prepared.model, prepared.plan, dtype, "cpu"), kv_dtype=name)
            engine = make_engine_of(decoder, prepared.model, settings, dtype, "cpu")
            figures, answers[name] = measure(engine, prepared, ordered=True)
            seconds[name].append(figures["seconds"])
            parts[name].append((figures["prefill_seconds"], figures["decode_seconds"]))
            valid[name] = figures["valid"]
            page_bytes[name] = kv_page_bytes(engine.config, settings.page_size, kv_value_bytes(name, dtype.itemsize))
            del engine
    for name, times in seconds.items():
        prefill, decode = (statistics.median(part) for part in zip(*parts[name], strict=True))
        print(
            f"{name:5} {statistics.median(times):7.2f} s median of {[round(time, 2) for time in times]}, prefill "
            f"{prefill:.2f} s, decode {decode:.2f} s; {page_bytes[name]:,} bytes a page; {valid[name]} rows valid"
        )
    same = sum(answers["auto"][row] == answers[options.kv][row] for row in answers["auto"])
    time_ratio = statistics.median(seconds[options.kv]) / statistics.median(seconds["auto"])
    print(
        f"time x{time_ratio:.3f}, memory x{page_bytes[options.kv] / page_bytes['auto']:.3f}; "
        f"{same} of {len(answers['auto'])} answers are the same"
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
