"""`docqa report`: its figures against independent computations from the rows, and the check that they agree."""

import json
import math
import re
from collections import Counter
from datetime import timedelta

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docqa import report_page
from docqa.report_changes import CHANGES, changed_rows
from docqa.report_figures import report_of
from docqa.report_levels import RowTokens, reuse_by_level
from jobs.store import AnswerRecord, AnswerStore, RunEnding, RunRecord
from tests.docqa.report_database import OPENING_TOKENS, START, WORK, write_run
from tests.job_fixtures import sample_rows
from tests.jobs.store_version_1 import make_store_of_version_1
from tests.jobs.store_version_2 import make_store_of_version_2
from tests.jobs.store_version_3 import make_store_of_version_3
from tests.thorough import examples

TOKENS = ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens")


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory):
    """A database of two runs of one job, the second with failures and changed answers."""
    path = tmp_path_factory.mktemp("report") / "answers.duckdb"
    write_run(path, "first", documents=6, questions=20)
    write_run(path, "second", documents=6, questions=20, failing=0.2, changing=0.3, seed=1,
              start=START + timedelta(days=1), evicting=0.1)  # fmt: skip
    return path


@pytest.fixture
def copied(two_nights, tmp_path):
    """The same in a file of its own, with execute(statement) to tamper with it."""
    path = tmp_path / "copied.duckdb"
    path.write_bytes(two_nights.read_bytes())

    def execute(statement):
        with duckdb.connect(str(path)) as connection:
            connection.execute(statement)

    return path, execute


def answers_of(path, run_id="second"):
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute("SELECT * FROM answers WHERE run_id = ?", [run_id])
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_figures_agree_with_the_rows(two_nights):
    report = report_of(AnswerStore(two_nights, read_only=True), None)
    rows = answers_of(two_nights)
    assert report["run_id"] == "second"
    assert report["rows_by_status"] == Counter(row["status"] for row in rows)
    reached = [row for row in rows if row["prompt_tokens"] is not None]
    assert 0 < len(reached) < len(rows)
    for column in ("ttft_seconds", "latency_seconds"):
        seconds = [row[column] for row in reached]
        for name, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100)):
            assert report["percentiles"][f"{column}_{name}"] == pytest.approx(np.percentile(seconds, share))
        assert report["latency_curve"][column] == pytest.approx(np.percentile(seconds, range(101)))
    slowest = sorted(reached, key=lambda row: -row["latency_seconds"])[:10]
    found = [(row["doc_id"], row["question_id"]) for row in report["slowest_rows"]]
    assert found == [(row["doc_id"], row["question_id"]) for row in slowest]
    for document in report["documents"]:
        own = [row for row in rows if row["document_hash"] == document["document_hash"]]
        assert (document["rows"], document["doc_ids"]) == (len(own), [own[0]["doc_id"]])
        ended = [row for row in own if row["prompt_tokens"] is not None]
        started = min(row["answered_at"] - timedelta(seconds=row["latency_seconds"]) for row in ended)
        took = max(row["answered_at"] for row in ended) - started
        assert document["seconds"] == pytest.approx(took.total_seconds(), abs=1e-4)
    for name in TOKENS:
        total = sum(row[name] for row in reached)
        assert report[name] == total
        assert sum(level[name] for level in report["levels"]) == total
        assert sum(document[name] for document in report["documents"]) == total
        assert all(sum(level[name] for level in d["levels"]) == d[name] for d in report["documents"])


def test_levels_are_the_parts_of_the_prompts(two_nights):
    report = report_of(AnswerStore(two_nights, read_only=True), "first")
    levels = {level["level"]: level for level in report["levels"]}
    documents = sum(400 * (1 + d) for d in range(6))
    assert levels["all"] | {"level": ""} == {
        "level": "", "rows": 120, "prompt_tokens": 120 * OPENING_TOKENS, "minimum_tokens": OPENING_TOKENS,
        "computed_tokens": OPENING_TOKENS, "cached_tokens": 119 * OPENING_TOKENS,
    }  # fmt: skip
    assert levels["document"]["computed_tokens"] == documents
    assert levels["document"]["prompt_tokens"] == 20 * documents
    assert levels["row"]["cached_tokens"] == 0


