"""What keeps jobs from being left and deaths from being missed, piece by piece, without a cluster."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakes import READY, FakeBackend, FakeClock, FakeProbe, FakeProcess, deployment

from pytest_gpubench.errors import ServerError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.serving.backend import Look
from pytest_gpubench.serving.client_step import ClientStep
from pytest_gpubench.serving.diagnose import Evidence, diagnose
from pytest_gpubench.serving.heartbeat import Heartbeat
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.serving.server import Server
from pytest_gpubench.slurm.owner import Owner
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState
from pytest_gpubench.workers import WorkerRoll

UNREACHED = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller\n"


# -- signals -------------------------------------------------------------------------------------------------


def test_a_second_signal_does_not_cut_short_what_the_first_set_off(capfd: pytest.CaptureFixture[str]) -> None:
    interrupts = Interrupts()
    restore = interrupts.install()
    done: list[str] = []

    def struck_twice() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("unwound")

    try:
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            struck_twice()
    finally:
        restore()
    assert done == ["unwound"]
    assert "giving the nodes back" in capfd.readouterr().err


def test_at_the_end_of_a_run_signals_are_only_noted() -> None:
    interrupts = Interrupts()
    restore = interrupts.install()
    try:
        with interrupts.absorb(), interrupts.shield():
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM
        with interrupts.shield():
            pass  # nothing is left over to be raised here
    finally:
        restore()


# -- the heartbeat -------------------------------------------------------------------------------------------


def test_a_beat_overwrites_in_place_so_that_a_full_disk_takes_it(tmp_path: Path) -> None:
    heart = Heartbeat(interval=60.0)
    file = tmp_path / "heartbeat"
    heart.add(file)
    first, inode = file.read_bytes(), file.stat().st_ino
    heart.add(file)
    heart.close()
    assert file.read_bytes() != first
    assert (len(file.read_bytes()), file.stat().st_ino) == (len(first), inode)


# -- deaths --------------------------------------------------------------------------------------------------


def _dead() -> Look:
    return replace(READY, failure=ServerError(Reason.SERVER_EXITED, "rank-0 ended with exit code 1"))


def test_a_request_that_hangs_is_given_up_when_a_rank_dies() -> None:
    clock = FakeClock()
    backend = FakeBackend(clock, [(0, READY)])
    probe = FakeProbe(clock)
    answered = threading.Event()

    def hang() -> None:
        backend.looks.append((0, _dead()))
        answered.wait(10)

    probe.on_complete = hang
    server = Server(deployment(), backend, probe, clock, Narrator())
    try:
        with pytest.raises(ServerError, match="rank-0"):
            server.start()
    finally:
        answered.set()


def test_a_client_that_ends_before_the_death_is_noticed_blames_the_server() -> None:
    clock = FakeClock()
    backend = FakeBackend(clock, [(0, READY), (9, _dead())])
    probe = FakeProbe(clock)
    server = Server(deployment(), backend, probe, clock, Narrator())
    server.start()
    backend.client_seconds = 0.0
    clock.now = 1007.0
    probe.healthy_after = 1e9  # it is dead already, only the note of it is not there yet
    with pytest.raises(ServerError, match="rank-0"):
        server.run_client(["client"], "log", "p", limit=10)


# -- why -----------------------------------------------------------------------------------------------------


def _evidence(state: JobState, ended: str = "", **changes: object) -> Evidence:
    base = Evidence(
        info=JobInfo(JobId(7), state, source="squeue"),
        ended=ended,
        exits={},
        started=frozenset(),
        tails={"rank-0": UNREACHED},
        nodes={"rank-0": "n1"},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "reason", "words"),
    [
        (_evidence(JobState.FAILED, unwritable="No space left"), Reason.RESULTS_UNWRITABLE, "No space"),
        (_evidence(JobState.FAILED, "results folder not writable"), Reason.RESULTS_UNWRITABLE, "disk full"),
        (
            _evidence(JobState.FAILED, info=JobInfo(JobId(7), JobState.FAILED, exit_code=74)),
            Reason.RESULTS_UNWRITABLE,
            "disk full",
        ),
        (_evidence(JobState.FAILED, "requeued"), Reason.REQUEUED, "another one"),
        (
            _evidence(JobState.FAILED, "rank rank-0 1", exits={"rank-0": 1}),
            Reason.SLURM_UNREACHABLE,
            "contact",
        ),
        (
            _evidence(JobState.FAILED, "rank rank-0 1", exits={"rank-0": 1}, unwritable="No space left"),
            Reason.SLURM_UNREACHABLE,
            "contact",
        ),
    ],
)  # fmt: skip
def test_the_cause_is_told_apart(evidence: Evidence, reason: Reason, words: str) -> None:
    error = diagnose(evidence)
    assert error.reason is reason
    assert words in error.message


# -- client steps --------------------------------------------------------------------------------------------


class _Runs:
    """Each start writes its text into the log and ends at once with its code."""

    def __init__(self, log: Path, clock: FakeClock, *runs: tuple[str, int]) -> None:
        self.log, self.clock, self.runs, self.started = log, clock, list(runs), 0

    def __call__(self) -> FakeProcess:
        text, code = self.runs[min(self.started, len(self.runs) - 1)]
        self.started += 1
        with open(self.log, "a") as sink:
            sink.write(text)
        return FakeProcess(self.clock, 0.0, code)


def _to_the_end(step: ClientStep, clock: FakeClock) -> int:
    while (status := step.poll()) is None:
        clock.sleep(0.25)
    return status


def test_a_step_waits_for_the_controller_as_long_as_nothing_ran(tmp_path: Path) -> None:
    clock = FakeClock()
    runs = _Runs(tmp_path / "log", clock, (UNREACHED, 1), (UNREACHED, 1), ("Successful requests: 4\n", 0))
    step = ClientStep(runs, tmp_path / "log", clock, patience=300.0)
    assert _to_the_end(step, clock) == 0
    assert runs.started == 3


def test_a_step_gives_up_in_time(tmp_path: Path) -> None:
    clock = FakeClock()
    runs = _Runs(tmp_path / "log", clock, (UNREACHED, 1))
    step = ClientStep(runs, tmp_path / "log", clock, patience=20.0)
    assert _to_the_end(step, clock) == 1
    assert 8 <= runs.started <= 12


def test_a_client_that_ran_is_never_run_again(tmp_path: Path) -> None:
    clock = FakeClock()
    runs = _Runs(tmp_path / "log", clock, (f"Starting the run\n{UNREACHED}", 1))
    assert _to_the_end(ClientStep(runs, tmp_path / "log", clock, patience=300.0), clock) == 1
    assert runs.started == 1


def test_a_terminated_step_stays_ended(tmp_path: Path) -> None:
    clock = FakeClock()
    runs = _Runs(tmp_path / "log", clock, (UNREACHED, 1))
    step = ClientStep(runs, tmp_path / "log", clock, patience=300.0)
    assert step.poll() is None
    step.terminate(1.0)
    clock.sleep(10.0)
    assert step.poll() is not None
    assert runs.started == 1


# -- workers -------------------------------------------------------------------------------------------------


def test_the_roll_knows_living_workers_and_forgets_those_that_left(tmp_path: Path) -> None:
    roll = WorkerRoll(tmp_path, "run-1")
    roll.enter("gw0")
    assert roll.living() == {"gw0": Owner.current()}
    assert WorkerRoll(tmp_path, "run-2").present() == {}
    roll.leave("gw0")
    assert roll.present() == {}


def test_recalled_workers_get_the_signal_and_the_wait_ends(tmp_path: Path) -> None:
    roll = WorkerRoll(tmp_path, "run-1")
    roll.enter("gw0")
    clock = FakeClock()
    interrupts = Interrupts()
    restore = interrupts.install()
    try:
        with interrupts.absorb():
            left = roll.recall(clock, timeout=5.0)
    finally:
        restore()
    assert interrupts.received == signal.SIGTERM
    assert left == ["gw0"]
    assert clock.now >= 1005.0
