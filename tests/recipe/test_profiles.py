from __future__ import annotations

from pathlib import Path

import pytest
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.recipe.load import LoadContext, load_recipe
from pytest_gpubench.recipe.profiles import platform_of, profile_of
from pytest_gpubench.recipe.types import Profile
from pytest_gpubench.recipe.yaml import parse_yaml

TYPED = """
GB300_SLURM:
  platform: gb300
  runtime: slurm
  queue: gb300_slurm
  hf_home: /local_scratch/hf-models
  env: {VLLM_DEEP_GEMM_WARMUP: skip}
  slurm:
    partition: batch
    gres: gpu:b300:4
    exclusive: true
    time: "03:00:00"
    account: null
    qos: null
    reservation: null
    extra_sbatch_args: []
    extra_srun_args: []
    mpi: null
    max_pending: "01:30:00"
  container:
    runtime: pyxis
    mounts: [/home/bench:/nfs_home, /raid/users/bench:/local_scratch]
    workdir: null
    remap_root: false
  client: {node: head}
  models: {root: null, staged: off, scenarios: [fixed-seq-len]}
  allowed_images: []
"""
PERF_EVAL = Path(__file__).parent.parent / "data" / "perf_eval" / "gb300-slurm-pyxis" / "gpu_profiles.yaml"


def profile(text: str, name: str) -> Profile:
    return profile_of(parse_yaml(text.encode(), "gpu_profiles.yaml"), name)


def test_both_forms_mean_the_same() -> None:
    typed = profile(TYPED, "GB300_SLURM")
    folded = profile(PERF_EVAL.read_text(), "GB300_SLURM")
    assert folded.slurm == typed.slurm
    assert folded.container == typed.container
    assert (folded.platform, folded.runtime, folded.hf_home) == (typed.platform, typed.runtime, typed.hf_home)
    assert typed.slurm.exclusive
    assert typed.slurm.extra_sbatch_args == ()
    assert typed.deadlines.queue == 5400


def test_perf_eval_defaults() -> None:
    text = PERF_EVAL.read_text()
    assert profile(text, "H200").runtime == "docker"
    assert profile(text, "B200").runtime == "native"
    assert dict(profile(text, "B200").env)["NCCL_CUMEM_HOST_ENABLE"] == "0"
    assert profile(text, "MI300X").image_repo == "vllm/vllm-openai-rocm"


def test_an_unquoted_time_survives() -> None:
    assert profile("S: {slurm: {time: 03:00:00}}", "S").slurm.time == "03:00:00"
    assert profile("S: {slurm: {time: 90}}", "S").slurm.time == "90"
    assert profile("S: {slurm: {time: 1-12}}", "S").slurm.time == "1-12"


def test_every_perf_eval_key() -> None:
    text = """
S:
  server_runtime: slurm
  env:
    PERF_EVAL_SLURM_ACCOUNT: acc
    PERF_EVAL_SLURM_QOS: high
    PERF_EVAL_SLURM_RESERVATION: res
    PERF_EVAL_SLURM_MPI: pmix
    PERF_EVAL_SLURM_EXTRA_SBATCH_ARGS: --comment 'a b' --exclusive --nice=5
    PERF_EVAL_SLURM_EXTRA_SRUN_ARGS: -v
    PERF_EVAL_SLURM_CONTAINER_RUNTIME: native
    PERF_EVAL_SLURM_CONTAINER_WORKDIR: /w
    PERF_EVAL_SLURM_NO_CONTAINER_REMAP_ROOT: "0"
    PERF_EVAL_SLURM_SERVER_COMMAND: srt serve
    PERF_EVAL_SLURM_LAUNCHER: /site/launch
    PERF_EVAL_SLURM_REQUEST_GPUS: "0"
    PERF_EVAL_SLURM_GRES: gpu:4
    PERF_EVAL_SLURM_PARTITION: ""
    PERF_EVAL_SLURM_NTASKS_PER_NODE: 1
"""
    found = profile(text, "S")
    slurm = found.slurm
    assert (slurm.account, slurm.qos, slurm.reservation, slurm.mpi) == ("acc", "high", "res", "pmix")
    assert slurm.extra_sbatch_args == ("--comment", "a b", "--nice=5")
    assert slurm.exclusive
    assert slurm.extra_srun_args == ("-v",)
    assert (slurm.server_command, slurm.launcher) == ("srt serve", "/site/launch")
    assert slurm.gres is None
    assert slurm.partition is None
    assert (found.container.runtime, found.container.workdir, found.container.remap_root) == (
        "none",
        "/w",
        True,
    )


