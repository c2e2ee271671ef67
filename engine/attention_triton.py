"""The GPU backend: a layer's whole work list in two launches of one Triton kernel (engine/triton) and one to merge.

Tiles come in two sizes, one for decoding rows and one for all else. The cut into units and everything else the kernels
need goes to the device once a step and window size, as one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import triton
from torch import Tensor

from engine.attention_units import ItemColumns, UnitPlan, UnitRules, plan_units
from engine.kv_cache import KVCache
from engine.kv_quantization import LARGEST
from engine.triton.attention import attention_kernel, merge_kernel
from engine.triton.plan_buffer import DevicePlan, PlanBuffer, PlanSizes
from engine.work_list import WorkItem

LEAST_SPLIT_KEYS = 256
"""A unit of fewer keys costs more to start and to merge than it saves."""

TASKS_PER_PROCESSOR = 2
"""Programs that each multiprocessor should get in a layer, so that few are idle at the end."""

MERGED_HEADS = 4
"""Heads of a row that one program merges."""

LEAST_CAPABILITY = 80
"""Compute capability of the oldest cards with bf16 matrix units and asynchronous copies (Ampere)."""

_PROCESSORS_WITHOUT_GPU = 8


@dataclass(frozen=True)
class TileShape:
    """How one launch is shaped: packed rows and keys a block, and Triton's warps and pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


def tile_shapes(
    head_size: int, capability: int, *, is_fp32: bool = False, is_8_bit: bool = False
) -> tuple[TileShape, TileShape]:
    """The small tile, for at most 16 packed rows, and the large one, for cards of compute capability 80, 90, ...

    Chosen so that nothing spills and shared memory suffices: 99 KiB below capability 90, where cards have as little.
    Of five stages Triton spends three on reading page numbers first, so keys and values are two blocks deep. `is_fp32`
    is about queries, `is_8_bit` about keys and values, whose conversion takes registers.
    """
    if is_fp32:  # no matrix units: for models that ask for it, and for checks
        return TileShape(16, 16, 4, 3), TileShape(64, 16, 16, 3) if head_size <= 64 else TileShape(32, 16, 8, 3)
    if head_size <= 64:
        return TileShape(16, 64, 4, 5), TileShape(128, 64, 8, 5)
    if head_size <= 128:
        return TileShape(16, 64, 4, 5), TileShape(128, 64 if capability >= 90 else 32, 8, 5)
    if is_8_bit:
        return TileShape(16, 32, 4, 3), TileShape(64, 16 if capability >= 90 else 32, 8, 3)
    return TileShape(16, 32, 4, 5), TileShape(64, 32, 8, 5 if capability >= 90 else 3)


def attention_constants(heads: int, kv_heads: int, head_size: int, page_size: int, shape: TileShape) -> dict[str, int]:
    """What `attention_kernel` is compiled for, beside its flags."""
    return {
        "HEADS": heads,
        "GROUP": heads // kv_heads,
        "HEAD_SIZE": head_size,
        "HEAD_BLOCK": max(16, triton.next_power_of_2(head_size)),
        "PAGE_SIZE": page_size,
        "BLOCK_ROWS": shape.rows,
        "BLOCK_KEYS": shape.keys,
    }


def merge_constants(heads: int, head_size: int) -> dict[str, int]:
    """What `merge_kernel` is compiled for."""
    return {
        "HEADS": heads,
        "HEAD_SIZE": head_size,
        "HEAD_BLOCK": triton.next_power_of_2(head_size),
        "BLOCK_HEADS": min(MERGED_HEADS, triton.next_power_of_2(heads)),
    }


def unavailable_reason(heads: int, kv_heads: int, head_size: int, *, is_fp32: bool = False) -> str | None:
    """Why `TritonAttention` cannot run a model of this shape, in words for a message; None if it can."""
    if head_size > 256:
        return f"the Triton kernels want head sizes up to 256, not {head_size}"
    if heads // kv_heads > tile_shapes(head_size, LEAST_CAPABILITY, is_fp32=is_fp32)[-1].rows:
        return f"{heads // kv_heads} heads a KV head are too many for the Triton kernels"
    return None


