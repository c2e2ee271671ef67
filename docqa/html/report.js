// Lists of documents and answers: filtered, sorted, a page at a time. Text enters the page as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const repeated = new Set(data.repeated);
const rows = data.rows.map((values) =>
  Object.fromEntries(
    data.columns.map((name, place) => {
      const value = values[place];
      return [name, repeated.has(name) && value !== null ? data.texts[value] : value];
    }),
  ),
);
const documents = data.documents.map((values) =>
  Object.fromEntries(data.document_columns.map((name, place) => [name, values[place]])),
);

const PAGE_ROWS = 50;
const count = (value) => (value === null ? "" : value.toLocaleString("en-US"));
const seconds = (value) =>
  value === null ? "" : value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const words = (name) => name.replaceAll("_", " ");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Shows `items` a page at a time in `place`; `draw` makes the page's elements of the items it gets. */
function paged(place, items, noun, draw, pageRows = PAGE_ROWS) {
  let first = 0;
  const show = () => {
    const last = Math.min(first + pageRows, items.length);
    const said = items.length ? `${count(first + 1)} to ${count(last)} of ${count(items.length)} ${noun}` : `no ${noun}`;
    const move = (rows) => () => {
      first += rows;
      show();
      place.scrollIntoView({ block: "nearest" });
    };
    const pages = element("div", { class: "pages" }, element("span", { role: "status" }, said));
    if (items.length > pageRows) {
      const back = element("button", { type: "button", onclick: move(-pageRows) }, "Previous");
      const forth = element("button", { type: "button", onclick: move(pageRows) }, "Next");
      back.disabled = first === 0;
      forth.disabled = last === items.length;
      pages.append(back, forth);
    }
    place.replaceChildren(pages, draw(items.slice(first, last)));
  };
  show();
}

// Documents

const sum = (list, name) => list.reduce((total, row) => total + row[name], 0);
const share = (row) => (row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : null);
const percent = (value) => (value === null ? "" : `${(100 * value).toFixed(1)} %`);
const failed = (row) => row.rows - row.rows_ok;

// Title, what to sort by, what to show.
const DOCUMENT_COLUMNS = [
  ["document", (row) => row.doc_id, (row) => documentName(row)],
  ["rows", (row) => row.rows, (row) => count(row.rows)],
  ["failed", failed, (row) => count(failed(row))],
  ["reused", share, (row) => percent(share(row))],
  ["seconds", (row) => row.seconds, (row) => seconds(row.seconds)],
  ["saved s", (row) => row.saved_seconds, (row) => seconds(row.saved_seconds)],
  ["prompt tokens", (row) => row.prompt_tokens, (row) => count(row.prompt_tokens)],
  ["computed", (row) => row.computed_tokens, (row) => count(row.computed_tokens)],
  ["least possible", (row) => row.minimum_tokens, (row) => count(row.minimum_tokens)],
];

function documentName(row) {
  const more = row.doc_id_count > 1 ? ` and ${count(row.doc_id_count - 1)} more` : "";
  const show = (event) => {
    event.preventDefault();
    const form = document.getElementById("filters");
    form.reset();
    form.elements.document.value = row.document_hash;
    showAnswers();
    document.getElementById("answers").scrollIntoView();
  };
  return element("a", { href: "#answers", title: row.document_hash, onclick: show }, element("bdi", {}, row.doc_id), more);
}

let documentOrder = { column: 6, descending: true };

function showDocuments() {
  const { column, descending } = documentOrder;
  const value = DOCUMENT_COLUMNS[column][1];
  const sorted = [...documents].sort((left, right) => (descending ? -1 : 1) * compare(value(left), value(right)));
  paged(document.getElementById("document-list"), sorted, "documents", documentTable, 20);
}

function documentTable(shown) {
  const heads = DOCUMENT_COLUMNS.map(([title], place) => {
    const sorted = place === documentOrder.column ? (documentOrder.descending ? "descending" : "ascending") : null;
    const sort = () => {
      documentOrder = { column: place, descending: sorted === null ? place > 0 : sorted === "ascending" };
      showDocuments();
    };
    const button = element("button", { type: "button", onclick: sort }, title);
    return element("th", { class: place ? "number" : "", "aria-sort": sorted }, button);
  });
  const lines = shown.map((row) =>
    element("tr", {}, ...DOCUMENT_COLUMNS.map(([, , draw], place) =>
      element("td", { class: place ? "number" : "text" }, draw(row)))),
  );
  const all = Object.fromEntries(
    ["rows", "rows_ok", "prompt_tokens", "cached_tokens", "computed_tokens", "minimum_tokens"].map((name) => [
      name, sum(documents, name),
    ]),
  );
  const totals = DOCUMENT_COLUMNS.map(([, , draw], place) =>
    element("td", { class: place ? "number" : "" },
      place === 0 ? `all ${count(documents.length)} listed` : draw({ ...all, seconds: null, saved_seconds: savedSum() })),
  );
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...lines),
    element("tfoot", {}, element("tr", {}, ...totals))));
}

