"""Time limits and the purge of ended jobs: seconds on the mock, minutes on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from .backends import MockBackend
from .slow import SlowChecks
from .slow_checks import SLOW_CHECKS


@pytest.mark.parametrize("name", sorted(SLOW_CHECKS))
def test_slow_check_on_the_mock(tmp_path: Path, folder: Path, name: str) -> None:
    age = 1.0 if "purge" in name else 300.0
    backend = MockBackend(tmp_path / "cluster", minute=1.0, min_job_age=age)
    SLOW_CHECKS[name](backend, folder)
    backend.settle()


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(SLOW_CHECKS))
def test_slow_check_on_a_real_slurm(slow_checks: SlowChecks, name: str) -> None:
    slow_checks.result(name)
