"""Rows whose prompts are known only when others have ended: what they share is computed once, in any pool."""

from dataclasses import dataclass

import numpy as np
from hypothesis import Phase, given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.prefix_order import depth_first_order
from engine.request import RepeatCause, Request, SamplingParameters
from tests.engine.conftest import STOP_ID, VOCABULARY_SIZE
from tests.engine.test_engine import minimum_tokens
from tests.thorough import examples

OUTPUT_TOKENS = 4
MOST_ROWS = 6  # of a document
QUESTION_TOKENS = 6  # at most, of a question's beginning that is known


@dataclass(frozen=True)
class Row:
    """A question of a document; its prompt has the answers of the rows `after` between `known` and `end`.

    With a `mark`, a token that no other row has there, rows share nothing behind what is known of them.
    """

    document: int
    known: np.ndarray
    end: np.ndarray
    after: tuple[int, ...] = ()
    mark: tuple[int, ...] = ()


class Driver:
    """Feeds rows as a run does: independent ones in order, the others once what they wait for has ended."""

    def __init__(self, engine, rows, reserve_tokens=None):
        self.engine, self.rows, self.reserve_tokens = engine, rows, reserve_tokens
        self.answers, self.completions, self.prompts = {}, {}, {}
        self.holds, self.all_fed = {}, set()  # by document
        self.waiting = [index for index, row in enumerate(rows) if row.after]

    def run(self):
        self.engine.feed(self.feed())
        while self.engine.has_work:
            for completion in self.engine.step():
                self.completions[completion.request_id] = completion
                self.answers[completion.request_id] = np.array(completion.output_tokens, np.int32)
            for index in [index for index in self.ready() if self.rows[index].document in self.all_fed]:
                assert self.engine.submit_held([self.request(index)]) == []
                self.was_planned(index)
            self.engine.check()
        assert len(self.completions) == len(self.rows)
        return [self.answers[index].tolist() for index in range(len(self.rows))]

    def evicted_tokens(self):
        return sum(one.repeated_tokens.get(RepeatCause.EVICTED, 0) for one in self.completions.values())

    def feed(self):
        independent = [index for index, row in enumerate(self.rows) if not row.after]
        order = depth_first_order([self.prompt(index) for index in independent])
        ordered = [independent[place] for place in order]
        for place, index in enumerate(ordered):
            document = self.rows[index].document
            self.hold(document)
            yield self.request(index)
            if place + 1 == len(ordered) or self.rows[ordered[place + 1]].document != document:
                for later in [later for later in self.ready() if self.rows[later].document == document]:
                    yield self.request(later)
                    self.was_planned(later)
                self.all_fed.add(document)

    def hold(self, document):
        rows = [self.rows[index] for index in self.waiting if self.rows[index].document == document]
        if rows and document not in self.holds:
            reserve = max(len(row.end) + len(row.after) * OUTPUT_TOKENS for row in rows) + OUTPUT_TOKENS
            if self.reserve_tokens is not None:
                reserve = self.reserve_tokens
            self.holds[document] = self.engine.hold([row.known for row in rows], reserve)

    def ready(self):
        return [index for index in self.waiting if all(other in self.answers for other in self.rows[index].after)]

    def was_planned(self, index):
        self.waiting.remove(index)
        document = self.rows[index].document
        if not any(self.rows[other].document == document for other in self.waiting):
            self.engine.end_hold(self.holds[document])

    def request(self, index):
        hold = self.holds.get(self.rows[index].document)
        return Request(index, self.prompt(index), SamplingParameters(max_tokens=OUTPUT_TOKENS), hold=hold)

    def prompt(self, index):
        if index not in self.prompts:
            row = self.rows[index]
            answers = [self.answers[other] for other in row.after]
            self.prompts[index] = np.concatenate([row.known, np.array(row.mark, np.int32), *answers, row.end])
        return self.prompts[index]


@st.composite
def programs(draw):
    """Rows of a few documents, some after others of their document; beginnings are shared at every level."""
    marked = draw(st.booleans())
    random = np.random.default_rng(draw(st.integers(0, 2**32)))

    def ids(low, high):
        return random.integers(2, VOCABULARY_SIZE - MOST_ROWS, draw(st.integers(low, high)), dtype=np.int32)

    rows = []
    opening, question = ids(1, 20), ids(1, QUESTION_TOKENS)
    for document in range(draw(st.integers(1, 5))):
        prefix = np.concatenate([opening, ids(1, 60), question])
        first = len(rows)
        for number in range(draw(st.integers(1, MOST_ROWS))):
            earlier = range(first, len(rows))
            after = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if number else []
            known = np.concatenate([prefix, question[: draw(st.integers(0, QUESTION_TOKENS))]])
            mark = (VOCABULARY_SIZE - 1 - number,) if marked else ()
            rows.append(Row(document, known, ids(1, 12), tuple(after), mark))
    return rows


