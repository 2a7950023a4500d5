"""From a recipe's blocks to its points: ids, loads, gates, and which of them a constraint refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_gpubench.recipe.accuracy import accuracy_tasks, task_names
from pytest_gpubench.recipe.checks import load_problem, misfit
from pytest_gpubench.recipe.constraints import check_constraints, reject
from pytest_gpubench.recipe.deployments import Built, DeploymentBuilder
from pytest_gpubench.recipe.limits import Layer, check_metrics, check_names, gates_of
from pytest_gpubench.recipe.loads import (
    concurrencies,
    lengths_tag,
    load_template,
    prompts_for,
    safe_id,
    with_size,
)
from pytest_gpubench.recipe.models import BenchConfig, Entry, PointModel, SloModel
from pytest_gpubench.recipe.parallel import max_model_len
from pytest_gpubench.recipe.profiles import PLATFORMS
from pytest_gpubench.recipe.source import Source
from pytest_gpubench.recipe.sweep import assertion_gates, sweep_configs
from pytest_gpubench.recipe.types import Deployment, Gates, Load, Point, Slo
from pytest_gpubench.recipe.yaml import KeyPath

__all__ = ["expand", "smoke"]


def expand(source: Source) -> list[Point]:
    """Every point of the recipe, deployment by deployment, in the order of the file."""
    return _Expansion(source).points()


def smoke(points: Sequence[Point]) -> list[Point]:
    """One point per deployment: the shortest lengths, then the lowest concurrency; never a refused one.

    A deployment that no load is measured on keeps its first accuracy task or SLO search.
    """
    chosen: dict[tuple[str, str], Point] = {}
    for point in points:
        if point.rejected is not None:
            continue
        key = (point.deployment.recipe, point.deployment.id)
        if key not in chosen or _smoke_rank(point) < _smoke_rank(chosen[key]):
            chosen[key] = point
    kept = {id(point) for point in chosen.values()}
    return [point for point in points if id(point) in kept]


def _smoke_rank(point: Point) -> tuple[int, int, int]:
    load = point.load
    kinds = ("serving", "accuracy", "slo")
    if load is None or point.kind != "serving":
        return kinds.index(point.kind), 0, 0
    return 0, (load.isl or 0) + (load.osl or 0), load.concurrency or 0


class _Expansion:
    """One pass over a recipe; ids are unique, and two points that mean the same are told apart by line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.model = source.model
        self.builder = DeploymentBuilder(source)
        self.seen: dict[str, KeyPath] = {}
        self.tasks = task_names(source.model)
        self.base: Layer = (self.model.gates, self.model.known_issue)
        self._markers: dict[str, tuple[str, ...]] = {}

    def points(self) -> list[Point]:
        problems = self.source.problems
        check_metrics(problems, self.model.gates, ("gates",), self.tasks)
        check_constraints(problems, self.model.constraints)
        found = [*self._bench(), *self._search_space()]
        found += self._slo(found)
        if not self.model.bench_only:
            found += self._accuracy()
        if not found and not problems:
            problems.add(
                (), "the recipe gives no point: no vllm_bench.configs, search_space or accuracy task"
            )
        problems.finish()
        order = {name: index for index, name in enumerate(dict.fromkeys(p.deployment.id for p in found))}
        kinds = {"serving": 0, "slo": 1, "accuracy": 2}
        found.sort(key=lambda point: (order[point.deployment.id], kinds[point.kind]))
        return reject(found, self.model.constraints)

    def _bench(self) -> Iterator[Point]:
        for config, where in self._configs():
            check_metrics(self.source.problems, config.gates, (*where, "gates"), self.tasks)
            asserted = assertion_gates(self.source.problems, config.assertions, (*where, "assertions"))
            gates = gates_of((self.base, (asserted, None), (config.gates, config.known_issue)))
            template = load_template(
                self.source, config, where, config.name, config.input_len, config.output_len
            )
            prompts = prompts_for(
                self.source, config.num_prompts, config.max_concurrency, (*where, "num_prompts")
            )
            for built in self.builder.build(None, where):
                for concurrency, count in zip(config.max_concurrency, prompts, strict=True):
                    suffix = f"-conc-{concurrency}"
                    name = config.name if config.name.endswith(suffix) else config.name + suffix
                    load = with_size(template, name, concurrency, count)
                    yield self._point(built, safe_id(name), load, gates, where)

    def _configs(self) -> Iterator[tuple[BenchConfig, KeyPath]]:
        """perf-eval's configs as written, then those that its sweep stands for."""
        bench = self.model.vllm_bench
        if bench is None:
            return
        for index, config in enumerate(bench.configs):
            yield config, ("vllm_bench", "configs", index)
        for index, config in enumerate(sweep_configs(bench.sweep) if bench.sweep is not None else ()):
            yield config, ("vllm_bench", "sweep", "shapes", index)

    def _search_space(self) -> Iterator[Point]:
        problems = self.source.problems
        entries = self.model.search_space
        if entries is None:
            if self.source.file.holds(("search_space",)):
                problems.add(("search_space",), "the search space expands to nothing (got null)")
            return
        if not entries:
            problems.add(("search_space",), "the search space expands to nothing (got an empty list)")
        for index, entry in enumerate(entries):
            where: KeyPath = ("search_space", index)
            check_metrics(problems, entry.gates, (*where, "gates"), self.tasks)
            if (entry.isl is None) != (entry.osl is None):
                problems.add(where, "expected isl and osl together")
            elif entry.isl is None and entry.dataset == "random" and self.model.scenario == "fixed-seq-len":
                problems.add(where, "isl and osl are required: the scenario is fixed-seq-len")
            if not entry.points:
                problems.add(where, "this entry expands to nothing: expected points with at least one entry")
            for position, point in enumerate(entry.points):
                yield from self._measured(entry, point, where, (*where, "points", position))

    def _measured(
        self, entry: Entry, point: PointModel, entry_place: KeyPath, where: KeyPath
    ) -> Iterator[Point]:
        check_metrics(self.source.problems, point.gates, (*where, "gates"), self.tasks)
        gates = gates_of((self.base, (entry.gates, entry.known_issue), (point.gates, point.known_issue)))
        keys, keys_place = _inherit(entry, point), where if point.args is not None else entry_place
        template = load_template(self.source, keys, keys_place, "", entry.isl, entry.osl)
        wanted = concurrencies(point)
        given = point.num_prompts if point.num_prompts is not None else entry.num_prompts
        given_place = where if point.num_prompts is not None else entry_place
        prompts = prompts_for(self.source, given, wanted, (*given_place, "num_prompts"))
        lengths = (
            lengths_tag(entry.isl, entry.osl)
            if entry.isl is not None and entry.osl is not None
            else "agentic"
            if self.model.scenario == "agentic-coding"
            else safe_id(template.dataset)
        )
        tags = [tag for tag in (entry.name, point.name) if tag is not None]
        if template.request_rate != "inf":
            tags.append("rate" + template.request_rate.replace("+", ""))
        prefix = "-".join([*tags, lengths])
        for built in self.builder.build(point, where):
            if template.isl is None and template.dataset == "random" and self.model.client.command is None:
                built = replace(built, deployment=_without_client(built.deployment))
            for concurrency, count in zip(wanted, prompts, strict=True):
                name = f"{prefix}-conc{concurrency}"
                yield self._point(built, name, with_size(template, name, concurrency, count), gates, where)

    def _point(self, built: Built, name: str, load: Load, gates: Gates, where: KeyPath) -> Point:
        point_id = f"{built.deployment.id}-{name}"
        self._claim(point_id, where)
        refused = built.refused or load_problem(load, built.max_len)
        if refused is not None and where[0] != "search_space":
            self.source.problems.add(where, refused)
        return Point(
            id=point_id,
            kind="serving",
            deployment=built.deployment,
            labels=built.labels,
            gates=gates,
            load=load,
            markers=self._marks(built),
            rejected=refused,
            line=self.source.file.at(where).line,
            column=self.source.file.at(where).column,
        )

    def _claim(self, point_id: str, where: KeyPath) -> None:
        first = self.seen.get(point_id)
        if first is None:
            self.seen[point_id] = where
        elif first == where:
            self.source.problems.add(where, f"this gives the point {point_id!r} twice; list each value once")
        else:
            self.source.problems.add(
                where,
                f"this is the point {point_id!r} again, which {self.source.file.at(first)} already gives; "
                "remove one, or tell them apart with name",
            )

    def _marks(self, built: Built) -> tuple[str, ...]:
        deployment = built.deployment
        found = self._markers.get(deployment.id)
        if found is None:
            platform = deployment.profile.platform
            marks = ["gpubench", platform if platform in PLATFORMS else None, deployment.runtime]
            marks += [
                name
                for name, on in (
                    ("multinode", deployment.num_nodes > 1),
                    ("disagg", built.labels.disagg),
                    ("agentic", deployment.scenario == "agentic-coding"),
                    ("nightly", self.model.nightly),
                )
                if on
            ]
            found = tuple(mark for mark in marks if mark is not None)
            self._markers[deployment.id] = found
        return found

    def _slo(self, measured: Sequence[Point]) -> list[Point]:
        result: list[Point] = []
        for index, slo in enumerate(self.model.slo):
            where: KeyPath = ("slo", index) if self.source.file.holds(("slo", index)) else ("slo",)
            check_names(self.source.problems, slo.ceilings, (*where, "ceilings"))
            check_names(self.source.problems, slo.floors, (*where, "floors"))
            result += self._searches(slo, measured, where)
        return result

    def _searches(self, slo: SloModel, measured: Sequence[Point], where: KeyPath) -> Iterator[Point]:
        """One search per deployment and pair of lengths: the block's own, else each that is measured."""
        templates: dict[tuple[str, int | None, int | None], Point] = {}
        for point in measured:
            load = point.load
            if load is None or (slo.isl is not None and (load.isl, load.osl) != (slo.isl, slo.osl)):
                continue
            templates.setdefault((point.deployment.id, load.isl, load.osl), point)
        if not templates and slo.isl is not None:
            yield from self._own_searches(slo, measured, where)
            return
        if not templates:
            self.source.problems.add(
                where, "expected isl and osl: the recipe measures no load to take them from"
            )
        for point in templates.values():
            assert point.load is not None
            yield self._search(slo, point, point.load, where)

    def _own_searches(self, slo: SloModel, measured: Sequence[Point], where: KeyPath) -> Iterator[Point]:
        built = {point.deployment.id: point for point in measured}
        load = Load("slo", slo.isl, slo.osl, None, 0, repetitions=self.model.repetitions)
        if built:
            for point in built.values():
                yield self._search(slo, point, load, where)
            return
        for item in self.builder.build(None, where):
            bare = Point("", "slo", item.deployment, item.labels, Gates(), markers=self._marks(item))
            yield self._search(slo, bare, load, where)

    def _search(self, slo: SloModel, point: Point, load: Load, where: KeyPath) -> Point:
        low, high = slo.range
        lengths = lengths_tag(load.isl or 0, load.osl or 0)
        point_id = f"{point.deployment.id}-{lengths}"
        self._claim(point_id, where)
        prompts = slo.num_prompts or 10 * low
        load = replace(load, name=lengths, concurrency=low, num_prompts=max(prompts, low))
        return replace(
            point,
            id=point_id,
            kind="slo",
            gates=gates_of((self.base,)),
            load=load,
            slo=Slo(tuple(slo.ceilings.items()), slo.over, low, high, tuple(slo.floors.items())),
            rejected=misfit(point.deployment) or load_problem(load, self._longest(point.deployment)),
            line=self.source.file.at(where).line,
            column=self.source.file.at(where).column,
        )

    @staticmethod
    def _longest(deployment: Deployment) -> int | None:
        try:
            return max_model_len(deployment.serve_args)
        except ValueError:
            return None  # reported where the deployment was built

    def _accuracy(self) -> Iterator[Point]:
        for task, name, where in accuracy_tasks(self.model):
            for built in self.builder.build(None, where):
                point_id = f"{built.deployment.id}-{safe_id(name)}"
                self._claim(point_id, where)
                yield Point(
                    id=point_id,
                    kind="accuracy",
                    deployment=built.deployment,
                    labels=built.labels,
                    gates=gates_of((self.base,), tasks=(task.name,)),
                    task=task,
                    markers=(*self._marks(built), "accuracy"),
                    line=self.source.file.at(where).line,
                    column=self.source.file.at(where).column,
                )


def _without_client(deployment: Deployment) -> Deployment:
    """Collected, and skipped with the reason: vLLM's client has no lengths and no data set to go by."""
    reason = (
        f"the scenario {deployment.scenario} needs a data set that vllm bench serve knows, or a client of "
        "its own: client: {kind: command, command: ..., parser: ...}"
    )
    return replace(deployment, servable=False, unservable_reason=reason)


def _inherit(entry: Entry, point: PointModel) -> PointModel:
    """The point's load keys, with the entry's where the point sets none."""
    shared = {
        name: getattr(entry, name)
        for name in entry.model_fields_set
        if name in _LOAD_KEYS and name not in point.model_fields_set
    }
    return point.model_copy(update=shared) if shared else point


_LOAD_KEYS = frozenset(
    name for name in Entry.model_fields if name not in ("isl", "osl", "name", "points", "gates")
)
