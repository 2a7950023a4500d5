"""Everything below this folder is marked `leak`; the measured times are written on demand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .table import OUTCOMES, write

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOMES] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.leak)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("GPUBENCH_LEAK_TABLE") == "write":
        write(session.config.stash[OUTCOMES])
