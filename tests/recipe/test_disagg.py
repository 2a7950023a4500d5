from __future__ import annotations

import json

import pytest
from recipe_helpers import Folder

PROFILES = "S: {runtime: slurm, slurm: {gres: 'gpu:gb300:4'}}\nH200: {queue: q, runtime: slurm}"
TEXT = """
gpu: S
num_nodes: {nodes}
vllm: {{model: a/b, serve_args: --trust-remote-code --max-model-len 4096}}
deployment:
  prefill: {{workers: 3, dp: 8, ep: true, serve_args: --no-enable-chunked-prefill, env: {{P: 1}}}}
  decode: {{workers: 1, dp: 8, ep: 8, dp_attention: true, serve: {{max_num_seqs: 180}}}}
  router:
    {{name: vllm-router, version: v0.1.12, command: "router --port {{port}}", args: [--policy, round_robin]}}
  kv_transfer: {{connector: NixlConnector, load_failure_policy: fail, extra_config: {{num_threads: 4}}}}
search_space: [{{isl: 1024, osl: 1024, points: [{{conc: 4}}]}}]
"""


def test_roles(folder: Folder) -> None:
    point = folder.point(TEXT.format(nodes=8), PROFILES)
    deployment = point.deployment
    assert point.id == "3p-tp1-dp8-ep-1d-tp1-dp8-ep-1k1k-conc4"
    assert deployment.prefill is not None
    assert deployment.decode is not None
    assert (deployment.prefill.workers, deployment.prefill.nodes, deployment.prefill.gpus) == (3, 6, 24)
    assert (deployment.decode.workers, deployment.decode.nodes, deployment.decode.gpus) == (1, 2, 8)
    assert deployment.prefill.parallel.ep == 8
    assert deployment.prefill.serve_args == ("--no-enable-chunked-prefill",)
    assert deployment.decode.serve_args == ("--max-num-seqs", "180")
    assert dict(deployment.prefill.env) == {"P": "1"}
    assert deployment.decode.dp_attention
    assert (deployment.num_nodes, deployment.gpu_count, deployment.serving_gpu_count) == (8, 32, 32)
    assert deployment.router is not None
    assert (deployment.router.version, deployment.router.args) == ("v0.1.12", ("--policy", "round_robin"))
    assert deployment.serve_args == ("--trust-remote-code", "--max-model-len", "4096")
    assert {"disagg", "multinode"} <= set(point.markers)
    assert point.labels.disagg
    assert (point.labels.tp, point.labels.dp, point.labels.ep) == (8, 8, 1)


def test_kv_transfer_has_vllms_names(folder: Folder) -> None:
    text = folder.point(TEXT.format(nodes=8), PROFILES).deployment.kv_transfer
    assert json.loads(text or "") == {
        "kv_connector": "NixlConnector",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"num_threads": 4},
        "kv_role": "kv_both",
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_nodes: 8", "num_nodes: 4", "prefill takes 6 nodes and decode 2, together 8 (got 4)"),
        ("num_nodes: 8", "num_gpus: 8", "num_gpus: contradicts the allocation"),
        ("workers: 3,", "workers: 3, nodes: 2,", "3 workers x 8 GPUs need 24 GPUs, 2 nodes have 8"),
        ("workers: 1, dp: 8, ep: 8", "workers: 1, dp: 6", "6 GPUs does not divide into nodes of 4"),
        ("ep: 8,", "ep: 4,", "deployment.decode.ep: expected true, false, 1 or TP x DP = 8 (got 4)"),
        (
            "connector:",
            "conector:",
            "deployment.kv_transfer: unknown key 'conector'; did you mean 'connector'",
        ),
        (
            "kv_transfer: {connector: NixlConnector,",
            "kv_transfer: {",
            "expected connector, such as NixlConnector",
        ),
        ("--no-enable-chunked-prefill", "--port 8000", "the launcher owns this: '--port'"),
        ("  decode:", "  deocde:", "unknown key 'deocde'; did you mean 'decode'?"),
    ],
)
def test_problems(folder: Folder, old: str, new: str, words: str) -> None:
    text = TEXT.format(nodes=8)
    assert old in text
    assert any(words in problem for problem in folder.problems(text.replace(old, new), PROFILES))


def test_workers_may_share_a_node(folder: Folder) -> None:
    text = """
gpu: H200
gpus_per_node: 8
vllm: {model: a/b}
deployment:
  prefill: {workers: 2, tp: 4, nodes: 1}
  decode: {workers: 1, tp: 8}
search_space: [{isl: 32, osl: 16, points: [{conc: 4}]}]
"""
    point = folder.point(text, PROFILES)
    assert point.deployment.num_nodes == 2
    assert point.deployment.gpu_count == 16
    assert point.deployment.kv_transfer == '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'


def test_topologies_in_a_search_space(folder: Folder) -> None:
    text = """
gpu: S
vllm: {model: a/b}
search_space:
  - isl: 1024
    osl: 1024
    points:
      - {prefill: {workers: 1, tp: 4}, decode: {workers: 1, tp: 4}, conc: [4, 8]}
      - {prefill: {workers: 2, tp: 4}, decode: {workers: 1, tp: 4}, conc: 4}
"""
    recipe = folder.load(text, PROFILES)
    assert [point.id for point in recipe.points] == [
        "1p-tp4-1d-tp4-1k1k-conc4",
        "1p-tp4-1d-tp4-1k1k-conc8",
        "2p-tp4-1d-tp4-1k1k-conc4",
    ]
    assert [point.deployment.num_nodes for point in recipe.points] == [2, 2, 3]
    broken = text.replace(", decode: {workers: 1, tp: 4}, conc: 4}", ", conc: 4}")
    assert "expected prefill and decode together" in folder.problem(broken, PROFILES)
