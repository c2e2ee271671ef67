"""Plans and runs at the size people have, each in a process of its own, with its peak memory.

Words are drawn from a short list, as a night's documents repeat theirs; every question is another one.
"""

import json
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc"),
]

JOB = """
[job]
name = "scale"
[input]
documents = ["rows.parquet"]
[answer]
schema = "boolean"
[output]
database = "answers.duckdb"
"""

PEAK = """
    import json, os, sys, time
    from jobs.job_file import load_job
    from jobs.run import StopRequest, prepare, run_job
    def peak():
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    job = load_job(sys.argv[1])
"""

PLAN = (
    PEAK
    + """
    idle = peak()
    plan = prepare(job).plan
    figures = {"rows": len(plan.rows), "documents": len(plan.document_tokens), "prompt_tokens": plan.prompt_tokens,
               "minimum_tokens": plan.minimum_tokens, "document_tokens": sum(plan.document_tokens.values())}
    print(json.dumps(figures | {"idle_mib": idle, "peak_mib": peak(), "cpu_seconds": time.process_time()}))
"""
)

# An engine that answers at once: weights don't matter to what a run holds beside its engine.
STUB_RUN = (
    PEAK
    + """
    import itertools, jobs.run
    from types import SimpleNamespace
    from engine.forward_work import ForwardWork
    from engine.request import Completion, FinishReason
    started = time.monotonic()
    class StubEngine:
        def __init__(self, tokenizer):
            self.ready, self.first_seconds = time.monotonic(), None
            self.answer = tokenizer.encode('{"answer": true}', add_special_tokens=False)
            self.last_step = None
            self.settings = SimpleNamespace(page_size=16, kv_pages=1)
            self.statistics = SimpleNamespace(peak_pages=0, preemptions=0, drafted_tokens=0, accepted_tokens=0)
            self.work, self.kv_page_bytes = ForwardWork(0, {}), 0
            self.has_work = False
        def feed(self, requests):
            self.coming, self.has_work = iter(requests), True
        def submit(self, requests, **options):
            raise AssertionError("every answer is valid")
        def step(self):
            requests = list(itertools.islice(self.coming, 64))
            self.first_seconds = self.first_seconds or time.monotonic() - self.ready
            self.has_work = bool(requests)
            return [
                Completion(request.request_id, FinishReason.STOP, self.answer, len(request.prompt), 0,
                           len(request.prompt), ttft_seconds=0.0, latency_seconds=0.0)
                for request in requests
            ]
        def check(self):
            pass
    engines = []
    def make_engine(job, model, plan):
        engines.append(StubEngine(model.tokenizer))
        return engines[0]
    jobs.run.make_engine = make_engine
    outcome = run_job(job, command="test", stop=StopRequest())
    print(json.dumps({"rows": outcome.run.rows_ok, "status": outcome.exit_status, "waiting": outcome.rows_waiting,
                      "plan_seconds": engines[0].ready - started, "first_answer_seconds": engines[0].first_seconds,
                      "peak_mib": peak(), "cpu_seconds": time.process_time()}))
"""
)


def write_input(folder, documents, questions, characters, rows=None):
    """`rows` rows of so many documents with so many questions each."""
    words = [
        f"{stem}{ending}" for stem in ("contract", "rain", "notice", "week", "due") for ending in ("", "s", " of the")
    ]
    names = ("doc_id", "document", "question_id", "question")
    schema = pa.schema([(name, pa.string()) for name in names])
    left = documents * questions if rows is None else rows
    with pq.ParquetWriter(folder / "rows.parquet", schema, compression="zstd") as writer:
        for first in range(0, documents, 200):
            columns = {name: [] for name in names}
            for document in range(first, min(first + 200, documents)):
                chosen = [words[(document * 31 + place * place) % len(words)] for place in range(characters // 5)]
                text = f"Document {document}: {' '.join(chosen)}"[:characters]
                for question in range(min(questions, left)):
                    values = (f"d{document}", text, f"q{question}", f"What does {document} say of {question}?")
                    for name, value in zip(names, values, strict=True):
                        columns[name].append(value)
                left -= min(questions, left)
            writer.write_table(pa.table(columns, schema=schema))
    (folder / "job.toml").write_text(JOB)
    return folder / "job.toml"


def measured(program, job):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(job)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "."}, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout)
    print(figures)
    return figures


def test_a_plan_holds_no_prompts(tmp_path, embedded_folder):
    """100,000 rows over 5,000 documents of 4,000 characters: a tenth of the largest plan that is promised.

    The prompts alone would be 4 bytes for each of their tokens.
    """
    figures = measured(PLAN, write_input(tmp_path, 5000, 20, 4000))
    assert (figures["rows"], figures["documents"]) == (100_000, 5000)
    used = figures["peak_mib"] - figures["idle_mib"]
    # 2.5 KB a row; the imports of tokenizer and Arrow come on top.
    assert used < 100_000 * 2500 / 2**20 + 150
    assert figures["prompt_tokens"] > 10 * figures["minimum_tokens"]


def test_a_plan_holds_no_documents(tmp_path, embedded_folder):
    """6,000 documents of 30,000 characters: their text and ids lie in a file."""
    figures = measured(PLAN, write_input(tmp_path, 6000, 1, 30_000))
    assert (figures["rows"], figures["documents"]) == (6000, 6000)
    assert (6000 * 30_000 + 4 * figures["document_tokens"]) / 2**20 > 300
    # Imports, what Arrow keeps after reading and the windows that are encoded come to 250 MiB, however many there are.
    assert figures["peak_mib"] - figures["idle_mib"] < 300


def test_a_run_of_95000_rows_takes_less_than_twice_the_memory_of_5000(tmp_path, embedded_folder):
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small = measured(STUB_RUN, write_input(tmp_path / "small", 237, 22, 12_000, rows=5000))
    large = measured(STUB_RUN, write_input(tmp_path / "large", 4500, 22, 12_000, rows=95_000))
    assert (small["rows"], small["status"], small["waiting"]) == (5000, 0, 0)
    assert (large["rows"], large["status"], large["waiting"]) == (95_000, 0, 0)
    assert large["peak_mib"] < 2 * small["peak_mib"]
