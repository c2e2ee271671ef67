#!/bin/sh
# Checks and measures the GPU path in at most six minutes: every kernel against the fp32 reference, CUDA graphs against
# none, attention against the card's own bandwidth and matrix peak, and a 7B-shaped model on a shared-document workload.
# Needs torch, triton and transformers only. Prints a table last, and writes gpu_check.json to $OUT (default: here).
# With --smoke it runs tiny sizes on the CPU, in Triton's interpreter, to try the script itself.
cd "$(dirname "$0")/.." || exit 2
exec "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
