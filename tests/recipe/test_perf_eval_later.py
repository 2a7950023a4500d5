"""Keys of later perf-eval revisions and branches: ``serving``, ``sweep``, ``assertions``, timeouts."""

from __future__ import annotations

import pytest
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.plan.launch import Site
from pytest_gpubench.plan.slurm import plan_slurm
from pytest_gpubench.recipe.types import Parallel

PD = """
name: pd
gpu: GB300
num_gpus: 12
bench_only: true
vllm:
  model: /model
  env: {SHARED: common, VLLM_NIXL_SIDE_CHANNEL_PORT: "5600"}
serving:
  version: 1
  mode: pd_disagg
  launcher: slurm
  common_serve_args: >-
    --enable-expert-parallel
    --attention-config '{"mla_prefill_backend":"X"}'
  slurm:
    partition: batch
    time_limit: "03:00:00"
    grace_period_s: 120
    container:
      runtime: pyxis
      mounts:
        - {source: /raid/models/m, source_env: MODEL_FOLDER, target: /model, read_only: true}
        - {source: "/home/${USER}/.cache/flashinfer", target: /root/.cache/flashinfer}
  kv_transfer: {connector: NixlConnector, load_failure_policy: fail, extra_config: {num_threads: 4}}
  roles:
    - role: prefill
      count: 1
      nodes_per_instance: 1
      gpus_per_node: 4
      base_port: 8000
      kv_role: kv_producer
      serve_args: --max-num-seqs 7
      env: {SHARED: prefill}
      health_check: {path: /health, timeout_s: 1200, poll_interval_s: 10}
    - role: decode
      count: 2
      gpus_per_node: 4
      tensor_parallel_size: 4
      kv_role: kv_consumer
      health_check: {timeout_s: 3600}
  router:
    repo_path: ${HOME}/vllm-router
    revision: v0.1.12
    command: [target/release/vllm-router]
    policy: round_robin
    port: 31000
    nofile_limit: 8192
    intra_node_data_parallel_size: 1
    prefill_endpoints: all_instances
    decode_endpoints: all_nodes
    health_check: {path: /readiness, timeout_s: 500}
vllm_bench:
  metadata: {device: gb300, precision: mxfp4, tp: 8, total_gpus: 12, disagg: true, is_multinode: true}
  configs:
    - {name: 8k-in-64-out-conc-4, input_len: 8192, output_len: 64, num_prompts: 4, max_concurrency: 4}
"""
PROFILES = "GB300: {hf_home: /hf}"
ENV = {"USER": "bench"}


def test_a_serving_block_is_a_deployment_with_roles(folder: Folder) -> None:
    recipe = folder.load(PD, PROFILES, ENV)
    (point,) = recipe.points
    deployment = point.deployment
    assert point.id == "1p-tp1-dp4-ep-2d-tp4-ep-8k-in-64-out-conc-4"
    assert deployment.prefill is not None
    assert deployment.decode is not None
    assert (deployment.prefill.workers, deployment.prefill.nodes) == (1, 1)
    assert deployment.prefill.parallel == Parallel(tp=1, dp=4, ep=4)
    assert (deployment.decode.workers, deployment.decode.nodes) == (2, 2)
    assert deployment.decode.parallel == Parallel(tp=4, ep=4)
    assert deployment.prefill.env == (("SHARED", "prefill"),)
    assert deployment.serve_args[-2:] == ("--attention-config", '{"mla_prefill_backend":"X"}')
    assert (deployment.num_nodes, deployment.gpus_per_node, deployment.gpu_count) == (3, 4, 12)
    assert deployment.kv_transfer is not None
    assert '"kv_load_failure_policy": "fail"' in deployment.kv_transfer
    assert '"num_threads": 4' in deployment.kv_transfer
    assert deployment.router is not None
    assert (deployment.router.version, deployment.router.args) == ("v0.1.12", ("--policy", "round_robin"))


def test_its_slurm_settings_and_waits_are_the_profiles(folder: Folder) -> None:
    deployment = folder.point(PD, PROFILES, ENV).deployment
    profile = deployment.profile
    assert deployment.runtime == "slurm"
    assert (profile.slurm.partition, profile.slurm.time) == ("batch", "03:00:00")
    assert profile.slurm.gres == "gpu:4"
    assert profile.container.runtime == "pyxis"
    assert profile.container.mounts == (
        "/raid/models/m:/model:ro",
        "/home/bench/.cache/flashinfer:/root/.cache/flashinfer",
    )
    waits = deployment.deadlines
    assert (waits.load, waits.ready, waits.teardown) == (3600, 500, 180)


