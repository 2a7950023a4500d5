"""Points and raw results for tests: small, valid, and changed one thing at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gpubench.bench.result import RawResult, parse_raw
from pytest_gpubench.recipe.types import Deployment, Gates, Labels, Load, Parallel, Point, Profile, Role
from pytest_gpubench.results.outcome import Outcome, RunInfo

DATA = Path(__file__).parent.parent / "data"
RUN = RunInfo(run_id="run-1", recipe_sha256="a" * 64, date="2026-01-02 03:04:05")


def make_deployment(**changes: Any) -> Deployment:
    values: dict[str, Any] = {
        "recipe": "flash",
        "id": "tp2-dp4",
        "model": "org/Model-7B",
        "model_path": "org/Model-7B",
        "image": "vllm/vllm-openai:nightly",
        "vllm_commit": None,
        "profile": Profile("GB300_SLURM", "gb300"),
        "runtime": "slurm",
        "num_nodes": 2,
        "gpus_per_node": 4,
        "gpu_count": 8,
        "parallel": Parallel(tp=2, dp=4),
    }
    return Deployment(**{**values, **changes})


def make_load(**changes: Any) -> Load:
    values: dict[str, Any] = {"name": "load", "isl": 1024, "osl": 1024, "concurrency": 64, "num_prompts": 128}
    return Load(**{**values, **changes})


def make_point(
    *,
    load: Load | None = None,
    deployment: Deployment | None = None,
    gates: Gates | None = None,
    labels: Labels | None = None,
    kind: str = "serving",
    **more: Any,
) -> Point:
    return Point(
        id="tp2-dp4-1k1k-conc64",
        kind=kind,
        deployment=deployment or make_deployment(),
        labels=labels or Labels(device="gb300", precision="fp8", tp=2, dp=4),
        gates=gates or Gates(),
        load=(load or make_load()) if kind != "accuracy" else None,
        **more,
    )


def good_json(**changes: Any) -> dict[str, Any]:
    """A result of 128 prompts of 1024/1024 in 64 s; a change of None to ... takes the key out."""
    values: dict[str, Any] = {
        "model_id": "org/Model-7B",
        "num_prompts": 128,
        "max_concurrency": 64,
        "duration": 64.0,
        "completed": 128,
        "failed": 0,
        "total_input_tokens": 131072,
        "total_output_tokens": 131072,
        "request_throughput": 2.0,
        "output_throughput": 2048.0,
        "total_token_throughput": 4096.0,
        "mean_ttft_ms": 500.0,
        "p99_ttft_ms": 1000.0,
        "mean_tpot_ms": 20.0,
        "p99_tpot_ms": 25.0,
    }
    merged = {**values, **changes}
    return {key: value for key, value in merged.items() if value is not ...}


def raw_of(content: Mapping[str, Any], path: str = "bench.json") -> RawResult:
    return parse_raw(json.dumps(dict(content)).encode(), path)


def good_raw(**changes: Any) -> RawResult:
    return raw_of(good_json(**changes))


def outcome_of(*contents: Mapping[str, Any], **more: Any) -> Outcome:
    return Outcome(raws=tuple(raw_of(content) for content in contents), **more)


def role(name: str, workers: int, parallel: Parallel, **more: Any) -> Role:
    return Role(name=name, workers=workers, parallel=parallel, nodes=1, **more)
