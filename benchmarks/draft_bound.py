"""How much drafts could gain at best on the sample job: python benchmarks/draft_bound.py [--step 18] [--document 8].

The job's answers are decoded without drafts. Then their steps are counted again as if so many tokens of every row had
been guessed, all of them right, and priced in processor milliseconds: so much a step, a document and a row.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import engine  # noqa: F401  # before torch, for what it sets
from engine.request import Request, SamplingParameters
from jobs.job_file import load_job
from jobs.model import choose_dtype, engine_settings, load_decoder, make_engine_of
from jobs.run import prepare


@dataclass
class Answer:
    """The document it is about, its tokens, and how many were there when the last prompt was computed."""

    document: str
    tokens: int
    before: int


def main() -> None:
    """Print steps, rows and the ratio of prices for several numbers of right guesses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, default=18, help="processor milliseconds of a step")
    parser.add_argument("--document", type=float, default=8, help="... of each document that its rows are about")
    parser.add_argument("--row", type=float, default=2.4, help="... of each row")
    arguments = parser.parse_args()
    answers = decoded()
    plain = None
    for right in (0, 1, 2, 3, 5, 8, 12):
        steps, documents, rows = counted(answers, right)
        price = arguments.step * steps + arguments.document * documents + arguments.row * rows
        plain = plain or price
        print(f"{right:2} right guesses a row and step: {steps} steps, {rows} rows, {plain / price:.2f} times faster")


def decoded() -> list[Answer]:
    """The sample job's answers."""
    job = load_job(ROOT / "sample_data" / "job.toml", [])
    prepared = prepare(job)
    dtype = choose_dtype("auto", "cpu")
    settings = replace(engine_settings(job, prepared.model, prepared.plan, dtype, "cpu"), drafts=False)
    running = make_engine_of(load_decoder(prepared.model, dtype, "cpu"), prepared.model, settings, dtype, "cpu")
    sampling = SamplingParameters(max_tokens=job.sampling.max_tokens)
    rows = prepared.plan.rows
    running.submit([Request(i, row.prompt, sampling, row.schema.grammar) for i, row in enumerate(rows)])
    completions = []
    steps_of: list[int] = []  # completed rows' decoding steps without any prompt beside them
    alone = 0
    while running.has_work:
        seconds = running.statistics.decode_seconds
        ended = running.step()
        alone += running.statistics.decode_seconds > seconds
        completions += ended
        steps_of += [alone] * len(ended)
    return [
        Answer(rows[done.request_id].row.doc_id, len(done.output_tokens), max(len(done.output_tokens) - steps, 0))
        for done, steps in zip(completions, steps_of, strict=True)
    ]


def counted(answers: list[Answer], right: int) -> tuple[int, int, int]:
    """Steps, documents of all steps, and rows, where each row of a step yields `right` guesses and one token more."""
    left = {place: answer.tokens - answer.before for place, answer in enumerate(answers)}
    steps = documents = rows = 0
    while any(left.values()):
        running = [place for place, tokens in left.items() if tokens]
        steps += 1
        documents += len({answers[place].document for place in running})
        for place in running:
            taken = min(1 + right, left[place])
            rows += taken
            left[place] -= taken
    return steps, documents, rows


if __name__ == "__main__":
    main()
