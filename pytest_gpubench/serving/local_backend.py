"""A deployment on this host: the rank script as a process group of ours, in docker or bare."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpubench.errors import InfraError, LogTail, ServerError
from pytest_gpubench.plan.local import LocalPlan, client_command
from pytest_gpubench.plan.shell import fill_all
from pytest_gpubench.reasons import Reason
from pytest_gpubench.serving.backend import Backend, Hardware, Look
from pytest_gpubench.serving.diagnose import Evidence, diagnose
from pytest_gpubench.serving.heartbeat import Heartbeat
from pytest_gpubench.serving.interrupts import Interrupts
from pytest_gpubench.serving.state import StateFolder
from pytest_gpubench.slurm.types import JobId, JobInfo, JobState
from pytest_gpubench.world import Clock, CommandRunner, ProcessHandle

__all__ = ["LocalBackend"]

SETTLE_SECONDS = 2.0


def _beside_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the commands beside this Python last on PATH: an unactivated venv will do."""
    beside = str(Path(sys.executable).parent)
    path = environment.get("PATH", os.defpath)
    return {
        **environment,
        "PATH": path if beside in path.split(os.pathsep) else f"{path}{os.pathsep}{beside}",
    }


class _ContainedClient:
    """``docker exec``, and what it started: a signal to the one does not reach the other."""

    def __init__(self, process: ProcessHandle, backend: LocalBackend, container: str, pid_name: str) -> None:
        self._process = process
        self._backend = backend
        self._container = container
        self._pid_name = pid_name

    @property
    def pid(self) -> int:
        """Process id of ``docker exec``."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def terminate(self, grace: float) -> int | None:
        """TERM inside the container, KILL after ``grace`` seconds; then the same for ``docker exec``."""
        backend = self._backend
        inside = backend.state.read(self._pid_name)
        if inside.isdigit():
            deadline = backend.clock.monotonic() + grace
            self._signal("TERM", inside)
            while self.poll() is None and backend.clock.monotonic() < deadline:
                backend.clock.sleep(0.1)
            if self.poll() is None:
                self._signal("KILL", inside)
        return self._process.terminate(1.0)

    def _signal(self, name: str, pid: str) -> None:
        # The client leads a session of its own in there; bash, for the image may have no kill command.
        script = 'kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2"'
        argv = ["docker", "exec", self._container, "bash", "-c", script, "signal", name, pid]
        self._backend.runner.run(argv, timeout=20.0, env=self._backend.environment)


class LocalBackend:
    """No nodes are asked for; everything else is as on Slurm, from the same script and state files."""

    def __init__(
        self,
        plan: LocalPlan,
        runner: CommandRunner,
        clock: Clock,
        heartbeat: Heartbeat,
        interrupts: Interrupts,
        environment: Mapping[str, str],
        attempt: int = 1,
    ) -> None:
        self.plan = plan
        self.runner = runner
        self.clock = clock
        self.heartbeat = heartbeat
        self.interrupts = interrupts
        self.environment = _beside_python(environment)
        self.attempt = attempt
        self.state = StateFolder(plan)
        self._process: ProcessHandle | None = None
        self._failure: InfraError | None = None
        self._stopped = False
        self._clients = 0

    @property
    def rank_names(self) -> tuple[str, ...]:
        """Names of all ranks."""
        return tuple(rank.name for rank in self.plan.ranks)

    @property
    def log_folder(self) -> Path:
        """The deployment's folder."""
        return self.state.folder

    @property
    def job_id(self) -> str | None:
        """``pid-<n>`` of the script that leads the ranks."""
        return None if self._process is None else f"pid-{self._process.pid}"

    def held_seconds(self) -> float:
        """Nothing is held before the start."""
        return 0.0

    def launch(self, previous: Backend | None = None) -> None:
        """Write the script and start it."""
        self.state.prepare(self.attempt)
        self.heartbeat.add(self.state.heartbeat)
        try:
            self._process = self.runner.start(
                ["bash", str(self.state.script)],
                log=str(self.state.folder / "script.log"),
                env=self.environment,
                cwd=self.plan.site.checkout,
            )
        except OSError as err:
            raise ServerError(Reason.SUBMIT_REFUSED, f"bash could not be started: {err}") from err

    def look(self) -> Look:
        """State files, and whether the script still runs."""
        if self._process is None:
            return Look(pending=True, detail="not started")
        values = self.state.values()
        exits = self.state.exits()
        if self._failure is None:
            status = self._process.poll()
            if self.state.ended or exits or status is not None:
                self._failure = self._diagnose(values)
        return Look(
            pending=not values,
            nodes=self.state.nodes(values),
            apis=self.state.apis(values),
            started=self.state.started(),
            exits=exits,
            failure=self._failure,
            values=values,
        )

    def _diagnose(self, values: Mapping[str, str]) -> InfraError:
        deadline = self.clock.monotonic() + SETTLE_SECONDS
        while not self.state.ended and self.clock.monotonic() < deadline:
            self.clock.sleep(0.1)
        evidence = Evidence(
            info=JobInfo(JobId(0), JobState.UNKNOWN),
            ended=self.state.ended,
            exits=self.state.exits(),
            started=self.state.started(),
            tails=self.state.rank_tails(),
            nodes=self.state.rank_nodes(values),
        )
        error = diagnose(evidence)
        if not evidence.exits and not evidence.ended and self._process is not None:
            error = replace(
                error,
                reason=Reason.JOB_ENDED,
                message=f"the script that leads the ranks ended ({self._process.poll()}) and left no note",
            )
        lines = error.details.splitlines()
        error.details = "\n".join(line for line in lines if not line.startswith("Slurm:"))
        return error

    def hardware(self) -> Hardware:
        """This host's GPUs."""
        return Hardware(*self.state.gpus())

    def start_router(self) -> None:
        """Let the script start the router."""
        self.state.start_router()

    def start_client(self, argv: Sequence[str], log: str, name: str) -> ProcessHandle:
        """Beside the server, or inside the head's container."""
        container = self._container_id() if self.plan.contained else None
        self._clients += 1
        pid_file = self.state.path / f"client-{self._clients}.pid"
        command = client_command(
            self.plan, fill_all(argv, self.state.values()), container, pid_file=str(pid_file)
        )
        process = self.runner.start(command, log=log, env=self.environment, cwd=self.plan.site.checkout)
        if container is None:
            return process
        return _ContainedClient(process, self, container, pid_file.name)

    def client_path(self, host: str) -> str:
        """A host path as the client sees it."""
        return self.plan.in_container(host)

    def tails(self) -> list[LogTail]:
        """Rank logs, then the script's own."""
        return self.state.tails(self.state.values(), ("script.log",))

    def stop(self) -> bool:
        """TERM to the script, which ends its ranks; KILL to the group after the grace; containers by id."""
        if self._process is None or self._stopped:
            return True
        with self.interrupts.shield():
            self.heartbeat.remove(self.state.heartbeat)
            ended = self._process.terminate(self.plan.site.grace + 5.0) is not None
            for path in sorted(self.state.path.glob("*.cid")):
                container = self.state.read(path.name)
                if container:
                    remove = ["docker", "rm", "--force", container]
                    self.runner.run(remove, timeout=60.0, env=self.environment)
            self._stopped = ended
        return ended

    def _container_id(self) -> str:
        head = self.plan.ranks[0].name
        container = self.state.read(f"{head}.cid")
        if not container:
            raise ServerError(Reason.CLIENT_FAILED, f"docker has not written the container id of {head}")
        return container
