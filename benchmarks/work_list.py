"""How long the plan of one decoding step takes on the CPU: the work list, and its cut into units for the GPU.

python benchmarks/work_list.py [--rows 256] [--documents 32] [--document-tokens 8000]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from engine.attention_units import ItemColumns, UnitRules, plan_units
from engine.step import SequenceRows
from engine.work_list import build_work_list

PAGE_SIZE = 16


def decoding_rows(rows: int, documents: int, document_tokens: int) -> list[SequenceRows]:
    """One row a sequence; sequences of a document share an opening and the document, and have some own pages."""
    random = np.random.default_rng(0)
    opening, next_page, entries = np.arange(1, 11, dtype=np.int32), 11, []
    own_pages = 12
    for document in range(documents):
        shared = np.arange(next_page, next_page + document_tokens // PAGE_SIZE, dtype=np.int32)
        next_page += len(shared)
        for _ in range(rows // documents + (document < rows % documents)):
            own = np.arange(next_page, next_page + own_pages, dtype=np.int32)
            next_page += own_pages
            position = (len(opening) + len(shared)) * PAGE_SIZE + int(random.integers(0, own_pages * PAGE_SIZE))
            entries.append(SequenceRows(len(entries), 1, position, np.concatenate([opening, shared, own])))
    return entries


def milliseconds(run: Callable[[], object], repeats: int = 200) -> tuple[float, float]:
    """Median and least of some runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started))
    return float(np.median(times)), min(times)


def main() -> None:
    """Print one line a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--document-tokens", type=int, default=8000)
    options = parser.parse_args()
    rows = decoding_rows(options.rows, options.documents, options.document_tokens)
    positions = np.array([entry.first_position for entry in rows])
    items = build_work_list(rows, PAGE_SIZE, True)
    columns = ItemColumns.of(items, positions)
    # As for a card of 132 multiprocessors and a model with 8 KV heads of 4 query heads each.
    rules = UnitRules(tile_rows=(16, 128), key_step=64, least_tasks=264, least_task_cost=256, rows_cost=False)
    print(f"{len(rows)} rows in {options.documents} documents: {len(items)} items")
    for name, run in (
        ("work list", lambda: build_work_list(rows, PAGE_SIZE, True)),
        ("item columns", lambda: ItemColumns.of(items, positions)),
        ("units", lambda: plan_units(columns, rules, window=None, group=4, kv_heads=8)),
    ):
        median, least = milliseconds(run)
        print(f"{name:13} {median:6.2f} ms median, {least:.2f} ms at best")


if __name__ == "__main__":
    main()
