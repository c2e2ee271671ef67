"""The text of a question that comes after others: a template that reaches their answers and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes

from jobs.errors import InputError, JobFileError
from jobs.prompt_sandbox import CONTAINER_METHODS, RENDERING_ERRORS, RowEnvironment, check_statements, counted

ANSWERS = "answers"

Schema = dict[str, Any] | bool

_DEFAULTS = ("default", "d")


class QuestionFailed(ValueError):
    """A template can't be rendered with these answers; the message says why."""


class _Environment(RowEnvironment):
    """Writes texts as they are, and every other value as JSON."""

    def __init__(self) -> None:
        super().__init__(finalize=_text_or_json)


class QuestionTemplates:
    """Compiles each distinct text once. Texts that the answers put in are never rendered themselves."""

    def __init__(self) -> None:
        self._environment = _Environment()
        self._compiled: dict[str, jinja2.Template] = {}
        self._trees: dict[str, nodes.Template] = {}
        self._paths: dict[str, list[tuple[str, ...]]] = {}

    def check(self, text: str, after: tuple[str, ...], schemas: Mapping[str, Schema], place: str) -> None:
        """Raise InputError, naming the row's place, for a text that is no template or uses what it can't reach.

        `schemas` are those of the answers that it comes after, by question id, as far as they are known.
        """
        try:
            tree = self._tree(text)
            self._template(text)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(
                f"{place}: the question comes after others, so it is a template, and no valid one: {error.message}; "
                "mend it or write {{ '{{' }} for braces that are text"
            ) from None
        except JobFileError as error:
            raise InputError(f"{place}: {error}") from None
        for name in sorted(jinja2.meta.find_undeclared_variables(tree) - {ANSWERS}):
            raise InputError(
                f"{place}: the question uses {{{{ {name} }}}}, but it can use only {ANSWERS}, as in "
                f"{{{{ {_written(after[0])} }}}}"
            )
        for name in _answers_named(tree):
            if name not in after:
                listed = ", ".join(map(repr, after))
                raise InputError(
                    f"{place}: the question uses the answer {name!r}, which its `after` doesn't list (it lists "
                    f"{listed}); add it there, or correct the name, as in {{{{ {_written(after[0])} }}}}"
                )

        if text not in self._paths:
            self._paths[text] = _answer_paths(tree)
        for question_id, *names in self._paths[text]:
            found = _impossible_property(schemas.get(question_id, True), names)
            if found is not None:
                name, known = found
                raise InputError(
                    f"{place}: the question uses {ANSWERS}.{'.'.join([question_id, *names])}, but by its schema the "
                    f"answer of {question_id!r} has no {name!r} (it has {', '.join(map(repr, known)) or 'nothing'}); "
                    "correct the name"
                )

    def known_beginning(self, text: str) -> str:
        """What the text begins with whatever the answers are."""
        for node in self._tree(text).body:
            if isinstance(node, nodes.Output) and isinstance(node.nodes[0], nodes.TemplateData):
                return node.nodes[0].data
            break
        return ""

    def values_written(self, text: str) -> int:
        """At how many places the text writes something that depends on answers."""
        outputs = self._tree(text).find_all(nodes.Output)
        return sum(not isinstance(piece, nodes.TemplateData) for output in outputs for piece in output.nodes)

    def render(self, text: str, answers: Mapping[str, str]) -> str:
        """The question's text; `answers` are JSON texts by question id. Raises QuestionFailed."""
        values = {name: json.loads(answer) for name, answer in answers.items()}
        try:
            return self._environment.render(
                self._template(text), {ANSWERS: values}, len(text) + sum(map(len, answers.values()))
            )
        except RENDERING_ERRORS as error:
            raise QuestionFailed(str(error) or type(error).__name__) from None

    def _tree(self, text: str) -> nodes.Template:
        tree = self._trees.get(text)
        if tree is None:
            tree = self._trees[text] = self._environment.parse(text)
        return tree

    def _template(self, text: str) -> jinja2.Template:
        template = self._compiled.get(text)
        if template is None:
            tree = self._environment.parse(text)  # its own: counting changes it
            check_statements("the question", (ANSWERS,), tree)
            template = self._compiled[text] = self._environment.from_string(counted(tree, self._environment))
        return template


