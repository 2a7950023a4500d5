"""Point + outcome -> the ingest row. Pure: the same code for a run and for ``gpubench row``.

The first fields are the perf dashboard's own, names and units unchanged; the rest is what it leaves
out. No NaN or infinity is ever written, and a measurement that cannot be trusted has null figures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from pytest_gpubench.bench import statistics
from pytest_gpubench.bench.result import JSON, RawResult
from pytest_gpubench.bench.validity import Problem, expected_output_tokens, validate
from pytest_gpubench.gates import Verdict, verdict
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import Deployment, Point, Role
from pytest_gpubench.results.figures import THROUGHPUTS, divisors, empty_figures, figures
from pytest_gpubench.results.identity import measured_sha256
from pytest_gpubench.results.outcome import Outcome, RunInfo

__all__ = ["DASHBOARD_FIELDS", "build_row", "format_date", "is_figure", "judge_point", "with_verdict"]

DASHBOARD_FIELDS = (
    "date", "device", "conc", "image", "model", "framework", "precision", "isl", "osl", "is_multinode",
    "tp", "dp", "ep", "dp_attention", "disagg", "spec_decoding", "tput_per_gpu", "output_tput_per_gpu",
    "input_tput_per_gpu", "num_nodes", "gpus_per_node", "gpu_count", "nightly",
)  # fmt: skip
"""The dashboard's fields; beside them it takes every latency and interactivity figure."""

# Any latency family, as the dashboard takes them: a newer client may know more than ttft, tpot, itl, e2el.
_FIGURE = re.compile(r"^(?:mean|median|std|min|max|p\d{1,3}(?:\.\d+)?)_[a-z][a-z0-9_]*$")
# These files say nothing of this run, so not even their counts are kept.
_FOREIGN = frozenset({Reason.STALE_RESULT, Reason.UNREADABLE_RESULT})
# Nothing was measured at all: whoever asks, there is no figure to show.
_EMPTY = frozenset({Reason.NOTHING_COMPLETED, Reason.BAD_DURATION}) | _FOREIGN


def build_row(
    point: Point, outcome: Outcome, run: RunInfo, *, keep_untrusted: bool = False
) -> dict[str, JSON]:
    """The row of one point, judged: ``status``, ``reason``, ``message`` and ``violations`` are in it.

    ``keep_untrusted`` keeps the figures of a file that measured something else than was asked (wrong
    load, wrong model, short outputs), for looking at a file; a run leaves them null.
    """
    return judge_point(point, outcome, run, keep_untrusted=keep_untrusted)[0]


def judge_point(
    point: Point, outcome: Outcome, run: RunInfo, *, keep_untrusted: bool = False
) -> tuple[dict[str, JSON], Verdict]:
    """The row of one point and the verdict that stands in it."""
    problems = [] if outcome.failure is not None else _problems(point, outcome)
    reasons = {problem.reason for problem in problems}
    raws = () if reasons & _FOREIGN else outcome.raws
    trusted = outcome.failure is None and (not problems or (keep_untrusted and not reasons & _EMPTY))
    runs = [figures(raw, point.deployment) for raw in raws] if trusted else []
    values = {**empty_figures(), **statistics.medians(runs)}

    row: dict[str, JSON] = _labels(point, raws[0] if raws else None, run, outcome)
    row.update({name: values[name] for name in THROUGHPUTS})
    row.update(_sizes(point))
    row.update({name: value for name, value in values.items() if name not in THROUGHPUTS})
    row.update(_identity(point, outcome, run))
    row.update(_counts(point, raws))
    row["spread"] = {
        name: {"min": found.low, "max": found.high, "relative_iqr": found.relative_iqr}
        for name, found in statistics.spreads(runs).items()
    }
    row.update(_circumstances(outcome, len(raws)))
    row.update(_kind_specific(point, outcome))

    row["known_issue"] = point.gates.known_issue
    judged = verdict(point, row, problems, outcome.failure)
    return with_verdict({key: _finite(value) for key, value in row.items()}, judged), judged


