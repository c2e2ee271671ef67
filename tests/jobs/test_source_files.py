import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.errors import InputError
from jobs.job_settings import InputSettings
from jobs.source import read_input

# Plain pages with checksums; without statistics, so that a value stands in its page only.
CHECKED = {"write_page_checksum": True, "compression": "none", "use_dictionary": False, "write_statistics": False}


def write(path, number=0, options=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"doc_id": [f"d{number}"], "document": [f"text {number}"], "question": [f"what is {number}?"]}
    pq.write_table(pa.table(columns | more), path, **(options or {}))


def read(folder, *documents, **settings):
    return read_input(InputSettings(documents or (".",), **settings), folder)


def ids(data):
    return [row.doc_id for row in data.rows]


# Which files


def test_marker_and_side_files_are_passed_over(tmp_path):
    """Case 6."""
    write(tmp_path / "in/part-0.parquet")
    write(tmp_path / "in/_temporary/x.parquet", 1)
    write(tmp_path / "in/.hidden.parquet", 2)
    for name in ("_SUCCESS", "_metadata", ".part-0.parquet.crc", "README.txt", ".DS_Store"):
        (tmp_path / "in" / name).write_bytes(b"")
    for pattern in ("in", "in/*", "in/**"):
        data = read(tmp_path, pattern)
        assert data.files == ["in/part-0.parquet"]
        assert data.skipped_files == [("in/README.txt", "its name does not end in .parquet")]
        assert data.bad_files == []


def test_file_folder_glob_and_list_in_sorted_order_each_file_once(tmp_path):
    for number, name in enumerate(["b/x.parquet", "a/deep/y.PARQUET", "c.parquet", "d.pq"]):
        write(tmp_path / name, number)
    assert read(tmp_path).files == ["a/deep/y.PARQUET", "b/x.parquet", "c.parquet"]
    assert read(tmp_path, "d.pq").files == ["d.pq"]
    assert read(tmp_path, "*.pq").files == ["d.pq"]
    assert read(tmp_path, "**/*.parquet", "c.parquet", "b").files == ["b/x.parquet", "c.parquet"]
    assert read(tmp_path / "b", "../c.parquet", str(tmp_path / "b")).files[0] == "x.parquet"
    assert read(tmp_path, str(tmp_path / "[bc]*")).files == ["b/x.parquet", "c.parquet"]


def test_a_folder_whose_name_looks_like_a_pattern(tmp_path):
    write(tmp_path / "runs [old]/a.parquet")
    assert read(tmp_path / "runs [old]", "*.parquet").files == ["a.parquet"]
    assert read(tmp_path, "runs [old]").files == ["runs [old]/a.parquet"]


