"""Errors that a user can act on: each message says what is wrong, where, and what to do about it."""


class JobError(Exception):
    """A user's mistake. The message is one sentence that names the file, row or setting and the way out."""


class InputError(JobError):
    """The input can't be read as documents and questions."""


class JobFileError(JobError):
    """The job file, or a setting given on the command line, is wrong."""


class OutputError(JobError):
    """The answers can't be written where the job says."""
