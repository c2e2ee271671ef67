"""Is it a JSON Schema at all?"""

import json
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from .errors import InvalidSchema, UnsupportedSchema

_OLDER_FORMS = {
    "items": (list, "a list of items is the form of older drafts; write prefixItems"),
    "exclusiveMinimum": (bool, "true or false is the form of Draft 4; write the number here instead of minimum"),
    "exclusiveMaximum": (bool, "true or false is the form of Draft 4; write the number here instead of maximum"),
    "required": (bool, "true or false is the form of Draft 3; list the names in the object's schema"),
}


def check_schema(schema: Any) -> None:
    """Raises InvalidSchema, with the path, for what is no Draft 2020-12 schema."""
    if not isinstance(schema, dict | bool):
        raise InvalidSchema("", f"a schema is an object or a boolean, not {type(schema).__name__}")
    try:
        if json.loads(json.dumps(schema, allow_nan=False)) != schema:
            raise InvalidSchema("", "it doesn't survive a round trip through JSON")
        problem = best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema))
    except InvalidSchema:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidSchema("", f"it isn't JSON ({error})") from None
    except RecursionError:
        raise UnsupportedSchema("", "", "it is nested too deeply") from None
    if problem is not None:
        path = "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in problem.absolute_path)
        keyword = str(problem.absolute_path[-1]) if problem.absolute_path else ""
        kind, hint = _OLDER_FORMS.get(keyword, (None, ""))
        if kind is not None and isinstance(problem.instance, kind):
            raise InvalidSchema(path, hint)
        raise InvalidSchema(path, problem.message[:200].rstrip("."))
