"""Node-seconds of a 13-point sweep over 3 deployments, against the lower bound and one start per point.

The lower bound holds the nodes for one start per deployment and for the client runs, and for nothing else.
One start per point is what the measured starts and client runs would add up to.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import report
from project import Project, search_space

from pytest_gpubench.mock import MockCluster

START = ("import", "load", "ready")


def main() -> int:
    """Print both ratios; 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=float, default=60.0, help="simulated seconds to load the model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sim = {"load_seconds": options.load}
        with MockCluster(folder / "cluster", nodes="gb300-[01-08]", gres={"gpu:b300": 4}, sim=sim) as cluster:
            project = Project(folder / "project", cluster, search_space(3, [1, 2, 4, 8], 64, osl=64))
            text = (project.folder / "workloads" / "sweep.yaml").read_text()
            text = text.replace("conc: [1, 2, 4, 8]", "conc: [1, 2, 4, 8, 16]", 1)
            (project.folder / "workloads" / "sweep.yaml").write_text(text)
            project.pytest()
            rows = project.rows()
            held = sum(job_seconds(job) for job in cluster.jobs())
    bench = {(row["deployment"], row["point"]): row for row in rows}
    starts: dict[str, float] = {}
    client: dict[str, float] = {}
    for row in rows:
        starts[row["deployment"]] = sum(row["phase_seconds"][phase] or 0.0 for phase in START)
        # The bench phase of a row counts all client runs of its deployment so far.
        client[row["deployment"]] = max(client.get(row["deployment"], 0.0), row["phase_seconds"]["bench"])
    bound = sum(starts.values()) + sum(client.values())
    per_point = sum(starts[row["deployment"]] for row in bench.values()) + sum(client.values())
    print(f"{len(rows)} points, {len(starts)} deployments, start {max(starts.values()):.1f} s")
    low = report("node-seconds / lower bound", held, bound, 1.05, "node-s")
    each = report("node-seconds / one start per point", held, per_point, 0.30, "node-s")
    return 0 if low and each else 1


def job_seconds(job: Any) -> float:
    """Node-seconds that a job of the mocked cluster held."""
    return float((job.end - job.start) * len(job.nodes))


if __name__ == "__main__":
    sys.exit(main())
