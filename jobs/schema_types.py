"""From JSON Schema to DuckDB: the typed columns that an answer's top-level properties become in a view."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any] | bool

RESERVED_COLUMNS = ("doc_id", "question_id")
"""Columns every answers view begins with; a property of such a name becomes `<name>_answer`."""

_MAXIMUM_VISITS = 2_000
"""Subschemas looked at for one column. References can multiply without end; such a column is JSON."""

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """One column of an answers view.

    `property_name` is None for a schema that describes no object: the column is then the whole answer.
    """

    property_name: str | None
    name: str
    duckdb_type: str
    structure: Any
    """The structure argument of json_transform for lists and structs, else None."""

    def expression(self, answer: str = "answer") -> str:
        """SQL that gives the value from the JSON column `answer`: text unquoted, numbers typed, JSON null as NULL.

        A value that does not fit the type (an answer from before the schema changed) is NULL, never an error.
        """
        pointer = quote_literal(json_pointer(self.property_name))
        if self.structure is not None:
            value = f"json_extract({answer}, {pointer})"
            return f"json_transform({value}, {quote_literal(json.dumps(self.structure, ensure_ascii=False))})"
        if self.duckdb_type == "JSON":
            # json_extract gives JSON's null as the JSON text `null`, which is not SQL NULL.
            return f"CASE WHEN json_type({answer}, {pointer}) <> 'NULL' THEN json_extract({answer}, {pointer}) END"
        text = f"json_extract_string({answer}, {pointer})"
        return text if self.duckdb_type == "VARCHAR" else f"TRY_CAST({text} AS {self.duckdb_type})"

    def confidence_expression(self) -> str:
        """SQL that gives how sure the model was of the value, from the JSON column `confidence`; NULL if unknown."""
        return f"TRY_CAST(json_extract_string(confidence, {quote_literal(json_pointer(self.property_name))}) AS DOUBLE)"


def answer_columns(schema: Schema) -> list[AnswerColumn]:
    """The columns of a schema's view, in the order of its properties; one column `answer` if it has none.

    Names are the properties' own. DuckDB compares names without case, so of two that differ only in case the second
    becomes `<name>_2`; names of RESERVED_COLUMNS get `_answer`. No property loses its own name to such a suffix.
    """
    try:
        properties = _Reader(schema).properties(schema)
    except (_TooInvolved, RecursionError):
        properties = {}
    if not properties:
        return [_column(None, "answer", schema, schema)]
    names = _column_names(properties)
    return [_column(name, names[name], subschema, schema) for name, subschema in properties.items()]


def property_values(schema: Schema) -> dict[str | None, list[Any] | None]:
    """For each of `answer_columns` by its property name: all values it admits (`enum`, `const`, null); None if open."""
    values: dict[str | None, list[Any] | None] = {}
    for column in answer_columns(schema):
        reader = _Reader(schema)
        try:
            name = column.property_name
            branches = reader.branches(schema if name is None else reader.properties(schema)[name])
        except (_TooInvolved, RecursionError):
            branches = [{}]
        listed = [[None] if _kinds(branch) == {"null"} else _listed_values(branch) for branch in branches]
        closed = listed and any(one != [None] for one in listed) and None not in listed
        values[name] = [value for one in listed for value in one or []] if closed else None
    return values


def json_pointer(property_name: str | None) -> str:
    """RFC 6901 pointer to a top-level property; '$', DuckDB's name of the whole value, for None."""
    if property_name is None:
        return "$"
    return "/" + property_name.replace("~", "~0").replace("/", "~1")


