"""The exit statuses of every command, and which error ends with which."""

from __future__ import annotations

import click

ROWS_FAILED = 1
NOTHING_RUN = 2
ENDED_ABNORMALLY = 3
OUTPUT_HELD = 4
INTERRUPTED = 130

HELP = """
\b
Exit status:
  0  every row is ok
  1  finished, some rows failed (within run.max_failures), or files were skipped
  2  bad command line, job file, schema or input: nothing was run
  3  ended abnormally: engine or disk failure, or more failures than allowed
  4  another run holds the output
  5  stopped at the time budget; the rest is pending
  130, 143  interrupted by SIGINT, SIGTERM
"""


def exit_status_of(error: Exception) -> int | None:
    """The exit status that an error stands for; None for one that is no user's mistake but a fault of docqa."""
    # Imported here, so that --help is quick; whoever raised one of these has its module loaded.
    from engine.errors import ModelError
    from jobs.errors import JobError
    from jobs.output_lock import OutputLocked
    from jobs.store import OutputBusy

    if isinstance(error, OutputLocked | OutputBusy):
        return OUTPUT_HELD
    if isinstance(error, JobError | ModelError | click.ClickException):
        return NOTHING_RUN
    if isinstance(error, OSError):  # a full disk, a vanished folder
        return ENDED_ABNORMALLY
    return None
