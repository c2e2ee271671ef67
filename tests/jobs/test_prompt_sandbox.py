"""Templates of a job file that came from a stranger: they reach their row, and they end."""

import pytest

from jobs.errors import JobFileError
from jobs.job_settings import PromptSettings
from jobs.prompt_template import PartTemplates

EXTRA = {"title": "Log", "number": 5, "none": None, "tags": ["a", "b"], "items": ["x"], "people": [{"name": "Ann"}]}


def render(template, **values):
    template = template.replace("{{ a }}", "{{ document[:1] }}")
    row = {"document": "abcd " * 800, "doc_id": "d1", "extra": dict(EXTRA)} | values
    return PartTemplates(PromptSettings(document=template)).render("document", "a.parquet row 3", **row)


REACHING_OUT = [
    "{{ document.__class__ }}",
    "{{ document['__class__'] }}",
    "{{ document|attr('__class__') }}",
    "{{ extra.__class__.__mro__ }}",
    "{{ (1).__class__ }}",
    "{{ extra.tags.__getitem__ }}",
    "{{ extra.pop('title') }}",
    "{{ extra.update(title='x') }}",
    "{{ extra.tags.append('c') }}",
    "{{ '{0.__class__}'.format(document) }}",
    "{{ '{0.__class__}'['format'](document) }}",
    "{{ extra.people|map(attribute='__class__')|list }}",
    "{{ extra.people|map('attr', '__class__')|list }}",
    "{{ self }}",
    "{{ lipsum() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ namespace() }}",
    "{{ joiner() }}",
    "{{ range.__self__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'os' import system %}",
    "{% extends '/etc/passwd' %}",
    "{% block a %}{% endblock %}",
    "{% macro f() %}{% endmacro %}{{ f.__globals__ }}",
]
NEVER_ENDING = [
    "{% for a in range(1000000000) %}x{% endfor %}",
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "{% for a in document %}{% for b in document %}{% for c in document %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in document recursive %}{{ loop(document) }}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in range(90000) %}{{ document }}{% endfor %}",
    "{% set a %}{% for a in range(90000) %}{{ document }}{% endfor %}{% endset %}",
    "{{ 'x' * 10000000000 }}",
    "{{ [1] * 10000000000 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{% set n = 99 %}" + "{% set n = n * n %}" * 40 + "{{ n }}",
    "{{ 'x'.center(10000000000) }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ 'x'.expandtabs(10000000000) }}",
    "{{ 'x'|center(10000000000) }}",
    "{{ 'x'|indent(10000000000) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ (1).to_bytes(10000000000, 'big') }}",
    "{% set a = 'aaaaaaaa' %}" + "{% set a = a ~ a %}" * 40,
    "{% set a = 'aaaaaaaa' %}" + "{% set a = a + a %}" * 40,
    "{% set a = 'aaaaaaaa' %}" + "{% set a = a|replace('', a) %}" * 6,
    "{% set a = 'aaaaaaaa' %}" + "{% set a = a|join(a) %}" * 6,
    "{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}",
    "{% set a = [1] %}" + "{% set a = (a, a) %}" * 40 + "{{ a }}",
    "{% set a = [1] %}" + "{% set a = {'a': a, 'b': a} %}" * 40 + "{{ a|tojson }}",
    "{{ document|map('replace', '', document)|list }}",
]


@pytest.mark.parametrize("template", REACHING_OUT + NEVER_ENDING, ids=lambda template: template[:60])
def test_attacks_are_one_error_that_names_the_setting(template):
    with pytest.raises(JobFileError, match=r"^prompt\.document"):
        render(template + "{{ document }}")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ extra.title }}: {{ document[:4] }}", "Log: abcd"),
        ("{{ extra['title'] }} {{ extra.title|lower }} {{ extra.title.upper() }} {{ a }}", "Log log LOG a"),
        ("{{ extra.items|join(', ') }} {{ extra.items() if false }}{{ a }}", "x a"),
        ("[{{ extra.none }}] {{ a }}", "[] a"),  # a null is nothing, not the word None
        ("{% for tag in extra.tags %}{{ loop.index }}{{ tag }}{{ ', ' if not loop.last }}{% endfor %}{{ a }}",
         "1a, 2ba"),
        ("{% for key, value in extra|dictsort if value is number %}{{ key }}={{ value }}{% endfor %} {{ a }}",
         "number=5 a"),
        ("{{ extra.people|map(attribute='name')|join }} {{ a }}", "Ann a"),
        ("{{ extra.missing|default('?') }} {{ a }}", "? a"),
        ("{% if extra.number > 4 and extra.title in ['Log', 'Book'] %}{{ extra.number * 2 + 1 }}{% endif %}{{ a }}",
         "11a"),
        ("{{ extra.title ~ ' ' ~ doc_id }}{% set n = extra.number %} {{ n }} {{ document|trim|length }}",
         "Log d1 5 3999"),
        ("{{ {'b': '<ä>'}|tojson }} {{ a }}", '{"b": "<ä>"} a'),
        ("{{ document.splitlines()|length }}", "1"),
    ],
)  # fmt: skip
def test_what_prompts_need_works(template, text):
    assert render(template) == text


def test_long_rows_get_as_many_turns_as_they_have_characters():
    numbered = "{% for line in document.splitlines() %}{{ loop.index }} {{ line }}\n{% endfor %}"
    lines = "x\n" * 150_000
    assert render(numbered, document=lines).endswith("150000 x\n")


def test_a_row_stays_as_it_was():
    extra = {"tags": ["b", "a"]}
    assert render("{{ extra.tags|sort|join }}{{ extra.tags|join }} {{ a }}", extra=extra) == "abba a"
    assert extra == {"tags": ["b", "a"]}


def test_an_error_names_the_row():
    with pytest.raises(JobFileError, match=r"prompt\.document fails on a row \(a\.parquet row 3\).*missing"):
        render("{{ extra.missing }}{{ document }}")


def test_what_stands_before_and_behind_is_known():
    settings = PromptSettings(
        document="{{ doc_id }} {{ extra['page'] }} {{ extra.note|upper }} {{ document }} Mind the notes.",
        question="Well: {{ question }} Quote it.",
    )
    templates = PartTemplates(settings)
    assert templates.moving_values == ["doc_id", "extra.page", "extra.note"]
    assert templates.texts_behind["document"].endswith(" Mind the notes.")
    assert templates.texts_behind["question"] == " Quote it."
    assert PartTemplates(PromptSettings(document="{{ extra.items() }}{{ document }}")).moving_values == ["extra"]


@pytest.mark.parametrize(
    "template", ["{{ document }}", "A {{ doc_id }}\n{{ document }}\n", "{% raw %}{{{% endraw %}{{ document }}"]
)
def test_plain_templates_read_as_jinja_writes_them(template):
    """Those that only put texts together are rendered without Jinja; values that are no text are not."""
    values = [{"document": "{{ doc_id }} <&>\n", "doc_id": "a"}, {"document": "x", "doc_id": None}]
    plain, by_jinja = (PartTemplates(PromptSettings(document=template)) for _ in range(2))
    assert "document" in plain._plain
    by_jinja._plain.clear()
    for row in values:
        assert plain.render("document", extra={}, **row) == by_jinja.render("document", extra={}, **row)


@pytest.mark.parametrize("template", ["{{ document }}{{ document }}", "{{ document | upper }}", "{{ document }}{# #}"])
def test_templates_that_do_more_are_watched(template):
    assert ("document" in PartTemplates(PromptSettings(document=template))._plain) == ("#" in template)
