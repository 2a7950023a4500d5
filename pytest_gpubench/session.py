"""One process's run: options, recipes, Slurm tools, the server pool, the results store, wired together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpubench.collect import RecipeCatalog
from pytest_gpubench.errors import GpubenchError, InfraError
from pytest_gpubench.lookahead import LookAhead
from pytest_gpubench.options import Options
from pytest_gpubench.plan.environment import process_environment
from pytest_gpubench.plan.launch import LaunchPlan, Site
from pytest_gpubench.plan.local import LocalPlan, plan_local
from pytest_gpubench.plan.slurm import SlurmPlan, plan_slurm
from pytest_gpubench.point_run import PointRun
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import Deployment, Point
from pytest_gpubench.serving.heartbeat import Heartbeat
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.serving.pool import ServerPool
from pytest_gpubench.serving.probe import HttpProbe
from pytest_gpubench.serving.server import Server
from pytest_gpubench.workers import WorkerRoll
from pytest_gpubench.world import Clock, CommandRunner, SystemClock, SystemRunner

if TYPE_CHECKING:
    from pytest_gpubench.bench.result import JSON
    from pytest_gpubench.results.compare import Baseline, Rule
    from pytest_gpubench.results.outcome import RunInfo
    from pytest_gpubench.results.store import ResultsStore
    from pytest_gpubench.serving.backend import Backend
    from pytest_gpubench.serving.slurm_backend import SlurmTools
    from pytest_gpubench.slurm.journal import JournalEntry

__all__ = ["PointRun", "RunIdentity", "Session", "session_of"]

SESSION = pytest.StashKey["Session"]()
RECALL_SECONDS = 60.0
"""How long an interrupted worker may take, beside the release of its nodes."""


def session_of(config: pytest.Config) -> Session:
    """The session of this pytest run; present once a recipe is selected."""
    return config.stash[SESSION]


@dataclass(frozen=True)
class RunIdentity:
    """What all processes of one run share."""

    run_id: str
    attempt: int = 1
    worker: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


class Session:
    """Made once per process; expensive parts come to life when first asked for."""

    def __init__(
        self,
        options: Options,
        catalog: RecipeCatalog,
        identity: RunIdentity,
        *,
        checkout: Path,
        narrator: Narrator,
        interrupts: Interrupts,
        clock: Clock | None = None,
        runner: CommandRunner | None = None,
    ) -> None:
        self.options = options
        self.catalog = catalog
        self.identity = identity
        self.checkout = checkout
        self.narrator = narrator
        self.interrupts = interrupts
        self.clock = clock or SystemClock()
        self.env = dict(identity.env) or dict(os.environ)
        self.runner = runner or SystemRunner(self.env)
        self.heartbeat = Heartbeat(interval=max(0.5, min(5.0, options.heartbeat_limit / 6)))
        self.pool = ServerPool(
            self._make_server,
            start_attempts=1 + options.retry_infra,
            can_host=self._can_host,
            max_nodes=options.max_nodes,
            on_release=self._released,
        )
        self.workers = WorkerRoll(options.results, identity.run_id)
        self.ahead = LookAhead(lambda: self._known)
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.started = self.clock.time()
        self._jobs = 0
        self._plans: dict[str, LaunchPlan] = {}

    # -- parts ---------------------------------------------------------------------------------

    @cached_property
    def store(self) -> ResultsStore:
        """The results folder; secrets are masked in all that is written to it."""
        from pytest_gpubench.results.store import ResultsStore

        return ResultsStore(self.options.results, secrets=self.secrets)

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """What must not be shown: values of secret names in the caller's environment and in the recipes'."""
        from pytest_gpubench.results.text import secret_values

        recipes = self.catalog.loaded()
        named = {point.deployment.env for recipe in recipes for point in recipe.points}
        found = {value for env in (self.env, *map(dict, named)) for value in secret_values(env)}
        return tuple(sorted(found, key=lambda value: (-len(value), value)))

    @cached_property
    def _known(self) -> dict[tuple[str, str], float]:
        from pytest_gpubench.plan.cost import measured_seconds

        return measured_seconds(self.store.read_rows()) if self.options.results.is_dir() else {}

    @cached_property
    def probe(self) -> HttpProbe:
        """HTTP questions."""
        return HttpProbe()

    @cached_property
    def tools(self) -> SlurmTools:
        """Slurm client, poller, journal, heartbeat."""
        from pytest_gpubench.serving.slurm_backend import SlurmTools
        from pytest_gpubench.slurm.client import CliSlurm, SlurmTimeouts
        from pytest_gpubench.slurm.journal import Journal, journal_folder
        from pytest_gpubench.slurm.poller import JobPoller

        # A release asks again itself, within its own deadline.
        client = CliSlurm(self.runner, self.clock, env=self.env, timeouts=SlurmTimeouts(cancel=0.0))
        return SlurmTools(
            client=client,
            poller=JobPoller(
                client,
                self.clock,
                min_interval=self.options.poll_interval or (0.3 if self.simulated else 2.0),
                share=self.options.results / ".gpubench" / "poll" if self.identity.worker else None,
            ),
            runner=self.runner,
            clock=self.clock,
            journal=Journal(journal_folder(self.options.results), warn=self.warnings.append),
            heartbeat=self.heartbeat,
            interrupts=self.interrupts,
        )

    @cached_property
    def pyxis(self) -> bool:
        """Whether srun knows Pyxis's options; assumed when there is no srun to ask (a dry run)."""
        answer = self.runner.run(["srun", "--help"], timeout=30.0)
        return answer.missing or not answer.ok or "--container-image" in answer.stdout + answer.stderr

    # -- plans ---------------------------------------------------------------------------------

    def point_folder(self, point: Point) -> Path:
        """``<results>/<recipe>/<point>``."""
        return self.options.results / point.deployment.recipe / point.id

    def deployment_folder(self, deployment: Deployment) -> Path:
        """``<results>/<recipe>/<deployment>``."""
        return self.options.results / deployment.recipe / deployment.id

    def environment(self, deployment: Deployment) -> dict[str, str]:
        """Name -> value that every process of the deployment relies on."""
        return process_environment(deployment, self.env)

    def launch_plan(self, deployment: Deployment, attempt: int = 1) -> LaunchPlan:
        """The plan of the deployment's ``attempt``-th start; the first one is what ``plan.json`` shows."""
        key = f"{deployment.recipe}/{deployment.id}/{attempt}"
        plan = self._plans.get(key)
        if plan is None:
            self._jobs += 1
            plan = self._plans[key] = self._plan(deployment)
        return plan

    def _plan(self, deployment: Deployment) -> LaunchPlan:
        site = Site(
            folder=str(self.deployment_folder(deployment)),
            checkout=str(self.checkout),
            job_name=self._job_name(deployment),
            caller_env=self.env,
            heartbeat_limit=self.options.heartbeat_limit,
        )
        if deployment.runtime != "slurm" and not self.options.mock:
            return plan_local(deployment, site)
        runtime = deployment.profile.container.runtime
        pyxis = runtime == "pyxis" or (runtime == "auto" and self.pyxis)
        return plan_slurm(deployment, replace(site, pyxis=pyxis))

    def _job_name(self, deployment: Deployment) -> str:
        identity = self.identity
        return (
            f"gpubench-{deployment.recipe}-{identity.run_id}-{identity.attempt}-{identity.worker}{self._jobs}"
        )

    # -- use -----------------------------------------------------------------------------------

    def point_run(self, item: pytest.Item, point: Point) -> PointRun:
        """The run of one point."""
        return PointRun(self, item, point)

    def run_info(self, point: Point) -> RunInfo:
        """What the rows of this run share."""
        from pytest_gpubench.results.outcome import RunInfo

        return RunInfo(
            run_id=self.identity.run_id,
            recipe_sha256=self.catalog.named(point.deployment.recipe).sha256,
            nightly=_truthy(self.env.get("NIGHTLY", "")),
        )

    def known_rows(self, point: Point) -> dict[int, dict[str, JSON]]:
        """Concurrency -> row of what this run has measured on the same deployment and lengths."""
        load = point.load
        found: dict[int, dict[str, JSON]] = {}
        if load is None or point.slo is None or point.slo.over != "concurrency":
            return found
        for row in self.store.read_rows():
            if row.get("run_id") != self.identity.run_id or row.get("kind") != "serving":
                continue
            if row.get("deployment") != point.deployment.id or row.get("workload") != point.deployment.recipe:
                continue
            conc = row.get("conc")
            if (row.get("isl"), row.get("osl")) != (load.isl, load.osl) or not isinstance(conc, int):
                continue
            if row.get("reason") in (None, "gate_missed") and row.get("status") != "error":
                found[conc] = dict(row)
        return found

    def has_valid_row(self, point: Point) -> bool:
        """A row that passed or failed on its merits for the same recipe text, point and image."""
        recipe = self.catalog.named(point.deployment.recipe)
        row = self.store.valid_row(
            recipe.stem,
            point.id,
            recipe_sha256=recipe.sha256,
            image=point.deployment.image,
            simulated=self.simulated,
        )
        return row is not None

    def _make_server(self, deployment: Deployment, attempt: int) -> Server:
        from pytest_gpubench.slurm.environment import clean_env

        plan = self.launch_plan(deployment, attempt)
        local = isinstance(plan, LocalPlan)
        environment = clean_env(self.env, self.environment(deployment), local=local)
        backend: Backend
        if isinstance(plan, SlurmPlan):
            from pytest_gpubench.serving.site_backend import SiteBackend
            from pytest_gpubench.serving.slurm_backend import SlurmBackend

            launched = deployment.profile.slurm.launcher is not None
            backend = (SiteBackend if launched else SlurmBackend)(plan, self.tools, environment, attempt)
        else:
            from pytest_gpubench.serving.local_backend import LocalBackend

            assert isinstance(plan, LocalPlan)
            backend = LocalBackend(
                plan, self.runner, self.clock, self.heartbeat, self.interrupts, environment, attempt
            )
        return Server(deployment, backend, self.probe, self.clock, self.narrator)

    def _released(self, server: Server, confirmed: bool) -> None:
        """Leave what the allocation cost beside its logs; every process of a run leaves its own."""
        nodes = len(server.nodes) or server.deployment.num_nodes
        record: dict[str, JSON] = {
            "run_id": self.identity.run_id,
            "job_id": server.backend.job_id,
            "deployment": server.deployment.id,
            "nodes": list(server.nodes),
            "released": confirmed,
            "node_seconds": server.held_seconds * nodes,
            "measuring_node_seconds": server.timings.seconds.get(Phase.BENCH, 0.0) * nodes,
            "phase_seconds": {phase.value: seconds for phase, seconds in server.timings.seconds.items()},
        }
        folder = self.deployment_folder(server.deployment)
        try:
            self.store.write_json(folder / f"allocation-{server.backend.job_id}.json", record)
        except GpubenchError as err:
            self.warnings.append(str(err))

    def _can_host(self, server: Server, deployment: Deployment) -> bool:
        """Whether the nodes of ``server`` can go to ``deployment`` without a new allocation."""
        from pytest_gpubench.serving.slurm_backend import SlurmBackend
        from pytest_gpubench.slurm.environment import clean_env

        plan = self.launch_plan(deployment)
        if not isinstance(server.backend, SlurmBackend) or not isinstance(plan, SlurmPlan):
            return False
        local = isinstance(plan, LocalPlan)
        environment = clean_env(self.env, self.environment(deployment), local=local)
        return server.backend.can_host(plan, environment, self.ahead.cost_of(deployment))

    def reap(self) -> None:
        """Cancel what earlier runs, or workers of this one, that are gone have left behind; bounded."""
        from pytest_gpubench.cli.reap import run as reap
        from pytest_gpubench.slurm.client import CliSlurm
        from pytest_gpubench.slurm.journal import journal_folder

        if not journal_folder(self.options.results).is_dir():
            return

        def say(line: str) -> None:
            if "left alone" not in line and "no job is left" not in line:
                self.warnings.append(line)

        arguments = ["--results", str(self.options.results), "--timeout", "60"]
        with self.interrupts.shield():
            client = CliSlurm(self.runner, self.clock, env=self.env)
            reap(arguments, client=client, clock=self.clock, say=say)

    def recall_workers(self) -> None:
        """Let xdist workers that are still at work give their nodes back and write their rows; bounded."""
        releases = [
            point.deployment.deadlines.teardown for recipe in self.catalog.loaded() for point in recipe.points
        ]
        left = self.workers.recall(self.clock, RECALL_SECONDS + max(releases, default=0.0))
        if left:
            self.warnings.append(f"workers that did not end in time: {', '.join(left)}")

    def spool(self, row: Mapping[str, JSON]) -> None:
        """Keep a row for the dashboard: it waits there also when this run is killed before it can send it."""
        if not self.env.get("PERF_INGEST_URL") or self.simulated:
            return
        from pytest_gpubench.results.ingest import IngestSettings, queue_rows
        from pytest_gpubench.results.spool import Spool

        try:
            if IngestSettings.from_env(self.env) is not None:
                queue_rows([row], Spool.of(self.options.results))
        except GpubenchError as err:
            self.warnings.append(str(err))

    def note_crash(self, point: Point, text: str) -> None:
        """The row of a point whose worker died under it, unless the point had got its row before."""
        from pytest_gpubench.results.outcome import Failure, Outcome
        from pytest_gpubench.results.row import judge_point

        row = self.store.read_row(point.deployment.recipe, point.id)
        if row is not None and row.get("run_id") == self.identity.run_id:
            return
        failure = Failure(Reason.HARNESS_ERROR, text)
        outcome = Outcome(failure=failure, ended=self.clock.time(), simulated=self.simulated)
        try:
            self.store.write_row(judge_point(point, outcome, self.run_info(point))[0])
        except InfraError as err:
            self.warnings.append(str(err))

    def run_block(self) -> dict[str, JSON]:
        """Where the run comes from, for the ingest file."""
        from pytest_gpubench.results.provenance import run_block

        recipes = self.catalog.loaded()
        facts: dict[str, dict[str, JSON]] = {
            recipe.stem: {
                "sha256": recipe.sha256,
                "profile": recipe.profile.name,
                "profile_sha256": recipe.profile.sha256,
            }
            for recipe in recipes
        }
        return run_block(
            run_id=self.identity.run_id,
            env=self.env,
            now=self.started,
            folder=self.checkout,
            runner=SystemRunner(),
            images=dict.fromkeys(point.deployment.image for recipe in recipes for point in recipe.points),
            recipes=facts,
            meta=dict(self.options.meta),
            simulated=self.simulated,
        )

    @property
    def simulated(self) -> bool:
        """True on the mocked Slurm, also when a test put one on PATH itself."""
        return self.options.mock or "GPUBENCH_MOCK" in self.env

    @cached_property
    def comparison(self) -> tuple[Baseline, tuple[Rule, ...]] | None:
        """The baseline and the rules of ``--gpubench-compare``; None without it."""
        from pytest_gpubench.results.compare import load_baseline, parse_rules

        if self.options.compare is None:
            return None
        return load_baseline(self.options.compare), parse_rules(self.options.compare_fail)

    def close(self) -> None:
        """Give everything back."""
        try:
            with self.interrupts.shield():
                self.pool.release_all()
        finally:
            self.heartbeat.close()
            if "tools" in vars(self):
                self.warnings.extend(map(self._unreleased, self.tools.journal.open()))

    def _unreleased(self, entry: JournalEntry) -> str:
        job = f"job {entry.id} ({entry.job_name})" if entry.id else f"job {entry.job_name}, if it was queued,"
        return (
            f"{job} is not confirmed as released. Without its heartbeat it ends itself within "
            f"{self.options.heartbeat_limit:.0f} s of running; `gpubench reap --results "
            f"{self.options.results}` cancels it at once"
        )


def _truthy(text: str) -> bool:
    return text.strip().lower() in {"1", "true", "yes", "on"}
