"""What every step of resolving a recipe needs: the file, its model, the profile, and where problems go."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_gpubench.recipe.images import Image
from pytest_gpubench.recipe.models import RecipeModel
from pytest_gpubench.recipe.problems import Problems
from pytest_gpubench.recipe.serve_args import from_list, from_mapping, split_text
from pytest_gpubench.recipe.slurm_forms import gres_gpus
from pytest_gpubench.recipe.types import Profile
from pytest_gpubench.recipe.yaml import KeyPath, YamlFile

__all__ = ["Allocation", "Source", "allocation_of", "check_counts", "divisor_of", "serve_arguments"]


@dataclass(frozen=True)
class Source:
    """A recipe on its way from models to points."""

    stem: str
    file: YamlFile
    model: RecipeModel
    profile: Profile
    profile_file: YamlFile
    image: Image
    problems: Problems


@dataclass(frozen=True)
class Allocation:
    """Nodes and GPUs that a deployment holds, idle ones included."""

    num_nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """All GPUs of the allocation."""
        return self.num_nodes * self.gpus_per_node


def serve_arguments(source: Source, where: KeyPath, keys: dict[str, object]) -> list[str]:
    """The arguments that ``keys`` (place -> text, list or mapping; at most one is set) give.

    ``keys`` are key names below ``where``; problems are noted and give an empty list.
    """
    given = {key: value for key, value in keys.items() if value is not None}
    if len(given) > 1:
        names = " and ".join(given)
        source.problems.add(
            (*where, list(given)[-1]), f"{names} say the same thing twice; keep one", key=True
        )
        return []
    for key, value in given.items():
        try:
            if isinstance(value, str):
                return split_text(value)
            if isinstance(value, list):
                return from_list(value)
            if isinstance(value, dict):
                return from_mapping(value)
        except ValueError as error:
            source.problems.add((*where, key), str(error))
    return []


def allocation_of(
    source: Source, world_size: int, where: KeyPath, *, point_nodes: int | None = None
) -> Allocation:
    """Nodes and GPUs per node of a deployment that needs ``world_size`` GPUs.

    GPUs per node: the recipe's, else its total divided by the nodes, else the profile's gres, else what
    the parallel sizes need.
    """
    model = source.model
    metadata = model.vllm_bench.metadata if model.vllm_bench else None
    nodes = point_nodes or model.num_nodes or (metadata.num_nodes if metadata else None) or 1
    per_node = model.gpus_per_node or (metadata.gpus_per_node if metadata else None)
    if per_node is None:
        total, key = _total(source)
        base_nodes = model.num_nodes or (metadata.num_nodes if metadata else None) or 1
        if total is not None and total % base_nodes != 0:
            source.problems.add(key, f"{total} GPUs do not divide by {base_nodes} nodes")
        elif total is not None:
            per_node = total // base_nodes
    per_node = per_node or _gres_gpus(source) or math.ceil(world_size / nodes)
    return Allocation(nodes, per_node)


def _total(source: Source) -> tuple[int | None, KeyPath]:
    """The recipe's own total of GPUs and where it stands: metadata, else ``num_gpus``."""
    model = source.model
    if model.vllm_bench is not None:
        metadata = model.vllm_bench.metadata
        for name in ("gpu_count", "per_gpu_denominator", "total_gpus"):
            value: int | None = getattr(metadata, name)
            if value is not None:
                return value, ("vllm_bench", "metadata", name)
    return model.num_gpus, ("num_gpus",)


def _gres_gpus(source: Source) -> int | None:
    gres = source.profile.slurm.gres
    return gres_gpus(gres) if gres is not None and source.profile.runtime == "slurm" else None


def divisor_of(source: Source, allocation: Allocation, *, own_nodes: bool) -> int:
    """GPUs that per-GPU figures divide by; a stated count that contradicts the allocation is a problem.

    ``own_nodes``: the point sets its own number of nodes, so the recipe's totals do not speak of it.
    """
    if own_nodes:
        return allocation.gpus
    total, _ = _total(source)
    return total if total is not None else allocation.gpus


def check_counts(source: Source, allocation: Allocation) -> None:
    """Every stated GPU or node count agrees with the allocation, and with the profile's gres."""
    model, problems = source.model, source.problems
    size = f"{allocation.num_nodes} nodes x {allocation.gpus_per_node} GPUs = {allocation.gpus}"
    if model.num_gpus is not None and model.num_gpus != allocation.gpus:
        problems.add(("num_gpus",), f"contradicts the allocation of {size} (got {model.num_gpus})")
    if model.vllm_bench is not None:
        metadata = model.vllm_bench.metadata
        base: KeyPath = ("vllm_bench", "metadata")
        for name in ("gpu_count", "per_gpu_denominator", "total_gpus"):
            value = getattr(metadata, name)
            if value is not None and value != allocation.gpus:
                problems.add((*base, name), f"contradicts the allocation of {size} (got {value})")
        for name, expected in (
            ("num_nodes", allocation.num_nodes),
            ("gpus_per_node", allocation.gpus_per_node),
        ):
            value = getattr(metadata, name)
            if value is not None and value != expected:
                problems.add((*base, name), f"contradicts the allocation of {size} (got {value})")
        if metadata.is_multinode is not None and metadata.is_multinode != (allocation.num_nodes > 1):
            problems.add(
                (*base, "is_multinode"),
                f"contradicts the allocation of {size} (got {str(metadata.is_multinode).lower()})",
            )
    gres = _gres_gpus(source)
    if gres is not None and gres != allocation.gpus_per_node:
        where: KeyPath = ("gpus_per_node",) if model.gpus_per_node is not None else ("gpu",)
        problems.add(
            where,
            f"the recipe uses {allocation.gpus_per_node} GPUs per node, but profile {source.profile.name} "
            f"asks for {gres} (gres {source.profile.slurm.gres}): {gres} vs {allocation.gpus_per_node}",
        )
