"""What can be wrong with a schema, in one sentence each."""


class InvalidSchema(ValueError):
    """The value isn't a valid Draft 2020-12 schema. `path` is a JSON pointer to the offending part."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"Not a valid JSON Schema at {path or 'the root'}: {reason}.")
        self.path = path
        self.reason = reason


class UnsupportedSchema(ValueError):
    """The schema is valid, but no grammar can be guaranteed for it.

    `path` is a JSON pointer to the schema that holds `keyword` (empty for the root), `reason` says what is missing.
    """

    def __init__(self, path: str, keyword: str, reason: str) -> None:
        what = f"{keyword!r} at {path or 'the root'}" if keyword else f"The schema at {path or 'the root'}"
        super().__init__(f"{what} is not supported: {reason}.")
        self.path = path
        self.keyword = keyword
        self.reason = reason


class GrammarTooLarge(Exception):
    """Under the present limits the grammar outgrows its budget; the compiler then tries tighter limits."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