@pytest.mark.parametrize("pattern", ["nowhere.parquet", "no*.parquet", "empty"])
def test_a_path_that_names_nothing_is_an_error(tmp_path, pattern):
    write(tmp_path / "a.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"input\.documents: .*" + pattern.replace("*", r"\*")):
        read(tmp_path, "a.parquet", pattern)
    with pytest.raises(InputError, match="is an address, but only files of this machine are read"):
        read(tmp_path, f"s3://bucket/{pattern}")


def test_links_are_followed_but_not_in_circles(tmp_path):
    write(tmp_path / "elsewhere/a.parquet")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/circle").symlink_to(tmp_path / "in")
    os.mkfifo(tmp_path / "in/pipe.parquet")
    data = read(tmp_path, "in")
    assert data.files == ["in/link/a.parquet"]
    assert data.skipped_files == [("in/pipe.parquet", "it is not a regular file")]


def test_names_that_are_not_ascii_or_not_even_text(tmp_path):
    """Case 76, the paths."""
    write(tmp_path / "Prüfung/вход.parquet")
    good = (tmp_path / "Prüfung/вход.parquet").read_bytes()
    with open(os.fsencode(tmp_path) + b"/Pr\xc3\xbcfung/\xff.parquet", "wb") as file:
        file.write(good)
    data = read(tmp_path, "Prüfung")
    assert data.files == ["Prüfung/вход.parquet", "Prüfung/\\xff.parquet"]
    assert data.merged_rows == 1


# Hive folders


def test_folder_values_stay_text_and_are_decoded_once(tmp_path):
    """Cases 3 and 5."""
    for number, value in enumerate(["007", "0870", "abc", "", "a%20b=c", "a%2520", "__HIVE_DEFAULT_PARTITION__"]):
        write(tmp_path / f"in/team={value}/p.parquet", number)
    teams = {row.doc_id: row.extra["team"] for row in read(tmp_path, "in").rows}
    expected = ["007", "0870", "abc", "", "a b=c", "a%20", None]
    assert teams == {f"d{number}": value for number, value in enumerate(expected)}
    assert {row.extra["team"] for row in read(tmp_path, "in/team=0*/*.parquet").rows} == {"007", "0870"}


@pytest.mark.parametrize(
    ("folder", "inner"),
    [
        ("lang=de", pa.array(["de"]).dictionary_encode()),
        ("lang=de", pa.array(["de"])),
        ("lang=de", pa.array([None], pa.string())),
        ("lang=007", pa.array([7], pa.int32())),
        ("lang=TRUE", pa.array([True])),
    ],
)
def test_a_column_that_repeats_its_folder_is_fine(tmp_path, folder, inner):
    """Case 4: the folder and the column say the same, or the column says nothing."""
    write(tmp_path / f"in/{folder}/p.parquet", lang=inner)
    assert read(tmp_path, "in").rows[0].extra == {"lang": folder.partition("=")[2]}


@pytest.mark.parametrize("inner", [pa.array(["fr"]), pa.array([7]), pa.array([["de"]])])
def test_a_column_that_contradicts_its_folder_names_the_file(tmp_path, inner):
    """Case 4."""
    write(tmp_path / "in/lang=de/p.parquet", lang=inner)
    with pytest.raises(InputError, match=r"in/lang=de/p\.parquet row 1: column 'lang' holds .*lang=de"):
        read(tmp_path, "in")


def test_a_folder_can_give_a_wanted_column(tmp_path):
    write(tmp_path / "schema=verdict/p.parquet")
    row = read(tmp_path).rows[0]
    assert (row.schema, row.extra) == ("verdict", {})


# Bad files


def damage(tmp_path):
    for number in range(3):
        write(tmp_path / f"good{number}.parquet", number)
    good = (tmp_path / "good0.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(good[: len(good) * 6 // 10])
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "foreign.parquet").write_text("doc_id,document\n" * 20)
    write(tmp_path / "flipped.parquet", 4, CHECKED)
    content = bytearray((tmp_path / "flipped.parquet").read_bytes())
    content[content.index(b"text 4") + 2] ^= 1
    (tmp_path / "flipped.parquet").write_bytes(content)
    return ["cut.parquet", "empty.parquet", "flipped.parquet", "foreign.parquet"]


def test_all_bad_files_are_named_at_once(tmp_path):
    """Case 7."""
    names = damage(tmp_path)
    with pytest.raises(InputError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert all(name in message for name in names)
    assert message.startswith("4 files")
    assert "empty (0 bytes)" in message
    assert 'on_bad_file = "skip"' in message
    assert "good" not in message


def test_bad_files_can_be_skipped_and_leave_no_rows(tmp_path):
    """Case 7."""
    names = damage(tmp_path)
    data = read(tmp_path, on_bad_file="skip")
    assert ids(data) == ["d0", "d1", "d2"]
    assert data.files == ["good0.parquet", "good1.parquet", "good2.parquet"]
    assert sorted(name for name, _ in data.skipped_files) == names
    assert data.bad_files == data.skipped_files
    assert len(data.documents) == 3


def test_a_damaged_page_is_placed_by_row_and_row_group(tmp_path):
    table = pa.table({"document": [f"{n} " * 50 for n in range(100)], "question": [f"q{n}" for n in range(100)]})
    pq.write_table(table, tmp_path / "late.parquet", row_group_size=10, **CHECKED)
    content = bytearray((tmp_path / "late.parquet").read_bytes())
    content[content.index(b"95 95 95")] ^= 1
    (tmp_path / "late.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"late\.parquet: .*row \d+ \(row group \d+ of 10\) or after it"):
        read(tmp_path)


def test_bad_files_come_before_what_is_wrong_with_rows(tmp_path):
    damage(tmp_path)
    write(tmp_path / "a/lang=de/p.parquet", lang=["fr"])
    with pytest.raises(InputError, match=r"flipped\.parquet"):
        read(tmp_path)
    with pytest.raises(InputError, match="lang=de"):
        read(tmp_path, on_bad_file="skip")


def test_skipping_every_file_is_an_error(tmp_path):
    (tmp_path / "empty.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="none is left"):
        read(tmp_path, on_bad_file="skip")


def test_a_file_damaged_late_leaves_none_of_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.source_files.BATCH_ROWS", 10)
    write(tmp_path / "good.parquet")
    table = pa.table({"document": [f"{n} " * 50 for n in range(100)], "question": [f"q{n}" for n in range(100)]})
    pq.write_table(table, tmp_path / "late.parquet", row_group_size=10, **CHECKED)
    content = bytearray((tmp_path / "late.parquet").read_bytes())
    content[content.index(b"95 95 95")] ^= 1
    (tmp_path / "late.parquet").write_bytes(content)
    data = read(tmp_path, on_bad_file="skip")
    assert ids(data) == ["d0"]
    assert [name for name, _ in data.skipped_files] == ["late.parquet"]
    assert len(data.documents) == 1


def test_no_damage_gets_through_as_another_error(tmp_path):
    """Whatever single byte is wrong, the outcome is rows or an InputError that names the file."""
    path = tmp_path / "a.parquet"
    write(path, extra=[[{"a": 1, "b": "x"}]])
    good, chance = path.read_bytes(), random.Random(5)
    messages = []
    for _ in range(300):
        content = bytearray(good)
        content[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            read(tmp_path)
        except InputError as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert all("a.parquet" in message for message in messages)
