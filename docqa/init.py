"""`docqa init`: a job that runs as it is, to change piece by piece."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from docqa.options import json_option, quiet_option
from jobs.errors import OutputError

FILES = {
    "job.toml": "the job, with a comment for each setting",
    "answer.json": "the JSON Schema of its answers",
    "questions.parquet": "its input: six questions about two documents",
}
_COLUMNS = ("doc_id", "document", "question_id", "question", "gold")


@click.command("init")
@click.argument("folder", default=".", type=click.Path(path_type=Path), metavar="[DIR]")
@quiet_option
@json_option
def command(folder: Path, quiet: bool, as_json: bool) -> None:
    """Write a commented job file, a schema and a small input that run as they are. Overwrites nothing."""
    written = make_job(folder)
    if as_json:
        click.echo(json.dumps({"files": [str(path) for path in written]}))
    else:
        for path in written:
            click.echo(f"{path}  {FILES[path.name]}")
    if not quiet:
        click.echo(f"docqa: next, docqa plan {folder / 'job.toml'} and docqa run {folder / 'job.toml'}", err=True)


def make_job(folder: Path) -> list[Path]:
    """Write the files of FILES into a folder, which is made if need be; all of them, or none.

    Raises OutputError if one of them is there already, or can't be written.
    """
    contents = {name: _content(name) for name in FILES}
    paths = {folder / name: content for name, content in contents.items()}
    there = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if there:
        raise OutputError(f"{', '.join(there)} is there already, and init overwrites nothing; name another folder")
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in paths.items():
            with path.open("xb") as file:  # fails, rather than overwrite what came in between
                written.append(path)
                file.write(content)
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise OutputError(f"{folder}: the job can't be written there ({error.strerror}); name another folder") from None
    return written


def _content(name: str) -> bytes:
    templates = files("docqa") / "templates"
    if name != "questions.parquet":
        return (templates / name).read_bytes()
    buffer = io.BytesIO()
    pq.write_table(_questions(json.loads((templates / "questions.json").read_text(encoding="utf-8"))), buffer)
    return buffer.getvalue()


def _questions(documents: list[dict[str, Any]]) -> pa.Table:
    """One row a question, in the long layout; gold as an answer would be."""
    rows = [
        (
            document["doc_id"],
            document["document"],
            asked["question_id"],
            asked["question"],
            json.dumps({"quote": asked["quote"], "verdict": asked["verdict"]}, ensure_ascii=False),
        )
        for document in documents
        for asked in document["questions"]
    ]
    columns = zip(*rows, strict=True)
    return pa.table({name: pa.array(values, pa.string()) for name, values in zip(_COLUMNS, columns, strict=True)})
