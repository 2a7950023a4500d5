"""Our client makes the same of the mock and of a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from .backends import Backend
from .client_checks import CHECKS as JOBS
from .controller_checks import CHECKS as CONTROLLER
from .reap_checks import CHECKS as REAP

ALL = {
    **{f"job_{name}": check for name, check in JOBS.items()},
    **{f"controller_{name}": check for name, check in CONTROLLER.items()},
    **{f"reap_{name}": check for name, check in REAP.items()},
}


@pytest.mark.parametrize("name", sorted(ALL))
def test_check(backend: Backend, folder: Path, name: str) -> None:
    ALL[name](backend, folder)
