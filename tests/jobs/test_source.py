import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.errors import InputError
from jobs.job_settings import InputSettings
from jobs.source import read_input

DATA = Path(__file__).parents[3] / "shared" / "data"
LISTS = [pa.list_(pa.string()), pa.large_list(pa.string()), pa.list_view(pa.string()), pa.list_(pa.string(), 2)]


def write(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)


def read(folder, documents=".", questions=(), **settings):
    questions = (questions,) if isinstance(questions, str) else questions
    return read_input(InputSettings((documents,), questions, **settings), folder)


def long(rows=1, start=0, **more):
    numbers = range(start, start + rows)
    columns = {
        "doc_id": [f"d{n}" for n in numbers],
        "document": [f"text {n}" for n in numbers],
        "question_id": [f"q{n}" for n in numbers],
        "question": [f"what is {n}?" for n in numbers],
    }
    return columns | more


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def raw_strings(values):
    """A string column that holds bytes nobody checked."""
    offsets, at = [0], 0
    for value in values:
        at += len(value)
        offsets.append(at)
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


# Layouts


def test_long_layout_stores_each_text_once(tmp_path):
    write(tmp_path / "a.parquet", long(3, document=["same", "other", "same"], gold=[1, 2, None], note=["x", None, "y"]))
    data = read(tmp_path)
    assert data.layout == "long"
    assert list(data.documents) == [sha("same"), sha("other")]
    assert data.documents[sha("same")].text == "same"
    assert [row.document_hash for row in data.rows] == [sha("same"), sha("other"), sha("same")]
    assert [(row.doc_id, row.question_id, row.question) for row in data.rows][1] == ("d1", "q1", "what is 1?")
    assert [row.gold for row in data.rows] == [1, 2, None]
    assert [row.extra for row in data.rows] == [{"note": "x"}, {"note": None}, {"note": "y"}]
    assert [row.place for row in data.rows] == ["a.parquet row 1", "a.parquet row 2", "a.parquet row 3"]
    assert all(row.problem is None and row.schema is None for row in data.rows)


@pytest.mark.parametrize("list_type", LISTS, ids=str)
def test_nested_layout_with_texts(tmp_path, list_type):
    questions = pa.array([["a?", "b?"], None, ["c?", None]], list_type)
    write(tmp_path / "n.parquet", {"doc_id": ["x", "y", "z"], "document": ["X", "Y", "Z"], "questions": questions})
    data = read(tmp_path)
    assert data.layout == "nested"
    assert [(row.doc_id, row.question) for row in data.rows] == [("x", "a?"), ("x", "b?"), ("z", "c?"), ("z", None)]
    assert data.rows[0].question_id == sha("a?")[:16]
    assert data.rows[2].place == "n.parquet row 3 question 1"
    assert data.rows[3].problem.status == "empty_question"
    assert set(data.documents) == {sha("X"), sha("Z")}


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, lambda item: pa.list_(item, 2)])
def test_nested_layout_with_structs_keeps_fields_per_question(tmp_path, kind):
    element = pa.struct(
        [
            ("question_id", pa.int32()),
            ("question", pa.string()),
            ("gold", pa.string()),
            ("schema", pa.string()),
            ("page", pa.int8()),
        ]
    )
    first = [
        {"question_id": 1, "question": "a?", "gold": "A", "schema": "s", "page": 3},
        {"question_id": 2, "question": "b?", "gold": None, "schema": None, "page": None},
    ]
    columns = {
        "doc_id": ["x", "y"], "document": ["X", "Y"], "gold": ["whole", "whole"], "team": ["t", "u"],
        "questions": pa.array([None, first], kind(element)),
    }  # fmt: skip
    write(tmp_path / "n.parquet", columns)
    one, two = read(tmp_path).rows
    assert (one.doc_id, one.question_id, one.question, one.gold, one.schema) == ("y", "1", "a?", "A", "s")
    assert one.extra == {"team": "u", "page": 3}
    # What the struct leaves null, the document's row fills.
    assert (two.question_id, two.gold, two.schema, two.extra) == ("2", "whole", None, {"team": "u", "page": None})


