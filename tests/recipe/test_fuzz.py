"""Whatever a recipe file holds, loading it gives a recipe or one RecipeError: never a traceback."""

from __future__ import annotations

import copy
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpubench.errors import RecipeError
from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.profiles import profile_of
from pytest_gpubench.recipe.types import Recipe
from pytest_gpubench.recipe.yaml import parse_yaml

EXAMPLES = int(os.environ.get("GPUBENCH_FUZZ_EXAMPLES", "60"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="GPUBENCH_FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    database=None,
)
PROFILES = """
H200: {queue: q, runtime: slurm, env: {A: 1}}
S: {runtime: slurm, slurm: {gres: 'gpu:4', time: '03:00:00'}}
"""
FULL: dict[str, Any] = yaml.safe_load(
    """
name: full
gpu: S
num_nodes: 2
gpus_per_node: 4
num_gpus: 8
nightly: true
timeout_in_minutes: 600
scenario: fixed-seq-len
vllm:
  model: org/Model-FP8
  image: vllm/vllm-openai:nightly
  env: {A: 1, B: two}
  env_from_host: [HF_TOKEN]
  serve: {tensor_parallel_size: 8, enforce_eager: false, compilation_config: {mode: 3}, max_model_len: 16384}
gates:
  max_failure_rate: 0.01
  floors: {output_tput_per_gpu: 3.5}
  ceilings: {p99_ttft: 2.5}
  references: {tput_per_gpu: {value: 900, lower: -0.05, upper: 0.2}}
  max_spread: {tput_per_gpu: 0.1}
  accuracy: {gsm8k: {"exact_match,strict-match": 0.9}}
constraints:
  - {when: {tp: 4}, require: {isl: 8192}, reason: tuned for long inputs}
search_space:
  - isl: 1024
    osl: 1024
    repetitions: 3
    points:
      - {tp: 2, dp: 4, ep: true, conc: [1, 16]}
      - {tp: 8, conc_start: 4, conc_end: 100, conc_step: 2, serve_args: --block-size 64}
vllm_bench:
  metadata: {device: gb300, precision: fp8, gpu_count: 8, tp: 8}
  configs:
    - {name: a,
       input_len: 10, output_len: 10, num_prompts: [8, 9], max_concurrency: [1, 2], args: {num_warmups: 3}}
lm_eval: {model_args: {timeout: 6000}, tasks: [{name: gsm8k, num_fewshot: 5, model_args: {max_length: 10}}]}
bfcl: {test_categories: [simple_python], num_threads: 8, max_test_cases: {multi_turn: 3}}
slo: {ceilings: {p99_ttft: 2.5}, over: concurrency, range: [1, 512]}
deadlines: {queue: 1h, load: 30m}
client: {kind: vllm-bench}
repetitions: 1
"""
)
DISAGG: dict[str, Any] = yaml.safe_load(
    """
gpu: H200
gpus_per_node: 4
vllm: {model: a/b, serve_args: --max-model-len 16384}
deployment:
  prefill: {workers: 3, dp: 8, ep: true, nodes: 6, serve_args: --a b}
  decode: {workers: 1, dp: 8, ep: 8, env: {A: 1}}
  router: {name: r, version: v1, command: x, args: [a]}
  kv_transfer: {connector: NixlConnector, extra_config: {num_threads: 4}}
search_space: [{isl: 1024, osl: 1024, points: [{conc: 4}]}]
"""
)
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    10**30,
    1.5,
    float("inf"),
    float("nan"),
    "",
    " ",
    "on",
    "x" * 300,
    "a b",
    "--",
    "-n",
    "--nnodes=4",
    "{",
    '{"a": 1}',
    "'",
    '"',
    "\x01"[:0],
    "é",
    "../..",
    "5%",
    "1e-2",
    "03:00:00",
    "${X}",
    [],
    {},
    [[]],
    [None],
    {"": 1},
    {"a": {"b": {}}},
    {"min": "a"},
    [1, 1],
    {"value": 1},
    "tp",
    "a::b",
    "=",
    "/",
    "x.sqsh",
]


