"""The HTML page of a report: what it holds, that no text can break it, and that a browser shows it."""

import base64
import hashlib
import json
import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from docqa import report_documents, report_rows
from docqa.report_charts import latency_chart, steps_chart, timeline_chart, tree_chart
from docqa.report_figures import report_of
from docqa.report_page import page_of
from docqa.report_rows import page_data
from jobs.source_rows import text_hash
from jobs.store import AnswerRecord, AnswerStore, RunEnding, RunRecord
from tests.docqa import browser as chromium
from tests.docqa.report_database import HOSTILE, START, text_of, write_run
from tests.job_fixtures import write_rows


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts and style."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.texts = {}
        self._open = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._open = dict(attributes).get("type", tag)

    def handle_data(self, data):
        if self._open is not None:
            self.texts[self._open] = self.texts.get(self._open, "") + data

    def handle_endtag(self, tag):
        self._open = None

    @property
    def data(self):
        return json.loads(self.texts["application/json"])

    @property
    def rows(self):
        """The rows of the page as dictionaries."""
        data = self.data
        repeated = report_rows.REPEATED
        return [
            {
                name: data["texts"][value] if name in repeated and value is not None else value
                for name, value in zip(data["columns"], row, strict=True)
            }
            for row in data["rows"]
        ]


def page_text(store, run_id=None, documents=None):
    report = report_of(store, run_id)
    return page_of(report, page_data(store, report, beside_documents=documents is not None), documents)


def page(store, run_id=None):
    return Page(page_text(store, run_id))


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "answers.duckdb"
    write_run(path, "first", documents=5, questions=20)
    return write_run(path, "second", documents=5, questions=20, failing=0.2, changing=0.3, seed=1,
                     start=START + timedelta(days=1), schemas=2)  # fmt: skip


def test_the_page_holds_the_rows_and_sums_of_the_database(two_nights):
    report = report_of(two_nights, None)
    found = page(two_nights)
    with two_nights.reading() as connection:
        expected = connection.execute(
            "SELECT doc_id, question_id, status, answer, error, cached_tokens FROM answers WHERE run_id = 'second' "
            "ORDER BY ALL"
        ).fetchall()
    columns = ("doc_id", "question_id", "status", "answer", "error", "cached_tokens")
    assert [tuple(row[name] for name in columns) for row in found.rows] == expected
    assert sum(row["prompt_tokens"] or 0 for row in found.rows) == report["prompt_tokens"]
    assert sum(row["change"] == "changed" for row in found.rows) == report["changes"]["changed"] > 0
    documents = [dict(zip(found.data["document_columns"], row, strict=True)) for row in found.data["documents"]]
    for name in ("prompt_tokens", "minimum_tokens", "computed_tokens", "cached_tokens"):
        assert sum(document[name] for document in documents) == report[name]
    assert sum(document["rows"] for document in documents) == report["rows_ok"] + report["rows_failed"]


