"""Texts and ids that lie in a file: what is read is what was written, whatever was written meanwhile."""

import os
import tempfile
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import JobError
from jobs.job_file import load_job
from jobs.prompt_segments import Segment, SharedPrefix
from jobs.run import prepare
from jobs.source import Document
from jobs.spill_file import SpillFile
from tests.job_fixtures import sample_rows

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
PLACES = st.integers(0, 25)


@settings(deadline=None)
@given(st.lists(st.tuples(IDS, st.text(max_size=20), PLACES, PLACES, PLACES), min_size=1, max_size=8))
def test_what_is_read_is_what_was_written(written):
    spill = SpillFile()
    opening = np.arange(3, dtype=np.int32)
    held = []
    for ids, text, start, stop, cut in written:
        spilled, plain = Segment(), Segment(np.array(ids, dtype=np.int32))
        spilled.hold(np.array(ids, dtype=np.int32), spill)
        held.append((spilled, plain, Document("h", text, spill), text, start, stop, cut))
    for spilled, plain, document, text, start, stop, cut in held:
        assert (document.text, document.characters) == (text, len(text))
        for one, other in ((spilled, plain), (spilled.beginning(cut), plain.beginning(cut))):
            assert one.tokens == other.tokens
            np.testing.assert_array_equal(one.read(start, stop), other.read(start, stop))
            prefixes = [SharedPrefix(opening, segment) for segment in (one, other)]
            assert len(prefixes[0]) == len(prefixes[1]) == 3 + one.tokens
            np.testing.assert_array_equal(prefixes[0].ids(start, stop), prefixes[1].ids()[start:stop])


def test_what_lies_in_a_file_is_held_nowhere_else():
    ids = np.arange(1000, dtype=np.int32)
    gone = weakref.ref(ids)
    segment = Segment()
    segment.hold(ids, SpillFile())
    del ids
    assert gone() is None
    assert segment.read(998).tolist() == [998, 999]


def test_a_full_disk_is_one_sentence(make_job, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(JobError, match=r"No space left on device.*TMPDIR"):
        prepare(load_job(make_job(sample_rows(1, 1))))


def test_nothing_is_left_behind(make_job, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    prepared = prepare(load_job(make_job(sample_rows(2, 2))))
    assert [planned.segments.ids().tolist() for planned in prepared.plan.rows]
    assert list(folder.iterdir()) == []
