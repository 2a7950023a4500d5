"""One entry of InferenceX's generated matrix, and the names that are derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_gpubench.recipe.inferencex.parts import Component, OffloadBackend, Worker

__all__ = ["GeneratedEntry", "lengths_tag", "worker_block"]

_TAGS = {(1024, 1024): "1k1k", (8192, 1024): "8k1k"}


def lengths_tag(isl: int, osl: int, joint: str) -> str:
    """``1k1k`` and ``8k1k`` where these names exist, else the two numbers around ``joint``."""
    return _TAGS.get((isl, osl), f"{isl}{joint}{osl}")


def worker_block(worker: Worker) -> dict[str, Any]:
    """A worker under InferenceX's own keys, sizes complete, as its generator emits it."""
    block = worker.model_dump(by_alias=True, exclude_none=True)
    return {key: block[key] for key in ("num-worker", *(key for key in block if key != "num-worker"))}


@dataclass(frozen=True)
class GeneratedEntry:
    """What the generator emits: one concurrency (single-node) or several (multi-node) of a topology.

    ``source`` says where it is written: scenario type, index of the scenario, index in its search space.
    """

    source: tuple[str, int, int]
    image: str
    model: str
    model_prefix: str
    precision: str
    framework: str
    runner: str
    scenario_type: str
    exp_name: str
    conc: int | tuple[int, ...]
    disagg: bool = False
    spec_decoding: str = "none"
    router: Component | None = None
    kv_p2p_transfer: str | None = None
    srt_recipe: str | None = None
    isl: int | None = None
    osl: int | None = None
    max_model_len: int | None = None
    tp: int | None = None
    pp: int = 1
    dcp_size: int = 1
    pcp_size: int = 1
    ep: int = 1
    dp_attn: bool = False
    prefill: Worker | None = None
    decode: Worker | None = None
    num_nodes: int | None = None
    kv_offloading: str | None = None
    kv_offload_backend: OffloadBackend | None = None
    offloading: str | None = None
    total_cpu_dram_gb: int | None = None
    duration: int | None = None
    eval_conc: int | None = None

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """The concurrencies, whichever form ``conc`` has."""
        return (self.conc,) if isinstance(self.conc, int) else self.conc

    def as_dict(self) -> dict[str, Any]:
        """The entry under the generator's own keys; what does not apply is left out."""
        found: dict[str, Any] = {
            "image": self.image,
            "model": self.model,
            "model-prefix": self.model_prefix,
            "precision": self.precision,
            "framework": self.framework,
            "runner": self.runner,
            "scenario-type": self.scenario_type,
            "spec-decoding": self.spec_decoding,
            "exp-name": self.exp_name,
            "disagg": self.disagg,
            "conc": self.conc if isinstance(self.conc, int) else list(self.conc),
        }
        if self.tp is not None:
            found |= {"tp": self.tp, "pp": self.pp, "dcp-size": self.dcp_size, "pcp-size": self.pcp_size}
            found |= {"ep": self.ep, "dp-attn": self.dp_attn}
        if self.prefill is not None and self.decode is not None:
            found |= {"prefill": worker_block(self.prefill), "decode": worker_block(self.decode)}
        for key in ("router", "kv-offload-backend"):
            part = getattr(self, key.replace("-", "_"))
            if part is not None:
                found[key] = part.model_dump(by_alias=True, exclude_none=True)
        for key in (
            "isl",
            "osl",
            "max-model-len",
            "kv-p2p-transfer",
            "srt-recipe",
            "kv-offloading",
            "offloading",
            "total-cpu-dram-gb",
            "duration",
            "num-nodes",
            "eval-conc",
        ):
            value = getattr(self, key.replace("-", "_"))
            if value is not None:
                found[key] = value
        return found
