"""Constraints: what a recipe cannot do, told before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_gpubench.recipe.fields import shown
from pytest_gpubench.recipe.models import Constraint
from pytest_gpubench.recipe.problems import Problems, near
from pytest_gpubench.recipe.types import Point
from pytest_gpubench.recipe.yaml import KeyPath, written

__all__ = ["FACTS", "check_constraints", "facts_of", "reject"]

FACTS = (
    "tp",
    "pp",
    "dp",
    "ep",
    "pcp",
    "dcp",
    "isl",
    "osl",
    "conc",
    "num_prompts",
    "num_nodes",
    "gpus_per_node",
    "gpu_count",
    "dp_attention",
    "disagg",
    "spec_decoding",
    "precision",
    "scenario",
    "dataset",
    "backend",
    "request_rate",
    "deployment",
)
"""What ``when`` and ``require`` may speak of. ``ep`` matches the size, or true and false."""

_BOUNDS = ("min", "max")
_SHOWN_POINTS = 8


def facts_of(point: Point) -> dict[str, object]:
    """The facts of a point, by the names that constraints use; None where it has none."""
    deployment, load, labels = point.deployment, point.load, point.labels
    parallel = deployment.parallel
    return {
        "tp": parallel.tp,
        "pp": parallel.pp,
        "dp": parallel.dp,
        "ep": parallel.ep,
        "pcp": parallel.pcp,
        "dcp": parallel.dcp,
        "isl": load.isl if load else None,
        "osl": load.osl if load else None,
        "conc": load.concurrency if load else None,
        "num_prompts": load.num_prompts if load else None,
        "num_nodes": deployment.num_nodes,
        "gpus_per_node": deployment.gpus_per_node,
        "gpu_count": deployment.gpu_count,
        "dp_attention": labels.dp_attention,
        "disagg": labels.disagg,
        "spec_decoding": labels.spec_decoding,
        "precision": labels.precision,
        "scenario": deployment.scenario,
        "dataset": load.dataset if load else None,
        "backend": load.backend if load else None,
        "request_rate": load.request_rate if load else None,
        "deployment": deployment.id,
    }


def check_constraints(problems: Problems, constraints: Sequence[Constraint]) -> None:
    """Every condition speaks of a fact, in a form that can match."""
    for index, constraint in enumerate(constraints):
        for part in ("when", "require"):
            for name, wanted in getattr(constraint, part).items():
                where: KeyPath = ("constraints", index, part, name)
                if name not in FACTS:
                    problems.add(where, f"a point has no {name!r}{near(name, FACTS)}", key=True)
                elif not _matchable(wanted):
                    problems.add(
                        where,
                        f"expected a value, a list of values, or {{min: …, max: …}} (got {shown(wanted)})",
                    )


def _matchable(wanted: object) -> bool:
    if isinstance(wanted, dict):
        return bool(wanted) and all(
            key in _BOUNDS and isinstance(value, (int, float)) and not isinstance(value, bool)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return bool(wanted) and all(isinstance(item, (str, int, float, bool)) for item in wanted)
    return isinstance(wanted, (str, int, float, bool))


def reject(points: Sequence[Point], constraints: Sequence[Constraint]) -> list[Point]:
    """The points, those that a constraint refuses with the reason and the points that are allowed."""
    if not constraints:
        return list(points)
    points_left = [point for point in points if point.load is not None and point.rejected is None]
    facts = {point.id: facts_of(point) for point in points_left}
    refused: dict[str, Constraint] = {}
    for point in points_left:
        for constraint in constraints:
            if _judges(constraint, point) and _refuses(constraint, facts[point.id]):
                refused[point.id] = constraint
                break
    if not refused:
        return list(points)
    allowed = {
        id(constraint): [
            name for name, known in facts.items() if name not in refused and _matches(constraint.when, known)
        ]
        for constraint in constraints
    }
    result: list[Point] = []
    for point in points:
        refusing = refused.get(point.id)
        if refusing is None:
            result.append(point)
            continue
        text = _explain(refusing, facts[point.id], allowed[id(refusing)])
        result.append(replace(point, rejected=text))
    return result


def _judges(constraint: Constraint, point: Point) -> bool:
    """A search for the best concurrency has none yet, so what speaks of it says nothing of the search."""
    return point.kind == "serving" or not {"conc", "num_prompts"} & {*constraint.when, *constraint.require}


def _refuses(constraint: Constraint, facts: Mapping[str, object]) -> bool:
    if not _matches(constraint.when, facts):
        return False
    return not constraint.require or not _matches(constraint.require, facts)


def _matches(conditions: Mapping[str, object], facts: Mapping[str, object]) -> bool:
    return all(_holds(wanted, facts.get(name), name) for name, wanted in conditions.items())


def _holds(wanted: object, fact: object, name: str) -> bool:
    if isinstance(wanted, list):
        return any(_holds(item, fact, name) for item in wanted)
    if isinstance(wanted, dict):
        if not isinstance(fact, (int, float)):
            return False
        low, high = wanted.get("min"), wanted.get("max")
        return (low is None or fact >= low) and (high is None or fact <= high)
    if name == "ep" and isinstance(wanted, bool):
        return (isinstance(fact, int) and fact > 1) == wanted
    if isinstance(fact, bool) or isinstance(wanted, bool):
        return str(fact).lower() == str(wanted).lower()
    if isinstance(fact, str):
        return fact == (written(wanted) if isinstance(wanted, (int, float)) else wanted)
    return fact == wanted


def _explain(constraint: Constraint, facts: Mapping[str, object], allowed: Sequence[str]) -> str:
    text = constraint.reason
    named = [*constraint.when, *(name for name in constraint.require if name not in constraint.when)]
    got = ", ".join(f"{name}={facts.get(name)}" for name in named)
    text += f" (this point has {got})"
    if constraint.require:
        wanted = ", ".join(f"{name} {_spell(value)}" for name, value in constraint.require.items())
        when = ", ".join(f"{name} {_spell(value)}" for name, value in constraint.when.items())
        text += f"; allowed{' with ' + when if when else ''}: {wanted}"
    if allowed:
        more = f" and {len(allowed) - _SHOWN_POINTS} more" if len(allowed) > _SHOWN_POINTS else ""
        text += f"; points of this recipe that are allowed: {', '.join(allowed[:_SHOWN_POINTS])}{more}"
    else:
        text += "; no point of this recipe that it speaks of is allowed"
    return text


def _spell(value: object) -> str:
    if isinstance(value, list):
        return " or ".join(_spell(item) for item in value)
    if isinstance(value, dict):
        parts = [f"from {value['min']}"] if "min" in value else []
        return " ".join(parts + ([f"to {value['max']}"] if "max" in value else []))
    return str(value).lower() if isinstance(value, bool) else str(value)