def with_verdict(
    row: Mapping[str, JSON], judged: Verdict, comparison: Mapping[str, JSON] | None = None
) -> dict[str, JSON]:
    """The row with another verdict in it, and with the comparison that led to it."""
    changed = dict(row)
    changed["status"] = judged.status
    changed["reason"] = judged.reason.value if judged.reason else None
    changed["message"] = judged.message or None
    changed["violations"] = [violation.as_json() for violation in judged.violations]
    changed["problems"] = [{"reason": p.reason.value, "message": p.message} for p in judged.problems]
    if comparison is not None:
        changed["comparison"] = dict(comparison)
    return changed


def format_date(seconds: float) -> str:
    """Seconds since the epoch as the dashboard's date, UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def is_figure(name: str) -> bool:
    """True for the fields that hold what was measured and go to the dashboard."""
    return name in THROUGHPUTS or _FIGURE.match(name) is not None


def _problems(point: Point, outcome: Outcome) -> list[Problem]:
    if point.kind == "accuracy":
        if outcome.accuracy:
            return []
        return [Problem(Reason.NOTHING_COMPLETED, "the harness left no score: nothing was measured")]
    if not outcome.raws and point.kind == "serving":
        return [Problem(Reason.NO_RESULT, "the client left no result file")]
    return validate(outcome.raws, point, prefix_cache_hit_rates=outcome.prefix_cache_hit_rates)


def _labels(point: Point, raw: RawResult | None, run: RunInfo, outcome: Outcome) -> dict[str, JSON]:
    deployment, labels, load = point.deployment, point.labels, point.load
    asked = load.concurrency if load is not None else None
    measured = raw.count("max_concurrency") if raw is not None else None
    row: dict[str, JSON] = {
        "date": run.date or (format_date(outcome.ended) if outcome.ended is not None else None),
        "device": labels.device,
        "conc": measured or asked,
        "image": deployment.image,
        "model": _model(raw, deployment),
        "framework": deployment.framework,
        "precision": labels.precision,
        "isl": load.isl if load is not None else None,
        "osl": load.osl if load is not None else None,
        "is_multinode": _flag(labels.is_multinode),
        "tp": labels.tp,
        "ep": 1 if labels.ep is None else labels.ep,
        "dp_attention": _flag(labels.dp_attention),
        "disagg": _flag(labels.disagg),
        "spec_decoding": labels.spec_decoding,
        "nightly": run.nightly,
    }
    if labels.dp is not None:  # the dashboard has the column only where the recipe states it
        row["dp"] = labels.dp
    return row


def _model(raw: RawResult | None, deployment: Deployment) -> str:
    """The recipe's model id, also when the client was given a staged path or a served name for it."""
    found = raw.text("model_id") if raw is not None else None
    if found is None or found in (deployment.model_path, deployment.served_name):
        return deployment.model
    return found


def _sizes(point: Point) -> dict[str, JSON]:
    deployment = point.deployment
    gpus = divisors(deployment)
    row: dict[str, JSON] = {
        "num_nodes": deployment.num_nodes,
        "gpus_per_node": deployment.gpus_per_node,
        "gpu_count": deployment.gpu_count,
        "serving_gpu_count": deployment.serving_gpu_count,
        "per_gpu_basis": gpus.basis,
        "per_gpu_divisors": {"total": gpus.total, "output": gpus.output, "input": gpus.input},
        "parallel": {name: int(size) for name, size in asdict(deployment.parallel).items()},
    }
    if deployment.prefill is not None:
        row.update(_role("prefill", deployment.prefill))
        row.update(_role("decode", deployment.decode))
        transfer = dict(deployment.extra).get("kv-p2p-transfer")
        if transfer is not None:
            row["kv_p2p_transfer"] = transfer
    return row


def _role(name: str, role: Role | None) -> dict[str, JSON]:
    """The fields of one role; without workers (aggregated multi-node) tp and ep are 0, as upstream has it."""
    serves = role is not None and role.workers > 0
    parallel = role.parallel if role is not None else None
    return {
        f"{name}_tp": parallel.tp if parallel and serves else 0,
        f"{name}_pp": parallel.pp if parallel else 1,
        f"{name}_dcp_size": parallel.dcp if parallel else 1,
        f"{name}_pcp_size": parallel.pcp if parallel else 1,
        f"{name}_ep": parallel.ep if parallel and serves else 0,
        f"{name}_dp_attention": _flag(role is not None and role.dp_attention),
        f"{name}_num_workers": role.workers if role is not None else 0,
        f"num_{name}_gpu": role.gpus if role is not None else 0,
    }