@st.composite
def prompt_trees(draw):
    """Prompts of an opening, a document and a question, with the tokens of each row's parts."""
    token = st.integers(0, 2)
    texts = st.lists(token, min_size=1, max_size=5)
    openings = {f"schema{n}": draw(texts) for n in range(draw(st.integers(1, 2)))}
    documents = {f"document{n}": draw(texts) for n in range(draw(st.integers(1, 4)))}
    rows = []
    for schema, opening in openings.items():
        for number, (name, text) in enumerate(documents.items()):
            # A mark of its own parts schemas, documents and questions, as the words of a real prompt do.
            begin = [*opening, 10 + len(opening), *([] if schema == "schema0" else [9]), *text, 20 + number]
            for _ in range(draw(st.integers(1, 4))):
                rows.append((schema, name, (*begin, *draw(texts))))
    return sorted(rows, key=lambda row: row[2]), draw(st.floats(0, 1))


@examples(40)
@given(prompt_trees())
def test_openings_are_those_of_the_tokens(tree):
    prompts, kept = tree
    rows = []
    for place, (schema, name, prompt) in enumerate(prompts):
        shared = common_prefix([prompts[place - 1][2], prompt]) if place else 0
        cached = math.floor(shared * kept)
        rows.append(RowTokens(schema, name, len(prompt), cached, len(prompt) - shared))
    levels, by_document = reuse_by_level(rows)
    for name, attribute in (("prompt_tokens",) * 2, ("minimum_tokens",) * 2, ("cached_tokens",) * 2):
        assert sum(level[name] for level in levels) == sum(getattr(row, attribute) for row in rows)
        assert sum(level[name] for own in by_document.values() for level in own) == sum(lv[name] for lv in levels)
    assert sum(level["computed_tokens"] for level in levels) == sum(r.prompt_tokens - r.cached_tokens for r in rows)
    if len(prompts) > 1:
        assert levels[0]["prompt_tokens"] == len(prompts) * common_prefix([prompt for _, _, prompt in prompts])
    # Down to what is a row's own: what the rows of a schema and document share.
    expected_own = 0
    for key in {(schema, name) for schema, name, _ in prompts}:
        same = [prompt for *found, prompt in prompts if tuple(found) == key]
        above = [prompt for schema, _, prompt in prompts if schema == key[0]]
        shared = [common_prefix(group) for group in (same, above, [p for *_, p in prompts]) if len(group) > 1]
        expected_own += sum(len(prompt) - max(shared, default=0) for prompt in same)
    assert levels[-1]["prompt_tokens"] == expected_own


def common_prefix(prompts):
    """How many first tokens all of the prompts share, the obvious way."""
    length = 0
    while all(len(prompt) > length for prompt in prompts) and len({prompt[length] for prompt in prompts}) == 1:
        length += 1
    return length


def test_failures_are_grouped_by_cause(two_nights):
    report = report_of(AnswerStore(two_nights, read_only=True), "second")
    failed = [row for row in answers_of(two_nights) if row["status"] != "ok"]
    assert {cause["status"]: cause["rows"] for cause in report["failures"]} == Counter(row["status"] for row in failed)
    for cause in report["failures"]:
        first = min((row["doc_id"], row["question_id"]) for row in failed if row["status"] == cause["status"])
        assert (cause["doc_id"], cause["question_id"]) == first
        assert cause["error"] in {row["error"] for row in failed}