def test_nested_struct_columns_can_be_mapped(tmp_path):
    questions = pa.array([[{"id": "1", "text": "a?"}]])
    write(tmp_path / "n.parquet", {"document": ["X"], "questions": questions})
    with pytest.raises(InputError, match=r"n\.parquet, in 'questions': there is no column 'question'"):
        read(tmp_path)
    row = read(tmp_path, columns={"question": "text", "question_id": "id"}).rows[0]
    assert (row.question_id, row.question, row.extra) == ("1", "a?", {})


def test_two_tables_without_doc_id_ask_every_question_of_every_document(tmp_path):
    write(tmp_path / "d.parquet", {"doc_id": ["x", "y"], "document": ["X", "Y"], "team": ["t", "u"]})
    write(tmp_path / "q.parquet", {"question_id": ["1", "2"], "question": ["a?", "b?"], "gold": ["g", "h"]})
    data = read(tmp_path, "d.parquet", "q.parquet")
    assert data.layout == "two tables"
    assert data.files == ["d.parquet", "q.parquet"]
    keys = [(row.doc_id, row.question_id, row.gold, row.extra["team"]) for row in data.rows]
    assert keys == [("x", "1", "g", "t"), ("x", "2", "h", "t"), ("y", "1", "g", "u"), ("y", "2", "h", "u")]
    assert data.rows[3].place == "q.parquet row 2 with d.parquet row 2"


def test_two_tables_with_doc_id_are_joined_as_text(tmp_path):
    write(tmp_path / "d.parquet", {"doc_id": [1, 2, 3], "document": ["X", "Y", "Z"]})
    write(tmp_path / "q.parquet", {"doc_id": ["2", "1", "9", None], "question_id": list("abcd"), "question": ["?"] * 4})
    data = read(tmp_path, "d.parquet", "q.parquet")
    assert [(row.doc_id, row.document_hash) for row in data.rows[:2]] == [("2", sha("Y")), ("1", sha("X"))]
    assert [row.problem and row.problem.status for row in data.rows] == [None, None, "empty_document", "empty_document"]
    assert "no document has doc_id '9' in q.parquet row 3" in data.rows[2].problem.error
    assert len(data.documents) == 2


def test_what_only_documents_have_is_counted_and_what_questions_hide_is_named(tmp_path):
    documents = {
        "doc_id": ["a", "b", "b", "c"],
        "document": ["A", "B", "B", "C"],
        "title": ["x"] * 4,
        "lang": ["en"] * 4,
    }
    write(tmp_path / "docs.parquet", documents)
    write(tmp_path / "asked.parquet", {"doc_id": ["a", "gone"], "question": ["?", "?"], "title": ["y", "z"]})
    data = read(tmp_path, "docs.parquet", "asked.parquet")
    assert (data.unasked_documents, data.hidden_columns, data.rows[0].extra["title"]) == (2, ["title"], "y")
    questions = pa.array([[{"question": "?", "lang": "de"}, {"question": "Why?", "lang": "de"}], [], None, [None]])
    write(tmp_path / "nested.parquet", documents | {"doc_id": list("abcd"), "questions": questions})
    data = read(tmp_path, "nested.parquet")
    assert (len(data.rows), data.unasked_documents, data.hidden_columns) == (3, 2, ["lang"])


def test_two_tables_that_never_meet_are_an_error(tmp_path):
    write(tmp_path / "d.parquet", {"doc_id": ["doc-1"], "document": ["X"]})
    write(tmp_path / "q.parquet", {"doc_id": ["1"], "question": ["?"]})
    with pytest.raises(InputError, match="no doc_id of the questions"):
        read(tmp_path, "d.parquet", "q.parquet")


