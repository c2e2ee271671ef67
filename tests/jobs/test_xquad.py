"""XQuAD in English and Chinese from Parquet to the database, on the embedded model (cases 28 and 79 of NEEDS.md)."""

import json

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs.test_run import assert_sound, run

LANGUAGES = ["en", "zh"]

JOB = """
[input]
documents = "rows.parquet"
[answer]
schema = "quoted.json"
[sampling]
max_tokens = 40
[run]
max_failures = "100%"
"""

QUOTE = {"type": "string", "x-docqa": "quote", "maxLength": 20}

# What stands in the Parquet file, a row a question, beside what the database has of it.
SIDE_BY_SIDE = """
    WITH asked AS (
        SELECT doc_id, document, unnest(questions, recursive := true) FROM read_parquet($path)
    )
    SELECT asked.*, answers.* EXCLUDE (doc_id, question_id, question), answers.question AS stored_question,
        documents.characters
    FROM asked LEFT JOIN answers.latest_answers AS answers USING (doc_id, question_id)
    LEFT JOIN answers.documents AS documents USING (document_hash)
"""

SURVIVES = """
    SELECT count(*) AS rows,
        count(*) FILTER (document_hash = sha256(document)) AS documents,
        count(*) FILTER (characters = length(document)) AS lengths,
        count(*) FILTER (encode(stored_question) = encode(question)) AS questions,
        count(*) FILTER (CAST(extra->'gold' AS VARCHAR[]) = gold) AS golds,
        count(*) FILTER (status IN ('ok', 'truncated')) AS answered
    FROM side_by_side
"""

PLACES = """
    SELECT count(*) AS quotes, count(*) FILTER (place.exact) AS exact,
        count(*) FILTER (substring(document, place.start + 1, place.end - place.start) = answer->>'quote') AS same,
        count(*) FILTER (NOT place.found AND contains(document, answer->>'quote')) AS missed
    FROM (
        SELECT document, answer,
            CAST(quotes->'$."/quote"' AS STRUCT("start" INT, "end" INT, found BOOL, exact BOOL)) AS place
        FROM side_by_side WHERE status = 'ok' AND answer->>'quote' <> ''
    )
"""


def documents_of(shared_data, language, documents, questions):
    """The first documents with their first questions, as the table of the file."""
    table = pq.read_table(shared_data / f"xquad_{language}" / "nested.parquet").slice(0, documents)
    asked = [found[:questions] for found in table["questions"].to_pylist()]
    return table.set_column(2, "questions", pa.array(asked, table["questions"].type))


def run_and_compare(folder, table):
    """Run the job; the counts of SURVIVES and of PLACES."""
    pq.write_table(table, folder / "rows.parquet")
    (folder / "quoted.json").write_text(
        json.dumps({"type": "object", "properties": {"quote": QUOTE}, "required": ["quote"]})
    )
    (folder / "job.toml").write_text(JOB)
    outcome = run(folder / "job.toml")
    record = outcome.run
    assert (record.status, record.computed_tokens) == ("finished", record.minimum_tokens)
    assert_sound(outcome.database)
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{outcome.database}' AS answers (READ_ONLY)")
        path = {"path": str(folder / "rows.parquet")}
        connection.execute(f"CREATE TABLE side_by_side AS {SIDE_BY_SIDE}", path)
        return [connection.sql(query).to_arrow_table().to_pylist()[0] for query in (SURVIVES, PLACES)]


def assert_survived(counts, rows):
    assert counts == dict.fromkeys(("rows", "documents", "lengths", "questions", "golds", "answered"), rows)


def test_a_few_rows_with_quotes_that_are_known(shared_data, tmp_path, embedded_folder):
    """Each row's own schema leaves it its gold, which stands in the document; the first rows are Chinese."""
    table = pa.concat_tables(documents_of(shared_data, language, 1, 2) for language in reversed(LANGUAGES))
    asked = table["questions"].to_pylist()
    for question in (question for questions in asked for question in questions):
        quoted = {"quote": QUOTE | {"enum": [question["gold"][0]], "maxLength": 200}}
        question["schema"] = json.dumps({"type": "object", "properties": quoted, "required": ["quote"]})
    table = table.set_column(2, "questions", pa.array(asked))
    table = table.set_column(0, "doc_id", pa.array([f"d{number}" for number in range(len(table))]))
    survived, places = run_and_compare(tmp_path, table)
    assert_survived(survived, 4)
    assert places == {"quotes": 4, "exact": 4, "same": 4, "missed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_some_hundred_rows(shared_data, tmp_path, embedded_folder, language):
    table = documents_of(shared_data, language, 60, 100)
    survived, places = run_and_compare(tmp_path, table)
    print(survived, places)
    assert_survived(survived, sum(map(len, table["questions"].to_pylist())))
    assert places["quotes"] > 0
    assert places["exact"] == places["same"]
    assert places["missed"] == 0
