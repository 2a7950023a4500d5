"""This run against an earlier ingest file: deltas per metric, regressions, and what makes them doubtful.

Rows are matched on what was measured, never on the image, which is what one compares: first by
``measured_sha256``, else by model, lengths, concurrency and topology, and then with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gpubench.bench.result import JSON
from pytest_gpubench.errors import OptionError
from pytest_gpubench.gates import Verdict, Violation, format_violations
from pytest_gpubench.reasons import Reason
from pytest_gpubench.results.metrics import Metric, metric, near_metrics
from pytest_gpubench.results.row import is_figure
from pytest_gpubench.results.store import read_ingest

__all__ = [
    "Baseline",
    "Comparison",
    "Delta",
    "Rule",
    "compare",
    "compare_runs",
    "load_baseline",
    "parse_rules",
]

ACCURACY = "accuracy"
"""The rule name that stands for every score of an accuracy row."""

_LABELS = (
    "kind", "model", "framework", "scenario", "precision", "isl", "osl", "conc", "tp", "dp", "ep",
    "parallel", "num_nodes", "gpus_per_node", "gpu_count", "disagg", "dp_attention", "spec_decoding",
    "num_prefill_gpu", "num_decode_gpu", "task", "simulated",
)  # fmt: skip
_CIRCUMSTANCES = {
    "device": "hardware",
    "gpu_names": "hardware",
    "driver_version": "driver",
    "image": "image",
    "vllm_version": "vLLM version",
}
# A row with one of these reasons holds a trusted measurement.
_TRUSTED = frozenset({None, "gate_missed", "known_issue_passed", "regression"})


@dataclass(frozen=True)
class Rule:
    """``metric`` may be worse than the baseline by ``percent`` percent, no more."""

    metric: str
    percent: float


@dataclass(frozen=True)
class Baseline:
    """An earlier ingest file."""

    path: str
    run: Mapping[str, JSON]
    rows: tuple[Mapping[str, JSON], ...]


@dataclass(frozen=True)
class Delta:
    """One metric before and after. ``change`` is relative to before, None from zero.

    ``better`` is None where neither direction is, or nothing changed.
    """

    metric: str
    unit: str
    before: float
    after: float
    change: float | None
    better: bool | None


@dataclass(frozen=True)
class Comparison:
    """``status``: no baseline, not measured, compared or regressed."""

    workload: str
    point: str
    status: str
    deltas: tuple[Delta, ...] = ()
    regressions: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()

    def apply(self, verdict: Verdict) -> Verdict:
        """The verdict with the regressions in it; a point that is not a trusted measurement keeps its own."""
        if not self.regressions or verdict.status == "error" or verdict.problems:
            return verdict
        text = format_violations(self.regressions).replace("gate missed", "regression")
        text = text.replace("gates missed", "regressions")
        message = f"{verdict.message}\n{text}" if verdict.message else text
        return replace(
            verdict,
            status="failed",
            reason=verdict.reason or Reason.REGRESSION,
            message=message,
            violations=(*verdict.violations, *self.regressions),
            expected=False,
        )

    def as_json(self) -> dict[str, JSON]:
        """The comparison as it stands in the row."""
        return {
            "status": self.status,
            "warnings": list(self.warnings),
            "deltas": [
                {
                    "metric": delta.metric,
                    "unit": delta.unit,
                    "before": delta.before,
                    "after": delta.after,
                    "change": delta.change,
                    "better": delta.better,
                }
                for delta in self.deltas
            ],
        }


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Rules from ``METRIC:PERCENT`` texts such as ``output_tput_per_gpu:5%``; ``OptionError`` otherwise."""
    rules = []
    for text in texts:
        name, colon, amount = text.strip().rpartition(":")
        wanted = f"--gpubench-compare-fail {text!r}"
        if not colon or not name:
            raise OptionError(f"{wanted}: expected METRIC:PERCENT, such as output_tput_per_gpu:5%")
        info = metric(name)
        if info is None and name != ACCURACY:
            near = near_metrics(name)
            hint = f"did you mean {' or '.join(near)}?" if near else "metric names are those of the rows"
            raise OptionError(f"{wanted}: unknown metric {name!r}; {hint}")
        if info is not None and info.higher_is_better is None:
            raise OptionError(f"{wanted}: neither a higher nor a lower {name} is worse")
        try:
            percent = float(amount.strip().removesuffix("%"))
        except ValueError:
            percent = math.nan
        if not (math.isfinite(percent) and percent >= 0):
            raise OptionError(
                f"{wanted}: {amount!r} is no percentage; expected a number of 0 or more, such as 5%"
            )
        rules.append(Rule(name, percent))
    return tuple(rules)


def load_baseline(path: Path) -> Baseline:
    """Read an ingest file to compare with; ``GpubenchError`` names what is wrong with it."""
    run, rows = read_ingest(path)
    return Baseline(str(path), run, tuple(rows))


