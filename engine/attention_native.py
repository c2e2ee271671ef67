"""The native CPU backend: a layer's whole work list in one parallel region of compiled code (engine/native).

The work list is cut into units of one item's rows (a tile) against one item's keys (a range), each run once per KV
head. The cut depends on the items alone, never on the number of threads, and partial outputs are merged in a fixed
order: results are the same bits on any number of cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine import native
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
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "output", "positions", "pages", "units")),
        *((name, ctypes.c_void_p) for name in ("targets", "merge_rows", "merge_starts", "merge_parts")),
        *((name, ctypes.c_void_p) for name in ("partial_output", "partial_log_sum_exp", "workspace")),
        *((name, ctypes.c_int64) for name in ("workspace_bytes", "query_row_stride", "query_head_stride")),
        *((name, ctypes.c_int64) for name in ("kv_head_stride", "slot_stride")),
        *((name, ctypes.c_int32) for name in ("unit_count", "merge_count", "partial_rows", "heads", "kv_heads")),
        *((name, ctypes.c_int32) for name in ("head_size", "page_size", "window", "threads")),
        ("scale", ctypes.c_float),
    )


@dataclass(frozen=True)
class _ItemArrays:
    """The items of a step as columns, with the positions of all rows."""

    row_start: np.ndarray
    row_count: np.ndarray
    first_key: np.ndarray
    key_count: np.ndarray
    page_start: np.ndarray
    pages: np.ndarray  # int32, of all items, one after the other
    positions: np.ndarray  # int64 [rows]


@dataclass(frozen=True)
class _Plan:
    """Units of one window size, largest first, and which partial rows make which output rows; see attention.h."""

    units: np.ndarray  # int32 [units, 8]
    targets: np.ndarray
    merge_rows: np.ndarray
    merge_starts: np.ndarray
    merge_parts: np.ndarray
    pairs: int  # of a packed row and a key, in all KV heads


class NativeAttention:
    """`windows[layer]` is the number of most recent keys a row sees (itself included), or None for all.

    Ask `unavailable_reason` before making one. Query and cache have the same dtype; `scale` is positive. With
    `split_keys` False a row's keys are summed in an order that depends on its position alone: the same bits whatever
    else is in the step, as long as each row has one item.
    """

    def __init__(self, *, scale: float, windows: Sequence[int | None], page_size: int, split_keys: bool = True) -> None:
        assert scale > 0, scale
        self._split_keys = split_keys
        self._scale = scale
        self._windows = windows
        self._page_size = page_size
        self._library = native.load_library()
        self._library.docqa_workspace_bytes.restype = ctypes.c_int64
        assert self._library.docqa_attention_bytes() == ctypes.sizeof(_Arguments), "attention.h has changed"
        self._tile_rows = int(self._library.docqa_tile_rows())
        self._items = _columns((), np.empty(0, dtype=np.int64))
        self._plans: dict[tuple[int | None, int, int, int], tuple[_Plan, _Arguments]] = {}
        self._scratch = torch.empty(0, dtype=torch.float32)
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def prepare(self, items: Sequence[WorkItem], positions: Tensor) -> None:
        """See `AttentionBackend`."""
        self._items = _columns(items, np.ascontiguousarray(positions.numpy(), dtype=np.int64))
        self._plans = {}

    def run(self, layer: int, query: Tensor, cache: KVCache) -> Tensor:
        """See `AttentionBackend`."""
        keys, values = cache.keys[layer], cache.values[layer]
        rows, heads, head_size = query.shape
        assert query.dtype == keys.dtype == values.dtype
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
        self._library.docqa_attention(ctypes.byref(arguments), native.ELEMENT_CODES[query.dtype])
        return output

    def _arguments(self, window: int | None, heads: int, kv_heads: int, head_size: int) -> _Arguments:
        """The arguments that all layers of a step with this window share; the step's first such layer plans them."""
        key = (window, heads, kv_heads, head_size)
        if key not in self._plans:
            plan = _plan_units(self._items, window, heads // kv_heads, kv_heads, self._tile_rows, self._split_keys)
            self._plans[key] = plan, self._fill_arguments(plan, *key)
        plan, arguments = self._plans[key]
        arguments.threads = 1 if plan.pairs < LEAST_PARALLEL_PAIRS else torch.get_num_threads()
        self._provide_memory(arguments)
        return arguments

    def _fill_arguments(self, plan: _Plan, window: int | None, heads: int, kv_heads: int, head_size: int) -> _Arguments:
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
            partial_rows=len(plan.merge_parts),
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


def _columns(items: Sequence[WorkItem], positions: np.ndarray) -> _ItemArrays:
    numbers = np.array(
        [(item.row_start, item.row_count, item.first_key, item.key_count, len(item.pages)) for item in items],
        dtype=np.int64,
    ).reshape(-1, 5)
    row_start, row_count, first_key, key_count, page_count = numbers.T
    return _ItemArrays(
        row_start=row_start,
        row_count=row_count,
        first_key=first_key,
        key_count=key_count,
        page_start=np.cumsum(page_count) - page_count,
        pages=np.concatenate([np.empty(0, dtype=np.int32), *(item.pages for item in items)]).astype(np.int32),
        positions=positions,
    )


def _plan_units(
    items: _ItemArrays, window: int | None, group: int, kv_heads: int, tile_rows: int, split_keys: bool
) -> _Plan:
    """Cut items into tiles of rows, tiles into ranges of keys, and say where each row of each unit goes."""
    tiles_of_item = -(-items.row_count // (tile_rows // group))
    item, part = _repeat(tiles_of_item)
    row_start = items.row_start[item] + items.row_count[item] * part // tiles_of_item[item]
    row_end = items.row_start[item] + items.row_count[item] * (part + 1) // tiles_of_item[item]
    first_key = items.first_key[item]
    lowest, highest = _position_range(items.positions, row_start, row_end)
    key_end = np.minimum(items.key_count[item], highest - first_key + 1)
    key_begin = np.zeros_like(key_end)
    if window is not None and split_keys:
        key_begin = np.maximum(0, lowest - window + 1 - first_key)
    key_begin = key_begin // _VECTOR_LANES * _VECTOR_LANES

    pairs = (row_end - row_start) * group * np.maximum(0, key_end - key_begin)
    total_pairs = int(pairs.sum()) * kv_heads
    task_pairs = max(LEAST_TASK_PAIRS, total_pairs // LEAST_TASKS)
    splits = np.minimum(-(-pairs // task_pairs), -(-(key_end - key_begin) // _VECTOR_LANES))
    if not split_keys:
        splits = np.minimum(splits, 1)
    splits = np.maximum(splits, 0)  # a range that a window leaves empty makes no unit
    tile, part = _repeat(splits)
    step = -(-(key_end - key_begin)[tile] // splits[tile])
    step = -(-step // _VECTOR_LANES) * _VECTOR_LANES
    units = np.zeros((len(tile), 8), dtype=np.int32)
    units[:, 0] = row_start[tile]
    units[:, 1] = (row_end - row_start)[tile]
    units[:, 2] = first_key[tile]
    units[:, 3] = np.minimum(key_begin[tile] + part * step, key_end[tile])
    units[:, 4] = np.minimum(key_begin[tile] + (part + 1) * step, key_end[tile])
    units[:, 5] = items.page_start[item[tile]]
    units[:, 6] = np.cumsum(units[:, 1]) - units[:, 1]

    unit, part = _repeat(units[:, 1])
    unit_rows = units[unit, 0] + part
    counts = np.bincount(unit_rows, minlength=len(items.positions))
    merged = counts[unit_rows] > 1
    targets = np.where(merged, np.cumsum(merged) - 1, -1).astype(np.int32)
    merge_rows = np.flatnonzero(counts != 1)
    order = np.argsort(unit_rows[merged], kind="stable")
    largest_first = np.argsort(-units[:, 1].astype(np.int64) * (units[:, 4] - units[:, 3]), kind="stable")
    return _Plan(
        units=np.ascontiguousarray(units[largest_first]),
        targets=targets,
        merge_rows=merge_rows.astype(np.int32),
        merge_starts=np.concatenate([[0], np.cumsum(counts[merge_rows])]).astype(np.int32),
        merge_parts=order.astype(np.int32),
        pairs=total_pairs,
    )


def _repeat(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For `counts` [n]: index i counts[i] times, and beside it 0 .. counts[i] - 1."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - (np.cumsum(counts) - counts)[index]


def _position_range(positions: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest of positions[start:end] for each pair; every range has at least one row."""
    if not len(starts):
        return starts, ends
    # reduceat wants indices inside the array; every second result is that of a range between two of ours.
    padded = np.concatenate([positions, positions[-1:]])
    bounds = np.stack([starts, ends], axis=1).reshape(-1)
    return np.minimum.reduceat(padded, bounds)[::2], np.maximum.reduceat(padded, bounds)[::2]
