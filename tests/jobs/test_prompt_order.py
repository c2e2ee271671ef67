"""What a changing value before shared text costs (case 25)."""

from types import SimpleNamespace

import pytest

from engine.prefix_order import depth_first_order, first_positions
from jobs.errors import JobFileError
from jobs.job_settings import PromptSettings
from jobs.prompt import Asked, PromptBuilder
from jobs.prompt_order import order_costs
from jobs.source import InputRow
from tests.engine.tiny_models import byte_tokenizer
from tests.job_fixtures import CHAT_TEMPLATE
from tests.jobs.test_prompt import document_of

DOCUMENTS = [document_of(f"{number} is the number. " + "This much they all say. " * 10) for number in range(5)]


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def planned_rows(prompts, rows, schema_of=lambda row: "verdict"):
    """As the plan makes them: in depth-first order, each with the positions that it is the first to need."""
    documents = {document.document_hash: document for document in DOCUMENTS}
    planned = []
    for row in rows:
        schema = SimpleNamespace(name=schema_of(row), text=f'{{"title": "{schema_of(row)}"}}')
        [segments] = prompts.prompts([Asked(row, documents[row.document_hash], schema.name, schema.text)])
        prompt = segments.ids()
        planned.append(
            SimpleNamespace(row=row, schema=schema, segments=segments, prompt=prompt, prompt_tokens=len(prompt))
        )
    ordered = [planned[index] for index in depth_first_order([row.prompt for row in planned])]
    for row, minimum in zip(ordered, first_positions([row.prompt for row in ordered]), strict=True):
        row.minimum_tokens = minimum
    return ordered


def input_rows(questions=4):
    return [
        InputRow(
            f"d{number}", f"q{asked}", document.document_hash, f"What about {asked}?", None, None,
            {"row": number * 10 + asked, "page": number}, None, "a.parquet row 1",
        )
        for number, document in enumerate(DOCUMENTS)
        for asked in range(questions)
    ]  # fmt: skip


def costs_of(tokenizer, settings, **options):
    prompts = PromptBuilder(settings, tokenizer)
    ordered = planned_rows(prompts, input_rows(), **options)
    return order_costs(ordered, prompts), sum(row.minimum_tokens for row in ordered)


def test_document_then_question_costs_nothing(tokenizer):
    assert costs_of(tokenizer, PromptSettings())[0] == []


def test_a_row_number_before_the_document_costs_every_document_again(tokenizer):
    [cost], minimum = costs_of(tokenizer, PromptSettings(document="Row {{ extra.row }}: {{ document }}"))
    _, least = costs_of(tokenizer, PromptSettings(document="Row: {{ document }}"))
    assert (cost.setting, cost.values, cost.rows) == ("prompt.document", ("extra.row",), 15)
    # The plan would save this and the common beginning of the questions, but would still need the numbers.
    beginning = len("\n\nQuestion: What about ")
    assert abs(cost.tokens + 15 * beginning - (minimum - least)) <= 2 * 20
    assert cost.tokens > 15 * len(DOCUMENTS[0].text)
    assert "prompt.document writes extra.row" in cost.sentence()
    assert "prompt.question" in cost.sentence()


def test_the_key_of_a_question_can_not_come_first(tokenizer):
    with pytest.raises(JobFileError, match=r"prompt\.document uses \{\{ question_id \}\}"):
        PromptBuilder(PromptSettings(document="Row {{ question_id }} {{ document }}"), tokenizer)


def test_values_that_belong_to_the_document_cost_nothing(tokenizer):
    assert costs_of(tokenizer, PromptSettings(document="{{ doc_id }}, {{ extra.page }}: {{ document }}"))[0] == []


def test_a_value_behind_the_document_is_not_worth_a_word(tokenizer):
    assert costs_of(tokenizer, PromptSettings(document="{{ document }}{{ extra.row }}"))[0] == []


def test_a_schema_in_the_system_text_costs_a_document_a_schema(tokenizer):
    costs, _ = costs_of(
        tokenizer,
        PromptSettings(system="Schema: {{ schema }}"),
        schema_of=lambda row: "even" if row.question_id in ("q0", "q2") else "odd",
    )
    [cost] = costs
    assert (cost.setting, cost.values, cost.rows) == ("prompt.system", ("schema",), 5)
    assert cost.tokens >= 5 * len(DOCUMENTS[0].text)


def test_instructions_behind_the_question_cost_a_copy_a_row(tokenizer):
    advice = " Answer with care, quote the text, and never guess."
    [cost], minimum = costs_of(tokenizer, PromptSettings(question="{{ question }}" + advice))
    _, least = costs_of(tokenizer, PromptSettings(system=PromptSettings().system + advice, question="{{ question }}"))
    assert (cost.setting, cost.values, cost.rows) == ("prompt.question", ("question",), 20)
    assert cost.tokens == 19 * len(advice)
    assert cost.tokens == minimum - least


def test_the_value_that_stands_before_shared_text_is_named(tokenizer):
    text = ": read it twice, answer with care, and never guess. "
    for values, question in (
        (("question_id",), "{{ question_id }}" + text + "{{ question }}\n"),
        (("extra.row", "doc_id"), "{{ extra['row'] }} {{ doc_id | upper }}" + text + "{{ question }}"),
        (("question_id", "question"), "{{ question_id }} {{ question }}" + text + "{{ extra }}"),
    ):
        [cost], _ = costs_of(tokenizer, PromptSettings(question=question))
        assert (cost.setting, cost.values) == ("prompt.question", values)
