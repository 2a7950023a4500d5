"""Folders and runs for the field cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin.project import Project

from .cases import Recipes
from .site import SiteRun, run_site
from .trouble import Trouble, run_trouble


@pytest.fixture
def recipes(tmp_path: Path) -> Recipes:
    """A folder for a recipe."""
    return Recipes(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project to run pytest in."""
    return Project(tmp_path / "project")


@pytest.fixture(scope="session")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Trouble:
    """The run in which everything goes wrong, once for all modules."""
    return run_trouble(tmp_path_factory.mktemp("trouble"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteRun:
    """The run on a site that loses text."""
    return run_site(tmp_path_factory.mktemp("site"))