def test_question_files_with_and_without_doc_id_do_not_mix(tmp_path):
    write(tmp_path / "d.parquet", {"doc_id": ["x"], "document": ["X"]})
    write(tmp_path / "q/a.parquet", {"doc_id": ["x"], "question": ["?"]})
    write(tmp_path / "q/b.parquet", {"question": ["??"]})
    with pytest.raises(InputError, match=r"q/b\.parquet has no column 'doc_id'"):
        read(tmp_path, "d.parquet", "q")


def test_two_documents_under_one_id_are_an_error_and_equal_ones_merge(tmp_path):
    write(tmp_path / "q.parquet", {"question": ["?"]})
    write(tmp_path / "d.parquet", {"doc_id": ["x", "x"], "document": ["X", "X"]})
    data = read(tmp_path, "d.parquet", "q.parquet")
    assert (len(data.rows), data.merged_rows) == (1, 1)
    write(tmp_path / "d.parquet", {"doc_id": ["x", "x"], "document": ["X", "Y"]})
    with pytest.raises(InputError, match=r"'x'.*d\.parquet row 1 .*d\.parquet row 2"):
        read(tmp_path, "d.parquet", "q.parquet")


def test_a_table_with_question_and_questions_must_be_told_which(tmp_path):
    write(tmp_path / "a.parquet", long(questions=[["a?", "b?"]]))
    with pytest.raises(InputError, match=r"layout is not clear; set \[input\.columns\]"):
        read(tmp_path)
    assert [row.question for row in read(tmp_path, columns={"question": "question"}).rows] == ["what is 0?"]
    nested = read(tmp_path, columns={"questions": "questions"})
    assert [row.question for row in nested.rows] == ["a?", "b?"]


# Ids and keys


def test_missing_ids_are_hashes_of_the_texts(tmp_path):
    write(tmp_path / "a.parquet", {"document": ["X", "X"], "question": ["a?", "b?"]})
    write(tmp_path / "b.parquet", long(1, doc_id=pa.nulls(1, pa.string()), question_id=pa.nulls(1)))
    rows = read(tmp_path).rows
    assert [row.doc_id for row in rows] == [sha("X")[:16], sha("X")[:16], sha("text 0")[:16]]
    assert [row.question_id for row in rows] == [sha("a?")[:16], sha("b?")[:16], sha("what is 0?")[:16]]


def test_identical_rows_merge_and_are_counted(tmp_path):
    """Case 16."""
    write(tmp_path / "a.parquet", long(2))
    write(tmp_path / "b.parquet", long(3))
    data = read(tmp_path)
    assert (len(data.rows), data.merged_rows) == (3, 2)
    assert data.rows[0].place == "a.parquet row 1"


def test_rows_that_repeat_may_add_their_gold_but_not_contradict_it(tmp_path):
    write(tmp_path / "a.parquet", long(2, gold=pa.nulls(2, pa.string())))
    write(tmp_path / "b.parquet", long(2, gold=["yes", None]))
    assert [row.gold for row in read(tmp_path).rows] == ["yes", None]
    write(tmp_path / "c.parquet", long(1, gold=["no"]))
    with pytest.raises(InputError, match=r"a\.parquet row 1 and c\.parquet row 1 ask the same .* golds differ"):
        read(tmp_path)


@pytest.mark.parametrize("other", [{"document": ["another"]}, {"question": ["another?"]}, {"schema": ["another"]}])
def test_different_rows_with_one_key_are_named_both(tmp_path, other):
    """Case 16."""
    write(tmp_path / "a.parquet", long(2))
    write(tmp_path / "b.parquet", long(1, start=1, **other))
    with pytest.raises(InputError, match=r"'d1' and question_id 'q1': a\.parquet row 2 and b\.parquet row 1"):
        read(tmp_path)


def test_the_same_text_under_two_ids_is_one_document(tmp_path):
    """Case 26."""
    write(tmp_path / "a.parquet", long(2, document=["same", "same"]))
    data = read(tmp_path)
    assert ([row.doc_id for row in data.rows], len(data.documents)) == (["d0", "d1"], 1)


# Rows with a problem


