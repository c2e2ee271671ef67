"""Patterns whose classes llguidance reads more widely than Python does, written out character by character.

To Rust, `\\S` takes U+001C, which is white space to Python; `\\D` and `\\W` likewise take what Python's `\\d` and `\\w`
have beyond ASCII in one reading and not in the other. `string_patterns` keeps to what all readers accept.
"""

import re

from .string_patterns import Alternatives, Characters, Node, Sequence, parse_pattern

_UNSURE = re.compile(r"\\[SDW]|\[\^[^\]]*\\[sdw]")


def is_unsure(pattern: str) -> bool:
    """True if the pattern has a class of all characters but some, and readers differ about these."""
    return _UNSURE.search(pattern) is not None


def written_out(pattern: str) -> str:
    """A pattern, of Rust's syntax, for strings that match `pattern` to every reader. Raises UnsupportedPattern."""
    return f"^{_text(parse_pattern(pattern))}$"


def _text(node: Node) -> str:
    if isinstance(node, Characters):
        return node.members.regex()
    if isinstance(node, Sequence):
        return "(?:" + "".join(map(_text, node.items)) + ")"
    if isinstance(node, Alternatives):
        return "(?:" + "|".join(map(_text, node.options)) + ")"
    bounds = f"{{{node.low},{'' if node.high is None else node.high}}}"
    return f"(?:{_text(node.item)}){bounds}"
