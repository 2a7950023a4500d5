"""Many deployments on a big mocked cluster: rows lost, Slurm queries per second, memory of the controller.

The client is a command that writes a result at once, so that what is measured is the harness.
"""

from __future__ import annotations

import argparse
import collections
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from project import Project

from pytest_gpubench.mock import MockCluster

CLIENT = """\
import json, sys
path, model, conc, prompts, isl, osl = sys.argv[1:7]
prompts, isl, osl = int(prompts), int(isl), int(osl)
body = {
    "date": "20260101-000000", "model_id": model, "num_prompts": prompts, "max_concurrency": int(conc),
    "completed": prompts, "failed": 0, "duration": 1.0, "total_input_tokens": prompts * isl,
    "total_output_tokens": prompts * osl, "output_throughput": float(prompts * osl),
    "total_token_throughput": float(prompts * (isl + osl)), "request_throughput": float(prompts),
    "mean_ttft_ms": 10.0, "median_ttft_ms": 10.0, "p99_ttft_ms": 12.0,
    "mean_tpot_ms": 5.0, "median_tpot_ms": 5.0, "p99_tpot_ms": 6.0,
}
json.dump(body, open(path, "w"))
"""
QUERIES = ("squeue", "scontrol", "sacct", "sinfo")


def main() -> int:
    """Run and print; 1 when something is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "client.py"
        script.write_text(CLIENT)
        words = "{result_file} {model} {concurrency} {num_prompts} {isl} {osl}"
        lines = [
            f"client: {{kind: command, command: '{sys.executable} -S {script} {words}'}}",
            "search_space:",
        ]
        lines += ["  - isl: 64", "    osl: 16", "    num_prompts: 64", "    points:"]
        concurrencies = list(range(1, options.points + 1))
        for number in range(options.deployments):
            own = f"name: d{number}, tp: 4, serve_args: '--max-num-seqs {256 + number}'"
            lines.append(f"      - {{{own}, conc: {concurrencies}}}")
        nodes = "gb300-[0001-1000]"
        with MockCluster(folder / "cluster", nodes=nodes, gres={"gpu:b300": 4}) as cluster:
            project = Project(folder / "project", cluster, "\n".join(lines))
            (project.folder / "pytest.ini").write_text("[pytest]\ngpubench_poll_interval = 2\n")
            began = time.time()
            seconds = project.pytest("-n", str(options.workers), timeout=7200)
            rows = project.rows()
            queries = [call for call in cluster.calls() if os.path.basename(call.argv[0]) in QUERIES]
    wanted = options.deployments * options.points
    passed = sum(row["status"] == "passed" for row in rows)
    per_second = collections.Counter(int((call.time - began) // 2) for call in queries if from_us(call))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{options.deployments} deployments x {options.points} points in {seconds:.0f} s")
    print(f"rows: {len(rows)} of {wanted}, {passed} passed")
    print(f"Slurm queries of the run: {sum(per_second.values())}, at most {max(per_second.values())} in 2 s")
    print(f"largest process: {peak:.0f} MB")
    return 0 if passed == wanted and peak < 300 else 1


def from_us(call: object) -> bool:
    """Queries of the harness, not those of the batch scripts (nodes and addresses at the job's start)."""
    argv = list(getattr(call, "argv", []))
    return "show" not in argv or "job" in argv


if __name__ == "__main__":
    sys.exit(main())
