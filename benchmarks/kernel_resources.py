"""Compiles every Triton kernel for cards that need not be here, and prints what each takes.

    python benchmarks/kernel_resources.py [--model NAME ...] [--capability 80 ...] [--json FILE]

Exit 1 if a kernel spills registers or needs more shared memory than the card has.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.kv_quantization import KV_DTYPES, LEAST_FP8_CAPABILITY
from engine.triton.ahead_of_time import SHARED_MEMORY_BYTES, compile_kernel
from engine.triton.builds import MODEL_SHAPES, kernels_of

VARIANTS = {
    "plain": {},
    "windows": {"windowed": True},
    "windows and soft caps": {"windowed": True, "soft_capped": True},
}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODEL_SHAPES, help="all by default")
    parser.add_argument("--capability", action="append", type=int, choices=SHARED_MEMORY_BYTES, help="80 and 90")
    parser.add_argument("--kernel", action="append", help="those whose names begin so; all by default")
    parser.add_argument("--variant", default="plain", choices=VARIANTS)
    parser.add_argument("--element", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--kv", default="auto", choices=("auto", *KV_DTYPES), help="fp8 needs capability 89 or more")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    options = parser.parse_args()
    table = []
    print(f"{'model':13} {'card':6} {'kernel':17} {'registers':>9} {'spilled':>8} {'shared memory':>16}")
    for model in options.model or MODEL_SHAPES:
        for capability in options.capability or (80, 90):
            limit = SHARED_MEMORY_BYTES[capability]
            if options.kv == "fp8" and capability < LEAST_FP8_CAPABILITY:
                continue
            kv, variant = KV_DTYPES.get(options.kv), VARIANTS[options.variant]
            for kernel in kernels_of(MODEL_SHAPES[model], capability, options.element, kv=kv, **variant):
                if not kernel.name.startswith(tuple(options.kernel or [""])):
                    continue
                taken = compile_kernel(kernel, capability)
                fits = taken.spilled_bytes == 0 and taken.shared_bytes <= limit
                table.append(
                    {"model": model, "capability": capability, "kernel": kernel.name, "fits": fits} | asdict(taken)
                )
                print(
                    f"{model:13} sm_{capability:<3} {kernel.name:17} {taken.registers:9} {taken.spilled_bytes:8} "
                    f"{taken.shared_bytes:8}/{limit}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return 0 if all(entry["fits"] for entry in table) else 1


if __name__ == "__main__":
    sys.exit(main())
