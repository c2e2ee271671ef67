"""The GPU kernels, in Triton. Import its modules only where triton is: on Linux, and for CUDA or for the interpreter.

The same code runs in three ways: on a GPU, on the CPU in Triton's interpreter (set TRITON_INTERPRET=1 before triton is
imported), and compiled ahead of time for a card that is not there (engine/triton/ahead_of_time.py).
"""

from __future__ import annotations

from importlib.util import find_spec

import torch


def unavailable_reason(device: str) -> str | None:
    """Why Triton kernels cannot run on tensors of `device`, in words for a message; None if they can."""
    if find_spec("triton") is None:
        return "triton is not installed (pip install triton)"
    from triton import knobs

    if torch.device(device).type == "cpu" and not knobs.runtime.interpret:
        return "it runs on a GPU only, or in Triton's interpreter with TRITON_INTERPRET=1"
    return None
