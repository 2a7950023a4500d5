"""The two clusters that every check of this folder runs on: a mocked one and a real one.

Both have the idle nodes gb300-[01-02] with gpu:b300:4 each, one partition ``batch`` with a limit of four
hours and 30 minutes by default, no accounting, and a KillWait of seconds. A requeued job waits for seconds,
not for Slurm's two minutes, so that its second start can be seen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from e2e.real_slurm import RealSlurm
from e2e.slurm_conf import ClusterSpec

from pytest_gpubench.mock import ControllerDown, ControllerHangs, MockCluster

KILL_WAIT = 2
MESSAGE_TIMEOUT = 2
"""Seconds after which a client gives a silent controller up (Slurm's default is 10)."""
REQUEUE_DELAY = 5
"""Seconds that a requeued job waits for: the life of a credential (Slurm's default is 120, its least 5)."""


class Backend(ABC):
    """A cluster, and what cannot be done to it through its commands."""

    name: str

    @abstractmethod
    def env(self) -> Mapping[str, str]:
        """The environment in which Slurm's commands are this cluster's."""

    @abstractmethod
    def controller_down(self) -> AbstractContextManager[None]:
        """Within the block slurmctld does not run; what runs on the nodes goes on."""

    @abstractmethod
    def controller_hung(self) -> AbstractContextManager[None]:
        """Within the block slurmctld takes requests and answers none; it does what it took afterwards."""

    @abstractmethod
    def settle(self) -> None:
        """End all jobs, take all nodes back, and check that nothing went wrong unseen."""


class MockBackend(Backend):
    """The mock; ``minute`` is how long one of a time limit lasts."""

    name = "mock"

    def __init__(self, folder: Path, *, minute: float = 60.0, min_job_age: float = 300.0) -> None:
        self.cluster = MockCluster(
            folder,
            kill_wait=1.5,
            minute=minute,
            min_job_age=min_job_age,
            requeue_delay=2.0,
            message_timeout=0.5,
        )

    def env(self) -> Mapping[str, str]:
        return self.cluster.env()

    @contextlib.contextmanager
    def controller_down(self) -> Iterator[None]:
        self.cluster.inject(ControllerDown())
        try:
            yield
        finally:
            self.cluster.clear(ControllerDown)

    @contextlib.contextmanager
    def controller_hung(self) -> Iterator[None]:
        self.cluster.inject(ControllerHangs())
        try:
            yield
        finally:
            self.cluster.clear(ControllerHangs)

    def settle(self) -> None:
        self.cluster.close()
        errors = [path.read_text() for path in self.cluster.folder.glob("spool/*/*error")]
        assert errors == []
        assert self.cluster.processes() == []


class RealBackend(Backend):
    """A real Slurm on this machine."""

    name = "real"

    def __init__(self, slurm: RealSlurm) -> None:
        self.slurm = slurm

    def env(self) -> Mapping[str, str]:
        return self.slurm.env()

    def controller_down(self) -> AbstractContextManager[None]:
        return self.slurm.controller_down()

    def controller_hung(self) -> AbstractContextManager[None]:
        return self.slurm.controller_hung()

    def settle(self) -> None:
        self.slurm.reset()


@contextlib.contextmanager
def real_backend(*, min_job_age: int = 300) -> Iterator[RealBackend]:
    """A real cluster of its own, gone afterwards."""
    # Not below tmp_path: the daemons' socket paths may not be longer than 107 characters.
    home = Path(tempfile.mkdtemp(prefix="gpubench-slurm-"))
    folder = home / "slurm"
    options = {
        "AuthInfo": f"socket={folder}/munge/socket,cred_expire={REQUEUE_DELAY}",
        "MessageTimeout": str(MESSAGE_TIMEOUT),
    }
    spec = ClusterSpec(kill_wait_s=KILL_WAIT, min_job_age_s=min_job_age, options=options)
    try:
        with RealSlurm(folder, spec) as slurm:
            yield RealBackend(slurm)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def shared_folder() -> Path:
    """A new folder that every node sees."""
    return Path(tempfile.mkdtemp(prefix="gpubench-check-", dir=os.environ.get("TMPDIR")))
