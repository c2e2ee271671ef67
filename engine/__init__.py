"""A radix-cached LLM engine for CPU and GPU."""

import os

# OpenMP's idle threads spin by default, waiting for the next piece of work. On a machine where anything else runs,
# they take the processor from the thread they wait for: beside one busy process, a job took 129 s with spinning and
# 10 s without. The variable is read when torch is first imported, so it is set before; the user's own value wins.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
