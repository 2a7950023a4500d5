"""A project per test, and the runs that several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

# Pytester forgets what a run inside this process imports; C extensions do not bear a second import.
import pytest_gpubench.activation
import pytest_gpubench.point_plan
import pytest_gpubench.recipe.inferencex  # noqa: F401

from .project import CI_NAMES, Project


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside this process must not see the caller's CI."""
    for name in CI_NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project of its own."""
    return Project(tmp_path / "project")
