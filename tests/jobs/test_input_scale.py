"""Inputs at the size people have, each in a process of its own, with its peak memory (cases 17 and 84 to 86)."""

import json
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc"),
]
MIB = 2**20

READ = """
    import json, os, sys, time
    import pyarrow as pa
    from jobs.job_settings import InputSettings
    from jobs.source import read_input
    pa.set_cpu_count(2)
    def peak():  # not ru_maxrss, which a process has from the one that started it
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    idle = peak()
    data = read_input(InputSettings((sys.argv[1],)), os.path.dirname(sys.argv[1]))
    print(json.dumps({
        "rows": len(data.rows), "documents": len(data.documents), "files": len(data.files),
        "cpu_seconds": time.process_time(),
        "peak_mib": (peak() - idle) / 1024, "open_files": len(os.listdir("/proc/self/fd")),
        "characters": sum(len(document.text) for document in data.documents.values()),
        "last": data.rows[-1].place, "problems": sum(row.problem is not None for row in data.rows),
    }))
"""


def read(path, open_files=256):
    """Read in a new process that may open only so many files; figures about it, memory beyond the imports' own."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({open_files}, {open_files}))\n"
    done = subprocess.run(
        [sys.executable, "-c", limit + textwrap.dedent(READ), str(path)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": "."}, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout)
    print(figures)
    return figures


def columns(first, rows, document):
    numbers = range(first, first + rows)
    return {
        "doc_id": [f"d{number % 2000}" for number in numbers],
        "document": document,
        "question_id": [f"q{number}" for number in numbers],
        "question": [f"what is {number}?" for number in numbers],
    }


def test_case_84_one_row_group_holds_everything(tmp_path):
    """Case 84: 200,000 rows of 2,000 documents of 20,000 characters; expanded, the column takes 4 GB."""
    rows = 200_000
    texts = pa.array([f"document {number} " + "x" * 20_000 for number in range(2000)])
    documents = pa.DictionaryArray.from_arrays(pa.array([n % 2000 for n in range(rows)], pa.int32()), texts)
    table = pa.table(columns(0, rows, documents))
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=rows, dictionary_pagesize_limit=2**30)
    assert pq.read_metadata(path).num_row_groups == 1
    figures = read(path)
    assert (figures["rows"], figures["documents"]) == (rows, 2000)
    # The texts themselves are 40 MB; rows take about 1.5 KB each.
    assert figures["peak_mib"] < 800


def test_case_85_forty_thousand_row_groups(tmp_path):
    """Case 85: more than 32,767 row groups, of one row each."""
    path, rows = tmp_path / "a.parquet", 40_000
    texts = [f"text {number % 2000}" for number in range(rows)]
    pq.write_table(pa.table(columns(0, rows, texts)), path, row_group_size=1)
    assert pq.read_metadata(path).num_row_groups == rows
    figures = read(path)
    assert (figures["rows"], figures["documents"]) == (rows, 2000)
    assert figures["last"] == "a.parquet row 40000 (row group 40000 of 40000)"
    assert figures["peak_mib"] < 1200


def test_case_85_twenty_thousand_files(tmp_path):
    """Case 85: files of one row, with 256 file handles."""
    for number in range(20_000):
        folder = tmp_path / f"{number % 100:02}"
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns(number, 1, [f"text {number % 2000}"])), folder / f"{number:05}.parquet")
    figures = read(tmp_path)
    assert (figures["rows"], figures["documents"], figures["files"]) == (20_000, 2000, 20_000)
    assert figures["open_files"] < 32
    assert figures["peak_mib"] < 800


@pytest.mark.parametrize("text_type", [pa.string(), pa.large_string()], ids=str)
def test_case_86_a_column_beyond_two_gigabytes(tmp_path, text_type):
    """Case 86: 2,100 rows of 1 MiB of one letter, in one row group; 26 of them are different."""
    path, rows = tmp_path / "a.parquet", 2100
    letters = pa.array([chr(97 + number) * MIB for number in range(26)], text_type)
    documents = pa.chunked_array([letters] * (rows // 26) + [letters.slice(0, rows % 26)])
    table = pa.table(columns(0, rows, documents))
    with pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="zstd") as writer:
        writer.write_table(table, row_group_size=rows)
    metadata = pq.read_metadata(path)
    assert (metadata.num_row_groups, metadata.row_group(0).total_byte_size > 2**31) == (1, True)
    figures = read(path)
    assert (figures["rows"], figures["documents"], figures["problems"]) == (rows, 26, 0)
    assert figures["characters"] == 26 * MIB
    assert figures["peak_mib"] < 1024


def test_case_17_nested_text_beyond_two_gigabytes(tmp_path):
    """Case 17: one row group whose nested text is over 2 GiB, and under 1 MiB in the file."""
    path, rows = tmp_path / "a.parquet", 700
    text = pa.array(["why? " * 209_715])
    asked = pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int8()), text).cast(pa.string())
    element = pa.StructArray.from_arrays([pa.array(["1", "2", "3"]), asked], ["question_id", "question"])
    lists = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), element)
    one = {"doc_id": ["d"], "document": ["text"], "questions": lists}
    table = pa.concat_tables(
        pa.table(one | {"doc_id": [f"d{number}"]}) for number in range(rows)
    )  # chunks that share their buffers
    with pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="zstd") as writer:
        writer.write_table(table, row_group_size=rows)
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).total_byte_size > 2**31
    assert path.stat().st_size < MIB
    figures = read(path)
    assert (figures["rows"], figures["documents"]) == (3 * rows, 1)
    assert figures["peak_mib"] < 1024
