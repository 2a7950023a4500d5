"""Sources -> one HTML file. Plotly is an optional extra and is loaded only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_gpubench import __version__
from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError
from pytest_gpubench.results.report.failures import failures_html
from pytest_gpubench.results.report.page import page
from pytest_gpubench.results.report.payload import MAX_ALLOCATIONS, embedded_json, make_payload
from pytest_gpubench.results.report.provenance_html import provenance_html
from pytest_gpubench.results.report.series import number
from pytest_gpubench.results.report.source import Source
from pytest_gpubench.results.report.timeline import allocations
from pytest_gpubench.results.store import atomic_write

__all__ = ["build_report", "write_report"]

SIMULATED = (
    "Simulated: these rows come from the mocked Slurm and the simulated vLLM. The figures show how the "
    "report works; they measure nothing."
)
PARTLY_SIMULATED = (
    "Some of these rows are simulated (mocked Slurm, simulated vLLM): their figures measure nothing."
)


def build_report(sources: Sequence[Source], *, title: str | None = None) -> str:
    """One self-contained HTML document; ``GpubenchError`` without Plotly or without any row."""
    rows = [row for source in sources for row in source.rows]
    if not rows:
        raise GpubenchError("nothing to report: the sources hold no rows")
    return page(
        title=title or _title(rows),
        subtitle=_subtitle(sources, rows),
        banner=_banner(rows),
        tiles=_tiles(sources, rows),
        failures=failures_html(sources),
        provenance=provenance_html(sources),
        timeline_note=_timeline_note(sources),
        data=embedded_json(make_payload(sources)),
        plotly=_plotly(),
        version=__version__,
    )


def write_report(path: Path, sources: Sequence[Source], *, title: str | None = None) -> Path:
    """Build the report and write it in one piece."""
    atomic_write(path, build_report(sources, title=title).encode("utf-8", "replace"))
    return path


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise GpubenchError(
            "the report needs Plotly, an optional extra: pip install 'pytest-gpubench[report]'"
        ) from None
    return str(get_plotlyjs())


def _title(rows: Sequence[Mapping[str, JSON]]) -> str:
    names = list(dict.fromkeys(str(row.get("workload")) for row in rows))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Serving benchmark: {shown}"


def _subtitle(sources: Sequence[Source], rows: Sequence[Mapping[str, JSON]]) -> str:
    models = list(dict.fromkeys(str(row["model"]) for row in rows if row.get("model")))
    devices = list(dict.fromkeys(str(row["device"]) for row in rows if row.get("device")))
    dates = sorted(str(row["date"]) for row in rows if row.get("date"))
    parts = [", ".join(models[:3]), " and ".join(devices[:4])]
    if dates:
        parts.append(f"{dates[0]} UTC" if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]} UTC")
    if len(sources) > 1:
        parts.append(f"{len(sources)} runs")
    return " · ".join(part for part in parts if part)


def _banner(rows: Sequence[Mapping[str, JSON]]) -> str:
    simulated = sum(1 for row in rows if row.get("simulated"))
    return "" if not simulated else SIMULATED if simulated == len(rows) else PARTLY_SIMULATED


def _tiles(sources: Sequence[Source], rows: Sequence[Mapping[str, JSON]]) -> list[tuple[str, str]]:
    counts = {
        status: sum(1 for row in rows if row.get("status") == status)
        for status in ("passed", "failed", "error")
    }
    tiles = [("points", f"{len(rows)}"), ("passed", f"{counts['passed']}")]
    tiles += [
        (f"{name}", f"{counts[key]}") for key, name in (("failed", "missed a gate"), ("error", "errors"))
    ]
    if len(sources) > 1:
        tiles.insert(0, ("runs", f"{len(sources)}"))
    for key, name, best in (
        ("tput_per_gpu", "best tok/s/GPU", max),
        ("median_intvty", "best tok/s/user", max),
        ("median_ttft", "best TTFT, s", min),
    ):
        values = [value for row in rows if (value := number(row.get(key))) is not None]
        if values:
            tiles.append((name, f"{best(values):.4g}"))
    return tiles


def _timeline_note(sources: Sequence[Source]) -> str:
    bars = allocations([source.rows for source in sources])
    if not bars:
        return "The rows hold no times of phases."
    held = [
        sum(value for phase, value in bar.seconds.items() if phase != "queue") * max(1, len(bar.nodes))
        for bar in bars
    ]
    measured = [bar.seconds.get("bench", 0.0) * max(1, len(bar.nodes)) for bar in bars]
    note = f"{len(bars)} allocation{'s' if len(bars) > 1 else ''}, {sum(held):.4g} node-seconds held"
    if sum(held) > 0:
        note += f", {sum(measured) / sum(held):.0%} of them measuring"
    if len(bars) > MAX_ALLOCATIONS:
        note += f". The first {MAX_ALLOCATIONS} are drawn"
    return f"{note}."
