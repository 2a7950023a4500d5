"""An InferenceX entry as a recipe in this project's own format, with what that cannot express. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pytest_gpubench.recipe.slurm_forms import gres_gpus
from pytest_gpubench.recipe.types import Deployment, Parallel, Point, Profile, Recipe, Role

__all__ = ["not_expressed", "to_recipe_yaml"]

_PROMPTS_PER_CONCURRENCY = 10  # the recipe format's own default


def to_recipe_yaml(recipe: Recipe, gpu: str | None = None) -> str:
    """The text of a recipe file. ``gpu`` is the profile to name, by default the one that was found.

    Fixed-length scenarios win over agentic ones of the same key, for a recipe has one scenario. The header
    lists everything that the format cannot express.
    """
    points = _written(recipe)
    deployment = points[0].deployment
    lines = [f"# InferenceX {recipe.name}, framework {deployment.framework}."]
    lines.append("# The entry has sizes and loads; the server flags of InferenceX's scripts are not in it.")
    lines += [f"# Not expressed: {text}" for text in not_expressed(recipe)]
    shared_length = _only({_max_model_len(point.deployment) for point in points})
    top: dict[str, Any] = {"name": recipe.name, "gpu": gpu or recipe.profile.name}
    per_node = _only({point.deployment.gpus_per_node for point in points if point.deployment.num_nodes > 1})
    if per_node is not None:
        top["gpus_per_node"] = per_node
    if deployment.scenario != "fixed-seq-len":
        top["scenario"] = deployment.scenario
    top["vllm"] = {"model": deployment.model}
    if _is_vllm(deployment.framework) and deployment.image is not None:
        top["vllm"]["image"] = deployment.image
    if shared_length is not None:
        top["vllm"]["serve_args"] = f"--max-model-len {shared_length}"
    top["vllm_bench"] = {"metadata": {"precision": points[0].labels.precision}}
    limit = _only({point.gates.max_failure_rate for point in points})
    if limit:
        top["gates"] = {"max_failure_rate": limit}
    lines.append(yaml.safe_dump(top, sort_keys=False, width=10_000).rstrip())
    lines.append("search_space:")
    for lengths, members in _by_lengths(points).items():
        lines += _entry(lengths, members, shared_length is None, limit is None)
    return "\n".join(lines) + "\n"


def not_expressed(recipe: Recipe) -> list[str]:
    """What of the entry the recipe format has no words for; empty when nothing is lost."""
    points = _written(recipe)
    deployment = points[0].deployment
    found = []
    if len(points) < len(recipe.points):
        found.append(
            f"the {len(recipe.points) - len(points)} agentic points, which need a recipe of their own"
        )
    if not _is_vllm(deployment.framework):
        found.append(
            f"framework {deployment.framework} and its image {deployment.image}; the recipe serves vLLM"
        )
    elif deployment.framework != "vllm":
        found.append(f"the router and KV transfer of {deployment.framework}; vLLM's own are used")
    methods = sorted({point.labels.spec_decoding for point in points} - {"false"})
    for method in methods:
        found.append(
            f"spec-decoding {method}, whose settings are in InferenceX's own script; add "
            f"--speculative-config and spec_decoding: {method} where it applies"
        )
    if any(_partial_expert(sizes) for sizes in _all_sizes(points)):
        found.append("expert parallelism over a part of the ranks; vLLM spreads experts over all of them")
    settings = sorted(_settings(points))
    if settings:
        found.append(f"additional-settings {', '.join(settings)}, read by InferenceX's launcher")
    if deployment.scenario == "agentic-coding":
        found.append("the trace client, KV offloading and duration; give client and serve arguments")
    if any(_part_of_node(point.deployment, recipe.profile) for point in points):
        gres, name = recipe.profile.slurm.gres, recipe.profile.name
        found.append(f"the use of a part of a node: gres {gres} of profile {name} is allocated whole")
    return found


def _part_of_node(deployment: Deployment, profile: Profile) -> bool:
    """The import asks for fewer GPUs than the profile's gres, a recipe cannot."""
    gres = profile.slurm.gres
    return gres is not None and gres_gpus(gres) not in (None, deployment.gpus_per_node)


def _written(recipe: Recipe) -> list[Point]:
    fixed = [point for point in recipe.points if point.deployment.scenario == "fixed-seq-len"]
    return fixed or list(recipe.points)


def _is_vllm(framework: str) -> bool:
    return "vllm" in framework.split("-")


def _by_lengths(points: Sequence[Point]) -> dict[tuple[int | None, int | None], list[Point]]:
    found: dict[tuple[int | None, int | None], list[Point]] = {}
    for point in points:
        assert point.load is not None  # InferenceX has serving points only
        found.setdefault((point.load.isl, point.load.osl), []).append(point)
    return found