def test_blank_documents_and_questions_are_rows_with_a_problem(tmp_path):
    """Case 27."""
    blank = [None, "", "   \n", "\u200b", "\ufeff \u2060", "ok"]
    write(tmp_path / "a.parquet", long(6, document=blank))
    write(tmp_path / "b.parquet", long(6, start=6, question=blank))
    data = read(tmp_path)
    statuses = [row.problem.status if row.problem else None for row in data.rows]
    assert statuses == ["empty_document"] * 5 + [None] + ["empty_question"] * 5 + [None]
    assert "a.parquet row 3" in data.rows[2].problem.error
    assert data.rows[0].document_hash is None
    assert data.rows[6].document_hash == sha("text 6")
    assert set(data.documents) == {sha("ok")} | {sha(f"text {n}") for n in range(6, 12)}


def test_a_problem_names_file_row_group_and_row(tmp_path):
    write(tmp_path / "in/a.parquet", long(7, document=["ok"] * 5 + ["", "ok"]), row_group_size=3)
    row = read(tmp_path, "in").rows[5]
    assert row.place == "in/a.parquet row 6 (row group 2 of 3)"
    assert row.problem.error == "the document is empty in in/a.parquet row 6 (row group 2 of 3)"


def test_a_row_with_several_problems_is_filed_under_bad_text_first(tmp_path):
    columns = long(2, doc_id=raw_strings([b"\xff", b"ok"]), document=["", ""], question=["", ""])
    write(tmp_path / "a.parquet", columns)
    assert [row.problem.status for row in read(tmp_path).rows] == ["invalid_utf8", "empty_document"]


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}])
@pytest.mark.parametrize("column", ["document", "question", "doc_id", "question_id", "schema", "note", "gold"])
def test_bad_utf8_costs_one_row(tmp_path, column, options):
    values = raw_strings([b"fine", b"caf\xe9!", "schön".encode()])
    write(tmp_path / "a.parquet", long(3, **{column: values}), **options)
    data = read(tmp_path)
    assert [row.problem.status if row.problem else None for row in data.rows] == [None, "invalid_utf8", None]
    assert f"'{column}'" in data.rows[1].problem.error
    assert "a.parquet row 2" in data.rows[1].problem.error
    if column == "document":
        assert data.rows[1].document_hash is None
        assert data.rows[2].document_hash == sha("schön")
    if column == "question":
        assert data.rows[1].question == "caf\\xe9!"
    if column == "note":
        assert data.rows[1].extra == {"note": "caf\\xe9!"}


def test_bad_utf8_inside_nested_questions_costs_one_question(tmp_path):
    questions = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), raw_strings([b"a?", b"\xff?", b"c?"]))
    write(tmp_path / "a.parquet", {"document": ["X"], "questions": questions})
    assert [row.problem and row.problem.status for row in read(tmp_path).rows] == [None, "invalid_utf8", None]


# Columns


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_files_with_different_columns_are_joined_by_name(tmp_path, names):
    """Cases 1 and 2: a column that is null in one file, and columns that only one file has, in both orders."""
    write(tmp_path / f"{names[0]}.parquet", long(3, note=pa.nulls(3), gold=[1, 2, 3]))
    write(
        tmp_path / f"{names[1]}.parquet",
        long(3, start=3, note=["x", "y", "z"], schema=["s", None, " "], more=[1.5] * 3),
    )
    rows = {row.doc_id: row for row in read(tmp_path).rows}
    assert len(rows) == 6
    assert rows["d0"].extra == {"note": None, "more": None}
    assert rows["d3"].extra == {"note": "x", "more": 1.5}
    assert [rows[f"d{n}"].schema for n in (0, 3, 4, 5)] == [None, "s", None, None]
    assert [rows[f"d{n}"].gold for n in (0, 3)] == [1, None]


