"""The tree of what rows share, against a plain prefix tree."""

from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefix_order import depth_first_order, first_positions
from jobs.shared_parts import KEPT_CHILDREN, segment_names, shared_parts


@dataclass
class Row:
    prompt: tuple
    prompt_tokens: int
    minimum_tokens: int


def rows_of(prompts):
    arrays = [np.array(prompt, dtype=np.int32) for prompt in prompts]
    order = depth_first_order(arrays)
    minimums = first_positions([arrays[index] for index in order])
    return [Row(tuple(prompts[index]), len(prompts[index]), minimum)
            for index, minimum in zip(order, minimums, strict=True)]  # fmt: skip


def parts_of(part):
    yield part
    for child in part.children:
        yield from parts_of(child)


def expected_parts(rows):
    """Of a plain prefix tree: (first row, rows, end) of each prefix at which prompts that share it end or part."""
    found = set()
    for first, row in enumerate(rows):
        for end in range(1, row.prompt_tokens + 1):
            sharing = [other for other in rows if other.prompt[:end] == row.prompt[:end] and other.prompt_tokens >= end]
            together = {other.prompt[end : end + 1] for other in sharing}
            if len(sharing) > 1 and (len(together) > 1 or () in together) and rows.index(sharing[0]) == first:
                found.add((first, len(sharing), end))
    return found


prompt_lists = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=0, max_size=10, unique_by=tuple
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(prompt_lists)
def test_every_branch_of_the_tree_is_a_part(prompts):
    rows = rows_of(prompts)
    root = shared_parts(rows)
    assert (root.first, root.rows, root.start, root.end) == (0, len(rows), 0, 0)
    found = {(part.first, part.rows, part.end) for part in parts_of(root) if part is not root}
    assert found == expected_parts(rows)
    for part in parts_of(root):
        assert all(child.start == part.end and child.tokens > 0 for child in part.children)
        assert [child.saved_in_all for child in part.children] == sorted(
            (child.saved_in_all for child in part.children), reverse=True
        )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=40))
def test_all_savings_add_up(prompts):
    """Also those of parts that are left out, and of prompts that are the same."""
    rows = rows_of(prompts)
    root = shared_parts(rows)
    assert root.saved_in_all == sum(row.prompt_tokens - row.minimum_tokens for row in rows)


def test_of_many_parts_the_largest_are_kept():
    prompts = [[7, document, *range(document), end] for document in range(3, 203) for end in (1, 2)]
    [common] = shared_parts(rows_of(prompts)).children
    assert (common.tokens, common.rows, common.saved_tokens) == (1, 400, 399)
    assert [child.tokens for child in common.children] == [203 - place for place in range(KEPT_CHILDREN)]
    assert common.children_left_out == 200 - KEPT_CHILDREN
    assert common.saved_below == sum(range(4, 204))


def test_a_chain_of_prefixes_is_no_matter_of_recursion():
    rows = rows_of([[1] * length for length in range(1, 3000)])
    root = shared_parts(rows)
    assert root.saved_in_all == sum(range(1, 2999))
    depth = len(list(takewhile(lambda part: part.children, walk_down(root))))
    assert depth == 2998


def walk_down(part):
    while True:
        yield part
        if not part.children:
            return
        part = part.children[0]


def test_parts_are_named_by_what_they_are_made_of(make_job):
    from jobs.job_file import load_job
    from jobs.prepare import prepare
    from tests.job_fixtures import sample_rows

    rows = prepare(load_job(make_job(sample_rows()), [])).plan.rows
    [common] = shared_parts(rows).children
    assert common.rows == 20
    names = segment_names(rows[common.first], common.start, common.end)
    assert names == ["system", "document"]  # all documents begin alike
    assert [child.rows for child in common.children] == [5] * 4
    for child in common.children:
        assert segment_names(rows[child.first], child.start, child.end)[0] == "document"
