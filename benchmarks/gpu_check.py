"""What benchmarks/gpu_check.sh runs; see there."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SMOKE = "--smoke" in sys.argv
if SMOKE:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as functional
import triton

from engine.attention_reference import ReferenceAttention
from engine.attention_triton import TritonAttention
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.kv_cache import KVCache
from engine.kv_quantization import KV_DTYPES, LEAST_FP8_CAPABILITY
from engine.model_config import ModelConfig
from engine.request import Request, SamplingParameters
from engine.rotary import rotate
from engine.sampler import mask_words, sample
from engine.step import SequenceRows
from engine.triton import row_operations
from engine.triton.sampler import sample_on_device
from engine.weights import random_weights
from engine.work_list import build_work_list

DEVICE = "cpu" if SMOKE else "cuda"
BUDGET_SECONDS = 330.0
PAGE_SIZE = 16
# Against the reference in fp32 on the same inputs: bf16 and fp16 differ by the rounding of weights and of the result.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.004, torch.bfloat16: 0.03}
LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14_336,
    "max_position_embeddings": 32_768,
}
TINY = {
    **LLAMA_8B,
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
}


@dataclass
class Report:
    """Rows of the table: what was checked or measured, the figure, and whether it is as it should be."""

    started: float = field(default_factory=time.monotonic)
    rows: list[dict] = field(default_factory=list)

    def add(self, name: str, value: float | None, unit: str, ok: bool = True, note: str = "") -> None:
        """One row; printed at once, so that a run that is cut off has said what it knew."""
        self.rows.append({"name": name, "value": value, "unit": unit, "ok": ok, "note": note})
        print(f"[{time.monotonic() - self.started:5.0f} s] {_line(self.rows[-1])}", flush=True)

    def attempt(self, name: str, check: Callable[[Report], None]) -> None:
        """Run a check; one that fails is a row, and the others go on."""
        if time.monotonic() - self.started > BUDGET_SECONDS:
            self.add(name, None, "", False, "not reached in time")
            return
        try:
            with torch.inference_mode():
                check(self)
        except Exception as error:
            traceback.print_exc()
            self.add(name, None, "", False, f"{type(error).__name__}: {error}".splitlines()[0][:200])
        if not SMOKE:
            torch.cuda.empty_cache()


def _line(row: dict) -> str:
    value = "-" if row["value"] is None else f"{row['value']:.4g}"
    return f"{'ok  ' if row['ok'] else 'FAIL'} {row['name']:46} {value:>10} {row['unit']:9} {row['note']}"


def seconds_of(run: Callable[[], object], repeats: int = 10) -> float:
    """Median seconds of a call on the device, after two that compile and warm up."""
    if SMOKE:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(np.median(times))


def random_step(
    prefixes: list[int], counts: list[int], shared_pages: int, kv_heads: int, head_size: int, dtype: torch.dtype
) -> tuple[list[SequenceRows], torch.Tensor, KVCache]:
    """Sequences with common leading pages: rows, positions, and a cache that is NaN wherever no row has a key."""
    random = np.random.default_rng(0)
    lengths = [shared_pages * PAGE_SIZE + prefix + count for prefix, count in zip(prefixes, counts, strict=True)]
    own = [-(-length // PAGE_SIZE) - shared_pages for length in lengths]
    pages = random.permutation(np.arange(1, sum(own) + shared_pages + 1)).astype(np.int32)
    rows, row_start, next_page = [], 0, shared_pages
    for prefix, count, own_pages in zip(prefixes, counts, own, strict=True):
        table = np.concatenate([pages[:shared_pages], pages[next_page : next_page + own_pages]])
        rows.append(SequenceRows(row_start, count, shared_pages * PAGE_SIZE + prefix, table))
        row_start, next_page = row_start + count, next_page + own_pages
    positions = np.concatenate([np.arange(entry.first_position, entry.key_count) for entry in rows])
    cache = KVCache(
        layers=1, kv_heads=kv_heads, head_size=head_size, pages=len(pages), page_size=PAGE_SIZE, dtype=dtype,
        device=DEVICE,
    )  # fmt: skip
    used = torch.zeros(cache.keys.shape[2], dtype=torch.bool)
    for entry in rows:
        slots = entry.page_table[:, None].astype(np.int64) * PAGE_SIZE + np.arange(PAGE_SIZE)
        used[slots.reshape(-1)[: entry.key_count]] = True
    for part in (cache.keys, cache.values):
        part.normal_()
        part[:, :, ~used.to(DEVICE)] = torch.nan
    return rows, torch.from_numpy(positions), cache


def check_attention(report: Report) -> None:
    """Shapes of heads, dtypes, windows and soft caps, on a step of decode, extension, prefill and shared pages."""
    shapes = [(32, 8, 128), (28, 4, 128), (9, 3, 64), (16, 8, 256), (8, 8, 96), (64, 1, 64)]
    prefixes, counts, shared = [0, 1, 15, 16, 17, 900, 2500], [700, 1, 3, 40, 1, 1, 130], 60
    if SMOKE:
        shapes, prefixes, counts, shared = [(4, 2, 16)], [0, 17], [3, 1], 9
    for heads, kv_heads, head_size in shapes:
        for dtype in (torch.float32,) if SMOKE else (torch.bfloat16, torch.float16):
            rows, positions, cache = random_step(prefixes, counts, shared, kv_heads, head_size, dtype)
            query = torch.randn(len(positions), heads, head_size, device=DEVICE, dtype=dtype)
            items = build_work_list(rows, PAGE_SIZE, True)
            worst = 0.0
            for window, soft_cap in ((None, None), (300, None), (None, 20.0)):
                results = []
                for backend in (TritonAttention, ReferenceAttention):
                    attention = backend(scale=head_size**-0.5, windows=[window], page_size=PAGE_SIZE, soft_cap=soft_cap)
                    attention.prepare(items, positions)
                    results.append(attention.run(0, query, cache).float())
                difference = (results[0] - results[1]).abs().max().item()
                worst = max(worst, difference) if difference == difference else float("nan")
            name = f"attention {heads}/{kv_heads} heads of {head_size}, {str(dtype)[6:]}"
            report.add(name, worst, "abs error", worst < TOLERANCES[dtype])


def kv_dtypes() -> dict[str, torch.dtype]:
    """The 8-bit formats of keys and values that the card has."""
    if not SMOKE:
        major, minor = torch.cuda.get_device_capability()
        if 10 * major + minor < LEAST_FP8_CAPABILITY:
            return {"int8": KV_DTYPES["int8"]}
    return KV_DTYPES


def check_8_bits(report: Report) -> None:
    """Keys and values in 8 bits: attention against the reference over the same cache, and the fused write."""
    heads, kv_heads, head_size = (4, 2, 16) if SMOKE else (32, 8, 128)
    prefixes, counts, shared = ([0, 17], [3, 1], 9) if SMOKE else ([0, 15, 900], [70, 1, 30], 60)
    dtype = torch.float32 if SMOKE else torch.bfloat16
    for name, kv_dtype in kv_dtypes().items():
        rows, positions, plain = random_step(prefixes, counts, shared, kv_heads, head_size, dtype)
        cache = KVCache(
            layers=1, kv_heads=kv_heads, head_size=head_size, pages=plain.keys.shape[2] // PAGE_SIZE - 1,
            page_size=PAGE_SIZE, dtype=kv_dtype, device=DEVICE,
        )  # fmt: skip
        slots = torch.arange(plain.keys.shape[2], device=DEVICE)
        cache.write(0, slots, plain.keys[0].transpose(0, 1), plain.values[0].transpose(0, 1))
        query = torch.randn(len(positions), heads, head_size, device=DEVICE, dtype=dtype)
        results = []
        for backend in (TritonAttention, ReferenceAttention):
            attention = backend(scale=head_size**-0.5, windows=[None], page_size=PAGE_SIZE)
            attention.prepare(build_work_list(rows, PAGE_SIZE, True), positions)
            results.append(attention.run(0, query, cache).float())
        error = (results[0] - results[1]).abs().max().item()
        report.add(f"attention over {name}", error, "abs error", error < TOLERANCES[dtype])
        qkv = torch.randn(9, heads + 2 * kv_heads, head_size, device=DEVICE, dtype=dtype)
        angles = torch.randn(9, 1, head_size // 2, device=DEVICE)
        cosine, sine = torch.cat((angles.cos(), angles.cos()), dim=-1), angles.sin()
        written = torch.arange(9, device=DEVICE)
        row_operations.rotate_and_write(
            qkv, cosine, sine, None, 1e-6, cache.keys[0], cache.values[0], written, written, cache.scales(0)
        )
        _, values = cache.read(0, written, torch.float32)
        expected = qkv[:, heads + kv_heads :].float().transpose(0, 1)
        error = ((values - expected).abs().amax(-1) / expected.abs().amax(-1)).max().item()
        # Half a step at the largest, 1 / 127 or 1 / 14 of it, and some rounding.
        most = 0.55 / 127 if name == "int8" else 0.55 / 14
        if SMOKE and name == "fp8":
            most = 0.5  # the interpreter doesn't carry into the next power of two
        report.add(f"write of {name}", error, "of largest", error < most)


def check_rows(report: Report) -> None:
    """Norm, gating, and rotation with the KV write, against torch."""
    dtype = torch.float32 if SMOKE else torch.bfloat16
    tokens, size = (3, 64) if SMOKE else (777, 4096)
    step = max(8 * torch.finfo(dtype).eps, 1e-5)
    hidden, addend = (torch.randn(tokens, size, device=DEVICE, dtype=dtype) for _ in range(2))
    weight = torch.randn(size, device=DEVICE, dtype=dtype)
    expected = functional.rms_norm((hidden + addend).float(), (size,), weight.float(), 1e-5)
    error = _relative(row_operations.add_rms_norm(hidden, addend, weight, 1e-5), expected)
    report.add("add and norm", error, "rel error", error < step)
    for activation in ("silu", "gelu_pytorch_tanh"):
        gate_up = torch.randn(tokens, 2 * size, device=DEVICE, dtype=dtype) * 4
        gate, up = gate_up.float().chunk(2, dim=-1)
        activated = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
        error = _relative(row_operations.gate(gate_up, activation), activated * up)
        report.add(f"gate, {activation}", error, "rel error", error < step)
    heads, kv_heads, head_size = (4, 2, 16) if SMOKE else (32, 8, 128)
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_size, device=DEVICE, dtype=dtype)
    angles = torch.randn(tokens, 1, head_size // 2, device=DEVICE)
    cosine, sine = torch.cat((angles.cos(), angles.cos()), dim=-1), angles.sin()
    keys, values = torch.zeros(2, kv_heads, tokens + 50, head_size, device=DEVICE, dtype=dtype)
    slots = torch.randperm(tokens + 50, device=DEVICE)[:tokens]
    rows = torch.arange(tokens, device=DEVICE)
    query = row_operations.rotate_and_write(qkv, cosine, sine, None, 1e-6, keys, values, rows, slots)
    expected_query, expected_key = rotate(qkv[:, : heads + kv_heads].float(), cosine, sine).split((heads, kv_heads), 1)
    error = max(_relative(query, expected_query), _relative(keys[:, slots].transpose(0, 1), expected_key))
    same_values = torch.equal(values[:, slots].transpose(0, 1), qkv[:, heads + kv_heads :])
    report.add("rotate and write", error, "rel error", error < step and same_values)


def _relative(result: torch.Tensor, expected: torch.Tensor) -> float:
    return ((result.float() - expected).abs() / (expected.abs() + 0.1)).max().item()


def check_sampling(report: Report) -> None:
    """Draws against those of the CPU sampler, which sums in fp64: a draw on an edge may fall to the other side."""
    rows, vocabulary = (6, 100) if SMOKE else (96, 128_256)
    random = np.random.default_rng(0)
    logits = torch.randn(rows, vocabulary, device=DEVICE) * 4
    bits = random.random((rows, mask_words(vocabulary) * 32)) < 0.5
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    kinds = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 50, "top_p": 0.9}]
    parameters = [SamplingParameters(seed=row, **kinds[row % 3]) for row in range(rows)]
    drawn = sample_on_device(logits, masks, parameters, [0] * rows)
    expected = sample(logits.cpu(), masks, parameters, [0] * rows)
    greedy = [row for row in range(rows) if row % 3 == 0]
    different = sum(mine != theirs for mine, theirs in zip(drawn, expected, strict=True))
    same_greedy = all(drawn[row] == expected[row] for row in greedy)
    report.add("draws unlike the CPU sampler's", different, f"of {rows}", same_greedy and different <= rows // 20)
    for name, kind in (("greedy", kinds[0]), ("top-k and top-p", kinds[2])):
        chosen = [SamplingParameters(**kind)] * rows
        seconds = seconds_of(lambda chosen=chosen: sample_on_device(logits, masks, chosen, [0] * rows))
        report.add(f"sample {rows} rows, {name}", seconds * 1e3, "ms")


@dataclass
class Peaks:
    """What the card does at best, measured: bytes a second of copies, and operations a second of bf16 products."""

    bytes_a_second: float = 0.0
    operations_a_second: float = 0.0

    def measure(self, report: Report) -> None:
        """Copy memory and multiply matrices."""
        elements, side = (1 << 12, 64) if SMOKE else (1 << 30, 8192)
        source = torch.empty(elements, dtype=torch.bfloat16, device=DEVICE)
        target = torch.empty_like(source)
        self.bytes_a_second = 4 * elements / seconds_of(lambda: target.copy_(source))
        report.add("copies", self.bytes_a_second / 1e9, "GB/s")
        matrix = torch.randn(side, side, dtype=torch.bfloat16, device=DEVICE)
        self.operations_a_second = 2 * side**3 / seconds_of(lambda: matrix @ matrix)
        report.add("matrix products, bf16", self.operations_a_second / 1e12, "TFLOP/s")

    def measure_attention(self, report: Report) -> None:
        """Decode and shared-prefix decode in bytes, prefill in operations, as shares of the peaks."""
        heads, kv_heads, head_size = (4, 2, 16) if SMOKE else (32, 8, 128)
        dtype = torch.float32 if SMOKE else torch.bfloat16
        rows_count, keys = (3, 160) if SMOKE else (64, 8000)
        cases = (
            ("decode, own keys", [keys] * rows_count, [1] * rows_count, 0),
            ("decode, shared document", [50] * rows_count, [1] * rows_count, keys // PAGE_SIZE),
            ("prefill", [0], [keys], 0),
        )
        for name, prefixes, counts, shared in cases:
            rows, positions, cache = random_step(prefixes, counts, shared, kv_heads, head_size, dtype)
            query = torch.randn(len(positions), heads, head_size, device=DEVICE, dtype=dtype)
            attention = TritonAttention(scale=head_size**-0.5, windows=[None], page_size=PAGE_SIZE)
            attention.prepare(build_work_list(rows, PAGE_SIZE, True), positions)
            seconds = seconds_of(lambda run=attention.run, query=query, cache=cache: run(0, query, cache))
            if name == "prefill":
                pairs = sum(int(position) + 1 for position in positions)
                rate, peak = 4 * pairs * heads * head_size / seconds, self.operations_a_second
                report.add(f"attention, {name} of {keys} tokens", rate / 1e12, "TFLOP/s", note=_share(rate, peak))
            else:
                read = cache.keys.shape[2] * kv_heads * head_size * 2 * dtype.itemsize
                rate, peak = read / seconds, self.bytes_a_second
                note = f"{seconds * 1e6:.0f} us, {_share(rate, peak)}"
                report.add(f"attention, {name}", rate / 1e9, "GB/s", note=note)


def _share(rate: float, peak: float) -> str:
    return f"{100 * rate / peak:.0f} % of the peak above" if peak else ""


def requests_about(documents: int, questions: int, document_tokens: int, output_tokens: int, vocabulary: int) -> list:
    """Questions of 40 tokens about documents of random tokens."""
    random = np.random.default_rng(1)
    requests = []
    for _ in range(documents):
        document = random.integers(2, vocabulary, document_tokens, dtype=np.int32)
        for _ in range(questions):
            prompt = np.concatenate([document, random.integers(2, vocabulary, 40, dtype=np.int32)])
            requests.append(Request(len(requests), prompt, SamplingParameters(max_tokens=output_tokens)))
    return requests


def run_engine(decoder: Decoder, config: ModelConfig, requests: list, dtype: torch.dtype, **settings) -> tuple:
    """Answers, seconds and statistics of the requests on an engine of its own, after a small warm-up."""
    pages = sum(-(-(len(requests[0].prompt) + 64) // PAGE_SIZE) for _ in range(2)) + len(requests) * 12
    options = {
        "kv_pages": pages,
        "drafts": False,
        "attention": "triton",
        "step_tokens": 64 if SMOKE else 8192,
        **settings,
    }
    engine = Engine(decoder, config, EngineSettings(**options), (), dtype=dtype, device=DEVICE)
    if not SMOKE:
        engine.run(
            [
                Request(-1 - index, request.prompt[-200:], request.sampling)
                for index, request in enumerate(requests[:64])
            ]
        )
        torch.cuda.synchronize()
    engine.statistics.decode_seconds = engine.statistics.prefill_seconds = 0.0
    started = time.monotonic()
    completions = engine.run(requests)
    seconds = time.monotonic() - started
    engine.check()
    return [completion.output_tokens for completion in completions], seconds, engine.statistics


def check_model(report: Report) -> None:
    """The same answers with graphs and overlap, without, and by the reference, on a small model in fp32."""
    config = ModelConfig.from_dict(
        {**TINY, "hidden_size": 64 if SMOKE else 256, "num_hidden_layers": 1 if SMOKE else 4}
    )
    decoder = Decoder(config, random_weights(config, torch.float32, DEVICE, seed=1))
    requests = requests_about(1 if SMOKE else 3, 2 if SMOKE else 16, 130 if SMOKE else 600, 3 if SMOKE else 24, 64)
    expected, _, _ = run_engine(decoder, config, requests, torch.float32, attention="reference")
    for name, settings in (
        ("graphs off", {"graphs": False}),
        ("graphs on", {"graphs": True}),
        ("overlap off", {"overlap": False}),
    ):
        answers, _, statistics = run_engine(decoder, config, requests, torch.float32, **settings)
        different = sum(mine != theirs for mine, theirs in zip(answers, expected, strict=True))
        # Random weights give close logits: a rare tie may fall to the other side.
        note = f"decoding took {statistics.decode_seconds:.2f} s"
        report.add(f"answers unlike the reference's, {name}", different, f"of {len(requests)}", different <= 1, note)


def measure_model(report: Report) -> None:
    """A 7B-shaped model on documents of 8,000 tokens with 64 questions each: sharing on and off, graphs on and off."""
    config = ModelConfig.from_dict(TINY if SMOKE else LLAMA_8B)
    dtype = torch.float32 if SMOKE else torch.bfloat16
    decoder = Decoder(config, random_weights(config, dtype, DEVICE, seed=1))
    questions = 2 if SMOKE else 64
    requests = requests_about(1 if SMOKE else 3, questions, 150 if SMOKE else 8000, 3 if SMOKE else 48, 60)
    cases = (
        ("shared, graphs", {}),
        ("shared, no graphs", {"graphs": False}),
        ("not shared, graphs", {"share_prefixes": False}),
        ("shared, graphs, no overlap", {"overlap": False}),
        *((f"shared, graphs, {name} KV", {"kv_dtype": name}) for name in list(kv_dtypes())[-1:]),
    )
    for name, settings in cases:
        if time.monotonic() - report.started > BUDGET_SECONDS:
            report.add(f"8B model, {name}", None, "", False, "not reached in time")
            continue
        _, seconds, statistics = run_engine(decoder, config, requests, dtype, **settings)
        tokens = sum(request.sampling.max_tokens for request in requests)
        prompt_tokens = sum(len(request.prompt) for request in requests)
        note = (
            f"{seconds:.1f} s; decode {tokens / max(statistics.decode_seconds, 1e-9):.0f} tokens/s, "
            f"{prompt_tokens / seconds:.0f} prompt tokens/s"
        )
        report.add(f"8B model, {name}", len(requests) / seconds, "answers/s", note=note)


def main() -> int:
    """Run everything; 0 if all checks are fine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, in Triton's interpreter")
    parser.parse_args()
    if not SMOKE and not torch.cuda.is_available():
        print("torch finds no GPU here; use --smoke to try the script without one.", file=sys.stderr)
        return 2
    card = "none (interpreter)" if SMOKE else torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    report, peaks = Report(), Peaks()
    report.attempt("attention", check_attention)
    report.attempt("8 bits", check_8_bits)
    report.attempt("rows", check_rows)
    report.attempt("sampling", check_sampling)
    report.attempt("small model", check_model)
    report.attempt("peaks", peaks.measure)
    report.attempt("attention speed", peaks.measure_attention)
    report.attempt("8B model", measure_model)
    seconds = time.monotonic() - report.started
    out = Path(os.environ.get("OUT", "."))
    result = {
        "card": card,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "seconds": round(seconds, 1),
        "rows": report.rows,
    }
    (out / "gpu_check.json").write_text(json.dumps(result, indent=1))
    print(f"\n{card}, torch {torch.__version__}, triton {triton.__version__}, {seconds:.0f} s")
    for row in report.rows:
        print(_line(row))
    return 0 if all(row["ok"] for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
