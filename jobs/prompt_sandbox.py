"""A sandbox for prompt templates: they reach the values they are given, and end in bounded time and space.

A job file may come from a stranger, so a template can't read other objects, load files, or run for hours. Jinja's own
sandbox hides the interpreter. What it leaves open is refused here before anything runs (statements, functions, filters
and methods that a prompt doesn't need), or counted while it runs: turns of loops, calls, characters and seconds.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from jobs.errors import JobFileError

MAX_STEPS = 100_000
"""Turns of loops and calls that one rendering may take, beside one for each character of the row."""
MAX_CHARACTERS = 64 * 2**20
"""The longest text that a template may make, on the way or in the end, beside twice the row's own text."""
MAX_SECONDS = 30.0
"""How long one rendering may take; honest ones take well under a millisecond."""

FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "join", "last",
    "length", "list", "lower", "map", "max", "min", "rejectattr", "replace", "reverse", "round", "selectattr",
    "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
# Without those that can make a long text of a short one by a number, as `center` does.
TEXT_METHODS = (
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower",
    "isnumeric", "isspace", "isupper", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind",
    "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
)  # fmt: skip
CONTAINER_METHODS = ("get", "items", "keys", "values", "count", "index")

_REFUSED_STATEMENTS: dict[type[nodes.Node], str] = {
    nodes.Include: "{% include %}", nodes.Import: "{% import %}", nodes.FromImport: "{% import %}",
    nodes.Extends: "{% extends %}", nodes.Block: "{% block %}", nodes.Macro: "{% macro %}",
    nodes.CallBlock: "{% call %}", nodes.FilterBlock: "{% filter %}", nodes.AssignBlock: "{% set %} … {% endset %}",
    nodes.Pow: "**",
}  # fmt: skip

RENDERING_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError,
    MemoryError,
)  # fmt: skip


class RowEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox without globals and with a short list of filters; nulls are written as nothing."""

    intercepted_binops = frozenset(("+", "*", "%"))

    def __init__(self, finalize: Callable[[Any], Any] | None = None) -> None:
        super().__init__(
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            finalize=finalize or _null_as_nothing,
            optimized=False,
        )
        filters: dict[str, Callable[..., Any]] = {name: self.filters[name] for name in FILTERS}
        self._plain_map, self._plain_join = filters["map"], filters["join"]
        filters |= {"map": self._map, "join": self._join, "replace": self._replace, "tojson": _to_json}
        self.filters = {**filters, "_turns": self._turns, "_bounded": self._bounded}
        self.globals = {"range": self.globals["range"]}
        self.start(0)

    def start(self, row_characters: int) -> None:
        """Begin a rendering of a row with so much text."""
        self._steps_left = MAX_STEPS + row_characters
        self._characters = MAX_CHARACTERS + 2 * row_characters
        self._deadline = time.monotonic() + MAX_SECONDS

    def render(self, template: jinja2.Template, values: Mapping[str, Any], row_characters: int) -> str:
        """Render for a row with so much text. Raises one of RENDERING_ERRORS."""
        self.start(row_characters)
        pieces, characters = [], 0
        for piece in template.generate(values):
            characters += len(piece)
            self.check_length(characters)
            pieces.append(piece)
        return "".join(pieces)

    def check_length(self, characters: int) -> None:
        """Raise SecurityError for a text that is longer than a template may make."""
        if characters > self._characters:
            raise SecurityError(f"it makes a text of more than {self._characters} characters")

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A column wins over a method of its name: `extra.items` is the column `items` if there is one."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, str) and attribute not in TEXT_METHODS:  # Jinja would let `format` through
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item; never a method by its name."""
        if isinstance(obj, str) and isinstance(argument, str):
            return self.unsafe_undefined(obj, argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Methods of texts and containers where listed, what `loop` has, and nothing else."""
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, dict | list | tuple):
            return attr in CONTAINER_METHODS
        return isinstance(obj, LoopContext) and bool(super().is_safe_attribute(obj, attr, value))

    def call(self, *args: Any, **named: Any) -> Any:
        """As the sandbox does it, and counted."""
        self._step()
        return super().call(*args, **named)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`+`, `*` and `%` of numbers, and `+` of texts and lists."""
        sized = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
        if sized and operator != "+":
            raise SecurityError(f"{operator} works on numbers only")
        self.check_length(sum(sized))
        if any(isinstance(value, int) and value.bit_length() > 1024 for value in (left, right)):
            raise SecurityError(f"a number is too large for {operator}")
        return super().call_binop(context, operator, left, right)

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise SecurityError(f"its loops take more than {MAX_STEPS} turns")
        if self._steps_left % 64 == 0 and time.monotonic() > self._deadline:
            raise SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")

    def _turns(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _bounded(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple):
            self.check_length(len(value))
        return value

    def _replace(self, text: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(text), str(old), str(new)
        times = text.count(old) if count is None else min(count, text.count(old))
        self.check_length(len(text) + times * len(new))
        return text.replace(old, new, -1 if count is None else count)

    @jinja2.pass_eval_context
    def _join(self, context: Any, value: Iterable[Any], d: str = "", attribute: str | None = None) -> Any:
        if isinstance(value, str | list | tuple):
            self.check_length(len(value) * len(str(d)))
        items = list(itertools.islice(value, self._characters))
        self.check_length(len(items) * len(str(d)) + sum(len(item) for item in items if isinstance(item, str)))
        return self._plain_join(context, items, d, attribute)

    @jinja2.pass_context
    def _map(self, context: Any, value: Iterable[Any], *filters: Any, **named: Any) -> Iterator[Any]:
        """Only by attribute: with a filter for each item it could make a row's text many times longer."""
        if filters or "attribute" not in named:
            raise SecurityError('map takes an attribute here, as in map(attribute="name")')
        for item in self._plain_map(context, self._turns(value), **named):
            yield item if not isinstance(item, jinja2.Undefined) else str(item)  # which raises, and says why


def check_statements(where: str, known: tuple[str, ...], tree: nodes.Template) -> None:
    """Raise JobFileError, naming `where` it stands, for a statement that a prompt can't use."""
    for kind, written in _REFUSED_STATEMENTS.items():
        for node in tree.find_all(kind):
            raise JobFileError(
                f"{where}, line {node.lineno}: {written} is not for prompts, which reach only their row; "
                "write the text itself"
            )
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise JobFileError(f"{where}, line {loop.lineno}: a recursive loop is not for prompts; loop plainly")
    for name in tree.find_all(nodes.Name):
        if name.name == "self":
            raise JobFileError(f"{where} uses self, but it can use only {', '.join(known)}")
    # A list put into itself again and again doubles each time, unseen until it is written.
    for literal in tree.find_all((nodes.List, nodes.Tuple, nodes.Dict)):
        inside = list(literal.iter_child_nodes())
        if getattr(literal, "ctx", "load") == "load" and not all(map(_is_constant, inside)):
            raise JobFileError(
                f"{where}, line {literal.lineno}: a list in a prompt can hold only texts and numbers; "
                "use the row's values by themselves"
            )


def _is_constant(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Pair):
        return _is_constant(node.key) and _is_constant(node.value)
    return isinstance(node, nodes.Const)


def counted(tree: nodes.Template, environment: jinja2.Environment) -> nodes.Template:
    """The tree with every loop counted, and every text that is made on the way measured."""
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "_turns", [], [], None, None, lineno=loop.lineno)
    _measure(tree)
    tree.set_environment(environment)
    return tree


def _measure(node: nodes.Node) -> None:
    """Put `_bounded` around each concatenation and filter below a node."""
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            for item in value:
                if isinstance(item, nodes.Node):
                    _measure(item)
            setattr(node, name, [_bounded_node(item) for item in value])
        elif isinstance(value, nodes.Node):
            _measure(value)
            setattr(node, name, _bounded_node(value))


def _bounded_node(node: Any) -> Any:
    if not isinstance(node, nodes.Concat | nodes.Filter) or (isinstance(node, nodes.Filter) and node.name == "_turns"):
        return node
    return nodes.Filter(node, "_bounded", [], [], None, None, lineno=node.lineno)


def _null_as_nothing(value: Any) -> Any:
    return "" if value is None else value


def _to_json(value: Any) -> str:
    """JSON as it is, where Jinja's own filter would escape what HTML reserves."""
    return json.dumps(value, ensure_ascii=False)
