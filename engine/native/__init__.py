"""The optional compiled kernels: C functions in a shared library beside this file, called through ctypes.

setup.py builds the library where a C compiler is found; without it, or on a CPU that lacks the instructions, callers
use torch instead. The library takes its OpenMP runtime from the process: two runtimes would keep two pools of threads
that spin against each other, so the copy that torch has loaded is made visible before the library is opened.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

ELEMENT_CODES = {torch.bfloat16: 0, torch.float32: 1}
"""How the library is told the element type."""

FUNCTIONS = (
    "docqa_add_rms_norm", "docqa_attention", "docqa_attention_bytes", "docqa_linear", "docqa_log_probabilities",
    "docqa_masked_argmax", "docqa_pack_weight", "docqa_rotate", "docqa_silu_multiply", "docqa_supports",
    "docqa_tile_rows", "docqa_workspace_bytes", "docqa_write_quantized", "docqa_write_slots",
)  # fmt: skip
"""What the library has, if it was built from the sources beside it."""

_LIBRARY_NAME = "_kernels"
_OPENMP_RUNTIMES = ("libgomp", "libiomp5", "libomp")  # each provides the GOMP entry points that gcc emits


def unavailable_reason(dtype: torch.dtype) -> str | None:
    """Why the kernels cannot run on `dtype` here, in words for a log; None if they can."""
    if dtype not in ELEMENT_CODES:
        return f"there is no native kernel for {dtype}"
    library, reason = _load()
    if library is None:
        return reason
    if not library.docqa_supports(ELEMENT_CODES[dtype]):
        needed = "AVX-512 with BF16" if dtype == torch.bfloat16 else "AVX-512"
        return f"this CPU lacks {needed} instructions"
    return None


def load_library() -> ctypes.CDLL:
    """The library; ask `unavailable_reason` first."""
    library, reason = _load()
    assert library is not None, reason
    return library


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and the reason."""
    path = _find_library(Path(__file__).parent)
    if path is None:
        return None, "the native kernels were not built (setup.py needs gcc)"
    runtime = _find_openmp_runtime()
    if runtime is None:
        return None, "torch has loaded no OpenMP runtime that the native kernels could share"
    try:
        ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"the native kernels cannot be loaded: {error}"
    if not all(hasattr(library, name) for name in FUNCTIONS):
        return None, "the native kernels were not built from these sources, an older version left them"
    return library, ""


def _find_library(directory: Path) -> Path | None:
    for suffix in EXTENSION_SUFFIXES:
        path = directory / (_LIBRARY_NAME + suffix)
        if path.exists():
            return path
    return None


def _find_openmp_runtime() -> str | None:
    """The path of the OpenMP runtime mapped into this process: torch's own copy if there are several."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # no Linux
        return None
    # The sixth field is the path, which may hold spaces.
    mapped = dict.fromkeys(fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6)
    runtimes = [path for path in mapped if Path(path).name.startswith(_OPENMP_RUNTIMES)]
    torch_directory = str(Path(torch.__file__).parent.parent)  # wheels keep it in torch/lib or torch.libs
    runtimes.sort(key=lambda path: not path.startswith(torch_directory))
    return runtimes[0] if runtimes else None
