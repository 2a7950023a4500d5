"""How the simulated vLLM behaves: defaults, the cluster's ``sim``, overrides per model and rank, the
environment."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["PREFIX", "Sim", "load"]

PREFIX = "GPUBENCH_SIM_"
"""Environment variables ``GPUBENCH_SIM_<FIELD>`` override one field for the processes that see them."""


@dataclass(frozen=True)
class Sim:
    """Times are seconds, measured by the clients as they pass: nothing is reported that did not happen."""

    version: str = "0.32.0+sim"
    import_seconds: float = 0.05
    """From start to the first word of the engine."""
    load_seconds: float = 0.2
    """Loading the weights."""
    capture_seconds: float = 0.05
    """Warm-up and graph capture, after the followers have joined."""
    rendezvous_seconds: float = 600.0
    """How long a rank waits for the others."""
    ttft: float = 0.01
    """From a request to its first token, with nothing to prefill."""
    prefill_per_1k: float = 0.005
    """More of that for every 1,000 prompt tokens that are not in the prefix cache."""
    token: float = 0.0005
    """From one output token of a request to the next."""
    stream_interval: int = 32
    """Output tokens in one chunk of a stream, as ``--stream-interval`` sets it."""
    eos_after: int | None = None
    """Without ignore_eos a request ends after so many tokens; None: at max_tokens."""
    block: int = 16
    """Tokens in a block of the prefix cache."""
    kv_tokens: int = 1_000_000
    """Size of the prefix cache of one engine, in tokens."""
    follower_death: str = "hang"
    """What a dead follower does to the head: "hang" (healthy, but nothing is answered: what vLLM does),
    "ignore", "health" (it becomes unhealthy), "exit"."""
    engine_process: bool = True
    """A child process that outlives a killed server, as vLLM's EngineCore does."""
    shutdown_seconds: float = 0.0
    """From SIGTERM to the end of the process."""
    score: Any = 0.95
    """lm_eval's result: a number for all metrics, or {task: number} or {task: {metric: number}}."""
    eval_samples: int = 8
    """Documents in an lm_eval task."""
    router: str = "auto"
    """``vllm-router``: "auto" is the installed one, else a simulated one; "simulated"."""
    extra_log: str = ""
    """Lines for the server's log while it loads."""


def load(folder: Path, model: str = "", rank: int = 0, env: Mapping[str, str] | None = None) -> Sim:
    """The settings of one process.

    ``sim.json`` of the state folder has fields of Sim, and ``models: {pattern: fields}``,
    ``ranks: {"1": fields}``. ValueError names an unknown field.
    """
    path = folder / "sim.json"
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    models, ranks = data.pop("models", {}), data.pop("ranks", {})
    for pattern, values in models.items():
        if fnmatch.fnmatchcase(model, pattern):
            data.update(values)
    data.update(ranks.get(str(rank), {}))
    known = {item.name: item for item in fields(Sim)}
    for name, value in (os.environ if env is None else env).items():
        field = name.removeprefix(PREFIX).lower()
        if name.startswith(PREFIX):
            data[field] = _value(value)
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"unknown sim settings {unknown}; known: {sorted(known)}, and models, ranks")
    return Sim(**data)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
