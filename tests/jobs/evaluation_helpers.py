"""Databases of synthetic answers, written as a run would write them."""

import json

from jobs.store import AnswerRecord, AnswerStore, RunEnding, RunRecord

VERDICT = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["true", "false", "not mentioned"]},
        "quote": {"type": "string", "maxLength": 160},
    },
    "required": ["verdict", "quote"],
    "additionalProperties": False,
}
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def write_run(path, answers, schema, *, run_id="r1", schema_name="verdict", confidences=None):
    """`answers`: (doc_id, question_id, answer value or None for a failed row, gold or None).

    `confidences`: JSON-ready, one a row, None for unknown.
    """
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id=run_id, rows_total=len(answers)))
    if schema is not None:
        store.define_schema_views({schema_name: schema})
    store.write_answers(
        [
            AnswerRecord(
                run_id=run_id,
                doc_id=doc_id,
                question_id=question_id,
                schema_name=schema_name,
                question="?",
                status="truncated" if value is None else "ok",
                answer=None if value is None else json.dumps(value, ensure_ascii=False),
                extra=None if gold is None else json.dumps({"topic": "t", "gold": gold}),
                confidence=None if confidence is None else json.dumps(confidence),
            )
            for (doc_id, question_id, value, gold), confidence in zip(
                answers, confidences or [None] * len(answers), strict=True
            )
        ]
    )
    store.finish_run(RunEnding(run_id=run_id, status="finished"))
    return store
