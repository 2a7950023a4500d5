"""Which InferenceX points this project can serve, and the ``vllm serve`` arguments of those."""

from __future__ import annotations

from pytest_gpubench.recipe.inferencex.matrix import GeneratedEntry
from pytest_gpubench.recipe.inferencex.topology import Topology
from pytest_gpubench.recipe.types import ClientSettings, Profile

__all__ = ["serve_args", "why_not_servable"]


def why_not_servable(
    entry: GeneratedEntry, topology: Topology, client: ClientSettings, profile: Profile
) -> str | None:
    """The reason why the point is skipped, None when it can be served here.

    A site's own launcher may serve any framework and topology: it is told all of it.
    """
    no_client = None
    if entry.scenario_type == "agentic-coding" and client.kind == "vllm-bench":
        no_client = "agentic-coding replays traces: give a command client that does"
    if profile.slurm.launcher is not None and profile.runtime == "slurm":
        return no_client
    framework = entry.framework
    if entry.srt_recipe is not None and framework == "vllm":
        return (
            f"srt-slurm serves this from {entry.srt_recipe}; a profile with slurm.launcher can start its "
            "launcher, or import the entry and write the server's arguments there"
        )
    if framework != "vllm":
        if framework.endswith("-vllm") or framework.startswith("vllm-"):
            return f"framework {framework} brings its own router and KV transfer; only plain vllm is served"
        return f"framework {framework} is not served here, only vllm is"
    if topology.disaggregated:
        return "disaggregated InferenceX entries keep router and KV transfer settings in their own scripts"
    if topology.prefill is not None and topology.prefill.workers > 1:
        return f"{topology.prefill.workers} aggregated workers need a router, which the entry does not set up"
    if entry.spec_decoding != "none":
        return (
            f"spec-decoding {entry.spec_decoding}: the draft settings are in InferenceX's own script; import "
            "the entry as a recipe and give --speculative-config there"
        )
    sizes = topology.parallel
    if sizes.ep not in (1, sizes.tp * sizes.dp * sizes.pcp):
        return f"vLLM spreads experts over all {sizes.tp * sizes.dp * sizes.pcp} ranks, not over {sizes.ep}"
    return no_client


def serve_args(entry: GeneratedEntry, topology: Topology) -> tuple[str, ...]:
    """The flags that the entry's sizes and lengths stand for; sizes of 1 are left out, tp is always given."""
    sizes = topology.parallel
    args = ["--tensor-parallel-size", str(sizes.tp)]
    for flag, size in (
        ("--pipeline-parallel-size", sizes.pp),
        ("--data-parallel-size", sizes.dp),
        ("--prefill-context-parallel-size", sizes.pcp),
        ("--decode-context-parallel-size", sizes.dcp),
    ):
        if size > 1:
            args += [flag, str(size)]
    if sizes.ep > 1:
        args.append("--enable-expert-parallel")
    if entry.max_model_len is not None:
        args += ["--max-model-len", str(entry.max_model_len)]
    return tuple(args)
