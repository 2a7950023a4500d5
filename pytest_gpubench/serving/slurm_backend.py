"""A deployment as one Slurm job: submit, look, client steps, give back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_gpubench.errors import InfraError, LogTail, SlurmError
from pytest_gpubench.plan.shell import fill_all
from pytest_gpubench.plan.slurm import SlurmPlan
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.slurm_forms import time_seconds
from pytest_gpubench.serving.backend import Backend, Hardware, Look
from pytest_gpubench.serving.client_step import ClientStep
from pytest_gpubench.serving.diagnose import Evidence, diagnose
from pytest_gpubench.serving.heartbeat import Heartbeat
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.serving.state import StateFolder
from pytest_gpubench.slurm.journal import Journal
from pytest_gpubench.slurm.pending import PendingJudge
from pytest_gpubench.slurm.poller import JobPoller
from pytest_gpubench.slurm.steps import step_argv
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState, SlurmClient, Submission
from pytest_gpubench.slurm.waiting import find_intended
from pytest_gpubench.world import Clock, CommandRunner, ProcessHandle

__all__ = ["SlurmBackend", "SlurmTools"]

SETTLE_SECONDS = 3.0
"""How long to wait for Slurm's own word on why a job ended, before the batch script's note decides."""
COMPLETING_SECONDS = 40.0
"""How long to wait for it while Slurm is ending the job; KillWait, 30 s by default, and a little more."""
RUNNING_MAX_AGE = 3.5
"""Seconds after which Slurm is asked again about a job that has its nodes."""
UNREACHABLE_SECONDS = 300.0
"""How long Slurm may give no usable answer about a job before that is an error."""


@dataclass(frozen=True)
class SlurmTools:
    """What all jobs of this process share."""

    client: SlurmClient
    poller: JobPoller
    runner: CommandRunner
    clock: Clock
    journal: Journal
    heartbeat: Heartbeat
    interrupts: Interrupts


class SlurmBackend:
    """One job. ``environment`` is the whole environment of sbatch and of client steps."""

    def __init__(
        self, plan: SlurmPlan, tools: SlurmTools, environment: Mapping[str, str], attempt: int = 1
    ) -> None:
        self.plan = plan
        self.tools = tools
        self.environment = dict(environment)
        self.attempt = attempt
        self.state = self.state_folder(plan)
        self.job: JobId | None = None
        self.info: JobInfo | None = None
        self._nodes: tuple[str, ...] = ()
        self._cancelled = False
        self._released = False
        self._failure: InfraError | None = None
        self._judge = PendingJudge(tools.clock)

    def state_folder(self, plan: SlurmPlan) -> StateFolder:
        """Where the job leaves its notes."""
        return StateFolder(plan)

    @property
    def rank_names(self) -> tuple[str, ...]:
        """Names of all ranks."""
        return tuple(rank.name for rank in self.plan.ranks)

    @property
    def log_folder(self) -> Path:
        """The deployment's folder."""
        return self.state.folder

    @property
    def job_id(self) -> str | None:
        """The job id as text."""
        return None if self.job is None else str(self.job)

    # -- start ---------------------------------------------------------------------------------

    def can_host(self, plan: SlurmPlan, environment: Mapping[str, str], seconds: float) -> bool:
        """Whether this job can take ``plan`` over: same request, same environment, enough time left."""
        mine, other = self.plan.deployment, plan.deployment
        if self.job is None or self._released or self._failure is not None:
            return False
        if not mine.profile.slurm.reuse_allocation or mine.profile != other.profile:
            return False
        if self.plan.num_nodes != plan.num_nodes or self.environment != dict(environment):
            return False
        limit = time_seconds(mine.profile.slurm.time) if mine.profile.slurm.time else None
        return limit is not None and self.held_seconds() + seconds < 0.9 * limit

    def held_seconds(self) -> float:
        """From the script's first note to the last heartbeat, by the file system's one clock."""
        return self.state.age()

    def launch(self, previous: Backend | None = None) -> None:
        """Write the script, journal the intent, submit, journal the id; or take over a running job."""
        self.state.prepare(self.attempt)
        self.tools.heartbeat.add(self.state.heartbeat)
        if isinstance(previous, SlurmBackend) and previous.job is not None:
            self.job = previous.job
            previous.hand_over(self.state.script)
            return
        name = self.plan.site.job_name
        tools = self.tools
        tools.journal.intend(name)
        try:
            self.job = self.submit()
            tools.journal.submitted(name, self.job)
        except SlurmError as err:
            # Should a job turn up after all, it finds no heartbeat and ends itself.
            tools.heartbeat.remove(self.state.heartbeat)
            if err.reason is Reason.SUBMIT_REFUSED:
                tools.journal.abandoned(name, "refused")
            raise
        except BaseException:
            # Interrupted inside sbatch: the job may be queued all the same. Find it by its unique name.
            with tools.interrupts.shield(), contextlib.suppress(InfraError):
                # It may be queued a moment after sbatch was cut off, so one look is not enough.
                found = find_intended(
                    lambda: tools.client.find(name), tools.clock, patience=10.0, timeout=30.0
                )
                if found is not None:
                    self.job = found.id
                    tools.journal.submitted(name, found.id)
                    self.stop()
                else:
                    tools.journal.abandoned(name, "not submitted")
            tools.heartbeat.remove(self.state.heartbeat)
            raise
        tools.poller.watch(self.job)

    def submit(self) -> JobId:
        """Queue the job under its unique name; SlurmError when it surely or possibly is not queued."""
        submission = Submission(
            script=str(self.state.script),
            job_name=self.plan.site.job_name,
            options=self.plan.sbatch_options,
            env=self.environment,
        )
        return self.tools.client.submit(submission)

    def hand_over(self, script: Path) -> None:
        """Let the running job stop its ranks and go on with ``script``; it is not ours to cancel any more."""
        self.state.hand_over(script)
        self._released = True
        self.tools.heartbeat.keep(self.state.heartbeat, seconds=60.0)

    # -- look ----------------------------------------------------------------------------------

    def look(self) -> Look:
        """State files first (cheap, at once), then what the poller knows of the job."""
        if self._failure is not None:
            return self._seen(pending=False, failure=self._failure)
        if self.job is None:
            return Look(pending=True, detail="not submitted")
        exits = self.state.exits()
        ended = self.state.ended
        if exits or ended:
            info = self._settled()
            return self._fail(info, self.state.ended, self.state.exits())
        info = self.tools.poller.latest(self.job, max_age=self._max_age())
        self.info = info
        self._nodes = self.state.nodes(self.state.values()) or info.nodes or self._nodes
        if info.restarts or info.state is JobState.REQUEUED:
            return self._fail(info, ended, exits)
        if info.state.ended or (info.state is JobState.COMPLETING and self._nodes):
            return self._fail(self._settled(), self.state.ended, self.state.exits())
        if info.state is JobState.UNKNOWN:
            return self._unknown()
        if info.state is JobState.PENDING and not self.state.values():
            never = self._judge.feed(info)
            if never is not None:
                self._failure = SlurmError(
                    Reason.PENDING_FOREVER,
                    f"job {self.job} is pending with reason {never}, which does not clear by itself",
                )
                return self._seen(pending=True, detail=never, failure=self._failure)
            return Look(pending=True, detail=info.reason or "pending")
        return self._seen(pending=False)

    def _unknown(self) -> Look:
        assert self.job is not None
        since = self.tools.poller.unknown_since(self.job)
        if since is not None and self.tools.clock.monotonic() - since > UNREACHABLE_SECONDS:
            self._failure = SlurmError(
                Reason.SLURM_UNREACHABLE,
                f"no usable answer from Slurm about job {self.job} for {UNREACHABLE_SECONDS:.0f} s",
            )
            return self._seen(pending=not self._nodes, failure=self._failure)
        # Without an answer yet there is nothing to tell: Slurm is not asked for every job at once.
        detail = "Slurm gives no usable answer" if since is not None else ""
        return self._seen(pending=not self.state.values(), detail=detail)

    def _max_age(self) -> float | None:
        # The state files tell that a job started and that a rank died. Slurm is asked for what only it
        # knows: while pending at a growing interval, then every few seconds (a dead node writes nothing).
        return None if not self._nodes else RUNNING_MAX_AGE

    def _seen(self, *, pending: bool, detail: str = "", failure: InfraError | None = None) -> Look:
        values = self.state.values()
        return Look(
            pending=pending,
            detail=detail,
            nodes=self._nodes,
            apis=self.state.apis(values),
            started=self.state.started(),
            exits=self.state.exits(),
            failure=failure,
            values=values,
        )

    def _fail(self, info: JobInfo, ended: str, exits: Mapping[str, int]) -> Look:
        evidence = Evidence(
            info=info,
            ended=ended,
            exits=exits,
            started=self.state.started(),
            tails=self.state.rank_tails(),
            nodes=self.state.rank_nodes(self.state.values()),
            ours_cancelled=self._cancelled,
            unwritable="" if ended or exits else self.state.unwritable(),
        )
        self._failure = diagnose(evidence)
        return self._seen(pending=False, failure=self._failure)

    def _settled(self) -> JobInfo:
        """Slurm's word on the end, waited for a little: it decides between a crash and a cancel."""
        assert self.job is not None
        clock = self.tools.clock
        began = clock.monotonic()
        info = self.info or JobInfo(self.job, JobState.UNKNOWN)
        noted: JobInfo | None = None  # the latest answer when the script had said why it ended
        while True:
            fresh = self.tools.poller.latest(self.job, max_age=0.0)
            if fresh.state is not JobState.UNKNOWN:
                info = fresh
            ended = self.state.ended
            # Asked after the script gave its reason, a job that still runs was not ended by Slurm; one that
            # was signalled is, and the answer is older (another worker's question).
            crashed = noted is not None and fresh is not noted and fresh.state is JobState.RUNNING
            crashed = crashed and not ended.startswith("signal ")
            # Slurm is ending the job: only the state that follows says why.
            being_ended = info.state is JobState.COMPLETING and not ended.startswith("rank ")
            limit = COMPLETING_SECONDS if being_ended else SETTLE_SECONDS
            if info.state.ended or info.restarts or crashed or clock.monotonic() - began >= limit:
                self.info = info
                return info
            if noted is None and ended:
                noted = fresh
            clock.sleep(0.25)

    # -- clients -------------------------------------------------------------------------------

    def start_client(self, argv: Sequence[str], log: str, name: str) -> ProcessHandle:
        """A step of the same allocation; ``--overlap`` since the ranks hold the nodes' resources."""
        assert self.job is not None
        values = self.state.values()
        command = ["bash", "-c", 'exec "$@"', name, *fill_all(argv, values)]
        step = step_argv(
            self.job,
            nodes=[self.plan.client_node(self._nodes)],
            extra=self.plan.client_options(values),
            command=command,
        )
        return ClientStep(
            lambda: self.tools.runner.start(step, log=log, env=self.environment, cwd=self.plan.site.folder),
            Path(log),
            self.tools.clock,
            patience=UNREACHABLE_SECONDS,
        )

    def client_path(self, host: str) -> str:
        """A host path as the client sees it."""
        return self.plan.in_container(host)

    def hardware(self) -> Hardware:
        """From the node's own note, and Slurm's version."""
        names, driver = self.state.gpus()
        return Hardware(names, driver, self.tools.client.version())

    def start_router(self) -> None:
        """Let the script start the router."""
        self.state.start_router()

    def tails(self) -> list[LogTail]:
        """Rank logs, the dead first; the job's own log when it has something to say."""
        return self.state.tails(self.state.values(), ("image.log", "slurm.log"))

    # -- give back -----------------------------------------------------------------------------

    def stop(self) -> bool:
        """Cancel by id, then wait, bounded, until the job holds no nodes."""
        if self.job is None or self._released:
            return True
        tools = self.tools
        clock = tools.clock
        with tools.interrupts.shield():
            self._cancelled = True
            deadline = clock.monotonic() + self.plan.deployment.deadlines.teardown
            asked = gone = False
            pause = 0.2
            while True:
                if not asked:
                    asked = tools.client.cancel(self.job).done
                    if asked:
                        tools.journal.cancelled(self.job)
                gone = tools.poller.latest(self.job, max_age=0.0).state.ended
                if gone or clock.monotonic() >= deadline:
                    break
                clock.sleep(pause)
                pause = min(pause * 1.5, 2.0)
            tools.poller.unwatch(self.job)
            # Whatever could not be cancelled finds no heartbeat and ends itself.
            tools.heartbeat.remove(self.state.heartbeat)
            if gone:
                self.state.drop_image()
                self._released = True
                tools.journal.released(self.job, "left the queue")
        return gone
