"""The fixtures of a point. Override any of them in a conftest to change what is measured or demanded."""

from __future__ import annotations

import pytest

from pytest_gpubench.recipe.types import Gates, Point
from pytest_gpubench.serving.server import Server
from pytest_gpubench.session import PointRun, session_of

__all__ = ["gpubench_gates", "gpubench_run", "gpubench_server"]


@pytest.fixture
def gpubench_run(request: pytest.FixtureRequest, gpubench_point: Point) -> PointRun:
    """The run of one point: measures, judges, writes the row. Skips what is not to be run."""
    run = session_of(request.config).point_run(request.node, gpubench_point)
    run.prepare()
    return run


@pytest.fixture
def gpubench_server(gpubench_run: PointRun) -> Server:
    """The running server of the point's deployment; shared with the other points of that deployment."""
    return gpubench_run.acquire()


@pytest.fixture
def gpubench_gates(gpubench_point: Point) -> Gates:
    """What must hold; the recipe's gates unless overridden."""
    return gpubench_point.gates
