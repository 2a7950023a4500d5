"""One server per deployment for the whole session, whatever the order of its points."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_gpubench.errors import InfraError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Deployment
from pytest_gpubench.serving.server import Server

__all__ = ["ServerPool"]


class ServerPool:
    """Starts servers on demand, keeps them while points need them, rebuilds a broken one once."""

    def __init__(self, make: Callable[[Deployment, int], Server], *, start_attempts: int = 1) -> None:
        self._make = make
        self._start_attempts = max(1, start_attempts)
        self._servers: dict[Deployment, Server] = {}
        self._failures: dict[Deployment, InfraError] = {}
        self._starts: dict[Deployment, int] = {}
        self._rebuilt: set[Deployment] = set()
        self.unreleased: list[str] = []
        self.released: list[Server] = []

    def acquire(self, deployment: Deployment) -> Server:
        """The running server; raises the first cause again, at once, for a deployment that cannot start."""
        first = self._failures.get(deployment)
        if first is not None:
            raise InfraError(
                Reason.DEPLOYMENT_FAILED,
                f"deployment {deployment.id} failed before: [{first.reason.value}] {first.message}",
                first.phase,
                first.details,
                first.tails,
            )
        server = self._servers.get(deployment)
        if server is not None and not server.healthy():
            self.release(deployment)
            if deployment in self._rebuilt:
                error = InfraError(
                    Reason.DEPLOYMENT_FAILED,
                    f"deployment {deployment.id} was rebuilt once and is unhealthy again",
                )
                self._failures[deployment] = error
                raise error
            self._rebuilt.add(deployment)
            server = None
        if server is None:
            server = self._start(deployment)
        return server

    def attempts(self, deployment: Deployment) -> int:
        """How often the deployment was started."""
        return self._starts.get(deployment, 0)

    def running(self, deployment: Deployment) -> Server | None:
        """Its server, if there is one."""
        return self._servers.get(deployment)

    def _start(self, deployment: Deployment) -> Server:
        for attempt in range(1, self._start_attempts + 1):
            number = self._starts.get(deployment, 0) + 1
            self._starts[deployment] = number
            server = self._make(deployment, number)
            self._servers[deployment] = server
            try:
                server.start()
                return server
            except InfraError as err:
                self.release(deployment)
                if attempt == self._start_attempts or not err.reason.infrastructure:
                    self._failures[deployment] = err
                    raise
            except BaseException:
                self.release(deployment)
                raise
        raise AssertionError("unreachable")

    def release(self, deployment: Deployment) -> None:
        """Stop its server and give the nodes back; nothing when there is none."""
        server = self._servers.pop(deployment, None)
        if server is None:
            return
        self.released.append(server)
        if not server.stop():
            self.unreleased.append(f"{deployment.recipe}/{deployment.id}: job {server.backend.job_id}")

    def release_others(self, keep: Iterable[Deployment]) -> None:
        """Stop every server that is not in ``keep``."""
        kept = set(keep)
        for deployment in list(self._servers):
            if deployment not in kept:
                self.release(deployment)

    def release_all(self) -> None:
        """Stop every server; the first interruption is raised after all were stopped."""
        interrupted: KeyboardInterrupt | None = None
        for deployment in list(self._servers):
            try:
                self.release(deployment)
            except KeyboardInterrupt as err:
                interrupted = interrupted or err
        if interrupted is not None:
            raise interrupted
