"""Run an SLO search on a server: probes are measurements of the point's load at other values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpubench.bench.command import read_result
from pytest_gpubench.bench.result import JSON, RawResult
from pytest_gpubench.bench.validity import validate
from pytest_gpubench.errors import ResultError
from pytest_gpubench.recipe.types import Load, Point, Slo
from pytest_gpubench.results.figures import figures
from pytest_gpubench.results.outcome import SloProbe
from pytest_gpubench.serving.measure import Measured, measure
from pytest_gpubench.serving.search import Figures, search
from pytest_gpubench.serving.server import Server

if TYPE_CHECKING:
    from pytest_gpubench.session import Session

__all__ = ["load_at", "run_search"]


def run_search(
    session: Session, server: Server, point: Point, attempt: int
) -> tuple[tuple[SloProbe, ...], Measured | None]:
    """The probes, and the measurement of the best value, whichever point of this run measured it."""
    slo, load = point.slo, point.load
    if slo is None or load is None:
        raise ValueError(f"{point.id} has no search")
    measured: dict[int, Measured] = {}

    def probe(value: int) -> Figures:
        at = replace(point, id=f"{point.id}-{value}", load=load_at(load, slo, value))
        folder = session.point_folder(point) / f"probe-{value}"
        session.narrator.say(point.deployment, "probe", f"{slo.over} {value}")
        measured[value] = measure(server, at, folder, session.clock, attempt=attempt)
        return _trusted(measured[value].raws, at)

    rows = session.known_rows(point)
    probes = search(slo, probe, {value: _figures_of(row, point) for value, row in rows.items()})
    best = max((int(found.value) for found in probes if found.met), default=None)
    if best is None or best in measured:
        return probes, measured.get(best) if best is not None else None
    return probes, _measured_before(session, point, rows[best])


def _figures_of(row: Mapping[str, JSON], point: Point) -> Figures:
    """Figures of a point that was measured before; none when too many of its requests failed."""
    found = {name: value for name, value in row.items() if isinstance(value, (int, float)) or value is None}
    rate = found.get("failure_rate")
    return {} if rate is None or rate > point.gates.max_failure_rate else found


def _measured_before(session: Session, point: Point, row: Mapping[str, JSON]) -> Measured | None:
    """The raw results that the row of another point of this run was made from; None when they are gone."""
    folder = session.options.results / point.deployment.recipe / str(row["point"])
    paths = sorted(folder.glob("bench-run-*.json")) or [folder / "bench.json"]
    try:
        raws = tuple(read_result(point.deployment.client, path) for path in paths)
    except ResultError:
        return None
    listed, rate, code = row.get("seeds"), row.get("prefix_cache_hit_rate"), row.get("client_exit_code")
    seeds = tuple(seed for seed in listed if isinstance(seed, int)) if isinstance(listed, list) else ()
    rates = (float(rate),) if isinstance(rate, (int, float)) else (None,)
    return Measured(raws, seeds, rates, code if isinstance(code, int) else 0)


def load_at(load: Load, slo: Slo, value: int) -> Load:
    """The load with the searched axis set; prompts per slot stay as the load has them, else ten."""
    if slo.over == "request_rate":
        return replace(load, request_rate=str(value), num_prompts=load.num_prompts or 10 * value)
    per_slot = load.num_prompts / load.concurrency if load.concurrency and load.num_prompts else 10.0
    return replace(load, concurrency=value, num_prompts=max(value, round(per_slot * value)))


def _trusted(raws: tuple[RawResult, ...], point: Point) -> Figures:
    """Figures of a probe; an invalid measurement has none, so that it meets no ceiling."""
    from pytest_gpubench.bench import statistics

    if validate(raws, point):
        return {}
    if any(raw.failure_rate is None or raw.failure_rate > point.gates.max_failure_rate for raw in raws):
        return {}  # short latencies of the few that got through are no capacity
    return statistics.medians([figures(raw, point.deployment) for raw in raws])
