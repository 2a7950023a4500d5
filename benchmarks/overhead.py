"""Harness time per point on a warm server, against a shell loop that runs the same client commands."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from measure import report
from project import Project, search_space

from pytest_gpubench.mock import MockCluster

SERVER = """\
#!/bin/bash
srun --overlap --nodes 1 --ntasks 1 vllm serve org/model --max-num-seqs 256 --host 0.0.0.0 --port {port} &
wait
"""


def main() -> int:
    """Print the ratio and the milliseconds per point; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ours, shell = [], []
    for _ in range(options.rounds):
        one, other = compare(options.points)
        ours.append(one)
        shell.append(other)
    mine, other = sorted(ours)[len(ours) // 2], sorted(shell)[len(shell) // 2]
    own = (mine - other) / options.points
    kept = report(f"{options.points} points / shell loop", mine, other, 1.10)
    word = "ok" if own <= 0.05 else "ABOVE"
    print(f"of its own per point: {own * 1000:.0f} ms (limit 50 ms: {word})")
    return 0 if kept and own <= 0.05 else 1


def compare(points: int) -> tuple[float, float]:
    """Seconds of the points' calls under pytest, and of the same commands in a shell loop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sim = {"ttft": 0.0, "token": 0.03}
        with MockCluster(folder / "cluster", nodes="gb300-[01-02]", gres={"gpu:b300": 4}, sim=sim) as cluster:
            concurrencies = list(range(1, points + 1))
            project = Project(folder / "project", cluster, search_space(1, concurrencies, points, osl=32))
            project.pytest("--junitxml", "junit.xml", "-o", "junit_duration_report=call")
            suite = ElementTree.parse(project.folder / "junit.xml")
            ours = sum(float(case.get("time", "0")) for case in suite.iter("testcase"))
            return ours, shell_loop(project, cluster, folder)


def shell_loop(project: Project, cluster: MockCluster, folder: Path) -> float:
    """The same warm-up and measured commands, one after the other, by bash."""
    port = 18765
    script = folder / "server.sh"
    script.write_text(SERVER.format(port=port))
    submit = ["sbatch", "--parsable", "--nodes", "1", "--gres", "gpu:b300:4", str(script)]
    job = subprocess.run(submit, env=cluster.env(), cwd=folder, capture_output=True, text=True, check=True)
    number = job.stdout.strip()
    lines = ["set -e"]
    for path in sorted(project.folder.glob("results/sweep/*/plan.json")):
        plan = json.loads(path.read_text())
        for argv in (plan["warmup_argv"], plan["bench_argv"]):
            argv[argv.index("--base-url") + 1] = f"http://127.0.0.1:{port}"
            step = ["srun", f"--jobid={number}", "--overlap", "--nodes=1", "--ntasks=1", *argv]
            lines.append(f"{shlex.join(step)} </dev/null >>{folder}/client.log 2>&1")
    loop = folder / "loop.sh"
    loop.write_text("\n".join(lines) + "\n")
    wait_healthy(port)
    began = time.perf_counter()
    subprocess.run(["bash", str(loop)], env=cluster.env(), check=True)
    return time.perf_counter() - began


def wait_healthy(port: int) -> None:
    """Until the server answers; at most half a minute."""
    import urllib.request

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server of the shell loop did not come up")


if __name__ == "__main__":
    sys.exit(main())
