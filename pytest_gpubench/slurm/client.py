"""The Slurm client over the command line: sbatch, squeue, scontrol, sacct, scancel.

Every call has a timeout, no shell and no standard input. An answer that is missing or unclear becomes
UNKNOWN or a SlurmError; nothing is ever taken for "finished" because Slurm did not speak of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.answers import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Answer,
    classify,
    describe,
    parse_sacct,
    parse_scontrol_job,
    parse_squeue,
)
from pytest_gpubench.slurm.environment import clean_env
from pytest_gpubench.slurm.restarts import RestartWatch
from pytest_gpubench.slurm.states import fold_rows
from pytest_gpubench.slurm.submission import backoff, cluster_option, submit_once
from pytest_gpubench.slurm.types import CancelResult, JobId, JobInfo, JobState, Submission
from pytest_gpubench.world import Clock, CommandResult, CommandRunner

__all__ = ["CliSlurm", "SlurmTimeouts"]


@dataclass(frozen=True)
class SlurmTimeouts:
    """Seconds. ``command`` bounds one call, the others bound what is made of several calls."""

    command: float = 30.0
    adopt: float = 45.0  # how long the job of an unclear submission is looked for
    settle: float = 10.0  # how long the queue must lack it before a lost request is sent again
    submit: float = 180.0  # how long submission goes on while the controller cannot be reached
    cancel: float = 60.0  # the same for cancelling
    accounting: float = 60.0  # how long accounting may contradict the controller, or not answer


class CliSlurm:
    """:class:`~pytest_gpubench.slurm.types.SlurmClient` over Slurm's commands.

    ``env`` is the caller's environment (default: this process's); the commands get it cleaned, see
    :func:`~pytest_gpubench.slurm.environment.clean_env`. May be used by several threads.
    """

    def __init__(
        self,
        runner: CommandRunner,
        clock: Clock,
        *,
        env: Mapping[str, str] | None = None,
        timeouts: SlurmTimeouts | None = None,
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._env = clean_env(os.environ if env is None else env)
        self._timeouts = timeouts or SlurmTimeouts()
        self._names: dict[JobId, str] = {}
        self._clusters: dict[str, str | None] = {}  # job name -> the cluster it was sent to
        self._restarts = RestartWatch()
        self._absent_since: dict[JobId, float] = {}
        self._accounting = True  # until sacct says that there is none
        self._plain_clusters: set[str] = set()  # reachable only without --clusters: our own cluster
        self._addresses: dict[str, str] = {}
        self._version: str | None = None

    # ---------------------------------------------------------------- submit

    def submit(self, submission: Submission) -> JobId:
        """Submit; a job that was queued although sbatch's answer got lost is adopted, never doubled."""
        cluster = cluster_option(submission.options)
        self._clusters[submission.job_name] = cluster
        env = clean_env(self._env, submission.env)
        limits = self._timeouts
        job = submit_once(
            submission,
            run=lambda argv: self._runner.run(argv, timeout=limits.command, env=env),
            find=lambda name: self._find_all(name, cluster),
            drop=self.cancel,
            clock=self._clock,
            command_timeout=limits.command,
            adopt=limits.adopt,
            settle=limits.settle,
            total=limits.submit,
        )
        if job.cluster is None and cluster is not None:
            job = replace(job, cluster=cluster)
        self._names[job] = submission.job_name
        return job

    # ------------------------------------------------------------------ info

    def info(self, ids: Sequence[JobId]) -> dict[JobId, JobInfo]:
        """One squeue for all ids of a cluster; what it does not list is asked of scontrol, then sacct.

        GONE: the controller surely does not know the id and no record says how the job ended.
        UNKNOWN: an answer is missing or unclear; ``reason`` says which.
        """
        answers: dict[JobId, JobInfo] = {}
        for cluster in dict.fromkeys(job.cluster for job in ids):
            answers.update(self._cluster_info(cluster, [job for job in ids if job.cluster == cluster]))
        return {job: answers[job] for job in ids}

    def find(self, job_name: str, cluster: str | None = None) -> JobInfo | None:
        """The job of exactly this name (ended ones too while Slurm remembers them), None: surely none.

        SlurmError when the queue cannot be read.
        """
        jobs = self._find_all(job_name, cluster or self._clusters.get(job_name))
        return fold_rows(jobs) if jobs else None

    def _cluster_info(self, cluster: str | None, jobs: list[JobId]) -> dict[JobId, JobInfo]:
        ids = ",".join(dict.fromkeys(str(job.number) for job in jobs))
        result = self._call("squeue", *_SQUEUE, f"--jobs={ids}", cluster=cluster)
        answer = classify(result)
        if answer not in {Answer.OK, Answer.UNKNOWN_ID}:
            return {job: _unknown(job, "squeue", self._said(result)) for job in jobs}
        rows = parse_squeue(result.stdout, cluster) if answer is Answer.OK else {}
        answers: dict[JobId, JobInfo] = {}
        absent: list[JobId] = []
        for job in jobs:
            row = rows.get(job.number)
            info = self._restarts.apply(row) if row is not None else self._from_controller(job)
            if info is None or self._is_another(job, info):
                absent.append(job)
            else:
                answers[job] = info
                self._absent_since.pop(job, None)
        answers.update(self._from_accounting(cluster, absent))
        return answers

    def _from_controller(self, job: JobId) -> JobInfo | None:
        """scontrol's answer; None when it surely does not know the job."""
        result = self._call("scontrol", "show", "job", str(job.number), cluster=job.cluster)
        answer = classify(result)
        if answer is Answer.UNKNOWN_ID:
            return None
        info = parse_scontrol_job(result.stdout, job) if answer is Answer.OK else None
        return info or _unknown(job, "scontrol", self._said(result))

    def _from_accounting(self, cluster: str | None, jobs: list[JobId]) -> dict[JobId, JobInfo]:
        """How jobs ended that the controller has forgotten. Accounting is optional and asked once."""
        if not jobs:
            return {}
        now = self._clock.monotonic()
        since = {job: self._absent_since.setdefault(job, now) for job in jobs}
        rows: dict[int, JobInfo] = {}
        trouble = ""
        if self._accounting:
            ids = ",".join(str(job.number) for job in jobs)
            argv = ("sacct", "-P", "-n", "-X", f"--jobs={ids}", f"--format={SACCT_FORMAT}")
            result = self._call(*argv, cluster=cluster)
            answer = classify(result)
            if answer is Answer.OK:
                rows = parse_sacct(result.stdout, {job.number for job in jobs}, cluster)
            elif answer is Answer.NO_ACCOUNTING or result.missing:
                self._accounting = False
            else:
                trouble = self._said(result)
        answers: dict[JobId, JobInfo] = {}
        for job in jobs:
            info = rows.get(job.number)
            if info is not None and not self._is_another(job, info):
                if info.state.ended:
                    answers[job] = info
                    continue
                why = f"the controller does not know the job, accounting says {info.state.value}"
            else:
                why = trouble
            if why and now - since[job] < self._timeouts.accounting:
                answers[job] = _unknown(job, "sacct", why)
            else:
                why = why or "the job left the queue and no record says how it ended"
                answers[job] = JobInfo(id=job, state=JobState.GONE, reason=why, source="none")
        return answers

    def _is_another(self, job: JobId, info: JobInfo) -> bool:
        """True when the id was given to somebody else's job since (numbers start again)."""
        ours = self._names.get(job)
        return bool(ours and info.name and info.name != ours)

    def _find_all(self, name: str, cluster: str | None) -> list[JobInfo]:
        result = self._call("squeue", *_SQUEUE, f"--name={name}", cluster=cluster)
        if classify(result) is not Answer.OK:
            raise SlurmError(
                Reason.SLURM_UNREACHABLE, f"the queue cannot be searched for job {name}: {self._said(result)}"
            )
        return [row.info for row in parse_squeue(result.stdout, cluster).values() if row.info.name == name]

    # ---------------------------------------------------------------- cancel

    def cancel(self, job: JobId) -> CancelResult:
        """``scancel`` by id, pending jobs too. Done: accepted, already over, or an id Slurm does not know.

        A controller that does not answer is asked again for a bounded time.
        """
        if job.number <= 0:
            raise ValueError(f"no job id to cancel: {job!r}")
        deadline = self._clock.monotonic() + self._timeouts.cancel
        for delay in backoff():
            result = self._call("scancel", str(job.number), cluster=job.cluster)
            answer = classify(result)
            if answer in {Answer.OK, Answer.UNKNOWN_ID, Answer.ENDED}:
                return CancelResult(True, result.stderr.strip())
            again = answer in {Answer.UNREACHABLE, Answer.UNCLEAR} and not result.missing
            if not again or self._clock.monotonic() + delay >= deadline:
                return CancelResult(False, f"job {job} was not cancelled: {self._said(result)}")
            self._clock.sleep(delay)
        raise AssertionError("backoff never ends")

    # ----------------------------------------------------------------- other

    def node_address(self, node: str) -> str:
        """Slurm's own address of the node (NodeAddr), else its name."""
        known = self._addresses.get(node)
        if known is not None:
            return known
        result = self._call("scontrol", "show", "node", node)
        match = re.search(r"(?:^|\s)NodeAddr=([A-Za-z0-9._:-]+)", result.stdout) if result.ok else None
        if match is None:
            return node
        self._addresses[node] = match[1]
        return match[1]

    def version(self) -> str | None:
        """``slurm 22.05.8`` gives ``22.05.8``; None when srun does not say. Asked once."""
        if self._version is None:
            result = self._call("srun", "--version")
            pattern = r"\bslurm\S*\s+([0-9][\w.~+-]*)"
            match = re.search(pattern, result.stdout, re.IGNORECASE) if result.ok else None
            self._version = match[1] if match else ""
        return self._version or None

    # --------------------------------------------------------------- calling

    def _call(self, program: str, *args: str, cluster: str | None = None) -> CommandResult:
        named = cluster is not None and cluster not in self._plain_clusters
        argv = [program, *([f"--clusters={cluster}"] if named else []), *args]
        result = self._runner.run(argv, timeout=self._timeouts.command, env=self._env)
        if named and classify(result) is Answer.BAD_CLUSTER and self._is_own_cluster(str(cluster)):
            # --clusters asks the accounting database, which a site may not have.
            self._plain_clusters.add(str(cluster))
            return self._call(program, *args, cluster=cluster)
        return result

    def _is_own_cluster(self, cluster: str) -> bool:
        result = self._call("scontrol", "show", "config")
        match = re.search(r"^ClusterName\s*=\s*(\S+)", result.stdout, re.MULTILINE) if result.ok else None
        return match is not None and match[1].lower() == cluster.lower()

    def _said(self, result: CommandResult) -> str:
        return describe(result, self._timeouts.command)


# --states=all: an ended job is listed with its final state until the controller forgets it.
_SQUEUE = ("--noheader", "--states=all", f"--format={SQUEUE_FORMAT}")


def _unknown(job: JobId, source: str, why: str) -> JobInfo:
    return JobInfo(id=job, state=JobState.UNKNOWN, reason=why, source=source, raw=why)