def _entry(
    lengths: tuple[int | None, int | None], points: Sequence[Point], own_length: bool, own_limit: bool
) -> list[str]:
    isl, osl = lengths
    lines = ["- points:"]
    if isl is not None:
        lines = [f"- isl: {isl}", f"  osl: {osl}", "  random_range_ratio: 0.0", "  points:"]
    for fields in _merged([_point(point, own_length, own_limit) for point in points]):
        lines.append(f"  - {_flow(fields)}")
    return lines


def _merged(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours that differ in concurrency and prompts only become one; repeated points get a name."""
    found: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    for fields in items:
        times = seen.count(fields)
        seen.append(dict(fields))
        if times:  # the same sizes and load under other additional-settings
            found.append({"name": f"v{times + 1}", **fields})
        elif found and _without_load(found[-1]) == _without_load(fields):
            found[-1]["conc"] = [*_listed(found[-1]["conc"]), fields["conc"]]
            found[-1]["num_prompts"] = [*_listed(found[-1]["num_prompts"]), fields["num_prompts"]]
        else:
            found.append(fields)
    return [_without_default_prompts(fields) for fields in found]


def _without_load(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in ("conc", "num_prompts")}


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _without_default_prompts(fields: dict[str, Any]) -> dict[str, Any]:
    default = [_PROMPTS_PER_CONCURRENCY * conc for conc in _listed(fields["conc"])]
    if _listed(fields["num_prompts"]) != default:
        return fields
    return {key: value for key, value in fields.items() if key != "num_prompts"}


def _point(point: Point, own_length: bool, own_limit: bool) -> dict[str, Any]:
    deployment, load = point.deployment, point.load
    assert load is not None
    assert load.concurrency is not None
    fields: dict[str, Any] = {}
    decode = deployment.decode
    if deployment.prefill is not None and decode is not None and decode.workers > 0:
        fields |= {"prefill": _role(deployment.prefill), "decode": _role(decode)}
    else:
        fields |= _sizes(deployment.parallel)
        if point.labels.dp_attention:
            fields["dp_attention"] = True
        if deployment.num_nodes > 1:
            fields["num_nodes"] = deployment.num_nodes
    fields |= {"conc": load.concurrency, "num_prompts": load.num_prompts}
    if load.num_warmups is not None:
        fields["num_warmups"] = load.num_warmups
    if own_length and _max_model_len(deployment) is not None:
        fields["serve"] = {"max_model_len": _max_model_len(deployment)}
    if own_limit and point.gates.max_failure_rate:
        fields["gates"] = {"max_failure_rate": point.gates.max_failure_rate}
    return fields


def _role(role: Role) -> dict[str, Any]:
    fields: dict[str, Any] = {"workers": role.workers, **_sizes(role.parallel)}
    if role.dp_attention:
        fields["dp_attention"] = True
    return fields | {"nodes": role.nodes}


def _sizes(parallel: Parallel) -> dict[str, Any]:
    fields: dict[str, Any] = {"tp": parallel.tp}
    fields |= {
        name: getattr(parallel, name) for name in ("pp", "dp", "pcp", "dcp") if getattr(parallel, name) > 1
    }
    if parallel.ep > 1:
        fields["ep"] = True
    return fields


def _all_sizes(points: Sequence[Point]) -> list[Parallel]:
    roles = [role for point in points for role in (point.deployment.prefill, point.deployment.decode) if role]
    return [point.deployment.parallel for point in points] + [role.parallel for role in roles]


def _partial_expert(parallel: Parallel) -> bool:
    return parallel.ep not in (1, parallel.tp * parallel.dp * parallel.pcp)


def _settings(points: Sequence[Point]) -> set[str]:
    """Names of settings whose meaning is not in the points already."""
    understood = {"PREFILL_NODES", "DECODE_NODES", "PREFILL_WORKERS", "DECODE_WORKERS", "GPUS_PER_NODE"}
    understood |= {"MAX_FAILURE_RATE", "BENCH_NUM_PROMPTS_MULTIPLIER", "RANDOM_RANGE_RATIO"}
    found: set[str] = set()
    for point in points:
        for role in (point.deployment.prefill, point.deployment.decode):
            written = dict(role.extra).get("additional-settings") if role is not None else None
            names = {text.partition("=")[0] for text in (json.loads(written) if written else [])}
            found |= names - understood
    return found


def _max_model_len(deployment: Deployment) -> int | None:
    text = dict(deployment.extra).get("max-model-len")
    return int(text) if text is not None else None


def _only(values: set[Any]) -> Any:
    """The one value that all share, None when they differ or there is none."""
    return next(iter(values)) if len(values) == 1 else None


def _flow(fields: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(fields), default_flow_style=True, sort_keys=False, width=10_000).strip()
