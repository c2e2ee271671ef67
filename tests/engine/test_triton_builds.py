"""Every Triton kernel, compiled for cards that are not here: no spills, and shared memory that the card has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kernel_resources.py"
MODELS = ["Llama-3-8B", "Qwen2.5-7B", "Qwen3-8B", "SmolLM2-135M", "Gemma-3-4B"]
KERNELS = {"attention small", "attention large", "merge", "add and norm", "gate", "rotate and write", "sample"}
KERNELS |= {"log probability"}


def build(tmp_path, *options):
    """Run the script without the interpreter, which this process has on; print and return its table."""
    table = tmp_path / "table.json"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, SCRIPT, "--json", table, *options]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(run.stdout)
    assert table.exists(), run.stderr
    return json.loads(table.read_text()), run.returncode


def check(table, models, cards=(80, 90)):
    for entry in table:
        assert entry["spilled_bytes"] == 0, entry
        assert entry["fits"], entry
    combinations = {(entry["model"], entry["capability"], entry["kernel"]) for entry in table}
    assert combinations == {(model, card, kernel) for model in models for card in cards for kernel in KERNELS}


def test_the_kernels_of_smollm2_fit(tmp_path):
    table, status = build(tmp_path, "--model", "SmolLM2-135M")
    check(table, ["SmolLM2-135M"])
    assert status == 0


@pytest.mark.parametrize(("kv", "card"), [("int8", 80), ("fp8", 90)])
def test_the_attention_kernels_over_8_bits_fit(tmp_path, kv, card):
    kernels = ["--kernel", "attention", "--kernel", "rotate"]
    table, status = build(tmp_path, "--model", "SmolLM2-135M", "--capability", str(card), "--kv", kv, *kernels)
    assert [entry["kernel"] for entry in table] == ["attention small", "attention large", "rotate and write"]
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize("element", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("variant", ["plain", "windows", "windows and soft caps"])
def test_the_kernels_of_every_model_fit(tmp_path, variant, element):
    table, status = build(tmp_path, "--variant", variant, "--element", element)
    check(table, MODELS)
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kv", "cards"), [("int8", (80, 90)), ("fp8", (90,))])
@pytest.mark.parametrize("variant", ["plain", "windows and soft caps"])
@pytest.mark.parametrize("element", ["bf16", "fp16"])
def test_the_kernels_of_every_model_fit_over_8_bits(tmp_path, kv, cards, variant, element):
    table, status = build(tmp_path, "--variant", variant, "--kv", kv, "--element", element)
    check(table, MODELS, cards)
    assert status == 0


@pytest.mark.slow
def test_the_check_for_gpus_runs_without_one(tmp_path):
    script = SCRIPT.with_name("gpu_check.sh")
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    run = subprocess.run([script, "--smoke"], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["card"] == "none (interpreter)"
    assert len(report["rows"]) >= 18
    assert all(row["ok"] and row["value"] is not None for row in report["rows"])
    assert run.stdout.count(report["rows"][-1]["name"]) == 2, "as it is measured, and in the table"
