"""`docqa report`: reuse, speed and failures of a run, all from the database; as text, JSON, or a page for browsers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from docqa.exit_status import ENDED_ABNORMALLY
from docqa.options import database_argument, json_option, quiet_option
from docqa.plain_console import plain_console
from docqa.report_check import disagreements
from docqa.report_documents import document_texts
from docqa.report_figures import report_of, run_of
from docqa.report_page import page_of, write_page
from docqa.report_rows import page_data
from docqa.report_text import print_report
from jobs.store import AnswerStore


@click.command("report")
@database_argument
@click.option("--run", "run_id", envvar="DOCQA_RUN", metavar="ID", help="The run to report; the latest if not given.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path),
    envvar="DOCQA_HTML",
    metavar="FILE",
    help="Write the report, with the answers to browse and search, as one HTML file that needs no network.",
)
@click.option(
    "--documents",
    type=click.Path(path_type=Path),
    multiple=True,
    envvar="DOCQA_DOCUMENTS",
    metavar="JOB",
    help="With --html: show answers beside their document, whose text is read from this job's input, or from Parquet "
    "files, folders or globs with documents; may be given several times.",
)
@click.option(
    "--check",
    is_flag=True,
    envvar="DOCQA_CHECK",
    help="Prove that tables, totals and reports of every run (or of --run) agree; exit status 3 if they don't.",
)
@quiet_option
@json_option
def command(
    database: Path,
    run_id: str | None,
    page: Path | None,
    documents: tuple[Path, ...],
    check: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show reuse, speed and failures of a run."""
    if check and page is not None:
        raise click.UsageError("--check and --html are two questions; give one of them")
    source = click.get_current_context().get_parameter_source("documents")
    if documents and page is None and source is ParameterSource.COMMANDLINE:  # the variable may be there for docqa run
        raise click.UsageError("--documents is for the page: give --html FILE too")
    store = AnswerStore(database, read_only=True)
    if check:
        _check(store, run_id, quiet=quiet, as_json=as_json)
        return
    with store.reading():  # so that a run that is on writes nothing between two queries
        report = report_of(store, run_id)
        data = page_data(store, report, beside_documents=bool(documents)) if page is not None else None
    if page is not None and data is not None:
        texts = None
        if documents:  # read after the database is closed: a large input takes its time
            wanted = {document["document_hash"] for document in report["documents"]}
            texts = document_texts(documents, wanted, report["config"].get("input", {}).get("columns", {}))
        content = page_of(report, data, texts)
        written = write_page(page, content, store.path)
        if not quiet:
            click.echo(f"docqa: {written}", err=True)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    elif page is None:
        print_report(report, plain_console())


def _check(store: AnswerStore, run_id: str | None, *, quiet: bool, as_json: bool) -> None:
    with store.reading():
        runs = store.runs() if run_id is None else [run_of(store, run_id)]
        found = disagreements(store, runs)
    if as_json:
        click.echo(json.dumps({"runs": len(runs), "violations": found}, ensure_ascii=False))
    else:
        for sentence in found:
            click.echo(sentence)
        if not found and not quiet:
            noun = "run" if len(runs) == 1 else "runs"
            click.echo(f"{store.path}: rows, totals and reports of {len(runs):,} {noun} agree")
    if found:
        sys.exit(ENDED_ABNORMALLY)