def quote_identifier(name: str) -> str:
    """A name as SQL: in double quotes, control characters (which the parser can't take) as underscores."""
    return '"' + _printable(name).replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A text as an SQL expression; NUL, which would end the statement, goes in by chr(0)."""
    text = text.encode("utf-8", "replace").decode()
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else "(" + " || chr(0) || ".join(parts) + ")"


class _TooInvolved(Exception):
    """A schema that recurses or branches too far to have a DuckDB type of its own."""


def _column(property_name: str | None, name: str, schema: Schema, root: Schema) -> AnswerColumn:
    try:
        structure = _Reader(root).structure(schema)
    except (_TooInvolved, RecursionError):
        structure = "JSON"
    if isinstance(structure, str):
        return AnswerColumn(property_name, name, structure, None)
    return AnswerColumn(property_name, name, _type_name(structure), structure)


def _column_names(properties: Iterable[str]) -> dict[str, str]:
    taken = set(RESERVED_COLUMNS)
    names: dict[str, str] = {}
    waiting: list[tuple[str, str]] = []
    for name in properties:
        wanted = _printable(name)
        if wanted.lower() in taken:
            waiting.append((name, wanted))
        else:
            taken.add(wanted.lower())
            names[name] = wanted
    for name, wanted in waiting:
        if wanted.lower() in RESERVED_COLUMNS:
            wanted += "_answer"
        candidate, number = wanted, 2
        while candidate.lower() in taken:
            candidate, number = f"{wanted}_{number}", number + 1
        taken.add(candidate.lower())
        names[name] = candidate
    return names


def _printable(name: str) -> str:
    return "".join(character if character.isprintable() else "_" for character in name) or "_"


def _type_name(structure: Any) -> str:
    """The DuckDB type that json_transform gives for a structure."""
    if isinstance(structure, str):
        return structure
    if isinstance(structure, list):
        return _type_name(structure[0]) + "[]"
    fields = (f"{quote_identifier(name)} {_type_name(part)}" for name, part in structure.items())
    return f"STRUCT({', '.join(fields)})"


class _Reader:
    """Finds the type of one subschema of `root`; its methods raise _TooInvolved rather than run on."""

    def __init__(self, root: Schema):
        self.root = root
        self._visits = 0
        self._open: set[int] = set()

    def structure(self, schema: Schema) -> Any:
        """json_transform's description: a type name, a list of one structure, or a dict of structures."""
        if id(schema) in self._open and isinstance(schema, dict):
            raise _TooInvolved
        self._open.add(id(schema))
        structures: list[Any] = []
        for branch in self.branches(schema):
            structure = self._branch_structure(branch)
            if structure is not None and structure not in structures:
                structures.append(structure)
        self._open.discard(id(schema))
        if len(structures) == 1:
            return structures[0]
        numbers = ("BIGINT", "HUGEINT", "DOUBLE")
        if structures and all(structure in numbers for structure in structures):
            return max(structures, key=numbers.index)
        return "JSON"

    def properties(self, schema: Schema) -> dict[str, Schema]:
        """Top-level properties of all alternatives together; none if an alternative is something else than an object.

        Where alternatives describe a property differently, it is the union of their subschemas.
        """
        described: dict[str, list[Schema]] = {}
        for branch in self.branches(schema):
            kinds = _kinds(branch)
            if kinds is not None and "object" not in kinds and kinds != {"null"}:
                return {}
            for name, subschema in (branch.get("properties") or {}).items():
                subschemas = described.setdefault(name, [])
                if subschema not in subschemas:
                    subschemas.append(subschema)
        return {name: parts[0] if len(parts) == 1 else {"anyOf": parts} for name, parts in described.items()}

    def _branch_structure(self, branch: dict[str, Any]) -> Any:
        """As `structure`, for a schema without references and unions; None for what admits only null."""
        kinds = _kinds(branch)
        if kinds is None:
            return "JSON"
        kinds = kinds - {"null"}
        if not kinds:
            return None
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) > 1:
            return "JSON"
        kind = kinds.pop()
        if kind == "integer":
            return _integer_type(branch)
        if kind == "array":
            item = self.structure(branch.get("items", True))
            return [item] if item != "JSON" and "prefixItems" not in branch else "JSON"
        if kind == "object":
            return self._object_structure(branch)
        return {"boolean": "BOOLEAN", "number": "DOUBLE", "string": "VARCHAR"}.get(kind, "JSON")

    def _object_structure(self, branch: dict[str, Any]) -> Any:
        properties = branch.get("properties") or {}
        # A STRUCT would lose the free members of a map, and its fields need printable names that differ in more
        # than case.
        if not properties or isinstance(branch.get("additionalProperties"), dict):
            return "JSON"
        if not all(name and name.isprintable() for name in properties):
            return "JSON"
        if len({name.lower() for name in properties}) < len(properties):
            return "JSON"
        return {name: self.structure(subschema) for name, subschema in properties.items()}

    def branches(self, schema: Schema) -> list[dict[str, Any]]:
        """The alternatives of a schema, with references and allOf merged in; `{}` admits anything."""
        self._visits += 1
        if self._visits > _MAXIMUM_VISITS:
            raise _TooInvolved
        if not isinstance(schema, dict):
            return [{}] if schema else []
        alternatives = [{key: value for key, value in schema.items() if key not in _COMBINING}]
        conjuncts = list(_as_list(schema.get("allOf")))
        if isinstance(schema.get("$ref"), str):
            conjuncts.append(resolve_reference(schema["$ref"], self.root))
        for conjunct in conjuncts:
            alternatives = self._product(alternatives, self.branches(conjunct))
        for keyword in ("anyOf", "oneOf"):
            options = _as_list(schema.get(keyword))
            if options:
                alternatives = self._product(alternatives, [part for one in options for part in self.branches(one)])
        return alternatives

    def _product(self, ones: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self._visits += len(ones) * len(others)
        if self._visits > _MAXIMUM_VISITS:
            raise _TooInvolved
        return [_merge(one, other) for one in ones for other in others]


_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")


def _merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A schema that says what both say; of a keyword that both have, the later, but properties of both."""
    merged = {**one, **other}
    first, second = one.get("properties") or {}, other.get("properties") or {}
    if first and second:
        both = {
            name: {"allOf": [first[name], second[name]]}
            for name in first
            if second.get(name, first[name]) != first[name]
        }
        merged["properties"] = {**first, **second, **both}
    elif first:
        merged["properties"] = first
    return merged


def _integer_type(branch: dict[str, Any]) -> str:
    bounds = [
        abs(branch[keyword])
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        if isinstance(branch.get(keyword), (int, float))
    ]
    bounds += [abs(value) for value in _listed_values(branch) or [] if isinstance(value, (int, float))]
    largest = max(bounds, default=0)
    return "BIGINT" if largest < _INT64 else "HUGEINT"


def _listed_values(branch: dict[str, Any]) -> list[Any] | None:
    if "const" in branch:
        return [branch["const"]]
    values = branch.get("enum")
    return values if isinstance(values, list) else None


def _kinds(branch: dict[str, Any]) -> set[str] | None:
    """The JSON types a schema admits, as far as `type`, `enum` and `const` say; None if they don't."""
    declared = branch.get("type")
    kinds: set[str] | None = None
    if isinstance(declared, str):
        kinds = {declared}
    elif isinstance(declared, list):
        kinds = set(declared)
    values = _listed_values(branch)
    if values is None:
        if kinds is None and "properties" in branch:
            return {"object"}
        return kinds
    listed = {_kind_of(value) for value in values}
    if kinds is None:
        return listed
    return {kind for kind in listed if kind in kinds or (kind == "integer" and "number" in kinds)}


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return {float: "number", str: "string", list: "array", dict: "object"}.get(type(value), "any")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def resolve_reference(reference: str, root: Schema) -> Schema:
    """The subschema a local reference names; True, which admits anything, for what can't be found."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return True
    place: Any = root
    for part in unquote(reference[2:]).split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and part in place:
            place = place[part]
        elif isinstance(place, list) and part.isdecimal() and int(part) < len(place):
            place = place[int(part)]
        else:
            return True
    return place if isinstance(place, (dict, bool)) else True
