"""The page around the charts: markup, escaped, with the style sheet and the scripts inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pytest_gpubench.results.report.script_charts import CHARTS
from pytest_gpubench.results.report.script_table import TABLE
from pytest_gpubench.results.report.series import X_METRICS, Y_METRICS
from pytest_gpubench.results.report.style import STYLE

__all__ = ["page"]

# The browser itself refuses any request; Plotly's WebGL part compiles functions, hence unsafe-eval.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
_NAMES = {
    "tput_per_gpu": "total tokens",
    "output_tput_per_gpu": "output tokens",
    "input_tput_per_gpu": "input tokens",
    "median_intvty": "median",
    "p99_intvty": "p99",
    "median_ttft": "median",
    "p99_ttft": "p99",
    "mean_ttft": "mean",
}


def page(
    *,
    title: str,
    subtitle: str,
    banner: str,
    tiles: Sequence[tuple[str, str]],
    failures: str,
    provenance: str,
    timeline_note: str,
    data: str,
    plotly: str,
    version: str,
) -> str:
    """The whole document. ``failures`` and ``provenance`` are HTML, ``data`` is JSON safe in a script
    element, all else is plain text.
    """
    warning = f'<p class="banner" role="note">{escape(banner)}</p>' if banner else ""
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in tiles
    )
    # Before the first paint, else a dark page flashes white; the script below then keeps it up to date.
    early = (
        "let t=null;try{t=localStorage.getItem('gpubench-theme')}catch(e){}"
        "document.documentElement.dataset.theme="
        "t||(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light');"
    )
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<script>{early}</script>
</head>
<body>
<a class="skip" href="#table">Skip to the table</a>
<header>
<div><h1>{escape(title)}</h1><p class="muted">{escape(subtitle)}</p></div>
<button type="button" id="theme">Dark mode</button>
</header>
<main>
{warning}
<noscript>
<p class="banner">The charts and the table need JavaScript; nothing is loaded from a network.</p>
</noscript>
<div class="tiles">{shown}</div>
<div class="controls" role="group" aria-label="What the charts show">
{_select("y-metric", "Throughput per GPU", Y_METRICS)}
{_select("x-intvty", "Interactivity", [name for name in X_METRICS if name.endswith("intvty")])}
{_select("x-ttft", "Time to first token", [name for name in X_METRICS if name.endswith("ttft")])}
<label id="load-label">Load<select id="load"><option value="">all</option></select></label>
</div>
<div class="pair">
{_chart("chart-intvty", "Throughput against interactivity", "Further right and higher is better.")}
{_chart("chart-ttft", "Throughput against time to first token", "Further left and higher is better.")}
</div>
<section aria-labelledby="table-title" id="table">
<h2 id="table-title">Points</h2>
<div class="controls" role="search">
<label>Filter (words, all must match)<input type="search" id="filter" autocomplete="off"></label>
<label>Verdict<select id="status"><option value="">all</option>
<option>passed</option><option>failed</option><option>error</option></select></label>
</div>
<p id="shown" class="muted" aria-live="polite"></p>
<div class="scroll" tabindex="0" role="region" aria-labelledby="table-title">
<table id="rows"><thead></thead><tbody></tbody></table>
</div>
<div class="controls pager" id="pager">
<button type="button" id="previous">Previous rows</button><button type="button" id="next">Next rows</button>
</div>
</section>
<section aria-labelledby="timeline-title">
<h2 id="timeline-title">Where the time went</h2>
<p class="muted">{escape(timeline_note)}</p>
<div id="timeline" role="img" aria-label="Seconds per phase of every allocation, as stacked bars"></div>
</section>
<section aria-labelledby="failures-title">
<h2 id="failures-title">Failures</h2>
{failures}
</section>
<section aria-labelledby="provenance-title">
<h2 id="provenance-title">Provenance</h2>
{provenance}
</section>
</main>
<footer>pytest-gpubench {escape(version)}</footer>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>{CHARTS}{TABLE}</script>
</body>
</html>
"""


def _select(element: str, label: str, names: Sequence[str]) -> str:
    options = "".join(f'<option value="{name}">{_NAMES[name]}</option>' for name in names)
    return f'<label>{label}<select id="{element}">{options}</select></label>'


def _chart(element: str, title: str, hint: str) -> str:
    return f"""<section aria-labelledby="{element}-title">
<h2 id="{element}-title">{title}</h2>
<p class="muted">{hint}</p>
<div class="chart" id="{element}" role="img" aria-labelledby="{element}-title"
 aria-describedby="{element}-note"></div>
<p class="muted" id="{element}-note"></p>
</section>"""
