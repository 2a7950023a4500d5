"""``gpubench pipeline``: steps that Buildkite's own schema takes, and what they repeat."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pytest_gpubench.cli.ci import EXIT_INFRASTRUCTURE
from pytest_gpubench.cli.pipeline import run
from pytest_gpubench.cli.pipeline_steps import shell_word

SCHEMA = json.loads((Path(__file__).parent.parent / "data" / "buildkite" / "schema.json").read_text("utf-8"))

PROFILES = """
GB300_SLURM:
  queue: gb300_slurm
  slurm: {partition: batch, gres: "gpu:b300:4", time: "03:00:00"}
H200:
  queue: h200
  runtime: docker
LAPTOP:
  runtime: native
"""
RECIPE = """
name: NAME
gpu: PROFILE
num_nodes: 1
gpus_per_node: 4
num_gpus: 4
MORE
vllm:
  model: org/Model
  serve_args: --tensor-parallel-size 4
vllm_bench:
  configs:
    - name: c1
      backend: openai
      dataset: random
      input_len: 8
      output_len: 8
      num_prompts: 2
      max_concurrency: 1
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "workloads"
    folder.mkdir()
    (folder / "gpu_profiles.yaml").write_text(PROFILES)
    add(folder, "flash", "GB300_SLURM", "nightly: true\ntimeout_in_minutes: 240")
    add(folder, "other", "GB300_SLURM")
    add(folder, "boxed", "H200", "nightly: true")
    return tmp_path


def add(folder: Path, stem: str, profile: str, more: str = "", name: str | None = None) -> Path:
    text = RECIPE.replace("NAME", json.dumps(name or f"{stem}-name")).replace("PROFILE", profile)
    path = folder / f"{stem}.yaml"
    path.write_text(text.replace("MORE", more))
    return path


