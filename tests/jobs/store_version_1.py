"""A database as the first version of docqa made it. Frozen: it must never follow changes to the store."""

import duckdb

STATEMENTS = """
CREATE TABLE docqa_meta (key VARCHAR, value VARCHAR);
CREATE TABLE docqa_schemas (schema_name VARCHAR, view_name VARCHAR, schema JSON);
CREATE TABLE runs (run_id VARCHAR, job_name VARCHAR, status VARCHAR, started_at TIMESTAMP, finished_at TIMESTAMP,
    model VARCHAR, model_fingerprint VARCHAR, config JSON, rows_total BIGINT, rows_ok BIGINT, rows_failed BIGINT,
    prompt_tokens BIGINT, minimum_tokens BIGINT, computed_tokens BIGINT, cached_tokens BIGINT, output_tokens BIGINT,
    forced_tokens BIGINT, load_seconds DOUBLE, seconds DOUBLE, rows_reused BIGINT, error VARCHAR);
CREATE TABLE documents (document_hash VARCHAR, characters BIGINT, tokens BIGINT);
CREATE TABLE answers (run_id VARCHAR, attempt BIGINT, doc_id VARCHAR, question_id VARCHAR, document_hash VARCHAR,
    question VARCHAR, schema_name VARCHAR, status VARCHAR, answer JSON, raw_text VARCHAR, error VARCHAR,
    finish_reason VARCHAR, prompt_tokens BIGINT, cached_tokens BIGINT, computed_tokens BIGINT, output_tokens BIGINT,
    ttft_seconds DOUBLE, latency_seconds DOUBLE, answered_at TIMESTAMP, extra JSON, request_digest VARCHAR,
    minimum_tokens BIGINT);
CREATE VIEW latest_answers AS SELECT run_id, attempt, doc_id, question_id, document_hash, question, schema_name, status,
    answer, raw_text, error, finish_reason, prompt_tokens, cached_tokens, computed_tokens, output_tokens, ttft_seconds,
    latency_seconds, answered_at, extra, request_digest, minimum_tokens FROM answers WHERE rowid IN (
        SELECT arg_max(rowid, attempt + CASE WHEN status = 'ok' THEN 1000000000000 ELSE 0 END)
        FROM answers GROUP BY doc_id, question_id);
CREATE VIEW errors AS SELECT doc_id, question_id, status, error, run_id, attempt, finish_reason, answered_at
    FROM latest_answers WHERE status <> 'ok';
CREATE VIEW reuse_by_document AS SELECT run_id, document_hash, count(*) AS "rows",
    CAST(coalesce(sum(prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
    CAST(coalesce(sum(minimum_tokens), 0) AS BIGINT) AS minimum_tokens,
    CAST(coalesce(sum(computed_tokens), 0) AS BIGINT) AS computed_tokens,
    CAST(coalesce(sum(cached_tokens), 0) AS BIGINT) AS cached_tokens
    FROM answers WHERE document_hash IS NOT NULL GROUP BY run_id, document_hash;
CREATE VIEW answers_verdict AS SELECT doc_id, question_id, answer->>'a' AS a FROM latest_answers
    WHERE status = 'ok' AND schema_name = 'verdict';
INSERT INTO docqa_meta VALUES ('store_version', '1');
INSERT INTO docqa_schemas VALUES ('verdict', 'answers_verdict', '{}');
"""


def make_store_of_version_1(path, rows=2):
    """Make it, with one finished run of `rows` valid answers by the digests `digest0`, ..."""
    with duckdb.connect(str(path), config={"storage_compatibility_version": "v1.1.0"}) as connection:
        connection.execute(STATEMENTS)
        connection.execute(
            "INSERT INTO runs VALUES ('old', 'job', 'finished', '2026-01-01', '2026-01-01', 'm', 'f', '{}', $rows, "
            "$rows, 0, 0, 0, 0, 0, 0, 0, 1.0, 2.0, 0, NULL)",
            {"rows": rows},
        )
        connection.execute(
            "INSERT INTO answers SELECT 'old', 1, 'd' || range, 'q', NULL, 'Q?', 'verdict', 'ok', '{\"a\":\"x\"}', "
            "'raw', NULL, 'stop', NULL, NULL, NULL, NULL, NULL, NULL, '2026-01-01', NULL, 'digest' || range, NULL "
            "FROM range($rows)",
            {"rows": rows},
        )