def _identity(point: Point, outcome: Outcome, run: RunInfo) -> dict[str, JSON]:
    return {
        "kind": point.kind,
        "workload": point.deployment.recipe,
        "point": point.id,
        "deployment": point.deployment.id,
        "scenario": point.deployment.scenario,
        "run_id": run.run_id,
        "attempt": outcome.attempt,
        "simulated": outcome.simulated,
        "recipe_sha256": run.recipe_sha256,
        "measured_sha256": measured_sha256(point),
        "vllm_version": outcome.vllm_version,
        "vllm_commit": point.deployment.vllm_commit,
        "note": point.labels.note,
    }


def _counts(point: Point, raws: Sequence[RawResult]) -> dict[str, JSON]:
    """Sums over the repetitions: see ``bench/statistics.py`` for why."""
    load = point.load
    asked = load.num_prompts if load is not None else None
    prompts = statistics.total([asked if raw.num_prompts is None else raw.num_prompts for raw in raws])
    completed = statistics.total([raw.completed for raw in raws])
    stated = statistics.total([raw.stated_failed for raw in raws])
    failed = None
    if prompts is not None and completed is not None:
        failed = max(prompts - completed, stated or 0)
    rate = min(1.0, failed / prompts) if failed is not None and prompts else None
    return {
        "num_prompts": _whole(prompts) if raws else asked,
        "completed": _whole(completed),
        "failed": _whole(failed),
        "stated_failed": _whole(stated),
        "failure_rate": rate,
        "expected_output_tokens": (
            None if completed is None else expected_output_tokens(load, int(completed))
        ),
        "total_output_tokens": _whole(statistics.total([raw.number("total_output_tokens") for raw in raws])),
        "total_input_tokens": _whole(statistics.total([raw.number("total_input_tokens") for raw in raws])),
        "duration": statistics.total([raw.number("duration") for raw in raws]),
    }


def _circumstances(outcome: Outcome, repetitions: int) -> dict[str, JSON]:
    known = [rate for rate in outcome.prefix_cache_hit_rates if rate is not None]
    failure = outcome.failure
    return {
        "repetitions": repetitions,
        "seed": outcome.seeds[0] if outcome.seeds else None,
        "seeds": list(outcome.seeds),
        # The worst repetition: the limit holds for each of them.
        "prefix_cache_hit_rate": max(known) if known else None,
        "job_id": outcome.job_id,
        "nodelist": list(outcome.nodes),
        "slurm_version": outcome.slurm_version,
        "gpu_names": list(outcome.gpu_names),
        "driver_version": outcome.driver_version,
        "failed_phase": failure.phase.value if failure is not None and failure.phase is not None else None,
        "phase_seconds": {phase.value: outcome.phase_seconds.get(phase) for phase in Phase},
        "client_exit_code": outcome.client_exit_code,
        "started": outcome.started,
        "ended": outcome.ended,
    }


def _kind_specific(point: Point, outcome: Outcome) -> dict[str, JSON]:
    row: dict[str, JSON] = {}
    if point.task is not None:
        row["task"] = point.task.name
        row["harness"] = point.task.harness
        row["scores"] = [
            {"task": s.task, "metric": s.metric, "value": s.value, "stderr": s.stderr}
            for s in outcome.accuracy
        ]
        row["samples"] = list(outcome.accuracy_samples)
        row["event"] = None
        if outcome.accuracy_source is not None:  # what perf-eval sends for a task
            row["event"] = {
                "kind": "results",
                "source_file": outcome.accuracy_source,
                "workload": point.deployment.recipe,
                "task": point.task.name,
                "data": dict(outcome.accuracy_data),
            }
    if point.slo is not None:
        met = [probe.value for probe in outcome.slo_probes if probe.met]
        row["slo_best"] = max(met) if met else None
        row["slo"] = {
            "over": point.slo.over,
            "low": point.slo.low,
            "high": point.slo.high,
            "ceilings": dict(point.slo.ceilings),
            "probes": [
                {"value": probe.value, "met": probe.met, "figures": dict(probe.figures)}
                for probe in outcome.slo_probes
            ],
        }
    return row


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _finite(value: JSON) -> JSON:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
