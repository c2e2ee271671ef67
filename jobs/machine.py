"""A name for machines of one speed: measured times count only where they were measured. Imports no torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_GPUS = Path("/proc/driver/nvidia/gpus")


def machine_name() -> str:
    """Processor, how many of its threads may be used, and GPUs: `AMD EPYC 9B14, 2 threads`.

    The host's name is left out: containers change it, and equal machines share their records where they share a home.
    """
    threads = os.environ.get("OMP_NUM_THREADS") or str(_usable_processors())
    gpus = sorted(filter(None, (_value(folder / "information", "Model") for folder in _folders(_GPUS))))
    return ", ".join([_processor(), f"{threads} threads", *gpus])


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    return _value(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _value(path: Path, name: str) -> str:
    """What stands behind `name:` in a file of /proc; empty if nothing does."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def _folders(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []
