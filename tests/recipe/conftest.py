"""Fixtures of the recipe tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_helpers import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty recipe folder."""
    return Folder(tmp_path)
