"""The templates of `[prompt]`: each reaches its row and nothing else (see jobs/prompt_sandbox.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes

from jobs.errors import JobFileError
from jobs.job_settings import PromptSettings
from jobs.prompt_sandbox import RENDERING_ERRORS, RowEnvironment, check_statements, counted

# What each part of [prompt] may use. `extra` holds the row's other columns.
PART_VARIABLES = {
    "system": ("schema", "schema_name"),
    "document": ("document", "doc_id", "extra"),
    "question": ("question", "question_id", "doc_id", "extra"),
}


class PartTemplates:
    """The three templates. Raises JobFileError, naming the setting, for one that can't be used.

    `document_uses_row` tells whether the document's part depends on more than the document, `moving_values` what else
    it writes: names as in the template (`doc_id`, `extra.page`), in their order there. `texts_behind` has, by part, the
    template's own text behind the first value that it writes, `values_before` the values that stand before some of it.
    """

    def __init__(self, settings: PromptSettings) -> None:
        environment = RowEnvironment()
        self._environment = environment
        self._templates: dict[str, jinja2.Template] = {}
        self._plain: dict[str, list[tuple[str, bool]]] = {}
        self.moving_values: list[str] = []
        self.texts_behind: dict[str, str] = {}
        self.values_before: dict[str, list[str]] = {}
        used: dict[str, set[str]] = {}
        for part, known in PART_VARIABLES.items():
            try:
                tree = environment.parse(getattr(settings, part))
                used[part] = jinja2.meta.find_undeclared_variables(tree)
                check_statements(f"prompt.{part}", known, tree)
                self.texts_behind[part], before = _text_behind_values(tree)
                self.values_before[part] = _values_read(before, known)
                if part == "document":
                    self.moving_values = _values_read([tree], ("doc_id", "extra"))
                plain = _plain_pieces(tree)
                if plain is not None:
                    self._plain[part] = plain
                self._templates[part] = environment.from_string(counted(tree, environment))
            except jinja2.TemplateSyntaxError as error:
                raise JobFileError(
                    f"prompt.{part}, line {error.lineno}: not a valid template: {error.message}; "
                    "mend it or write {{ '{{' }} for braces that are text"
                ) from None
            for name in sorted(used[part] - set(known)):
                raise JobFileError(f"prompt.{part} uses {{{{ {name} }}}}, but it can use only {', '.join(known)}")
            if part != "system" and part not in used[part]:
                raise JobFileError(f"prompt.{part} does not use {{{{ {part} }}}}; add it")
        self.document_uses_row = used["document"] != {"document"}
        self.system_uses_schema = bool(used["system"])

    def render(self, part: str, place: str = "", **values: Any) -> str:
        """The text of a part for one row; `place` is where the row stands. Raises JobFileError."""
        if part in self._plain and all(
            isinstance(values[name], str) for name, is_value in self._plain[part] if is_value
        ):
            # Most templates only put texts together, which takes a tenth of the time without Jinja.
            return "".join([values[piece] if is_value else piece for piece, is_value in self._plain[part]])
        row_characters = sum(len(value) for value in values.values() if isinstance(value, str))
        try:
            return self._environment.render(self._templates[part], values, row_characters)
        except RENDERING_ERRORS as error:
            where = f" ({place})" if place else ""
            reason = str(error) or type(error).__name__
            raise JobFileError(f"prompt.{part} fails on a row{where}: {reason}; mend the template") from None


def _plain_pieces(tree: nodes.Template) -> list[tuple[str, bool]] | None:
    """A template that only puts texts and values together: its texts, and with True the names of its values.

    None for any other; also for one that names a value so often that the length of what it makes must be watched.
    """
    pieces: list[tuple[str, bool]] = []
    for node in tree.body:
        if not isinstance(node, nodes.Output):
            return None
        for piece in node.nodes:
            if isinstance(piece, nodes.TemplateData):
                pieces.append((piece.data, False))
            elif isinstance(piece, nodes.Name):
                pieces.append((piece.name, True))
            else:
                return None
    names = [name for name, is_value in pieces if is_value]
    return pieces if len(set(names)) == len(names) else None


def _values_read(parts: Sequence[nodes.Node], known: Sequence[str]) -> list[str]:
    """Which of the known values parts of a template read, in order: `doc_id`, `extra.page`, or `extra` as a whole."""
    found = []
    for part in parts:
        inside = nodes.Output([part])  # find_all leaves out the node itself
        called = {id(node.node) for node in inside.find_all(nodes.Call)}
        columns: dict[int, str] = {}  # by the node that a column is taken from
        for taken in inside.find_all(nodes.Getattr):
            if id(taken) not in called:
                columns[id(taken.node)] = taken.attr
        for item in inside.find_all(nodes.Getitem):
            if isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, str):
                columns[id(item.node)] = item.arg.value
        for name in inside.find_all(nodes.Name):
            if name.name in known:
                column = columns.get(id(name)) if name.name == "extra" else None
                found.append(name.name if column is None else f"extra.{column}")
    return list(dict.fromkeys(found))


def _text_behind_values(tree: nodes.Template) -> tuple[str, list[nodes.Node]]:
    """The text that a template writes for every row behind its first value, and the values that stand before some."""
    pieces: list[str] = []
    values: list[nodes.Node] = []
    before = 0
    for node in tree.body:
        for piece in node.nodes if isinstance(node, nodes.Output) else [node]:
            if not isinstance(piece, nodes.TemplateData):
                values.append(piece)
            elif values:
                pieces.append(piece.data)
                before = len(values) if piece.data.strip() else before
    return "".join(pieces), values[:before]