def test_typed_settings_win_over_folded_ones() -> None:
    text = "S: {env: {PERF_EVAL_SLURM_PARTITION: a, PERF_EVAL_SLURM_TIME: '10'}, slurm: {partition: b}}"
    found = profile(text, "S")
    assert (found.slurm.partition, found.slurm.time) == ("b", "10")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "S: {env: {PERF_EVAL_SLURM_PARTITON: a}}",
            "S.env.PERF_EVAL_SLURM_PARTITON: unknown setting; did you mean 'PERF_EVAL_SLURM_PARTITION'",
        ),
        ("S: {env: {PERF_EVAL_BENCH_CLIENT_RUNTME: a}}", "did you mean 'PERF_EVAL_BENCH_CLIENT_RUNTIME'"),
        ("S: {env: {PERF_EVAL_BENCH_CLIENT_RUNTIME: ssh}}", "expected slurm, docker or native (got 'ssh')"),
        ("S: {env: {PERF_EVAL_SLURM_TIME: 3h}}", "S.env.PERF_EVAL_SLURM_TIME: expected a Slurm time"),
        ("S: {env: {PERF_EVAL_SLURM_CONTAINER_RUNTIME: podman}}", "expected one of pyxis"),
        ('S: {env: {PERF_EVAL_SLURM_EXTRA_SRUN_ARGS: "\'"}}', "never closed"),
        ("S: {env: {PERF_EVAL_SLURM_GRES: 'gpu:'}}", "S.env.PERF_EVAL_SLURM_GRES: expected NAME"),
        (
            "S: {env: {PERF_EVAL_SLURM_CONTAINER_MOUNTS: 'a:/b'}}",
            "S.env.PERF_EVAL_SLURM_CONTAINER_MOUNTS: the source",
        ),
        ("S: {slurm: {gres: 'gpu:a:b'}}", "gpu_profiles.yaml:1:19: S.slurm.gres: expected a count"),
        ("S: {slurm: {partitoin: b}}", "unknown key 'partitoin'; did you mean 'partition'?"),
        ("S: {runtime: slurm, server_runtime: docker}", "S.server_runtime: contradicts runtime: slurm"),
        ("S: {container: {workdir: w}}", "S.container.workdir: expected an absolute path"),
        ("S: {client: {node: tail}}", "input should be 'head', 'last' or 'extra'"),
        ("S: {slurm: {max_pending: 1x}}", "expected seconds, or a duration"),
        (
            "S: {container: {mounts: ['/a b:/c', '/a:/b']}}",
            "S.container.mounts[0]: the path '/a b' holds a space",
        ),
    ],
)
def test_problems(folder: Folder, text: str, words: str) -> None:
    recipe = f"gpu: S\nvllm: {{model: a/b}}\n{BENCH}"
    problem = folder.problem(recipe, text)
    assert problem.startswith("gpu_profiles.yaml:1:")
    assert words in problem


def test_all_bad_mounts_are_told_at_once(folder: Folder) -> None:
    mounts = '["/data/team a/models:/models", "/data/a,b:/y", "/data/v:1:/x", '
    mounts += '"/scratch:/scratch:ro+rprivate", "results:/out"]'
    problems = folder.problems(
        f"gpu: S\nvllm: {{model: a/b}}\n{BENCH}", f"S: {{runtime: slurm, container: {{mounts: {mounts}}}}}"
    )
    assert [problem.split("[")[1][0] for problem in problems] == ["0", "1", "2", "4"]


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("GB300_SLURM", "gb300"),
        ("gb200-nv", "gb200"),
        ("B300", "b300"),
        ("MI355X", "mi355x"),
        ("XPU", "xpu"),
        ("H100 SXM", "h100"),
    ],
)
def test_platforms(name: str, platform: str) -> None:
    assert platform_of(name) == platform


def test_where_profiles_are_looked_for(tmp_path: Path) -> None:
    recipe = tmp_path / "repo" / "workloads" / "r.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(head() + BENCH)
    fallback = tmp_path / "site.yaml"
    library = tmp_path / "repo" / "lib" / "gpu_profiles.yaml"
    library.parent.mkdir()
    context = LoadContext(profiles=fallback)
    for path, queue in (
        (fallback, "site"),
        (library, "lib"),
        (recipe.parent / "gpu_profiles.yaml", "beside"),
    ):
        path.write_text(f"H200: {{queue: {queue}}}")
        assert load_recipe(recipe, context).profile.queue == queue