def test_the_profiles_own_gres_stays(folder: Folder) -> None:
    profiles = "GB300: {runtime: slurm, slurm: {gres: 'gpu:gb300:4', account: perf}}"
    slurm = folder.point(PD, profiles, ENV).deployment.profile.slurm
    assert (slurm.gres, slurm.account, slurm.partition) == ("gpu:gb300:4", "perf", "batch")


def test_its_labels_are_the_metadatas(folder: Folder) -> None:
    labels = folder.point(PD, PROFILES, ENV).labels
    assert (labels.device, labels.precision, labels.tp) == ("gb300", "mxfp4", 8)
    assert (labels.disagg, labels.is_multinode) == (True, True)


def test_its_markers_and_ranks(folder: Folder) -> None:
    point = folder.point(PD, PROFILES, ENV)
    assert {"disagg", "multinode", "slurm", "gb300"} <= set(point.markers)
    plan = plan_slurm(point.deployment, Site("/r/pd/x", "/r", "job", {}, pyxis=True))
    assert [rank.name for rank in plan.ranks] == ["prefill-0-rank-0", "decode-0-rank-0", "decode-1-rank-0"]
    prefill = list(plan.ranks[0].argv)
    assert prefill[:3] == ["vllm", "serve", "/model"]
    assert prefill[prefill.index("--data-parallel-size") + 1] == "4"
    assert prefill.count("--enable-expert-parallel") == 1
    assert plan.router is not None
    assert plan.router.argv[-2:] == ("--policy", "round_robin")


def test_a_variable_of_the_caller_moves_a_mount(folder: Folder) -> None:
    env = {**ENV, "MODEL_FOLDER": "/scratch/m"}
    mounts = folder.point(PD, PROFILES, env).deployment.profile.container.mounts
    assert mounts[0] == "/scratch/m:/model:ro"


def test_the_recipes_own_deadlines_win(folder: Folder) -> None:
    deadlines = folder.point(PD + "deadlines: {load: 100}\n", PROFILES, ENV).deployment.deadlines
    assert (deadlines.load, deadlines.ready) == (100, 500)


def test_a_router_of_its_own_build_is_worth_a_warning(folder: Folder) -> None:
    (warning,) = folder.load(PD, PROFILES, ENV).warnings
    assert "serving.router: the router is the vllm-router of the image" in warning


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("num_gpus: 12", "num_gpus: 11", "num_gpus: contradicts the allocation of 3 nodes x 4 GPUs = 12"),
        ("role: decode", "role: prefill", "expected one prefill and one decode (got prefill, prefill)"),
        ("mode: pd_disagg", "mode: mixed", "serving.mode: "),
        ("launcher: slurm", "launcher: local", "serving.launcher: "),
        ("runtime: pyxis", "runtime: docker", "serving.slurm.container.runtime: "),
        ("count: 2", "count: 0", "serving.roles[1].count: "),
        ("count: 2", "cuont: 2", "unknown key 'cuont'; did you mean 'count'"),
        ("kv_role: kv_producer", "kv_role: kv_both", "serving.roles[0].kv_role: expected kv_producer"),
        ("tensor_parallel_size: 4", "tensor_parallel_size: 3", "divides the 4 GPUs of a node (got 3)"),
        ("--max-num-seqs 7", "--tp 2", "--tensor-parallel-size follows from tensor_parallel_size"),
        ("--max-num-seqs 7", "--port 9000", "the launcher owns this: '--port' sets --port"),
        ("model: /model", "model: /model\n  serve_args: -tp 1", "shared"),
        ("gpu: GB300", "gpu: GB300\nnum_nodes: 3", "num_nodes: serving describes this; keep one of the two"),
        ("${USER}", "${NOBODY}", "mounts[1].source: NOBODY is not set, so the source is unknown"),
        ("target: /model", "target: model", "serving.slurm.container.mounts[0]: "),
        ("version: 1", "version: 2", "serving.version: "),
    ],
)
def test_what_is_wrong_with_a_serving_block(folder: Folder, old: str, new: str, says: str) -> None:
    assert old in PD
    text = "".join(folder.problems(PD.replace(old, new, 1), PROFILES, ENV))
    assert says.replace("shared", "arguments that all roles share are serving.common_serve_args") in text


def test_roles_with_nodes_of_different_sizes_are_refused(folder: Folder) -> None:
    text = PD.replace("gpus_per_node: 4\n      tensor", "gpus_per_node: 8\n      tensor")
    assert "expected 4 as for the other role" in "".join(folder.problems(text, PROFILES, ENV))


# -- sweep -------------------------------------------------------------------------------------------