const savedSum = () => (documents.some((row) => row.saved_seconds === null) ? null : sum(documents, "saved_seconds"));

function compare(left, right) {
  if (left === right) return 0;
  if (left === null) return -1;
  if (right === null) return 1;
  return left < right ? -1 : 1;
}

// Answers

const filters = document.getElementById("filters");
const ORDERS = {
  slow: (left, right) => compare(right.latency_seconds, left.latency_seconds),
  computed: (left, right) => compare(computed(right), computed(left)),
};
const computed = (row) => (row.prompt_tokens === null ? null : row.prompt_tokens - row.cached_tokens);

function fillChoices(select, name, titles) {
  const counts = new Map();
  for (const row of rows) counts.set(row[name], (counts.get(row[name]) ?? 0) + 1);
  for (const [value, found] of [...counts].sort((left, right) => right[1] - left[1])) {
    select.append(element("option", { value }, `${titles(value)} (${count(found)})`));
  }
  select.closest("label").hidden = counts.size < 2;
}

function showAnswers() {
  const wanted = Object.fromEntries(new FormData(filters));
  const text = wanted.text.trim().toLowerCase();
  const place = wanted.document.trim().toLowerCase();
  const found = rows.filter(
    (row) =>
      (!wanted.status || row.status === wanted.status) &&
      (!wanted.change || row.change === wanted.change) &&
      (!place || row.doc_id.toLowerCase().includes(place) || (row.document_hash ?? "").startsWith(place)) &&
      (!text || searched(row).includes(text)),
  );
  if (wanted.order in ORDERS) found.sort(ORDERS[wanted.order]);
  paged(document.getElementById("answer-list"), found, "answers", answerList);
}

/** What the text filter looks through, in lower case; made when first asked for. */
function searched(row) {
  row.searched ??= [row.question, row.answer, row.error, row.raw_text, row.question_id]
    .filter((part) => part !== null).join("\n").toLowerCase();
  return row.searched;
}

function answerList(shown) {
  return element("div", {}, ...shown.map(answerOf));
}

function answerOf(row) {
  const ids = element("span", { class: "ids" }, element("bdi", {}, row.doc_id), element("bdi", {}, row.question_id));
  const said = element("span", { class: "said" }, element("span", { class: "question", dir: "auto" }, row.question ?? ""));
  if (row.status === "ok") {
    said.append(element("span", { class: "summary", dir: "auto" }, ...answerSummary(row)));
  } else {
    said.append(element("span", { class: "tag bad" }, words(row.status)), " ",
      element("span", { class: "tag", dir: "auto" }, row.error ?? ""));
  }
  if (row.change !== "first" && row.change !== "same") {
    said.append(element("span", { class: "tag change" }, data.changes[row.change]));
  }
  const made = element("details", { class: "answer" }, element("summary", {}, ids, said));
  made.addEventListener("toggle", () => {
    if (made.open && made.children.length === 1) made.append(answerBody(row));
  });
  return made;
}

/** The top-level properties of an answer on a line; the JSON itself where it is no object. */
function answerSummary(row) {
  const answer = parsed(row.answer);
  if (answer === null || typeof answer !== "object" || Array.isArray(answer)) return [row.answer];
  const quotes = quotesOf(row);
  return Object.entries(answer).flatMap(([name, value], place) => [
    element("span", { class: "key-name" }, `${place ? " · " : ""}${name} `),
    element("bdi", {}, typeof value === "string" ? value : JSON.stringify(value)),
    ...quoteTag(quotes[`/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`]),
  ]);
}

/** Where the answer's quotes stand in the document, by JSON pointer. */
function quotesOf(row) {
  return (row.quotes !== null && parsed(row.quotes)) || {};
}

function quoteTag(place) {
  if (place === undefined) return [];
  const said = place.found ? "found" : "not found";
  return [" ", element("span", { class: place.found ? "tag" : "tag bad" }, said)];
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // a text that was cut for this page
  }
}

function answerBody(row) {
  const body = element("div", { class: "facts" });
  const source = sourceOf(row);
  const add = (title, text) => body.append(element("h4", {}, title), element("pre", { dir: "auto" }, text));
  if (row.answer !== null) add("Answer", pretty(row.answer));
  const quotes = Object.entries(quotesOf(row));
  if (quotes.length) {
    body.append(element("h4", {}, "Quotes"),
      element("ul", { class: "quotes" }, ...quotes.map(([pointer, place]) => quoteLine(pointer, place, source))));
  }
  const sure = confidenceOf(row);
  if (sure !== null) body.append(element("p", { class: "note" }, `confidence: ${sure}`));
  if (row.before !== null) add("Answer before", pretty(row.before));
  if (row.error !== null) add("Error", row.error);
  if (row.raw_text !== null) add("What the model wrote", row.raw_text);
  const facts = [`status ${words(row.status)}`, data.changes[row.change]];
  if (row.schema_name !== null) facts.push(`schema ${row.schema_name}`);
  if (row.prompt_tokens !== null) {
    facts.push(`${count(row.prompt_tokens)} prompt tokens, ${count(row.cached_tokens)} of them reused`);
    facts.push(`${count(row.output_tokens)} output tokens`);
    facts.push(`first token after ${seconds(row.ttft_seconds)} s, end after ${seconds(row.latency_seconds)} s`);
  }
  if (row.document_hash !== null) facts.push(`document ${row.document_hash.slice(0, 12)}`);
  facts.push(...reuseFacts(row));
  body.append(element("p", { class: "note" }, facts.join("; ")));
  return element("div", { class: source ? "body beside" : "body" }, body, ...(source ? [source.element] : []));
}

