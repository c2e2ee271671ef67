"""Databases for the tests of reports: written by the store as a run would, without a model."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from engine.forward_work import ForwardWork
from engine.request import Completion, FinishReason
from jobs.journal_records import RunEnding
from jobs.segment_figures import segment_figures
from jobs.source_rows import text_hash
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, RunRecord

WORK = ForwardWork(200_000_000, {0: 70_000})
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
              job_name="contracts-nightly", evicting=0.0):  # fmt: skip
    """A finished run of documents x questions; shares of its rows fail, or answer other than `seed` 0 would.

    Of a share of the rows, `evicting`, 100 reused tokens had been evicted and were computed again.

    Each document has 400 tokens more than the one before; the rows of a document follow each other in the prefix
    tree, share OPENING_TOKENS with all others, and have up to 20 tokens of their own. The text is text_of(document).
    """
    store = AnswerStore(path)
    total = documents * questions
    config = json.dumps({"prompt": {"system": HOSTILE}})
    store.begin_run(RunRecord(run_id=run_id, job_name=job_name, started_at=start, rows_total=total, config=config,
                              model="smollm2-135m-instruct"))  # fmt: skip
    draw = random.Random(seed)
    records, known = [], []
    for d in range(documents):
        document_hash = text_hash(text_of(d))
        tokens = 400 * (1 + d % 20)
        known.append(DocumentRecord(document_hash, len(text_of(d)), tokens))
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
                answered_at=start + timedelta(seconds=8 + number * 0.05), repeated_tokens="{}",
                quotes=json.dumps({"/quote": quote_place(d, number)}),
                confidence='{"verdict": 0.875, "quote": null, "page": 1.0}',
            )  # fmt: skip
            if evicting and shared > 100 and draw.random() < evicting:
                record = replace(record, cached_tokens=shared - 100, computed_tokens=prompt - shared + 100,
                                 repeated_tokens='{"evicted":100}')  # fmt: skip
            if draw.random() < failing:
                status, error = ERRORS[number % len(ERRORS)]
                record = replace(record, status=status, answer=None, error=error.format(draw.randint(100, 9999)),
                                 finish_reason="length", quotes=None)  # fmt: skip
                if status == "too_long":
                    nothing = ("prompt_tokens", "cached_tokens", "computed_tokens", "minimum_tokens", "output_tokens",
                               "ttft_seconds", "latency_seconds", "raw_text", "finish_reason",
                               "repeated_tokens")  # fmt: skip
                    record = replace(record, **dict.fromkeys(nothing))
            if record.prompt_tokens is not None:
                parts = {"instructions": OPENING_TOKENS, "document": tokens, "question": 5 + q % 16}
                ended = Completion(0, FinishReason.STOP, [], prompt, record.cached_tokens, record.computed_tokens,
                                   repeated_tokens=json.loads(record.repeated_tokens))  # fmt: skip
                record = replace(record, prompt_segments=json.dumps(segment_figures([(parts, ended)], WORK)))
            records.append(record)
    store.write_answers(records, known)
    seconds = 8 + total * 0.05
    store.finish_run(RunEnding(run_id=run_id, status="finished", finished_at=start + timedelta(seconds=seconds + 2),
                               forced_tokens=total, load_seconds=4.0, seconds=seconds - 2,
                               **measured(records, seconds - 2)))  # fmt: skip
    return store


def text_of(number):
    """The text of a document; some have characters beyond the basic plane before their quotes."""
    face = "\U0001f600 " if number % 2 else ""
    return f"{face}{HOSTILE} Document {number}. " + "The parties shall keep it secret for ever. " * (3 + number % 20)


def quote_place(number, row):
    """Where the quote of a row stands; every fifth is not found."""
    if row % 5 == 4:
        return {"start": None, "end": None, "found": False, "exact": False}
    start = text_of(number).index("shall keep it secret")
    return {"start": start, "end": start + len("shall keep it secret"), "found": True, "exact": row % 2 == 0}


def measured(records, seconds, most_buckets=300):
    """Statistics and steps that fit the records: 60 % of the time for prompts, 30 % for output, 1 % for masks."""
    reached = [record for record in records if record.prompt_tokens is not None]
    count = min(most_buckets, max(len(reached), 1))
    groups = [reached[place * len(reached) // count : (place + 1) * len(reached) // count] for place in range(count)]
    each = seconds * 0.99 / count
    steps = [
        {"started_seconds": each * place, "seconds": each, "steps": 3, "running_rows": 8 + place % 5,
         "kv_pages": 100 + place, "prompt_tokens": sum(record.computed_tokens for record in group),
         "output_tokens": sum(record.output_tokens for record in group), "prompt_seconds": each * 0.6,
         "output_seconds": each * 0.3, "mask_seconds": each * 0.01}
        for place, group in enumerate(groups)
    ]  # fmt: skip
    summed = ("steps", "prompt_tokens", "output_tokens", "prompt_seconds", "output_seconds", "mask_seconds")
    statistics = {name: sum(step[name] for step in steps) for name in summed} | {
        "work": {"token_flops": WORK.token_flops, "key_flops": WORK.key_flops},
        "prompt_flops": sum(WORK.flops(record.cached_tokens, record.computed_tokens) for record in reached),
        "kv_page_tokens": 16, "kv_page_bytes": 16 * 23_040, "kv_pages": 1000, "kv_pages_at_peak": 100 + count,
        "kv_pages_smallest": 90, "copied_tokens": 7, "repeated_output_tokens": 0, "preemptions": 0,
        "drafted_tokens": 5, "accepted_tokens": 4,
    }  # fmt: skip
    return {"steps": steps, "statistics": json.dumps(statistics)}
