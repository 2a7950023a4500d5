"""The page's script, first half: data, theme, and the charts. Needs Plotly loaded before it."""

from __future__ import annotations

__all__ = ["CHARTS"]

CHARTS = r"""
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const text = (name, row) => data.texts[name].values[data.texts[name].index[row]];
const figure = (name, row) => data.numbers[name][row];
const byId = (id) => document.getElementById(id);

// Hues by deployment (Okabe and Ito's, which colour-blind people tell apart), symbols by run.
const HUES = {
  light: ["#0072b2", "#d55e00", "#007f5f", "#a8327e", "#8a6d00", "#3b7ea8", "#5b4bb5", "#4d4d4d"],
  dark: ["#56b4e9", "#ff9b50", "#2fd3a2", "#ee8fc4", "#f0d442", "#9ad0f0", "#b3a5ff", "#c9ced8"],
};
const PHASE_HUES = {
  light: ["#c3c9d3", "#b794f4", "#f0a04b", "#e2c94a", "#1f8a5b", "#7f8a9b"],
  dark: ["#525c6c", "#8b6bd6", "#c97a2c", "#b39b2a", "#2fae78", "#8d99ab"],
};
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const TITLES = {
  tput_per_gpu: "total tok/s/GPU", output_tput_per_gpu: "output tok/s/GPU",
  input_tput_per_gpu: "input tok/s/GPU", median_intvty: "interactivity, median (tok/s/user)",
  p99_intvty: "interactivity, p99 (tok/s/user)", median_ttft: "TTFT, median (s)", p99_ttft: "TTFT, p99 (s)",
  mean_ttft: "TTFT, mean (s)",
};
const WEBGL_FROM = 3000;  // SVG markers beyond this many make a page that cannot be scrolled
const LINES_SHOWN = 8;

const theme = {
  get now() { return document.documentElement.dataset.theme; },
  set(name, keep) {
    document.documentElement.dataset.theme = name;
    const button = byId("theme");
    button.textContent = name === "dark" ? "Light mode" : "Dark mode";
    if (keep) {
      try { localStorage.setItem("gpubench-theme", name); } catch (error) { /* file:// may refuse */ }
    }
    draw();
  },
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function layout(extra) {
  const axis = {
    gridcolor: colour("grid"), zerolinecolor: colour("grid"), linecolor: colour("line"), automargin: true,
    tickfont: { color: colour("muted") },
  };
  const merged = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 64, r: 18, t: 30, b: 52 }, hovermode: "closest",
    hoverlabel: {
      bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") }, align: "left",
    },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("accent") },
    legend: { orientation: "h", y: -0.17, yanchor: "top", x: 0, font: { size: 12 } },
    ...extra,
  };
  for (const key of ["xaxis", "yaxis"]) merged[key] = { ...axis, ...(extra[key] || {}) };
  return merged;
}
const OPTIONS = {
  responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

// Number() a second time drops trailing zeros and an exponent that is not needed.
const digits = (value, count) =>
  value === null || value === undefined ? "–" : String(Number(Number(value).toPrecision(count)));
const passed = (row) => text("status", row) === "passed";
const escaped = (value) =>
  String(value).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function hover(row) {
  const value = (name, count) => digits(figure(name, row), count);
  const reason = text("reason", row);
  const verdict = text("status", row) + (reason ? " (" + reason + ")" : "");
  return "<b>" + escaped(text("point", row)) + "</b>" +
    "<br>concurrency " + value("conc", 6) + ", " + escaped(text("load", row)) +
    "<br>" + value("tput_per_gpu", 5) + " total, " + value("output_tput_per_gpu", 5) + " output tok/s/GPU" +
    "<br>" + value("median_intvty", 4) + " tok/s/user" +
    "<br>TTFT " + value("median_ttft", 4) + " s, p99 " + value("p99_ttft", 4) + " s" +
    "<br>failed " + digits(100 * (figure("failure_rate", row) || 0), 3) + " %, " + escaped(verdict) +
    "<br>" + escaped(text("run", row));
}

// A gate far outside the points would squeeze them into a corner: the note names it instead of a line.
const near = (limit, low, high) => limit.value <= 1.5 * high && limit.value >= low / 1.5;
const limitsOf = (metric) => data.limits.filter((limit) => limit.metric === metric);

// A label stands where its chart has no points: curves fall to the right, TTFT rises from the left.
function limitShape(limit, axis, chart) {
  const left = axis === "y" && chart === "chart-intvty";
  return {
    type: "line", layer: "above",
    x0: axis === "x" ? limit.value : 0, x1: axis === "x" ? limit.value : 1,
    y0: axis === "y" ? limit.value : 0, y1: axis === "y" ? limit.value : 1,
    xref: axis === "x" ? "x" : "paper", yref: axis === "y" ? "y" : "paper",
    line: { color: colour("bad"), width: 1.5, dash: "dash" },
    label: {
      text: escaped(limit.label), font: { color: colour("bad"), size: 11 }, padding: 4,
      textposition: axis === "x" ? "middle" : left ? "start" : "end", yanchor: "bottom",
      xanchor: axis === "x" ? "center" : left ? "left" : "right", textangle: axis === "x" ? -90 : 0,
    },
  };
}

function axisOf(metric, values, limits) {
  const all = [...values, ...limits.map((limit) => limit.value)];
  let low = Infinity, high = 0;
  for (const value of all) { low = Math.min(low, value); high = Math.max(high, value); }
  const wide = metric.endsWith("ttft") && low > 0 && high / low > 30;
  return {
    title: { text: TITLES[metric] + (wide ? ", logarithmic" : "") }, type: wide ? "log" : "linear",
    range: wide ? [Math.log10(low) - 0.1, Math.log10(high) + 0.1] : [0, 1.08 * (high || 1)],
  };
}

function seriesTraces(series, x, y, type) {
  const hue = HUES[theme.now][series.hue % 8];
  const symbol = SYMBOLS[series.run % SYMBOLS.length];
  const card = colour("card");
  const front = series.fronts[y + " " + x];
  const rows = series.rows.filter((row) => figure(x, row) !== null && figure(y, row) !== null);
  const made = [];
  if (front.length > 1) made.push({
    type, mode: "lines", name: series.name, legendgroup: series.name, meta: "front", hoverinfo: "skip",
    x: front.map((row) => figure(x, row)), y: front.map((row) => figure(y, row)),
    line: { color: hue, width: 2, dash: type === "scatter" ? DASHES[series.run % DASHES.length] : "solid" },
  });
  if (rows.length) made.push({
    type, mode: "markers", name: series.name, legendgroup: series.name, meta: "points",
    showlegend: front.length < 2,
    x: rows.map((row) => figure(x, row)), y: rows.map((row) => figure(y, row)), customdata: rows,
    text: rows.map(hover), hovertemplate: "%{text}<extra></extra>",
    marker: {
      color: hue, size: type === "scatter" ? 9 : 5,
      symbol: rows.map((row) => symbol + (passed(row) ? "" : "-open")),
      line: {
        width: rows.map((row) => passed(row) ? 1 : 2.5), color: rows.map((row) => passed(row) ? card : hue),
      },
    },
  });
  return made;
}

function drawCurve(id, x, y) {
  const load = byId("load").value;
  const shown = data.series.filter((series) => !load || series.load === load);
  const rows = shown.flatMap((series) => series.rows)
    .filter((row) => figure(x, row) !== null && figure(y, row) !== null);
  byId(id).hidden = !rows.length;
  if (!rows.length) {
    byId(id + "-note").textContent = "No row has both figures under this load: there is nothing to draw.";
    return;
  }
  const type = rows.length > WEBGL_FROM ? "scattergl" : "scatter";
  const shapes = [], axes = {}, far = [];
  for (const [axis, metric] of [["x", x], ["y", y]]) {
    const values = rows.map((row) => figure(metric, row));
    let low = Infinity, high = 0;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    const limits = limitsOf(metric);
    const drawn = limits.filter((limit) => near(limit, low, high)).slice(0, LINES_SHOWN);
    far.push(...limits.filter((limit) => !drawn.includes(limit)).map((limit) => limit.label));
    shapes.push(...drawn.map((limit) => limitShape(limit, axis, id)));
    axes[axis + "axis"] = axisOf(metric, values, drawn);
  }
  const traces = shown.flatMap((series) => seriesTraces(series, x, y, type));
  Plotly.react(byId(id), traces, layout({ ...axes, shapes, showlegend: true }), OPTIONS);
  byId(id + "-note").textContent = rows.length + " of " + data.count + " rows are drawn" +
    (rows.length < data.count ? "; the others lack one of the two figures or are of another load" : "") +
    ". Lines are Pareto fronts, hollow markers missed a gate" +
    (shapes.length ? ", dashed lines are gates" : "") + "." +
    (far.length ? " Gates without a line: " + far.slice(0, LINES_SHOWN).join("; ") + "." : "");
}

function drawTimeline() {
  const bars = data.allocations;
  const chart = byId("timeline");
  if (!bars.length) return;
  const phases = ["queue", "import", "load", "ready", "bench", "teardown"];
  chart.style.height = 110 + 34 * bars.length + "px";
  const names = bars.map((bar, index) => index + 1 + ". " + bar.name);
  const details = bars.map((bar) => escaped(bar.nodes.join(" ")) +
    (bar.share === null ? "" : "<br>" + digits(100 * bar.share, 3) + " % of the held time was measuring"));
  Plotly.react(chart, phases.map((phase, index) => ({
    type: "bar", orientation: "h", name: phase, y: names, x: bars.map((bar) => bar.seconds[phase] ?? 0),
    marker: { color: PHASE_HUES[theme.now][index] },
    text: details, textposition: "none",
    hovertemplate: "%{y}<br>" + phase + " %{x:.4~r} s<br>%{text}<extra></extra>",
  })), layout({
    barmode: "stack", bargap: 0.35, xaxis: { title: { text: "seconds" } },
    yaxis: { autorange: "reversed", tickfont: { color: colour("ink"), size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("accent") },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
    margin: { l: 20, r: 18, t: 34, b: 46 },
  }), OPTIONS);
}

function draw() {
  const y = byId("y-metric").value;
  drawCurve("chart-intvty", byId("x-intvty").value, y);
  drawCurve("chart-ttft", byId("x-ttft").value, y);
  drawTimeline();
}
"""
