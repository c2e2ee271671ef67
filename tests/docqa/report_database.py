"""Databases for the tests of reports: written by the store as a run would, without a model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from jobs.journal_records import RunEnding
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, RunRecord

START = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
OPENING_TOKENS = 120
HOSTILE = '</script><script>document.title="broken"</script><img src=x onerror=alert(1)>&amp;"\'\u2028'
QUESTIONS = [
    "Is the receiving party obliged to keep what it was told confidential after the agreement has ended?",
    "ما هي مدة الاتفاقية؟",
    "Who may be told of the existence of the agreement?",
    HOSTILE,
    "合同由谁签署",
]
ERRORS = [
    ("truncated", "the answer was cut after {} tokens (sampling.max_tokens); raise the limit and retry"),
    ("too_long", "the prompt has {} tokens and the model's context takes 8,192; shorten the document"),
    ("schema_violation", "$.quote: 'text {}' is longer than 200"),
    ("failed", HOSTILE + " {}"),
]


def write_run(path, run_id, *, documents=4, questions=5, failing=0.0, changing=0.0, seed=0, start=START, schemas=1,
              job_name="contracts-nightly"):  # fmt: skip
    """A finished run of documents x questions; shares of its rows fail, or answer other than `seed` 0 would.

    Each document has 400 tokens more than the one before; the rows of a document follow each other in the prefix
    tree, share OPENING_TOKENS with all others, and have up to 20 tokens of their own.
    """
    store = AnswerStore(path)
    total = documents * questions
    config = json.dumps({"prompt": {"system": HOSTILE}})
    store.begin_run(RunRecord(run_id=run_id, job_name=job_name, started_at=start, rows_total=total, config=config,
                              model="smollm2-135m-instruct"))  # fmt: skip
    draw = random.Random(seed)
    records, known = [], []
    for d in range(documents):
        document_hash = f"{d:064x}"
        tokens = 400 * (1 + d % 20)
        known.append(DocumentRecord(document_hash, tokens * 4, tokens))
        for q in range(questions):
            shared = 0 if d == q == 0 else OPENING_TOKENS if q == 0 else OPENING_TOKENS + tokens
            prompt = OPENING_TOKENS + tokens + 5 + q % 16
            ttft = 0.05 + draw.expovariate(2) + (tokens / 4000 if q == 0 else 0)
            number = d * questions + q
            answer = {"verdict": ["true", "false", "not mentioned"][number % 3],
                      "quote": f"Clause {number}: {HOSTILE if number % 97 == 0 else 'shall keep it secret'}",
                      "page": number}  # fmt: skip
            if draw.random() < changing:
                answer["verdict"] = "changed"
            record = AnswerRecord(
                run_id=run_id, doc_id=f"contract-{d:03}", question_id=f"q{q:02}", document_hash=document_hash,
                question=QUESTIONS[q % len(QUESTIONS)] + (f" ({q})" if q >= len(QUESTIONS) else ""),
                schema_name=f"schema{q % schemas}", status="ok", answer=json.dumps(answer, ensure_ascii=False),
                raw_text=json.dumps(answer), finish_reason="stop", prompt_tokens=prompt, cached_tokens=shared,
                computed_tokens=prompt - shared, minimum_tokens=prompt - shared, output_tokens=20 + q % 7,
                ttft_seconds=ttft, latency_seconds=ttft + 0.2 + draw.expovariate(1),
                answered_at=start + timedelta(seconds=8 + number * 0.05),
            )  # fmt: skip
            if draw.random() < failing:
                status, error = ERRORS[number % len(ERRORS)]
                record = replace(record, status=status, answer=None, error=error.format(draw.randint(100, 9999)),
                                 finish_reason="length")  # fmt: skip
                if status == "too_long":
                    nothing = ("prompt_tokens", "cached_tokens", "computed_tokens", "minimum_tokens", "output_tokens",
                               "ttft_seconds", "latency_seconds", "raw_text", "finish_reason")  # fmt: skip
                    record = replace(record, **dict.fromkeys(nothing))
            records.append(record)
    store.write_answers(records, known)
    seconds = 8 + total * 0.05
    store.finish_run(RunEnding(run_id=run_id, status="finished", finished_at=start + timedelta(seconds=seconds + 2),
                               forced_tokens=total, load_seconds=4.0, seconds=seconds - 2))  # fmt: skip
    return store