def _answers_named(tree: nodes.Template) -> list[str]:
    """The ids that a template takes from `answers` by name, as far as they are written out."""
    called = {id(node.node) for node in tree.find_all(nodes.Call)}
    named = []
    for taken in tree.find_all(nodes.Getattr):
        method = id(taken) in called and taken.attr in CONTAINER_METHODS
        if _is_answers(taken.node) and not method:
            named.append(taken.attr)
    for item in tree.find_all(nodes.Getitem):
        if _is_answers(item.node) and isinstance(item.arg, nodes.Const):
            named.append(item.arg.value)
    return named


def _answer_paths(tree: nodes.Template) -> list[tuple[str, ...]]:
    """Of every value of an answer that a template takes by names written out, the question's id and these names.

    Those that it asks about first, as in `is defined` or `default(...)`, may be missing.
    """
    asked = [*tree.find_all(nodes.Test), *(node for node in tree.find_all(nodes.Filter) if node.name in _DEFAULTS)]
    left_out = {id(below) for node in asked for below in node.find_all((nodes.Getattr, nodes.Getitem))}
    left_out |= {id(node.node) for node in tree.find_all(nodes.Call)}  # methods
    taken = (node for node in tree.find_all((nodes.Getattr, nodes.Getitem)) if id(node) not in left_out)
    paths = [path for path in map(_path, taken) if path is not None and len(path) > 1]
    return list(dict.fromkeys(paths))


def _path(node: nodes.Node) -> tuple[str, ...] | None:
    if _is_answers(node):
        return ()
    if isinstance(node, nodes.Getattr):
        name = node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        name = node.arg.value
    else:
        return None
    before = _path(node.node)
    return None if before is None else (*before, name)


def _impossible_property(schema: Schema, names: Sequence[str]) -> tuple[str, list[str]] | None:
    """The first of these names, each within the one before, that no value of the schema has; and those it can have."""
    for name in names:
        if not isinstance(schema, dict) or schema.get("type") != "object" or "patternProperties" in schema:
            return None
        properties = schema.get("properties", {})
        if name not in properties:
            return (name, list(properties)) if schema.get("additionalProperties") is False else None
        schema = properties[name]
    return None


def _is_answers(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == ANSWERS


def _written(question_id: str) -> str:
    return f"{ANSWERS}.{question_id}" if question_id.isidentifier() else f"{ANSWERS}[{json.dumps(question_id)}]"


def _text_or_json(value: Any) -> Any:
    if isinstance(value, str | jinja2.Undefined):  # what is not there raises when it is written
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=list)


class AnswersTemplate:
    """A template over a list of answers, `split.combine`. Raises JobFileError for one that can't be used."""

    def __init__(self, text: str, setting: str) -> None:
        self._setting = setting
        self._environment = _Environment()
        try:
            tree = self._environment.parse(text)
            unknown = sorted(jinja2.meta.find_undeclared_variables(tree) - {ANSWERS})
            uses_answers = ANSWERS in jinja2.meta.find_undeclared_variables(tree)
            check_statements(setting, (ANSWERS,), tree)
            self._template = self._environment.from_string(counted(tree, self._environment))
        except jinja2.TemplateSyntaxError as error:
            raise JobFileError(f"{setting}, line {error.lineno}: not a valid template: {error.message}") from None
        if unknown or not uses_answers:
            used = f"uses {{{{ {unknown[0]} }}}}" if unknown else f"does not use {{{{ {ANSWERS} }}}}"
            raise JobFileError(f"{setting} {used}; it can use {ANSWERS}, the list of the parts' answers, and must")

    def render(self, answers: Sequence[str]) -> str:
        """The text with these answers, which are JSON texts. Raises JobFileError."""
        values = [json.loads(answer) for answer in answers]
        try:
            return self._environment.render(self._template, {ANSWERS: values}, sum(map(len, answers)))
        except RENDERING_ERRORS as error:
            raise JobFileError(f"{self._setting} fails: {str(error) or type(error).__name__}; mend it") from None
