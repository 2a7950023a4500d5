"""What a recipe says is what is judged and what vLLM is given."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from plugin.project import Project

from pytest_gpubench.mock import MockCluster

from .cases import CASES, SPACE, Recipes, plan_of, recipe_text, scalars, value_of, workload
from .stubs import dumping_vllm

# -- FC-02 -------------------------------------------------------------------------------------------


def test_fc_02_a_limit_in_any_notation_is_the_number_or_an_error(recipes: Recipes) -> None:
    limits = scalars("FC-02")
    assert (limits["max_failure_rate"], limits["min_output_throughput"]) == ("1e-2", "1e3")
    text = (
        f"gates: {{max_failure_rate: {limits['max_failure_rate']}, "
        f"floors: {{output_throughput: {limits['min_output_throughput']}}}}}\n"
    )
    gates = recipes.point(recipe_text(rest=text + SPACE)).gates
    assert (gates.max_failure_rate, dict(gates.floors)) == (0.01, {"output_throughput": 1000.0})
    assert isinstance(dict(gates.floors)["output_throughput"], float)


def test_fc_02_every_other_spelling(recipes: Recipes) -> None:
    (step,) = CASES["FC-02"]["input"]["steps"]
    for spelling in ('"5%"', "5", "-0.1", "010", ".inf", "null"):
        assert spelling.split()[0] in step
        text = recipe_text(rest=f"gates: {{max_failure_rate: {spelling}}}\n{SPACE}")
        if spelling == '"5%"':
            assert recipes.point(text).gates.max_failure_rate == 0.05
            continue
        (problem,) = recipes.problems(text)
        assert problem.startswith("case.yaml:5:27: gates.max_failure_rate: expected ")
        assert "(got " in problem


@pytest.mark.parametrize(
    "gates",
    [
        "floors: {tput_per_gpu: 1e3}",
        "ceilings: {p99_ttft: 1e3}",
        "max_spread: {tput_per_gpu: 1e-2}",
        "references: {tput_per_gpu: {value: 1e3, lower: -5e-2}}",
    ],
)
def test_fc_02_limits_of_every_kind_are_numbers(recipes: Recipes, gates: str) -> None:
    found = recipes.point(recipe_text(rest=f"gates: {{{gates}}}\n{SPACE}")).gates
    kept = [value for _, value in (*found.floors, *found.ceilings, *found.max_spread)]
    kept += [value for one in found.references for value in (one.value, one.lower) if value is not None]
    assert kept
    assert set(map(type, kept)) == {float}
    assert set(kept) <= {1000.0, 0.01, -0.05}
    # What is no number is never dropped.
    wrong = gates.replace("1e3", "fast").replace("1e-2", "fast")
    (problem,) = recipes.problems(recipe_text(rest=f"gates: {{{wrong}}}\n{SPACE}"))
    assert "'fast'" in problem


# -- FC-04 -------------------------------------------------------------------------------------------


def test_fc_04_false_null_and_mappings_become_what_vllm_reads(recipes: Recipes) -> None:
    args = workload("FC-04")["serve"]["args"]
    text = recipe_text(f"serve: {json.dumps(args)}", nodes=2)
    (rank, follower) = plan_of(recipes.point(text).deployment).ranks
    for argv in (rank.argv, follower.argv):
        assert "--enforce-eager" not in argv
        assert "--no-enable-prefix-caching" in argv
        assert "--trust-remote-code" in argv
        assert not [word for word in argv if word.startswith("--max-model-len")]
        assert value_of(argv, "--tensor-parallel-size") == "8"
        assert json.loads(value_of(argv, "--compilation-config")) == {"mode": 3}
        assert "None" not in argv
        assert "False" not in argv


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("enforce_eager: off", []),
        ("enable_chunked_prefill: no", ["--no-enable-chunked-prefill"]),
        ("enable-prefix-caching: false", ["--no-enable-prefix-caching"]),
        ("async_scheduling: false", ["--no-async-scheduling"]),
        ("enforce_eager: yes", ["--enforce-eager"]),
        ("kv_transfer_config: null", []),
        ("compilation_config.use_inductor: false", ["--compilation-config.use_inductor", "false"]),
        ("hf_overrides: {a: [1, {b: null}], c: false}", ["--hf-overrides", '{"a":[1,{"b":null}],"c":false}']),
    ],
)
def test_fc_04_neighbours(recipes: Recipes, setting: str, words: list[str]) -> None:
    plain = plan_of(recipes.point(recipe_text("serve: {}")).deployment).ranks[0].argv
    argv = plan_of(recipes.point(recipe_text(f"serve: {{{setting}}}")).deployment).ranks[0].argv
    found = [word for word in argv if word not in plain]
    if words[-1:] and words[-1].startswith("{"):
        assert json.loads(found[1]) == json.loads(words[1])
        found, words = found[:1], words[:1]
    assert [word for word in found if word != "--no-enforce-eager"] == words


# -- FC-05 -------------------------------------------------------------------------------------------

HOSTILE = ["it's $HOME", 'a "b" \\ `id` $(id)', "two\nlines", "#x; y | z & !", "", "*?[a]~", "é 中"]


def test_fc_05_every_rank_gets_the_very_words(project: Project, tmp_path: Path) -> None:
    text = workload("FC-05")["serve"]["args_text"]
    notes = json.dumps({"note": 'it\'s "here" $HOME\n#x', "path": "a\\b"})
    words = [*HOSTILE, notes]
    options = " ".join(f"--note-{number} {shlex.quote(word)}" for number, word in enumerate(words))
    recipe = recipe_text(f"serve_args: {json.dumps(f'{text} -tp 2 {options}')}", nodes=2)
    project.write("workloads/hops.yaml", recipe.replace("SITE", "GB300_SLURM"))
    with project.cluster() as cluster:
        dumps = dumping_vllm(cluster, tmp_path)
        run = project.run("--workload=hops", env=project.env(cluster.env()))
        assert run.code == 0, run.out
        ranks = [dump for dump in dumps() if dump.argv[0] == "serve"]
    assert sorted("--headless" in dump.argv for dump in ranks) == [False, True]
    for dump in ranks:
        speculative = json.loads(value_of(dump.argv, "--speculative-config"))
        assert speculative == {"method": "mtp", "num_speculative_tokens": 2}
        assert value_of(dump.argv, "--served-model-name") == "Team Model"
        got = [value_of(dump.argv, f"--note-{number}") for number in range(len(words))]
        assert got == words


# -- FC-06 -------------------------------------------------------------------------------------------


def fc_06() -> str:
    found = workload("FC-06")
    slurm = found["slurm"]
    points = json.dumps(found["search_space"])
    space = f"search_space: [{{isl: 32, osl: 16, points: {points}}}]\n"
    return recipe_text(nodes=slurm["nodes"], gpus=slurm["gpus_per_node"], rest=space)


def test_fc_06_points_that_cannot_run_are_told_before_any_node_is_held(project: Project) -> None:
    project.write("workloads/space.yaml", fc_06().replace("SITE", "GB300_SLURM"))
    with project.cluster() as cluster:
        env = project.env(cluster.env())
        run = project.run("--workload=space", env=env)
        assert run.code == 2, run.out
        assert "point tp8-pp2-32x16-conc4: tp8 x pp2 needs 16 GPUs, but 8 are allocated" in run.out
        assert "point tp8-32x16-conc64: 8 prompts can never be 64 in flight" in run.out
        assert "tp4 uses 4 of 8 GPUs allocated (2 nodes x 4): 4 are idle" in run.out
        assert "Traceback" not in run.out
        assert cluster.calls("sbatch") == []
        good = run_the_good_one(project, cluster)
    assert good == {"space/tp8-32x16-conc4": "passed"}


def run_the_good_one(project: Project, cluster: MockCluster) -> dict[str, str]:
    """Workload/point -> status of a run of the point that can run."""
    arguments = ("--workload=space", "--gpubench-skip-rejected", "-k", "tp8-32x16-conc4")
    run = project.run(*arguments, env=project.env(cluster.env()))
    assert run.code == 0, run.out
    return {name: row["status"] for name, row in run.rows.items()}


@pytest.mark.parametrize(
    ("point", "serve", "refused"),
    [
        ("{dp: 3, tp: 3, conc: 1}", "", "needs 9 GPUs, but 8 are allocated"),
        ("{tp: 3, conc: 1}", "", "do not divide by 2 nodes"),
        ("{tp: 4, pp: 4, conc: 1}", "", "needs 16 GPUs, but 8 are allocated"),
        ("{tp: 8, conc: 1, random_range_ratio: 0.9}", "serve_args: --max-model-len 60", "up to 91 exceed"),
        ("{tp: 8, conc: [8], num_prompts: [4]}", "", "4 prompts can never be 8 in flight"),
    ],
)
def test_fc_06_neighbours(recipes: Recipes, point: str, serve: str, refused: str) -> None:
    space = f"search_space: [{{isl: 32, osl: 16, points: [{point}, {{tp: 2, dp: 4, conc: 1}}]}}]\n"
    bad, good = recipes.load(recipe_text(serve, nodes=2, rest=space)).points
    assert refused in (bad.rejected or "")
    assert good.rejected is None
