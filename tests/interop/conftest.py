"""Projects of users who bring recipes of other harnesses, and pytest run on them from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin.project import Project

DATA = Path(__file__).resolve().parents[1] / "data"
"""Reference recipes of the other harnesses."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project of its own."""
    return Project(tmp_path / "project")
