"""Where an allocation's time went: seconds per phase of every deployment that was started. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.reasons import Phase
from pytest_gpubench.results.report.series import number

__all__ = ["Allocation", "allocations"]


@dataclass(frozen=True)
class Allocation:
    """One job (or one start without Slurm). ``seconds`` holds every phase that is known."""

    run: int
    workload: str
    deployment: str
    job_id: str | None
    nodes: tuple[str, ...]
    seconds: Mapping[str, float]

    @property
    def name(self) -> str:
        """What stands beside its bar."""
        return f"{self.deployment} · job {self.job_id}" if self.job_id else self.deployment

    @property
    def measured_share(self) -> float | None:
        """The share of the time with nodes held that was spent measuring; None when nothing was held."""
        held = sum(value for phase, value in self.seconds.items() if phase != Phase.QUEUE.value)
        return self.seconds.get(Phase.BENCH.value, 0.0) / held if held > 0 else None


def allocations(runs: Sequence[Sequence[Mapping[str, JSON]]]) -> list[Allocation]:
    """The allocations in the order of their first rows.

    A row holds what was spent until it was written, so the largest value of each phase is the whole.
    """
    found: dict[tuple[int, str, str, str | None], tuple[dict[str, float], tuple[str, ...]]] = {}
    for run, rows in enumerate(runs):
        for row in rows:
            phases = row.get("phase_seconds")
            known = {
                phase.value: seconds
                for phase in Phase
                if isinstance(phases, dict) and (seconds := number(phases.get(phase.value))) is not None
            }
            if not known:
                continue
            job = row.get("job_id")
            key = (run, str(row.get("workload")), str(row.get("deployment")), str(job) if job else None)
            largest, nodes = found.get(key, ({}, ()))
            for name, value in known.items():
                largest[name] = max(value, largest.get(name, 0.0))
            listed = row.get("nodelist")
            found[key] = (largest, tuple(map(str, listed)) if isinstance(listed, list) and listed else nodes)
    return [Allocation(*key, nodes=nodes, seconds=seconds) for key, (seconds, nodes) in found.items()]
