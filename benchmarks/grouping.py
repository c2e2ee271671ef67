"""What grouping costs where there is nothing to group: python benchmarks/grouping.py [--rows 10000] [--hidden 256].

Two extremes: as many documents as rows, which have no token in common, and as many questions on one document. Each is
run with everything that groups rows (the order of the plan, the prefix tree, attention over shared prefixes) and with
nothing of it, in turns, in one process. Seconds are the processor's, so that other work on the machine matters little.
The model has random weights, heads of 64 as real ones have, and is small, so that bookkeeping weighs more than it
would with a real one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine  # noqa: F401  # before torch, for what it sets
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.model_config import ModelConfig
from engine.request import Request, SamplingParameters
from engine.weights import random_weights
from jobs.model import choose_dtype
from jobs.plan_order import first_positions_in_order, plan_order
from jobs.prompt_segments import Segment, SegmentedPrompt, SharedPrefix

VOCABULARY, DOCUMENT_TOKENS, QUESTION_TOKENS, OUTPUT_TOKENS = 5000, 200, 15, 8
HEAD_SIZE = 64


@dataclass(frozen=True)
class Seconds:
    """Processor seconds of one run; `order` is the part that sorts the prompts and counts what they share."""

    total: float
    order: float
    rows_computed: int


def main() -> None:
    """Run both cases in turns and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--hidden", type=int, default=256, help="hidden size, a multiple of 128")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--case", choices=["documents", "questions", "both"], default="both")
    options = parser.parse_args()
    decoder, dtype = small_model(options.hidden, options.layers)
    for case in ("documents", "questions") if options.case == "both" else (options.case,):
        prompts = make_prompts(case, options.rows)
        run(decoder, dtype, prompts[: max(options.rows // 20, 1)], grouped=True)  # warm
        pairs = [
            (run(decoder, dtype, prompts, grouped=False), run(decoder, dtype, prompts, grouped=True))
            for _ in range(options.pairs)
        ]
        for none, grouped in pairs:
            print(
                f"{case}: none {none.total:.2f} s, {none.rows_computed:,} rows in steps; "
                f"grouped {grouped.total:.2f} s, of which order {grouped.order:.2f} s, {grouped.rows_computed:,} rows",
                flush=True,
            )
        ratio = statistics.median(grouped.total / none.total for none, grouped in pairs)
        print(f"{case}: {options.rows:,} rows, hidden size {options.hidden}: grouped / none = {ratio:.3f}", flush=True)


def small_model(hidden: int, layers: int) -> tuple[Decoder, object]:
    """A Llama of random weights, in the number format that the machine computes in."""
    config = ModelConfig.from_dict(
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY,
            "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
            "num_attention_heads": hidden // HEAD_SIZE, "num_key_value_heads": max(1, hidden // HEAD_SIZE // 2),
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        }
    )  # fmt: skip
    dtype = choose_dtype("auto", "cpu")
    return Decoder(config, random_weights(config, dtype, "cpu", seed=3)), dtype


def make_prompts(case: str, rows: int) -> list[SegmentedPrompt]:
    """Prompts of one question on each of `rows` documents, or of `rows` questions on one; nothing else in common."""
    random = np.random.default_rng(1)

    def draw(count: int) -> np.ndarray:
        return random.integers(2, VOCABULARY, count, dtype=np.int32)

    documents = [
        SharedPrefix(draw(0), Segment(draw(DOCUMENT_TOKENS))) for _ in range(rows if case == "documents" else 1)
    ]
    return [SegmentedPrompt(documents[row % len(documents)], draw(QUESTION_TOKENS)) for row in range(rows)]


def run(decoder: Decoder, dtype: object, prompts: list[SegmentedPrompt], *, grouped: bool) -> Seconds:
    """Order the prompts and answer them."""
    settings = EngineSettings(
        kv_pages=4000, reuse=grouped, share_prefixes=grouped, keep_unneeded=False, drafts=False
    )  # fmt: skip
    made = Engine(decoder, decoder.config, settings, (1,), dtype=dtype)  # type: ignore[arg-type]
    started = time.process_time()
    order = plan_order(prompts) if grouped else range(len(prompts))
    if grouped:
        first_positions_in_order([prompts[index] for index in order])
    ordered = time.process_time()
    made.feed(Request(index, prompts[index].ids(), SamplingParameters(max_tokens=OUTPUT_TOKENS)) for index in order)
    ended = 0
    while made.has_work:
        ended += len(made.step())
    seconds = Seconds(time.process_time() - started, ordered - started, made.statistics.step_rows)
    made.check()
    assert ended == len(prompts)
    return seconds


if __name__ == "__main__":
    main()
