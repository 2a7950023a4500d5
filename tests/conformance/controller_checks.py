"""A controller that does not run, or that runs and does not answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.slurm.client import SlurmTimeouts
from pytest_gpubench.slurm.poller import JobPoller
from pytest_gpubench.slurm.types import JobId, JobState

from .backends import MESSAGE_TIMEOUT, Backend
from .client_desk import ClientDesk

CONTACT = "Unable to contact slurm controller (connect failure)"
SILENCE = "Socket timed out on send/recv operation"
BRIEF = SlurmTimeouts(command=15.0, submit=1.0, cancel=1.0)


def check_words(backend: Backend, folder: Path) -> None:
    """Each command's own lead before the same two reasons; some commands need no controller."""
    desk = ClientDesk(backend, folder)
    job = str(desk.submit("true\n", "--hold"))
    leads = {
        ("squeue", "-h"): "slurm_load_jobs error: {}",
        ("squeue", "-h", "-j", job): "slurm_load_jobs error: {}",
        ("scontrol", "show", "job", job): "slurm_load_jobs error: {}",
        ("scontrol", "show", "node", "gb300-01"): "slurm_load_node error: {}",
        ("sinfo",): "slurm_load_partitions: {}",
        ("sbatch", "--hold", "--job-name=words", "--wrap=true"): (
            "sbatch: error: Batch job submission failed: {}"
        ),
        ("srun", f"--jobid={job}", "true"): (
            f"srun: error: Unable to confirm allocation for job {job}: {{}}\n"
            f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {job}"
        ),
        ("scontrol", "update", "nodename=gb300-01", "weight=1"): "slurm_update error: {}",
    }

    def compare(reason: str) -> None:
        with ThreadPoolExecutor() as pool:
            answers = list(pool.map(lambda argv: desk.shell(*argv), leads))
        for done, lead in zip(answers, leads.values(), strict=True):
            assert (done.returncode, done.stdout, done.stderr) == (1, "", lead.format(reason) + "\n"), done
        done = desk.shell("scontrol", "ping")
        assert (done.returncode, " is DOWN" in done.stdout) == (1, True)
        assert desk.shell("scontrol", "show", "hostnames", "a[1-2]").stdout == "a1\na2\n"
        assert desk.shell("srun", "--version").ok

    with backend.controller_down():
        compare(CONTACT)
        done = desk.shell("scancel", job)
        assert (done.returncode, done.stderr) == (
            8,
            f"scancel: error: Kill job error on job id {job}: {CONTACT}\n",
        )
    assert desk.info(JobId(int(job))).state is JobState.PENDING
    assert desk.alive("words") == []
    with backend.controller_hung():
        compare(SILENCE)
        done = desk.shell("scancel", job)
        assert (done.returncode, done.stderr) == (
            140,
            f"scancel: error: Kill job error on job id {job}: {SILENCE}\n",
        )
    # What a hung controller was asked for happens all the same.
    desk.wait(JobId(int(job)), JobState.CANCELLED)
    assert len(desk.alive("words")) == 1
    assert desk.shell("scancel", "--name=words").ok


def check_down_and_back(backend: Backend, folder: Path) -> None:
    """UNKNOWN with Slurm's words, never "ended"; the job runs on, and is known afterwards."""
    desk = ClientDesk(backend, folder, BRIEF)
    job = desk.submit("sleep 300\n")
    desk.wait(job, JobState.RUNNING)
    poller = JobPoller(desk.slurm, desk.clock, min_interval=0.0)
    assert poller.latest(job, max_age=0.0).state is JobState.RUNNING
    with backend.controller_down():
        info = poller.latest(job, max_age=0.0)
        assert (info.state, CONTACT in info.reason) == (JobState.UNKNOWN, True)
        since = poller.unknown_since(job)
        assert since is not None
        poller.latest(job, max_age=0.0)
        assert poller.unknown_since(job) == since
        result = desk.slurm.cancel(job)
        assert (result.done, CONTACT in result.text) == (False, True)
        with pytest.raises(SlurmError, match="Unable to contact") as caught:
            desk.submit("true\n")
        assert caught.value.reason is Reason.SLURM_UNREACHABLE
        with pytest.raises(SlurmError, match="Unable to contact"):
            desk.slurm.find("anything")
    assert poller.latest(job, max_age=0.0).state is JobState.RUNNING
    assert poller.unknown_since(job) is None
    assert desk.slurm.cancel(job).done
    desk.wait(job, JobState.CANCELLED)


def check_hung_and_back(backend: Backend, folder: Path) -> None:
    """A silent controller is no answer; what it was asked for, it does afterwards."""
    desk = ClientDesk(backend, folder, BRIEF)
    job = desk.submit("sleep 300\n")
    desk.wait(job, JobState.RUNNING)
    with backend.controller_hung():
        info = desk.info(job)
        assert (info.state, SILENCE in info.reason) == (JobState.UNKNOWN, True)
        result = desk.slurm.cancel(job)
        assert (result.done, SILENCE in result.text) == (False, True)
    desk.wait(job, JobState.CANCELLED)


def _submit_while_hung(backend: Backend, desk: ClientDesk) -> tuple[str, JobId]:
    """Submit to a silent controller, which goes on when the client looks for its job; name and id."""
    name = desk.name("lost")
    submission = desk.submission("sleep 300\n", name=name)
    answers: list[JobId | BaseException] = []

    def submit() -> None:
        try:
            answers.append(desk.slurm.submit(submission))
        except BaseException as err:
            answers.append(err)

    thread = threading.Thread(target=submit)
    with backend.controller_hung():
        thread.start()
        desk.until(lambda: desk.runner.count("squeue") > 0, "the search", lambda: str(desk.runner.calls))
    thread.join(timeout=90.0)
    assert len(answers) == 1
    answer = answers[0]
    assert isinstance(answer, JobId), answer
    return name, answer


def check_adopted(backend: Backend, folder: Path) -> None:
    """sbatch gave up, or was given up, and its job was queued: it is found by its name and not doubled."""
    for limit in (5.0 * MESSAGE_TIMEOUT, 1.0):
        timeouts = SlurmTimeouts(command=limit, adopt=30.0, settle=10.0, submit=60.0)
        desk = ClientDesk(backend, folder, timeouts)
        name, job = _submit_while_hung(backend, desk)
        assert desk.wait(job, JobState.RUNNING).name == name
        assert desk.runner.count("sbatch") == 1
        assert desk.alive(name) == [str(job)]
        assert desk.slurm.cancel(job).done
        desk.wait(job, JobState.CANCELLED)


CHECKS = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
}
"""All, by name."""
