"""Beyond the matrix: submissions whose answer is lost, queues that never move, and what comes together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pytest_gpubench.mock import ControllerDown, SbatchHangsButQueues, SlowQueue, StuckCompleting

from .ahead import Ahead
from .stage import HEARTBEAT, VICTIM, Stage
from .strike import reached

GRACE = 10.0
"""What the batch script leaves its ranks before it kills them."""


def a_submission_that_timed_out_is_adopted(stage: Stage) -> None:
    """sbatch gives up, the job is queued all the same: it is found by its name and measured, once."""
    stage.recipes("struck")
    stage.cluster.inject(SbatchHangsButQueues(1.0, match=VICTIM))
    stage.start()
    assert stage.finish(60) == 0, stage.output
    assert len([job for job in stage.ours() if job.name.startswith("gpubench-victim-")]) == 1
    row = stage.row("victim", "struck")
    assert row is not None
    assert row["status"] == "passed"


def a_reason_that_never_clears_fails_soon(stage: Stage) -> None:
    """A held job is no reason to wait for an hour; the message has Slurm's own word for it."""
    stage.recipes("struck")
    stage.cluster.inject(SlowQueue(600.0, reason="JobHeldAdmin", match=VICTIM))
    stage.start()
    assert stage.finish(60) == 1, stage.output
    row = stage.row("victim", "struck")
    assert row is not None
    assert row["reason"] == "pending_forever"
    assert "JobHeldAdmin" in stage.output
    assert row["phase_seconds"]["queue"] < 25.0


def a_queue_that_is_long_fails_at_max_pending(stage: Stage) -> None:
    """The limit is the profile's, and the message has Slurm's last reason and the setting's name."""
    stage.recipes("struck")
    profile = stage.project / "workloads" / "gpu_profiles.yaml"
    profile.write_text(profile.read_text().replace('time: "00:30:00"', 'time: "00:30:00", max_pending: 6'))
    stage.cluster.inject(SlowQueue(600.0, reason="QOSMaxJobsPerUserLimit", match=VICTIM))
    stage.start()
    assert stage.finish(60) == 1, stage.output
    row = stage.row("victim", "struck")
    assert row is not None
    assert row["reason"] == "queue_timeout"
    assert "QOSMaxJobsPerUserLimit" in stage.output
    assert "max_pending" in stage.output


def a_release_that_slurm_never_answers_is_bounded_and_told(stage: Stage) -> None:
    """Interrupted while the controller is gone for good: the end comes all the same and says what is left."""
    stage.recipes("struck", osl=4000)
    stage.cluster.simulate(models={"org/victim": {"token": 0.005}})
    stage.start()
    stage.until("benching", lambda: reached(stage, "bench"), 60)
    stage.cluster.inject(ControllerDown())
    began = time.monotonic()
    stage.signal(signal.SIGTERM)
    assert stage.finish(40) == 2, stage.output
    assert time.monotonic() - began < 20.0  # deadlines.teardown is 8 s here
    job = stage.job()
    assert job is not None
    assert f"job {job.id}" in stage.output
    assert "not confirmed as released" in stage.output
    assert "gpubench reap" in stage.output
    assert [entry.id.number for entry in stage.journal() if entry.id is not None] == [job.id]
    # Nobody can cancel it, so it ends itself.
    stage.until("the end by the heartbeat", lambda: not stage.processes(), HEARTBEAT + GRACE + 10)
    stage.cluster.clear(ControllerDown)
    done = stage.reap()
    assert done.returncode == 0, done.stdout + done.stderr
    assert stage.journal() == []


def nodes_that_are_not_given_back_are_an_error(stage: Stage) -> None:
    """COMPLETING for longer than the deadline: the measurement stands, the test has an error that says so."""
    stage.recipes("struck")
    stage.cluster.inject(StuckCompleting(25.0, match=VICTIM))
    stage.start()
    assert stage.finish(60) == 1, stage.output
    row = stage.row("victim", "struck")
    assert row is not None
    assert row["status"] == "passed"
    assert "not confirmed as released" in stage.output
    assert len(stage.journal()) == 1
    done = stage.reap()
    assert done.returncode == 0, done.stdout + done.stderr
    assert stage.journal() == []


def _ask_ahead(stage: Stage) -> None:
    """The victim's nodes are asked for while the first recipe is still measured."""
    stage.recipes("struck", first_osl=4000)
    stage.cluster.simulate(models={"org/first": {"token": 0.005}})
    stage.cluster.inject(SlowQueue(600.0, match=VICTIM))
    stage.start("--gpubench-prefetch", "1")
    stage.until("the job asked for ahead", lambda: reached(stage, "pending"), 60)


