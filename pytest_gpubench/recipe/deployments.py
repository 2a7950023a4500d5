"""From the recipe and one entry of its search space to a :class:`Deployment` with a stable id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_gpubench.recipe.checks import check_arguments, check_gloo, check_idle, check_one_host, misfit
from pytest_gpubench.recipe.disagg import disaggregated
from pytest_gpubench.recipe.labels import labels_of
from pytest_gpubench.recipe.models import DeploymentModel, PointModel
from pytest_gpubench.recipe.parallel import (
    SIZE_FLAGS,
    has_option,
    max_model_len,
    parallel_id,
    parallel_of,
    without_sizes,
)
from pytest_gpubench.recipe.profiles import deadlines_of
from pytest_gpubench.recipe.source import Source, allocation_of, check_counts, divisor_of, serve_arguments
from pytest_gpubench.recipe.staging import Staged, stage_model
from pytest_gpubench.recipe.types import ClientSettings, Deployment, Labels, Pairs, Parallel
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = ["Built", "DeploymentBuilder"]


@dataclass(frozen=True)
class Built:
    """A deployment with what its points share. ``max_len`` is ``--max-model-len`` in tokens, if set.

    ``refused``: why this deployment of a search space cannot run; its other deployments still can.
    """

    deployment: Deployment
    labels: Labels
    max_len: int | None
    refused: str | None = None


@dataclass(frozen=True)
class _Variant:
    """One backend of perf-eval's ``attention_backends`` or ``moe_backends``."""

    suffix: str = ""
    arguments: tuple[str, ...] = ()


