"""Steps launched ahead: the same steps and answers as without, and at most one wait for the device a step."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import runner, token_draw
from engine.decoder import Decoder
from engine.device_stream import HostStream, Staging
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.errors import EngineError
from engine.request import Request, SamplingParameters
from engine.triton.row_operations import TritonRowOperations
from engine.weights import random_weights
from tests.engine.conftest import STOP_ID, random_prompts
from tests.engine.test_drafts import ScriptGrammar
from tests.thorough import examples


class FakeStream:
    """A device that runs ahead: what is sent is read later, and what is fetched is there only after a wait."""

    runs_ahead = True

    def __init__(self):
        self.log = []  # "begin" for a step that is launched, "wait" for the host waiting for the device

    def begin_step(self):
        self.log.append("begin")

    def send(self, array, target=None):
        tensor = torch.from_numpy(array.copy())
        return tensor if target is None else target.copy_(tensor)

    def fetch(self, tensors):
        return FakeFetched(self, [tensor.clone() for tensor in tensors])

    @property
    def waits_by_step(self):
        steps = "".join(entry[0] for entry in self.log).split("b")
        return [len(waits) for waits in steps]


class FakeFetched:
    def __init__(self, stream, tensors):
        self.stream, self.tensors = stream, tensors

    def wait(self):
        assert self.tensors is not None, "fetched once"
        self.stream.log.append("wait")
        tensors, self.tensors = self.tensors, None
        return [tensor.numpy() for tensor in tensors]


@pytest.fixture(scope="module")
def engine_over(tiny_model):
    """engine_over(stream, **settings) -> an engine that records its steps in `.steps`."""

    def make(stream, stop_token_ids=(STOP_ID,), model=None, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "stream_of", lambda device: stream)
            decoder, config = tiny_model
            engine = Engine(model or decoder, config, EngineSettings(**{"kv_pages": 400, **options}), stop_token_ids)
        engine.steps = []
        forward = engine._runner.forward

        def recording(step):
            engine.steps.append(step)
            return forward(step)

        engine._runner.forward = recording
        return engine

    return make


def same_step(mine, theirs):
    for field in ("token_ids", "positions", "write_rows", "write_slots", "copy_sources", "copy_targets"):
        assert np.array_equal(getattr(mine, field), getattr(theirs, field)), field
    assert [rows.sequence.request.request_id for rows in mine.sampled] == [
        rows.sequence.request.request_id for rows in theirs.sampled
    ]


def answer(engine, requests, feed):
    """All completions, in the order in which they came; the engine is checked after each step."""
    completions = []
    if feed:
        engine.feed(iter(requests))
    else:
        completions += engine.submit(requests)
    while engine.has_work:
        completions += engine.step()
        engine.check()
    return completions


def facts(completions):
    timeless = {"ttft_seconds": 0.0, "latency_seconds": 0.0}
    return [dataclasses.replace(completion, **timeless) for completion in completions]


@st.composite
def workloads(draw):
    prompts = random_prompts(draw(st.integers(0, 1000)), draw(st.integers(1, 3)), draw(st.integers(1, 5)))
    prompts = sorted(prompts, key=lambda prompt: prompt.tolist())
    if draw(st.booleans()):
        prompts = [prompt for prompt in prompts for _ in range(2)]  # identical ones wait for a stored state
    grammar = (
        ScriptGrammar([[5, 6, 7], [9], [11], [5, 6], [8, 9], [5, 8]], forced={1: [9, 11]})
        if draw(st.booleans())
        else None
    )
    longest = draw(st.integers(1, 9))
    requests = [
        Request(
            index, prompt, SamplingParameters(temperature=float(index % 2), seed=index, max_tokens=longest), grammar
        )
        for index, prompt in enumerate(prompts)
    ]
    needed = max(-(-(len(prompt) + longest) // 16) for prompt in prompts)
    options = {
        "step_tokens": draw(st.sampled_from([3, 20, 64, 1024])),
        "max_rows": draw(st.sampled_from([1, 3, 64])),
        "kv_pages": needed + draw(st.sampled_from([0, 1, 6, 200])),
        "reserved_output": draw(st.sampled_from([0.0, 1.0])),
        "drafts": draw(st.booleans()),
        "keep_unneeded": draw(st.booleans()),
    }
    return requests, options, draw(st.booleans())


@given(workload=workloads())
@examples(10)
def test_the_steps_and_answers_are_those_without_overlap(engine_over, workload):
    requests, options, feed = workload
    plain, stream = engine_over(HostStream(), **options), FakeStream()
    expected = answer(plain, requests, feed)
    ahead = engine_over(stream, **options)
    assert facts(answer(ahead, requests, feed)) == facts(expected)
    assert len(expected) == len(requests)
    for mine, theirs in zip(ahead.steps, plain.steps, strict=True):
        same_step(mine, theirs)
    assert ahead.statistics.steps == plain.statistics.steps == len(stream.waits_by_step) - 1
    assert max(stream.waits_by_step) == 1
    for counted in ("step_rows", "decoding_rows", "peak_pages", "preemptions", "drafted_tokens", "accepted_tokens"):
        assert getattr(ahead.statistics, counted) == getattr(plain.statistics, counted), counted


def requests_for(count=4, max_tokens=5):
    prompts = random_prompts(3, documents=1, questions=count)
    return [Request(index, prompt, SamplingParameters(max_tokens=max_tokens)) for index, prompt in enumerate(prompts)]


def test_the_next_step_runs_while_the_caller_has_the_completions(engine_over):
    stream = FakeStream()
    engine = engine_over(stream, drafts=False, max_rows=2)
    engine.submit(requests_for())
    finished = 0
    while engine.has_work:
        engine.step()
        finished += 1
        launched = stream.log.count("begin")
        assert launched == finished + engine.has_work, "one step is ahead, as long as there is one"
        assert stream.log.count("wait") == finished
    without = FakeStream()
    engine = engine_over(without, overlap=False)
    engine.submit(requests_for())
    engine.step()
    assert without.log == ["begin", "wait"]


def test_coming_requests_are_taken_while_a_step_runs(engine_over):
    stream = FakeStream()

    def coming():
        for request in requests_for(6):
            stream.log.append("take")
            yield request

    engine = engine_over(stream, max_rows=1)
    engine.feed(coming())
    while engine.has_work:
        engine.step()
    first_launch, rest = stream.log.index("begin"), stream.log
    taken_ahead = [place for place, entry in enumerate(rest) if entry == "take" and place > first_launch]
    assert taken_ahead
    # After a launch and before the wait for it: never between the wait and the next launch, when the device is idle.
    assert all("begin" in {rest[place - 1], rest[place - 2]} for place in taken_ahead)


def test_what_is_in_flight_can_be_finished_or_dropped(engine_over):
    expected = facts(answer(engine_over(HostStream()), requests_for(), feed=False))
    for rounds in range(1, 5):
        engine = engine_over(FakeStream())
        completions = engine.submit(requests_for())
        for _ in range(rounds):
            completions += engine.step()
        completions += engine.drain()
        engine.check()
        assert engine.drain() == []
        assert engine.last_step is None
        while engine.has_work:
            completions += engine.step()
        assert facts(completions) == expected
        engine.submit(requests_for())
        engine.step()
        dropped = engine.abort()
        assert dropped
        assert not engine.has_work
        engine.check()
        assert facts(answer(engine, requests_for(), feed=False))[0].output_tokens == expected[0].output_tokens


def test_draws_on_the_device_wait_once_with_their_probabilities(engine_over, tiny_model, monkeypatch):
    """The path of a GPU, in Triton's interpreter: tokens and log-probabilities come in one fetch."""
    _, config = tiny_model
    requests = [dataclasses.replace(request, log_probabilities=True) for request in requests_for(2, 3)]
    expected = answer(engine_over(HostStream(), drafts=False), requests, feed=False)
    monkeypatch.setattr(token_draw, "_draws_on_device", lambda hidden: True)
    stream = FakeStream()
    model = Decoder(config, random_weights(config, torch.float32, "cpu", seed=3), TritonRowOperations())
    ours = answer(engine_over(stream, model=model, drafts=False), requests, feed=False)
    assert [c.output_tokens for c in ours] == [c.output_tokens for c in expected]
    for mine, theirs in zip(ours, expected, strict=True):
        assert np.allclose(mine.log_probabilities, theirs.log_probabilities, atol=1e-4)
    assert max(stream.waits_by_step) == 1
    model.weights.final_norm.fill_(torch.nan)
    engine = engine_over(FakeStream(), model=model, drafts=False)
    with pytest.raises(EngineError, match="not numbers"):
        answer(engine, requests, feed=False)


