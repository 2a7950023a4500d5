"""Matrix entries -> points: one deployment per topology and lengths, one point per concurrency. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from pytest_gpubench.recipe.inferencex.matrix import GeneratedEntry, lengths_tag
from pytest_gpubench.recipe.inferencex.serving import serve_args, why_not_servable
from pytest_gpubench.recipe.inferencex.site import fitted_profile
from pytest_gpubench.recipe.inferencex.topology import Topology
from pytest_gpubench.recipe.types import Deployment, Gates, Labels, Load, Pairs, Point

__all__ = ["Resolved", "build_points", "duplicates"]

PROMPTS_PER_CONCURRENCY = 10
WARMUPS_PER_CONCURRENCY = 2
RANGE_RATIO = 0.8  # InferenceX's client draws lengths from this share of isl and osl up to all of them
MIN_PROMPTS = 16  # of a run whose multiplier is set


@dataclass(frozen=True)
class Resolved:
    """A matrix entry with its topology and the line it is written on."""

    entry: GeneratedEntry
    topology: Topology
    line: int = 1


@dataclass(frozen=True)
class _Draft:
    """One deployment before it has its final id: where it came from, and what its id is made of."""

    resolved: Resolved
    deployment: Deployment
    stem: str  # id without lengths and concurrency
    tail: str  # lengths, for fixed-length scenarios


def build_points(
    resolved: Sequence[Resolved],
    template: Callable[[str], Deployment],
    markers: Callable[[Deployment, Labels], tuple[str, ...]],
) -> list[Point]:
    """All points, deployment by deployment in the file's order.

    ``template`` gives a scenario's deployment without its topology.
    """
    drafts = [_draft(item, template(item.entry.scenario_type)) for item in resolved]
    ids = _deployment_ids(drafts)
    points = []
    for draft in drafts:
        deployment = replace(draft.deployment, id=ids[draft.deployment])
        labels = _labels(draft.resolved, deployment)
        for conc in draft.resolved.entry.concurrencies:
            points.append(
                Point(
                    id=_point_id(draft, deployment.id, conc),
                    kind="serving",
                    deployment=deployment,
                    labels=labels,
                    gates=_gates(draft.resolved.topology.settings),
                    load=_load(draft.resolved, conc),
                    markers=markers(deployment, labels),
                    line=draft.resolved.line,
                )
            )
    first = {name: index for index, name in reversed(list(enumerate(ids[d.deployment] for d in drafts)))}
    return sorted(points, key=lambda point: first[point.deployment.id])


def duplicates(points: Iterable[Point]) -> list[tuple[Point, Point]]:
    """Pairs of points (first, repeated) that are the same deployment under the same load."""
    seen: dict[str, Point] = {}
    found = []
    for point in points:
        first = seen.setdefault(point.id, point)
        if first is not point:
            found.append((first, point))
    return found


def _draft(item: Resolved, template: Deployment) -> _Draft:
    entry, topology = item.entry, item.topology
    reason = why_not_servable(entry, topology, template.client, template.profile)
    deployment = replace(
        template,
        id="",
        profile=template.profile
        if reason is not None
        else fitted_profile(template.profile, topology.num_nodes, topology.gpus_per_node),
        framework=entry.framework,
        servable=reason is None,
        unservable_reason=reason,
        scenario=entry.scenario_type,
        num_nodes=topology.num_nodes,
        gpus_per_node=topology.gpus_per_node,
        gpu_count=topology.gpu_count,
        parallel=topology.parallel,
        serve_args=serve_args(entry, topology) if reason is None else (),
        prefill=topology.prefill,
        decode=topology.decode,
        extra=_extra(entry),
    )
    if entry.isl is not None and entry.osl is not None:
        return _Draft(item, deployment, topology_tag(entry), lengths_tag(entry.isl, entry.osl, "x"))
    return _Draft(item, deployment, entry.exp_name.replace(f"_conc{entry.concurrencies[0]}", "", 1), "")


def topology_tag(entry: GeneratedEntry) -> str:
    """A topology in a few characters: ``tp8-ep8-dpa``, ``p3x1ep8dpa-d1x1ep8dpa``, ``…-mtp``."""
    if entry.prefill is not None and entry.decode is not None:
        parts = []
        for letter, worker in (("p", entry.prefill), ("d", entry.decode)):
            tag = f"{letter}{worker.num_worker}x{worker.tp}"
            tag += "".join(f"{name}{value}" for name, value in _more_sizes(worker) if value != 1)
            parts.append(tag + ("dpa" if worker.dp_attn else ""))
    else:
        parts = [f"tp{entry.tp}"]
        parts += [f"{name}{value}" for name, value in _more_sizes(entry) if value != 1]
        parts += ["dpa"] if entry.dp_attn else []
    if entry.spec_decoding != "none":
        parts.append(entry.spec_decoding.replace("_", "-"))
    return "-".join(parts)


def _more_sizes(sized: object) -> list[tuple[str, int]]:
    names = (("ep", "ep"), ("pp", "pp"), ("dcp", "dcp_size"), ("pcp", "pcp_size"))
    return [(short, getattr(sized, name)) for short, name in names]


def _deployment_ids(drafts: Sequence[_Draft]) -> dict[Deployment, str]:
    """Every distinct deployment's id; those that share one get the first mark that tells them apart."""
    groups: dict[str, dict[Deployment, _Draft]] = {}
    for draft in drafts:
        plain = _joined(draft, "")
        groups.setdefault(plain, {}).setdefault(draft.deployment, draft)
    ids: dict[Deployment, str] = {}
    for plain, members in groups.items():
        if len(members) == 1:
            ids[next(iter(members))] = plain
            continue
        for mark in (_topology_mark, _config_mark, _digest_mark):
            named = {deployment: _joined(draft, mark(draft)) for deployment, draft in members.items()}
            if len(set(named.values())) == len(members):
                break
        ids |= named
    return ids


