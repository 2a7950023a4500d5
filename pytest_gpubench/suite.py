"""The tests that every point runs. A project may name its own module in ini ``gpubench_suite``.

The functions are short on purpose: fixtures do the work, and a project overrides a fixture or a test
in its conftest or suite without touching the plugin.
"""

from __future__ import annotations

from pytest_gpubench.recipe.types import Gates
from pytest_gpubench.serving.server import Server
from pytest_gpubench.session import PointRun

__all__ = ["test_accuracy", "test_serving", "test_slo"]


def test_serving(gpubench_run: PointRun, gpubench_server: Server, gpubench_gates: Gates) -> None:
    """Measure one load and judge it."""
    gpubench_run.measure(gpubench_server)
    gpubench_run.judge(gpubench_gates)


def test_accuracy(gpubench_run: PointRun, gpubench_server: Server, gpubench_gates: Gates) -> None:
    """Evaluate one task on the same server and judge its scores."""
    gpubench_run.evaluate(gpubench_server)
    gpubench_run.judge(gpubench_gates)


def test_slo(gpubench_run: PointRun, gpubench_server: Server, gpubench_gates: Gates) -> None:
    """Find the highest load that meets the ceilings and judge it by its floor."""
    gpubench_run.search(gpubench_server)
    gpubench_run.judge(gpubench_gates)
