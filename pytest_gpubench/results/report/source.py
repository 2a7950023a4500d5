"""What a report is made from: one run's rows, with the folder they lie in when there is one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import GpubenchError
from pytest_gpubench.results.store import ResultsStore, read_ingest
from pytest_gpubench.results.text import mask, read_tail

__all__ = ["LogFile", "Source", "load_source", "load_sources"]

Row = Mapping[str, JSON]
Key = tuple[str, str]

# Of 50,000 rows only what a report shows is kept in memory.
_SHOWN = frozenset(
    {
        "attempt", "completed", "conc", "date", "deployment", "device", "disagg", "failed", "failed_phase",
        "failure_rate", "framework", "gates", "gpu_count", "image", "isl", "job_id", "kind", "known_issue",
        "message", "model", "nodelist", "num_nodes", "num_prompts", "osl", "phase_seconds", "point",
        "precision", "reason", "run_id", "scenario", "scores", "simulated", "slo", "slo_best", "started",
        "status", "task", "violations", "vllm_version", "workload",
        "tput_per_gpu", "output_tput_per_gpu", "input_tput_per_gpu",
        "median_ttft", "p99_ttft", "mean_ttft", "median_tpot", "p99_tpot", "median_intvty", "p99_intvty",
    }
)  # fmt: skip
_MAX_LOGS = 12
_PLAN_LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True)
class LogFile:
    """The cleaned and masked last lines of one log of a deployment."""

    name: str
    text: str


@dataclass(frozen=True)
class Source:
    """One run. ``folder`` is its results folder when the logs and plans can be read, else None.

    ``gates`` holds the ``gates`` block of each point's ``plan.json``, where it has one.
    """

    label: str
    run: Mapping[str, JSON]
    rows: Sequence[Row]
    path: str = ""
    folder: Path | None = None
    gates: Mapping[Key, JSON] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def logs(self, workload: str, deployment: str) -> list[LogFile]:
        """The tails of a deployment's logs; ranks and client first, empty without a folder."""
        if self.folder is None or not _plain(workload) or not _plain(deployment):
            return []
        try:
            paths = sorted((self.folder / workload / deployment).glob("*.log"))
        except OSError:
            return []
        tails = ((path.name, mask(read_tail(path), self.secrets)) for path in paths[:_MAX_LOGS])
        return [LogFile(name, text) for name, text in tails if text]


def load_sources(paths: Iterable[Path], *, secrets: Collection[str] = ()) -> list[Source]:
    """Every path as a source, with labels that tell them apart. ``GpubenchError`` names a bad one."""
    sources = [load_source(path, secrets=secrets) for path in paths]
    labels: dict[str, int] = {}
    for index, source in enumerate(sources):
        count = labels[source.label] = labels.get(source.label, 0) + 1
        if count > 1:
            sources[index] = replace(source, label=f"{source.label} ({count})")
    return sources


def load_source(path: Path, *, secrets: Collection[str] = ()) -> Source:
    """An ingest file, or a results folder with one; a folder of an unfinished run gives its rows so far."""
    folder: Path | None = path if path.is_dir() else path.parent
    ingest = path / "ingest.json" if path.is_dir() else path
    if path.is_dir() and not ingest.exists():
        run: Mapping[str, JSON] = {}
        rows: Sequence[Row] = ResultsStore(path).read_rows()
        if not rows:
            raise GpubenchError(f"{path}: no ingest.json and no rows below it; expected a results folder")
    else:
        run, rows = read_ingest(ingest)
    # An ingest file that was copied elsewhere has no logs beside it.
    if folder is not None and not any(_has_folder(folder, row) for row in rows[:50]):
        folder = None
    kept = [{key: value for key, value in row.items() if key in _SHOWN} for row in rows]
    return Source(
        label=_label(path, run, kept),
        run=run,
        rows=kept,
        path=str(path),
        folder=folder,
        gates=_plan_gates(folder, kept) if folder is not None else {},
        secrets=tuple(secrets),
    )


def _label(path: Path, run: Mapping[str, JSON], rows: Sequence[Row]) -> str:
    meta = run.get("meta")
    named = meta.get("label") if isinstance(meta, dict) else None
    run_id = run.get("run_id") or next((row.get("run_id") for row in rows), None)
    return str(named or run_id or path.name or path)


def _has_folder(folder: Path, row: Row) -> bool:
    workload, point = row.get("workload"), row.get("point")
    if not (isinstance(workload, str) and isinstance(point, str) and _plain(workload) and _plain(point)):
        return False
    return (folder / workload / point).is_dir()


def _plan_gates(folder: Path, rows: Sequence[Row]) -> dict[Key, JSON]:
    found: dict[Key, JSON] = {}
    for row in rows:
        workload, point = row.get("workload"), row.get("point")
        if "gates" in row or not (isinstance(workload, str) and isinstance(point, str)):
            continue
        if not (_plain(workload) and _plain(point)):
            continue
        plan = folder / workload / point / "plan.json"
        try:
            if plan.stat().st_size > _PLAN_LIMIT:
                continue
            content = json.loads(plan.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and content.get("gates"):
            found[workload, point] = content["gates"]
    return found


def _plain(name: str) -> bool:
    """One harmless part of a path: a row from elsewhere must not make the report read other files."""
    return bool(name) and "/" not in name and "\0" not in name and name not in {".", ".."}
