"""Fixtures of the end-to-end tests; everything below this folder is marked `e2e`.

Where a part is missing the tests skip and say which. With GPUBENCH_REQUIRE_E2E=1, as in CI, they fail
instead, so that a lost installation step cannot pass for green.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from .real_slurm import RealSlurm
from .slurm_parts import missing_parts
from .vllm_cpu import VllmCpu, find_vllm_cpu

HERE = Path(__file__).parent
USED = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[USED] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # First, so that `-m "not e2e"` sees the marker.
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if used := config.stash.get(USED, {}):
        versions = ", ".join(f"{name} {version}" for name, version in used.items())
        terminalreporter.write_line(f"e2e used: {versions}")


def unavailable(reason: str) -> NoReturn:
    """Skips, or fails where GPUBENCH_REQUIRE_E2E=1 says that all parts have to be there."""
    if os.environ.get("GPUBENCH_REQUIRE_E2E") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def real_slurm(pytestconfig: pytest.Config) -> Iterator[RealSlurm]:
    """One real cluster for the session: gb300-[01-02], four GPUs each; tests share it through `slurm`."""
    if missing := missing_parts():
        unavailable(f"no real Slurm here: {', '.join(missing)}; see .ci/install-system")
    # Not below tmp_path: the daemons' socket paths may not be longer than 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="gpubench-slurm-"))
    try:
        with RealSlurm(folder / "slurm") as cluster:
            pytestconfig.stash.setdefault(USED, {})["Slurm"] = cluster.version
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(real_slurm: RealSlurm) -> Iterator[RealSlurm]:
    """The session's cluster, idle at the start and put back afterwards (RealSlurm.reset)."""
    yield real_slurm
    real_slurm.reset()


@pytest.fixture(scope="session")
def vllm_cpu(pytestconfig: pytest.Config) -> VllmCpu:
    """The environment with vLLM's CPU build and the tiny OPT model, as .ci/make-vllm-venv makes them."""
    found = find_vllm_cpu()
    if isinstance(found, str):
        unavailable(found)
    pytestconfig.stash.setdefault(USED, {}).update(found.versions)
    return found
