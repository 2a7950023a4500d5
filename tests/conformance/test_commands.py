"""Slurm's commands do the same on the mock and on a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock.slurm_conformance import CHECKS as FIRST
from mock.slurm_conformance import SLOW

from .backends import Backend
from .checks import CHECKS

ALL = {name: check for name, check in {**FIRST, **CHECKS}.items() if name not in SLOW}


@pytest.mark.parametrize("name", sorted(ALL))
def test_check(backend: Backend, folder: Path, name: str) -> None:
    ALL[name](backend.env(), folder)
