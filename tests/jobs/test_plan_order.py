"""The order of segmented prompts against the order of whole ones (engine/prefix_order.py)."""

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.prefix_order import depth_first_order, first_positions
from jobs.plan_order import first_positions_in_order, plan_order
from jobs.prompt_segments import Segment, SegmentedPrompt, SharedPrefix

# Few ids and short runs, so that prefixes are often equal, or the beginning of one another.
IDS = st.lists(st.integers(0, 2), max_size=4)
OPENINGS = st.lists(IDS, min_size=1, max_size=3)
DOCUMENTS = st.lists(IDS, min_size=1, max_size=6)
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), IDS), max_size=25)


def array(ids):
    return np.array(ids, dtype=np.int32)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPENINGS, DOCUMENTS, ROWS)
@example([[]], [[1], [1, 1], [1, 1, 1], [2]], [(0, n % 4, [1] * (n % 3)) for n in range(24)])
@example([[]], [[1], [1]], [(0, 1, [1]), (0, 0, [1]), (0, 1, [])])
def test_order_and_minimums_are_those_of_whole_prompts(openings, documents, rows):
    prefixes = {
        (opening, document): SharedPrefix(array(openings[opening]), Segment(array(documents[document])))
        for opening in range(len(openings))
        for document in range(len(documents))
    }
    prompts = [
        SegmentedPrompt(prefixes[opening % len(openings), document % len(documents)], array(rest))
        for opening, document, rest in rows
    ]
    whole = [prompt.ids() for prompt in prompts]
    assert [len(prompt) for prompt in prompts] == [len(ids) for ids in whole]
    order = plan_order(prompts)
    assert order == plan_order(prompts, step=1) == depth_first_order(whole)
    assert first_positions_in_order([prompts[index] for index in order]) == first_positions(
        [whole[index] for index in order]
    )


def test_a_document_that_grows_every_day_is_ordered_without_recursion():
    """Each document is the beginning of the next: 1,500 deep, with questions that sort before and after the rest."""
    documents = [Segment(array([7] * length)) for length in range(1, 1500)]
    prefixes = [SharedPrefix(array([1]), document) for document in documents]
    prompts = [SegmentedPrompt(prefix, array([question])) for prefix in prefixes for question in (9, 3)]
    assert plan_order(prompts) == depth_first_order([prompt.ids() for prompt in prompts])
