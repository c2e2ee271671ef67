"""The two kinds of failure the engine reports by name."""


class ModelError(Exception):
    """A user's mistake about the model: one sentence that says what is wrong, where, and what to do."""


class EngineError(Exception):
    """A failure of the engine while it runs; rows that have no answer yet stay pending."""