def _joined(draft: _Draft, mark: str) -> str:
    return _safe("-".join(part for part in (draft.stem, mark, draft.tail) if part))


def _topology_mark(draft: _Draft) -> str:
    """What upstream's agentic names leave out: ``ep8-dpa``. Fixed-length ids hold it already."""
    entry = draft.resolved.entry
    if draft.tail or entry.tp is None:
        return ""
    parts = [f"{name}{value}" for name, value in _more_sizes(entry) if value != 1]
    return "-".join([*parts, "dpa"] if entry.dp_attn else parts)


def _config_mark(draft: _Draft) -> str:
    return PurePosixPath(draft.resolved.topology.settings.get("CONFIG_FILE", "")).stem[:80]


def _digest_mark(draft: _Draft) -> str:
    roles = [role.extra for role in (draft.deployment.prefill, draft.deployment.decode) if role is not None]
    text = json.dumps([draft.deployment.extra, roles, topology_tag(draft.resolved.entry)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _point_id(draft: _Draft, deployment_id: str, conc: int) -> str:
    if draft.tail:
        return f"{deployment_id}-conc{conc}"
    # The upstream name holds the concurrency; what was added to keep deployments apart goes behind it.
    added = deployment_id[len(_safe(draft.stem)) :]
    return _safe(draft.resolved.entry.exp_name) + added


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def _extra(entry: GeneratedEntry) -> Pairs:
    """InferenceX's settings that have no field of their own, values as JSON."""
    skip = {"image", "model", "precision", "framework", "scenario-type", "conc", "exp-name", "isl", "osl"}
    skip |= {"tp", "pp", "ep", "dp-attn", "dcp-size", "pcp-size", "prefill", "decode"}
    return tuple((key, json.dumps(value)) for key, value in entry.as_dict().items() if key not in skip)


def _gates(settings: Mapping[str, str]) -> Gates:
    limit = settings.get("MAX_FAILURE_RATE")
    return Gates() if limit is None else Gates(max_failure_rate=float(limit))


def _load(item: Resolved, conc: int) -> Load:
    entry, settings = item.entry, item.topology.settings
    if entry.isl is None or entry.osl is None:
        return Load(
            name=_safe(entry.exp_name),
            isl=None,
            osl=None,
            concurrency=conc,
            num_prompts=conc,
            dataset="agentic-coding",
            ignore_eos=False,
        )
    multiplier = settings.get("BENCH_NUM_PROMPTS_MULTIPLIER")
    prompts = PROMPTS_PER_CONCURRENCY * conc
    if multiplier is not None:
        prompts = max(MIN_PROMPTS, int(conc * float(multiplier)))
    return Load(
        name=f"{lengths_tag(entry.isl, entry.osl, 'x')}-conc{conc}",
        isl=entry.isl,
        osl=entry.osl,
        concurrency=conc,
        num_prompts=prompts,
        num_warmups=WARMUPS_PER_CONCURRENCY * conc,
        random_range_ratio=0.0,
    )


def _labels(item: Resolved, deployment: Deployment) -> Labels:
    entry, topology = item.entry, item.topology
    sizes = topology.parallel
    return Labels(
        device=deployment.profile.platform,
        precision=entry.precision,
        tp=sizes.tp * sizes.dp,
        dp=sizes.dp if sizes.dp > 1 else None,
        ep=sizes.ep,
        is_multinode=entry.prefill is not None,
        dp_attention=topology.dp_attention,
        disagg=topology.disaggregated,
        spec_decoding="false" if entry.spec_decoding == "none" else entry.spec_decoding,
        note=_note(entry, topology),
    )


def _note(entry: GeneratedEntry, topology: Topology) -> str | None:
    """Why a figure differs from InferenceX's own."""
    notes = []
    if topology.serving_gpus != topology.gpu_count:
        notes.append(f"{topology.serving_gpus} of the {topology.gpu_count} allocated GPUs serve")
    ratio = float(topology.settings.get("RANDOM_RANGE_RATIO", RANGE_RATIO))
    if entry.isl is not None and ratio < 1:
        # vLLM's own ratio spreads to both sides of the length, beyond --max-model-len = isl + osl + 256.
        notes.append(f"lengths are exactly isl and osl, InferenceX draws them from {ratio:g} to 1 times")
    return "; ".join(notes) or None