class Queue:
    """A device's queue whose copies are done late: when an event after them is waited for, or when it likes."""

    def __init__(self):
        self.pending, self.done, self.waits = [], 0, 0

    def copy(self, source):
        """Reads `source` only when its turn comes; returns where it goes."""
        target = torch.empty_like(source)
        self.pending.append((target, source))
        return target

    def run(self, count):
        for target, source in self.pending[self.done : count]:
            target.copy_(source)
        self.done = max(self.done, min(count, len(self.pending)))

    def mark(self):
        return QueueEvent(self, len(self.pending))


class QueueEvent:
    def __init__(self, queue, place):
        self.queue, self.place = queue, place

    def query(self):
        return self.queue.done >= self.place

    def synchronize(self):
        self.queue.waits += 1
        self.queue.run(self.place)


@given(
    steps=st.lists(st.tuples(st.lists(st.integers(0, 3000), max_size=5), st.integers(0, 8)), min_size=1, max_size=12),
    least=st.sampled_from([64, 4096]),
)
@examples(40)
def test_what_is_sent_arrives_however_late_it_is_read(steps, least):
    queue = Queue()
    staging = Staging(lambda size: torch.empty(max(size, least), dtype=torch.uint8), queue.mark)
    for index in range(2):
        staging._sets[index].memory = torch.empty(least, dtype=torch.uint8)
    sent, random = [], np.random.default_rng(0)
    for sizes, executed in steps:
        waits = queue.waits
        staging.begin_step()
        assert queue.waits <= waits + 1
        for size in sizes:
            array = random.integers(0, 1 << 40, size)
            sent.append((array.copy(), queue.copy(staging.hold(array))))
            array.fill(-1)
        queue.run(queue.done + executed)
    queue.run(len(queue.pending))
    for array, arrived in sent:
        assert np.array_equal(arrived.numpy(), array)
