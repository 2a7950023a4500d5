"""SLO searches on the mocked Slurm: what is measured, what is reused, what is judged."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin.project import Project, Run

from pytest_gpubench.mock import RequestFailures

# Requests wait for a slot from four on: the time to the first token grows with the load.
RECIPE = """
gpu: H200_SLURM
gpus_per_node: 4
vllm: {{model: org/tiny, serve_args: --max-model-len 256 --max-num-seqs 4}}
search_space: [{{isl: 32, osl: 64, points: [{{conc: {conc}, num_prompts: {prompts}, num_warmups: 0}}]}}]
slo:
  ceilings: {{p99_ttft: {ceiling}}}
  floors: {{output_tput_per_gpu: {floor}}}
  range: [3, 6]
{more}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def run(
    project: Project,
    *,
    conc: str = "[4]",
    prompts: int = 12,
    ceiling: float = 0.2,
    floor: float = 1.0,
    more: str = "",
    fault: RequestFailures | None = None,
) -> Run:
    text = RECIPE.format(conc=conc, prompts=prompts, ceiling=ceiling, floor=floor, more=more)
    project.write("workloads/slo.yaml", text)
    with project.cluster(*([fault] if fault else [])) as cluster:
        cluster.simulate(token=0.005)
        return project.run("--workload", "slo", env=project.env(cluster.env()))


def test_the_highest_load_within_the_ceilings_is_found(project: Project) -> None:
    done = run(project)
    assert done.code == 0, done.out
    row = done.row("slo", "tp1-32x64")
    assert row["kind"] == "slo"
    assert row["slo_best"] == 4
    values = [probe["value"] for probe in row["slo"]["probes"]]
    assert len(values) == len(set(values))
    # The figures are those of the best load, and the floor judges them.
    assert row["output_tput_per_gpu"] > 1.0


def test_a_best_load_that_a_point_has_measured_gives_the_rows_figures(project: Project) -> None:
    done = run(project, conc="[4, 5]")
    assert done.code == 0, done.out
    row, point = done.row("slo", "tp1-32x64"), done.row("slo", "tp1-32x64-conc4")
    assert row["slo_best"] == 4
    assert row["output_tput_per_gpu"] == point["output_tput_per_gpu"]
    assert row["seeds"] == point["seeds"]
    # Nothing was left to ask: both ends of the answer were known.
    assert not list((done.results / "slo" / "tp1-32x64").glob("probe-*"))


def test_a_floor_that_the_best_load_misses_fails(project: Project) -> None:
    done = run(project, conc="[4, 5]", floor=1e9)
    assert done.outcomes()["test_slo[tp1-32x64]"] == "failure"
    row = done.row("slo", "tp1-32x64")
    assert row["reason"] == "gate_missed"
    assert "output_tput_per_gpu" in row["message"]


def test_no_load_within_the_ceilings_fails(project: Project) -> None:
    done = run(project, ceiling=0.0001)
    row = done.row("slo", "tp1-32x64")
    assert row["slo_best"] is None
    assert "no concurrency in 3..6 meets p99_ttft <= 0.0001 s" in row["message"]


def test_a_probe_with_failed_requests_meets_nothing(project: Project) -> None:
    done = run(project, ceiling=100.0, fault=RequestFailures(rate=0.5))
    row = done.row("slo", "tp1-32x64")
    assert row["slo_best"] is None
