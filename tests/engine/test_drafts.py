"""Drafts change how many tokens a step yields, never which."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_settings import EngineSettings
from engine.model_config import ModelConfig
from engine.repeats import KEY_TOKENS, MOST_PLACES, MOST_SAME, TokenIndex
from engine.request import FinishReason, Request, SamplingParameters
from engine.weights import random_weights
from tests.engine.conftest import STOP_ID, TINY_CONFIG, VOCABULARY_SIZE, random_prompts, tokens
from tests.thorough import examples


class ScriptGrammar:
    """Allows at each place the tokens of a list of sets; the answer may stop after `shortest` and must at the end."""

    def __init__(self, allowed, shortest=None, forced=()):
        self.allowed = [sorted(choices) for choices in allowed]
        self.shortest = len(self.allowed) if shortest is None else shortest
        self.forced = dict(forced)

    def start(self):
        return ScriptState(self)


class ScriptState:
    def __init__(self, grammar):
        self.grammar = grammar
        self.text = []

    @property
    def may_stop(self):
        return len(self.text) >= self.grammar.shortest

    @property
    def must_stop(self):
        return len(self.text) == len(self.grammar.allowed)

    def choices(self):
        return [] if self.must_stop else self.grammar.allowed[len(self.text)]

    @property
    def only_token(self):
        return self.choices()[0] if len(self.choices()) == 1 and not self.may_stop else None

    def write_mask(self, words, tokens_left=None):
        words[:] = 0
        for token in self.choices():
            words.view(np.uint8)[token // 8] |= 1 << token % 8

    def advance(self, token):
        if token not in self.choices():
            raise ValueError(token)
        self.text.append(token)

    def roll_back(self, count):
        assert count <= len(self.text)
        del self.text[len(self.text) - count :]

    def forced_tokens(self):
        return list(self.grammar.forced.get(len(self.text), ()))


def requests_of(prompts, grammar=None, **sampling):
    sampling = {"max_tokens": 40, **sampling}
    return [
        Request(index, prompt, SamplingParameters(seed=index, **sampling), grammar)
        for index, prompt in enumerate(prompts)
    ]


def results(completions):
    return [(c.output_tokens, c.finish_reason, c.computed_tokens, c.forced_tokens) for c in completions]


@pytest.fixture(scope="module")
def prompts():
    # The tiny model soon falls into loops; the prompts hold some of them, as a document holds what an answer quotes.
    loops = tokens(*[3, 43] * 6, *[1, 19, 30] * 4)
    return [np.concatenate([loops, prompt]) for prompt in random_prompts(seed=11, documents=3, questions=4)]


@pytest.fixture(scope="module", params=[0.0, 0.8])
def requests_and_plain_results(request, make_engine, prompts):
    requests = requests_of(prompts, temperature=request.param)
    return requests, results(make_engine(drafts=False, stop_token_ids=()).run(requests))


@pytest.mark.parametrize(
    "settings", [{}, {"step_tokens": 5}, {"max_rows": 2}, {"kv_pages": 14, "reserved_output": 0.2}]
)
def test_guesses_of_repeated_words_change_no_answer(make_engine, requests_and_plain_results, settings):
    requests, expected = requests_and_plain_results
    engine = make_engine(stop_token_ids=(), **settings)
    assert results(engine.run(requests)) == expected
    engine.check()
    if not settings and requests[0].sampling.temperature == 0:
        assert 0 < engine.statistics.accepted_tokens < engine.statistics.drafted_tokens


def test_a_wrong_draft_is_rolled_back_to_the_token(make_engine, prompts):
    """The grammar claims that some text is forced; the model mostly wants other tokens."""
    everything = set(range(2, VOCABULARY_SIZE))
    allowed = [everything] * 3 + [{7, 8}] + [everything] * 6 + [{9}, {10}] + [everything] * 4
    wrong = {place: [5, 6, 7, 8, 9] for place in range(0, 16, 2)}
    plain, drafted = (ScriptGrammar(allowed, shortest=12, forced=forced) for forced in ({}, wrong))
    expected = results(make_engine(drafts=False).run(requests_of(prompts, plain)))
    engine = make_engine()
    assert results(engine.run(requests_of(prompts, drafted))) == expected
    engine.check()
    assert engine.statistics.drafted_tokens > engine.statistics.accepted_tokens
    assert {reason for _, reason, _, _ in expected} == {FinishReason.STOP}
    assert {len(output) for output, _, _, _ in expected} <= set(range(12, 17))


def test_right_drafts_save_steps(make_engine, prompts):
    everything = set(range(2, VOCABULARY_SIZE))
    allowed = [everything] * 20
    plain = make_engine(drafts=False)
    completions = plain.run(requests_of(prompts[:1], ScriptGrammar(allowed)))
    output = completions[0].output_tokens
    assert len(output) == 20
    engine = make_engine()
    forced = ScriptGrammar(allowed, forced={place: output[place : place + 5] for place in range(20)})
    assert engine.run(requests_of(prompts[:1], forced))[0].output_tokens == output
    assert engine.statistics.steps < plain.statistics.steps / 2
    assert engine.statistics.accepted_tokens == engine.statistics.drafted_tokens > 10


@pytest.mark.parametrize("drafts", [True, False])
def test_where_one_token_is_allowed_no_step_is_needed(make_engine, prompts, drafts):
    everything = set(range(2, VOCABULARY_SIZE))
    grammar = ScriptGrammar([everything, *({token} for token in range(20, 32)), everything, {33}])
    engine = make_engine(drafts=drafts)
    completion = engine.run(requests_of(prompts[:1], grammar))[0]
    assert completion.output_tokens[1:13] == list(range(20, 32))
    assert completion.output_tokens[14] == 33
    assert completion.forced_tokens == 13
    assert completion.finish_reason is FinishReason.STOP
    assert engine.statistics.steps == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_few_choices_need_few_logits_and_give_the_same_answers(prompts, temperature, monkeypatch):
    config = ModelConfig.from_dict({**TINY_CONFIG, "tie_word_embeddings": True})
    model = Decoder(config, random_weights(config, torch.float32, "cpu", seed=4))
    everything = set(range(2, VOCABULARY_SIZE))
    grammar = ScriptGrammar([{5, 9, 40}, everything, {3, 63}, everything, {7, 8}, {STOP_ID + 1, 33}] * 3, shortest=15)
    requests = requests_of(prompts, grammar, temperature=temperature)
    widths = []
    logits = model.logits

    def recording(hidden, token_ids=None):
        result = logits(hidden, token_ids)
        widths.append(result.shape[1])
        return result

    monkeypatch.setattr(model, "logits", recording)
    monkeypatch.setattr("engine.token_draw.FEW_CHOICES", 4)
    partial = results(Engine(model, config, EngineSettings(400), (STOP_ID,)).run(requests))
    assert min(widths) < 20 < max(widths) == VOCABULARY_SIZE
    monkeypatch.setattr("engine.token_draw.FEW_CHOICES", -1)
    assert results(Engine(model, config, EngineSettings(400), (STOP_ID,)).run(requests)) == partial


def test_certain_tokens_are_cut_at_the_limit(make_engine, prompts):
    grammar = ScriptGrammar([{token} for token in range(10, 30)])
    completion = make_engine().run(requests_of(prompts[:1], grammar, max_tokens=6))[0]
    assert (completion.output_tokens, completion.finish_reason) == (list(range(10, 16)), FinishReason.LENGTH)


def test_a_grammar_without_a_next_token_ends_the_row(make_engine, prompts):
    grammar = ScriptGrammar([{4, 5}, set(), {6}])
    completion = make_engine().run(requests_of(prompts[:1], grammar))[0]
    assert (completion.finish_reason, len(completion.output_tokens)) == (FinishReason.NO_TOKEN, 1)


def test_an_answer_that_may_go_on_can_stop(make_engine, prompts):
    grammar = ScriptGrammar([{4, 5}] * 30, shortest=1)
    completions = make_engine(stop_token_ids=(STOP_ID, 40)).run(requests_of(prompts, grammar, temperature=3.0))
    assert {completion.finish_reason for completion in completions} == {FinishReason.STOP}
    assert len({len(completion.output_tokens) for completion in completions}) > 1


def test_text_that_is_always_split_alike_is_drafted_so(make_engine, prompts):
    """The grammar spells its forced text in tokens that the model never wants; from the second row on that is known."""
    everything = set(range(2, VOCABULARY_SIZE))
    allowed = [everything] * 20
    plain = make_engine(drafts=False)
    output = plain.run(requests_of(prompts[:1], ScriptGrammar(allowed)))[0].output_tokens
    unwanted = [(token + 1) % VOCABULARY_SIZE for token in output]
    engine = make_engine(max_rows=1)
    forced = ScriptGrammar(allowed, forced={place: unwanted[place : place + 3] for place in range(20)})
    completions = [engine.run(requests_of(prompts[:1], forced))[0] for _ in range(3)]
    assert [completion.output_tokens for completion in completions] == [output] * 3
    steps = [engine.statistics.steps]
    engine.run(requests_of(prompts[:1], forced))
    assert engine.statistics.steps - steps[0] < plain.statistics.steps / 2
    engine.check()


def test_an_index_finds_the_longest_repeat():
    index = TokenIndex([1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 6, 7])
    assert index.longest_repeat([9, 1, 2, 3], 2) == (3, [6, 7])
    assert index.longest_repeat([5, 1, 2, 3], 9) == (4, [6, 7])
    assert index.longest_repeat([3, 4, 1, 2], 2) == (4, [5, 1])
    assert index.longest_repeat([3, 6, 7], 2) == (0, [])  # nothing follows
    assert index.longest_repeat([9, 9, 9], 2) == index.longest_repeat([2, 3], 2) == (0, [])


def test_an_output_repeats_itself():
    output = [5, 6, 7, 8]
    index = TokenIndex(output)
    assert index.longest_repeat(output, 3) == (0, [])
    output += [5, 6, 7]
    assert index.longest_repeat(output, 3) == (3, [8, 5, 6])


@examples(100)
@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 2), max_size=12), st.integers(0, 60))
def test_repeats_are_the_longest_there_are(tokens_before, text, cut):
    """Against all places compared one by one; the index reads its tokens in two parts."""
    growing = tokens_before[:cut]
    index = TokenIndex(growing)
    index.longest_repeat(text, 4)
    growing += tokens_before[cut:]
    behind_key = [
        place
        for place in range(KEY_TOKENS, len(tokens_before) + 1)
        if len(text) >= KEY_TOKENS and tokens_before[place - KEY_TOKENS : place] == text[-KEY_TOKENS:]
    ]
    lengths = {}
    for place in behind_key[::-1][:MOST_PLACES]:
        same = 0
        while same < min(place, len(text), MOST_SAME) and tokens_before[place - 1 - same] == text[-1 - same]:
            same += 1
        if place < len(tokens_before):
            lengths.setdefault(same, place)
    longest = max(lengths, default=0)
    expected = tokens_before[lengths[longest] : lengths[longest] + 4] if longest else []
    assert index.longest_repeat(text, 4) == (longest, expected)
