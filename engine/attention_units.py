"""Cuts a work list into the units that a kernel runs: some rows of one item against one range of its keys.

A unit is done once per KV head. What a row's units yield is either its output, if there is only one, or partial
outputs to merge. The cut depends on the items alone, so a step gives the same bits on any number of cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.work_list import WorkItem

UNIT_FIELDS = 8
"""row_start, row_count, first_key, key_begin, key_end, page_start, target_start, unmasked_end; see `UnitPlan`."""


@dataclass(frozen=True)
class ItemColumns:
    """The items of a step as columns, with the positions of all rows."""

    row_start: np.ndarray
    row_count: np.ndarray
    first_key: np.ndarray
    key_count: np.ndarray
    page_start: np.ndarray
    pages: np.ndarray  # int32, of all items, one after the other
    positions: np.ndarray  # int64 [rows]

    @classmethod
    def of(cls, items: Sequence[WorkItem], positions: np.ndarray) -> ItemColumns:
        """The columns of `items`, for rows at `positions` [rows]."""
        numbers = np.array(
            [(item.row_start, item.row_count, item.first_key, item.key_count, len(item.pages)) for item in items],
            dtype=np.int64,
        ).reshape(-1, 5)
        row_start, row_count, first_key, key_count, page_count = numbers.T
        return cls(
            row_start=row_start,
            row_count=row_count,
            first_key=first_key,
            key_count=key_count,
            page_start=np.cumsum(page_count) - page_count,
            pages=np.concatenate([np.empty(0, dtype=np.int32), *(item.pages for item in items)]).astype(np.int32),
            positions=np.ascontiguousarray(positions, dtype=np.int64),
        )


@dataclass(frozen=True)
class UnitRules:
    """How a kernel wants its units.

    An item goes into tiles of the first of `tile_rows` (packed rows, ascending: a query row counts once per head of a
    KV head) that holds it, else into several of the last. Key ranges begin at multiples of `key_step`. Ranges are split
    until a layer has about `least_tasks` tasks (units x KV heads) of similar cost, as long as each costs at least
    `least_task_cost`. The cost of a unit is its keys, times its packed rows if `rows_cost`.
    """

    tile_rows: tuple[int, ...]
    key_step: int
    least_tasks: int
    least_task_cost: int
    rows_cost: bool
    split_keys: bool = True  # False: a row's keys are never split, so its sums do not depend on the rest of the step


@dataclass(frozen=True)
class UnitPlan:
    """Units by size of tile, in each size the largest first, and which partial rows make which output rows.

    A unit is rows [row_start, row_start + row_count) against keys [key_begin, key_end) of an item, whose key 0 is at
    position `first_key` and whose pages start at `page_start` of the item columns' `pages`. All of its rows see all
    keys before `unmasked_end`, which lies a multiple of the key step after `key_begin`. `targets[target_start + i]` is
    the partial row that its row i writes, or -1 for the output itself; a unit's targets are consecutive or all -1.

    Output row `merge_rows[i]` is merged from the partial rows `merge_parts[merge_starts[i] : merge_starts[i + 1]]`, in
    that order, and is zero if there are none.
    """

    units: np.ndarray  # int32 [units, UNIT_FIELDS]
    units_of_tile: tuple[int, ...]  # how many units have tiles of each of the rules' sizes
    targets: np.ndarray  # int32
    merge_rows: np.ndarray  # int32
    merge_starts: np.ndarray  # int32
    merge_parts: np.ndarray  # int32
    cost: int  # of all units in all KV heads

    @property
    def partial_rows(self) -> int:
        """Rows of partial output that the units write."""
        return len(self.merge_parts)


def plan_units(items: ItemColumns, rules: UnitRules, *, window: int | None, group: int, kv_heads: int) -> UnitPlan:
    """The units of a step for layers with this `window`; `group` query heads share one of `kv_heads` KV heads."""
    sizes = np.array(rules.tile_rows)
    size = np.minimum(np.searchsorted(sizes, items.row_count * group), len(sizes) - 1)
    tiles_of_item = -(-items.row_count // (sizes[size] // group))
    item, part = _repeat(tiles_of_item)
    row_start = items.row_start[item] + items.row_count[item] * part // tiles_of_item[item]
    row_end = items.row_start[item] + items.row_count[item] * (part + 1) // tiles_of_item[item]
    first_key = items.first_key[item]
    lowest, highest = _position_range(items.positions, row_start, row_end)
    key_end = np.minimum(items.key_count[item], highest - first_key + 1)
    key_begin = np.zeros_like(key_end)
    if window is not None and rules.split_keys:
        key_begin = np.maximum(0, lowest - window + 1 - first_key)
    key_begin = key_begin // rules.key_step * rules.key_step

    keys = np.maximum(0, key_end - key_begin)
    cost = keys * (row_end - row_start) * group if rules.rows_cost else keys
    total_cost = int(cost.sum()) * kv_heads
    task_cost = max(rules.least_task_cost, total_cost // rules.least_tasks)
    splits = np.minimum(-(-cost // task_cost), -(-keys // rules.key_step))
    if not rules.split_keys:
        splits = np.minimum(splits, 1)
    tile, part = _repeat(splits)  # a range that a window leaves empty makes no unit
    step = -(-keys[tile] // splits[tile])
    step = -(-step // rules.key_step) * rules.key_step
    units = np.zeros((len(tile), UNIT_FIELDS), dtype=np.int32)
    units[:, 0] = row_start[tile]
    units[:, 1] = (row_end - row_start)[tile]
    units[:, 2] = first_key[tile]
    units[:, 3] = np.minimum(key_begin[tile] + part * step, key_end[tile])
    units[:, 4] = np.minimum(key_begin[tile] + (part + 1) * step, key_end[tile])
    units[:, 5] = items.page_start[item[tile]]
    units[:, 6] = np.cumsum(units[:, 1]) - units[:, 1]
    units[:, 7] = units[:, 3]
    if window is None:
        seen_by_all = np.minimum(units[:, 4], (lowest - first_key + 1)[tile]) - units[:, 3]
        units[:, 7] += np.maximum(0, seen_by_all // rules.key_step * rules.key_step).astype(np.int32)

    unit, part = _repeat(units[:, 1])
    unit_rows = units[unit, 0] + part
    counts = np.bincount(unit_rows, minlength=len(items.positions))
    writes_partials = np.zeros(len(units), dtype=bool)
    writes_partials[unit[counts[unit_rows] > 1]] = True
    merged = writes_partials[unit]
    needs_merge = counts == 0
    needs_merge[unit_rows[merged]] = True
    merge_rows = np.flatnonzero(needs_merge)
    unit_size = size[item[tile]]
    order = np.lexsort((-units[:, 1].astype(np.int64) * (units[:, 4] - units[:, 3]), unit_size))
    return UnitPlan(
        units=np.ascontiguousarray(units[order]),
        units_of_tile=tuple(np.bincount(unit_size, minlength=len(sizes)).tolist()),
        targets=np.where(merged, np.cumsum(merged) - 1, -1).astype(np.int32),
        merge_rows=merge_rows.astype(np.int32),
        merge_starts=np.concatenate([[0], np.cumsum(counts[merge_rows])]).astype(np.int32),
        merge_parts=np.argsort(unit_rows[merged], kind="stable").astype(np.int32),
        cost=total_cost,
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
