"""What a result file says, and what it leaves out: judged in a run whose client leaves the entries' files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from plugin.project import Project, Run
from results.points import RUN, make_load, make_point, outcome_of

from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Gates
from pytest_gpubench.results.row import build_row, judge_point

from .cases import CASES, REPOSITORY, Recipes, bench_json, recipe_text, workload
from .stubs import vllm_with_results

SIX_LOST = {
    **bench_json("FC-09"),
    "num_prompts": 100,
    "completed": 90,
    "failed": 4,
    "total_output_tokens": 5760,
}
SIX_LOST["total_input_tokens"] = 23040
SPACE = """\
search_space:
  - isl: 256
    osl: 64
    num_warmups: 0
    points:
      - {name: dead, conc: 4, num_prompts: 160, gates: {max_failure_rate: %s}}
      - {name: forgiven, conc: 4, num_prompts: 160, gates: {max_failure_rate: 1.0}}
      - {name: lost, conc: 1, num_prompts: 50}
      - {name: six, conc: 4, num_prompts: 100, gates: {max_failure_rate: 0.05}}
  - isl: 32
    osl: 128
    num_warmups: 0
    points:
      - {name: keys, conc: 1, num_prompts: 10, gates: {ceilings: {p99_ttft: %s}}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One server, five points, each with a file that an entry tells of; the client always exits 0."""
    folder = tmp_path_factory.mktemp("files")
    project = Project(folder / "project")
    rate = workload("FC-07")["assert"]["max_failure_rate"]
    ceiling = workload("FC-10")["assert"]["max_p99_ttft_ms"] / 1000
    text = recipe_text(rest=SPACE % (rate, ceiling)).replace("SITE", "GB300_SLURM")
    project.write("workloads/files.yaml", text)
    dead = json.dumps(bench_json("FC-07"))
    files = {
        "dead": dead,
        "forgiven": dead,
        "lost": json.dumps(bench_json("FC-09")),
        "six": json.dumps(SIX_LOST),
        "keys": json.dumps(bench_json("FC-10")),
    }
    with project.cluster() as cluster:
        vllm_with_results(cluster, folder, files)
        yield project.run("--workload=files", "-v", env=project.env(cluster.env()))


def seen(run: Run, name: str) -> tuple[dict[str, Any], str]:
    """Row and message of a point."""
    (point,) = (row["point"] for row in run.rows.values() if f"-{name}-" in row["point"])
    failure = run.cases()[f"workloads.files.yaml::test_serving[{point}]"].find("failure")
    assert failure is not None, run.out
    return run.row("files", point), failure.text or ""


def test_fc_07_nothing_completed_fails_whatever_the_limit(run: Run) -> None:
    assert run.code == 1, run.out
    for name in ("dead", "forgiven"):
        row, text = seen(run, name)
        assert (row["status"], row["reason"], row["failure_rate"]) == ("failed", "nothing_completed", 1.0)
        assert "0 of 160 requests completed" in text
        assert ("failure_rate 1 (160/160) is above max_failure_rate 0.05" in text) == (name == "dead")
        # No zero is ever told as a measurement.
        figures = [
            value for key, value in row.items() if key.endswith(("_ttft", "_tpot", "_itl", "_per_gpu"))
        ]
        assert figures
        assert set(figures) == {None}
        assert row["request_throughput"] is None
    assert "ZeroDivisionError" not in run.out
    assert "Traceback" not in run.out


def test_fc_09_what_did_not_complete_has_failed(run: Run) -> None:
    row, text = seen(run, "lost")
    assert (row["failure_rate"], row["failed"], row["completed"]) == (0.98, 49, 1)
    assert row["stated_failed"] is None
    assert "failure_rate 0.98 (49/50)" in text
    assert "the file gives no failed count, but 1 of 50 completed" in text
    row, text = seen(run, "six")
    assert (row["failure_rate"], row["failed"], row["stated_failed"]) == (0.1, 10, 4)
    assert "of 100 prompts 90 completed and 4 failed: 6 unaccounted for" in text
    assert "the file states 4 failed, but 90 of 100 completed" in text
    assert row["reason"] == "prompts_unaccounted"


@pytest.mark.parametrize(
    ("completed", "failed", "rate", "reason"),
    [
        (100, None, 0.0, None),  # an older client, nothing lost
        (100, 0, 0.0, None),
        (99, None, 0.01, Reason.GATE_MISSED),
        (99, 1, 0.01, Reason.GATE_MISSED),
        (99, 0, 0.01, Reason.PROMPTS_UNACCOUNTED),
        (100, 3, 0.03, Reason.PROMPTS_UNACCOUNTED),  # more than were sent
        (0, None, 1.0, Reason.NOTHING_COMPLETED),
    ],
)
def test_fc_09_neighbours(completed: int, failed: int | None, rate: float, reason: Reason | None) -> None:
    content = {**bench_json("FC-09"), "num_prompts": 100, "completed": completed}
    content |= {"total_input_tokens": 256 * completed, "total_output_tokens": 64 * completed}
    if failed is not None:
        content["failed"] = failed
    point = make_point(load=make_load(num_prompts=100, isl=256, osl=64), gates=Gates(max_failure_rate=0.0))
    row, verdict = judge_point(point, outcome_of(content), RUN)
    assert row["failure_rate"] == rate
    assert verdict.reason is reason


def test_fc_10_an_absent_percentile_fails_the_gate_that_names_it(run: Run) -> None:
    row, text = seen(run, "keys")
    assert (row["status"], row["reason"]) == ("failed", "gate_missed")
    assert "p99_ttft is not in the result (ceiling 0.1 s)" in text
    assert "of ttft the result has mean, p50, p99.9" in text
    assert "KeyError" not in run.out
    # Absent ones are null, and there; p99.9 is the 99.9th percentile, not the 99th.
    assert row["p99_ttft"] is row["median_itl"] is row["p99_tpot"] is row["mean_e2el"] is None
    assert (row["mean_ttft"], row["p99.9_ttft"]) == (0.04, 0.07)


def test_fc_10_the_client_is_asked_for_what_a_row_has(run: Run) -> None:
    """A gate on p99 cannot miss its figure for want of asking."""
    (path,) = run.results.glob("files/*keys*/plan.json")
    argv = json.loads(path.read_text())["bench_argv"]
    asked = argv[argv.index("--metric-percentiles") + 1].split(",")
    assert {"50", "90", "95", "99"} <= set(asked)
    assert set(argv[argv.index("--percentile-metrics") + 1].split(",")) == {"ttft", "tpot", "itl", "e2el"}


def test_fc_10_a_name_of_the_raw_file_is_a_collection_error_with_the_rows_name(recipes: Recipes) -> None:
    gates = "gates: {ceilings: {p99_ttft_ms: 100}}\nsearch_space: [{isl: 8, osl: 8, points: [{conc: 1}]}]\n"
    (problem,) = recipes.problems(recipe_text(rest=gates))
    assert "a row has no metric 'p99_ttft_ms'; did you mean 'p99_ttft'?" in problem


@pytest.mark.parametrize("case", ["FC-07", "FC-09", "FC-10", "FC-48"])
def test_rows_of_such_files_are_valid(case: str) -> None:
    content = bench_json(case)
    point = make_point(load=make_load(num_prompts=content["num_prompts"]))
    row = build_row(point, outcome_of(content), RUN)
    schema = json.loads((REPOSITORY / "pytest_gpubench/results/schema.json").read_text())
    jsonschema.validate(row, {**schema, "$ref": "#/$defs/row", "type": "object", "required": []})
    assert CASES[case]["area"] in ("bench_json", "ingest")
