"""One deployment from launch to release: phases with deadlines, readiness, supervision."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_gpubench.errors import ClientError, InfraError, ServerError
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.recipe.types import Deployment
from pytest_gpubench.serving.backend import Api, Backend, Hardware, Look
from pytest_gpubench.serving.narrator import Narrator
from pytest_gpubench.serving.probe import Probe
from pytest_gpubench.world import Clock

__all__ = ["Server", "Timings"]

POLL_SECONDS = 0.25
SETTLE_SECONDS = 6.0
"""How long a death may take to show after a client met errors; a third of it while all APIs are healthy."""
COMPLETION_SECONDS = 60.0
"""How long one short completion may take; the first one may compile kernels."""
NOTICE_SECONDS = 5.0
"""How long the death of a rank or a node may take to be noticed."""


_START = (Phase.QUEUE, Phase.IMPORT, Phase.LOAD, Phase.READY)


@dataclass
class Timings:
    """Seconds spent per phase so far."""

    seconds: dict[Phase, float] = field(default_factory=dict)

    @property
    def start_seconds(self) -> float:
        """From the request to the first answer."""
        return sum(self.seconds.get(phase, 0.0) for phase in _START)

    def add(self, phase: Phase, seconds: float) -> None:
        """Add to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


class Server:
    """A running (or starting) server. Not thread-safe; one process drives it."""

    def __init__(
        self, deployment: Deployment, backend: Backend, probe: Probe, clock: Clock, narrator: Narrator
    ) -> None:
        self.deployment = deployment
        self.backend = backend
        self.probe = probe
        self.clock = clock
        self.narrator = narrator
        self.timings = Timings()
        self.phase = Phase.QUEUE
        self.nodes: tuple[str, ...] = ()
        self.apis: tuple[Api, ...] = ()
        self.values: dict[str, str] = {}
        self.version: str | None = None
        self.hardware = Hardware()
        self.launched = False
        self.ready = False
        self.suspect = False  # a point did not pass: look closer before the next one
        self.held_since: float | None = None
        self.held_seconds = 0.0

    # -- start ---------------------------------------------------------------------------------

    def start(self, previous: Server | None = None) -> None:
        """Launch and wait until it really serves; raises InfraError with phase and log tails."""
        self.launch(previous)
        self.wait_ready()

    def launch(self, previous: Server | None = None) -> None:
        """Ask for the nodes, or take over those of ``previous``; does not wait."""
        if self.launched:
            return
        self.launched = True
        try:
            self.backend.launch(previous.backend if previous is not None else None)
        except InfraError as err:
            if previous is not None:
                previous.stop()
            raise self._with_context(err) from None
        if previous is not None:
            previous.handed_over()
            self.narrator.say(self.deployment, "takes over", f"job {self.backend.job_id or '?'}")
            return
        self.narrator.say(self.deployment, "submitted", f"job {self.backend.job_id or '?'}")

    def wait_ready(self) -> None:
        """Queue, image, load, ready: each with its own deadline."""
        deadlines = self.deployment.deadlines
        try:
            self._phase(Phase.QUEUE, deadlines.queue, "max_pending", self._has_nodes)
            # Asked for ahead, the nodes may have been held for a while already.
            self.held_since = self.clock.monotonic() - self.backend.held_seconds()
            self.narrator.say(self.deployment, "nodes", " ".join(self.nodes) or "this host")
            self._phase(Phase.IMPORT, deadlines.image, "deadlines.image", self._all_started)
            self._phase(Phase.LOAD, deadlines.load, "deadlines.load", self._all_healthy)
            if self.deployment.router is not None:
                self.backend.start_router()
            self.narrator.say(self.deployment, "loaded", f"in {self.timings.seconds[Phase.LOAD]:.0f} s")
            self._phase(Phase.READY, deadlines.ready, "deadlines.ready", self._serves)
            self.version = self.probe.version(self.apis[0].url)
            self.hardware = self.backend.hardware()
            self.ready = True
            spent = self.clock.monotonic() - self.held_since
            self.narrator.say(self.deployment, "ready", f"after {spent:.0f} s")
        except InfraError as err:
            raise self._with_context(err) from None

    def _phase(self, phase: Phase, limit: float, setting: str, done: Callable[[Look], bool]) -> None:
        self.phase = phase
        began = self.clock.monotonic()
        try:
            while True:
                look = self._look()
                if done(look):
                    return
                spent = self.clock.monotonic() - began
                if spent > limit:
                    raise self._timeout(phase, spent, setting, look)
                self.narrator.waiting(self.deployment, phase, spent, look.detail)
                self._stream()
                self.clock.sleep(POLL_SECONDS if phase is not Phase.QUEUE else 2 * POLL_SECONDS)
        finally:
            self.timings.add(phase, self.clock.monotonic() - began)

    def _look(self) -> Look:
        look = self.backend.look()
        if look.nodes:
            self.nodes = look.nodes
        if look.apis:
            self.apis = look.apis
        self.values = {**self.values, **look.values}
        if look.failure is not None:
            raise look.failure
        return look

    def _has_nodes(self, look: Look) -> bool:
        if look.pending:
            if look.detail:
                self.narrator.pending(self.deployment, look.detail)
            return False
        return True

    def _all_started(self, look: Look) -> bool:
        return set(self.backend.rank_names) <= look.started and bool(look.apis)

    def _all_healthy(self, look: Look) -> bool:
        return bool(look.apis) and all(self.probe.healthy(api.url) for api in look.apis)

    def _serves(self, look: Look) -> bool:
        if self.deployment.router is not None and not self._routed(look):
            return False
        wanted = self.deployment.served_name
        for api in look.apis:
            if api.label == "router":
                continue  # it lists what it likes; the completion below goes through it
            names = self.probe.models(api.url)
            if names is None:
                return False
            if wanted not in names:
                raise ServerError(
                    Reason.FOREIGN_SERVER,
                    f"port {api.port} on {api.node or api.host} already answers as "
                    f"{', '.join(names) or 'no model'}; asked for {wanted}",
                )
        # /health stays 200 while a follower is dead: only an answered request proves that it serves.
        api = look.apis[-1] if look.apis[-1].label == "router" else look.apis[0]
        self._last_problem = self._completion(api.url, wanted)
        return self._last_problem is None

    def _completion(self, url: str, model: str) -> str | None:
        """One request, answered or not. A rank that dies meanwhile ends the wait: the request may hang."""
        outcome: list[str | None] = []

        def ask() -> None:
            try:
                outcome.append(self.probe.completes(url, model, COMPLETION_SECONDS))
            except Exception as err:  # a thread's own exception would be lost
                outcome.append(f"{type(err).__name__}: {err}")

        thread = threading.Thread(target=ask, name="gpubench-completion", daemon=True)
        thread.start()
        while True:
            thread.join(POLL_SECONDS)
            if not thread.is_alive():
                return outcome[0] if outcome else "the request was cut off"
            self._look()

    def _routed(self, look: Look) -> bool:
        self._last_problem = "the router does not answer"
        return look.apis[-1].label == "router" and self.probe.healthy(look.apis[-1].url)

    _last_problem: str | None = None

    def _timeout(self, phase: Phase, spent: float, setting: str, look: Look) -> InfraError:
        reason = {
            Phase.QUEUE: Reason.QUEUE_TIMEOUT,
            Phase.IMPORT: Reason.IMPORT_TIMEOUT,
            Phase.LOAD: Reason.LOAD_TIMEOUT,
            Phase.READY: Reason.READY_TIMEOUT,
        }[phase]
        if phase is Phase.QUEUE:
            what = f"not scheduled in {spent:.0f} s, last reason: {look.detail or 'none'}"
        elif phase is Phase.IMPORT:
            missing = sorted(set(self.backend.rank_names) - look.started)
            what = f"{', '.join(missing) or 'no rank'} did not start in {spent:.0f} s"
        elif phase is Phase.LOAD:
            what = f"/health did not answer 200 in {spent:.0f} s"
        else:
            problem = self._last_problem or "/v1/models gives no list"
            what = f"no request was answered in {spent:.0f} s: {problem}"
        return InfraError(reason, f"{what}. Raise `{setting}` if this is expected", phase)

    # -- use -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if a rank died or the job ended; cheap."""
        try:
            self._look()
        except InfraError as err:
            raise self._with_context(err) from None

    def healthy(self) -> bool:
        """True when nothing died and, after a point that did not pass, it still answers a request."""
        try:
            look = self._look()
            if not self._all_healthy(look):
                return False
            if self.suspect and not self._serves(look):
                return False
        except InfraError:
            return False
        self.suspect = False
        return True

    @property
    def url(self) -> str:
        """Base URL of what clients talk to: the router when there is one, else the head."""
        return self.apis[-1].url if self.apis and self.apis[-1].label == "router" else self.apis[0].url

    def run_client(self, argv: Sequence[str], log: str, name: str, limit: float) -> int:
        """Run a client to its end under supervision: a dead rank ends it, so does the deadline."""
        self.phase = Phase.BENCH
        try:
            status = self._supervise(argv, log, name, limit)
        except InfraError as err:
            self.suspect = True
            raise self._with_context(err) from None
        self.suspect = self.suspect or status != 0
        return status

    def _supervise(self, argv: Sequence[str], log: str, name: str, limit: float) -> int:
        began = seen = self.clock.monotonic()
        try:
            process = self.backend.start_client(argv, log, name)
        except OSError as err:
            raise ClientError(Reason.CLIENT_FAILED, f"the client could not be started: {err}") from err
        try:
            while True:
                status = process.poll()
                if status is not None:
                    self._survived()
                    return status
                now = self.clock.monotonic()
                spent = now - began
                # The client's end is looked for often, so that a short point is not rounded up.
                pause = min(POLL_SECONDS, max(0.01, spent / 100))
                if now - seen >= POLL_SECONDS:
                    seen = now
                    self._look()
                if spent > limit:
                    raise ClientError(
                        Reason.CLIENT_HUNG,
                        f"the client did not end in {spent:.0f} s (log: {log}). Raise `deadlines.bench` if "
                        "this is expected",
                    )
                self.narrator.waiting(self.deployment, Phase.BENCH, spent, name)
                self._stream()
                self.clock.sleep(pause)
        finally:
            if process.poll() is None:
                process.terminate(2.0)
            self.timings.add(Phase.BENCH, self.clock.monotonic() - began)

    def settle(self) -> None:
        """After a client that met errors: give a death the time to show, and raise it.

        The client of a killed server or router ends within milliseconds, often with code 0, which is
        before the batch script has seen the death.
        """
        began = self.clock.monotonic()
        self.check()
        while (spent := self.clock.monotonic() - began) < SETTLE_SECONDS:
            if spent > SETTLE_SECONDS / 3 and all(self.probe.healthy(api.url) for api in self.apis):
                return
            self.clock.sleep(POLL_SECONDS)
            self.check()

    def _survived(self) -> None:
        """A client whose server died ends too, often with code 0, and sooner than the death is noticed."""
        look = self._look()
        deadline = self.clock.monotonic() + NOTICE_SECONDS
        while not self._all_healthy(look) and self.clock.monotonic() < deadline:
            self.clock.sleep(POLL_SECONDS)
            look = self._look()

    # -- release -------------------------------------------------------------------------------

    def stop(self) -> bool:
        """Give the nodes back; idempotent, bounded."""
        began = self.clock.monotonic()
        released = False
        try:
            released = self.backend.stop()
            return released
        finally:
            self.timings.add(Phase.TEARDOWN, self.clock.monotonic() - began)
            self._count_held()
            what = "released" if released else "not confirmed as released"
            self.narrator.say(self.deployment, what, f"job {self.backend.job_id or '?'}")

    def _stream(self) -> None:
        self.narrator.logs(self.deployment, self.backend.log_folder, self.backend.rank_names)

    def handed_over(self) -> None:
        """Its nodes belong to the next server from now on."""
        self._count_held()

    def _count_held(self) -> None:
        if self.held_since is not None:
            self.held_seconds += self.clock.monotonic() - self.held_since
            self.held_since = None

    def _with_context(self, error: InfraError) -> InfraError:
        if error.phase is None:
            error.phase = self.phase
        if not error.tails:
            error.tails = self.backend.tails()
        spent = ", ".join(f"{phase.value} {seconds:.1f} s" for phase, seconds in self.timings.seconds.items())
        if spent and "seconds per phase" not in error.details:
            error.details = f"{error.details}\nseconds per phase: {spent}".strip()
        return error
