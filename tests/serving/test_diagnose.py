"""Whose fault it was: Slurm's record, the script's note, the ranks' exits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpubench.reasons import Reason
from pytest_gpubench.serving.diagnose import Evidence, diagnose
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState

JOB = JobId(4711)


def evidence(state: JobState, ended: str = "", **changes: object) -> Evidence:
    base = Evidence(
        info=JobInfo(JOB, state, source="squeue"),
        ended=ended,
        exits={},
        started=frozenset({"rank-0", "rank-1"}),
        tails={"rank-0": "loading\n", "rank-1": "loading\nCUDA out of memory"},
        nodes={"rank-0": "gb-a01", "rank-1": "gb-a02"},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (JobState.CANCELLED, Reason.CANCELLED),
        (JobState.TIMEOUT, Reason.TIME_LIMIT),
        (JobState.NODE_FAIL, Reason.NODE_FAILED),
        (JobState.PREEMPTED, Reason.PREEMPTED),
        (JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY),
        (JobState.REQUEUED, Reason.REQUEUED),
    ],
)
def test_what_slurm_did_comes_before_what_that_did_to_the_ranks(state: JobState, reason: Reason) -> None:
    error = diagnose(evidence(state, "rank rank-0 143", exits={"rank-0": 143}))
    assert error.reason is reason
    assert "4711" in error.message


def test_a_rank_that_ends_is_named_with_node_code_and_last_line() -> None:
    error = diagnose(evidence(JobState.FAILED, "rank rank-1 1", exits={"rank-1": 1}))
    assert error.reason is Reason.SERVER_EXITED
    assert error.message == "rank-1 on gb-a02 ended with exit code 1; last line: CUDA out of memory"
    assert "cancelled by this run: no" in error.details


def test_exit_code_zero_is_a_death_too() -> None:
    error = diagnose(evidence(JobState.COMPLETED, "rank rank-0 0", exits={"rank-0": 0}))
    assert error.reason is Reason.SERVER_EXITED
    assert "exit code 0" in error.message


def test_a_signal_is_named() -> None:
    error = diagnose(evidence(JobState.FAILED, "rank rank-0 137", exits={"rank-0": 137}))
    assert "SIGKILL" in error.message


def test_an_external_cancel_that_slurm_forgot_is_still_told_from_an_engine_error() -> None:
    error = diagnose(evidence(JobState.GONE, "signal TERM"))
    assert error.reason is Reason.CANCELLED


def test_an_image_that_does_not_start_is_an_import_failure_with_the_tools_words() -> None:
    tail = "pyxis: importing docker image\nerror: pyxis: failed to import docker image\n[ERROR] File exists"
    found = evidence(
        JobState.FAILED, "rank rank-0 1", exits={"rank-0": 1}, started=frozenset(), tails={"rank-0": tail}
    )
    error = diagnose(found)
    assert error.reason is Reason.IMPORT_FAILED
    assert "failed to import docker image; [ERROR] File exists" in error.message


@pytest.mark.parametrize(
    ("ended", "says"), [("image import 1", "[ERROR] no space left"), ("image import 124", "deadlines.image")]
)
def test_an_import_for_the_whole_job_that_fails_says_why(ended: str, says: str) -> None:
    tails = {"image": "[INFO] Querying registry\n[ERROR] no space left"}
    error = diagnose(evidence(JobState.FAILED, ended, started=frozenset(), tails=tails))
    assert error.reason is Reason.IMPORT_FAILED
    assert says in error.message


def test_fc_16_a_taken_port_names_port_and_node() -> None:
    tails = {"rank-0": "OSError: [Errno 98] Address already in use: ('0.0.0.0', 12345)"}
    error = diagnose(evidence(JobState.FAILED, "rank rank-0 1", exits={"rank-0": 1}, tails=tails))
    assert error.reason is Reason.PORT_TAKEN
    assert "gb-a01" in error.message
    assert "12345" in error.message


def test_a_staged_model_that_is_missing_names_node_and_path() -> None:
    tails = {"rank-1": "gpubench: model path /scratch/models/V4 is missing on node gb-a02"}
    error = diagnose(evidence(JobState.FAILED, "rank rank-1 66", exits={"rank-1": 66}, tails=tails))
    assert error.reason is Reason.MODEL_NOT_STAGED
    assert "/scratch/models/V4 is missing on node gb-a02" in error.message


def test_the_jobs_own_notes_are_understood() -> None:
    assert diagnose(evidence(JobState.FAILED, "heartbeat lost")).reason is Reason.HEARTBEAT_LOST
    assert diagnose(evidence(JobState.FAILED, "ports taken on gb-a01: 1 2")).reason is Reason.PORT_TAKEN
    assert diagnose(evidence(JobState.FAILED, "nodes 1 of 2")).reason is Reason.NODE_FAILED


def test_a_job_nobody_knows_any_more_is_lost_not_finished() -> None:
    assert diagnose(evidence(JobState.GONE)).reason is Reason.JOB_LOST
