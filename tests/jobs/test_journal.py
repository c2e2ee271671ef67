"""The journal: whole, cut at any byte, garbled, of another version, on a full disk (case 63 of the needs)."""

import string
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jobs import journal as journal_module
from jobs.errors import OutputError
from jobs.journal import HEADER, Journal, JournalError, journal_path, read_journal, unpublished_rows
from jobs.journal_records import RunEnding, SchemaViews, decode_record, encode_record
from jobs.store_records import ANSWER_STATUSES, AnswerRecord, DocumentRecord, RunRecord

ROOT = Path(__file__).resolve().parents[2]
MOMENT = datetime(2026, 3, 1, 2, 30, 0, 123456, tzinfo=UTC)


@pytest.fixture
def database(tmp_path):
    return tmp_path / "answers.duckdb"


def answer(number=1, **values):
    values = {"raw_text": "Ä\0\ud800😊\n", "answered_at": MOMENT} | values
    return AnswerRecord(run_id="r1", doc_id=f"d{number}", question_id="q", status="failed", **values)


def filled(database, rows=3):
    journal = Journal(database)
    records = [RunRecord(run_id="r1", rows_total=rows, started_at=MOMENT), *(answer(row) for row in range(rows))]
    for record in records:
        journal.append(record)
    journal.sync()
    return journal, records


text = st.text(st.characters() | st.sampled_from("\0\ud800\U0010ffff\n"), max_size=20)
counts = st.none() | st.integers(0, 2**62)
moments = st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=2))))
records = st.one_of(
    st.builds(
        AnswerRecord, run_id=text, doc_id=text, question_id=text, status=st.sampled_from(ANSWER_STATUSES),
        request_parts=st.none() | text, question=st.none() | text, raw_text=st.none() | text, prompt_tokens=counts,
        ttft_seconds=st.none() | st.floats(0), answered_at=moments, extra=st.none() | text,
        quotes=st.none() | text, confidence=st.none() | text,
    ),
    st.builds(DocumentRecord, text, st.integers(0, 2**62), counts),
    st.builds(RunRecord, run_id=text, config=text, started_at=moments, finished_at=st.none() | moments,
              bad_files=st.none() | text),
    st.builds(RunEnding, run_id=text, status=text, error=st.none() | text, finished_at=moments, seconds=st.floats(0)),
    st.builds(SchemaViews, st.dictionaries(text, st.booleans() | st.dictionaries(text, st.integers() | text))),
)  # fmt: skip


def test_records_of_an_older_docqa_are_read():
    """They lack what was added since."""
    written = encode_record(answer(1))
    assert b"quotes" not in written
    assert decode_record(written).quotes is None
    assert b"bad_files" not in encode_record(RunRecord(run_id="r1"))


@given(records)
def test_every_record_survives(record):
    assert decode_record(encode_record(record)) == record


def test_what_is_appended_is_there_at_once_and_after_a_reopening(database):
    journal, records = filled(database)
    assert read_journal(journal.path).records == records
    assert unpublished_rows(database) == journal.rows == 3
    journal.close()
    again = Journal(database)
    assert (again.torn_bytes, again.rows) == (0, 3)
    again.append(answer(9))
    assert read_journal(again.path).records == [*records, answer(9)]
    again.clear()
    assert read_journal(again.path).records == []
    again.append(answer(10))
    assert read_journal(again.path).answers == [answer(10)]
    again.clear()
    again.close()
    assert not again.path.exists()
    assert unpublished_rows(database) == 0


def test_the_journal_lies_beside_the_real_file(database, tmp_path):
    link = tmp_path / "elsewhere" / "link.duckdb"
    link.parent.mkdir()
    link.symlink_to(database)
    assert journal_path(link) == journal_path(database) == tmp_path / "answers.duckdb.journal"


def test_a_cut_at_every_byte_drops_the_record_it_hits_and_no_other(database, monkeypatch):
    monkeypatch.setattr("os.fdatasync", lambda descriptor: None)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    journal, records = filled(database)
    journal.close()
    content = journal.path.read_bytes()
    ends = []
    for size in range(len(content) + 1):
        journal.path.write_bytes(content[:size])
        contents = read_journal(journal.path)
        assert contents.records == records[: len(contents.records)]
        assert contents.damaged_at is None
        assert contents.valid_bytes + contents.torn_bytes == size
        if contents.torn_bytes == 0:
            ends.append(size)
        # The next run cuts the torn tail off and goes on.
        with_torn = Journal(database)
        assert with_torn.torn_bytes == contents.torn_bytes
        with_torn.append(answer(7))
        assert read_journal(journal.path).records == [*contents.records, answer(7)]
        assert read_journal(journal.path).torn_bytes == 0
        with_torn.close()
    assert len(ends) == 2 + len(records)  # nothing, the header, and after every record


def test_a_garbled_tail_that_was_never_on_the_disk_is_torn(database):
    """A power failure may keep later blocks of what was not synced and lose earlier ones."""
    journal, records = filled(database)
    synced = journal.path.stat().st_size
    for row in range(3, 6):
        journal.append(answer(row))
    content = journal.path.read_bytes()
    for place in range(synced, len(content), 7):
        garbled = bytearray(content)
        garbled[place : place + 40] = bytes(len(garbled[place : place + 40]))
        journal.path.write_bytes(garbled)
        contents = read_journal(journal.path)
        assert contents.damaged_at is None
        assert contents.records[: len(records)] == records
        assert contents.torn_bytes > 0


