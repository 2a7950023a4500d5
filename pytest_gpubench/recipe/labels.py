"""The dashboard's labels and the note that says where a figure differs from upstream's."""

from __future__ import annotations

from pytest_gpubench.recipe.models import Metadata, PointModel
from pytest_gpubench.recipe.parallel import SIZE_FLAGS, find_option, has_option
from pytest_gpubench.recipe.source import Source
from pytest_gpubench.recipe.types import Deployment, Labels, Parallel

__all__ = ["device_of", "labels_of", "precision_of"]

_PRECISIONS = ("fp4", "fp8", "int4", "int8", "bf16", "fp16")


def precision_of(model: str) -> str:
    """The precision that a model's name speaks of; bf16 when it names none."""
    name = model.lower()
    return next((precision for precision in _PRECISIONS if precision in name), "bf16")


def device_of(source: Source) -> str:
    """The device label without metadata: the profile's own ``platform``, else the ``gpu`` key, lower case."""
    if source.profile_file.holds((source.profile.name, "platform")):
        return source.profile.platform
    return source.model.gpu.lower()


def labels_of(source: Source, deployment: Deployment, point: PointModel | None) -> Labels:
    """Labels with perf-eval's meaning: ``tp`` without metadata is TP x DP, ``ep`` 1 says that it is on.

    A point of a search space that sets its own sizes is labelled by these; the recipe's metadata speaks
    of the recipe's own serve arguments only.
    """
    metadata = source.model.vllm_bench.metadata if source.model.vllm_bench else Metadata()
    disagg = deployment.prefill is not None
    parallel = deployment.parallel
    own_sizes = point is not None and (bool(_sizes(point)) or point.prefill is not None)
    tp, dp, ep = (None, None, None) if own_sizes else (metadata.tp, metadata.dp, metadata.ep)
    if dp is None and (find_option(deployment.serve_args, SIZE_FLAGS["dp"]) or (disagg and parallel.dp > 1)):
        dp = parallel.dp
    if ep is None and (parallel.ep > 1 or has_option(deployment.serve_args, "enable-expert-parallel")):
        ep = 1
    spec = point.spec_decoding if point is not None and point.spec_decoding else metadata.spec_decoding
    dp_attention = point.dp_attention if point is not None else None
    if dp_attention is None and deployment.decode is not None:
        dp_attention = deployment.decode.dp_attention
    return Labels(
        device=metadata.device or device_of(source),
        precision=metadata.precision or precision_of(deployment.model),
        tp=tp if tp is not None else parallel.tp * parallel.dp,
        dp=dp,
        ep=ep,
        is_multinode=deployment.num_nodes > 1,
        dp_attention=bool(metadata.dp_attention if dp_attention is None else dp_attention),
        disagg=disagg or bool(metadata.disagg),
        spec_decoding=spec or "false",
        note=None if disagg else _note(deployment.gpu_count, parallel),
    )


def _sizes(point: PointModel) -> dict[str, object]:
    values = {name: getattr(point, name) for name in (*SIZE_FLAGS, "ep")}
    return {name: value for name, value in values.items() if value is not None}


def _note(gpu_count: int, parallel: Parallel) -> str | None:
    """Upstream's main revision divides by TP x DP, whatever is allocated."""
    upstream = parallel.tp * parallel.dp
    if upstream == gpu_count:
        return None
    text = f"per-GPU figures divide by the {gpu_count} GPUs allocated; perf-eval's main divides by "
    text += f"TP x DP = {upstream}"
    if parallel.pp > 1:
        text += f", leaving out pipeline parallel {parallel.pp}"
    return text
