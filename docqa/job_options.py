"""The options that say what to run, shared by every command that takes a job: a job file, or the same as flags."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from jobs.job_file import job_from_settings, load_job
from jobs.job_settings import Job


@dataclass(frozen=True)
class JobOptions:
    """What the command line says of a job; flags win over the job file, and `overrides` (--set) over both."""

    job_file: Path | None
    documents: tuple[str, ...]
    questions: tuple[str, ...]
    schema: str | None
    output: str | None
    model: str | None
    columns: tuple[str, ...]
    overrides: tuple[str, ...]
    lenient: bool

    def load(self, *, default_output: str | None = None) -> Job:
        """The job. Raises JobFileError, and click.UsageError where flags that replace a job file are missing."""
        overrides = [f"input.columns.{column}" for column in self.columns]
        if self.lenient:
            overrides.append("answer.lenient=true")
        if self.job_file is None:
            return self._without_file(overrides, self.output or default_output)
        # A path on the command line is relative to where the user stands, one in the job file to the file.
        if self.schema is not None:
            overrides.append(f"answer.schema={_path_or_name(self.schema)}")
        if self.output is not None:
            overrides.append(f"output.database={os.path.abspath(self.output)}")
        if self.model is not None:
            overrides.append(f"model.path={_path_or_name(self.model)}")
        for key, paths in (("documents", self.documents), ("questions", self.questions)):
            if paths:
                overrides.append(f"input.{key}={json.dumps([_absolute(path) for path in paths])}")
        return load_job(self.job_file, [*overrides, *self.overrides])

    def _without_file(self, overrides: list[str], output: str | None) -> Job:
        if not self.documents:
            raise click.UsageError("Give a job file, or --documents with --schema and --output.")
        for name, value in (("schema", self.schema), ("output", output)):
            if value is None:
                raise click.UsageError(f"--{name} is needed where there is no job file.")
        assert output is not None
        settings = {
            "job": {"name": Path(output).stem or None},
            "input": {"documents": list(self.documents), "questions": list(self.questions) or None},
            "answer": {"schema": self.schema},
            "model": {"path": self.model},
            "output": {"database": output},
        }
        return job_from_settings(settings, Path.cwd(), [*overrides, *self.overrides], source="the command line")


_OPTIONS = [
    click.argument("job_file", required=False, type=click.Path(path_type=Path), metavar="[JOB]"),
    click.option("--documents", multiple=True, envvar="DOCQA_DOCUMENTS", metavar="PATH",
                 help="Parquet files, folders or globs with documents; may be given several times."),
    click.option("--questions", multiple=True, envvar="DOCQA_QUESTIONS", metavar="PATH",
                 help="Parquet files with questions, for the layout of two tables."),
    click.option("--schema", envvar="DOCQA_SCHEMA", metavar="FILE",
                 help="JSON Schema file, or a stock schema's name."),
    click.option("--output", envvar="DOCQA_OUTPUT", metavar="DB", help="DuckDB file for the answers."),
    click.option("--model", envvar="DOCQA_MODEL", metavar="M",
                 help="Model: the embedded default, a local folder, a GGUF file, or a Hugging Face id."),
    click.option("--column", "columns", multiple=True, envvar="DOCQA_COLUMN", metavar="NAME=COLUMN",
                 help="Read NAME (document, question, ...) from another column, as in document=body."),
    click.option("--set", "overrides", multiple=True, envvar="DOCQA_SET", metavar="KEY=VALUE",
                 help="Set any key of the job file, as in engine.kv_memory=4GiB."),
    click.option("--lenient", is_flag=True, envvar="DOCQA_LENIENT",
                 help="Run also with a schema that can't be enforced whole; the rest is checked after."),
]  # fmt: skip


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a click command with the options; they reach it together, as the argument `job_options`."""
    names = tuple(JobOptions.__dataclass_fields__)

    @wraps(command)
    def with_options(**options: Any) -> None:
        command(JobOptions(**{name: options.pop(name) for name in names}), **options)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


def _absolute(path: str) -> str:
    """An empty one, of a shell variable that is not set, and an address stay as they are, and are refused so."""
    return path if not path or "://" in path else os.path.abspath(path)


def _path_or_name(value: str) -> str:
    return os.path.abspath(value) if Path(value).exists() else value
