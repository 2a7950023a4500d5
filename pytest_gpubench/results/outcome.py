"""What a run of one point yields, before anything judges it: the hand-over from *run* to *result*.

The running part fills an :class:`Outcome`; ``results/row.py`` and ``gates.py`` read it. All of it is
plain data, so a row can be built again from the same outcome without a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpubench.bench.result import JSON, RawResult
from pytest_gpubench.errors import InfraError, LogTail
from pytest_gpubench.reasons import Phase, Reason

__all__ = ["AccuracyScore", "Failure", "Outcome", "RunInfo", "SloProbe"]


@dataclass(frozen=True)
class Failure:
    """Why no trustworthy measurement came about; ``message`` is complete alone."""

    reason: Reason
    message: str
    phase: Phase | None = None
    details: str = ""
    tails: tuple[LogTail, ...] = ()

    @classmethod
    def of(cls, error: InfraError) -> Failure:
        """The failure that an infrastructure error describes."""
        return cls(error.reason, error.message, error.phase, error.details, tuple(error.tails))


@dataclass(frozen=True)
class AccuracyScore:
    """One score of one accuracy task, on the harness's own scale (lm_eval: 0..1)."""

    task: str
    metric: str
    value: float | None
    stderr: float | None = None


@dataclass(frozen=True)
class SloProbe:
    """One probe of an SLO search: ``value`` of the searched axis, whether it met the ceilings, figures."""

    value: float
    met: bool
    figures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What happened to one point. Every field has a default: a point may fail before anything is known.

    ``raws`` holds one raw result per repetition, in order; ``seeds`` and ``prefix_cache_hit_rates`` are
    parallel to it. ``started`` and ``ended`` are seconds since the epoch; ``attempt`` counts from 1.
    """

    raws: tuple[RawResult, ...] = ()
    failure: Failure | None = None
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    vllm_version: str | None = None
    slurm_version: str | None = None
    gpu_names: tuple[str, ...] = ()  # of the head node, as nvidia-smi names them
    driver_version: str | None = None
    prefix_cache_hit_rates: tuple[float | None, ...] = ()
    seeds: tuple[int, ...] = ()
    started: float | None = None
    ended: float | None = None
    simulated: bool = False
    attempt: int = 1
    accuracy: tuple[AccuracyScore, ...] = ()
    accuracy_source: str | None = None  # the harness's result file
    accuracy_data: Mapping[str, JSON] = field(default_factory=dict)  # its content
    accuracy_samples: tuple[str, ...] = ()  # files with what was asked and answered
    slo_probes: tuple[SloProbe, ...] = ()
    client_exit_code: int | None = None  # recorded only: no evidence of success or failure


@dataclass(frozen=True)
class RunInfo:
    """What every row of one run shares. ``date`` fixes the rows' date, else it is when the point ended.

    ``recipe_sha256`` is the one of the recipe at hand; ``provenance`` becomes the ``run`` block.
    """

    run_id: str
    recipe_sha256: str = ""
    nightly: bool = False
    date: str | None = None
    provenance: Mapping[str, object] = field(default_factory=dict)
