"""Checks of the machine: versions, device, disk."""

from __future__ import annotations

import fcntl
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
from packaging.requirements import Requirement

from docqa import __version__
from docqa.doctor_check import FAIL, OK, WARN, Check
from docqa.wording import bytes_text
from engine.errors import ModelError
from jobs.job_settings import ModelSettings
from jobs.model import check_kv_device, choose_device, choose_dtype
from jobs.store_connection import STORAGE_VERSION

if TYPE_CHECKING:
    import torch

LOW_DISK_BYTES = 1 << 30
NO_DISK_BYTES = 100 << 20
"""Below these, a night's answers may not fit, or surely won't."""


def check_versions() -> list[Check]:
    """Whether what docqa needs is installed in versions it knows, and who can read its databases."""
    try:
        wrong = list(_wrong_packages(requires("docqa") or []))
    except PackageNotFoundError:
        return [Check("versions", WARN, "docqa is not installed as a package", "install it with pip, as README says")]
    text = f"docqa {__version__}, Python {platform.python_version()}"
    if wrong:
        packages = " ".join(f"'{requirement}'" for requirement, _ in wrong)
        found = ", ".join(f"{requirement} is needed, {there}" for requirement, there in wrong)
        checks = [Check("versions", FAIL, f"{text}: {found}", f"pip install {packages}")]
    else:
        checks = [Check("versions", OK, f"{text}, and every package in a version that fits")]
    oldest = STORAGE_VERSION.removeprefix("v").removesuffix(".0")
    readers = f"DuckDB {duckdb.__version__}; the databases can be read by DuckDB {oldest} and newer"
    return [*checks, Check("duckdb", OK, readers)]


def check_device(settings: ModelSettings, kv_dtype: str = "auto") -> tuple[Check, str | None, torch.dtype | None]:
    """The device and number format that a run would choose; None for both if it could not."""
    import torch

    from engine.native import unavailable_reason

    try:
        device = choose_device(settings.device)
    except ModelError as error:
        return Check("device", FAIL, str(error), "set model.device to auto"), None, None
    try:
        check_kv_device(kv_dtype, settings.dtype, device)
    except ModelError as error:
        return Check("device", FAIL, str(error), "set engine.kv_dtype to auto"), None, None
    dtype = choose_dtype(settings.dtype, device)
    kind = str(dtype).removeprefix("torch.")
    if device != "cpu":
        return Check("device", OK, f"{device} ({torch.cuda.get_device_name(device)}), {kind}"), device, dtype
    text = f"cpu, {torch.get_num_threads()} threads, {kind}"
    reason = unavailable_reason(dtype)
    if reason is None:
        return Check("device", OK, f"{text}, native kernels"), device, dtype
    if "not built" in reason:
        advice = "install a C compiler and install docqa again; on most CPUs runs are faster then"
        return Check("device", WARN, f"{text}: {reason}", advice), device, dtype
    return Check("device", OK, f"{text}; {reason}, so torch does the work"), device, dtype


def check_disk(name: str, folder: Path, *, must_exist: bool = False) -> Check:
    """Whether a folder can be written to, holds locks and has room.

    One that is not there is not made; unless it `must_exist`, the nearest folder above stands for it.
    """
    there = folder.absolute()
    if must_exist and not there.is_dir():
        return Check(name, FAIL, f"the folder {there} does not exist", f"mkdir -p {there}")
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            fcntl.flock(probe.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = shutil.disk_usage(there).free
    except OSError as error:
        advice = f"let this user write to {there}, or choose a folder on a local disk"
        return Check(name, FAIL, f"{there} can't be written to and locked: {error.strerror}", advice)
    text = f"{bytes_text(free)} free at {there}"
    if free < LOW_DISK_BYTES:
        status = FAIL if free < NO_DISK_BYTES else WARN
        return Check(name, status, f"only {text}", "free some space; docqa compact makes a database smaller")
    return Check(name, OK, text)


def _wrong_packages(needed: list[str]) -> Iterator[tuple[str, str]]:
    """Requirements that are not met, each with what is there instead."""
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            there = version(requirement.name)
        except PackageNotFoundError:
            yield wanted, "and it is not installed"
            continue
        if not requirement.specifier.contains(there, prereleases=True):
            yield wanted, f"and {there} is installed"
