"""Batch scripts and steps for the tests of the mock."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpubench.mock import MockCluster


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, kept apart by holding all of them at once."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


@dataclass
class Site:
    """A cluster and a folder that its jobs share."""

    cluster: MockCluster
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(
        self, *argv: str, timeout: float = 30.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the cluster to its end."""
        return subprocess.run(
            argv,
            env={**self.cluster.env(), **(env or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def submit(self, body: str, *options: str, nodes: int = 2) -> int:
        """Submit a script that has the nodes to itself; its id."""
        (self.folder / "job.sh").write_text("#!/bin/bash\n" + body)
        done = self.run("sbatch", "--parsable", f"-N{nodes}", "--exclusive", *options, "job.sh")
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def hold(self, *options: str, nodes: int = 2) -> int:
        """A job that only holds its nodes."""
        job = self.submit("sleep 600\n", *options, nodes=nodes)
        self.cluster.wait(job, "RUNNING")
        return job

    def step(self, job: int, *words: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a step on one node from outside of the job."""
        return self.run("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", *words, timeout=timeout)

    def serve(
        self, *flags: str, ranks: int = 1, options: tuple[str, ...] = (), env: str = ""
    ) -> tuple[int, str]:
        """A job with one ``vllm serve`` per node, as a launcher starts it; job id and base URL."""
        http, master = free_ports(2)
        lines = [env] if env else []
        for rank in range(ranks):
            words = ["vllm", "serve", "team/model", *flags]
            if ranks > 1:
                words += ["--tensor-parallel-size", str(4 * ranks), "--distributed-executor-backend", "mp"]
                words += ["--nnodes", str(ranks), "--node-rank", str(rank)]
                words += ["--master-addr", "gb300-01", "--master-port", str(master)]
            words += ["--host", "0.0.0.0", "--port", str(http)] if rank == 0 else ["--headless"]
            step = f"srun --overlap -N1 -n1 -w gb300-0{rank + 1} --input=none --output=rank{rank}.log"
            lines.append(f'({step} {" ".join(words)}; echo "rank {rank} ended with $?" >> ends.log) &')
        return self.submit("\n".join([*lines, "wait", ""]), *options, nodes=ranks), f"http://127.0.0.1:{http}"

    def start(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command in a group of its own; it ends with the test."""
        process = subprocess.Popen(
            argv,
            env={**self.cluster.env(), **(env or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        """End what ``start`` started, with its group."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def children(self, pid: int) -> list[int]:
        """The children of a process."""
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]

    def log(self, rank: int) -> str:
        """What a rank wrote."""
        path = self.folder / f"rank{rank}.log"
        return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""


def ask(url: str, body: Any = None, timeout: float = 10.0) -> tuple[int, str]:
    """Status and text of a GET, or of a POST of JSON; status 0 when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read().decode()
    except OSError:
        return 0, ""


def until(done: Any, what: str, patience: float = 10.0) -> None:
    """Poll until ``done()``; fails with ``what``."""
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.03)


def metric(url: str, name: str) -> float:
    """The sum of a metric over all engines."""
    status, text = ask(f"{url}/metrics")
    assert status == 200
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
