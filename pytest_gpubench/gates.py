"""Row + gates -> violations, and the verdict on a point: validity first, then the gates.

All violated gates are found at once. A metric that is missing or null fails the gate that names it: no
evidence is not good evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.bench.validity import Problem
from pytest_gpubench.reasons import Reason
from pytest_gpubench.recipe.types import Gates, Point
from pytest_gpubench.results.metrics import Metric, known_metric, metric, near_metrics
from pytest_gpubench.results.outcome import Failure

__all__ = [
    "Verdict",
    "Violation",
    "effective_gates",
    "format_violations",
    "judge",
    "known_metric",
    "near_metrics",
    "verdict",
]


@dataclass(frozen=True)
class Violation:
    """One gate that was missed. ``value`` is None when the row has no such figure.

    ``kind``: failure_rate, floor, ceiling, reference_lower, reference_upper, spread, accuracy, slo,
    known_issue or regression.
    """

    metric: str
    kind: str
    limit: float | None
    value: float | None
    unit: str
    message: str

    def as_json(self) -> dict[str, JSON]:
        """The violation as it stands in the row."""
        return {
            "metric": self.metric,
            "kind": self.kind,
            "limit": self.limit,
            "value": self.value,
            "unit": self.unit,
            "message": self.message,
        }


@dataclass(frozen=True)
class Verdict:
    """``status`` is passed, failed or error; ``message`` is the whole text for people, empty if passed.

    ``expected`` is True when gates were missed and the recipe marks that as a known issue: the row says
    failed, the test counts as an expected failure.
    """

    status: str
    reason: Reason | None = None
    message: str = ""
    problems: tuple[Problem, ...] = ()
    violations: tuple[Violation, ...] = ()
    expected: bool = False


def verdict(
    point: Point, row: Mapping[str, JSON], problems: Sequence[Problem], failure: Failure | None = None
) -> Verdict:
    """Judge a point: a failure of the world, else an invalid measurement, else the gates."""
    if failure is not None:
        return Verdict(_status(failure.reason), failure.reason, _failure_text(failure))
    gates = effective_gates(point)
    if problems:
        # Only the failure rate still means something; other figures of an invalid run would be noise.
        counted = judge(row, Gates(max_failure_rate=gates.max_failure_rate))
        lost = tuple(violation for violation in counted if violation.value is not None)
        first = problems[0]
        lines = [f"{_kind(first.reason)} [{first.reason.value}]: {first.message}"]
        lines += [f"  [{problem.reason.value}] {problem.message}" for problem in problems[1:]]
        lines += [f"  {violation.message}" for violation in lost]
        return Verdict(_status(first.reason), first.reason, "\n".join(lines), tuple(problems), lost)
    violations = [*judge(row, gates), *_slo(row, point)]
    if gates.known_issue is None:
        if not violations:
            return Verdict("passed")
        return Verdict(
            "failed", Reason.GATE_MISSED, format_violations(violations), violations=tuple(violations)
        )
    if violations:
        text = f"known issue ({gates.known_issue}): {format_violations(violations)}"
        return Verdict("failed", Reason.GATE_MISSED, text, violations=tuple(violations), expected=True)
    text = f"all gates are met although `known_issue` says otherwise ({gates.known_issue}): remove the mark"
    passed = Violation("known_issue", "known_issue", None, None, "", text)
    return Verdict("failed", Reason.KNOWN_ISSUE_PASSED, text, violations=(passed,))


def effective_gates(point: Point) -> Gates:
    """The point's gates; an SLO search adds its own floors, which judge the best probe."""
    if point.slo is None:
        return point.gates
    return replace(point.gates, floors=(*point.gates.floors, *point.slo.floors))


