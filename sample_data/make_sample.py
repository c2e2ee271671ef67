"""Builds questions.parquet, the `long` input layout, from documents/*.md and questions.toml.

python sample_data/make_sample.py            writes questions.parquet
python sample_data/make_sample.py --check    exit 1 if questions.parquet is not what the sources make
"""

import argparse
import json
import random
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
PARQUET = HERE / "questions.parquet"
SHUFFLE_SEED = 20250701
COLUMNS = ("doc_id", "document", "question_id", "question", "gold", "topic")
SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])


def load_documents() -> dict[str, str]:
    """The text of each file of documents/ by its name without `.md`."""
    return {path.stem: path.read_bytes().decode() for path in sorted((HERE / "documents").glob("*.md"))}


def load_questions() -> dict[str, list[dict[str, str]]]:
    """The entries of questions.toml by document: `id`, `topic`, `question`, `verdict` and `quote`."""
    return tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8"))


def make_table() -> pa.Table:
    """One row for each question, shuffled so that the rows of a document are not neighbours.

    Raises ValueError, naming the question, for an unknown document or a quote that its document doesn't contain.
    """
    documents = load_documents()
    rows = []
    for doc_id, entries in load_questions().items():
        if doc_id not in documents:
            raise ValueError(f"questions.toml: [[{doc_id}]] has no file documents/{doc_id}.md")
        for entry in entries:
            if entry["quote"] not in documents[doc_id]:
                raise ValueError(f"questions.toml: {entry['id']}: quote is not in documents/{doc_id}.md")
            gold = {"verdict": entry["verdict"], "quote": entry["quote"]}
            rows.append(
                {
                    "doc_id": doc_id,
                    "document": documents[doc_id],
                    "question_id": entry["id"],
                    "question": entry["question"],
                    "gold": json.dumps(gold, ensure_ascii=False),
                    "topic": entry["topic"],
                }
            )
    # NOTE: Python promises the same random() for a seed in every version, but not the same shuffle().
    generator = random.Random(SHUFFLE_SEED)
    rows.sort(key=lambda row: generator.random())
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def write_table(table: pa.Table, path: Path) -> None:
    """Writes `table`; the same bytes for the same table and pyarrow version."""
    pq.write_table(table, path, compression="zstd", compression_level=19, use_dictionary=True)


def is_current(table: pa.Table, path: Path) -> bool:
    """Whether the file at `path` holds exactly `table`.

    Tables are compared, not bytes: the file's footer names the pyarrow version that wrote it.
    """
    return path.is_file() and pq.ParquetFile(path).read().equals(table, check_metadata=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description="Builds sample_data/questions.parquet from its sources.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is out of date")
    options = parser.parse_args(arguments)
    try:
        table = make_table()
        if not options.check:
            write_table(table, PARQUET)
        elif not is_current(table, PARQUET):
            print(f"{PARQUET} is out of date; run: python sample_data/make_sample.py", file=sys.stderr)
            return 1
    except (ValueError, KeyError, OSError) as error:  # pyarrow's ArrowInvalid is a ValueError
        print(f"make_sample: {error!r}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
