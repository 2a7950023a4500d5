"""Rows -> curves: one series per run, deployment and load, each with its Pareto front. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpubench.bench.result import JSON

__all__ = ["X_METRICS", "Y_METRICS", "Series", "load_name", "make_series", "number", "pareto_front"]

Row = Mapping[str, JSON]

Y_METRICS = ("tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu")
"""What can stand on the vertical axis; higher is better."""

X_METRICS = {
    "median_intvty": True,
    "p99_intvty": True,
    "median_ttft": False,
    "p99_ttft": False,
    "mean_ttft": False,
}
"""What can stand on the horizontal axis, and whether higher is better."""


@dataclass(frozen=True)
class Series:
    """``indices`` are positions in the list of rows; ``fronts`` maps ``"<y> <x>"`` to positions too.

    Of a front the positions are ordered by x, ready to be drawn as a line.
    """

    run: int
    workload: str
    deployment: str
    load: str
    indices: tuple[int, ...]
    fronts: Mapping[str, tuple[int, ...]]

    def name(self, *, runs: Sequence[str] = (), workload: bool = False, load: bool = False) -> str:
        """What a legend says: the deployment, and what is needed to tell it from the others."""
        parts = [self.deployment]
        if load:
            parts.append(self.load)
        if workload:
            parts.insert(0, self.workload)
        if runs:
            parts.append(runs[self.run])
        return " · ".join(parts)


def make_series(runs: Sequence[Sequence[Row]]) -> list[Series]:
    """The series of all runs, in the order of their first rows; rows are numbered across the runs.

    Loads are never mixed in one series: a front over several sequence lengths would compare what
    cannot be compared. Rows without figures (errors, accuracy tasks) belong to no series.
    """
    groups: dict[tuple[int, str, str, str], list[int]] = {}
    rows: list[Row] = []
    for run, content in enumerate(runs):
        for row in content:
            rows.append(row)
            if any(number(row.get(metric)) is not None for metric in Y_METRICS):
                key = (run, str(row.get("workload")), str(row.get("deployment")), load_name(row))
                groups.setdefault(key, []).append(len(rows) - 1)
    return [
        Series(*key, indices=tuple(indices), fronts=_fronts(rows, indices)) for key, indices in groups.items()
    ]


def pareto_front(points: Sequence[tuple[float, float]], *, higher_x: bool) -> list[int]:
    """Positions of the points that no other one beats in both x and y, by rising x. Higher y is better.

    Of equal points the first one counts.
    """
    order = sorted(
        range(len(points)), key=lambda i: (-points[i][0] if higher_x else points[i][0], -points[i][1], i)
    )
    front: list[int] = []
    best: float | None = None
    for position in order:  # from the best x on: a point stays if its y is better than all before
        if best is None or points[position][1] > best:
            front.append(position)
            best = points[position][1]
    return front[::-1] if higher_x else front


def load_name(row: Row) -> str:
    """The load as the point ids write it: ``1k1k``, ``8k1k``, ``1000x200``; else the scenario."""
    isl, osl = row.get("isl"), row.get("osl")
    if isinstance(isl, int) and isinstance(osl, int):
        if isl and osl and isl % 1024 == 0 and osl % 1024 == 0:
            return f"{isl // 1024}k{osl // 1024}k"
        return f"{isl}x{osl}"
    return str(row.get("scenario") or row.get("kind") or "other")


def number(value: JSON) -> float | None:
    """A finite figure; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if value - value == 0 else None


def _fronts(rows: Sequence[Row], indices: Sequence[int]) -> dict[str, tuple[int, ...]]:
    fronts: dict[str, tuple[int, ...]] = {}
    for y in Y_METRICS:
        for x, higher in X_METRICS.items():
            known = [
                (index, (x_value, y_value))
                for index in indices
                if (x_value := number(rows[index].get(x))) is not None
                and (y_value := number(rows[index].get(y))) is not None
                # Dropped requests make the others faster: such a point is a dot, never part of a front.
                and not number(rows[index].get("failure_rate"))
            ]
            front = pareto_front([point for _, point in known], higher_x=higher)
            fronts[f"{y} {x}"] = tuple(known[position][0] for position in front)
    return fronts
