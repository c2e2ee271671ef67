"""Named workloads as jobs: documents, questions, prompt texts and schema. Deterministic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"

SYSTEM = (
    "You answer questions about one document. Reply with one JSON object: verdict is true, false or not mentioned, "
    "quote is the sentence of the document that shows it."
)
VERDICT = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["true", "false", "not mentioned"]},
        "quote": {"type": "string", "maxLength": 160},
    },
    "required": ["verdict", "quote"],
    "additionalProperties": False,
}
LONG_ANSWER = {
    "type": "object",
    "properties": {"summary": {"type": "string", "maxLength": 400}, "quote": {"type": "string", "maxLength": 300}},
    "required": ["summary", "quote"],
    "additionalProperties": False,
}

Rows = list[dict[str, str]]


def contracts(documents: int) -> tuple[Rows, dict[str, Any], int]:
    """ContractNLI agreements, 17 statements each, shuffled: the comparison with other engines."""
    folder = SHARED / "contractnli_dev"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not here; this workload needs the shared data beside the project")
    texts = pq.read_table(folder / "documents.parquet").to_pylist()[:documents]
    questions = pq.read_table(folder / "questions.parquet").to_pylist()
    rows = [
        {"doc_id": str(text["doc_id"]), "document": text["document"],
         "question_id": str(question["question_id"]), "question": question["question"]}
        for text in texts for question in questions
    ]  # fmt: skip
    random.Random(7).shuffle(rows)
    return rows, VERDICT, 120


def one_document(questions: int) -> tuple[Rows, dict[str, Any], int]:
    """Many questions on one document of about 6,000 tokens."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in _sample_documents()[:3])
    rows = [
        {"doc_id": "handbooks", "document": text, "question_id": f"q{i}", "question": f"{question} (question {i})"}
        for i, question in enumerate(_sample_questions(questions))
    ]
    return rows, VERDICT, 120


def unrelated(documents: int) -> tuple[Rows, dict[str, Any], int]:
    """Short documents with nothing in common, one question each: what grouping costs where it gains nothing."""
    sentences = [
        line for path in _sample_documents() for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 40
    ]
    dice = random.Random(3)
    questions = _sample_questions(documents)
    rows = [
        {"doc_id": f"d{i}", "document": f"{dice.getrandbits(60):x} " + " ".join(dice.sample(sentences, 2))[:500],
         "question_id": "q", "question": questions[i]}
        for i in range(documents)
    ]  # fmt: skip
    return rows, VERDICT, 40


def prefill(documents: int) -> tuple[Rows, dict[str, Any], int]:
    """Documents of about 3,000 tokens, one question and one token of answer each: nothing but prefill."""
    texts = [path.read_text(encoding="utf-8") for path in _sample_documents()]
    rows = [
        {"doc_id": f"d{i}", "document": f"Copy {i}. " + (texts[i % 4] + texts[(i + 1) % 4])[:11200],
         "question_id": "q", "question": "What is this?"}
        for i in range(documents)
    ]  # fmt: skip
    return rows, VERDICT, 1


def sample(questions: int) -> tuple[Rows, dict[str, Any], int]:
    """The rows of the sample job, with its schema but this benchmark's prompt texts."""
    table = pq.read_table(
        ROOT / "sample_data" / "questions.parquet", columns=["doc_id", "document", "question_id", "question"]
    )
    schema = json.loads((ROOT / "sample_data" / "verdict.json").read_text(encoding="utf-8"))
    return table.to_pylist()[:questions], schema, 96


def long_answers(questions: int) -> tuple[Rows, dict[str, Any], int]:
    """Answers of some hundred tokens on the four sample documents."""
    rows = [
        {
            "doc_id": path.stem,
            "document": path.read_text(encoding="utf-8"),
            "question_id": f"q{i}",
            "question": question,
        }
        for path in _sample_documents()
        for i, question in enumerate(_sample_questions(questions))
    ]
    return rows, LONG_ANSWER, 250


def mixed(documents: int) -> tuple[Rows, dict[str, Any], int]:
    """Few long documents with many questions and many short ones with one, shuffled together."""
    rows = long_answers(12)[0] + unrelated(documents)[0]
    random.Random(5).shuffle(rows)
    return rows, VERDICT, 120


WORKLOADS: dict[str, tuple[Callable[[int], tuple[Rows, dict[str, Any], int]], int]] = {
    "contracts": (contracts, 16),
    "one-document": (one_document, 64),
    "unrelated": (unrelated, 1000),
    "prefill": (prefill, 12),
    "sample": (sample, 47),
    "long-answers": (long_answers, 8),
    "mixed": (mixed, 100),
}
"""By name: the function, and the size it takes when none is given."""


def write_job(name: str, size: int | None, folder: Path, settings: list[str]) -> Path:
    """Write the workload's Parquet file, schema and job file to `folder`; returns the job file."""
    make, default_size = WORKLOADS[name]
    rows, schema, max_tokens = make(size or default_size)
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    (folder / "schema.json").write_text(json.dumps(schema))
    job = folder / "job.toml"
    job.write_text(
        f'[job]\nname = "{name}"\n[input]\ndocuments = "rows.parquet"\n'
        f"[prompt]\nsystem = {json.dumps(SYSTEM)}\n"
        '[answer]\nschema = "schema.json"\n'
        f"[sampling]\nmax_tokens = {max_tokens}\n" + "\n".join(settings) + "\n"
    )
    return job


def _sample_documents() -> list[Path]:
    return sorted((ROOT / "sample_data" / "documents").glob("*.md"))


def _sample_questions(count: int) -> list[str]:
    questions = pq.read_table(ROOT / "sample_data" / "questions.parquet", columns=["question"]).column(0).to_pylist()
    return [questions[i % len(questions)] for i in range(count)]
