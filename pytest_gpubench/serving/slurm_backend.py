"""A deployment as one Slurm job: submit, look, client steps, give back."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpubench.errors import InfraError, LogTail, SlurmError
from pytest_gpubench.plan.ranks import head_variable, port_variable
from pytest_gpubench.plan.shell import fill_all
from pytest_gpubench.plan.slurm import SlurmPlan
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.results.text import read_tail
from pytest_gpubench.serving.backend import Api, Look
from pytest_gpubench.serving.diagnose import Evidence, diagnose
from pytest_gpubench.serving.heartbeat import Heartbeat
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.slurm.journal import Journal
from pytest_gpubench.slurm.pending import PendingJudge
from pytest_gpubench.slurm.poller import JobPoller
from pytest_gpubench.slurm.steps import step_argv
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState, SlurmClient, Submission
from pytest_gpubench.world import Clock, CommandRunner, ProcessHandle

__all__ = ["SlurmBackend", "SlurmTools"]

SETTLE_SECONDS = 3.0
"""How long to wait for Slurm's own word on why a job ended, before the batch script's note decides."""
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

    def __init__(self, plan: SlurmPlan, tools: SlurmTools, environment: Mapping[str, str]) -> None:
        self.plan = plan
        self.tools = tools
        self.environment = dict(environment)
        self.folder = Path(plan.site.folder)
        self.state = self.folder / "state"
        self.job: JobId | None = None
        self.info: JobInfo | None = None
        self._nodes: tuple[str, ...] = ()
        self._cancelled = False
        self._released = False
        self._failure: InfraError | None = None
        self._judge = PendingJudge(tools.clock)

    @property
    def rank_names(self) -> tuple[str, ...]:
        """Names of all ranks."""
        return tuple(rank.name for rank in self.plan.ranks)

    @property
    def job_id(self) -> str | None:
        """The job id as text."""
        return None if self.job is None else str(self.job)

    # -- start ---------------------------------------------------------------------------------

    def launch(self) -> None:
        """Write the script, journal the intent, submit, journal the id."""
        self._prepare_folder()
        name = self.plan.site.job_name
        tools = self.tools
        tools.journal.intend(name)
        submission = Submission(
            script=str(self.folder / "job.sbatch"),
            job_name=name,
            options=self.plan.sbatch_options,
            env=self.environment,
        )
        try:
            self.job = tools.client.submit(submission)
        except SlurmError as err:
            if err.reason is Reason.SUBMIT_REFUSED:
                tools.journal.abandoned(name, "refused")
            raise
        except BaseException:
            # Interrupted inside sbatch: the job may be queued all the same. Find it by its unique name.
            with tools.interrupts.shield(), contextlib.suppress(InfraError):
                found = tools.client.find(name)
                if found is not None:
                    self.job = found.id
                    tools.journal.submitted(name, found.id)
                    self.stop()
                else:
                    tools.journal.abandoned(name, "not submitted")
            raise
        tools.journal.submitted(name, self.job)
        tools.poller.watch(self.job)

    def _prepare_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in (*self.folder.glob("*.log"), self.folder / "job.sbatch"):
                old.unlink(missing_ok=True)
            shutil.rmtree(self.state, ignore_errors=True)
            self.state.mkdir()
            (self.folder / "job.sbatch").write_text(self.plan.script, encoding="utf-8")
            self.tools.heartbeat.add(self.state / "heartbeat")
        except OSError as err:
            raise InfraError(
                Reason.RESULTS_UNWRITABLE, f"{self.folder}: {err.strerror or err}", Phase.QUEUE
            ) from err

    # -- look ----------------------------------------------------------------------------------

    def look(self) -> Look:
        """State files first (cheap, at once), then what the poller knows of the job."""
        if self._failure is not None:
            return self._seen(pending=False, failure=self._failure)
        if self.job is None:
            return Look(pending=True, detail="not submitted")
        exits = self._exits()
        ended = self._read("ended")
        if exits or ended:
            return self._fail(self._settled(), ended, exits)
        info = self.tools.poller.latest(self.job, max_age=self._max_age())
        self.info = info
        self._nodes = self._allocated() or info.nodes or self._nodes
        if info.restarts or info.state is JobState.REQUEUED:
            return self._fail(info, ended, exits)
        if info.state.ended or (info.state is JobState.COMPLETING and self._nodes):
            return self._fail(self._settled(), self._read("ended"), self._exits())
        if info.state is JobState.UNKNOWN:
            return self._unknown()
        if info.state is JobState.PENDING and not self._endpoint():
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
        return self._seen(pending=not self._endpoint(), detail="Slurm gives no usable answer")

    def _max_age(self) -> float | None:
        # The state files tell that a job started and that a rank died. Slurm is asked for what only it
        # knows: while pending at a growing interval, then every few seconds (a dead node writes nothing).
        return None if not self._nodes else 5.0

    def _allocated(self) -> tuple[str, ...]:
        values = self._endpoint()
        names = [values.get(f"GPUBENCH_NODE_{index}", "") for index in range(self.plan.num_nodes)]
        return tuple(names) if all(names) else ()

    def _seen(self, *, pending: bool, detail: str = "", failure: InfraError | None = None) -> Look:
        values = self._endpoint()
        return Look(
            pending=pending,
            detail=detail,
            nodes=self._nodes,
            apis=self._apis(values),
            started=self._started(),
            exits=self._exits(),
            failure=failure,
            values=values,
        )

    def _fail(self, info: JobInfo, ended: str, exits: Mapping[str, int]) -> Look:
        evidence = Evidence(
            info=info,
            ended=ended,
            exits=exits,
            started=self._started(),
            tails={name: read_tail(self.folder / f"{name}.log") for name in self.rank_names},
            nodes=self._rank_nodes(),
            ours_cancelled=self._cancelled,
        )
        self._failure = diagnose(evidence)
        return self._seen(pending=False, failure=self._failure)

    def _settled(self) -> JobInfo:
        """Slurm's word on the end, waited for a little: it decides between a crash and a cancel."""
        assert self.job is not None
        clock = self.tools.clock
        deadline = clock.monotonic() + SETTLE_SECONDS
        info = self.info or JobInfo(self.job, JobState.UNKNOWN)
        while True:
            fresh = self.tools.poller.latest(self.job, max_age=0.0)
            if fresh.state is not JobState.UNKNOWN:
                info = fresh
            if info.state.ended or info.restarts or clock.monotonic() >= deadline:
                self.info = info
                return info
            clock.sleep(0.5)

    # -- clients -------------------------------------------------------------------------------

    def start_client(self, argv: Sequence[str], log: str, name: str) -> ProcessHandle:
        """A step of the same allocation; ``--overlap`` since the ranks hold the nodes' resources."""
        assert self.job is not None
        values = self._endpoint()
        command = ["bash", "-c", 'exec "$@"', name, *fill_all(argv, values)]
        step = step_argv(
            self.job,
            nodes=[self.plan.client_node(self._nodes)],
            extra=self.plan.client_options(),
            command=command,
        )
        return self.tools.runner.start(step, log=log, env=self.environment, cwd=str(self.folder))

    def client_path(self, host: str) -> str:
        """A host path as the client sees it."""
        return self.plan.in_container(host)

    def tails(self) -> list[LogTail]:
        """Rank logs, the dead first; the job's own log when it has something to say."""
        exits = self._exits()
        names = sorted(self.rank_names, key=lambda name: (name not in exits, self.rank_names.index(name)))
        nodes = self._rank_nodes()
        found = [
            LogTail(f"{name} on {nodes.get(name, '?')}", str(path), text)
            for name in names
            if (text := read_tail(path := self.folder / f"{name}.log"))
        ]
        job_log = self.folder / "slurm.log"
        if text := read_tail(job_log):
            found.append(LogTail("batch script", str(job_log), text))
        return found

    # -- give back -----------------------------------------------------------------------------

    def stop(self) -> bool:
        """Cancel by id, then wait, bounded, until the job holds no nodes."""
        if self.job is None or self._released:
            return True
        tools = self.tools
        clock = tools.clock
        with tools.interrupts.shield():
            self._cancelled = True
            result = tools.client.cancel(self.job)
            tools.journal.cancelled(self.job)
            deadline = clock.monotonic() + self.plan.deployment.deadlines.teardown
            gone = False
            pause = 0.2
            while not gone and clock.monotonic() < deadline:
                info = tools.poller.latest(self.job, max_age=0.0)
                gone = info.state.ended
                if not gone:
                    if not result.done:
                        result = tools.client.cancel(self.job)
                    clock.sleep(pause)
                    pause = min(pause * 1.5, 2.0)
            tools.poller.unwatch(self.job)
            tools.heartbeat.remove(self.state / "heartbeat")
            if gone:
                self._released = True
                tools.journal.released(self.job, "left the queue")
        return gone

    # -- state files ---------------------------------------------------------------------------

    def _read(self, name: str) -> str:
        try:
            return (self.state / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def _names(self, suffix: str) -> list[str]:
        try:
            return [name[: -len(suffix)] for name in os.listdir(self.state) if name.endswith(suffix)]
        except OSError:
            return []

    def _started(self) -> frozenset[str]:
        return frozenset(self._names(".started"))

    def _exits(self) -> dict[str, int]:
        exits: dict[str, int] = {}
        for name in sorted(self._names(".exit")):
            with contextlib.suppress(ValueError):
                exits[name] = int(self._read(f"{name}.exit"))
        return exits

    def _endpoint(self) -> dict[str, str]:
        pairs = (line.partition("=") for line in self._read("endpoint").splitlines())
        return {name: value for name, equals, value in pairs if equals}

    def _apis(self, values: Mapping[str, str]) -> tuple[Api, ...]:
        apis = []
        for worker in self.plan.workers:
            host = values.get(head_variable(worker.index))
            port = values.get(port_variable("API", worker.index), "")
            if host and port.isdigit():
                node = values.get(f"GPUBENCH_NODE_{worker.first_node}", "")
                apis.append(Api(worker.label, host, int(port), node))
        return tuple(apis)

    def _rank_nodes(self) -> dict[str, str]:
        values = self._endpoint()
        return {rank.name: values.get(f"GPUBENCH_NODE_{rank.node}", "") for rank in self.plan.ranks}


def with_failure_phase(error: InfraError, phase: Phase) -> InfraError:
    """The error with the phase it happened in, unless it names one already."""
    return error if error.phase is not None else replace(error, phase=phase)
