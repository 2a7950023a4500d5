"""The client commands of one cluster, as a user on its login node runs them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from .processes import Deadline
from .slurm_parts import SYSTEM_PATH


class SlurmClients:
    """Runs sbatch, squeue and the others against the cluster whose slurm.conf is `conf`."""

    def __init__(self, conf: Path) -> None:
        self.conf = conf

    @property
    def version(self) -> str:
        """The version of this Slurm, e.g. "22.05.8". Without a slurm.conf even `sinfo --version` fails."""
        return self.run("sinfo", "--version").stdout.split()[-1]

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment without its Slurm variables, with PATH and SLURM_CONF of this cluster."""
        ours = ("SLURM", "SBATCH_", "SRUN_", "SPANK_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        return {**clean, "PATH": SYSTEM_PATH, "SLURM_CONF": str(self.conf), **(extra or {})}

    def run(
        self,
        *argv: str,
        seconds: float = 30.0,
        check: bool = True,
        extra_env: Mapping[str, str] | None = None,
        stdin: str = "",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a client command.

        Raises subprocess.TimeoutExpired, and with `check` AssertionError with the command's output.
        """
        done = subprocess.run(
            argv,
            env=self.env(extra_env),
            input=stdin,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def job_state(self, job: str) -> str | None:
        """The state of a job, e.g. "RUNNING"; None when the controller does not know its id (any more)."""
        done = self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T", check=False)
        return done.stdout.strip() or None

    def wait_state(self, job: str, states: Collection[str | None], seconds: float = 30.0) -> str | None:
        """Waits until a job is in one of `states` (None: unknown id) and returns which."""
        deadline = Deadline(seconds, f"job {job} in {sorted(map(str, states))}")
        while (state := self.job_state(job)) not in states:
            deadline.check(f"it is {state}")
            time.sleep(0.2)
        return state

    def live_jobs(self) -> list[str]:
        """The ids of the jobs that wait, run or complete, whoever submitted them."""
        # %A: %i of a waiting array (7_[0-3%1]) is no id that scancel takes.
        return self.run("squeue", "--noheader", "--format=%A").stdout.split()

    def node_states(self) -> dict[str, str]:
        """Node name to state as sinfo prints it, e.g. {"gb300-01": "idle", "gb300-02": "down*"}."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines()
        return dict(line.split() for line in lines)
