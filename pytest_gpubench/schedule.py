"""xdist: K deployments at a time, one deployment never split over workers, the expensive ones first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling

__all__ = ["DeploymentScheduling"]


class DeploymentScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no type hints here
    """Units of work are deployments (other items: files), handed out by falling expected cost.

    A worker starts an item only when it knows the item after it, so it always holds a unit in reserve. The
    stock scheduler reserves when two items are left; a unit then waits behind up to two measurements while
    another worker may stand idle. Here it is reserved when one item is left, and behind a unit of a
    single item it is the cheapest one.
    """

    def __init__(
        self, config: Any, log: Any, scopes: Mapping[str, str], costs: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(config, log)
        self.collection: list[str] | None = None
        self._scopes = scopes
        self._costs = costs or {}

    def _split_scope(self, nodeid: str) -> str:
        return self._scopes.get(nodeid, nodeid.split("::", 1)[0])

    def schedule(self) -> None:
        """Hand out the first units; later calls only top up."""
        if self.collection is not None:
            for node in self.nodes:
                self._reschedule(node)
            return
        if not self._check_nodes_have_same_collection():
            return
        self.collection = list(next(iter(self.registered_collections.values())))
        units: dict[str, dict[str, bool]] = {}
        for nodeid in self.collection:
            units.setdefault(self._split_scope(nodeid), {})[nodeid] = False
        for scope in sorted(units, key=self._falling_cost):
            self.workqueue[scope] = units[scope]
        for node in self.nodes[len(units) :]:
            del self.assigned_work[node]
            node.shutdown()
        for node in self.nodes:
            self._assign_work_unit(node)
        for node in self.nodes:
            self._reschedule(node)

    def _falling_cost(self, scope: str) -> float:
        return -self._costs.get(scope, 0.0)

    def _reschedule(self, node: Any) -> None:
        if node.shutting_down:
            return
        if not self.workqueue:
            node.shutdown()
            return
        units = self.assigned_work[node]
        pending = self._pending_of(units)
        if pending > 1:
            return
        started = any(done for unit in units.values() for done in unit.values())
        if pending == 1 and not started:
            # Whatever is reserved here waits for a whole unit: let it be the cheapest.
            self.workqueue.move_to_end(min(self.workqueue, key=lambda s: self._costs.get(s, 0.0)), last=False)
        self._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Give a crashed worker's open items to others, but not the one it crashed on: it has its verdict."""
        units = self.assigned_work.pop(node)
        open_items = [
            (scope, item) for scope, unit in units.items() for item, done in unit.items() if not done
        ]
        if not open_items:
            return None
        scope, crashed = open_items[0]
        units[scope][crashed] = True
        self.workqueue.update({name: unit for name, unit in units.items() if not all(unit.values())})
        for other in self.nodes:
            self._reschedule(other)
        return str(crashed)