def test_changes_are_against_the_attempt_before(two_nights):
    before = {(row["doc_id"], row["question_id"]): row for row in answers_of(two_nights, "first")}
    expected = {}
    for row in answers_of(two_nights):
        key = (row["doc_id"], row["question_id"])
        old = before[key]["answer"]
        if row["status"] != "ok":
            expected[key] = ("broken", old)
        else:
            expected[key] = ("same", None) if row["answer"] == old else ("changed", old)
    store = AnswerStore(two_nights, read_only=True)
    with store.reading() as connection:
        assert changed_rows(connection, "second") == expected
        assert changed_rows(connection, "first") == {}
    counts = Counter(change for change, _ in expected.values())
    assert {"same", "changed", "broken"} <= counts.keys()
    assert report_of(store, "second")["changes"] == dict.fromkeys(CHANGES, 0) | counts
    assert report_of(store, "first")["changes"]["first"] == 120


def test_the_previous_run_is_of_the_same_job_and_took_on_rows(tmp_path):
    path = tmp_path / "answers.duckdb"
    write_run(path, "mine", documents=2, questions=2)
    write_run(path, "other", documents=2, questions=2, start=START + timedelta(days=1), job_name="other")
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="idle", job_name="contracts-nightly", started_at=START + timedelta(days=2)))
    write_run(path, "now", documents=2, questions=2, start=START + timedelta(days=3))
    assert report_of(store, "now")["previous_run"]["run_id"] == "mine"
    assert report_of(store, "mine")["previous_run"] is None
    # The attempt before is the other job's, the last of each key.
    assert report_of(store, "now")["changes"]["same"] == 4


def test_text_names_percentiles_slowest_rows_causes_and_changes(docqa, two_nights):
    status, out, err = docqa("report", two_nights)
    report = json.loads(docqa("report", two_nights, "--json")[1])
    assert (status, err) == (0, "")
    for name in ("p50", "p90", "p95", "p99", "max"):
        assert f"{report['percentiles'][f'latency_seconds_{name}']:.2f}" in out
    slowest = report["slowest_rows"][0]
    assert f"slowest: {slowest['doc_id']} / {slowest['question_id']}" in out
    for cause in report["failures"]:
        assert f"{cause['rows']} {cause['status']}: {cause['doc_id']} / {cause['question_id']}:" in out
    assert f"{report['changes']['changed']} changed" in out


def test_check_of_a_sound_database(docqa, two_nights):
    status, out, err = docqa("report", two_nights, "--check")
    assert (status, err) == (0, "")
    assert out.endswith("rows, totals and reports of 2 runs agree\n")
    assert json.loads(docqa("report", two_nights, "--check", "--json")[1]) == {"runs": 2, "violations": []}
    assert docqa("report", two_nights, "--check", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE runs SET cached_tokens = cached_tokens + 1 WHERE run_id = 'first'", "cached_tokens"),
        ("DELETE FROM answers WHERE run_id = 'second' AND doc_id = 'contract-003'", "sum up"),
        ("UPDATE answers SET status = 'ok' WHERE run_id = 'second' AND status = 'failed'", "without an answer"),
        ("UPDATE answers SET computed_tokens = computed_tokens + 5 WHERE question_id = 'q01'", "not the prompt's"),
        ("UPDATE answers SET document_hash = NULL WHERE doc_id = 'contract-001'", "documents' prompt_tokens"),
        ("UPDATE answers SET repeated_tokens = '{}'", "by a known cause"),
        ("UPDATE answers SET prompt_segments = NULL WHERE question_id = 'q01'", "segments' prompt_tokens"),
        ("UPDATE run_steps SET prompt_tokens = prompt_tokens + 1", "steps' prompt_tokens"),
        ("UPDATE runs SET seconds = 1", "its steps took"),
    ],
)
def test_check_finds_what_does_not_agree(docqa, copied, statement, said):
    path, execute = copied
    execute(statement)
    status, out, _ = docqa("report", path, "--check", "--json")
    assert status == 3
    violations = json.loads(out)["violations"]
    assert any(said in sentence for sentence in violations), violations


