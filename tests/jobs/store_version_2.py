"""A database as the second version of docqa made it. Frozen: it must never follow changes to the store."""

import json

import duckdb

from tests.jobs.store_version_1 import make_store_of_version_1

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "x-docqa": "quote"}}}
COLUMNS = """run_id, attempt, doc_id, question_id, document_hash, question, schema_name, status, answer, raw_text,
    error, finish_reason, prompt_tokens, cached_tokens, computed_tokens, output_tokens, ttft_seconds, latency_seconds,
    answered_at, extra, request_digest, minimum_tokens, request_parts"""
STATEMENTS = f"""
ALTER TABLE runs ADD COLUMN rows_removed BIGINT DEFAULT 0;
ALTER TABLE runs ALTER COLUMN rows_removed DROP DEFAULT;
ALTER TABLE answers ADD COLUMN request_parts JSON;
CREATE OR REPLACE VIEW latest_answers AS SELECT {COLUMNS} FROM answers WHERE rowid IN (
    SELECT arg_max(rowid, attempt + CASE WHEN status = 'ok' THEN 1000000000000 ELSE 0 END)
    FROM answers GROUP BY doc_id, question_id);
UPDATE docqa_meta SET value = '2' WHERE key = 'store_version';
"""


def make_store_of_version_2(path, rows=2):
    """The store of version 1 as version 2 brought it on, but its schema marks `a` as a quote."""
    make_store_of_version_1(path, rows)
    with duckdb.connect(str(path)) as connection:
        connection.execute(STATEMENTS)
        connection.execute("UPDATE docqa_schemas SET schema = ?", [json.dumps(SCHEMA)])