def test_damage_in_the_middle_is_told_and_left_alone(database):
    journal, records = filled(database)
    journal.append(answer(8))
    journal.close()
    content = journal.path.read_bytes()
    first_answer = len(HEADER) + content[len(HEADER) + 1 :].index(content[len(HEADER) : len(HEADER) + 4]) + 1
    for place in range(first_answer, first_answer + 60):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        journal.path.write_bytes(damaged)
        contents = read_journal(journal.path)
        assert contents.damaged_at == first_answer
        assert contents.records == records[:1]
        with pytest.raises(JournalError, match=rf"{journal.path}: the record at byte {first_answer} is damaged.*move"):
            Journal(database)
        assert journal.path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"docqa journal 2\nwhatever", "journal of version 2, and this docqa knows version 1; use the docqa that"),
        (b"something else entirely", "is no journal of docqa; move it away"),
        (b"docqa", None),
        (b"", None),
    ],
)
def test_what_is_no_journal_of_ours_is_left_alone(database, content, message):
    journal_path(database).write_bytes(content)
    if message is None:  # a run was killed while it made the file
        Journal(database).close()
        assert not journal_path(database).exists()
        return
    for read in (Journal, unpublished_rows):
        with pytest.raises(JournalError, match=message):
            read(database)
    assert journal_path(database).read_bytes() == content


def test_a_whole_record_of_an_unknown_kind_is_told(database, monkeypatch):
    journal, _ = filled(database)
    monkeypatch.setattr(journal_module, "encode_record", lambda record: b'{"kind":"news"}')
    journal.append(answer())
    with pytest.raises(JournalError, match="of no kind that this docqa knows"):
        read_journal(journal.path)


def test_a_journal_that_can_not_be_written_or_read_is_named(database, monkeypatch, tmp_path):
    journal_path(database).mkdir()
    with pytest.raises(JournalError, match=r"journal: can't read the journal: Is a directory"):
        Journal(database)
    missing = tmp_path / "no" / "answers.duckdb"
    with pytest.raises(OutputError, match=r"no/answers.duckdb.journal: opening the journal failed: No such file"):
        Journal(missing)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(OutputError, match="opening the journal failed: Permission denied"):
        Journal(tmp_path / "other.duckdb")


def test_syncs_come_by_rows_and_by_time(database, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fdatasync", lambda descriptor: synced.append(descriptor))
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    journal = Journal(database)
    synced.clear()
    for _ in range(journal_module.SYNC_ROWS - 1):
        journal.append(answer())
        journal.sync_if_due()
    assert synced == []
    journal.append(answer())
    assert len(synced) == 1
    journal.append(answer())
    clock[0] += journal_module.SYNC_SECONDS - 0.1
    journal.sync_if_due()
    assert len(synced) == 1
    clock[0] += 0.2
    journal.sync_if_due()
    journal.sync_if_due()
    assert len(synced) == 2
    assert journal_module.SYNC_SECONDS <= 5
    assert journal_module.SYNC_ROWS <= 256


def test_a_full_disk_leaves_the_records_before_it(database):
    program = """
import resource, signal, sys
from jobs.errors import OutputError
from jobs.journal import Journal
from jobs.store_records import AnswerRecord
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
journal = Journal(sys.argv[1])
for row in range(1000):
    try:
        journal.append(AnswerRecord(run_id="r", doc_id=str(row), question_id="q", status="failed", error="x" * 100))
    except OutputError as error:
        print(row, error)
        break
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(database)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    row, message = done.stdout.split(" ", 1)
    assert f"{database}.journal: writing the journal failed: File too large" in message
    assert "bytes free" in message
    contents = read_journal(journal_path(database))
    assert len(contents.answers) == int(row) > 10
    assert contents.torn_bytes == 0


class JournalMachine(RuleBasedStateMachine):
    """Appends, clears, crashes and cuts against a list."""

    def __init__(self):
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.database = Path(self.folder.name) / "answers.duckdb"
        self.journal = Journal(self.database)
        self.expected = []

    @rule(name=st.text(string.ascii_letters, max_size=5), filler=st.integers(0, 300))
    def append(self, name, filler):
        record = answer(name, error="\xd0" * filler)
        self.journal.append(record)
        self.expected.append(record)

    @rule()
    def sync(self):
        self.journal.sync()

    @rule()
    def clear(self):
        self.journal.clear()
        self.expected = []

    @rule(cut=st.integers(1, 60))
    def crash(self, cut):
        """The process dies, and the last record with it if it was being written."""
        if self.expected:
            path = self.journal.path
            path.write_bytes(path.read_bytes()[:-cut])
            self.expected.pop()
        self.journal = Journal(self.database)

    @rule()
    def reopen(self):
        self.journal.close()
        self.journal = Journal(self.database)

    @invariant()
    def holds_what_is_expected(self):
        contents = read_journal(self.journal.path)
        assert contents.records == self.expected
        assert contents.torn_bytes == 0
        assert self.journal.rows == len(self.expected)

    def teardown(self):
        self.folder.cleanup()


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
