"""Fixtures of the mock's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpubench.mock import MockCluster

from .jobs import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A quick cluster of two nodes, and a shared folder; nothing of it is alive afterwards."""
    folder = tmp_path / "shared"
    folder.mkdir()
    with MockCluster(tmp_path / "cluster", kill_wait=0.5, requeue_delay=0.2) as cluster:
        found = Site(cluster, folder)
        try:
            yield found
        finally:
            found.stop()
        errors = [path.read_text() for path in (tmp_path / "cluster").glob("spool/*/*error")]
    assert cluster.processes() == []
    assert errors == []
