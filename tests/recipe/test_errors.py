"""A wrong recipe: file, line, column, key, what is wrong, what it got, and the near key."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.load import LoadContext, load_recipe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "gpu: H200\nvlm: {model: x}\n",
            "recipe.yaml:2:1: vlm: unknown key 'vlm'; did you mean 'vllm'?",
        ),
        (
            head() + BENCH.replace("input_len", "input_ln"),
            "recipe.yaml:7:20: vllm_bench.configs[0].input_ln: unknown key 'input_ln'; did you mean 'inp",
        ),
        (
            head() + "search_space: [{isl: 8, osl: 8, points: [{conc: 1, tensor: 2}]}]",
            "recipe.yaml:4:52: search_space[0].points[0].tensor: unknown key 'tensor'; the keys here are ",
        ),
        (
            head() + "gates: {references: {tput_per_gpu: {value: 9, uper: 0.2, lower: -0.1}}}" + BENCH,
            "gates.references.tput_per_gpu.uper: unknown key 'uper'; did you mean 'upper'",
        ),
        (
            head() + "custom_script: manual/x.sh" + BENCH,
            "custom_script: unknown key 'custom_script'; a script of that repository runs in place of a",
        ),
        (head().replace("'-tp 8'", "5") + BENCH, "vllm.serve_args: expected text, a list of arguments, or a"),
        ("gpu: H200\n" + BENCH, "recipe.yaml:1:1: vllm: is required and missing"),
        (
            "gpu: H200\nvllm: {image: x}\n" + BENCH,
            "recipe.yaml:2:7: vllm.model: is required and missing",
        ),
        ("- a\n- b\n", "recipe.yaml:1:1: expected a mapping of keys"),
        (
            head() + "num_nodes: two" + BENCH,
            "recipe.yaml:4:12: num_nodes: expected an integer (got 'two')",
        ),
        (head() + "num_nodes: 0" + BENCH, "num_nodes: input should be greater than or equal to 1 (got 0)"),
        (
            head() + "num_nodes: 02" + BENCH,
            "num_nodes: expected an integer, without quotes and leading zeros (got '02')",
        ),
        (head() + "num_nodes: true" + BENCH, "num_nodes: expected an integer (got true)"),
        (head() + "bench_only: maybe" + BENCH, "bench_only: expected true or false (got 'maybe')"),
        (
            head() + "scenario: agentic" + BENCH,
            "scenario: input should be 'fixed-seq-len' or 'agentic-coding'",
        ),
        (
            head() + "vllm_bench: {configs: {name: x}}",
            "recipe.yaml:4:23: vllm_bench.configs: expected a list",
        ),
        (
            head() + "client: {kind: guidellm}" + BENCH,
            "client: kind: expected vllm-bench or command (got 'guidellm')",
        ),
        (
            head() + "bfcl: {test_categories: [a], max_test_cases: {a: 0}}",
            "bfcl: max_test_cases: expected a number from 1, or one per category",
        ),
        (head() + "slo: {ceilings: {}, isl: 8, osl: 8}", "slo: ceilings: expected at least one"),
        (
            head() + "deadlines: {load: soon}" + BENCH,
            "deadlines.load: expected seconds, or a duration such as",
        ),
        ("gpu: H200\nvllm: [a]\n", "recipe.yaml:2:7: vllm: expected a mapping (got ['a'])"),
        (
            "gpu: H200\nvllm: {model: a/b, env: {A: null}}\n" + BENCH,
            'recipe.yaml:2:29: vllm.env.A: expected a value; write "" to export it empty (got null)',
        ),
        (
            "gpu: H200\nvllm: {model: a/b, env: {A: [1]}}\n" + BENCH,
            "vllm.env.A: expected text, a number, true or false (got [1])",
        ),
        (
            "gpu: H200\nvllm: {model: a/b, env: {A B: 1}}\n" + BENCH,
            "recipe.yaml:2:26: vllm.env.A B: expected a name of letters, digits and _",
        ),
        ("gpu: H200\nvllm: {model: ' '}\n" + BENCH, "vllm.model: expected text that is not empty"),
        (
            "gpu: H20\nvllm: {model: a/b}\n" + BENCH,
            "gpu: gpu_profiles.yaml has no profile 'H20'; did you mean 'H200'? (it has H200, MI355X, ",
        ),
    ],
)
def test_one_problem(folder: Folder, text: str, expected: str) -> None:
    assert expected in folder.problem(text)


def test_all_problems_are_told_at_once_in_the_order_of_the_file(folder: Folder) -> None:
    text = head() + "nightly: 3\nbogus: 1\ngates: {max_failure_rate: 7}" + BENCH
    problems = folder.problems(text)
    assert [problem.split(":")[1] for problem in problems] == ["4", "5", "6"]


def test_a_mistyped_key_is_not_also_reported_as_missing(folder: Folder) -> None:
    assert "gpuu" in folder.problem("gpuu: H200\nvllm: {model: a/b}\n" + BENCH)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-2", 0.01), ("0", 0.0), ("1", 1.0), ("5%", 0.05), ("'2.5 %'", 0.025), ("1.0e-2", 0.01)],
)
def test_rates(folder: Folder, text: str, value: float) -> None:
    point = folder.point(f"{head()}gates: {{max_failure_rate: {text}}}{BENCH}")
    assert point.gates.max_failure_rate == pytest.approx(value)


@pytest.mark.parametrize("text", ["5", "-0.1", "010", ".inf", ".nan", "null", "1.01", "500%", "'x'", "[0.1]"])
def test_what_is_no_rate(folder: Folder, text: str) -> None:
    problem = folder.problem(f"{head()}gates: {{max_failure_rate: {text}}}{BENCH}")
    assert problem.startswith("recipe.yaml:4:27: gates.max_failure_rate: expected ")
    assert "(got " in problem


@pytest.mark.parametrize("word", ["on", "yes", "Y", "true", "True"])
def test_words_become_true_where_that_is_wanted(folder: Folder, word: str) -> None:
    assert folder.load(f"{head()}nightly: {word}{BENCH}").nightly is True
    env = f"gpu: H200\nvllm: {{model: a/b, env: {{A: '{word}', B: {word}}}}}{BENCH}"
    expected = "True" if word in ("true", "True") else word
    assert dict(folder.point(env).deployment.env) | {"A": word, "B": expected} == dict(
        folder.point(env).deployment.env
    )


def test_a_floor_is_finite_and_names_a_metric(folder: Folder) -> None:
    problems = folder.problems(f"{head()}gates: {{floors: {{tput_per_gpu: .nan}}}}{BENCH}")
    assert "gates.floors.tput_per_gpu: expected a finite number" in problems[0]
    text = f"{head()}gates: {{ceilings: {{p99_ttft_ms: 100, p99.9_itl: 1, output_tput_pr_gpu: 3}}}}{BENCH}"
    problems = folder.problems(text)
    assert len(problems) == 2
    assert "a row has no metric 'p99_ttft_ms'; did you mean 'p99_ttft'?" in problems[0]
    assert "did you mean 'output_tput_per_gpu'" in problems[1]


def test_gates_override_metric_by_metric(folder: Folder) -> None:
    text = f"""{head()}