@pytest.mark.parametrize("missing", ["document", "question"])
def test_a_missing_required_column_names_file_and_column(tmp_path, missing):
    """Case 2."""
    write(tmp_path / "a.parquet", long())
    columns = long(start=1)
    del columns[missing]
    write(tmp_path / "b.parquet", columns)
    with pytest.raises(InputError, match=rf"b\.parquet: there is no column '{missing}'.*\[input\.columns\] {missing}"):
        read(tmp_path)


def test_a_table_without_questions_says_where_to_put_them(tmp_path):
    write(tmp_path / "a.parquet", {"document": ["X"], "title": ["t"]})
    with pytest.raises(InputError, match=r"'document', 'title'\); give a table of questions in input\.questions"):
        read(tmp_path)


def test_mapped_columns_and_a_mapping_that_no_file_has(tmp_path):
    write(tmp_path / "a.parquet", {"body": ["X"], "frage": ["a?"], "document": ["not this"], "nr": [5]})
    row = read(tmp_path, columns={"document": "body", "question": "frage", "doc_id": "nr"}).rows[0]
    assert (row.doc_id, row.document_hash, row.question) == ("5", sha("X"), "a?")
    assert row.extra == {"document": "not this"}
    with pytest.raises(InputError, match=r"no file has a column 'lable'.*gold = 'lable'"):
        read(tmp_path, columns={"document": "body", "question": "frage", "gold": "lable"})


def test_names_that_differ_in_case_need_a_setting(tmp_path):
    """Case 13."""
    write(tmp_path / "a.parquet", long(Document=["other"]))
    with pytest.raises(InputError, match=r"columns 'document' and 'Document'; set \[input\.columns\] document = "):
        read(tmp_path)
    assert read(tmp_path, columns={"document": "Document"}).rows[0].document_hash == sha("other")
    write(tmp_path / "a.parquet", {"Document": ["X"], "question": ["?"]})
    with pytest.raises(InputError, match=r"a column 'Document' but no 'document'; set \[input\.columns\]"):
        read(tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path):
    """Case 13."""
    table = pa.Table.from_arrays(
        [pa.array(["X"]), pa.array(["a?"]), pa.array(["b?"])], ["document", "question", "question"]
    )
    write(tmp_path / "a.parquet", table)
    with pytest.raises(InputError, match=r"a\.parquet: two columns have the same name, 'question' and 'question'"):
        read(tmp_path)


def test_structs_with_two_fields_of_one_name_are_refused(tmp_path):
    """Case 13, further in: one of the two would be lost without a word."""
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["page", "page"])
    inside = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), twice)
    write(tmp_path / "a.parquet", long(source=inside))
    with pytest.raises(InputError, match=r"a\.parquet: column 'source' has structs .* 'page' and 'page'; rename"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "allowed"),
    [
        ("document", pa.array([5]), "text"),
        ("question", pa.array([["a?"]]), "text"),
        ("schema", pa.array([{"type": "object"}]), "text"),
        ("doc_id", pa.array([1.5]), "whole numbers, decimals"),
        ("question_id", pa.array([["x"]]), "whole numbers, decimals"),
    ],
)
def test_a_column_of_a_wrong_type_is_refused(tmp_path, column, values, allowed):
    write(tmp_path / "a.parquet", long(**{column: values}))
    with pytest.raises(InputError, match=rf"a\.parquet: column '{column}' has type .*{allowed}"):
        read(tmp_path)


@pytest.mark.parametrize("values", [pa.array([5]), pa.array([[5]])])
def test_questions_of_a_wrong_type_are_refused(tmp_path, values):
    write(tmp_path / "a.parquet", {"document": ["X"], "questions": values})
    with pytest.raises(InputError, match=r"'questions' has type .*list of texts"):
        read(tmp_path)


def test_a_pandas_index_is_dropped(tmp_path):
    """Case 15."""
    write(tmp_path / "a.parquet", long(__index_level_0__=[7], kept=[1]))
    assert read(tmp_path).rows[0].extra == {"kept": 1}


# Sizes


