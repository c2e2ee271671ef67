"""The native CPU backend: a layer's whole work list in one parallel region of compiled code (engine/native).

The work list is cut into units of one item's rows (a tile) against one item's keys (a range), each run once per KV
head. The cut depends on the items alone, never on the number of threads, and partial outputs are merged in a fixed
order: results are the same bits on any number of cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine import native
from engine.attention_units import ItemColumns, UnitPlan, UnitRules, plan_units
from engine.kv_cache import KVCache
from engine.work_list import WorkItem

LEAST_TASKS = 16
"""Key ranges are split until a layer has about this many tasks (units x KV heads) of similar cost ..."""

LEAST_TASK_PAIRS = 16384
"""... as long as each keeps this many pairs of a packed row and a key: about 25 microseconds of work."""

LEAST_PARALLEL_PAIRS = 4 * LEAST_TASK_PAIRS
"""Less work than this runs on one thread: a second one that another process holds up would cost milliseconds."""

_VECTOR_LANES = 16
_MAX_HEAD_SIZE = 256
_CACHE_LINE = 64
_ALL_KEYS = np.iinfo(np.int32).max


def unavailable_reason(dtype: torch.dtype, heads: int, kv_heads: int, head_size: int) -> str | None:
    """Why `NativeAttention` cannot run a model of this shape here, in words for a log; None if it can."""
    if head_size % _VECTOR_LANES or head_size > _MAX_HEAD_SIZE:
        return f"the native kernels want head sizes that are multiples of {_VECTOR_LANES} up to {_MAX_HEAD_SIZE}"
    reason = native.unavailable_reason(dtype)
    if reason is None and heads // kv_heads > native.load_library().docqa_tile_rows():
        return f"{heads // kv_heads} heads a KV head are too many for the native kernels"
    return reason


class _Arguments(ctypes.Structure):
    """`Attention` of engine/native/attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "key_scales", "value_scales")),
        *((name, ctypes.c_void_p) for name in ("output", "positions", "pages", "units")),
        *((name, ctypes.c_void_p) for name in ("targets", "merge_rows", "merge_starts", "merge_parts")),
        *((name, ctypes.c_void_p) for name in ("partial_output", "partial_log_sum_exp", "workspace")),
        *((name, ctypes.c_int64) for name in ("workspace_bytes", "query_row_stride", "query_head_stride")),
        *((name, ctypes.c_int64) for name in ("kv_head_stride", "slot_stride", "scale_head_stride")),
        *((name, ctypes.c_int32) for name in ("unit_count", "merge_count", "partial_rows", "heads", "kv_heads")),
        *((name, ctypes.c_int32) for name in ("head_size", "page_size", "window", "threads")),
        ("scale", ctypes.c_float),
    )


