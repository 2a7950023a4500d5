"""Collection of 5,000 points against 5,000 plain functions, and the cost of the unused plugin."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure import alternate, cpu_seconds, report

PLAIN = """\
import pytest

@pytest.mark.parametrize("value", range(5000), ids=[f"tp4-1k1k-conc{n}" for n in range(5000)])
def test_plain(value):
    pass
"""
RECIPE = """\
name: many
gpu: H200
num_nodes: 1
gpus_per_node: 8
vllm: {{model: org/model}}
search_space:
{entries}
"""
PROFILES = "H200: {platform: h200, runtime: slurm, slurm: {partition: batch}}\n"
PYTEST = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]


def main() -> int:
    """Print both ratios; 1 when a limit is missed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, ours = folder / "plain", folder / "ours"
        plain.mkdir()
        (ours / "workloads").mkdir(parents=True)
        (plain / "test_plain.py").write_text(PLAIN)
        entries = []
        for isl in range(1, 51):
            concs = ", ".join(str(n) for n in range(1, 101))
            entries.append(f"  - {{isl: {isl * 16}, osl: 64, points: [{{tp: 8, conc: [{concs}]}}]}}")
        (ours / "workloads" / "many.yaml").write_text(RECIPE.format(entries="\n".join(entries)))
        (ours / "workloads" / "gpu_profiles.yaml").write_text(PROFILES)
        for path in (plain, ours):
            (path / "pytest.ini").write_text("[pytest]\n")
        mine, other = alternate(
            lambda: cpu_seconds([*PYTEST, "--workload", "many"], ours),
            lambda: cpu_seconds(PYTEST, plain),
        )
        kept = report("collect 5,000 points / 5,000 plain functions", mine, other, 1.5)
        version = [sys.executable, "-m", "pytest", "--version"]
        with_plugin, without = alternate(
            lambda: cpu_seconds(version, plain),
            lambda: cpu_seconds([*version, "-p", "no:gpubench"], plain),
        )
        added = with_plugin - without
        word = "ok" if added <= 0.15 else "ABOVE"
        print(f"the unused plugin adds {added:.3f} s to pytest --version (limit 0.150: {word})")
        return 0 if kept and added <= 0.15 else 1


if __name__ == "__main__":
    sys.exit(main())