def test_no_rows_at_all_and_empty_row_groups(tmp_path):
    """Case 8."""
    write(tmp_path / "none.parquet", pa.table(long(1)).slice(0, 0))
    data = read(tmp_path)
    assert (data.rows, data.documents, data.files, data.layout) == ([], {}, ["none.parquet"], "long")
    table = pa.table(long(10))
    with pq.ParquetWriter(tmp_path / "some.parquet", table.schema) as writer:
        for part in (table.slice(0, 5), table.slice(0, 0), table.slice(5)):
            writer.write_table(part)
    assert [row.doc_id for row in read(tmp_path).rows] == [f"d{n}" for n in range(10)]
    assert read(tmp_path).rows[7].place == "some.parquet row 8 (row group 3 of 3)"


def test_many_tiny_row_groups(tmp_path):
    """Case 85, small (see test_input_scale.py)."""
    write(tmp_path / "a.parquet", long(2000), row_group_size=1)
    assert [row.question_id for row in read(tmp_path).rows] == [f"q{n}" for n in range(2000)]


def test_one_row_group_with_a_dictionary_of_documents_is_not_expanded(tmp_path):
    """Case 84, small (see test_input_scale.py)."""
    # Written piece by piece as plain text, so that only the file knows that there are ten texts.
    rows, ten = 4000, pa.array([str(n) * 50_000 for n in range(10)])
    write(tmp_path / "a.parquet", long(rows, document=pa.chunked_array([ten] * (rows // 10))), row_group_size=rows)
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    data = read(tmp_path)
    assert (len(data.rows), len(data.documents)) == (rows, 10)
    assert pool.max_memory() - before < 32 * 2**20  # expanded, the column takes 200 MB


@pytest.mark.parametrize("text_type", [pa.string(), pa.large_string()], ids=str)
def test_text_beyond_the_offsets_of_a_batch(tmp_path, text_type, monkeypatch):
    """Case 86, small (see test_input_scale.py)."""
    # The real case is a column over 2 GiB; here batches are small and the rows large.
    monkeypatch.setattr("jobs.source_files.BATCH_BYTES", 2**20)
    documents = pa.array([chr(97 + n % 3) * 2**18 for n in range(40)], text_type)
    write(tmp_path / "a.parquet", long(40, document=documents), use_dictionary=False)
    data = read(tmp_path)
    assert (len(data.rows), len(data.documents)) == (40, 3)


def test_a_batch_too_large_for_arrow_is_read_in_smaller_ones(tmp_path, monkeypatch):
    """Case 17, without its 2 GiB (see test_input_scale.py)."""
    write(tmp_path / "a.parquet", long(600))
    real, sizes = pq.ParquetFile.iter_batches, []

    def fail_when_large(self, batch_size):
        sizes.append(batch_size)
        for number, batch in enumerate(real(self, batch_size)):
            if batch.num_rows > 300 or (number == 1 and batch.num_rows > 100):
                raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")
            yield batch

    monkeypatch.setattr("jobs.source_files.BATCH_ROWS", 4096)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail_when_large)
    data = read(tmp_path)
    assert sizes == [4096, 256, 16]
    assert (len(data.rows), data.merged_rows) == (600, 0)


# Real data


@pytest.mark.skipif(not DATA.exists(), reason="no shared data")
def test_real_data_in_all_three_layouts():
    folder = DATA / "contractnli_dev"
    tables = read(folder, "documents.parquet", "questions.parquet")
    long_rows = read(folder, "long_shuffled.parquet")
    assert (len(tables.documents), len(tables.rows)) == (61, 61 * 17)
    assert set(tables.documents) == set(long_rows.documents)

    def content(data):
        return {(row.doc_id, row.question_id): (row.document_hash, row.question) for row in data.rows}

    assert content(tables) == content(long_rows)
    assert {row.gold for row in long_rows.rows} >= {"true", "false"}
    for name in ("xquad_en", "xquad_zh"):
        nested = read(DATA / name)
        assert (nested.layout, len(nested.documents), len(nested.rows)) == ("nested", 240, 1190)
        assert all(row.problem is None and isinstance(row.gold, list) for row in nested.rows)