class NativeAttention:
    """`windows[layer]` is the number of most recent keys a row sees (itself included), or None for all.

    Ask `unavailable_reason` before making one. The cache has the dtype of queries or is int8; `scale` is positive. With
    `split_keys` False a row's keys are summed in an order that depends on its position alone: the same bits whatever
    else is in the step, as long as each row has one item.
    """

    fuses_rotation = False

    def __init__(self, *, scale: float, windows: Sequence[int | None], page_size: int, split_keys: bool = True) -> None:
        assert scale > 0, scale
        self._scale = scale
        self._windows = windows
        self._page_size = page_size
        self._library = native.load_library()
        self._library.docqa_workspace_bytes.restype = ctypes.c_int64
        assert self._library.docqa_attention_bytes() == ctypes.sizeof(_Arguments), "attention.h has changed"
        self._rules = UnitRules(
            tile_rows=(int(self._library.docqa_tile_rows()),),
            key_step=_VECTOR_LANES,
            least_tasks=LEAST_TASKS,
            least_task_cost=LEAST_TASK_PAIRS,
            rows_cost=True,
            split_keys=split_keys,
        )
        self._items = ItemColumns.of((), np.empty(0, dtype=np.int64))
        self._plans: dict[tuple[int | None, int, int, int], tuple[UnitPlan, _Arguments]] = {}
        self._scratch = torch.empty(0, dtype=torch.float32)
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def prepare(self, items: Sequence[WorkItem], positions: Tensor) -> None:
        """See `AttentionBackend`."""
        self._items = ItemColumns.of(items, positions.numpy())
        self._plans = {}

    def run(self, layer: int, query: Tensor, cache: KVCache) -> Tensor:
        """See `AttentionBackend`."""
        keys, values = cache.keys[layer], cache.values[layer]
        rows, heads, head_size = query.shape
        scales = cache.scales(layer)
        assert keys.dtype == values.dtype == (query.dtype if scales is None else torch.int8)
        assert keys.stride() == values.stride()
        assert query.stride(2) == keys.stride(2) == 1
        assert rows == len(self._items.positions)
        output = torch.empty((rows, heads, head_size), dtype=query.dtype)
        arguments = self._arguments(self._windows[layer], heads, keys.shape[0], head_size)
        arguments.query = query.data_ptr()
        arguments.keys = keys.data_ptr()
        arguments.values = values.data_ptr()
        arguments.output = output.data_ptr()
        arguments.query_row_stride, arguments.query_head_stride, _ = query.stride()
        arguments.kv_head_stride, arguments.slot_stride, _ = keys.stride()
        if scales is not None:
            arguments.key_scales, arguments.value_scales = (part.data_ptr() for part in scales)
            arguments.scale_head_stride = scales[0].stride(0)
        self._library.docqa_attention(ctypes.byref(arguments), native.ELEMENT_CODES[query.dtype])
        return output

    def _arguments(self, window: int | None, heads: int, kv_heads: int, head_size: int) -> _Arguments:
        """The arguments that all layers of a step with this window share; the step's first such layer plans them."""
        key = (window, heads, kv_heads, head_size)
        if key not in self._plans:
            plan = plan_units(self._items, self._rules, window=window, group=heads // kv_heads, kv_heads=kv_heads)
            self._plans[key] = plan, self._fill_arguments(plan, *key)
        plan, arguments = self._plans[key]
        arguments.threads = 1 if plan.cost < LEAST_PARALLEL_PAIRS else torch.get_num_threads()
        self._provide_memory(arguments)
        return arguments

    def _fill_arguments(
        self, plan: UnitPlan, window: int | None, heads: int, kv_heads: int, head_size: int
    ) -> _Arguments:
        return _Arguments(
            positions=self._items.positions.ctypes.data,
            pages=self._items.pages.ctypes.data,
            units=plan.units.ctypes.data,
            targets=plan.targets.ctypes.data,
            merge_rows=plan.merge_rows.ctypes.data,
            merge_starts=plan.merge_starts.ctypes.data,
            merge_parts=plan.merge_parts.ctypes.data,
            workspace_bytes=-(-self._library.docqa_workspace_bytes(head_size) // _CACHE_LINE) * _CACHE_LINE,
            unit_count=len(plan.units),
            merge_count=len(plan.merge_rows),
            partial_rows=plan.partial_rows,
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            page_size=self._page_size,
            window=_ALL_KEYS if window is None else window,
            scale=self._scale,
        )

    def _provide_memory(self, arguments: _Arguments) -> None:
        """Scratch for partial outputs and workspace for the threads: kept between steps, grown when too small."""
        partials = arguments.partial_rows * arguments.heads
        if self._scratch.numel() < partials * (arguments.head_size + 1):
            self._scratch = torch.empty(partials * (arguments.head_size + 1), dtype=torch.float32)
        scratch = self._scratch.data_ptr()
        arguments.partial_output = scratch
        arguments.partial_log_sum_exp = scratch + partials * arguments.head_size * 4
        needed = arguments.threads * arguments.workspace_bytes + _CACHE_LINE
        if self._workspace.numel() < needed:
            self._workspace = torch.empty(needed, dtype=torch.uint8)
        arguments.workspace = -(-self._workspace.data_ptr() // _CACHE_LINE) * _CACHE_LINE