def test_check_reads_the_page_s_figures_back(docqa, two_nights, monkeypatch):
    """The page is proved as it is written, not as it was meant."""
    template = report_page.environment().get_template("report.html")
    assert docqa("report", two_nights, "--check", "--quiet")[0] == 0
    for name in ("prompt_tokens", "rows_failed", "minimum_tokens"):
        with monkeypatch.context() as patch:
            shown = lambda **values: template.render(**values | {"report": values["report"] | {name: 12345}})  # noqa: B023, E731
            patch.setattr(report_page, "render", shown)
            status, out, _ = docqa("report", two_nights, "--check")
        assert status == 3
        assert f"page's {name} sum up to 12,345" in out


def test_check_of_more_causes_than_a_page_lists(docqa, copied, tmp_path):
    path, execute = copied
    letters = "chr(97 + (hash(doc_id || question_id) % 26)::INT) || chr(97 + (hash(question_id || doc_id) % 26)::INT)"
    execute(f"UPDATE answers SET status = 'failed', answer = NULL, error = {letters} WHERE run_id = 'second'")
    execute("UPDATE runs SET rows_ok = 0, rows_failed = 120 WHERE run_id = 'second'")
    assert docqa("report", path, "--check", "--quiet") == (0, "", "")
    assert docqa("report", path, "--html", tmp_path / "page.html")[0] == 0
    assert "rarer causes that are not listed here" in (tmp_path / "page.html").read_text()


def test_check_says_a_line_for_each_thing(docqa, copied):
    path, execute = copied
    execute("UPDATE runs SET rows_ok = 7 WHERE run_id = 'first'")
    status, out, err = docqa("report", path, "--check")
    assert (status, err) == (3, "")
    assert out.splitlines()[0] == "run first: rows_ok is 7, but its rows sum up to 120"


def test_check_after_compact(docqa, copied):
    path, _ = copied
    assert docqa("compact", path, "--keep-attempts", 1, "--quiet")[0] == 0
    report = json.loads(docqa("report", path, "--run", "first", "--json")[1])
    assert report["rows_removed"] > 0
    assert docqa("report", path, "--check")[0] == 0
    assert "removed" in docqa("report", path, "--run", "first")[1]


def test_reuse_is_told_by_segment_cause_and_what_it_saved(two_nights):
    """Against sums over the rows, position by position."""
    report = report_of(AnswerStore(two_nights, read_only=True), "second")
    rows = [row for row in answers_of(two_nights) if row["prompt_tokens"] is not None]
    expected = {name: Counter() for name in ("instructions", "document", "question")}
    saved = Counter()
    for row in rows:
        start = 0
        for name, part in json.loads(row["prompt_segments"]).items():
            tokens = part["prompt_tokens"]
            for place in range(start, start + tokens):
                reused = place < row["cached_tokens"]
                expected[name]["prompt_tokens"] += 1
                expected[name]["cached_tokens" if reused else "computed_tokens"] += 1
                expected[name]["minimum_tokens"] += place >= row["prompt_tokens"] - row["minimum_tokens"]
                if reused:
                    saved[name] += WORK.token_flops + WORK.key_flops[0] * (place + 1)
            start += tokens
    assert [segment["segment"] for segment in report["segments"]] == list(expected)
    statistics = report["statistics"]
    speed = statistics["prompt_seconds"] / statistics["prompt_flops"]
    for segment in report["segments"]:
        assert {name: segment[name] for name in TOKENS} == {name: expected[segment["segment"]][name] for name in TOKENS}
        assert segment["saved_flops"] == saved[segment["segment"]]
        assert segment["saved_seconds"] == pytest.approx(saved[segment["segment"]] * speed)
    assert report["saved"]["seconds"] == pytest.approx(saved.total() * speed)
    assert report["saved_seconds"] == pytest.approx(report["saved"]["seconds"])
    assert report["saved"]["kv_bytes"] == report["cached_tokens"] * 23_040
    assert sum(document["saved_seconds"] for document in report["documents"]) == pytest.approx(saved.total() * speed)
    causes = {entry["cause"]: entry for entry in report["repeated"]}
    evicted = sum(json.loads(row["repeated_tokens"]).get("evicted", 0) for row in rows)
    assert causes["evicted"]["tokens"] == evicted == report["computed_tokens"] - report["minimum_tokens"] > 0
    assert causes["evicted"]["rows"] == evicted / 100
    assert sum(entry["tokens"] for entry in causes.values()) == evicted
    assert sum(report["time_parts"].values()) == pytest.approx(report["seconds"])
    assert report["time_parts"]["prompt_seconds"] == pytest.approx(0.6 * 0.99 * report["seconds"])
    assert report["kv_memory"]["kv_bytes_at_peak"] == statistics["kv_pages_at_peak"] * 16 * 23_040
    assert report["kv_memory"]["kv_bytes_smallest"] == 91 * 16 * 23_040


