"""What one step did and how long it took: the measurements that reports are made of."""

from __future__ import annotations

from dataclasses import dataclass

from engine.forward_work import ForwardWork
from engine.step import Step


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward step. Its seconds are `prompt_seconds + output_seconds + mask_seconds`.

    What is no mask is shared out between prompt and output in the ratio of their arithmetic, because both run in the
    same matrix products.
    """

    prompt_tokens: int  # positions of prompts that were computed
    prompt_flops: int  # their arithmetic
    output_tokens: int  # tokens that answers grew by, certain ones included
    running_rows: int
    pages_used: int  # pages of the pool that are not free while it runs
    prompt_seconds: float
    output_seconds: float
    mask_seconds: float  # writing the masks of grammars


def prompt_and_output_flops(step: Step, work: ForwardWork) -> tuple[int, int]:
    """The arithmetic of a step's prompt tokens, and that of its other rows, output and drafts."""
    prompt = output = 0
    for rows in step.rows:
        prompt += work.flops(rows.first_position, rows.prompt_count)
        output += work.flops(rows.first_position + rows.prompt_count, rows.row_count - rows.prompt_count)
    return prompt, output