def test_a_recipe_overrides_the_launchers_keys(folder: Folder) -> None:
    env = "{PERF_EVAL_SLURM_TIME: '01:00:00', PERF_EVAL_SLURM_CONTAINER_MOUNTS: '/x:/y'}"
    text = f"gpu: GB300_SLURM\nnum_gpus: 4\nvllm: {{model: a/b, serve_args: -tp 4, env: {env}}}{BENCH}"
    deployment = folder.point(text).deployment
    assert deployment.profile.slurm.time == "01:00:00"
    assert deployment.profile.slurm.partition == "batch"
    assert deployment.profile.container.mounts == ("/x:/y",)
    assert "recipe.yaml:3:" in folder.problem(text.replace("/x:/y", "x:/y"))


def test_the_gres_agrees_with_the_recipe(folder: Folder) -> None:
    text = f"gpu: GB300_SLURM\ngpus_per_node: 4\nvllm: {{model: a/b, serve_args: -tp 4}}{BENCH}"
    assert folder.point(text).deployment.gpu_count == 4
    profiles = "GB300_SLURM: {runtime: slurm, slurm: {gres: 'gpu:gb300:8'}}"
    problem = folder.problem(text, profiles)
    assert problem.startswith("recipe.yaml:2:16: gpus_per_node: the recipe uses 4 GPUs per node")
    assert "8 vs 4" in problem


@pytest.mark.parametrize(
    ("deadlines", "words"),
    [
        (
            "{ready: 1800, bench: 1200}",
            "ready 1800 s + bench 1200 s = 3000 s do not fit the job's time limit of 00:20:00",
        ),
        ("{ready: 10m, bench: 5m}", None),
        ("{queue: 3h, load: 10m}", None),  # the queue never counts
        ("{load: 00:20:01}", "load 1201 s"),
    ],
)
def test_time_limits_that_contradict_each_other(folder: Folder, deadlines: str, words: str | None) -> None:
    profiles = "S: {runtime: slurm, slurm: {time: 00:20:00}}"
    text = f"gpu: S\nvllm: {{model: a/b}}\ndeadlines: {deadlines}{BENCH}"
    if words is None:
        assert folder.load(text, profiles)
        return
    problem = folder.problem(text, profiles)
    assert problem.startswith("recipe.yaml:3:12: deadlines: ")
    assert words in problem


def test_deadlines(folder: Folder) -> None:
    profiles = "S: {runtime: slurm, slurm: {max_pending: 10m}, deadlines: {load: 2h, ready: 5m}}"
    text = f"gpu: S\nvllm: {{model: a/b}}\ndeadlines: {{ready: 60, image: 1h}}{BENCH}"
    deadlines = folder.point(text, profiles).deployment.deadlines
    assert (deadlines.queue, deadlines.load, deadlines.ready, deadlines.image) == (600, 7200, 60, 3600)
    text = text.replace("deadlines", "timeout_in_minutes: 100\ndeadlines")
    assert "do not fit timeout_in_minutes 100 (6000 s)" in folder.problem(text, profiles)


def test_gloo_wants_one_interface(folder: Folder) -> None:
    env = "{NCCL_IB_HCA: 'mlx5_0,mlx5_1', NCCL_SOCKET_IFNAME: '^lo,docker', "
    env += "GLOO_SOCKET_IFNAME: '^lo,docker', NOTE: 'a=b \"c\" $HOME'}"
    text = f"gpu: H200\nvllm: {{model: a/b, env: {env}}}{BENCH}"
    problem = folder.problem(text)
    assert problem.startswith("recipe.yaml:2:")
    assert "vllm.env.GLOO_SOCKET_IFNAME: Gloo takes one interface name" in problem
    env = dict(folder.point(text.replace("'^lo,docker', NOTE", "eth0, NOTE")).deployment.env)["NOTE"]
    assert env == 'a=b "c" $HOME'
    profiles = "H200: {env: {GLOO_SOCKET_IFNAME: 'a,b'}}"
    assert folder.problem(head() + BENCH, profiles).startswith("gpu_profiles.yaml:1:34: H200.env.GLOO")


def test_an_empty_value_is_exported_empty(folder: Folder) -> None:
    text = f"gpu: H200\nvllm: {{model: a/b, env: {{EMPTY: '', N: 0.10, HF_HOME: /mine}}}}{BENCH}"
    env = dict(folder.point(text).deployment.env)
    assert (env["EMPTY"], env["N"], env["HF_HOME"]) == ("", "0.10", "/mine")
    assert env["VLLM_DEEP_GEMM_WARMUP"] == "skip"


def test_names_from_the_host(folder: Folder) -> None:
    text = f"gpu: H200\nvllm: {{model: a/b, env_from_host: [HF_TOKEN]}}\nenv_from_host: [HF_TOKEN, B]{BENCH}"
    assert folder.point(text).deployment.env_from_host == ("HF_TOKEN", "B")
