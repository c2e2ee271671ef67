"""`docqa schema`, as a person calls it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from docqa.main import cli

TAGS = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}


@pytest.fixture
def command(tiny_model_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path / "cache"))

    def run(schema: Any, *arguments: str) -> Any:
        (tmp_path / "schema.json").write_text(schema if isinstance(schema, str) else json.dumps(schema))
        place = str(tmp_path / "schema.json")
        return CliRunner().invoke(cli, ["schema", place, "--model", str(tiny_model_folder), *arguments])

    return run


def test_json(command) -> None:
    result = command({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}, "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["accepted"], report["backend"], report["reason"]) == (True, "index", None)
    rows = {(row["path"], row["keyword"]): row["status"] for row in report["keywords"]}
    assert rows[("/properties/a", "maxLength")] == "enforced while decoding"
    assert report["shortest_answer"] == "{}"


def test_a_refused_schema_is_named_and_lenient_helps(command) -> None:
    result = command(TAGS)
    assert result.exit_code == 2
    assert "refused" in result.stdout
    assert "'uniqueItems' at /properties/tags" in result.stdout
    assert "--lenient" in result.stdout
    lenient = command(TAGS, "--lenient")
    assert lenient.exit_code == 0
    assert "checked after" in lenient.stdout
    assert json.loads(command(TAGS, "--json").stdout)["lenient_helps"] is True


def test_what_compiling_took(command) -> None:
    """NEEDS.md, case 48."""
    schema = {"type": "object", "additionalProperties": {"maxLength": 3}}
    first, second = (json.loads(command(schema, "--json").stdout) for _ in range(2))
    assert (first["from_disk"], second["from_disk"]) == (False, True)
    assert first["compile_seconds"] > 0
    text = command(schema).stdout
    assert "Read from the cache in " in text
    assert "note: /additionalProperties: no type is given" in text


def test_many_notes_are_counted(command) -> None:
    text = command({"type": "object", "properties": {f"p{number}": {"minimum": 3} for number in range(30)}}).stdout
    assert text.count("note: /") == 20
    assert "10 more; --json lists them all" in text


def test_the_backend_can_be_chosen(command) -> None:
    report = json.loads(command({"type": "integer"}, "--json", "--backend", "llguidance").stdout)
    assert report["backend"] == "llguidance"


@pytest.mark.parametrize(("text", "message"), [('{"items": [{}]}', "prefixItems"), ('{"type": "strin"}', "/type")])
def test_what_is_no_schema(text: str, message: str, command) -> None:
    result = command(text)
    assert result.exit_code == 2
    assert message in result.stdout


def test_a_file_that_is_not_json(command, tmp_path: Path) -> None:
    result = command("{")
    assert "is not JSON" in str(result.exception)
    missing = CliRunner().invoke(cli, ["schema", str(tmp_path / "none.json")])
    assert "can't be read" in str(missing.exception)


def test_a_stock_schema_by_name(tiny_model_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCQA_CACHE", str(tmp_path))
    result = CliRunner().invoke(cli, ["schema", "verdict", "--json", "--model", str(tiny_model_folder)])
    assert json.loads(result.stdout)["accepted"] is True


def test_a_quote_is_said_to_be_located(command):
    quote = json.dumps({"type": "object", "properties": {"q": {"type": "string", "x-docqa": "quote"}}})
    rows = {row["keyword"]: row for row in json.loads(command(quote, "--json").stdout)["keywords"]}
    assert rows["x-docqa"]["note"] == "docqa locates this quote"
