"""The mocked Slurm does what a real one does; the same checks run against a real one in tests/e2e."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpubench.mock import MockCluster

from .slurm_conformance import CHECKS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MockCluster]:
    with MockCluster(tmp_path / "cluster", kill_wait=0.5, minute=1.0, min_job_age=300.0) as cluster:
        yield cluster
        assert not list((tmp_path / "cluster").glob("spool/*/*error"))


@pytest.mark.parametrize("name", sorted(set(CHECKS) - {"purge"}))
def test_check(cluster: MockCluster, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    CHECKS[name](cluster.env(), folder)
    assert cluster.processes() == []


def test_purge(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    with MockCluster(tmp_path / "cluster", min_job_age=0.5) as cluster:
        CHECKS["purge"](cluster.env(), folder)
