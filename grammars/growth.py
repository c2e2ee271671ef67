"""How much one token can add to what an answer still has to say."""

import json
from typing import Any

from .errors import UnsupportedSchema
from .schema_references import Located, SchemaDocument
from .schema_walk import all_schemas
from .vocabulary import TokenVocabulary

MOST_MARGIN = 128
_DEEPEST = 8
_PATTERN_TOKENS, _FORMAT_TOKENS, _PLAIN_TOKENS = 32, 24, 4


def growth_margin(schema: Any, vocabulary: TokenVocabulary) -> int:
    """About the most tokens that a value must have once it is begun, over all values that the schema speaks of."""
    estimate = _Estimate(SchemaDocument(schema), vocabulary)
    most = max(estimate.least(located, 0) for located in all_schemas(Located(schema, "")))
    return min(most + _PLAIN_TOKENS, MOST_MARGIN)


def has_shaped_strings(schema: Any) -> bool:
    """True if the text of some string is bound to a shape, so that more text is not always a way on."""
    parts = (located.schema for located in all_schemas(Located(schema, "")) if isinstance(located.schema, dict))
    return any({"pattern", "format", "patternProperties", "propertyNames"} & part.keys() for part in parts)


class _Estimate:
    def __init__(self, document: SchemaDocument, vocabulary: TokenVocabulary) -> None:
        self.document = document
        self.vocabulary = vocabulary
        self._known: dict[str, int] = {}

    def least(self, located: Located, depth: int) -> int:
        """About the tokens of the shortest value; of listed values, of the longest, for one token may choose it."""
        part = located.schema
        if not isinstance(part, dict) or depth > _DEEPEST:
            return 1
        if located.path not in self._known:
            self._known[located.path] = 1  # while it is looked at
            self._known[located.path] = min(self._fresh(located, part, depth), MOST_MARGIN)
        return self._known[located.path]

    def _fresh(self, located: Located, part: dict[str, Any], depth: int) -> int:
        listed = [*part.get("enum", ()), *([part["const"]] if "const" in part else [])]
        if listed:
            return max(self._tokens(value) for value in listed)
        total = 1 + int(part.get("minLength", 0))
        total += _PATTERN_TOKENS * ("pattern" in part) + _FORMAT_TOKENS * ("format" in part)
        if "$ref" in part:
            try:
                total += self.least(self.document.resolve(part["$ref"], located), depth + 1)
            except UnsupportedSchema:
                total += _PLAIN_TOKENS
        for name in part.get("required", ()):
            total += self._tokens(name) + 2
            if name in part.get("properties", {}):
                total += self.least(located.child("properties", name), depth + 1)
        if "minItems" in part and isinstance(part.get("items"), dict):
            total += int(part["minItems"]) * (1 + self.least(located.child("items"), depth + 1))
        for index in range(len(part.get("allOf", ()))):
            total += self.least(located.child("allOf", index), depth + 1)
        for keyword in ("anyOf", "oneOf"):
            options = [located.child(keyword, index) for index in range(len(part.get(keyword, ())))]
            total += max((self.least(option, depth + 1) for option in options), default=0)
        return total

    def _tokens(self, value: Any) -> int:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))[: 4 * MOST_MARGIN]
        return len(self.vocabulary.spell(text.encode()))
