"""``plan.json``: the resolved point as a JSON object, the same from a dry run and from a real one. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gpubench.plan.environment import masked
from pytest_gpubench.plan.shell import fill_all
from pytest_gpubench.recipe.types import Deployment, Gates, Pairs, Parallel, Point, Role

__all__ = ["Commands", "plan_record"]


class Commands:
    """The command lines of a point; empty for one whose framework cannot be served here."""

    def __init__(
        self,
        serve: Sequence[Sequence[str]] = (),
        bench: Sequence[str] = (),
        warmup: Sequence[str] = (),
        submit: Sequence[str] = (),
        steps: Sequence[Sequence[str]] = (),
        *,
        scheduled: bool = True,
    ) -> None:
        self.serve = serve
        self.bench = bench
        self.warmup = warmup
        self.submit = submit
        self.steps = steps
        self.scheduled = scheduled


def plan_record(
    point: Point,
    commands: Commands,
    *,
    environment: Mapping[str, str],
    values: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The JSON object of one point. ``values`` fills run-time references once nodes and ports are known."""
    known = values or {}
    deployment = point.deployment
    load = point.load
    servable = deployment.servable
    steps = commands.steps if servable else ()
    submitted = servable and commands.scheduled and bool(commands.submit)
    return {
        "recipe": deployment.recipe,
        "point": point.id,
        "kind": point.kind,
        "deployment": deployment.id,
        "scenario": deployment.scenario,
        "framework": deployment.framework,
        "servable": servable,
        "unservable_reason": deployment.unservable_reason,
        "model": deployment.model,
        "model_path": deployment.model_path,
        "image": deployment.image,
        "vllm_commit": deployment.vllm_commit,
        "runtime": deployment.runtime,
        "profile": deployment.profile.name,
        "env": masked(environment),
        "serve_args": list(deployment.serve_args),
        "serve_argv": fill_all(commands.serve[0], known) if servable and commands.serve else None,
        "rank_argv": [fill_all(argv, known) for argv in commands.serve] if servable else [],
        "bench_argv": fill_all(commands.bench, known) if servable and commands.bench else None,
        "warmup_argv": fill_all(commands.warmup, known) if servable and commands.warmup else None,
        "num_nodes": deployment.num_nodes,
        "gpus_per_node": deployment.gpus_per_node,
        "gpu_count": deployment.gpu_count,
        "serving_gpu_count": deployment.serving_gpu_count,
        "isl": load.isl if load else None,
        "osl": load.osl if load else None,
        "concurrency": load.concurrency if load else None,
        "num_prompts": load.num_prompts if load else None,
        "repetitions": load.repetitions if load else None,
        "dataset": load.dataset if load else None,
        "backend": load.backend if load else None,
        "task": point.task.name if point.task else None,
        "metadata": {
            "device": point.labels.device,
            "precision": point.labels.precision,
            "tp": point.labels.tp,
            "dp": point.labels.dp,
            "ep": point.labels.ep,
            "is_multinode": point.labels.is_multinode,
            "dp_attention": point.labels.dp_attention,
            "disagg": point.labels.disagg,
            "spec_decoding": point.labels.spec_decoding,
        },
        "gates": gates_record(point.gates),
        "parallel": parallel_record(deployment.parallel),
        "prefill": role_record(deployment, deployment.prefill),
        "decode": role_record(deployment, deployment.decode),
        "source": source_settings(deployment.extra),
        "sbatch_argv": fill_all(commands.submit, known) if submitted else None,
        "srun_argv": [fill_all(argv, known) for argv in steps] if commands.scheduled else [],
        "launch_argv": [fill_all(argv, known) for argv in steps],
        "markers": list(point.markers),
        "rejected": point.rejected,
    }


def gates_record(gates: Gates) -> dict[str, Any]:
    """What must hold, in the row's metric names and units."""
    return {
        "max_failure_rate": gates.max_failure_rate,
        "floors": dict(gates.floors),
        "ceilings": dict(gates.ceilings),
        "references": {
            ref.metric: {"value": ref.value, "lower": ref.lower, "upper": ref.upper}
            for ref in gates.references
        },
        "max_spread": dict(gates.max_spread),
        "accuracy": [list(floor) for floor in gates.accuracy],
        "known_issue": gates.known_issue,
    }


def parallel_record(parallel: Parallel) -> dict[str, int]:
    """``{tp pp dp ep pcp dcp}``."""
    return {
        "tp": parallel.tp,
        "pp": parallel.pp,
        "dp": parallel.dp,
        "ep": parallel.ep,
        "pcp": parallel.pcp,
        "dcp": parallel.dcp,
    }


def role_record(deployment: Deployment, role: Role | None) -> dict[str, Any] | None:
    """Prefill or decode: the source's own keys where it had some, beside ours."""
    if role is None:
        return None
    record: dict[str, Any] = {
        "workers": role.workers,
        "nodes": role.nodes,
        "gpus": role.gpus,
        "dp_attention": role.dp_attention,
        "parallel": parallel_record(role.parallel),
        "serve_args": list(role.serve_args),
        "env": masked(dict(role.env)),
    }
    record.update(source_settings(role.extra))
    return record


def source_settings(extra: Pairs) -> dict[str, Any]:
    """What the recipe's own format says beside our fields (InferenceX: ``num-worker tp ep dp-attn …``)."""
    block: dict[str, Any] = {}
    for name, text in extra:
        try:
            block[name] = json.loads(text)
        except ValueError:
            block[name] = text
    return block
