"""The command line. Each command is the `command` of the module that bears its name: `docqa run` is docqa/run.py.

Data on stdout, everything else on stderr.
"""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

import click

from docqa import __version__
from docqa.exit_status import ENDED_ABNORMALLY, HELP, INTERRUPTED, exit_status_of
from docqa.wording import visible

COMMANDS = {
    "init": "Write a job that runs as it is, to change.",
    "plan": "Say what a run would do, without loading weights.",
    "run": "Answer everything that has no answer yet.",
    "retry": "Answer again only the rows that have no valid answer.",
    "status": "Show the runs, what goes on now, and what is pending.",
    "report": "Show reuse, speed and failures of a run.",
    "eval": "Hold answers against gold.",
    "export": "Write the answers to a Parquet, JSON Lines or CSV file.",
    "compact": "Make the database smaller.",
    "schedule": "Run a job every night, by cron or systemd.",
    "doctor": "Check that a run would work here.",
    "schema": "Say what of a JSON Schema is enforced and refused.",
}
"""What `docqa --help` lists. The modules are loaded only when their command is called, so that --help is quick."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return import_module(f"docqa.{cmd_name}").command if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, epilog=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Answers many questions about many documents, and writes valid JSON answers to DuckDB."""


def main() -> None:
    """Entry point. A user's mistake is one sentence on stderr, never a traceback."""
    # The output may go to a log in an ASCII locale: it escapes then, and does not fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        # Click returns the status of --help and --version instead of leaving with it.
        sys.exit(cli(prog_name="docqa", standalone_mode=False) or 0)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Exception as error:
        status = exit_status_of(error)
        if status is None:
            # Status 1, which Python would choose, says that a run finished.
            traceback.print_exc()
            click.echo("docqa: this is a fault of docqa; please report it with the lines above", err=True)
            sys.exit(ENDED_ABNORMALLY)
        click.echo(f"docqa: {visible(str(error))}", err=True)
        sys.exit(status)


if __name__ == "__main__":
    main()
