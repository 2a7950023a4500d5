"""xdist: a deployment is never split over workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling

__all__ = ["DeploymentScheduling"]


class DeploymentScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no type hints here
    """Groups items by deployment; other items by file, as ``--dist loadfile`` does."""

    def __init__(self, config: Any, log: Any, scopes: Mapping[str, str]) -> None:
        super().__init__(config, log)
        self._scopes = scopes

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes.get(nodeid, nodeid.split("::", 1)[0])
