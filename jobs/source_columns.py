"""Which column of a file is what: the layout, the mapping of names, the checks of names and types.

All of it works on footers alone, so a wrong column stops a run before a row is read.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from jobs.errors import InputError
from jobs.question_columns import PROGRAM_COLUMNS, is_after_type, is_count_type, is_flag_type
from jobs.source_files import OpenedFile
from jobs.source_values import ID_TYPES, is_id_type, is_list_type, is_text_type, plain_type

LONG, NESTED, TWO_TABLES = "long", "nested", "two tables"

# What each table may hold under a name of ours; every other column is carried along.
TABLE_COLUMNS: dict[str, tuple[str, ...]] = {
    LONG: ("doc_id", "document", "question_id", "question", "schema", "gold", *PROGRAM_COLUMNS),
    NESTED: ("doc_id", "document", "questions", "schema", "gold"),
    "documents": ("doc_id", "document", "schema", "gold"),
    "questions": ("doc_id", "question_id", "question", "schema", "gold", *PROGRAM_COLUMNS),
}
ELEMENT_COLUMNS = ("question_id", "question", "schema", "gold", *PROGRAM_COLUMNS)
REQUIRED = ("document", "question", "questions")
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True)
class Columns:
    """One file's columns: `used` maps our names to the file's, `extra` are carried, `element` those in `questions`."""

    used: dict[str, str]
    extra: tuple[str, ...]
    element: "Columns | None" = None


@dataclass
class ColumnMap:
    """The `[input.columns]` mapping of our names to the files', and which of its entries a file has had."""

    names: Mapping[str, str]
    met: set[str] = field(default_factory=set)

    def own_name(self, wanted: str) -> str:
        """The name that files have for a wanted column."""
        return self.names.get(wanted, wanted)

    def check_all_met(self) -> None:
        """Raise InputError for an entry that no file has: most likely a slip of the pen."""
        for wanted, own in self.names.items():
            if wanted not in self.met:
                raise InputError(
                    f"no file has a column {own!r}, which [input.columns] {wanted} = {own!r} asks for; "
                    "correct the name or remove the setting"
                )


def choose_layout(files: Sequence[OpenedFile], mapping: ColumnMap) -> str:
    """`long` or `nested`, by the columns of a single set of files. Raises InputError if they don't tell."""
    for opened in files:
        _check_names(opened.name, _names(opened), ("document", "question", "questions"), mapping)
    having = {
        wanted: [opened for opened in files if mapping.own_name(wanted) in _names(opened)]
        for wanted in ("question", "questions")
    }
    if having["question"] and having["questions"]:
        explicit = [wanted for wanted in having if wanted in mapping.names]
        if len(explicit) == 1:
            return LONG if explicit[0] == "question" else NESTED
        raise InputError(
            f"{having['question'][0].name} has a column {mapping.own_name('question')!r} and "
            f"{having['questions'][0].name} has {mapping.own_name('questions')!r}, so the layout is not clear; "
            'set [input.columns] question = "question" or questions = "questions" to pick one'
        )
    if having["questions"]:
        return NESTED
    if having["question"]:
        return LONG
    raise InputError(
        f"{files[0].name} has no column {mapping.own_name('question')!r} or {mapping.own_name('questions')!r} "
        f"(its columns are {_listed(_names(files[0]))}); give a table of questions in input.questions, "
        "or name the column in [input.columns]"
    )


