"""A process that dies in the middle of a checkpoint, at any page of any block."""

import os
import subprocess
import sys
from functools import partial

import duckdb
import pytest
from click.testing import CliRunner

from docqa.main import cli
from jobs import checkpoint_guard
from jobs.checkpoint_guard import CheckpointGuard, is_whole, mend, undo_path
from jobs.errors import OutputError
from jobs.store import AnswerRecord, AnswerStore, DocumentRecord, OutputBusy, RunEnding, RunRecord

BLOCK_BYTES = 262144
PAGE_BYTES = 4096
FIRST_BLOCK = 3 * PAGE_BYTES
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["Yes", "No"]}}, "required": ["label"]}


def answers(number, rows=20):
    return [
        AnswerRecord(
            run_id="r1", doc_id=f"d{number}", question_id=f"q{row}", status="ok", answer='{"label":"Yes"}',
            raw_text=f"{number} {row} " * 20, request_digest=f"{number}/{row}", schema_name="label",
            prompt_tokens=10, cached_tokens=6, computed_tokens=4, minimum_tokens=4, output_tokens=3,
        )
        for row in range(rows)
    ]  # fmt: skip


def windows(store):
    """What runs do to a store, a window each."""
    yield lambda: store.begin_run(RunRecord(run_id="r1", rows_total=60))
    yield lambda: store.define_schema_views({"label": SCHEMA})
    for number in range(3):
        batch, documents = answers(number), [DocumentRecord(document_hash=f"h{number}", characters=10, tokens=number)]
        yield partial(store.write_answers, batch, documents)
    yield lambda: store.finish_run(RunEnding(run_id="r1", status="finished"))


def contents(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        names = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1").fetchall()]
        return {name: connection.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in names}


def blocks(content):
    return {place: content[place : place + BLOCK_BYTES] for place in range(FIRST_BLOCK, len(content), BLOCK_BYTES)}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """For each window: the files as its checkpoint begins, the database after it, and what it then holds."""
    path = tmp_path_factory.mktemp("guard") / "answers.duckdb"
    store = AnswerStore(path)
    taken, keep = [], CheckpointGuard._keep

    def keep_and_copy(guard, connection):
        keep(guard, connection)
        taken.append({file.name: file.read_bytes() for file in path.parent.iterdir()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointGuard, "_keep", keep_and_copy)
        found = []
        for window in windows(store):
            window()
            (files,) = taken
            taken.clear()
            found.append((files, path.read_bytes(), contents(path)))
    return found


def torn(before, after, place, cut):
    """A database whose checkpoint died after `cut` bytes of the block at `place`; those before it are written."""
    content = bytearray(before)
    for block in sorted(blocks(after)):
        if block < place:
            content[block : block + BLOCK_BYTES] = after[block : block + BLOCK_BYTES]
    content[place : place + cut] = after[place : place + cut]
    return bytes(content)


def put(folder, files):
    for file in folder.iterdir():
        file.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / "answers.duckdb"


def opens(path):
    try:
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute("SELECT count(*) FROM answers").fetchall()
    except duckdb.Error:
        return False
    return True


def test_a_checkpoint_cut_off_anywhere_is_mended_and_written_anew(checkpoints, tmp_path):
    refused = 0
    for files, after, wanted in checkpoints:
        before = files["answers.duckdb"]
        changed = [place for place, block in blocks(after).items() if blocks(before).get(place, block) != block]
        assert changed
        for place in changed:
            for cut in (PAGE_BYTES, BLOCK_BYTES // 2, BLOCK_BYTES):
                path = put(tmp_path, files | {"answers.duckdb": torn(before, after, place, cut)})
                refused += not opens(path)
                AnswerStore(path)
                assert contents(path) == wanted
                assert sorted(file.name for file in tmp_path.iterdir()) == ["answers.duckdb"]
    assert refused >= len(checkpoints)  # without the guard, these would have been lost


def test_what_is_kept_is_left_alone_once_the_headers_are_written(checkpoints, tmp_path):
    """Killed before it could remove the kept blocks."""
    files, after, wanted = checkpoints[2]
    path = put(tmp_path, files | {"answers.duckdb": after})
    (tmp_path / "answers.duckdb.wal").unlink()
    assert mend(path) == 0
    assert path.read_bytes() == after
    assert contents(path) == wanted
    assert not undo_path(path).exists()


@pytest.mark.parametrize("cut", [0, 10, 40, 20_000, 100_000, -1])
def test_kept_blocks_that_were_cut_off_are_not_used(checkpoints, tmp_path, cut):
    """Then the checkpoint had not begun, and the database is as it was."""
    files, _, wanted = checkpoints[3]
    path = put(tmp_path, files | {"answers.duckdb.undo": files["answers.duckdb.undo"][:cut]})
    assert mend(path) == 0
    assert path.read_bytes() == files["answers.duckdb"]
    AnswerStore(path)
    assert contents(path) == wanted


def test_another_database_in_its_place_is_left_alone(checkpoints, tmp_path):
    kept = {"answers.duckdb.undo": checkpoints[3][0]["answers.duckdb.undo"]}
    path = put(tmp_path, kept)
    assert mend(path) == 0
    assert not undo_path(path).exists()
    path = put(tmp_path, kept | {"answers.duckdb": checkpoints[1][1]})
    assert mend(path) == 0
    assert path.read_bytes() == checkpoints[1][1]


def a_torn_database(checkpoints, folder):
    files, after, wanted = checkpoints[3]
    for place in blocks(after):
        path = put(folder, files | {"answers.duckdb": torn(files["answers.duckdb"], after, place, PAGE_BYTES)})
        if not opens(path):
            return path, wanted
    raise AssertionError("no block was torn")


def test_readers_are_told_what_to_do_and_status_does_it(checkpoints, tmp_path):
    path, wanted = a_torn_database(checkpoints, tmp_path)
    with pytest.raises(OutputError, match="a process was killed while it wrote to it; the next run mends it, or"):
        AnswerStore(path, read_only=True)
    result = CliRunner().invoke(cli, ["status", str(path), "--publish"])
    assert result.exit_code == 0, result.output
    assert contents(path).keys() == wanted.keys()
    assert contents(path)["answers"] == wanted["answers"]


def test_a_database_that_another_process_holds_is_not_mended(checkpoints, tmp_path):
    path, wanted = a_torn_database(checkpoints, tmp_path)
    holding = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", holding, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        holder.stdout.readline()
        before = path.read_bytes()
        with pytest.raises(OutputBusy):
            AnswerStore(path, lock_timeout_seconds=0.0)
        assert path.read_bytes() == before
        assert undo_path(path).exists()
    finally:
        holder.communicate("\n")
    AnswerStore(path)
    assert contents(path) == wanted


def test_a_disk_without_room_for_the_kept_blocks_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "answers.duckdb"
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="r1", rows_total=60))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_guard.os, "fsync", full)
        with pytest.raises(OutputError, match=r"closing after writing answers failed: .*No space left"):
            store.write_answers(answers(1))
    assert path.with_name("answers.duckdb.wal").exists()
    assert len(contents(path)["answers"]) == 20
    store.write_answers(answers(2))
    assert len(contents(path)["answers"]) == 40
    assert os.listdir(tmp_path) == ["answers.duckdb"]


def test_checksums_are_those_of_duckdb(checkpoints):
    """All blocks of a file that DuckDB wrote, but those it never did."""
    for _, after, _ in checkpoints:
        written = [block for block in blocks(after).values() if any(block)]
        assert len(written) > 1
        assert all(map(is_whole, written))
        assert not is_whole(written[0][:-1] + bytes([written[0][-1] ^ 1]))
