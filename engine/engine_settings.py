"""How the engine runs: sizes, and a switch for every optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduler import MAX_ROWS


@dataclass(frozen=True)
class EngineSettings:
    """How the engine runs. Every optimisation has a switch, so that its gain can be shown and the plain path kept."""

    kv_pages: int
    page_size: int = 16
    kv_dtype: str = "auto"  # keys and values as the model computes them, or in 8 bits: "int8" or "fp8"
    step_tokens: int = 1024
    max_rows: int = MAX_ROWS
    reserved_output: float = (
        1.0  # share of max_tokens for which pages are taken at admission; below 1 rows may be preempted
    )
    keep_unneeded: bool = True  # keep prefixes that no submitted request needs, for requests that may still come
    reuse: bool = True  # share computed prefixes between requests
    share_prefixes: bool = True  # rows with common pages read them as one attention item
    drafts: bool = True  # guess tokens that the grammar forces or the prompt has, and check them all at once
    graphs: bool = True  # on a GPU, replay decoding steps as CUDA graphs
    overlap: bool = True  # on a GPU, launch a step before the caller has dealt with what the one before it ended
    deterministic: bool = False  # the same bits for a row whatever the batch, order, chunks, cache and drafts
    attention: str = "auto"  # the fastest that runs here, or "native", "torch", "triton", "reference"