def file_columns(opened: OpenedFile, table: str, mapping: ColumnMap) -> Columns:
    """Which columns of a file play which part in a `table` of TABLE_COLUMNS.

    Raises InputError for a required column that is missing, a name that could mean two columns, or a type that
    can't be read as what the column is for.
    """
    names = _names(opened)
    columns = _columns(opened.name, names, TABLE_COLUMNS[table], mapping)
    types = {name: opened.schema.field(name).type for name in opened.schema.names}
    _check_types(opened.name, columns.used, types)
    for name, data_type in types.items():
        _check_fields(opened.name, name, data_type)
    if table != NESTED:
        return columns
    own = columns.used["questions"]
    if own not in types:
        raise InputError(f"{opened.name}: the questions come from a folder name; give each question as a row of text")
    data_type = plain_type(types[own])
    if pa.types.is_null(data_type):
        return columns
    value_type = plain_type(data_type.value_type) if is_list_type(data_type) else None
    if value_type is not None and is_text_type(value_type):
        return columns
    if value_type is None or not pa.types.is_struct(value_type):
        raise InputError(
            f"{opened.name}: column {own!r} has type {types[own]}; allowed is a list of texts "
            "or of structs with a field 'question'"
        )
    place = f"{opened.name}, in {own!r}"
    element = _columns(place, [child.name for child in value_type], ELEMENT_COLUMNS, mapping)
    _check_types(place, element.used, {child.name: child.type for child in value_type})
    return Columns(columns.used, columns.extra, element)


def _columns(place: str, names: Sequence[str], wanted: Sequence[str], mapping: ColumnMap) -> Columns:
    _check_names(place, names, wanted, mapping)
    used = {}
    for want in wanted:
        own = mapping.own_name(want)
        if own in names:
            used[want] = own
            mapping.met.add(want)
        elif want in REQUIRED:
            raise InputError(
                f"{place}: there is no column {own!r} (its columns are {_listed(names)}); "
                f'if another one holds the {want}, set [input.columns] {want} = "…"'
            )
    taken = set(used.values())
    extra = tuple(name for name in names if name not in taken and not _PANDAS_INDEX.fullmatch(name))
    return Columns(used, extra)


def _check_names(place: str, names: Sequence[str], wanted: Sequence[str], mapping: ColumnMap) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            picks = f', then [input.columns] {name} = "…" (--column {name}=…) picks the one to use'
            raise InputError(
                f"{place}: two columns have the same name, {name!r} and {name!r}; rename one of them in the file"
                + (picks if name in wanted else "")
            )
    for want in wanted:
        if want in mapping.names:
            continue
        for name in names:
            if name != want and name.casefold() == want.casefold():
                both = f"columns {want!r} and {name!r}" if want in names else f"a column {name!r} but no {want!r}"
                raise InputError(
                    f'{place} has {both}; set [input.columns] {want} = "{name}"'
                    + (f' or {want} = "{want}" to pick one' if want in names else " to use it")
                )


def _check_types(place: str, used: Mapping[str, str], types: Mapping[str, pa.DataType]) -> None:
    rules: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
        "document": (is_text_type, "text"),
        "question": (is_text_type, "text"),
        "schema": (is_text_type, "text"),
        "doc_id": (is_id_type, ID_TYPES),
        "question_id": (is_id_type, ID_TYPES),
        "after": (is_after_type, "a list of question ids, or one as text"),
        "follow_up": (is_flag_type, "true or false"),
        "samples": (is_count_type, "whole numbers"),
    }
    for wanted, own in used.items():
        if wanted in rules and own in types and not rules[wanted][0](types[own]):
            raise InputError(
                f"{place}: column {own!r} has type {types[own]}, but the {wanted} must be {rules[wanted][1]}; "
                f'convert it, or name another column in [input.columns] {wanted} = "…"'
            )


def _check_fields(place: str, column: str, data_type: pa.DataType) -> None:
    """Structs with two fields of one name, at any depth: one of the two would be lost."""
    data_type = plain_type(data_type)
    fields = [data_type.field(number) for number in range(data_type.num_fields)]
    if pa.types.is_struct(data_type):
        for name, times in Counter(inner.name for inner in fields).items():
            if times > 1:
                raise InputError(
                    f"{place}: column {column!r} has structs with two fields of the same name, {name!r} and {name!r}; "
                    "rename one of them in the file"
                )
    for inner in fields:
        _check_fields(place, column, inner.type)


def _names(opened: OpenedFile) -> list[str]:
    """A file's columns, and those that its folders add."""
    names = list(opened.schema.names)
    return names + [key for key in opened.file.partitions if key not in names]


def _listed(names: Collection[str]) -> str:
    shown = [repr(name) for name in names][:20]
    return ", ".join(shown) + (", …" if len(names) > 20 else "") if shown else "none"