class DeploymentBuilder:
    """Builds each deployment of a recipe once; points that mean the same server get the same object."""

    def __init__(self, source: Source) -> None:
        self.source = source
        vllm = source.model.vllm
        base: KeyPath = ("vllm",)
        own = serve_arguments(source, base, {"serve_args": vllm.serve_args, "serve": vllm.serve})
        top = serve_arguments(source, (), {"serve": source.model.serve})
        if own and top:
            source.problems.add(("serve",), "vllm has serve arguments too; keep one of the two", key=True)
        self.arguments = own or top
        self.place: KeyPath = next(
            (
                place
                for place in (("vllm", "serve_args"), ("vllm", "serve"), ("serve",))
                if source.file.holds(place)
            ),
            ("vllm",),
        )
        self.variants = self._variants()
        self.env = self._environment()
        self.staged = self._staged()
        self._built: dict[object, list[Built]] = {}
        self._ids: dict[str, tuple[Deployment, KeyPath]] = {}

    def build(self, point: PointModel | None, where: KeyPath) -> list[Built]:
        """The deployments that ``point`` (None: the recipe itself) runs on: one, or one per backend."""
        key = None if point is None else _key(point)
        found = self._built.get(key)
        if found is None:
            found = [self._one(point, where, variant) for variant in self.variants]
            self._built[key] = found
        return found

    def _one(self, point: PointModel | None, where: KeyPath, variant: _Variant) -> Built:
        model, profile = self.source.model, self.source.profile
        base = Deployment(
            recipe=self.source.stem,
            id="",
            model=model.vllm.model,
            model_path=self.staged.path if not self.staged.preferred else model.vllm.model,
            image=self.source.image.name,
            vllm_commit=self.source.image.commit,
            profile=profile,
            runtime=profile.runtime,
            scenario=model.scenario,
            env=self.env,
            env_from_host=tuple(dict.fromkeys((*model.vllm.env_from_host, *model.env_from_host))),
            deadlines=deadlines_of(profile.deadlines, model.deadlines),
            client=ClientSettings(model.client.kind, model.client.command, model.client.parser),
            check_model_path=self.staged.check,
            preferred_path=self.staged.path if self.staged.preferred else None,
        )
        own, own_env = self._overrides(point, where)
        disagg = self._disagg(point)
        if disagg is not None:
            arguments = [*self.arguments, *own, *variant.arguments]
            deployment, suffix = disaggregated(self.source, base, disagg, arguments, where)
        else:
            arguments = [*self._sized(point, where), *own, *variant.arguments]
            deployment = self._aggregated(base, arguments, point, where)
            expert = has_option(deployment.serve_args, "enable-expert-parallel")
            suffix = parallel_id(deployment.parallel, expert=expert)
        if point is not None and point.num_nodes is not None and disagg is None:
            suffix += f"-{point.num_nodes}n"
        suffix += variant.suffix
        if own or own_env:
            deployment = replace(deployment, env=_merged(deployment.env, own_env))
            suffix += "-x" + _digest([own, own_env])
        deployment = replace(deployment, id=suffix)
        self._claim(deployment, where)
        check_arguments(self.source, deployment, self.place if point is None else where)
        check_gloo(self.source, deployment, where)
        refused = misfit(deployment)
        if refused is not None and point is None:
            self.source.problems.add(self.place, refused)  # no point of the recipe can run
            refused = None
        labels = labels_of(self.source, deployment, point)
        return Built(deployment, labels, self._max_len(deployment, where), refused)

    def _claim(self, deployment: Deployment, where: KeyPath) -> None:
        first, place = self._ids.setdefault(deployment.id, (deployment, where))
        if first != deployment:
            self.source.problems.add(
                where,
                f"this server differs from the one at {self.source.file.at(place)} but would have the same "
                f"id {deployment.id!r}; write the difference as serve_args or env of the point",
            )

    def _aggregated(
        self, base: Deployment, arguments: Sequence[str], point: PointModel | None, where: KeyPath
    ) -> Deployment:
        source = self.source
        try:
            parallel = parallel_of(arguments)
        except ValueError as error:
            source.problems.add(self.place if point is None else where, str(error))
            parallel = Parallel()
        own_nodes = point is not None and point.num_nodes is not None
        allocation = allocation_of(
            source, parallel.world_size, where, point_nodes=point.num_nodes if point is not None else None
        )
        if not own_nodes:
            check_counts(source, allocation)
        check_idle(source, allocation, parallel, self.place if point is None else where)
        check_one_host(source, allocation.num_nodes, where if own_nodes else ("num_nodes",))
        return replace(
            base,
            serve_args=tuple(arguments),
            parallel=parallel,
            num_nodes=allocation.num_nodes,
            gpus_per_node=allocation.gpus_per_node,
            gpu_count=divisor_of(source, allocation, own_nodes=own_nodes),
        )

    def _sized(self, point: PointModel | None, where: KeyPath) -> list[str]:
        """The recipe's arguments with the point's sizes in place of its own, where they differ."""
        if point is None:
            return list(self.arguments)
        try:
            present = parallel_of(self.arguments)
        except ValueError:
            return list(self.arguments)  # reported where the recipe's own arguments are read
        arguments = list(self.arguments)
        for short, flag in SIZE_FLAGS.items():
            size = getattr(point, short)
            if size is not None and size != getattr(present, short):
                arguments = [*without_sizes(arguments, (short,)), f"--{flag}", str(size)]
        if point.ep is not None:
            arguments = self._expert(arguments, point.ep, where)
        return arguments

    def _expert(self, arguments: list[str], wanted: bool | int, where: KeyPath) -> list[str]:
        sizes = parallel_of(arguments)
        whole = sizes.tp * sizes.dp * sizes.pcp
        if not isinstance(wanted, bool) and wanted not in (1, whole):
            self.source.problems.add(
                (*where, "ep"),
                f"vLLM spreads the experts over all TP x DP = {whole} GPUs; "
                f"expected true, false, 1 or {whole} (got {wanted})",
            )
        on = wanted if isinstance(wanted, bool) else wanted > 1
        if on == has_option(arguments, "enable-expert-parallel"):
            return arguments
        arguments = without_sizes(arguments, ("ep",))
        return [*arguments, "--enable-expert-parallel"] if on else arguments

    def _overrides(self, point: PointModel | None, where: KeyPath) -> tuple[list[str], dict[str, str]]:
        if point is None:
            return [], {}
        own = serve_arguments(self.source, where, {"serve_args": point.serve_args, "serve": point.serve})
        return own, dict(point.env or {})

    def _disagg(self, point: PointModel | None) -> DeploymentModel | None:
        model = self.source.model.deployment
        if point is None or point.prefill is None or point.decode is None:
            return model
        if model is None:
            return DeploymentModel(prefill=point.prefill, decode=point.decode)
        return model.model_copy(update={"prefill": point.prefill, "decode": point.decode})

    def _variants(self) -> list[_Variant]:
        vllm, problems = self.source.model.vllm, self.source.problems
        if vllm.attention_backends and vllm.moe_backends:
            problems.add(("vllm", "moe_backends"), "cannot be combined with attention_backends", key=True)
        variants = [
            _Variant(f"-{tag}-{name}", () if name == "default" else (f"--{tag_flag}", name))
            for tag, tag_flag, names in (
                ("attn", "attention-backend", vllm.attention_backends),
                ("moe", "moe-backend", vllm.moe_backends),
            )
            for name in names
        ]
        return variants or [_Variant()]

    def _environment(self) -> Pairs:
        """Profile, then recipe, then ``HF_HOME`` where neither sets it: perf-eval's order."""
        profile = self.source.profile
        env = dict(profile.env) | dict(self.source.model.vllm.env or {})
        if "HF_HOME" not in env and profile.hf_home:
            env["HF_HOME"] = profile.hf_home
        return tuple(env.items())

    def _staged(self) -> Staged:
        model, profile = self.source.model, self.source.profile
        try:
            staged = stage_model(model.vllm.model, model.scenario, profile.models)
        except ValueError as error:
            self.source.problems.add(("vllm", "model"), f"{error} (profile {profile.name})")
            return Staged(model.vllm.model)
        self.env = _merged(self.env, dict(staged.env))
        return staged

    def _max_len(self, deployment: Deployment, where: KeyPath) -> int | None:
        try:
            return max_model_len(deployment.serve_args)
        except ValueError as error:
            self.source.problems.add(self.place, str(error))
            return None


def _key(point: PointModel) -> object:
    """What of a point makes its server; equal keys share a deployment."""
    names = ("tp", "pp", "dp", "ep", "pcp", "dcp", "dp_attention", "spec_decoding", "num_nodes")
    sizes = tuple(getattr(point, name) for name in names)
    ep = (type(point.ep), point.ep)  # True and 1 are equal, and mean different things
    if point.serve_args is None and point.serve is None and point.env is None and point.prefill is None:
        return (sizes, ep)
    own = point.model_dump(include={"serve_args", "serve", "env", "prefill", "decode"})
    return (sizes, ep, json.dumps(own, sort_keys=True, default=str))


def _merged(env: Pairs, own: dict[str, str]) -> Pairs:
    return tuple((dict(env) | own).items())


def _digest(value: object) -> str:
    """Six hexadecimal digits of the content: adding a point elsewhere renames nothing."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]
