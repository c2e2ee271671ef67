"""The documents' texts for the page of a report. The database has only their hashes, so they come from the input."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.job_file import load_job
from jobs.job_settings import InputSettings
from jobs.source import read_documents

MOST_DOCUMENT_BYTES = 5 << 20
"""What a page holds of documents at most; those that don't fit are left out whole, and the page says so."""


def document_texts(sources: Sequence[Path], wanted: Collection[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The texts of the wanted documents by hash, as far as the input still has them.

    `sources` are job files, or Parquet files that have documents: files, folders or globs, whose columns are named as
    `columns` says. Raises JobError for one that can't be used.
    """
    inputs = [(job.input, job.folder) for job in (load_job(path) for path in sources if path.suffix == ".toml")]
    paths = tuple(str(path) for path in sources if path.suffix != ".toml")
    if paths:
        inputs.append((InputSettings(paths, columns=columns), Path.cwd()))
    texts: dict[str, str] = {}
    for settings, folder in inputs:
        documents = read_documents(settings, folder)
        texts |= {name: documents[name].text for name in wanted if name in documents}
    return texts


def fitting_texts(texts: Mapping[str, str], hashes: Iterable[str]) -> tuple[dict[str, str], int]:
    """The texts that fit on a page, by hash, those of the first hashes first; and how many there was no room for."""
    kept: dict[str, str] = {}
    size = left_out = 0
    for document_hash in dict.fromkeys(hashes):
        text = texts.get(document_hash)
        if text is None:
            continue
        # As the page writes it: quotes, backslashes and control characters are escaped, and `<` takes 6 bytes.
        bytes_needed = len(text.encode(errors="replace")) + 5 * text.count("<") + text.count('"') + text.count("\\")
        bytes_needed += 5 * sum(text.count(chr(code)) for code in range(32)) + 100
        if size + bytes_needed > MOST_DOCUMENT_BYTES:
            left_out += 1
        else:
            size += bytes_needed
            kept[document_hash] = text
    return kept, left_out


def document_note(report: Mapping[str, Any], documents: Mapping[str, str] | None, shown: int, left_out: int) -> str:
    """A sentence on which documents the page has the text of."""
    if documents is None:
        return (
            "The database does not hold the documents' text; docqa report --documents JOB reads it from the input and "
            "shows it here, beside each answer."
        )
    total = len(report["documents"])
    missing = total - shown - left_out
    notes = [f"Answers stand beside their document: {shown:,} of {total:,} texts are here."]
    if left_out:
        notes.append(f"{left_out:,} are left out to keep the page small.")
    if missing > 0:
        notes.append(f"{missing:,} are not in the input any more, have changed since, or belong to no row shown.")
    return " ".join(notes)