SWEEP = """
vllm_bench:
  sweep:
    shapes:
      - {isl: 8192, osl: 1024}
      - {isl: 1000, osl: 1024}
    concurrency: {start: 4, end: 24}
    prompts_per_concurrency: 4
    min_prompts: 32
"""


def test_a_sweep_measures_every_shape_under_every_concurrency(folder: Folder) -> None:
    loads = [point.load for point in folder.load(head("-tp 4", num_gpus=4) + SWEEP).points]
    assert [(load.isl, load.concurrency, load.num_prompts) for load in loads if load] == [
        (8192, 4, 32), (8192, 8, 32), (8192, 16, 64), (8192, 24, 96),
        (1000, 4, 32), (1000, 8, 32), (1000, 16, 64), (1000, 24, 96),
    ]  # fmt: skip
    assert folder.ids(head("-tp 4", num_gpus=4) + SWEEP)[:5] == [
        "tp4-8k-in-1k-out-conc-4", "tp4-8k-in-1k-out-conc-8", "tp4-8k-in-1k-out-conc-16",
        "tp4-8k-in-1k-out-conc-24", "tp4-1000-in-1k-out-conc-4",
    ]  # fmt: skip


def test_a_sweep_shares_its_load_keys(folder: Folder) -> None:
    text = SWEEP.replace("{start: 4, end: 24}", "[2]\n    backend: vllm\n    repetitions: 3")
    load = folder.point(head("-tp 4", num_gpus=4) + text).load
    assert load is not None
    assert (load.backend, load.repetitions, load.concurrency) == ("vllm", 3, 2)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{start: 4, end: 24}", "{start: 8, end: 4}", "start 8 is above end 4"),
        ("    prompts_per_concurrency: 4\n", "", "prompts_per_concurrency: is required and missing"),
        ("{start: 4, end: 24}", "[]", "concurrency"),
        ("      - {isl: 8192, osl: 1024}\n      - {isl: 1000, osl: 1024}", "      []", "shapes"),
    ],
)
def test_what_is_wrong_with_a_sweep(folder: Folder, old: str, new: str, says: str) -> None:
    text = head("-tp 4", num_gpus=4) + SWEEP.replace(old, new)
    assert says in "".join(folder.problems(text))


# -- assertions, timeouts ----------------------------------------------------------------------------


def asserted(bounds: str) -> str:
    return head() + BENCH.replace("max_concurrency: 4", f"max_concurrency: 4, assertions: {bounds}")


def test_assertions_on_the_raw_result_are_gates_in_the_rows_units(folder: Folder) -> None:
    gates = folder.point(asserted("{mean_tpot_ms: {max: 2.5}, output_throughput: {min: 100}}")).gates
    assert gates.ceilings == (("mean_tpot", 0.0025),)
    assert gates.floors == (("output_throughput", 100.0),)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ("{mean_tpot_ms: {}}", "expected min, max or both"),
        ("{mean_tpot_ms: {min: 4, max: 3}}", "min 4 is above max 3"),
        ("{mean_tpot_ms: {max: true}}", "expected a number"),
        ("{mean_tpot_ms: {maximum: 3}}", "unknown key 'maximum'"),
        ("{mean_topt_ms: {max: 3}}", "a row has no metric 'mean_topt'; did you mean 'mean_tpot'"),
    ],
)
def test_what_is_wrong_with_an_assertion(folder: Folder, bounds: str, says: str) -> None:
    assert says in "".join(folder.problems(asserted(bounds)))


@pytest.mark.parametrize("key", ["startup_timeout", "startup_timeout_s"])
def test_a_startup_timeout_is_the_load_deadline(folder: Folder, key: str) -> None:
    text = head().replace("org/Model-FP8", f"a/b, {key}: 900") + BENCH
    assert folder.point(text).deployment.deadlines.load == 900
    assert folder.point(text + "deadlines: {load: 50}\n").deployment.deadlines.load == 50


def test_two_startup_timeouts_are_one_too_many(folder: Folder) -> None:
    text = head().replace("org/Model-FP8", "a/b, startup_timeout: 9, startup_timeout_s: 9") + BENCH
    assert "startup_timeout says the same; keep one" in folder.problem(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("aiperf: {configs: []}\n", "other clients are described by client:"),
        ("custom_script: manual/x.sh\nhost_runtime: true\n", "runs in place of a benchmark"),
        ("sglang: {model: a/b}\nsglang_bench: {}\n", "only vLLM is served here"),
    ],
)
def test_keys_that_stand_for_something_else_say_what_to_do(folder: Folder, text: str, says: str) -> None:
    assert says in "".join(folder.problems(head() + BENCH + text))
