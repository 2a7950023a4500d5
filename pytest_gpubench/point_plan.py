"""Write what a point will run: ``plan.json``, the batch script, and a text for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpubench.bench.accuracy import lm_eval_argv
from pytest_gpubench.bench.bfcl import bfcl_commands
from pytest_gpubench.bench.client import ClientRun, api_url, bench_argv, warmup_prompts
from pytest_gpubench.bench.command import check_parser
from pytest_gpubench.bench.seeds import measure_seed, warmup_seed
from pytest_gpubench.plan.launch import LaunchPlan
from pytest_gpubench.plan.record import Commands, plan_record
from pytest_gpubench.plan.slurm import SlurmPlan
from pytest_gpubench.recipe.types import Point
from pytest_gpubench.results.store import atomic_write
from pytest_gpubench.results.text import encodable

if TYPE_CHECKING:
    from pytest_gpubench.session import Session

__all__ = ["write_plan"]


def write_plan(session: Session, point: Point, values: Mapping[str, str] | None = None) -> str:
    """Write ``plan.json`` and ``commands.txt`` (in a dry run the batch script, too); returns the commands."""
    store = session.store
    deployment = point.deployment
    folder = store.make_dir(deployment.recipe, point.id)
    if not deployment.servable or point.rejected is not None:
        record = plan_record(point, Commands(), environment=session.environment(deployment))
        store.write_plan(deployment.recipe, point.id, record)
        return f"{point.id}: {point.rejected or deployment.unservable_reason or 'cannot be served here'}"
    check_parser(deployment.client)  # before any node is held
    plan = session.launch_plan(deployment)
    script = Path(plan.site.folder) / plan.script_name
    commands = _commands(point, plan, folder, str(script))
    record = plan_record(point, commands, environment=session.environment(deployment), values=values)
    store.write_plan(deployment.recipe, point.id, record)
    if session.options.dry_run:
        atomic_write(script, plan.script.encode())
    lines = [f"{point.id}:", f"  {shlex.join(record['sbatch_argv'] or commands.submit)}"]
    lines += [f"  {shlex.join(argv)}" for argv in record["launch_argv"]]
    if record["bench_argv"]:
        lines.append(f"  {shlex.join(record['bench_argv'])}")
    text = "\n".join(lines)
    atomic_write(folder / "commands.txt", f"{encodable(text)}\n".encode())
    return text


def _commands(point: Point, plan: LaunchPlan, folder: Path, script: str) -> Commands:
    bench: list[str] = []
    warmup: list[str] = []
    recipe = point.deployment.recipe
    if point.load is not None:
        where = plan.in_container(str(folder))
        name = "bench.json" if point.load.repetitions == 1 else "bench-run-1.json"
        seed = point.load.seed if point.load.seed is not None else measure_seed(point.id, recipe, 0)
        bench = bench_argv(point.deployment, point.load, ClientRun(where, name, seed))
        if warmup_prompts(point.deployment, point.load) > 0:
            run = ClientRun(where, "bench-warmup.json", warmup_seed(point.id, recipe, 0), warmup=True)
            warmup = bench_argv(point.deployment, point.load, run)
    if point.task is not None:
        bench = _evaluation(point, plan.in_container(f"{folder}/{point.task.harness}"))
    launched = point.deployment.profile.slurm.launcher is not None and plan.scheduled
    steps = [*plan.commands, *([plan.router_command] if plan.router_command else [])]
    return Commands(
        serve=[] if launched else [rank.argv for rank in plan.ranks],
        bench=bench,
        warmup=warmup,
        submit=plan.submit_argv(script) if isinstance(plan, SlurmPlan) else ["bash", script],
        steps=[] if launched else steps,  # the site's launcher starts what it likes
        scheduled=plan.scheduled,
    )


def _evaluation(point: Point, where: str) -> list[str]:
    assert point.task is not None
    if point.task.harness == "bfcl":
        return bfcl_commands(point.deployment, point.task, api_url(point.deployment), where)[0]
    return lm_eval_argv(point.deployment, point.task, api_url(point.deployment), where)
