"""The supervisor: phases, deadlines, deaths; without a process or a second of waiting."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakes import READY, FakeBackend, FakeClock, FakeProbe, deployment

from pytest_gpubench.errors import InfraError, ServerError, SlurmError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.serving.backend import Api, Look
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.serving.server import Server

PENDING = Look(pending=True, detail="Resources")
ALLOCATED = replace(READY, started=frozenset(), apis=())


def dead() -> Look:
    return replace(READY, failure=ServerError(Reason.SERVER_EXITED, "rank-1 on n2 ended with exit code 1"))


def make(
    looks: list[tuple[float, Look]] | None = None, healthy_after: float = 0.0, **changes: object
) -> tuple[Server, FakeBackend, FakeProbe, FakeClock]:
    clock = FakeClock()
    backend = FakeBackend(clock, **({"looks": looks} if looks else {}))  # type: ignore[arg-type]
    probe = FakeProbe(clock, healthy_after)
    return (
        Server(deployment(**changes), backend, probe, clock, Narrator(now=clock.monotonic)),
        backend,
        probe,
        clock,
    )


def test_phases_are_timed_apart_and_the_queue_counts_for_itself() -> None:
    server, _, _, _ = make([(0, PENDING), (40, ALLOCATED), (45, READY)], healthy_after=60)
    server.start()
    seconds = server.timings.seconds
    assert seconds[Phase.QUEUE] == pytest.approx(40, abs=1)
    assert seconds[Phase.IMPORT] == pytest.approx(5, abs=1)
    assert seconds[Phase.LOAD] == pytest.approx(15, abs=1)
    assert server.version == "0.32.0"
    assert server.nodes == ("n1",)


@pytest.mark.parametrize(
    ("looks", "healthy_after", "reason", "phase", "setting"),
    [
        ([(0, PENDING)], 0, Reason.QUEUE_TIMEOUT, Phase.QUEUE, "max_pending"),
        ([(0, ALLOCATED)], 0, Reason.IMPORT_TIMEOUT, Phase.IMPORT, "deadlines.image"),
        ([(0, READY)], 1e9, Reason.LOAD_TIMEOUT, Phase.LOAD, "deadlines.load"),
    ],
)
def test_every_phase_has_a_deadline_that_names_its_setting(
    looks: list[tuple[float, Look]], healthy_after: float, reason: Reason, phase: Phase, setting: str
) -> None:
    server, _, _, clock = make(looks, healthy_after)
    began = clock.now
    with pytest.raises(InfraError) as caught:
        server.start()
    assert caught.value.reason is reason
    assert caught.value.phase is phase
    assert setting in caught.value.message
    assert "seconds per phase" in caught.value.details
    assert clock.now - began < 150


def test_an_answering_health_that_serves_nothing_is_a_ready_timeout() -> None:
    server, _, probe, _ = make()
    probe.problem = "HTTP 500: engine dead"
    with pytest.raises(InfraError) as caught:
        server.start()
    assert caught.value.reason is Reason.READY_TIMEOUT
    assert "engine dead" in caught.value.message


def test_the_last_pending_reason_is_in_the_message() -> None:
    server, _, _, _ = make([(0, PENDING), (20, Look(pending=True, detail="ReqNodeNotAvail, x:gb[01-04]"))])
    with pytest.raises(
        InfraError, match=r"not scheduled in 10\d s, last reason: ReqNodeNotAvail, x:gb\[01-04\]"
    ):
        server.start()


def test_a_job_that_slurm_was_not_asked_for_yet_is_not_told_as_pending() -> None:
    server, _, _, _ = make([(0, Look(pending=True)), (5, PENDING), (20, READY)])
    told: list[tuple[str, str]] = []
    server.narrator.send_to(lambda event: told.append((event.kind, event.detail)))
    server.start()
    assert [detail for kind, detail in told if kind == "pending"] == ["Resources"]


def test_fc_15_somebody_elses_server_is_never_measured() -> None:
    server, _, probe, _ = make()
    probe.names = ["other/model"]
    with pytest.raises(InfraError) as caught:
        server.start()
    assert caught.value.reason is Reason.FOREIGN_SERVER
    assert "port 8000 on n1 already answers as other/model" in caught.value.message
    assert "org/model" in caught.value.message


def test_fc_13_a_follower_that_dies_while_loading_ends_the_wait_at_once() -> None:
    server, _, _, clock = make([(0, READY), (8, dead())], healthy_after=1e9)
    began = clock.now
    with pytest.raises(ServerError) as caught:
        server.start()
    assert clock.now - began < 10
    assert caught.value.phase is Phase.LOAD
    assert caught.value.tails[0].text == "last words"


def test_fc_13_a_death_during_the_benchmark_ends_the_client() -> None:
    server, backend, _, clock = make([(0, READY), (5, dead())])
    backend.client_seconds = 1e9
    server.start()
    with pytest.raises(ServerError) as caught:
        server.run_client(["client"], "log", "p", limit=1e9)
    assert caught.value.phase is Phase.BENCH
    assert backend.processes[0].terminated
    assert clock.now < 1010


def test_a_client_that_ends_because_its_server_died_blames_the_server() -> None:
    server, backend, _, clock = make([(0, READY), (3, dead())])
    backend.client_seconds = 3.0
    server.start()
    clock.now = 1003.0
    backend.client_seconds = 0.0
    with pytest.raises(ServerError):
        server.run_client(["client"], "log", "p", limit=10)


def test_a_client_that_hangs_is_ended_at_its_deadline() -> None:
    server, backend, _, _ = make()
    backend.client_seconds = 1e9
    server.start()
    with pytest.raises(InfraError) as caught:
        server.run_client(["client"], "client.log", "p", limit=30)
    assert caught.value.reason is Reason.CLIENT_HUNG
    assert "deadlines.bench" in caught.value.message
    assert backend.processes[0].terminated


def test_the_clients_exit_code_is_handed_on_without_judging_it() -> None:
    server, backend, _, _ = make()
    backend.client_code = 3
    server.start()
    assert server.run_client(["client"], "log", "p", limit=30) == 3


def test_a_launch_that_is_refused_says_so_and_has_a_phase() -> None:
    server, backend, _, _ = make()
    backend.launch_error = SlurmError(Reason.SUBMIT_REFUSED, "sbatch: error: Invalid qos")
    with pytest.raises(SlurmError) as caught:
        server.start()
    assert caught.value.phase is Phase.QUEUE
    assert "Invalid qos" in str(caught.value)


def test_a_router_must_answer_before_the_server_is_ready() -> None:
    from pytest_gpubench.recipe.types import RouterSettings

    routed = replace(READY, apis=(*READY.apis, Api("router", "127.0.0.1", 9000, "n1")))
    server, _, _, _ = make([(0, READY), (6, routed)], router=RouterSettings())
    server.start()
    assert server.timings.seconds[Phase.READY] >= 5
    assert server.url == "http://127.0.0.1:9000"


def test_stop_counts_what_was_held() -> None:
    server, _, _, clock = make()
    server.start()
    clock.now += 100
    assert server.stop()
    assert server.held_seconds >= 100