def judge(row: Mapping[str, JSON], gates: Gates) -> list[Violation]:
    """Every gate that ``row`` misses, in the order: failure rate, floors, ceilings, references, spread,
    accuracy.
    """
    return [
        *_failure_rate(row, gates),
        *(v for name, limit in gates.floors for v in _bound(row, name, limit, "floor")),
        *(v for name, limit in gates.ceilings for v in _bound(row, name, limit, "ceiling")),
        *_references(row, gates),
        *_spread(row, gates),
        *_accuracy(row, gates),
    ]


def format_violations(violations: Sequence[Violation]) -> str:
    """One text with every violation on a line of its own, values beside limits."""
    if len(violations) == 1:
        return f"gate missed: {violations[0].message}"
    lines = [f"{len(violations)} gates missed:"]
    return "\n".join([*lines, *(f"  {violation.message}" for violation in violations)])


def _failure_rate(row: Mapping[str, JSON], gates: Gates) -> Iterator[Violation]:
    if row.get("kind") == "accuracy":
        return  # the harness counts answers, not requests
    limit, rate = gates.max_failure_rate, _value(row, "failure_rate")
    if rate is None and row.get("kind") == "slo":
        return  # no probe met the ceilings: that is the violation, and there is no best run to count
    if rate is not None and rate <= limit:
        return
    if rate is None:
        text = (
            f"failure_rate is unknown: the result does not say how many prompts completed (limit {limit:g})"
        )
    else:
        failed, prompts, completed = (_value(row, key) for key in ("failed", "num_prompts", "completed"))
        text = f"failure_rate {rate:.6g} ({failed:.0f}/{prompts:.0f}) is above max_failure_rate {limit:g}"
        stated = _value(row, "stated_failed")
        if stated != failed and None not in (failed, prompts, completed):
            said = "gives no failed count" if stated is None else f"states {stated:.0f} failed"
            text += f"; the file {said}, but {completed:.0f} of {prompts:.0f} completed"
    yield Violation("failure_rate", "failure_rate", limit, rate, "", text)


def _bound(row: Mapping[str, JSON], name: str, limit: float, kind: str) -> Iterator[Violation]:
    value, info = _value(row, name), _info(name)
    if value is None:
        yield Violation(name, kind, limit, None, info.unit, _absent(row, name, f"{kind} {info.show(limit)}"))
    elif value < limit if kind == "floor" else value > limit:
        side = "below" if kind == "floor" else "above"
        text = f"{name} {info.show(value)} is {side} the {kind} {info.show(limit)}{_percent(value, limit)}"
        yield Violation(name, kind, limit, value, info.unit, text)


def _references(row: Mapping[str, JSON], gates: Gates) -> Iterator[Violation]:
    for reference in gates.references:
        name, value, info = reference.metric, _value(row, reference.metric), _info(reference.metric)
        for kind, share in (("reference_lower", reference.lower), ("reference_upper", reference.upper)):
            if share is None:
                continue
            # |value|: a lower bound is below the reference whatever its sign.
            limit = reference.value + abs(reference.value) * share
            wanted = f"reference {info.show(reference.value)} {share:+.1%} = {info.show(limit)}"
            if value is None:
                yield Violation(name, kind, limit, None, info.unit, _absent(row, name, wanted))
            elif value < limit if kind == "reference_lower" else value > limit:
                side = "below" if kind == "reference_lower" else "above"
                text = f"{name} {info.show(value)} is {side} the {wanted}{_percent(value, reference.value)}"
                yield Violation(name, kind, limit, value, info.unit, text)


def _spread(row: Mapping[str, JSON], gates: Gates) -> Iterator[Violation]:
    spreads = row.get("spread")
    for name, limit in gates.max_spread:
        entry = spreads.get(name) if isinstance(spreads, dict) else None
        value = _value(entry, "relative_iqr") if isinstance(entry, dict) else None
        if value is None:
            text = f"{name} has no spread (limit {limit:.1%}): that needs two or more repetitions with it"
            yield Violation(name, "spread", limit, None, "", text)
        elif value > limit:
            count = row.get("repetitions")
            text = f"{name} spreads by {value:.1%} (relative IQR of {count} repetitions), limit {limit:.1%}"
            yield Violation(name, "spread", limit, value, "", text)