def _paths(value: Any, base: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [base] if base else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _paths(item, (*base, key))
    return found


def _mutate(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """One to three random changes: a value replaced, removed, renamed, doubled, or moved."""
    chance = random.Random(seed)
    result = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(_paths(result))
        parent: Any = result
        for step in path[:-1]:
            parent = parent[step]
        last, action = path[-1], chance.randrange(6)
        if action == 0 and isinstance(parent, dict):
            parent[str(last)[:-1] + "x"] = parent.pop(last)
        elif action == 1:
            del parent[last]
        elif action == 2:
            parent[last] = [parent[last], parent[last]]
        elif action == 3:
            parent[last] = copy.deepcopy(chance.choice([data, data.get("vllm"), data.get("search_space")]))
        else:
            parent[last] = copy.deepcopy(chance.choice(ODD))
        if not _paths(result):
            break
    return result


def check(folder: Path, data: bytes) -> None:
    path = folder / "r.yaml"
    path.write_bytes(data)
    (folder / "gpu_profiles.yaml").write_text(PROFILES)
    try:
        recipe = load_recipe(path, LoadContext())
    except RecipeError as error:
        problems = error.problems
    else:
        check_recipe(recipe)
        return
    assert problems
    for problem in problems:
        assert re.match(r".+?(:\d+:\d+)?: ", problem)
        assert "Traceback" not in problem


def check_recipe(recipe: Recipe) -> None:
    assert recipe.points
    ids = [point.id for point in recipe.points]
    assert len(ids) == len(set(ids))
    for point in recipe.points:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", point.id)
        assert ".." not in point.id
        assert point.deployment.gpu_count >= 1
        hash(point)


@pytest.mark.parametrize("base", [FULL, DISAGG], ids=["full", "disagg"])
def test_the_bases_load(tmp_path: Path, base: dict[str, Any]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(base))
    (tmp_path / "gpu_profiles.yaml").write_text(PROFILES)
    assert load_recipe(path, LoadContext()).points


@SETTINGS
@given(seed=st.integers(0, 2**32), base=st.sampled_from([FULL, DISAGG]))
def test_mutated_recipes(tmp_path: Path, seed: int, base: dict[str, Any]) -> None:
    check(tmp_path, yaml.safe_dump(_mutate(base, seed), sort_keys=False).encode())


@SETTINGS
@given(data=st.binary(max_size=200))
def test_random_bytes(tmp_path: Path, data: bytes) -> None:
    check(tmp_path, data)


YAMLISH = st.lists(
    st.sampled_from(
        [
            "a",
            ":",
            ": ",
            "- ",
            "\n",
            "\n  ",
            "&a ",
            "*a",
            "<<",
            "[",
            "]",
            "{",
            "}",
            ",",
            "'",
            '"',
            "#",
            "!x ",
            "!!str ",
            "|",
            ">",
            "?",
            "%",
            "@",
            "\t",
            "1",
            "gpu",
            "vllm",
            "---\n",
            "...\n",
            "\x00",
            "\ud7ff",
            "\x85",
            "\ufeff",
        ]
    ),
    max_size=40,
).map("".join)


@SETTINGS
@given(text=YAMLISH)
def test_yaml_shaped_text(tmp_path: Path, text: str) -> None:
    check(tmp_path, text.encode())


@SETTINGS
@given(data=st.binary(max_size=60), cut=st.integers(0, 2000))
def test_a_torn_file(tmp_path: Path, data: bytes, cut: int) -> None:
    whole = yaml.safe_dump(FULL, sort_keys=False).encode()
    check(tmp_path, whole[:cut] + data + whole[cut + len(data) :])


PROFILE: dict[str, Any] = yaml.safe_load(
    """
platform: gb300
runtime: slurm
hf_home: /x
env: {A: 1, PERF_EVAL_SLURM_PARTITION: batch, PERF_EVAL_SLURM_CONTAINER_MOUNTS: "/a:/b,/c:/d"}
slurm: {partition: b, gres: "gpu:b300:4", time: "03:00:00", max_pending: 1h, extra_sbatch_args: [--exclusive]}
container: {runtime: pyxis, mounts: [/a:/b], workdir: /w}
client: {node: head}
models: {root: /m, staged: required, scenarios: [fixed-seq-len], paths: {a/b: /m/b}}
allowed_images: ["vllm/*"]
deadlines: {load: 30m}
"""
)


@SETTINGS
@given(seed=st.integers(0, 2**32))
def test_mutated_profiles(seed: int) -> None:
    text = yaml.safe_dump({"P": _mutate(PROFILE, seed)}, sort_keys=False)
    problems: list[str] = []
    try:
        hash(profile_of(parse_yaml(text.encode(), "gpu_profiles.yaml"), "P"))
    except RecipeError as error:
        problems = error.problems
    assert all(problem.startswith("gpu_profiles.yaml:") for problem in problems)
