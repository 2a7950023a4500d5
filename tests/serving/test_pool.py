"""One server per deployment; failures remembered; a broken one rebuilt once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakes import READY, FakeBackend, FakeClock, FakeProbe, deployment

from pytest_gpubench.errors import InfraError, ServerError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Deployment
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.serving.pool import ServerPool
from pytest_gpubench.serving.server import Server


class Maker:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.backends: list[FakeBackend] = []
        self.fail: list[InfraError] = []

    def __call__(self, deployment: Deployment, attempt: int) -> Server:
        backend = FakeBackend(self.clock)
        if self.fail:
            backend.launch_error = self.fail.pop(0)
        self.backends.append(backend)
        return Server(
            deployment, backend, FakeProbe(self.clock), self.clock, Narrator(now=self.clock.monotonic)
        )


A = deployment(id="a")
B = deployment(id="b")
LOST = ServerError(Reason.NODE_FAILED, "a node failed")


def test_points_of_one_deployment_share_one_start() -> None:
    make = Maker()
    pool = ServerPool(make)
    assert pool.acquire(A) is pool.acquire(A)
    assert len(make.backends) == 1


def test_a_deployment_that_cannot_start_fails_its_other_points_at_once_with_the_first_cause() -> None:
    make = Maker()
    make.fail = [ServerError(Reason.IMPORT_FAILED, "no such image")]
    pool = ServerPool(make)
    with pytest.raises(InfraError, match="no such image"):
        pool.acquire(A)
    for _ in range(3):
        with pytest.raises(InfraError) as caught:
            pool.acquire(A)
        assert caught.value.reason is Reason.DEPLOYMENT_FAILED
        assert "no such image" in caught.value.message
    assert len(make.backends) == 1
    assert make.backends[0].stops == 1


def test_infrastructure_failures_are_repeated_only_as_often_as_allowed() -> None:
    make = Maker()
    make.fail = [LOST, LOST]
    assert ServerPool(make, start_attempts=3).acquire(A)
    assert len(make.backends) == 3
    make = Maker()
    make.fail = [LOST, LOST]
    with pytest.raises(InfraError):
        ServerPool(make, start_attempts=2).acquire(A)


def test_an_unhealthy_server_is_rebuilt_once() -> None:
    make = Maker()
    pool = ServerPool(make)
    pool.acquire(A)
    make.backends[0].looks = [(0, replace(READY, failure=LOST))]
    assert pool.acquire(A)
    assert len(make.backends) == 2
    assert make.backends[0].stops == 1
    make.backends[1].looks = [(0, replace(READY, failure=LOST))]
    with pytest.raises(InfraError, match="rebuilt once"):
        pool.acquire(A)


def test_release_others_keeps_what_is_needed_and_names_what_was_not_confirmed() -> None:
    make = Maker()
    pool = ServerPool(make)
    pool.acquire(A)
    pool.acquire(B)
    make.backends[0].released = False
    pool.release_others([B])
    assert make.backends[0].stops == 1
    assert make.backends[1].stops == 0
    assert pool.unreleased == ["r/a: job 42"]


def test_an_interrupt_while_starting_releases_before_it_goes_on() -> None:
    make = Maker()
    pool = ServerPool(make)

    def interrupted(deployment: Deployment, attempt: int) -> Server:
        server = make(deployment, attempt)
        server.wait_ready = lambda: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
        return server

    pool = ServerPool(interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.acquire(A)
    assert make.backends[0].stops == 1


def test_release_all_stops_every_server_also_when_interrupted() -> None:
    make = Maker()
    pool = ServerPool(make)
    pool.acquire(A)
    pool.acquire(B)

    def stop() -> bool:
        make.backends[0].stops += 1
        raise KeyboardInterrupt

    make.backends[0].stop = stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        pool.release_all()
    assert make.backends[1].stops == 1
