"""What comes next in a run, what it is expected to take, and when to ask for its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_gpubench.plan.cost import deployment_costs, estimate_seconds
from pytest_gpubench.recipe.types import Deployment, Point
from pytest_gpubench.serving.pool import ServerPool

__all__ = ["LookAhead"]

Key = tuple[str, str]


class LookAhead:
    """The order of a run's points. An xdist worker has none: it is told item by item.

    ``known`` gives seconds of points that an earlier run measured.
    """

    def __init__(self, known: Callable[[], Mapping[Key, float]]) -> None:
        self._known = known
        self._order: list[Point] = []
        self._place: dict[Key, int] = {}
        self._taken: dict[Key, list[float]] = {}

    def plan(self, points: Sequence[Point]) -> None:
        """Tell which points will run, in which order."""
        self._order = list(points)
        self._place = {_point_key(point): index for index, point in enumerate(points)}

    def upcoming(self, point: Point) -> list[Deployment]:
        """The deployments that are needed after ``point``, the next first."""
        later = {_key(other.deployment): other.deployment for other in self._from(point)[1:]}
        return list(later.values())

    def took(self, point: Point, seconds: float) -> None:
        """Remember how long a point took."""
        self._taken.setdefault(_key(point.deployment), []).append(seconds)

    def costs(self, points: Sequence[Point]) -> dict[str, float]:
        """``<recipe>/<deployment>`` -> expected seconds, from earlier rows where there are some."""
        return deployment_costs(points, self._known())

    def cost_of(self, deployment: Deployment) -> float:
        """Expected seconds of all points of one deployment, its start included."""
        points = [point for point in self._order if _key(point.deployment) == _key(deployment)]
        return self.costs(points).get(f"{deployment.recipe}/{deployment.id}", 0.0)

    def prefetch(self, point: Point, pool: ServerPool, limit: int) -> None:
        """Ask for the next deployments' nodes if this one will be done by the time they serve.

        Earlier, the nodes would be held idle; later, the run would wait for them.
        """
        server = pool.running(point.deployment)
        if server is None or limit <= 0:
            return
        own = [other for other in self._from(point) if _key(other.deployment) == _key(point.deployment)]
        if not own or self._expected(own) > server.timings.start_seconds:
            return
        for deployment in self.upcoming(own[-1])[:limit]:
            if deployment.servable and not pool.can_host(server, deployment):
                pool.prefetch(deployment)

    def _from(self, point: Point) -> list[Point]:
        place = self._place.get(_point_key(point))
        return [] if place is None else self._order[place:]

    def _expected(self, points: Sequence[Point]) -> float:
        """From what this deployment's points took so far, else from earlier rows, else estimated."""
        taken = self._taken.get(_key(points[0].deployment), [])
        if taken:
            return len(points) * sum(taken) / len(taken)
        known = self._known()
        return sum(known.get(_point_key(point), estimate_seconds(point)) for point in points)


def _key(deployment: Deployment) -> Key:
    return deployment.recipe, deployment.id


def _point_key(point: Point) -> Key:
    return point.deployment.recipe, point.id
