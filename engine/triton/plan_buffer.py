"""Brings a unit plan to the device in one copy, into memory made for it or into memory of fixed size and place."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention_units import UNIT_FIELDS, ItemColumns, UnitPlan
from engine.device_stream import stream_of

_ALIGNMENT = 4  # int32 values: Triton compiles a kernel anew for a pointer that is not aligned to 16 bytes


@dataclass(frozen=True)
class PlanSizes:
    """How many of each thing a plan has, or memory has room for."""

    small_units: int
    large_units: int
    targets: int
    rows: int
    merge_rows: int
    merge_parts: int
    pages: int

    @classmethod
    def of(cls, plan: UnitPlan, items: ItemColumns) -> PlanSizes:
        """The sizes of a plan."""
        small, large = plan.units_of_tile
        return cls(
            small,
            large,
            len(plan.targets),
            len(items.positions),
            len(plan.merge_rows),
            plan.partial_rows,
            len(items.pages),
        )

    def hold(self, other: PlanSizes) -> bool:
        """Whether there is room for all of `other`."""
        return all(mine >= theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))


@dataclass(frozen=True)
class DevicePlan:
    """What the attention kernels read, int32 on the device. Units of no rows and merge rows of -1 are padding."""

    units: tuple[Tensor, Tensor]  # of small and of large tiles, [units, UNIT_FIELDS]
    targets: Tensor
    positions: Tensor
    merge_rows: Tensor
    merge_starts: Tensor
    merge_parts: Tensor
    pages: Tensor


class PlanBuffer:
    """Room for plans of `sizes`; each plan sent overwrites the last, at the same addresses."""

    def __init__(self, sizes: PlanSizes, device: torch.device) -> None:
        self.sizes = sizes
        lengths = (
            sizes.small_units * UNIT_FIELDS,
            sizes.large_units * UNIT_FIELDS,
            sizes.targets,
            sizes.rows,
            sizes.merge_rows,
            sizes.merge_rows + 1,
            sizes.merge_parts,
            sizes.pages,  # last, so that unused room for pages is not sent
        )
        ends = np.cumsum([-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths]).tolist()
        self._starts = [0, *ends[:-1]]
        self._host = np.zeros(ends[-1], dtype=np.int32)
        self._device = torch.empty(ends[-1], dtype=torch.int32, device=device)
        parts = [self._device[start : start + length] for start, length in zip(self._starts, lengths, strict=True)]
        self.plan = DevicePlan(
            (parts[0].view(-1, UNIT_FIELDS), parts[1].view(-1, UNIT_FIELDS)),
            *parts[2:],
        )

    def send(self, plan: UnitPlan, items: ItemColumns) -> DevicePlan:
        """Send a plan that the sizes hold. The copy is ordered with what is launched after it."""
        used = PlanSizes.of(plan, items)
        assert self.sizes.hold(used)
        arrays = (
            plan.units[: used.small_units],
            plan.units[used.small_units :],
            plan.targets,
            items.positions,
            plan.merge_rows,
            plan.merge_starts,
            plan.merge_parts,
            items.pages,
        )
        host = self._host
        pages_start = self._starts[-1]
        host[:pages_start] = 0
        host[self._starts[4] : self._starts[5]] = -1
        for array, start in zip(arrays, self._starts, strict=True):
            host[start : start + array.size] = array.reshape(-1)
        end = pages_start + used.pages
        stream_of(self._device.device).send(host[:end], self._device[:end])
        return self.plan