def test_the_page_needs_nothing_else_and_runs_only_its_own_script(two_nights):
    text = page_text(two_nights)
    found = Page(text)
    assert not [tag for tag, _ in found.elements if tag in ("link", "img", "iframe", "object", "base")]
    links = [attributes[name] for _, attributes in found.elements for name in ("src", "href") if name in attributes]
    assert links
    assert all(link.startswith("#") for link in links)
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert [attributes for tag, attributes in found.elements if tag == "script"] == [
        {"type": "application/json", "id": "data"}, {},
    ]  # fmt: skip
    policy = next(a["content"] for t, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(found.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"url\((?!#)|@import|https?:", found.texts["style"] + found.texts["script"])


def test_hostile_texts_stay_texts(two_nights):
    text = page_text(two_nights)
    found = Page(text)
    assert HOSTILE in {row["question"] for row in found.rows}
    assert "<" not in found.texts["application/json"]
    assert HOSTILE not in text
    assert not [tag for tag, _ in found.elements if tag == "img"]


def test_what_does_not_fit_is_left_out_and_said(two_nights, monkeypatch):
    whole = page(two_nights).rows
    failed = {(row["doc_id"], row["question_id"]) for row in whole if row["status"] != "ok"}
    monkeypatch.setattr(report_rows, "MOST_ROW_BYTES", 14_000)
    monkeypatch.setattr(report_rows, "MOST_TEXT_CHARACTERS", 60)
    text = page_text(two_nights)
    found = Page(text)
    kept = [(row["doc_id"], row["question_id"]) for row in found.rows]
    assert len(failed) < len(kept) < len(whole)
    assert failed < set(kept)
    assert kept == sorted(kept)
    assert f"{len(kept)} of 100 rows are here" in text
    assert re.search(r"[1-9]\d* long texts are cut", text)
    cut = next(row["error"] for row in found.rows if row["status"] == "truncated")
    assert cut.startswith("the answer was cut after")
    assert "… cut here;" in cut


def test_texts_that_grow_by_escaping_keep_the_page_small(tmp_path, monkeypatch):
    monkeypatch.setattr(report_rows, "MOST_ROW_BYTES", 200_000)
    store = write_run(tmp_path / "answers.duckdb", "run", documents=5, questions=20)
    with store.writing("longer answers") as connection:
        connection.execute("UPDATE answers SET answer = to_json(repeat('<', 3000))")
    text = page_text(store)
    assert len(Page(text).texts["application/json"]) < 210_000
    assert 5 < len(Page(text).rows) < 15


@pytest.mark.parametrize("status", ["running", "nothing", "rejected"])
def test_runs_with_little_to_show(tmp_path, status):
    store = AnswerStore(tmp_path / "answers.duckdb")
    if status == "rejected":
        write_run(store.path, "run", documents=1, questions=8, failing=1.0)
        with store.writing("leaving only rows that did not reach the model") as connection:
            connection.execute("DELETE FROM answers WHERE status <> 'too_long'")
            connection.execute(
                "UPDATE runs SET prompt_tokens = 0, cached_tokens = 0, computed_tokens = 0, minimum_tokens = 0, "
                "output_tokens = 0, rows_total = 2, rows_failed = 2, statistics = NULL"
            )
        assert store.check() == []
    else:
        store.begin_run(RunRecord(run_id="run", job_name="", rows_total=9 if status == "running" else 0))
    text = page_text(store)
    assert "No row reached the model." in text
    assert ("The run has not said yet how long it took." in text) == (status != "rejected")
    assert len(Page(text).rows) == (2 if status == "rejected" else 0)


def test_charts_draw_what_they_are_given(two_nights):
    report = report_of(two_nights, None)
    tree = tree_chart(report)
    assert tree.count("<g>") == 1 + 3 * len(report["documents"])
    assert "contract-004" in tree
    widths = [float(width) for width in re.findall(r'x="[\d.]+%" y="[\d.]+" width="([\d.]+)%"', tree)]
    assert max(widths) <= 100
    ended = re.findall(r": (\d+) rows ok, (\d+) failed", timeline_chart(report["timeline"]))
    assert {(int(ok), int(failed)) for ok, failed in ended} == {
        (part["rows_ok"], part["rows_failed"])
        for part in report["timeline"]["intervals"]
        if part["rows_ok"] or part["rows_failed"]
    }
    assert latency_chart(report["latency_curve"]).count("<polyline") == 2
    steps = steps_chart(report["steps"], report["kv_memory"]["kv_pages"])
    titles = re.findall(r"for ([\d,]+) prompt tokens, [\d.]+ s for ([\d,]+) output", steps)
    assert 40 < len(titles) <= 120
    for place, name in enumerate(("prompt_tokens", "output_tokens")):
        assert sum(int(title[place].replace(",", "")) for title in titles) == report["statistics"][name]
    assert steps.count('class="computed"') == steps.count('class="mask"') == len(titles)
    assert steps_chart([], 1) == ""
    assert latency_chart({"ttft_seconds": [], "latency_seconds": []}) == ""


def test_of_many_documents_neighbours_are_drawn_as_one(tmp_path):
    store = write_run(tmp_path / "answers.duckdb", "run", documents=320, questions=1)
    tree = tree_chart(report_of(store, None))
    rows = [int(rows) for rows in re.findall(r" · (\d+) rows?<", tree)]
    assert sum(rows) == 320
    assert 20 < len(rows) < 50
    computed = re.findall(r", a row's own: ([\d,]+) tokens computed", tree)
    own = next(level for level in report_of(store, None)["levels"] if level["level"] == "row")
    assert sum(int(tokens.replace(",", "")) for tokens in computed) == own["computed_tokens"]


def write_input(path, documents, questions=20):
    """The Parquet input that write_run's documents would be of."""
    rows = [{"doc_id": f"contract-{d:03}", "document": text_of(d), "question_id": f"q{q:02}", "question": "?"}
            for d in range(documents) for q in range(questions)]  # fmt: skip
    write_rows(path, rows)


def test_documents_are_read_from_the_input_by_their_hash(docqa, two_nights, tmp_path):
    write_input(tmp_path / "rows.parquet", 4)
    (tmp_path / "job.toml").write_text('input.documents = "rows.parquet"\nanswer.schema = "answer"\n')
    write_rows(tmp_path / "documents.parquet", [{"document": text_of(d)} for d in range(4)])
    texts = {text_hash(text_of(d)): text_of(d) for d in range(4)}
    for source in ("job.toml", "rows.parquet", "documents.parquet"):
        path = tmp_path / "page.html"
        assert docqa("report", two_nights.path, "--html", path, "--documents", tmp_path / source)[0] == 0
        assert Page(path.read_text()).data["document_texts"] == texts
        assert "4 of 5 texts are here. 1 are not in the input any more" in path.read_text()
    half = {"wanted": set(texts), "columns": {}}
    for d in range(2):
        write_rows(tmp_path / f"{d}.parquet", [{"document": text_of(d)}])
    assert len(report_documents.document_texts([tmp_path / "0.parquet", tmp_path / "1.parquet"], **half)) == 2
    assert len(report_documents.document_texts([tmp_path / "job.toml", tmp_path / "1.parquet"], **half)) == 4
    assert Page(page_text(two_nights)).data["document_texts"] == {}
    assert "docqa report --documents JOB" in page_text(two_nights)


def test_documents_that_do_not_fit_are_left_out_whole_and_said(two_nights, monkeypatch):
    texts = {text_hash(text_of(d)): text_of(d) for d in range(5)}
    first = page(two_nights).rows[0]["document_hash"]
    monkeypatch.setattr(report_documents, "MOST_DOCUMENT_BYTES", 1_000)
    text = page_text(two_nights, documents=texts)
    shown = Page(text).data["document_texts"]
    assert 0 < len(shown) < 5
    assert first in shown
    assert f"{len(shown)} of 5 texts are here. {5 - len(shown)} are left out" in text
    written = json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")
    assert len(written.encode()) <= 1_000


@pytest.fixture(scope="module")
def session():
    if not chromium.is_there():
        pytest.skip("Chromium and its driver are not installed")
    with chromium.browser() as session:
        yield session


def test_a_browser_shows_answers_beside_their_document(docqa, two_nights, tmp_path, session):
    """Quotes are marked where they stand, also behind characters that take two of JavaScript's units."""
    write_input(tmp_path / "rows.parquet", 5)
    path = tmp_path / "page.html"
    docqa("report", two_nights.path, "--run", "first", "--html", path, "--documents", tmp_path / "rows.parquet")
    session.show(1100, 900)
    session.open(path)
    for document in (0, 1):
        session.run(
            "const form = document.getElementById('filters'); form.reset();"
            f"form.elements.document.value = 'contract-00{document}'; form.dispatchEvent(new Event('input'));"
            "document.querySelector('.answer > summary').click()"
        )
        shown = "return document.querySelector('.source pre').textContent"
        assert session.run(shown) == text_of(document)
        marks = "return [...document.querySelectorAll('.source mark')].map(mark => mark.textContent)"
        assert session.run(marks) == ["shall keep it secret"]
        before = "return document.querySelector('.source mark').previousSibling.textContent"
        assert session.run(before) == text_of(document).partition("shall keep")[0]
    session.run("document.querySelector('.quotes button').click()")
    body = session.run("return document.querySelector('.answer .facts').innerText")
    assert "reused 120 of 120 of its instructions, " in body
    assert re.search(r"\d+\.\d\d s saved", body)
    assert "confidence: verdict 0.88, quote unknown, page 1.00" in body
    wide = "return document.querySelector('.source').getBoundingClientRect()"
    beside = session.run(wide)["left"]
    session.show(375, 800, "dark")
    assert session.run(wide)["left"] < beside / 2  # below the answer
    assert session.run("return document.documentElement.scrollWidth") == 375
    assert session.console() == []


def test_a_browser_shows_where_quotes_stand(docqa, tmp_path, session):
    database, path = tmp_path / "answers.duckdb", tmp_path / "page.html"
    store = AnswerStore(database)
    store.begin_run(RunRecord(run_id="r", rows_total=1))
    quotes = {"/a~1b": {"start": 1234, "end": 1240, "found": True, "exact": False},
              "/c": {"start": None, "end": None, "found": False, "exact": False}}  # fmt: skip
    answer = json.dumps({"a/b": "there", "c": "away", "d": "no quote"})
    store.write_answers([AnswerRecord(run_id="r", doc_id="d", question_id="q", status="ok", answer=answer,
                                      quotes=json.dumps(quotes))])  # fmt: skip
    store.finish_run(RunEnding(run_id="r", status="finished"))
    docqa("report", database, "--html", path)
    assert "1 of 2" in path.read_text()
    session.show(1100, 900)
    session.open(path)
    summary = "return document.querySelector('.answer .summary').innerText"
    assert session.run(summary) == "a/b there found · c away not found · d no quote"
    session.run("document.querySelector('.answer > summary').click()")
    body = session.run("return document.querySelector('.answer .body').innerText")
    assert "/a~1b: characters 1,234 to 1,240, but for spaces or signs\n/c: not in the document" in body
    assert session.console() == []


@pytest.mark.parametrize("documents", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_a_browser_shows_thousands_of_rows(docqa, tmp_path, session, documents):
    database, path = tmp_path / "answers.duckdb", tmp_path / "page.html"
    write_run(database, "first", documents=50, questions=20)
    write_run(database, "second", documents=documents, questions=20, failing=0.03, changing=0.02, seed=1,
              start=START + timedelta(days=1))  # fmt: skip
    write_input(tmp_path / "rows.parquet", documents, questions=1)
    status, out, err = docqa("report", database, "--html", path, "--documents", tmp_path / "rows.parquet")
    assert (status, out) == (0, "")
    assert f"the report is in {path}" in err
    assert path.stat().st_size < 15_000_000
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".new")] == []
    report = report_of(AnswerStore(database, read_only=True), None)
    session.show(1100, 900)
    session.open(path)
    assert session.run("return document.title") == "contracts-nightly: run second"
    said = "return document.querySelector('#answer-list [role=status]').textContent"
    assert session.run(said) == f"1 to 50 of {20 * documents:,} answers"
    totals = session.run("return [...document.querySelectorAll('#document-list tfoot td')].map(c => c.textContent)")
    assert totals == [
        f"all {documents} listed", f"{20 * documents:,}", f"{report['rows_failed']:,}",
        f"{100 * report['reused_share']:.1f} %", "", f"{report['saved']['seconds']:,.2f}",
        f"{report['prompt_tokens']:,}", f"{report['computed_tokens']:,}", f"{report['minimum_tokens']:,}",
    ]  # fmt: skip

    def filtered(**values):
        session.run(
            "const form = document.getElementById('filters'); form.reset();"
            f"for (const [name, value] of Object.entries({json.dumps(values)})) form.elements[name].value = value;"
            "form.dispatchEvent(new Event('input'))"
        )
        return session.run(said)

    assert filtered(document=f"contract-{documents - 1:03}") == "1 to 20 of 20 answers"
    assert filtered(text=f"CLAUSE {20 * documents - 1}:").endswith("of 1 answers")
    assert filtered(text="no such words") == "no answers"
    failures = {cause["status"]: cause["rows"] for cause in report["failures"]}
    assert filtered(status="truncated").endswith(f" of {failures['truncated']} answers")
    assert filtered(change="changed").endswith(f" of {report['changes']['changed']} answers")
    filtered(order="slow")
    slowest = report["slowest_rows"][0]
    first = session.run("return document.querySelector('.answer .ids').innerText.split('\\n')")
    assert first == [slowest["doc_id"], slowest["question_id"]]
    session.run("document.querySelector('.answer > summary').click()")
    assert "prompt tokens" in session.run("return document.querySelector('.answer').textContent")
    session.run("document.querySelectorAll('#document-list th button')[0].click()")
    assert session.run("return document.querySelector('#document-list td').textContent") == "contract-000"
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = session.run(ground)
    session.show(375, 800, "dark")
    assert session.run(ground) != light
    assert session.run("return document.documentElement.scrollWidth") == 375
    assert session.run("return [document.title, document.images.length]") == ["contracts-nightly: run second", 0]
    assert session.console() == []
