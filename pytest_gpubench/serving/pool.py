"""One server per deployment for the whole session, whatever the order of its points."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_gpubench.errors import InfraError
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Deployment
from pytest_gpubench.serving.server import Server

__all__ = ["ServerPool"]


class ServerPool:
    """Starts servers on demand, keeps them while points need them, rebuilds a broken one once.

    ``make`` gives a server for a deployment's n-th start. ``can_host`` says whether a server's nodes can
    take another deployment over, so that only the server is started anew. ``max_nodes`` bounds what is
    held and asked for ahead; what a point needs now is always asked for.
    """

    def __init__(
        self,
        make: Callable[[Deployment, int], Server],
        *,
        start_attempts: int = 1,
        can_host: Callable[[Server, Deployment], bool] = lambda server, deployment: False,
        max_nodes: int | None = None,
        on_release: Callable[[Server, bool], None] = lambda server, confirmed: None,
    ) -> None:
        self._make = make
        self._start_attempts = max(1, start_attempts)
        self._can_host = can_host
        self._max_nodes = max_nodes
        self._on_release = on_release
        self._servers: dict[Deployment, Server] = {}
        self._latest: dict[Deployment, Server] = {}
        self._spare: Server | None = None
        self._failures: dict[Deployment, InfraError] = {}
        self._starts: dict[Deployment, int] = {}
        self._rebuilt: set[Deployment] = set()
        self.unreleased: list[str] = []

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
        if server is not None and server.ready and not server.healthy():
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
        if server is not None and server.ready:
            return server
        return self._start(deployment)

    def running(self, deployment: Deployment) -> Server | None:
        """Its server, if there is one; it may still be starting."""
        return self._servers.get(deployment)

    def latest(self, deployment: Deployment) -> Server | None:
        """Its newest server, also one that was stopped: it knows what was held and how long."""
        return self._latest.get(deployment)

    def prefetch(self, deployment: Deployment) -> bool:
        """Ask for its nodes now, without waiting; False when it is there already or the budget forbids it."""
        if deployment in self._servers or deployment in self._failures:
            return False
        held = sum(_nodes(server.deployment) for server in self._servers.values())
        if self._max_nodes is not None and held + _nodes(deployment) > self._max_nodes:
            return False
        server = self._new(deployment)
        try:
            server.launch()
        except InfraError:
            # Asked too early is no failure of the deployment: it is asked for again when it is needed.
            self.release(deployment)
            return False
        except BaseException:
            self.release(deployment)
            raise
        return True

    def can_host(self, server: Server, deployment: Deployment) -> bool:
        """Whether ``deployment`` could take the nodes of ``server`` over."""
        return self._can_host(server, deployment)

    def _start(self, deployment: Deployment) -> Server:
        attempts = self._start_attempts
        while True:
            server = self._servers.get(deployment) or self._new(deployment)
            spare = self._take_spare(deployment)
            try:
                server.start(spare)
                if spare is not None:
                    self._on_release(spare, True)
                return server
            except InfraError as err:
                self.release(deployment)
                if spare is not None:
                    continue  # the nodes could not be taken over: that says nothing of the deployment
                attempts -= 1
                if attempts <= 0 or not err.reason.infrastructure:
                    self._failures[deployment] = err
                    raise
            except BaseException:
                self.release(deployment)
                if spare is not None:
                    spare.stop()  # does nothing once its nodes were handed over
                raise

    def _new(self, deployment: Deployment) -> Server:
        number = self._starts.get(deployment, 0) + 1
        self._starts[deployment] = number
        server = self._servers[deployment] = self._latest[deployment] = self._make(deployment, number)
        return server

    def _take_spare(self, deployment: Deployment) -> Server | None:
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        if deployment not in self._servers or self._servers[deployment].launched:
            self._stop(spare)
            return None
        if not self._can_host(spare, deployment):
            self._stop(spare)
            return None
        return spare

    def release(self, deployment: Deployment) -> None:
        """Stop its server and give the nodes back; nothing when there is none."""
        server = self._servers.get(deployment)
        if server is not None:
            # Known until it has stopped: what interrupts us here leaves it to release_all.
            self._stop(server)
            self._servers.pop(deployment, None)

    def release_others(self, keep: Iterable[Deployment], successor: Deployment | None = None) -> None:
        """Stop every server that is not in ``keep``; the nodes may be kept for the ``successor``."""
        kept = set(keep)
        for deployment in list(self._servers):
            if deployment in kept:
                continue
            server = self._servers[deployment]
            wanted = successor is not None and successor not in self._servers and self._spare is None
            if wanted and successor is not None and self._can_host(server, successor):
                self._spare = self._servers.pop(deployment)
            else:
                self.release(deployment)

    def release_all(self) -> None:
        """Stop every server; the first interruption is raised after all were stopped."""
        interrupted: KeyboardInterrupt | None = None
        spare, self._spare = self._spare, None
        if spare is not None:
            self._servers[spare.deployment] = spare
        for deployment in list(self._servers):
            try:
                self.release(deployment)
            except KeyboardInterrupt as err:
                interrupted = interrupted or err
        if interrupted is not None:
            raise interrupted

    def _stop(self, server: Server) -> None:
        confirmed = server.stop()
        self._on_release(server, confirmed)
        if not confirmed:
            deployment = server.deployment
            self.unreleased.append(f"{deployment.recipe}/{deployment.id}: job {server.backend.job_id}")


def _nodes(deployment: Deployment) -> int:
    return deployment.num_nodes + (1 if deployment.profile.client_node == "extra" else 0)
