"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jobs.job_values import DURATION


class Duration(click.ParamType):
    """A duration as in job files, such as `10m` or `1h30m`, or a number of seconds; its value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, above 0."""
        try:
            return DURATION.read(float(value) if str(value).replace(".", "", 1).isdecimal() else value)
        except (ValueError, TypeError):
            self.fail(f"{value!r} is no duration; allowed is {DURATION.allowed}", param, ctx)


def _database(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder; name the database, the file that a job has as output.database")
    return path


database_argument = click.argument("database", type=click.Path(path_type=Path), metavar="DB", callback=_database)
quiet_option = click.option("--quiet", is_flag=True, envvar="DOCQA_QUIET", help="Nothing on stderr but errors.")
json_option = click.option("--json", "as_json", is_flag=True, envvar="DOCQA_JSON", help="Print the result as JSON.")
wait_option = click.option(
    "--wait",
    type=Duration(),
    envvar="DOCQA_WAIT",
    metavar="DURATION",
    help="If another run holds the output, wait for it this long, as in 10m; else exit 4 at once.",
)