gates: {{max_failure_rate: 0.1, floors: {{tput_per_gpu: 1, output_tput_per_gpu: 2}}}}
known_issue: slow today
search_space:
  - isl: 32
    osl: 16
    gates: {{floors: {{tput_per_gpu: 5}}}}
    points:
      - {{conc: 1}}
      - {{conc: 2, gates: {{max_failure_rate: 0, references: {{p99_ttft: {{value: 2, upper: 0.1}}}}}}}}
"""
    first, second = folder.load(text).points
    assert dict(first.gates.floors) == {"tput_per_gpu": 5.0, "output_tput_per_gpu": 2.0}
    assert (first.gates.max_failure_rate, first.gates.known_issue) == (0.1, "slow today")
    assert second.gates.max_failure_rate == 0.0
    assert second.gates.references[0].upper == 0.1


def test_the_default_tolerates_no_failure(folder: Folder) -> None:
    assert folder.point(head() + BENCH).gates.max_failure_rate == 0.0


def test_references_need_a_bound(folder: Folder) -> None:
    text = head() + "gates: {references: {tput_per_gpu: {value: 900}}}" + BENCH
    assert "a reference without bounds judges nothing" in folder.problem(text)


def test_accuracy_gates_name_a_task_of_the_recipe(folder: Folder) -> None:
    tasks = "lm_eval: {tasks: [{name: gsm8k}]}\n"
    floor = 'gates: {accuracy: {gsm8k: {"exact_match,strict-match": 0.9}}}\n'
    (point,) = folder.load(head() + tasks + floor).points
    assert point.gates.accuracy == (("gsm8k", "exact_match,strict-match", 0.9),)
    (point,) = folder.load(head() + tasks + "gates: {accuracy: {gsm8k: 0.9}}").points
    assert point.gates.accuracy == (("gsm8k", "*", 0.9),)
    problem = folder.problem(head() + tasks + floor.replace("gsm8k", "gsm8"))
    assert "the recipe has no task 'gsm8'; did you mean 'gsm8k'?" in problem


def test_no_profile_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(head() + BENCH)
    with pytest.raises(RecipeError, match=r"no gpu_profiles.yaml found \(looked for .*gpubench_profiles"):
        load_recipe(path, LoadContext())


def test_a_duplicate_key_in_a_profile_is_found_too(folder: Folder) -> None:
    problem = folder.problem(head() + BENCH, "H200: {queue: a}\nB: {}\nH200: {queue: b}")
    assert problem.startswith("gpu_profiles.yaml:3:1: the key 'H200' is written twice")


def test_loading_reads_no_environment(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_IMAGE", "other/image:x")
    monkeypatch.setenv("NIGHTLY", "1")
    assert folder.point(head() + BENCH).deployment.image == "vllm/vllm-openai:nightly"


def test_a_recipe_is_hashable_and_equal_to_itself(folder: Folder) -> None:
    first, second = folder.load(head() + BENCH), folder.load(head() + BENCH)
    assert first == second
    assert hash(first) == hash(second)
    assert len(first.sha256) == 64
    assert first.source["gpu"] == "H200"