def test_text_tells_reuse_causes_savings_and_memory(docqa, two_nights):
    out = docqa("report", two_nights)[1]
    report = json.loads(docqa("report", two_nights, "--json")[1])
    for segment in report["segments"]:
        counts = (segment[name] for name in ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens"))
        assert re.search(segment["segment"] + "".join(rf" +{count:,}" for count in counts), out)
    evicted = next(entry for entry in report["repeated"] if entry["cause"] == "evicted")
    assert f"{evicted['tokens']:,} evicted ({evicted['rows']} rows): their pages were taken" in out
    assert re.search(rf"saved +{report['saved']['seconds']:,.2f} s +by reuse: ", out)
    assert re.search(r"KV memory +\d+\.\d MiB +at peak; ", out)
    for name in ("prompt", "output", "mask", "outside"):
        assert re.search(rf"{name} +{report['time_parts'][name + '_seconds']:,.2f} s", out)
    first = docqa("report", two_nights, "--run", "first")[1]
    assert "nothing was computed more than once" in first


@pytest.fixture
def quoted(tmp_path):
    """A run with four quotes, two of them found, and a schema without any."""
    path = tmp_path / "quoted.duckdb"
    store = AnswerStore(path)
    store.begin_run(RunRecord(run_id="r", rows_total=3, bad_files='[{"file":"[b].parquet","reason":"it is empty"}]'))
    found, absent = ({"start": 2, "end": 5, "found": True, "exact": False},
                     {"start": None, "end": None, "found": False, "exact": False})  # fmt: skip
    places = [{"/quote": found, "/parts/0/a~1b": absent}, {"/quote": found, "/parts/0/a~1b": absent}, None]
    store.write_answers(
        [
            AnswerRecord(run_id="r", doc_id="d", question_id=f"q{number}", status="ok",
                         answer=json.dumps({"quote": "a\nb", "verdict": "true"}),
                         quotes=place and json.dumps(place))
            for number, place in enumerate(places)
        ]
    )  # fmt: skip
    store.finish_run(RunEnding(run_id="r", status="finished"))
    return path


def test_quotes_are_counted(docqa, quoted):
    assert json.loads(docqa("report", quoted, "--json")[1])["quotes"] == {"quotes": 4, "found": 2, "empty": 0}
    out = docqa("report", quoted)[1]
    assert re.search(r"quotes +4 +2 found in their documents", out)
    assert "1 file can't be read and was skipped: [b].parquet" in out
    assert docqa("report", quoted, "--check")[0] == 0
    with duckdb.connect(str(quoted)) as connection:
        empty = json.dumps({"quote": " \n", "parts": [{"a/b": ""}], "verdict": "true"})
        connection.execute("UPDATE answers SET answer = ? WHERE question_id = 'q1'", [empty])
    assert json.loads(docqa("report", quoted, "--json")[1])["quotes"] == {"quotes": 4, "found": 2, "empty": 2}
    assert re.search(r"quotes +4 +2 found in their documents, 2 empty", docqa("report", quoted)[1])
    with duckdb.connect(str(quoted)) as connection:
        connection.execute("UPDATE answers SET quotes = NULL")
    assert json.loads(docqa("report", quoted, "--json")[1])["quotes"] is None


@pytest.mark.parametrize("make_store", [make_store_of_version_1, make_store_of_version_2, make_store_of_version_3])
def test_an_older_store_is_reported_as_it_is(docqa, tmp_path, make_store):
    path = tmp_path / "old.duckdb"
    make_store(path)
    before = path.read_bytes()
    report = json.loads(docqa("report", path, "--json")[1])
    assert (report["quotes"], report["bad_files"]) == (None, [])
    assert docqa("report", path, "--html", tmp_path / "page.html")[0] == 0
    assert docqa("export", path, "--to", tmp_path / "a.csv")[0] == 0
    assert path.read_bytes() == before


def test_a_real_run_agrees(docqa, make_job, tmp_path):
    path = make_job(sample_rows(3, 4))
    assert docqa("run", path, "--quiet")[0] == 0
    database = tmp_path / "answers.duckdb"
    assert docqa("report", database, "--check")[0] == 0
    report = json.loads(docqa("report", database, "--json")[1])
    for level in report["levels"]:
        assert level["computed_tokens"] == level["minimum_tokens"]
    assert report["levels"][0]["computed_tokens"] * 12 == report["levels"][0]["prompt_tokens"] > 0
    assert sum(part["rows_ok"] for part in report["timeline"]["intervals"]) == 12
    assert 0 < report["timeline"]["first_answer_seconds"] <= report["timeline"]["seconds"]
    assert report["saved"]["seconds"] > report["time_parts"]["prompt_seconds"] > 0
    assert all(entry["tokens"] == 0 for entry in report["repeated"])


def test_rows_that_are_asked_several_times_agree(docqa, make_job, tmp_path):
    """Each call goes through the whole prompt: of a segment, all but the first reuse everything."""
    path = make_job(sample_rows(2, 3), sampling={"samples": 3, "temperature": 1.0, "max_tokens": 60},
                    run={"max_failures": "100%"})  # fmt: skip
    assert docqa("run", path, "--quiet")[0] in (0, 1)
    database = tmp_path / "answers.duckdb"
    report = json.loads(docqa("report", database, "--json")[1])
    assert report["computed_tokens"] == report["minimum_tokens"] == report["statistics"]["prompt_tokens"]
    instructions, document, _ = report["segments"]
    assert instructions["prompt_tokens"] == 18 * instructions["computed_tokens"]
    assert document["minimum_tokens"] < document["prompt_tokens"] / 8
    levels = {level["level"]: level for level in report["levels"]}
    assert levels["all"]["prompt_tokens"] == 18 * levels["all"]["computed_tokens"] > 0
    assert levels["row"]["cached_tokens"] > levels["row"]["computed_tokens"]  # the second and third call of each row
    assert docqa("report", database, "--check")[0] == 0


def test_documents_in_the_environment_are_those_of_a_run(docqa, two_nights, monkeypatch):
    monkeypatch.setenv("DOCQA_DOCUMENTS", "a.parquet b.parquet")
    assert docqa("report", two_nights)[0] == 0


def test_a_user_s_mistakes_are_one_sentence(docqa, two_nights, tmp_path):
    for arguments, said in [
        ((tmp_path / "none.duckdb",), "does not exist"),
        ((two_nights, "--run", "third"), "it has second, first"),
        ((two_nights, "--check", "--run", "third"), "it has second, first"),
        ((two_nights, "--html", tmp_path / "none" / "page.html"), "No such file or directory"),
        ((two_nights, "--html", two_nights), "is the database"),
        ((two_nights, "--html", tmp_path), "can't be written"),
        ((two_nights, "--html", tmp_path / "page.html", "--check"), "give one of them"),
        ((two_nights, "--documents", "job.toml"), "give --html FILE too"),
        ((two_nights, "--documents", tmp_path / "no.toml", "--html", tmp_path / "page.html"), "can't be read"),
        ((two_nights, "--documents", tmp_path / "no", "--html", tmp_path / "page.html"), "no"),
    ]:
        status, out, err = docqa("report", *arguments)
        assert (status, out) == (2, "")
        assert said in err
        assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
