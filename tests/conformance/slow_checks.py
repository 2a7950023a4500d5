"""The slow checks by name: those of the commands, and those of our client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mock.slurm_conformance import CHECKS, SLOW

from . import client_checks
from .slow import Check


def _of_commands(check: Callable[[Mapping[str, str], Path], None]) -> Check:
    return lambda backend, folder: check(backend.env(), folder)


SLOW_CHECKS: dict[str, Check] = {
    **{name: _of_commands(CHECKS[name]) for name in SLOW},
    "client_time_limit": client_checks.check_time_limit,
    "client_purge": client_checks.check_purge,
}
