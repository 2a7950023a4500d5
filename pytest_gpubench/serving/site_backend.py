"""A deployment that a site's own launcher submits: perf-eval's ``PERF_EVAL_SLURM_LAUNCHER``.

The launcher is a program. It submits a job that serves, prints the job's id, and sees to it that the
endpoint file appears (lines ``VLLM_SERVER_HOST=…``, ``VLLM_SERVER_PORT=…``, ``VLLM_BASE_URL=…``) once the
nodes are known. What runs inside the job is the site's affair: there are no notes of ranks, so Slurm's word
on the job and the endpoint's answers are all that is supervised, and the job does not watch the heartbeat.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pytest_gpubench.errors import InfraError, LogTail, SlurmError
from pytest_gpubench.plan.launch import LaunchPlan
from pytest_gpubench.plan.ranks import ROUTER_PORT, head_variable, port_variable
from pytest_gpubench.plan.site_hooks import launcher_argv, launcher_environment
from pytest_gpubench.plan.slurm import SlurmPlan
from pytest_gpubench.reasons import Phase, Reason
from pytest_gpubench.results.text import read_tail
from pytest_gpubench.serving.backend import Api
from pytest_gpubench.serving.slurm_backend import SlurmBackend
from pytest_gpubench.serving.state import StateFolder
from pytest_gpubench.slurm.answers import parse_sbatch
from pytest_gpubench.slurm.types import JobId
from pytest_gpubench.slurm.waiting import find_intended

__all__ = ["SiteBackend", "SiteState"]

LAUNCHER_SECONDS = 300.0
"""How long a launcher may take to submit."""
ADOPT_SECONDS = 3.0
"""How long a job is looked for by its name when the launcher gave no id."""


class SiteState(StateFolder):
    """The endpoint file in place of the notes of a rank script."""

    @property
    def endpoint(self) -> Path:
        """``PERF_EVAL_ENDPOINT_FILE``."""
        return self.path / "endpoint"

    def prepare(self, attempt: int) -> None:
        """The state folder, and the recipe's environment as perf-eval's ``KEY=VALUE`` file."""
        super().prepare(attempt)
        text = "".join(f"{name}={value}\n" for name, value in self.plan.deployment.env)
        try:
            self.script.unlink()  # nothing runs it
            handle = os.open(self.path / "environment", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as err:
            text = f"{err.filename or self.path}: {err.strerror or err}"
            raise InfraError(Reason.RESULTS_UNWRITABLE, text, Phase.QUEUE) from err

    def settings(self) -> dict[str, str]:
        """The lines of the endpoint file, unquoted as a shell would."""
        found: dict[str, str] = {}
        for line in self.read("endpoint").splitlines():
            name, equals, text = line.strip().removeprefix("export ").partition("=")
            with contextlib.suppress(ValueError):
                if equals:
                    found[name] = "".join(shlex.split(text)[:1])
        return found

    def values(self) -> dict[str, str]:
        """Host and port under the names that commands refer to; empty before the endpoint is complete."""
        settings = self.settings()
        url = urlsplit(settings.get("VLLM_BASE_URL", ""))
        with contextlib.suppress(ValueError):
            host = settings.get("VLLM_SERVER_HOST") or url.hostname
            port = settings.get("VLLM_SERVER_PORT") or (str(url.port) if url.port else "")
            if host and port.isdigit():
                return {head_variable(0): host, port_variable("API", 0): port, ROUTER_PORT: port}
        return {}

    def apis(self, values: Mapping[str, str]) -> tuple[Api, ...]:
        """The one API that the site gives; in front of roles it is a router."""
        if not values:
            return ()
        host, port = values[head_variable(0)], int(values[ROUTER_PORT])
        return (Api("server" if self.plan.router is None else "router", host, port, host),)

    def started(self) -> frozenset[str]:
        """All ranks, once the endpoint is known: the site does not say more."""
        return frozenset(rank.name for rank in self.plan.ranks) if self.values() else frozenset()

    def tails(self, values: Mapping[str, str], extra: tuple[str, ...] = ()) -> list[LogTail]:
        """The launcher's own output, and the log that the endpoint file names."""
        named = self.settings().get("VLLM_SLURM_LOG_FILE")
        paths = [self.folder / "launcher.log", *([Path(named)] if named else [])]
        return [LogTail(path.name, str(path), text) for path in paths if (text := read_tail(path))]


class SiteBackend(SlurmBackend):
    """One job of a site's launcher; looked at, cancelled and measured like any other job."""

    def state_folder(self, plan: LaunchPlan) -> SiteState:
        """The endpoint file's folder."""
        return SiteState(plan)

    def can_host(self, plan: SlurmPlan, environment: Mapping[str, str], seconds: float) -> bool:
        """Never: what runs in the job is not known here."""
        return False

    def submit(self) -> JobId:
        """Run the launcher; the id is the last line of its output that is one."""
        plan, tools = self.plan, self.tools
        environment = {**self.environment, **launcher_environment(plan)}
        result = tools.runner.run(launcher_argv(plan), timeout=LAUNCHER_SECONDS, env=environment)
        said = f"{result.stdout}{result.stderr}"
        with contextlib.suppress(OSError):
            (self.state.folder / "launcher.log").write_text(said, encoding="utf-8", errors="replace")
        launcher = plan.deployment.profile.slurm.launcher
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        jobs = [job for line in reversed(lines) if (job := parse_sbatch(line)) is not None]
        if result.ok and jobs:
            return jobs[0]
        found = find_intended(
            lambda: tools.client.find(plan.site.job_name), tools.clock, patience=ADOPT_SECONDS, timeout=30.0
        )
        if found is not None:
            return found.id
        if result.ok or result.timed_out:
            how = "printed no job id" if result.ok else f"did not end in {LAUNCHER_SECONDS:g} s"
            raise SlurmError(
                Reason.SUBMIT_UNCLEAR,
                f"the site's launcher {launcher!r} {how}, and no job {plan.site.job_name} is queued "
                "(it should submit under PERF_EVAL_SLURM_JOB_NAME and print the id)",
                phase=Phase.QUEUE,
            )
        raise SlurmError(
            Reason.SUBMIT_REFUSED, f"the site's launcher failed: {result.describe()}", phase=Phase.QUEUE
        )