def _accuracy(row: Mapping[str, JSON], gates: Gates) -> Iterator[Violation]:
    if row.get("kind") != "accuracy":
        return
    task, listed = row.get("task"), row.get("scores")
    scores = {
        (entry.get("task"), entry.get("metric")): _value(entry, "value")
        for entry in (listed if isinstance(listed, list) else [])
        if isinstance(entry, dict)
    }
    for wanted, name, floor in gates.accuracy:
        if wanted != task and not any(found == wanted for found, _ in scores):
            continue  # the floor of another task of the same recipe
        if name == "*":
            # A floor without a metric is for every score of the task, as validators upstream read it.
            every = [metric for of, metric in scores if of == wanted] or ["score"]
            yield from _floors(scores, wanted, [str(metric) for metric in every], floor)
        else:
            yield from _floors(scores, wanted, [name], floor)


def _floors(
    scores: Mapping[tuple[JSON, JSON], float | None], wanted: str, names: Sequence[str], floor: float
) -> Iterator[Violation]:
    for name in names:
        value, label = scores.get((wanted, name)), f"{wanted} {name}"
        if value is None:
            there = ", ".join(sorted(str(found) for of, found in scores if of == wanted)) or "no scores"
            text = f"{label} is not in the result (floor {floor:g}); it has {there}"
            yield Violation(label, "accuracy", floor, None, "", text)
        elif value < floor:
            text = f"{label} {value:.6g} is below the floor {floor:g}{_percent(value, floor)}"
            yield Violation(label, "accuracy", floor, value, "", text)


def _slo(row: Mapping[str, JSON], point: Point) -> Iterator[Violation]:
    slo = point.slo
    if slo is None or _value(row, "slo_best") is not None:
        return
    limits = ", ".join(f"{name} <= {_info(name).show(limit)}" for name, limit in slo.ceilings)
    text = f"no {slo.over} in {slo.low}..{slo.high} meets {limits or 'the ceilings'}"
    yield Violation(slo.over, "slo", float(slo.low), None, "", text)


def _absent(row: Mapping[str, JSON], name: str, wanted: str) -> str:
    """Say that ``name`` is missing, and which of its kin the row has, or what it may have meant."""
    family = name.rpartition("_")[2]
    kin = [
        key.removesuffix(f"_{family}")
        for key, value in row.items()
        if key.endswith(f"_{family}") and value is not None
    ]
    if not known_metric(name):
        near = near_metrics(name)
        hint = f"no row has such a metric{'; did you mean ' + ' or '.join(near) + '?' if near else ''}"
    elif metric(f"mean_{family}") is None:
        hint = "the result gives no such figure"
    else:
        hint = f"of {family} the result has {', '.join(kin) or 'nothing'}"
        if kin:
            hint += " (ask for percentiles with --metric-percentiles)"
    return f"{name} is not in the result ({wanted}): {hint}"


def _failure_text(failure: Failure) -> str:
    doing = f" while {failure.phase.doing}" if failure.phase is not None else ""
    text = f"{_kind(failure.reason)} [{failure.reason.value}]{doing}: {failure.message}"
    return f"{text}\n{failure.details}" if failure.details else text


def _kind(reason: Reason) -> str:
    return "infrastructure error" if reason.infrastructure else "not a valid measurement"


def _status(reason: Reason) -> str:
    return "error" if reason.infrastructure else "failed"


def _info(name: str) -> Metric:
    return metric(name) or Metric(name, "", None)


def _value(row: Mapping[str, JSON], key: str) -> float | None:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


def _percent(value: float, limit: float) -> str:
    return f" ({(value - limit) / abs(limit):+.1%})" if limit else ""