def a_job_asked_for_ahead_goes_with_the_others(stage: Stage) -> None:
    """Ctrl-C while one job measures and another waits in the queue: both are given back."""
    _ask_ahead(stage)
    stage.signal(signal.SIGINT)
    assert stage.finish(40) == 2, stage.output
    assert all(job.ended for job in stage.ours())
    stage.until("no process of ours", lambda: not stage.processes(), 10)
    assert stage.journal() == []


def a_job_asked_for_ahead_is_reaped(stage: Stage) -> None:
    """SIGKILL then: the one that runs ends itself, the one that waits is cancelled by its id."""
    _ask_ahead(stage)
    stage.signal(signal.SIGKILL)
    stage.finish(10)
    done = stage.reap()
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(job.ended for job in stage.ours())
    assert stage.bystander_runs()


def the_job_of_a_killed_run_does_not_live_on_the_next_ones_heartbeat(stage: Stage) -> None:
    """Started again in the same folder at once: the old job still misses its own heartbeat."""
    stage.recipes("struck", osl=4000)
    stage.cluster.simulate(models={"org/victim": {"token": 0.005}})
    stage.start()
    stage.until("benching", lambda: reached(stage, "bench"), 60)
    old = stage.job()
    assert old is not None
    stage.signal(signal.SIGKILL)
    stage.finish(10)
    stage.cluster.simulate(models={"org/victim": {"token": 0.0005}})
    stage.cluster.inject(
        SlowQueue(HEARTBEAT + GRACE + 4.0, match=VICTIM)
    )  # it waits longer than the old one lives
    stage.start()
    stage.until("the old job's end", lambda: stage.cluster.job(old.id).ended, HEARTBEAT + GRACE + 10)
    assert stage.finish(60) == 0, stage.output
    row = stage.row("victim", "struck")
    assert row is not None
    assert row["status"] == "passed"
    assert row["job_id"] != str(old.id)


def nodes_on_their_way_to_the_next_deployment_are_not_lost(stage: Stage) -> None:
    """SIGTERM while a job stops one server to start the next: it is one job, and it is given back."""
    stage.recipes("struck", first_nodes=2)
    profile = stage.project / "workloads" / "gpu_profiles.yaml"
    profile.write_text(
        profile.read_text().replace("exclusive: true", "exclusive: true, reuse_allocation: true")
    )
    stage.cluster.simulate(
        models={"org/first": {"shutdown_seconds": 2.0}, "org/victim": {"load_seconds": 30.0}}
    )
    stage.start("--gpubench-prefetch", "0")
    stage.until("the take-over", lambda: "takes over" in stage.output, 60)
    stage.signal(signal.SIGTERM)
    assert stage.finish(40) == 2, stage.output
    assert [job.ended for job in stage.ours()] == [True]
    stage.until("no process of ours", lambda: not stage.processes(), 10)
    assert stage.journal() == []


def an_ignored_hangup_stays_ignored(stage: Stage) -> None:
    """Under nohup a SIGHUP is not an interruption: the run goes on and passes."""
    stage.recipes("struck")
    stage.start(prefix=("nohup",))
    stage.until("a job", lambda: stage.job() is not None, 60)
    stage.signal(signal.SIGHUP)
    assert stage.finish(60) == 0, stage.output


SCENARIOS: tuple[Callable[[Stage], None], ...] = (
    a_submission_that_timed_out_is_adopted,
    a_reason_that_never_clears_fails_soon,
    a_queue_that_is_long_fails_at_max_pending,
    a_release_that_slurm_never_answers_is_bounded_and_told,
    nodes_that_are_not_given_back_are_an_error,
    a_job_asked_for_ahead_goes_with_the_others,
    a_job_asked_for_ahead_is_reaped,
    the_job_of_a_killed_run_does_not_live_on_the_next_ones_heartbeat,
    nodes_on_their_way_to_the_next_deployment_are_not_lost,
    an_ignored_hangup_stays_ignored,
)


def _play(scenario: Callable[[Stage], None], folder: Path) -> None:
    folder.mkdir(parents=True)
    stage = Stage(folder, teardown=8.0)
    try:
        scenario(stage)
        assert stage.bystander_runs()
    finally:
        stage.close()


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead[None]]:
    folder = tmp_path_factory.mktemp("scenarios")
    asked = [
        item.callspec.params.get("scenario") for item in request.session.items if hasattr(item, "callspec")
    ]
    todo = [scenario for scenario in SCENARIOS if scenario in asked]
    ahead = Ahead({s.__name__: partial(_play, s, folder / s.__name__) for s in todo})
    yield ahead
    ahead.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[Stage], None], played: Ahead[None]) -> None:
    played.result(scenario.__name__)
