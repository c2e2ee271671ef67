"""Leaving out, for a lenient user, the keyword that a compiler refused; the finished answer is still held to it."""

import copy
from typing import Any

from .errors import UnsupportedSchema
from .keywords import VALIDATING_KEYWORDS
from .schema_walk import pointer_keys

_WITH = {"if": ("then", "else"), "contains": ("minContains", "maxContains")}
"""Keywords that mean nothing without another one."""

_NEVER = frozenset({"type", "properties", "required"})
"""Without these an answer would have no shape left."""


def relaxed(schema: Any, refusal: UnsupportedSchema) -> tuple[Any, str, str] | None:
    """A copy without the keyword that was refused, the pointer to it and the reason; None if nothing can be left out.

    Where the refusal names no keyword, or one that isn't there (it may stand behind a `not` or an `if` that was
    rewritten), the innermost keyword on its path that can be left out goes.
    """
    if not isinstance(schema, dict):
        return None
    weaker = copy.deepcopy(schema)
    keys = pointer_keys(refusal.path)
    places = _places(weaker, keys)
    candidates: list[tuple[Any, str, int]] = []
    holder, depth = places[-1]
    if refusal.keyword and isinstance(holder, dict) and refusal.keyword in holder:
        candidates.append((holder, refusal.keyword, depth))
    for index in range(len(places) - 1, -1, -1):
        part, depth = places[index]
        if depth < len(keys) and isinstance(part, dict) and keys[depth] in VALIDATING_KEYWORDS - _NEVER:
            candidates.append((part, keys[depth], depth))
    for part, keyword, depth in candidates:
        if keyword in _NEVER or keyword not in part:
            continue
        for name in (keyword, *_WITH.get(keyword, ())):
            part.pop(name, None)
        pointer = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in [*keys[:depth], keyword])
        return weaker, pointer, refusal.reason
    return None


def _places(schema: Any, keys: list[str]) -> list[tuple[Any, int]]:
    """The parts on the way along a pointer, as far as it leads, each with how many keys lead to it."""
    places = [(schema, 0)]
    part = schema
    for depth, key in enumerate(keys, start=1):
        if isinstance(part, dict) and key in part:
            part = part[key]
        elif isinstance(part, list) and key.isdecimal() and int(key) < len(part):
            part = part[int(key)]
        else:
            break
        places.append((part, depth))
    return places
