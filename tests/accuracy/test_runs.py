"""Accuracy beside throughput on the mocked Slurm: one server start, gates, rows, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from plugin.project import Project, Run

import pytest_gpubench.results
from pytest_gpubench.mock import ClientExits, ClientHangs, MockCluster, ResultMissing, ServerExits

SCHEMA = json.loads((Path(pytest_gpubench.results.__file__).parent / "schema.json").read_text())
GATE = """
gates:
  accuracy: {gsm8k: {"exact_match,strict-match": 0.90}}
"""
LM_EVAL = """
lm_eval:
  model_args: {num_concurrent: 4, tokenized_requests: false}
  tasks: [{name: gsm8k, num_fewshot: 5}, {name: mmlu}]
"""
BFCL = """
bfcl: {test_categories: [simple_python, multiple]}
"""
BFCL_STUB = """#!/bin/sh
[ "$1" = version ] && exit 0
echo "$@" >>"$BFCL_PROJECT_ROOT/calls"
if [ "$1" = generate ] && [ -e "$(dirname "$0")/refuse" ]; then
  echo "Unknown model_name 'org/tiny'." >&2
  exit 1
fi
python3 - "$1" "$5" <<'PY'
import json, os, pathlib, sys, urllib.request
root = pathlib.Path(os.environ["BFCL_PROJECT_ROOT"])
kind, category = sys.argv[1:]
if kind == "generate":
    messages = [{"role": "user", "content": "area?"}]
    body = json.dumps({"model": "org/tiny", "messages": messages, "max_tokens": 4})
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body.encode(), head)))
    folder = root / "result" / "org_tiny" / "non_live"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"BFCL_v4_{category}_result.json").write_text(json.dumps(answer))
else:
    folder = root / "score" / "org_tiny" / "non_live"
    folder.mkdir(parents=True, exist_ok=True)
    assert (root / "result" / "org_tiny" / "non_live" / f"BFCL_v4_{category}_result.json").exists()
    header = {"accuracy": 0.875, "correct_count": 7, "total_count": 8}
    (folder / f"BFCL_v4_{category}_score.json").write_text(json.dumps(header) + chr(10))
PY
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def cluster(project: Project) -> Iterator[MockCluster]:
    with project.cluster() as found:
        yield found


def run(project: Project, cluster: MockCluster, extra: str, *arguments: str) -> Run:
    project.recipe("both", conc="[2, 4]", extra=extra)
    return project.run("--workload", "both", *arguments, env=project.env(cluster.env()))


def test_accuracy_comes_after_throughput_on_one_server(project: Project, cluster: MockCluster) -> None:
    done = run(project, cluster, LM_EVAL + GATE)
    assert done.code == 0, done.out
    assert list(done.outcomes()) == [
        "test_serving[tp1-32x16-conc2]",
        "test_serving[tp1-32x16-conc4]",
        "test_accuracy[tp1-gsm8k]",
        "test_accuracy[tp1-mmlu]",
    ]
    assert len(cluster.calls("sbatch")) == 1
    assert {row["job_id"] for row in done.rows.values()} == {"1"}
    row = done.row("both", "tp1-gsm8k")
    jsonschema.validate(row, {**SCHEMA["properties"]["rows"]["items"], "$defs": SCHEMA.get("$defs", {})})
    assert (row["kind"], row["status"], row["task"], row["harness"]) == (
        "accuracy",
        "passed",
        "gsm8k",
        "lm_eval",
    )
    scores = {score["metric"]: score["value"] for score in row["scores"]}
    assert scores == {"exact_match,strict-match": 0.95, "exact_match,flexible-extract": 0.95}
    # The form that perf-eval sends: the harness's own results, with workload and task.
    event = row["event"]
    assert (event["kind"], event["workload"], event["task"]) == ("results", "both", "gsm8k")
    assert event["data"] == json.loads(Path(event["source_file"]).read_text())
    assert event["data"]["n-shot"]["gsm8k"] == 5
    (samples,) = row["samples"]
    assert len(Path(samples).read_text().splitlines()) == 8
    plan = done.plan("both", "tp1-gsm8k")
    assert plan["bench_argv"][0] == "lm_eval"
    assert "base_url=http://127.0.0.1:" in plan["bench_argv"][4]


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.85, "gsm8k exact_match,strict-match 0.85 is below the floor 0.9"),
        ({"gsm8k": {"exact_match,flexible-extract": 0.99}, "mmlu": 0.9}, "strict-match is not in the result"),
    ],
)
def test_a_gate_that_is_missed_or_has_no_metric_fails(
    project: Project, cluster: MockCluster, score: Any, words: str
) -> None:
    cluster.simulate(score=score)
    done = run(project, cluster, LM_EVAL + GATE)
    assert done.code == 1
    assert done.outcomes()["test_accuracy[tp1-gsm8k]"] == "failure"
    assert done.outcomes()["test_accuracy[tp1-mmlu]"] == "passed"
    row = done.row("both", "tp1-gsm8k")
    assert (row["status"], row["reason"]) == ("failed", "gate_missed")
    assert words in row["message"]
    assert row["violations"][0]["kind"] == "accuracy"


