"""How the host and the device that runs the model hand each other arrays, so that neither waits without need.

A GPU runs what it is given in order, while the host goes on. What the host sends must therefore lie in pinned memory
that stays as it is until the copy is done, and what it fetches is there only after a wait: the one wait of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 256
_LEAST_BYTES = 1 << 20


class Fetched(Protocol):
    """Arrays on their way from the device."""

    def wait(self) -> list[np.ndarray]:
        """The arrays, once everything launched before the fetch is done."""


class DeviceStream(Protocol):
    """A device's queue of work, as the engine uses it."""

    @property
    def runs_ahead(self) -> bool:
        """Whether what is launched runs while the host goes on."""

    def begin_step(self) -> None:
        """What is sent from here on belongs to a new step."""

    def send(self, array: np.ndarray, target: Tensor | None = None) -> Tensor:
        """`array` on the device, in `target` (same shape and dtype) or in memory of its own. The caller may change a
        contiguous `array` at once if the stream runs ahead; else a result without `target` shares its memory."""

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """Start to bring tensors to the host."""


class HostStream:
    """The CPU: everything is done when the call returns."""

    runs_ahead = False

    def begin_step(self) -> None:
        """See `DeviceStream`."""

    def send(self, array: np.ndarray, target: Tensor | None = None) -> Tensor:
        """See `DeviceStream`."""
        tensor = torch.from_numpy(array)
        return tensor if target is None else target.copy_(tensor)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """See `DeviceStream`."""
        return _There([tensor.numpy() for tensor in tensors])


class _There:
    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays

    def wait(self) -> list[np.ndarray]:
        return self._arrays


class Event(Protocol):
    """A mark in a device's queue, as torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether everything before it is done."""

    def synchronize(self) -> None:
        """Wait until it is."""


class Staging:
    """Host memory that copies to the device are read from: two sets by turns, one of the step that is launched and one
    of the step before. A set is written again only when the copies from it are done."""

    def __init__(self, allocate: Callable[[int], Tensor], mark: Callable[[], Event]) -> None:
        """`allocate` gives uint8 [bytes] of host memory, `mark` an event after all copies launched so far."""
        self._allocate = allocate
        self._mark = mark
        self._sets = [_StagingSet(allocate(_LEAST_BYTES)) for _ in range(2)]
        self._turn = 0

    def begin_step(self) -> None:
        """Go over to the other set. Waits if the copies from it are not done: only when the host is two steps ahead."""
        self._sets[self._turn].copied = self._mark()
        self._turn = 1 - self._turn
        current = self._sets[self._turn]
        if current.copied is not None and not current.copied.query():
            current.copied.synchronize()
        current.used = 0
        current.outgrown.clear()

    def hold(self, array: np.ndarray) -> Tensor:
        """A copy of `array` in the current set, of the same shape and dtype."""
        current = self._sets[self._turn]
        if current.used + array.nbytes > len(current.memory):
            current.outgrown.append(current.memory)  # copies may still read it
            current.memory = self._allocate(max(2 * len(current.memory), array.nbytes))
            current.used = 0
        source = torch.from_numpy(np.ascontiguousarray(array))
        part = current.memory[current.used : current.used + array.nbytes].view(source.dtype).view(source.shape)
        part.copy_(source)
        current.used += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return part


class _StagingSet:
    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.used = 0
        self.outgrown: list[Tensor] = []
        self.copied: Event | None = None


class CudaStream:
    """A GPU's current stream."""

    runs_ahead = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._staging = Staging(lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True), self._mark)

    def begin_step(self) -> None:
        """See `DeviceStream`."""
        self._staging.begin_step()

    def send(self, array: np.ndarray, target: Tensor | None = None) -> Tensor:
        """See `DeviceStream`."""
        held = self._staging.hold(array)
        if target is None:
            target = torch.empty(held.shape, dtype=held.dtype, device=self._device)
        return target.copy_(held, non_blocking=True)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """See `DeviceStream`."""
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        return _OnTheWay(hosts, self._mark())

    def _mark(self) -> Event:
        return torch.cuda.current_stream(self._device).record_event()


class _OnTheWay:
    def __init__(self, hosts: list[Tensor], done: Event) -> None:
        self._hosts = hosts
        self._done = done

    def wait(self) -> list[np.ndarray]:
        self._done.synchronize()
        return [host.numpy() for host in self._hosts]


@cache
def stream_of(device: torch.device) -> DeviceStream:
    """The stream that everything for this device goes through."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
