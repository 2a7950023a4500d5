"""The backends as fixtures. Everything on the real Slurm is marked `e2e`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.conftest import USED, unavailable
from e2e.slurm_parts import missing_parts

from .backends import Backend, MockBackend, RealBackend, real_backend
from .slow import SlowChecks
from .slow_checks import SLOW_CHECKS

HERE = Path(__file__).parent
LONG = """
cancel_step controller_adopted controller_words end_states files folders gpus_are_given_out gpus_of_steps
job_requeue job_status job_waits_for_ever kill_on_bad_exit more_wrong_options node_failure_requeues
nodes_are_told overlap reap_cancels_what_the_journal_names reap_says_when_slurm_does_not_answer sharing
signals_need_a_job srun_alone srun_eats_input srun_killed srun_term starts_again step_ends_with_job
step_environment step_exit_status step_export step_output step_refusals who_gets_signals containers defaults
queue_order wrong_options unknown_ids export_none
"""
"""Checks that run more than a dozen commands: on the mock they are marked `slow`."""

BACKENDS = [pytest.param("mock"), pytest.param("real", marks=pytest.mark.e2e)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if (
            params.get("backend") == "mock"
            and params.get("name") in LONG.split()
            and HERE in item.path.parents
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def real_parts() -> None:
    """Skips, or fails in CI, where a real Slurm cannot be had."""
    if missing := missing_parts():
        unavailable(f"no real Slurm here: {', '.join(missing)}; see .ci/install-system")


@pytest.fixture(scope="session")
def slow_checks(request: pytest.FixtureRequest, real_parts: None) -> Iterator[SlowChecks]:
    """Those of the slow checks that were selected, begun with the first check on the real Slurm."""
    wanted = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.get_closest_marker("e2e") is not None
        and item.originalname == "test_slow_check_on_a_real_slurm"
    }
    checks = SlowChecks({name: check for name, check in SLOW_CHECKS.items() if name in wanted})
    yield checks
    checks.close()


@pytest.fixture(scope="session")
def real(pytestconfig: pytest.Config, real_parts: None, slow_checks: SlowChecks) -> Iterator[RealBackend]:
    """One real cluster for the session."""
    with real_backend() as backend:
        pytestconfig.stash.setdefault(USED, {})["Slurm"] = backend.slurm.version
        yield backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Each of the two clusters, idle at the start; nothing of the check is left on it afterwards."""
    found: Backend = (
        MockBackend(tmp_path / "cluster") if request.param == "mock" else request.getfixturevalue("real")
    )
    yield found
    found.settle()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that every node sees."""
    made = tmp_path / "shared"
    made.mkdir()
    return made
