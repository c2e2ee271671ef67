"""A database as the third version of docqa made it. Frozen: it must never follow changes to the store."""

import duckdb

from tests.jobs.store_version_2 import COLUMNS, make_store_of_version_2

STATEMENTS = f"""
ALTER TABLE runs ADD COLUMN bad_files JSON;
ALTER TABLE answers ADD COLUMN quotes JSON;
CREATE OR REPLACE VIEW latest_answers AS SELECT {COLUMNS}, quotes FROM answers WHERE rowid IN (
    SELECT arg_max(rowid, attempt + CASE WHEN status = 'ok' THEN 1000000000000 ELSE 0 END)
    FROM answers GROUP BY doc_id, question_id);
UPDATE docqa_meta SET value = '3' WHERE key = 'store_version';
"""


def make_store_of_version_3(path, rows=2):
    """The store of version 2 as version 3 brought it on."""
    make_store_of_version_2(path, rows)
    with duckdb.connect(str(path)) as connection:
        connection.execute(STATEMENTS)