/** How sure the model was of each property, among the answers that the schema allows; null if nobody asked. */
function confidenceOf(row) {
  const found = row.confidence === null ? null : parsed(row.confidence);
  if (found === null) return null;
  const said = (value) => (value === null ? "unknown" : value.toFixed(2));
  if (typeof found === "number") return said(found);
  return Object.entries(found).map(([name, value]) => `${name} ${said(value)}`).join(", ");
}

function quoteLine(pointer, place, source) {
  if (!place.found) return element("li", {}, `${pointer}: not in the document`);
  const said = `characters ${count(place.start)} to ${count(place.end)}${place.exact ? "" : ", but for spaces or signs"}`;
  if (!source) return element("li", {}, `${pointer}: ${said}`);
  return element("li", {}, `${pointer}: `,
    element("button", { type: "button", class: "place", onclick: () => source.show(place.start) }, said));
}

/** What of a row's prompt was reused, segment by segment. */
function reuseFacts(row) {
  if (row.prompt_segments === null || row.prompt_tokens === null) return [];
  const parts = Object.entries(parsed(row.prompt_segments) ?? {}).map(
    ([name, part]) => `${count(part.cached_tokens)} of ${count(part.prompt_tokens)} of its ${name}`,
  );
  const facts = [`reused ${parts.join(", ")}`, `${count(computed(row))} computed, ${count(row.minimum_tokens)} at least`];
  for (const [cause, tokens] of Object.entries(parsed(row.repeated_tokens) ?? {})) {
    facts.push(`${count(tokens)} computed again: ${words(cause)}`);
  }
  if (row.saved_seconds !== null) facts.push(`${seconds(row.saved_seconds)} s saved`);
  return facts;
}

// Documents beside answers

/** The row's document with its quotes marked, and a way to bring one of them into view; null if the page lacks it. */
function sourceOf(row) {
  const text = data.document_texts[row.document_hash];
  if (text === undefined) return null;
  const places = Object.values(quotesOf(row)).filter((place) => place.found);
  const marks = new Map();
  const pre = element("pre", { dir: "auto", tabindex: "0", "aria-label": `Document ${row.doc_id}` });
  const units = unitsOf(text, places.flatMap((place) => [place.start, place.end]));
  let done = 0;
  for (const place of places.sort((left, right) => left.start - right.start || right.end - left.end)) {
    const start = Math.max(units.get(place.start), done);
    const end = units.get(place.end);
    const before = marks.get(place.start);
    if (end <= start) {
      marks.set(place.start, before ?? pre.lastElementChild); // within the mark before
      continue;
    }
    const mark = element("mark", {}, text.slice(start, end));
    pre.append(text.slice(done, start), mark);
    marks.set(place.start, before ?? mark);
    done = end;
  }
  pre.append(text.slice(done));
  const show = (start) => {
    const mark = marks.get(start);
    if (mark) pre.scrollTop += mark.getBoundingClientRect().top - pre.getBoundingClientRect().top - 40;
  };
  const made = element("div", { class: "source" }, element("h4", {}, "Document"), pre);
  if (places.length) requestAnimationFrame(() => show(places[0].start));
  return { element: made, show };
}

/** Where code points stand in a text, which JavaScript counts in UTF-16 units. */
function unitsOf(text, codePoints) {
  const wanted = [...new Set(codePoints)].sort((left, right) => left - right);
  const units = new Map();
  if (!/[\ud800-\udfff]/.test(text)) return new Map(wanted.map((place) => [place, place]));
  let unit = 0;
  let codePoint = 0;
  for (const place of wanted) {
    while (codePoint < place && unit < text.length) {
      unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
      codePoint += 1;
    }
    units.set(place, unit);
  }
  return units;
}

function pretty(text) {
  const value = parsed(text);
  // Numbers beyond what JavaScript holds exactly would change: such a text stays as it is.
  return value === null || /\d{16}/.test(text) ? text : JSON.stringify(value, null, 2);
}

fillChoices(filters.elements.status, "status", words);
fillChoices(filters.elements.change, "change", (name) => data.changes[name]);
filters.addEventListener("input", showAnswers);
filters.addEventListener("submit", (event) => event.preventDefault());
showDocuments();
showAnswers();