@dataclass(frozen=True)
class _Prepared:
    """A plan on the device and the memory its units write partial outputs to."""

    plan: DevicePlan
    partial_output: Tensor  # fp32 [partial rows * heads * head_size]
    partial_log_sum_exp: Tensor  # fp32 [partial rows * heads]


class FixedPlans:
    """Memory at fixed addresses for the plans of steps of at most `rows` rows: what a CUDA graph needs.

    One buffer a window size, and one scratch for all. `pages` is the most page numbers that a step's items name.
    """

    def __init__(
        self,
        rows: int,
        pages: int,
        windows: Sequence[int | None],
        heads: int,
        kv_heads: int,
        head_size: int,
        like: Tensor,
        larger: FixedPlans | None = None,
        *,
        is_8_bit: bool = False,
    ) -> None:
        """`like` has the dtype and device of queries; `is_8_bit` is about the cache. `larger` is for as
        many rows or more, and never used at the same time: its scratch is shared."""
        device = like.device
        self.rows = rows
        self.heads, self.kv_heads, self.device = heads, kv_heads, device
        self.tiles = _tiles(head_size, like, is_8_bit)
        tasks = TASKS_PER_PROCESSOR * _processors(device)
        partial_rows = rows * (4 + tasks // kv_heads)
        units = 4 * rows + tasks
        sizes = PlanSizes(
            small_units=units,
            large_units=units,
            targets=partial_rows,
            rows=rows,
            merge_rows=rows,
            merge_parts=partial_rows,
            pages=pages,
        )
        self.buffers = {window: PlanBuffer(sizes, device) for window in dict.fromkeys(windows)}
        assert larger is None or larger.rows >= rows
        scratch = larger.scratch if larger is not None else _make_scratch(partial_rows * heads, head_size, device)
        self.scratch: tuple[Tensor, Tensor] = scratch


class TritonAttention:
    """`windows[layer]` is the number of most recent keys a row sees (itself included), or None for all.

    Ask `unavailable_reason` before making one. The cache has the dtype of queries, or 8 bits. `soft_cap` c turns
    scores s into c tanh(s / c).
    """

    fuses_rotation = True

    def __init__(
        self, *, scale: float, windows: Sequence[int | None], page_size: int, soft_cap: float | None = None
    ) -> None:
        self._scale = scale
        self._windows = windows
        self._page_size = page_size
        self._soft_cap = soft_cap
        self._items = ItemColumns.of((), np.empty(0, dtype=np.int64))
        self._prepared: dict[int | None, _Prepared] = {}
        self._scratch = torch.empty(0), torch.empty(0)

    def prepare(self, items: Sequence[WorkItem], positions: Tensor) -> None:
        """See `AttentionBackend`."""
        self._items = ItemColumns.of(items, positions.numpy())
        self._prepared = {}

    def prepare_fixed(self, items: Sequence[WorkItem], positions: Tensor, fixed: FixedPlans) -> bool:
        """`prepare` for `run` over `fixed.rows` rows, with the plans in the memory of `fixed`; False if too large.

        Rows after those of `positions` are padding: they have no keys, and their output is zero.
        """
        padded = np.zeros(fixed.rows, dtype=np.int64)
        padded[: len(positions)] = positions.numpy()
        self._items = ItemColumns.of(items, padded)
        self._prepared = {}
        for window, buffer in fixed.buffers.items():
            plan = self._plan(window, fixed.heads, fixed.kv_heads, fixed.tiles, fixed.device)
            if not buffer.sizes.hold(PlanSizes.of(plan, self._items)):
                return False
            self._prepared[window] = _Prepared(buffer.send(plan, self._items), *fixed.scratch)
        return True

    def run(self, layer: int, query: Tensor, cache: KVCache) -> Tensor:
        """See `AttentionBackend`."""
        keys, values = cache.keys[layer], cache.values[layer]
        rows, heads, head_size = query.shape
        scales = cache.scales(layer)
        assert keys.dtype == values.dtype
        assert keys.dtype == query.dtype if scales is None else keys.dtype in LARGEST
        assert keys.stride() == values.stride()
        assert query.stride(2) == keys.stride(2) == 1
        assert rows == len(self._items.positions)
        window = self._windows[layer]
        tiles = _tiles(head_size, query, scales is not None)
        if window not in self._prepared:
            plan = self._plan(window, heads, keys.shape[0], tiles, query.device)
            buffer = PlanBuffer(PlanSizes.of(plan, self._items), query.device)
            self._provide_scratch(plan.partial_rows * heads, head_size, query.device)
            self._prepared[window] = _Prepared(buffer.send(plan, self._items), *self._scratch)
        prepared = self._prepared[window]
        plan_on_device = prepared.plan
        output = torch.empty((rows, heads, head_size), dtype=query.dtype, device=query.device)
        for shape, units in zip(tiles, plan_on_device.units, strict=True):
            if len(units):
                self._launch(shape, units, prepared, window, query, keys, values, scales, output)
        if len(plan_on_device.merge_rows):
            constants = merge_constants(heads, head_size)
            merge_kernel[(len(plan_on_device.merge_rows), triton.cdiv(heads, constants["BLOCK_HEADS"]))](
                output,
                prepared.partial_output,
                prepared.partial_log_sum_exp,
                plan_on_device.merge_rows,
                plan_on_device.merge_starts,
                plan_on_device.merge_parts,
                **constants,
            )
        return output

    def _launch(
        self,
        shape: TileShape,
        units: Tensor,
        prepared: _Prepared,
        window: int | None,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        scales: tuple[Tensor, Tensor] | None,
        output: Tensor,
    ) -> None:
        _, heads, head_size = query.shape
        attention_kernel[(len(units), keys.shape[0])](
            query,
            keys,
            values,
            *(scales or (keys, values)),
            output,
            prepared.partial_output,
            prepared.partial_log_sum_exp,
            units,
            prepared.plan.targets,
            prepared.plan.positions,
            prepared.plan.pages,
            query.stride(0),
            query.stride(1),
            keys.stride(0),
            keys.stride(1),
            0 if scales is None else scales[0].stride(0),
            self._scale,
            self._soft_cap or 0.0,
            window or 0,
            **attention_constants(heads, keys.shape[0], head_size, self._page_size, shape),
            HAS_WINDOW=window is not None,
            HAS_SOFT_CAP=self._soft_cap is not None,
            QUANTIZED=scales is not None,
            WIDEN=query.dtype == torch.bfloat16 and query.device.type == "cpu",
            num_warps=shape.warps,
            num_stages=shape.stages,
        )

    def _plan(
        self, window: int | None, heads: int, kv_heads: int, tiles: tuple[TileShape, TileShape], device: torch.device
    ) -> UnitPlan:
        rules = UnitRules(
            tile_rows=tuple(shape.rows for shape in tiles),
            key_step=max(shape.keys for shape in tiles),
            least_tasks=TASKS_PER_PROCESSOR * _processors(device),
            # A tile reads its keys and values once whatever its rows, and is sized so that its products take as long.
            least_task_cost=LEAST_SPLIT_KEYS,
            rows_cost=False,
        )
        return plan_units(self._items, rules, window=window, group=heads // kv_heads, kv_heads=kv_heads)

    def _provide_scratch(self, partials: int, head_size: int, device: torch.device) -> None:
        """Memory for partial outputs: kept between steps, grown when too small."""
        log_sum_exp = self._scratch[1]
        if log_sum_exp.numel() < partials or log_sum_exp.device != device:
            self._scratch = _make_scratch(partials, head_size, device)


def _make_scratch(partials: int, head_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Uninitialised memory for partial outputs and for their log-sum-exps."""
    output = torch.empty(partials * head_size, dtype=torch.float32, device=device)
    return output, torch.empty(partials, dtype=torch.float32, device=device)


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _PROCESSORS_WITHOUT_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count


def _tiles(head_size: int, query: Tensor, is_8_bit: bool) -> tuple[TileShape, TileShape]:
    """The tiles for queries of this dtype and device; the interpreter takes those of bf16 for all."""
    is_fp32 = query.is_cuda and query.dtype == torch.float32
    return tile_shapes(head_size, _capability(query.device), is_fp32=is_fp32, is_8_bit=is_8_bit)


@cache
def _capability(device: torch.device) -> int:
    if device.type != "cuda":
        return LEAST_CAPABILITY
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
