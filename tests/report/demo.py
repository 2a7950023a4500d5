"""A made-up sweep: 13 points on 3 deployments, every row marked simulated, built by the row code itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_gpubench.bench.result import JSON, parse_raw
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import Deployment, Gates, Labels, Load, Parallel, Point, Profile
from pytest_gpubench.results.outcome import Failure, Outcome, RunInfo
from pytest_gpubench.results.report import Source
from pytest_gpubench.results.row import build_row
from pytest_gpubench.results.store import ResultsStore

STEM = "demo_sweep"
SWEEP = {
    # deployment: parallel sizes, tok/s/user of one user, tok/s/GPU it tends to, concurrencies
    "tp8": (Parallel(tp=8), 162.0, 1500.0, (1, 4, 16, 64)),
    "tp2-dp4": (Parallel(tp=2, dp=4, ep=8), 118.0, 3300.0, (4, 16, 64, 256, 512)),
    "dp8": (Parallel(dp=8, ep=8), 84.0, 4300.0, (16, 64, 256, 1024)),
}
LAUNCH = {"tp8": 402.0, "tp2-dp4": 431.0, "dp8": 455.0}
GATES = Gates(floors=(("tput_per_gpu", 90.0),), ceilings=(("median_ttft", 1.0), ("p99_ttft", 60.0)))


def demo_rows(run_id: str = "demo-1", *, speed: float = 1.0, failing: bool = True) -> list[dict[str, JSON]]:
    """The rows of one run. ``failing``: the last point of dp8 has no figures but a dead rank."""
    rows = []
    for job, (name, (parallel, alone, ceiling, concurrencies)) in enumerate(SWEEP.items()):
        deployment = Deployment(
            recipe=STEM,
            id=name,
            model="org/Example-120B",
            model_path="org/Example-120B",
            image="vllm/vllm-openai:nightly",
            vllm_commit=None,
            profile=Profile("GB300_SLURM", "gb300"),
            runtime="slurm",
            num_nodes=2,
            gpus_per_node=4,
            gpu_count=8,
            parallel=parallel,
        )
        bench = 0.0
        for concurrency in concurrencies:
            dead = failing and name == "dp8" and concurrency == 1024
            raw = _raw(concurrency, alone * speed, ceiling * speed)
            bench += float(raw["duration"])
            point = Point(
                id=f"{name}-1k1k-conc{concurrency}",
                kind="serving",
                deployment=deployment,
                labels=Labels("gb300", "fp8", tp=8, dp=parallel.dp, ep=parallel.ep, is_multinode=True),
                gates=GATES,
                load=Load("sweep", 1024, 1024, concurrency, 2 * concurrency),
            )
            phases = {
                Phase.QUEUE: 95.0 + 40 * job,
                Phase.IMPORT: 64.0,
                Phase.LOAD: LAUNCH[name],
                Phase.READY: 21.0,
                Phase.BENCH: bench,
                Phase.TEARDOWN: 9.0,
            }
            failure = Failure(
                Reason.SERVER_EXITED,
                "rank 1 on gb300-07 ended with exit code 1 while benchmarking",
                Phase.BENCH,
            )
            outcome = Outcome(
                raws=() if dead else (parse_raw(json.dumps(raw).encode(), "bench.json"),),
                failure=failure if dead else None,
                phase_seconds=phases,
                job_id=str(48211 + job),
                nodes=("gb300-06", "gb300-07"),
                vllm_version="0.0.0+simulated",
                started=1_800_000_000.0,
                ended=1_800_000_000.0 + bench,
                simulated=True,
                seeds=(1,),
            )
            rows.append(build_row(point, outcome, RunInfo(run_id=run_id, recipe_sha256="a" * 64)))
    return rows


def demo_run(run_id: str = "demo-1") -> dict[str, JSON]:
    """A run block as a run writes it."""
    return {
        "run_id": run_id,
        "started": "2027-01-15 08:00:00",
        "simulated": True,
        "package": {"name": "pytest-gpubench", "version": "0.1.0"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "ci": {"system": "buildkite", "url": "https://ci.example/builds/1", "branch": None},
        "images": [{"name": "vllm/vllm-openai:nightly", "digest": None}],
        "meta": {},
    }


def demo_source(run_id: str = "demo-1", **options: Any) -> Source:
    return Source(run_id, demo_run(run_id), demo_rows(run_id, **options))


def demo_folder(folder: Path, run_id: str = "demo-1", **options: Any) -> Path:
    """A results folder as a run leaves it: rows, ingest file, a plan with gates, logs of the dead rank."""
    store = ResultsStore(folder)
    for row in demo_rows(run_id, **options):
        store.write_row(row)
        store.write_plan(STEM, str(row["point"]), {"point": row["point"], "gates": gates_block()})
    store.assemble(demo_run(run_id), run_id=run_id)
    logs = store.make_dir(STEM, "dp8")
    (logs / "head.log").write_text("INFO serving on port 8000\n")
    (logs / "follower-1.log").write_bytes(
        b"Loading weights: 10%\rLoading weights: 100%\n\x1b[31mERROR\x1b[0m NCCL <error> & timeout\n"
    )
    return folder


def gates_block() -> dict[str, JSON]:
    return {"max_failure_rate": 0.0, "floors": dict(GATES.floors), "ceilings": dict(GATES.ceilings)}


def _raw(concurrency: int, alone: float, ceiling: float) -> dict[str, Any]:
    """A server whose users slow each other down once it is full."""
    per_gpu = 1 / (1 / (2 * concurrency * alone / 8) + 1 / ceiling)
    user = min(alone, per_gpu * 8 / 2 / concurrency)
    ttft = 0.045 + 0.0006 * concurrency + (concurrency * alone / 4 / ceiling) ** 1.4 * 0.11
    output = per_gpu * 8 / 2
    tokens = 2 * concurrency * 1024
    return {
        "model_id": "org/Example-120B",
        "num_prompts": 2 * concurrency,
        "max_concurrency": concurrency,
        "completed": 2 * concurrency,
        "failed": 0,
        "duration": tokens / output,
        "total_input_tokens": tokens,
        "total_output_tokens": tokens,
        "request_throughput": output / 1024,
        "output_throughput": output,
        "total_token_throughput": 2 * output,
        **{f"{name}_ttft_ms": 1000 * ttft * share for name, share in SHARES.items()},
        **{f"{name}_tpot_ms": 1000 / user * (0.9 + 0.1 * share) for name, share in SHARES.items()},
    }


SHARES = {"mean": 1.05, "median": 1.0, "p90": 1.6, "p95": 1.9, "p99": 2.4}
