"""Run an SLO search on a server: probes are measurements of the point's load at other values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpubench.bench.result import RawResult
from pytest_gpubench.bench.validity import validate
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
    """The probes, and the measurement of the best value that was measured here."""
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

    probes = search(slo, probe, session.known_figures(point))
    best = max((int(found.value) for found in probes if found.met), default=None)
    return probes, measured.get(best) if best is not None else None


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
    return statistics.medians([figures(raw, point.deployment) for raw in raws])