def make(tiny_model, kv_pages=3000, **options):
    model, config = tiny_model
    return Engine(model, config, EngineSettings(kv_pages=kv_pages, keep_unneeded=False, **options), [STOP_ID])


def plain_answers(tiny_model, rows):
    """The oracle: each row alone, without reuse, after those it waits for."""
    driver = Driver(None, rows)
    for index in range(len(rows)):
        [completion] = make(tiny_model, reuse=False).run([driver.request(index)])
        driver.answers[index] = np.array(completion.output_tokens, np.int32)
    return [driver.answers[index].tolist() for index in range(len(rows))], list(driver.prompts.values())


def pages_for(tokens, page_size):
    return -(-tokens // page_size)


def pages_held_beside(rows, page_size):
    """Pages that the held beginnings of a document's rows take beside one row's path, at most."""
    held = {}
    for row in rows:
        if row.after:
            held.setdefault(row.document, {})[row.known.tobytes()] = pages_for(QUESTION_TOKENS, page_size) + 1
    return max((sum(prefixes.values()) for prefixes in held.values()), default=0)


@examples(4, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(
    rows=programs(),
    page_size=st.sampled_from([1, 4, 16]),
    max_rows=st.integers(1, 8),
    step_tokens=st.sampled_from([5, 40, 1024]),
)
def test_rows_that_come_later_share_all_that_is_known(tiny_model, rows, page_size, max_rows, step_tokens):
    options = {"page_size": page_size, "max_rows": max_rows, "step_tokens": step_tokens}
    expected, prompts = plain_answers(tiny_model, rows)
    smallest = pages_for(max(map(len, prompts)) + OUTPUT_TOKENS - 1, page_size)
    for pages in (smallest + pages_held_beside(rows, page_size), 3000):
        driver = Driver(make(tiny_model, kv_pages=pages, **options), rows)
        assert driver.run() == expected
        computed = sum(one.computed_tokens for one in driver.completions.values())
        assert computed == minimum_tokens(prompts) + driver.evicted_tokens()
        if pages == 3000 or rows[0].mark:  # in a small pool, only what is known is kept for rows that come
            assert driver.evicted_tokens() == 0
        assert driver.engine.cache.pool.free == pages
    # Case 33: without room for what is held, or with too little left for what comes, it still ends and answers alike.
    for reserve_tokens in (None, 0):
        driver = Driver(make(tiny_model, kv_pages=smallest, **options), rows, reserve_tokens)
        assert driver.run() == expected
        assert driver.engine.cache.pool.free == smallest


def test_what_is_held_goes_when_the_room_left_is_too_small(tiny_model):
    """Two documents start together; the row to come needs more than the pool has beside both."""
    random = np.random.default_rng(0)
    first, second = (random.integers(2, VOCABULARY_SIZE, 64, dtype=np.int32) for _ in range(2))
    one, long = np.array([5], np.int32), random.integers(2, VOCABULARY_SIZE, 70, dtype=np.int32)
    rows = [Row(0, first, one), Row(0, first, long, (0,)), Row(1, second, one), Row(1, second, one, (2,))]
    expected, prompts = plain_answers(tiny_model, rows)
    for reserve_tokens, given_up in ((None, False), (0, True)):
        driver = Driver(make(tiny_model, kv_pages=12), rows, reserve_tokens)
        assert driver.run() == expected
        computed = sum(one.computed_tokens for one in driver.completions.values())
        assert computed == minimum_tokens(prompts) + driver.evicted_tokens()
        assert (driver.evicted_tokens() > 0) == given_up


def test_an_abort_ends_the_holds(tiny_model):
    rows = [Row(0, np.arange(2, 50, dtype=np.int32), np.array([3], np.int32), after) for after in ((), (0,), (1,))]
    driver = Driver(make(tiny_model, kv_pages=100), rows)
    driver.engine.feed(driver.feed())
    driver.engine.step()
    driver.engine.abort()
    driver.engine.check()
    driver.engine.end_hold(driver.holds[0])
    assert driver.engine.cache.pool.free == 100