def compare(row: Mapping[str, JSON], baseline: Baseline, rules: Sequence[Rule] = ()) -> Comparison:
    """Compare one row with its counterpart; no counterpart is said, and is never a regression."""
    workload, point = str(row.get("workload")), str(row.get("point"))
    if row.get("reason") not in _TRUSTED or row.get("status") == "error":
        return Comparison(workload, point, "not measured")
    match, exact = _counterpart(row, baseline)
    if match is None:
        note = f"no baseline: {baseline.path} has no trusted row for the same measurement"
        return Comparison(workload, point, "no baseline", warnings=(note,))
    warnings = [*_doubts(row, match)]
    if not exact:
        warnings.insert(0, "the recipes differ (serve arguments or load settings): matched by labels only")
    before, after = _values(match), _values(row)
    deltas = [_delta(name, before[name], value) for name, value in after.items() if name in before]
    regressions: list[Violation] = []
    for rule in rules:
        scores = [name for name in {**before, **after} if " " in name]
        for name in scores if rule.metric == ACCURACY else [rule.metric]:
            if name not in before:
                warnings.append(
                    f"{name} is not in the baseline: {rule.metric}:{rule.percent:g}% is not judged"
                )
            else:
                regressions += _regression(name, before[name], after.get(name), rule)
    status = "regressed" if regressions else "compared"
    return Comparison(workload, point, status, tuple(deltas), tuple(regressions), tuple(warnings))


def compare_runs(before: Baseline, after: Baseline, rules: Sequence[Rule] = ()) -> list[Comparison]:
    """Every row of ``after`` against ``before``, in the order of ``after``."""
    return [compare(row, before, rules) for row in after.rows]


def _counterpart(row: Mapping[str, JSON], baseline: Baseline) -> tuple[Mapping[str, JSON] | None, bool]:
    trusted = [
        other
        for other in baseline.rows
        if other.get("reason") in _TRUSTED
        and other.get("status") in ("passed", "failed")
        and bool(other.get("simulated")) == bool(row.get("simulated"))
    ]
    digest = row.get("measured_sha256")
    same = [other for other in trusted if digest and other.get("measured_sha256") == digest]
    exact = bool(same)
    if not same:
        same = [other for other in trusted if all(other.get(key) == row.get(key) for key in _LABELS)]
        # Two recipes may measure the same labels with other arguments: then only the same point counts.
        if len(same) > 1:
            same = [other for other in same if _name(other) == _name(row)]
    elif len(same) > 1:
        same = [other for other in same if _name(other) == _name(row)] or same
    latest = max(same, key=lambda other: str(other.get("date") or ""), default=None)
    return latest, exact


def _doubts(row: Mapping[str, JSON], other: Mapping[str, JSON]) -> list[str]:
    found = []
    for key, what in _CIRCUMSTANCES.items():
        old, new = other.get(key), row.get(key)
        if old != new and not (key == "gpu_names" and row.get("device") != other.get("device")):
            found.append(f"{what} differs: {_show(old)} -> {_show(new)}")
    return found


def _values(row: Mapping[str, JSON]) -> dict[str, float]:
    found = {}
    for name, value in row.items():
        known = metric(name) is not None or is_figure(name)
        if known and isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = float(value)
    scores = row.get("scores")
    for entry in scores if isinstance(scores, list) else []:
        if isinstance(entry, dict) and isinstance(value := entry.get("value"), (int, float)):
            found[f"{entry.get('task')} {entry.get('metric')}"] = float(value)
    return found


def _info(name: str) -> Metric:
    return metric(name) or Metric(name, "", True if " " in name else None)


def _delta(name: str, before: float, after: float) -> Delta:
    info = _info(name)
    change = (after - before) / abs(before) if before else None
    better = None
    if info.higher_is_better is not None and after != before:
        better = (after > before) == info.higher_is_better
    return Delta(name, info.unit, before, after, change, better)


def _regression(name: str, before: float, after: float | None, rule: Rule) -> list[Violation]:
    info = _info(name)
    sign = 1.0 if info.higher_is_better else -1.0
    limit = before - sign * abs(before) * rule.percent / 100.0
    if after is None:
        text = f"{name} is not in the result; the baseline has {info.show(before)}"
    elif sign * (after - limit) < 0:
        change = f"{(after - before) / abs(before):+.1%}" if before else "from zero"
        text = (
            f"{name} {info.show(after)} against {info.show(before)} ({change}), allowed are {rule.percent:g}%"
        )
    else:
        return []
    return [Violation(name, "regression", limit, after, info.unit, text)]


def _name(row: Mapping[str, JSON]) -> tuple[JSON, JSON]:
    return row.get("workload"), row.get("point")


def _show(value: JSON) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in dict.fromkeys(map(str, value))) or "unknown"
    return "unknown" if value is None else str(value)