def test_accuracy_alone_can_be_selected(project: Project, cluster: MockCluster) -> None:
    done = run(project, cluster, LM_EVAL + GATE, "-m", "accuracy")
    assert list(done.outcomes()) == ["test_accuracy[tp1-gsm8k]", "test_accuracy[tp1-mmlu]"]
    assert done.code == 0


@pytest.mark.parametrize(
    ("fault", "extra", "reason", "words"),
    [
        (ClientExits(code=1, text="Tasks not found: gsm9k"), "", "client_failed", "Tasks not found: gsm9k"),
        pytest.param(
            ResultMissing(), "", "no_result", "left no results_*.json for gsm8k", marks=pytest.mark.slow
        ),
        pytest.param(
            ClientHangs(), "deadlines: {bench: 2}\n", "client_hung", "did not end in", marks=pytest.mark.slow
        ),
        (ServerExits(rank=0, code=3, after_requests=2), "", "server_exited", "rank-0 on gb300-01 ended"),
    ],
)
def test_a_harness_that_fails_is_infrastructure(
    project: Project, cluster: MockCluster, fault: Any, extra: str, reason: str, words: str
) -> None:
    cluster.inject(fault)
    done = run(project, cluster, LM_EVAL.replace(", {name: mmlu}", "") + GATE + extra, "-m", "accuracy")
    assert done.code == 1
    row = done.row("both", "tp1-gsm8k")
    assert (row["status"], row["reason"]) == ("error", reason)
    assert words in row["message"], row["message"]
    assert row["scores"] == []
    assert row["event"] is None


@pytest.mark.slow
def test_without_lm_eval_the_error_says_so(project: Project, cluster: MockCluster) -> None:
    (cluster.bin / "lm_eval").unlink()
    done = run(project, cluster, LM_EVAL, "-m", "accuracy", "-k", "gsm8k")
    row = done.row("both", "tp1-gsm8k")
    assert row["reason"] == "client_failed"
    assert "Is lm_eval installed where the client runs (in the image)?" in row["message"], row["message"]


def test_bfcl_is_skipped_with_the_reason_where_it_is_not(project: Project, cluster: MockCluster) -> None:
    done = run(project, cluster, BFCL)
    assert done.code == 0
    skipped = {name: outcome for name, outcome in done.outcomes().items() if "bfcl" in name}
    assert skipped == {
        "test_accuracy[tp1-bfcl-simple_python]": "skipped",
        "test_accuracy[tp1-bfcl-multiple]": "skipped",
    }
    messages = [str(child.get("message")) for case in done.cases().values() for child in case]
    assert any("bfcl is not installed where the client runs" in message for message in messages)


def with_bfcl(cluster: MockCluster) -> Path:
    program = cluster.bin / "bfcl"
    program.write_text(BFCL_STUB)
    program.chmod(0o755)
    return program


def test_bfcl_runs_where_it_is(project: Project, cluster: MockCluster) -> None:
    with_bfcl(cluster)
    done = run(project, cluster, BFCL + 'gates: {accuracy: {simple_python: {"acc,none": 0.9}}}\n')
    assert done.outcomes()["test_accuracy[tp1-bfcl-multiple]"] == "passed"
    assert done.outcomes()["test_accuracy[tp1-bfcl-simple_python]"] == "failure"
    row = done.row("both", "tp1-bfcl-simple_python")
    assert (row["harness"], row["task"], row["scores"][0]["value"]) == ("bfcl", "simple_python", 0.875)
    assert "simple_python acc,none 0.875 is below the floor 0.9" in row["message"]
    assert row["event"]["data"] == {"results": {"bfcl_simple_python": {"acc,none": 0.875}}}
    (sample,) = row["samples"]
    assert json.loads(Path(sample).read_text())["usage"]["completion_tokens"] == 4
    calls = (Path(sample).parents[3] / "calls").read_text().splitlines()
    assert [line.split()[0] for line in calls] == ["generate", "evaluate"]


@pytest.mark.slow
def test_a_model_that_bfcl_does_not_know_is_said(project: Project, cluster: MockCluster) -> None:
    (with_bfcl(cluster).parent / "refuse").touch()
    done = run(project, cluster, BFCL, "-k", "bfcl-multiple")
    row = done.row("both", "tp1-bfcl-multiple")
    assert (row["status"], row["reason"]) == ("error", "client_failed")
    assert "`bfcl generate` failed" in row["message"]
    assert "Unknown model_name 'org/tiny'" in row["message"]
