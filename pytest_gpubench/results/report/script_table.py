"""The page's script, second half: the table with sort, filter and pages, and what starts the page."""

from __future__ import annotations

__all__ = ["TABLE"]

TABLE = r"""
const PAGE = 200;  // rows in the document at a time
const several = (name) => data.texts[name].values.length > 1;
const COLUMNS = [
  { key: "run", title: "Run", words: true, shown: several("run") },
  { key: "workload", title: "Workload", words: true, shown: several("workload") },
  { key: "point", title: "Point", words: true, shown: true },
  { key: "status", title: "Verdict", words: true, shown: true },
  { key: "load", title: "Load", words: true, shown: several("load") },
  { key: "conc", title: "Conc.", digits: 6, shown: true },
  { key: "tput_per_gpu", title: "tok/s/GPU", digits: 5, shown: true },
  { key: "output_tput_per_gpu", title: "Output", digits: 5, shown: true },
  { key: "median_intvty", title: "tok/s/user", digits: 4, shown: true },
  { key: "median_ttft", title: "TTFT p50 s", digits: 4, shown: true },
  { key: "p99_ttft", title: "TTFT p99 s", digits: 4, shown: true },
  { key: "median_tpot", title: "TPOT p50 ms", digits: 4, scale: 1000, shown: true },
  { key: "p99_tpot", title: "TPOT p99 ms", digits: 4, scale: 1000, shown: true },
  { key: "failure_rate", title: "Failed %", digits: 3, scale: 100, shown: true },
  { key: "result", title: "Result", words: true, shown: several("result") },
].filter((column) => column.shown);
const SEARCHED = [
  "run", "workload", "deployment", "point", "load", "status", "reason", "kind", "job_id", "result",
];
const order = new Intl.Collator(undefined, { numeric: true });  // conc16 before conc256
const ORDER = [...Array(data.count).keys()].sort((a, b) =>
  data.texts.run.index[a] - data.texts.run.index[b] ||
  order.compare(text("workload", a), text("workload", b)) ||
  order.compare(text("point", a), text("point", b)));
const state = { sort: null, down: false, page: 0, rows: [] };

function haystack(row) { return SEARCHED.map((name) => text(name, row)).join(" ").toLowerCase(); }

function selected() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const status = byId("status").value;
  const rows = [];
  for (const row of ORDER) {
    if (status && text("status", row) !== status) continue;
    const found = words.length ? haystack(row) : "";
    if (words.every((word) => found.includes(word))) rows.push(row);
  }
  if (state.sort === null) return rows;
  const column = COLUMNS[state.sort];
  const sign = state.down ? -1 : 1;
  return rows.sort((a, b) => {
    if (column.words) return sign * order.compare(text(column.key, a), text(column.key, b));
    const left = figure(column.key, a), right = figure(column.key, b);
    if (left === right) return 0;
    if (left === null || right === null) return left === null ? 1 : -1;  // unknown goes last either way
    return sign * (left - right);
  });
}

function cell(column, row) {
  const made = document.createElement(column.key === "point" ? "th" : "td");
  if (column.key === "point") made.scope = "row";
  if (column.key === "status") {
    const status = text("status", row), reason = text("reason", row);
    made.className = status;
    made.textContent = reason ? status + " (" + reason.replaceAll("_", " ") + ")" : status;
  } else if (column.words) {
    made.textContent = text(column.key, row) || "–";
  } else {
    made.className = "number";
    const value = figure(column.key, row);
    made.textContent = value === null ? "–" : digits(value * (column.scale || 1), column.digits);
  }
  return made;
}

function fillTable() {
  const first = state.page * PAGE;
  const body = document.createElement("tbody");
  for (const row of state.rows.slice(first, first + PAGE)) {
    const line = document.createElement("tr");
    line.dataset.row = row;
    line.append(...COLUMNS.map((column) => cell(column, row)));
    body.append(line);
  }
  byId("rows").tBodies[0].replaceWith(body);
  const last = Math.min(first + PAGE, state.rows.length);
  byId("shown").textContent = state.rows.length === 0
    ? "No row matches the filter."
    : "Rows " + (first + 1) + " to " + last + " of " + state.rows.length +
      (state.rows.length < data.count ? " that match, of " + data.count + " in all." : ".");
  byId("previous").disabled = state.page === 0;
  byId("next").disabled = last >= state.rows.length;
  byId("pager").hidden = state.rows.length <= PAGE;
}

function refilter() { state.page = 0; state.rows = selected(); fillTable(); }

function sortBy(index) {
  if (state.sort === index && state.down) { state.sort = null; state.down = false; }
  else if (state.sort === index) state.down = true;
  else { state.sort = index; state.down = false; }
  COLUMNS.forEach((column, position) => column.head.setAttribute(
    "aria-sort", position !== state.sort ? "none" : state.down ? "descending" : "ascending"));
  refilter();
}

function makeHead() {
  const line = document.createElement("tr");
  COLUMNS.forEach((column, index) => {
    const head = document.createElement("th");
    const button = document.createElement("button");
    head.scope = "col";
    head.setAttribute("aria-sort", "none");
    if (!column.words) head.className = "number";
    button.type = "button";
    button.textContent = column.title;
    button.addEventListener("click", () => sortBy(index));
    head.append(button);
    column.head = head;
    line.append(head);
  });
  byId("rows").tHead.replaceChildren(line);
}

function start() {
  for (const load of data.loads) byId("load").append(new Option(load, load));
  byId("load-label").hidden = data.loads.length < 2;
  for (const id of ["y-metric", "x-intvty", "x-ttft", "load"]) byId(id).addEventListener("change", draw);
  makeHead();
  refilter();
  let waiting = 0;
  byId("filter").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(refilter, data.count > 2000 ? 200 : 0);
  });
  byId("status").addEventListener("change", refilter);
  byId("previous").addEventListener("click", () => { state.page--; fillTable(); });
  byId("next").addEventListener("click", () => { state.page++; fillTable(); });
  const system = matchMedia("(prefers-color-scheme: dark)");
  let kept = null;
  byId("theme").addEventListener("click", () => {
    kept = theme.now === "dark" ? "light" : "dark";
    theme.set(kept, true);
  });
  try { kept = localStorage.getItem("gpubench-theme"); } catch (error) { /* as above */ }
  system.addEventListener("change", (event) => {
    if (!kept) theme.set(event.matches ? "dark" : "light", false);
  });
  theme.set(kept || (system.matches ? "dark" : "light"), false);
}
start();
"""
