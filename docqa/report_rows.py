"""The rows and documents that the page of a report lists, within what a page can hold."""

from __future__ import annotations

import json
from typing import Any

from docqa.report_changes import CHANGES, changed_rows
from docqa.report_figures import rows_of
from docqa.report_reuse import saved_seconds
from jobs.store import AnswerStore
from jobs.store_schema import CONFIDENCE_VERSION, QUOTES_VERSION, STATISTICS_VERSION

MOST_ROW_BYTES = 11 << 20
MOST_ROW_BYTES_BESIDE_DOCUMENTS = 7 << 20
MOST_TEXT_CHARACTERS = 4_000
MOST_DOCUMENTS = 5_000
MOST_ID_CHARACTERS = 200
"""What a page holds at most, so that it stays below 15 MB and opens at once; the page says what it leaves out."""

ROW_COLUMNS = ("doc_id", "question_id", "question", "schema_name", "document_hash", "status", "change", "answer",
                "before", "error", "raw_text", "prompt_tokens", "cached_tokens", "output_tokens", "ttft_seconds",
                "latency_seconds", "quotes", "confidence", "minimum_tokens", "prompt_segments", "repeated_tokens",
                "saved_seconds")  # fmt: skip
REPEATED = ("doc_id", "question_id", "question", "schema_name", "document_hash", "status", "change", "prompt_segments",
            "repeated_tokens")  # fmt: skip
DOCUMENT_PLACE = ROW_COLUMNS.index("document_hash")
DOCUMENT_COLUMNS = ("document_hash", "doc_id_count", "rows", "rows_ok", "prompt_tokens", "minimum_tokens",
                    "computed_tokens", "cached_tokens", "seconds", "saved_seconds")  # fmt: skip


def page_data(store: AnswerStore, report: dict[str, Any], *, beside_documents: bool = False) -> dict[str, Any]:
    """What the page's script shows: `columns` and `rows` of the run, texts that repeat as places in `texts`.

    Rows are in the order of their keys. If not all fit, failed ones come first, then changed ones; `shown` says how
    many of `total` there are, and `texts_cut` how many texts were cut.
    """
    added = {"quotes": QUOTES_VERSION, "confidence": CONFIDENCE_VERSION, "prompt_segments": STATISTICS_VERSION,
             "repeated_tokens": STATISTICS_VERSION}  # fmt: skip
    later = ", ".join(name if store.version >= version else f"NULL AS {name}" for name, version in added.items())
    with store.reading() as connection:
        found = rows_of(connection)(
            "SELECT doc_id, question_id, question, schema_name, document_hash, status, answer, error, "
            "CASE WHEN status <> 'ok' THEN raw_text END AS raw_text, prompt_tokens, cached_tokens, output_tokens, "
            f"round(ttft_seconds, 3) AS ttft_seconds, round(latency_seconds, 3) AS latency_seconds, "
            f"minimum_tokens, {later} FROM answers WHERE run_id = ? ORDER BY doc_id, question_id",
            report["run_id"],
        )
        changes = changed_rows(connection, report["run_id"])
    for row in found:
        row["change"], row["before"] = changes.get((row["doc_id"], row["question_id"]), ("first", None))
        saved = saved_seconds(_flops_of(row["prompt_segments"]), report["statistics"])
        row["saved_seconds"] = None if saved is None else round(saved, 3)
    # What people look for first comes first, should the page not hold all.
    order = sorted(found, key=lambda row: (row["status"] == "ok", row["change"] != "changed"))
    texts: dict[str, int] = {}
    encoded: dict[tuple[str, str], list[Any]] = {}
    most_bytes = MOST_ROW_BYTES_BESIDE_DOCUMENTS if beside_documents else MOST_ROW_BYTES
    size = texts_cut = 0
    for row in order:
        cut = {name: cut_text(row[name]) for name in ROW_COLUMNS}
        new = {cut[name] for name in REPEATED if cut[name] is not None} - texts.keys()
        values = [texts.get(value, -1) if name in REPEATED else value for name, value in cut.items()]
        text = json.dumps([values, *new], ensure_ascii=False)
        size += len(text.encode()) + 5 * text.count("<")  # which the page writes as \u003c
        if size > most_bytes:
            break
        encoded[row["doc_id"], row["question_id"]] = [
            texts.setdefault(value, len(texts)) if name in REPEATED and value is not None else value
            for name, value in cut.items()
        ]
        texts_cut += sum(cut[name] is not row[name] for name in ROW_COLUMNS)
    documents = [
        [*(document[name] for name in DOCUMENT_COLUMNS), cut_text(document["doc_ids"][0], MOST_ID_CHARACTERS)]
        for document in report["documents"][:MOST_DOCUMENTS]
    ]
    return {
        "columns": ROW_COLUMNS,
        "repeated": REPEATED,
        "rows": [encoded[key] for key in sorted(encoded)],
        "texts": list(texts),
        "total": len(found),
        "shown": len(encoded),
        "texts_cut": texts_cut,
        "changes": CHANGES,
        "document_columns": [*DOCUMENT_COLUMNS, "doc_id"],
        "documents": documents,
    }


def _flops_of(segments: str | None) -> int | None:
    """The arithmetic that a row's segments saved."""
    return None if segments is None else sum(part["saved_flops"] for part in json.loads(segments).values())


def cut_text(value: Any, most_characters: int | None = None) -> Any:
    """The value itself, or of a text that is too long its beginning, which says so."""
    most = MOST_TEXT_CHARACTERS if most_characters is None else most_characters
    if not isinstance(value, str) or len(value) <= most:
        return value
    return f"{value[:most]} … cut here; {len(value):,} characters in the database"
