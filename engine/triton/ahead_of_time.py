"""Compiles kernels for cards that are not here, and says what they take: registers, spills, shared memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_MEMORY_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448}
"""Most shared memory of one program, by compute capability (CUDA C++ Programming Guide, "Technical specifications")."""


@dataclass(frozen=True)
class Kernel:
    """One specialisation of a kernel. `arguments` has the type of each parameter that is no constant.

    Types are Triton's: "*bf16", "*fp32", "i32", "fp32"; pointers and the integers in `divisible` count as multiples of
    16, as they are when the engine launches the kernel.
    """

    name: str
    function: Any
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: Sequence[str] = ()
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes: registers a thread, bytes of stack a thread (spills), shared bytes a program."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def compile_kernel(kernel: Kernel, capability: int) -> Resources:
    """Compile for a card of compute capability 80, 90, ... No GPU is needed; the interpreter must be off."""
    signature = {name: kernel.arguments.get(name, "constexpr") for name in kernel.function.arg_names}
    constants = {(kernel.function.arg_names.index(name),): value for name, value in kernel.constants.items()}
    aligned = [name for name, kind in kernel.arguments.items() if kind.startswith("*") or name in kernel.divisible]
    attributes = {(kernel.function.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    compiled = triton.compile(
        ASTSource(kernel.function, signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": kernel.warps, "num_stages": kernel.stages},
    )
    registers, stack = _resource_usage(compiled.asm["cubin"])
    return Resources(registers, stack, compiled.metadata.shared)


def _resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack and local memory a thread, by the cuobjdump that comes with Triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        output = subprocess.run(
            [tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", output)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]
