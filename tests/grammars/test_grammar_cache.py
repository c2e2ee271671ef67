"""Compiling in another process, with limits, while the caller goes on; and results on disk."""

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from grammars import GrammarCache, InvalidSchema, UnsupportedSchema, compile_schema
from grammars.compiling_process import CompilingProcess
from grammars.grammar_file import MAGIC, dump_grammar, dump_refusal, load_result
from grammars.grammar_folder import GrammarFolder
from tests.grammars.helpers import accepts_value, byte_vocabulary

VOCABULARY = byte_vocabulary()
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": ["é", 1]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture
def cache(tmp_path: Path):
    cache = GrammarCache(VOCABULARY, tmp_path)
    yield cache
    cache.close()


def same(one: Any, other: Any) -> None:
    assert one.about == other.about
    assert all(accepts_value(one, value) == accepts_value(other, value) for value in ({"a": "x", "b": "é"}, {"a": ""}))


@pytest.mark.parametrize("backend", ["index", "llguidance"])
def test_a_grammar_survives_as_bytes(backend: str) -> None:
    grammar = compile_schema(SCHEMA, VOCABULARY, backend=backend)
    loaded = load_result(dump_grammar(grammar), SCHEMA, VOCABULARY)
    same(loaded, grammar)
    if backend == "index":
        assert loaded.end_distances.tokens == grammar.end_distances.tokens


@pytest.mark.parametrize("refusal", [InvalidSchema("/a", "no"), UnsupportedSchema("/b", "not", "hard")])
def test_a_refusal_survives_as_bytes(refusal: Any) -> None:
    loaded = load_result(dump_refusal(refusal), {}, VOCABULARY)
    assert (type(loaded), str(loaded), loaded.path) == (type(refusal), str(refusal), refusal.path)


def test_the_process_says_what_compile_schema_says(cache: GrammarCache) -> None:
    same(cache.get(SCHEMA), compile_schema(SCHEMA, VOCABULARY))
    with pytest.raises(UnsupportedSchema, match="uniqueItems") as caught:
        cache.get({"type": "array", "uniqueItems": True, "items": {"type": "string"}})
    assert caught.value.keyword == "uniqueItems"
    with pytest.raises(InvalidSchema, match="/type"):
        cache.get({"type": "strin"})
    lenient = cache.get({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, lenient=True)
    assert [pointer for pointer, _ in lenient.checked_after] == ["/uniqueItems"]


def test_the_disk_is_read_before_a_process_starts(cache: GrammarCache, tmp_path: Path) -> None:
    first = cache.get(SCHEMA)
    again = GrammarCache(VOCABULARY, tmp_path)
    same(again.get(SCHEMA), first)
    assert again._worker is None
    other = GrammarCache(byte_vocabulary(spare=6), tmp_path)
    other.get(SCHEMA)
    other.close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign", "empty", "writable"])
def test_bad_files_are_ignored(damage: str, cache: GrammarCache, tmp_path: Path) -> None:
    first = cache.get(SCHEMA)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-7])
    elif damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "foreign":
        rest = b"\x02\x00\x00\x00{}"
        path.write_bytes(MAGIC + hashlib.sha256(rest).digest() + rest)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.chmod(0o666)
    again = GrammarCache(VOCABULARY, tmp_path)
    same(again.get(SCHEMA), first)
    assert again._worker is not None
    again.close()
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_least_recently_used_files_go(tmp_path: Path) -> None:
    folder = GrammarFolder(tmp_path, most_bytes=10_000)
    for number in range(4):
        folder.write(f"k{number}", dump_refusal(InvalidSchema("", "x" * 3000)))
        os.utime(tmp_path / f"k{number}.grammar", (number, number))
        if number == 2:
            (tmp_path / "left.unfinished").write_bytes(b"-" * 2000)
            os.utime(tmp_path / "left.unfinished", (0, 0))
            (tmp_path / "not ours").write_bytes(b"-" * 20_000)
            assert folder.read("k0", {}, VOCABULARY) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k0.grammar", "k2.grammar", "k3.grammar", "not ours"]
    assert folder.read("k1", {}, VOCABULARY) is None


def test_what_compiling_took(cache: GrammarCache, tmp_path: Path) -> None:
    """Case 48: compile time can be reported, and whether a grammar was only read."""
    assert cache.compilation(SCHEMA) is None
    cache.get(SCHEMA)
    first = cache.compilation(SCHEMA)
    assert first is not None
    assert (first.from_disk, first.seconds > 0) == (False, True)
    with pytest.raises(UnsupportedSchema):
        cache.get({"uniqueItems": True, "type": "array"})
    refused = cache.compilation({"uniqueItems": True, "type": "array"})
    assert refused is not None
    assert cache.compile_seconds == first.seconds + refused.seconds
    again = GrammarCache(VOCABULARY, tmp_path)
    again.get(SCHEMA)
    second = again.compilation(SCHEMA)
    assert second is not None
    assert second.from_disk


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = GrammarCache(VOCABULARY, tmp_path / "file")
    assert cache.get(SCHEMA).backend == "index"
    cache.close()


def test_the_caller_goes_on_meanwhile(cache: GrammarCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` comes back while the schema is still held up."""
    go_on = Event()
    real_ask = CompilingProcess.ask

    def held_up(process: CompilingProcess, request: bytes, seconds: float) -> bytes:
        assert go_on.wait(300)
        return real_ask(process, request, seconds)

    monkeypatch.setattr(CompilingProcess, "ask", held_up)
    cache.start({"type": "string", "maxLength": 2000})
    cache.start({"no": object()})  # not JSON: said by get, not here
    assert cache.compilation({"type": "string", "maxLength": 2000}) is None
    go_on.set()
    assert cache.get({"type": "string", "maxLength": 2000}).backend == "index"


def test_time_and_memory_have_limits() -> None:
    """The index of so long a string takes gigabytes on a real vocabulary, so here the limits are small."""
    schema = {"type": "string", "maxLength": 30_000}
    short = GrammarCache(VOCABULARY, memory_bytes=8 << 20)
    with pytest.raises(UnsupportedSchema, match="takes more than 40 s or 8 MiB"):
        short.get(schema, backend="index")
    assert short.get({"type": "integer"}).backend in ("index", "llguidance")
    short.close()


def test_a_dead_process_is_replaced(cache: GrammarCache) -> None:
    cache.get({"type": "integer"})
    worker = cache._worker
    assert worker is not None
    worker._process.kill()
    worker._process.wait()
    assert cache.get({"type": "boolean"}).backend == "index"
    assert cache.get({"type": "null"}).backend == "index"


def test_no_process_outlives_its_parent() -> None:
    """Case 39."""
    code = (
        "from tests.grammars.helpers import byte_vocabulary\nfrom grammars import GrammarCache\nimport os\n"
        "cache = GrammarCache(byte_vocabulary())\ncache.get({'type': 'integer'})\n"
        "print(cache._worker._process.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.05)
    pytest.fail("the compiling process is still there")


def test_a_grammar_is_compiled_once(cache: GrammarCache) -> None:
    """Case 48: 1,000 rows that share a schema."""
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}}
    with ThreadPoolExecutor(4) as pool:
        grammars = set(pool.map(cache.get, [dict(schema) for _ in range(1000)]))
    assert len(grammars) == 1
    swapped = {"properties": {"b": {"type": "null"}, "a": {"type": "integer"}}}
    assert cache.get(swapped) not in grammars
    assert cache.get({"const": 1}) is not cache.get({"const": True})