def pipeline(
    capsys: pytest.CaptureFixture[str], cwd: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    code = run(arguments, env=env or {}, cwd=cwd)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    made: dict[str, Any] = yaml.safe_load(captured.out)
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(made)
    return made


def test_one_step_per_recipe_then_a_reap_per_queue(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = pipeline(capsys, checkout)["steps"]
    assert [step.get("key") for step in steps] == [
        "gpubench-boxed", "gpubench-flash", "gpubench-other", None, "gpubench-reap-gb300_slurm",
    ]  # fmt: skip
    flash = steps[1]
    assert flash["agents"] == {"queue": "gb300_slurm"}
    assert flash["timeout_in_minutes"] == 240
    assert "timeout_in_minutes" not in steps[2]
    assert flash["env"] == {"WORKLOADS": "workloads/flash.yaml"}
    assert flash["label"] == "flash-name (GB300_SLURM, 1 node, 1 point)"
    assert flash["artifact_paths"] == [
        "results/$BUILDKITE_BUILD_ID/flash/**/*",
        "results/$BUILDKITE_BUILD_ID/ingest-flash.json",
        "results/$BUILDKITE_BUILD_ID/junit-flash.xml",
    ]
    assert flash["command"].startswith("gpubench ci -m gpubench --gpubench-results")
    assert steps[3] == {"wait": None, "continue_on_failure": True}
    assert steps[4]["command"] == (
        'mkdir -p "results/$BUILDKITE_BUILD_ID" && '
        'gpubench reap --results "results/$BUILDKITE_BUILD_ID" --force'
    )


def repeated(step: dict[str, Any], exit_status: int, signal_reason: str = "none") -> int:
    """How often Buildkite repeats: the first rule that matches decides, every condition of it must."""
    for rule in step.get("retry", {}).get("automatic", []):
        status = rule.get("exit_status", "*")
        wanted = rule.get("signal_reason", "*")
        if status in (exit_status, "*") and wanted in (signal_reason, "*"):
            return int(rule["limit"])
    return 0


def test_only_infrastructure_is_repeated(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = pipeline(capsys, checkout, "flash", "--retries", "2")["steps"][0]
    for code in range(6):  # pytest's own: passed, failed gates, interrupted, internal, usage, nothing
        assert repeated(step, code) == 0, code
    for code in (-1, 255, EXIT_INFRASTRUCTURE):
        assert repeated(step, code) == 2, code
    assert repeated(step, 143, "agent_stop") == 2
    assert repeated(step, 143, "cancel") == 0
    assert "retry" not in pipeline(capsys, checkout, "flash", "--retries", "0")["steps"][0]


def test_nightly_takes_nightly_recipes_and_says_so(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for made in (
        pipeline(capsys, checkout, "--nightly"),
        pipeline(capsys, checkout, env={"NIGHTLY": "1"}),
    ):
        keys = [step.get("key") for step in made["steps"]]
        assert keys[:2] == ["gpubench-boxed", "gpubench-flash"]
        assert "gpubench-other" not in keys
        assert made["steps"][0]["env"]["NIGHTLY"] == "1"
    named = pipeline(capsys, checkout, "other", "--nightly")
    assert named["steps"][0]["key"] == "gpubench-other"


def test_workloads_from_the_environment(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = pipeline(capsys, checkout, env={"WORKLOADS": "other-name,flash"})
    assert [step.get("key") for step in made["steps"]][:2] == ["gpubench-other", "gpubench-flash"]


def test_no_slurm_no_reap(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(pipeline(capsys, checkout, "boxed")["steps"]) == 1


def test_a_shared_folder_of_all_builds_is_never_forced(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = pipeline(capsys, checkout, "flash", "--results", "/nfs/results")["steps"][-1]
    assert step["command"] == "mkdir -p /nfs/results && gpubench reap --results /nfs/results"
    step = pipeline(capsys, checkout, "flash", "--results", "/nfs/$BUILDKITE_PIPELINE_SLUG")["steps"][-1]
    assert "--force" not in step["command"]
    step = pipeline(capsys, checkout, "flash", "--results", "/nfs/${BUILDKITE_BUILD_NUMBER}/r")["steps"][-1]
    assert step["command"].endswith("--force")
    # Upload has put the id itself in place of the variable.
    env = {"BUILDKITE_BUILD_ID": "0199-abc"}
    step = pipeline(capsys, checkout, "flash", "--results", "/nfs/0199-abc", env=env)["steps"][-1]
    assert step["command"].endswith("--force")


def test_arguments_for_pytest_reach_it_literally(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = pipeline(capsys, checkout, "flash", "--", "--gpubench-smoke", "-k", "a b or $HOME'")["steps"][0]
    interpolated = step["command"].replace("$$", "$")  # what the agent makes of it
    words = shlex.split(interpolated)
    assert words[-3:] == ["--gpubench-smoke", "-k", "a b or $HOME'"]
    assert "'a b or $HOME'" in interpolated  # single quotes: the shell does not expand it either


def test_texts_of_recipes_are_not_interpolated(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(checkout / "workloads", "dollar", "LAPTOP", name="costs $5 {x}: #1")
    step = pipeline(capsys, checkout, "dollar")["steps"][0]
    assert step["label"].startswith("costs $$5 {x}: #1 (LAPTOP")


def test_a_profile_without_a_queue_is_said(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(checkout / "workloads", "local", "LAPTOP")
    assert run(["local"], env={}, cwd=checkout) == 0
    captured = capsys.readouterr()
    assert "profile LAPTOP has no queue" in captured.err
    assert "agents" not in yaml.safe_load(captured.out)["steps"][0]
    step = pipeline(capsys, checkout, "local", "--queue", "default")["steps"][0]
    assert step["agents"] == {"queue": "default"}


def test_test_engine_gets_the_junit_file(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = pipeline(capsys, checkout, "flash", "--test-collector", "v1.11.0")["steps"][0]
    assert step["plugins"] == [
        {
            "test-collector#v1.11.0": {
                "files": "results/$BUILDKITE_BUILD_ID/junit-flash.xml",
                "format": "junit",
            }
        }
    ]


def test_equal_keys_are_told_apart(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkout / "workloads"
    add(folder, "a.b", "LAPTOP")
    add(folder, "a-b", "LAPTOP")
    keys = [step["key"] for step in pipeline(capsys, checkout, "a.b", "a-b")["steps"]]
    assert keys == ["gpubench-a-b", "gpubench-a-b-2"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["flesh"], 4, "did you mean flash"),
        (["flash", "--results", "$HOME/x"], 4, "--results '$HOME/x'"),
        (["flash", "--results", "a b"], 4, "--results 'a b'"),
        (["flash", "--retries", "11"], 4, "--retries 11: expected 0 to 10"),
        (["--workloads", "nowhere"], 5, "no recipe in"),
    ],
)
def test_bad_usage(
    arguments: list[str], code: int, words: str, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, env={}, cwd=checkout) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_every_broken_recipe_is_named_and_only_if_asked_for(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stem in ("broken1", "broken2"):
        (checkout / "workloads" / f"{stem}.yaml").write_text("gpu: [\n")
    assert run([], env={}, cwd=checkout) == 4
    err = capsys.readouterr().err
    assert "broken1.yaml" in err
    assert "broken2.yaml" in err
    assert run(["flash"], env={}, cwd=checkout) == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("plain", "plain"),
        ("a b", "'a b'"),
        ("$HOME", "'$$HOME'"),
        ("r/$BUILDKITE_BUILD_ID", '"r/$BUILDKITE_BUILD_ID"'),
        ("$BUILDKITE_BUILD_ID$HOME", "'$$BUILDKITE_BUILD_ID$$HOME'"),
    ],
)
def test_shell_words(text: str, word: str) -> None:
    assert shell_word(text) == word
