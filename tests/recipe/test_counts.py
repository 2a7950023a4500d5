"""The divisor of per-GPU figures, and counts that contradict the allocation."""

from __future__ import annotations

import pytest
from recipe_helpers import BENCH, Folder

PROFILES = "H200: {queue: q, runtime: slurm}\nS: {runtime: slurm, slurm: {gres: 'gpu:4'}}"


def text(top: str = "", metadata: str = "", serve_args: str = "-tp 8", gpu: str = "H200") -> str:
    bench = BENCH.replace("configs:", f"metadata: {{{metadata}}}\n  configs:")
    return f"gpu: {gpu}\nvllm: {{model: a/b, serve_args: {serve_args}}}\n{top}\n{bench}"


@pytest.mark.parametrize(
    ("recipe", "nodes", "per_node", "divisor"),
    [
        (text("num_nodes: 2\ngpus_per_node: 4"), 2, 4, 8),
        (text("num_gpus: 8", serve_args="-tp 1 -dp 8"), 1, 8, 8),
        (text("num_gpus: 8", serve_args="-tp 4"), 1, 8, 8),
        (text("num_nodes: 2\nnum_gpus: 8"), 2, 4, 8),
        (text("", "gpu_count: 8", "-tp 4"), 1, 8, 8),
        (text("", "per_gpu_denominator: 8", "-tp 4"), 1, 8, 8),
        (text("", "num_nodes: 2, gpus_per_node: 4"), 2, 4, 8),
        (text(""), 1, 8, 8),
        (text("", serve_args="-tp 2 -pp 2 -dp 2"), 1, 8, 8),
        (text("", serve_args="-tp 4 --prefill-context-parallel-size 2"), 1, 8, 8),
        (text("num_nodes: 2", serve_args="-tp 8", gpu="S"), 2, 4, 8),
        (text("num_nodes: 2", serve_args="-tp 4", gpu="S"), 2, 4, 8),
        (text("num_nodes: 2", serve_args="-tp 4"), 2, 2, 4),
    ],
)
def test_allocation_and_divisor(folder: Folder, recipe: str, nodes: int, per_node: int, divisor: int) -> None:
    deployment = folder.point(recipe, PROFILES).deployment
    assert (deployment.num_nodes, deployment.gpus_per_node, deployment.gpu_count) == (
        nodes,
        per_node,
        divisor,
    )


def test_pipeline_parallelism_counts_and_the_row_says_so(folder: Folder) -> None:
    point = folder.point(text("", serve_args="-tp 4 -pp 2"), PROFILES)
    assert (point.labels.tp, point.deployment.gpu_count) == (4, 8)
    assert point.labels.note is not None
    assert "TP x DP = 4, leaving out pipeline parallel 2" in point.labels.note


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            text("num_nodes: 2\ngpus_per_node: 4\nnum_gpus: 4"),
            "num_gpus: contradicts the allocation of 2 nodes x 4",
        ),
        (
            text("num_gpus: 8\ngpus_per_node: 4"),
            "num_gpus: contradicts the allocation of 1 nodes x 4 GPUs = 4",
        ),
        (
            text("num_gpus: 8", "gpu_count: 4"),
            "num_gpus: contradicts the allocation of 1 nodes x 4 GPUs = 4 (got 8)",
        ),
        (
            text("num_nodes: 2\ngpus_per_node: 4", "gpu_count: 4"),
            "vllm_bench.metadata.gpu_count: contradicts the allocation",
        ),
        (
            text("num_gpus: 8", "gpu_count: 8, per_gpu_denominator: 4"),
            "metadata.per_gpu_denominator: contradicts",
        ),
        (text("num_nodes: 2\ngpus_per_node: 4", "num_nodes: 4"), "metadata.num_nodes: contradicts"),
        (text("num_nodes: 2\ngpus_per_node: 4", "gpus_per_node: 8"), "metadata.gpus_per_node: contradicts"),
        (text("num_nodes: 2\ngpus_per_node: 4", "is_multinode: false"), "metadata.is_multinode: contradicts"),
        (text("num_nodes: 3\nnum_gpus: 8"), "num_gpus: 8 GPUs do not divide by 3 nodes"),
    ],
)
def test_contradictions(folder: Folder, recipe: str, words: str) -> None:
    assert any(words in problem for problem in folder.problems(recipe, PROFILES))


def test_a_point_with_nodes_of_its_own(folder: Folder) -> None:
    recipe = """
gpu: S
gpus_per_node: 4
vllm: {model: a/b}
search_space:
  - {isl: 32, osl: 16, points: [{tp: 4, conc: 1}, {tp: 8, num_nodes: 2, conc: 1}]}
"""
    first, second = folder.load(recipe, PROFILES).points
    assert (first.id, first.deployment.gpu_count) == ("tp4-32x16-conc1", 4)
    assert (second.id, second.deployment.gpu_count) == ("tp8-2n-32x16-conc1", 8)
    assert "multinode" in second.markers


def test_labels_of_a_search_space_are_the_points_own(folder: Folder) -> None:
    recipe = """
gpu: H200
num_gpus: 8
vllm: {model: org/Model-NVFP4}
vllm_bench: {metadata: {tp: 3, dp: 5, ep: 7, device: b300x, precision: mxfp4}}
search_space:
  - {isl: 32, osl: 16, points: [{tp: 2, dp: 4, ep: true, conc: 1, dp_attention: true, spec_decoding: mtp}]}
"""
    labels = folder.point(recipe, PROFILES).labels
    assert (labels.tp, labels.dp, labels.ep) == (8, 4, 1)
    assert (labels.device, labels.precision) == ("b300x", "mxfp4")
    assert labels.dp_attention
    assert labels.spec_decoding == "mtp"


def test_device_label(folder: Folder) -> None:
    typed = "NV_RACK: {platform: GB300}"
    untyped = "NV_RACK: {queue: q}"
    recipe = text("", gpu="NV_RACK")
    assert folder.point(recipe, typed).labels.device == "gb300"
    assert folder.point(recipe, untyped).labels.device == "nv_rack"
