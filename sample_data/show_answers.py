"""Print a few answers of a database beside their gold answers: show_answers.py DATABASE [ROWS]."""

import sys

import duckdb

QUERY = """
    SELECT doc_id, question, answer->>'verdict' AS verdict, answer->>'quote' AS quote,
           (extra->>'gold')::JSON->>'verdict' AS gold
    FROM latest_answers ORDER BY doc_id, question_id LIMIT ?
"""

database, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
with duckdb.connect(database, read_only=True) as connection:
    for doc_id, question, verdict, quote, gold in connection.execute(QUERY, [rows]).fetchall():
        print(f'{doc_id}: {question}\n  {verdict} (gold: {gold}); "{quote}"')
