"""What a row measured, as a hash and as a key, so that rows of two runs can be matched."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from pytest_gpubench.recipe.types import Deployment, Point, Role

__all__ = ["measured_sha256"]


def measured_sha256(point: Point) -> str:
    """A hash of what is measured: model, serve arguments, sizes, load. Equal for equal measurements.

    Left out on purpose: image and commit (what one compares), hardware and profile (a warning's
    matter), names of recipe, point and load, gates, seeds, paths, deadlines.
    """
    deployment = point.deployment
    content: dict[str, object] = {
        "kind": point.kind,
        "model": deployment.model,
        "framework": deployment.framework,
        "scenario": deployment.scenario,
        "serve_args": _without_paths(deployment),
        "topology": [deployment.num_nodes, deployment.gpus_per_node, asdict(deployment.parallel)],
        "roles": [_role(role) for role in (deployment.prefill, deployment.decode) if role is not None],
        "spec_decoding": point.labels.spec_decoding,
        "precision": point.labels.precision,
    }
    if point.load is not None:
        load = asdict(point.load)
        content["load"] = {
            key: load[key] for key in sorted(load) if key not in ("name", "seed", "max_prefix_cache_hit_rate")
        }
    if point.task is not None:
        content["task"] = asdict(point.task)
    if point.slo is not None:
        content["slo"] = [point.slo.over, point.slo.ceilings]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without_paths(deployment: Deployment) -> list[str]:
    """The serve arguments with a staged path read as the model: staging does not change what is measured."""
    return [
        deployment.model if argument == deployment.model_path else argument
        for argument in deployment.serve_args
    ]


def _role(role: Role) -> list[object]:
    return [role.name, role.workers, asdict(role.parallel), role.nodes, list(role.serve_args)]
