"""Gold: what the right answers are, from the input's own column or from a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.errors import InputError
from jobs.job_settings import InputSettings
from jobs.source import SHRINK, InputRow, read_input
from jobs.source_files import BadFile, OpenedFile, TooLarge, find_files, open_file, read_batches
from jobs.source_values import id_cells, json_cells

_SPAN = {"text", "answer_start"}

Key = tuple[str, str]
"""(doc_id, question_id)."""


@dataclass(frozen=True, slots=True)
class GoldDefect:
    """Something wrong with gold itself. It is counted, and never against an answer.

    `kind` is `offset` (its text does not stand where it says) or `value` (the schema admits no such answer).
    """

    kind: str
    doc_id: str
    question_id: str
    text: str


@dataclass
class Gold:
    """Gold by row. A value is JSON-ready: an object with a property each, one value, or a list of right ones."""

    source: str
    values: dict[Key, Any] = field(default_factory=dict)
    defects: list[GoldDefect] = field(default_factory=list)

    def add(self, key: Key, value: Any, document: str | None = None, place: str = "") -> None:
        """Add a row's gold; None and an empty object are none. `document`, if known, is what offsets point into.

        Raises InputError for a second, different gold of a key.
        """
        value, spans = _plain_gold(value)
        if value is None or value == {}:
            return
        if key in self.values and self.values[key] != value:
            raise InputError(f"{place or self.source}: {key[0]!r}, {key[1]!r} has two different golds; keep one")
        self.values[key] = value
        for text, start in spans:
            if document is not None and document[start : start + len(text)] != text:
                there = document[start : start + len(text)]
                self.defects.append(GoldDefect("offset", *key, f"at {start} stands {there!r}, not {text!r}"))


_INPUT_COLUMNS = (("document",), ("question", "questions"))
"""What a whole input has, one of each."""


def read_gold(path: Path, columns: Mapping[str, str] | None = None) -> Gold:
    """Gold from a Parquet file with `doc_id`, `question_id` and `gold`, or from a whole input with a `gold` column.

    `columns` maps these names to the file's own. Raises InputError.
    """
    mapping = dict(columns or {})
    files, _ = find_files([str(path)], Path.cwd(), "--gold")
    opened = []
    for file in files:
        try:
            opened.append(open_file(file))
        except BadFile as bad:
            raise InputError(f"{file.name} can't be read as Parquet: {bad}; write it again") from None
    gold = Gold(str(path))
    names = {name for one in opened for name in one.schema.names}
    if all(any(mapping.get(name, name) in names for name in wanted) for wanted in _INPUT_COLUMNS):
        data = read_input(InputSettings(documents=(str(path),), columns=mapping), Path.cwd())
        for row in data.rows:
            gold.add(_key(row), row.gold, data.documents[row.document_hash].text if row.document_hash else None)
    else:
        for one in opened:
            _read_table(one, mapping, gold)
    if not gold.values:
        raise InputError(f"{path} has no gold: its column {mapping.get('gold', 'gold')!r} is missing or empty")
    return gold


def _key(row: InputRow) -> Key:
    return row.doc_id, row.question_id


def _read_table(opened: OpenedFile, mapping: Mapping[str, str], gold: Gold) -> None:
    wanted = [mapping.get(name, name) for name in ("doc_id", "question_id", "gold")]
    missing = [name for name in wanted if name not in opened.schema.names]
    if missing:
        raise InputError(
            f"{opened.name} has no column {missing[0]!r} (it has {', '.join(opened.schema.names[:20])}); gold needs "
            "doc_id, question_id and gold, and --column gold=NAME names another"
        )
    shrink = 1
    while True:
        try:
            for first_row, batch in read_batches(opened, shrink):
                _read_batch(opened, first_row, [batch.column(name) for name in wanted], gold)
            return
        except TooLarge:  # what was added is added again as the same
            shrink *= SHRINK
        except BadFile as error:
            raise InputError(f"{opened.name} can't be read as Parquet: {error}; write it again") from None


def _read_batch(opened: OpenedFile, first_row: int, columns: Sequence[pa.Array], gold: Gold) -> None:
    """Add a batch's gold; `columns` are doc_id, question_id and gold."""
    doc_ids, question_ids = map(id_cells, columns[:2])
    values, bad = json_cells(columns[2])
    for row, (doc_id, question_id, value) in enumerate(zip(doc_ids, question_ids, values, strict=True)):
        place = opened.place(first_row + row)
        reason = doc_id.bad or question_id.bad or bad.get(row)
        if reason or doc_id.value is None or question_id.value is None:
            raise InputError(f"{place}: {reason or 'doc_id or question_id is null'}; correct the file")
        gold.add((doc_id.value, question_id.value), value, place=place)


def _plain_gold(value: Any) -> tuple[Any, list[tuple[str, int]]]:
    """The value, texts of JSON parsed; and of SQuAD's `text` and `answer_start` the texts, and each with its start."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except ValueError:
            return value, []
    if isinstance(value, dict) and set(value) == _SPAN:
        texts, starts = (part if isinstance(part, list) else [part] for part in (value["text"], value["answer_start"]))
        return texts, [
            (text, start)
            for text, start in zip(texts, starts, strict=False)
            if isinstance(text, str) and isinstance(start, int)
        ]
    if isinstance(value, list) and value and all(isinstance(one, dict) and one.keys() >= _SPAN for one in value):
        pairs = [_plain_gold({name: one[name] for name in _SPAN}) for one in value]
        return [text for texts, _ in pairs for text in texts], [span for _, spans in pairs for span in spans]
    return value, []
