"""The parts of an InferenceX search space: workers, concurrencies, points of each kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytest_gpubench.recipe.fields import Flag, Text

__all__ = [
    "AgenticPoint",
    "Component",
    "Loads",
    "Model",
    "MultiNodePoint",
    "OffloadBackend",
    "Positive",
    "RoleWorker",
    "RolesHardware",
    "SingleNodePoint",
    "Worker",
    "kebab",
]

Positive = Annotated[int, Field(gt=0)]
SpecDecoding = Literal["mtp", "draft_model", "none"]


def kebab(name: str) -> str:
    """The key that a field is written as: ``dp_attn`` -> ``dp-attn``."""
    return name.replace("_", "-")


class Model(BaseModel):
    """Strict types, unknown keys refused, keys in InferenceX's kebab case."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=kebab, protected_namespaces=()
    )


class Component(Model):
    """A named, versioned part of the serving stack, such as the router."""

    name: Text
    version: Text


class RolesHardware(Model):
    """The GPU models of unequal pools, in an earlier revision for the whole entry."""

    prefill: Text
    decode: Text


class OffloadBackend(Model):
    """Where KV blocks are offloaded to; the version is optional."""

    name: Text
    version: Text | None = None


class Worker(Model):
    """One kind of worker: ``num_worker`` servers of the same sizes. 0 decode workers means aggregated."""

    num_worker: int = 1
    tp: int
    ep: int
    dp_attn: Flag
    pp: Positive = 1
    dcp_size: Positive = 1
    pcp_size: Positive = 1
    hardware: Text | None = None
    additional_settings: list[str] | None = None

    @model_validator(mode="after")
    def _context_parallel(self) -> Worker:
        _check_dcp(self.tp, self.dcp_size)
        return self


class RoleWorker(Worker):
    """A prefill or decode worker: here the count must be written."""

    num_worker: int


class Loads(Model):
    """The concurrencies of one search-space entry: a doubling range or a list, never both."""

    spec_decoding: SpecDecoding = "none"
    router: Component | None = None
    kv_p2p_transfer: Text | None = None
    conc_start: int | None = None
    conc_end: int | None = None
    conc_list: list[int] | None = None
    srt_recipe: Text | None = None  # srt-slurm's own recipe decides how this point is served

    @model_validator(mode="after")
    def _concurrencies(self) -> Loads:
        start, end = self.conc_start, self.conc_end
        if self.conc_list and start is not None and end is not None:
            raise ValueError("conc-list and conc-start/conc-end exclude each other: write one of them")
        if not self.conc_list and (start is None or end is None):
            raise ValueError("concurrencies are missing: write conc-list, or both conc-start and conc-end")
        if self.conc_list and min(self.conc_list) <= 0:
            raise ValueError(f"conc-list must hold numbers above 0 (got {min(self.conc_list)})")
        if start is not None and end is not None and start > end:
            raise ValueError(f"conc-start ({start}) must not be above conc-end ({end})")
        return self


class SingleNodePoint(Loads):
    """A fixed-length search-space entry on one node."""

    tp: int
    ep: int | None = None
    dp_attn: Flag | None = None
    pp: Positive = 1
    dcp_size: Positive = 1
    pcp_size: Positive = 1

    @model_validator(mode="after")
    def _context_parallel(self) -> SingleNodePoint:
        _check_dcp(self.tp, self.dcp_size)
        if self.kv_p2p_transfer is not None:
            raise ValueError("kv-p2p-transfer belongs to entries with multinode: true")
        return self


class MultiNodePoint(Loads):
    """A fixed-length search-space entry over several nodes: prefill and decode, or one worker."""

    prefill: RoleWorker | None = None
    decode: RoleWorker | None = None
    worker: Worker | None = None
    num_nodes: Positive | None = None

    @model_validator(mode="after")
    def _roles(self) -> MultiNodePoint:
        _check_roles(self.prefill, self.decode, self.worker)
        return self


class AgenticPoint(Loads):
    """An agentic search-space entry: sizes of one node, or workers, and where KV blocks are offloaded."""

    tp: int | None = None
    ep: int | None = None
    dp_attn: Flag | None = None
    pp: Positive | None = None
    dcp_size: Positive | None = None
    pcp_size: Positive | None = None
    prefill: RoleWorker | None = None
    decode: RoleWorker | None = None
    worker: Worker | None = None
    num_nodes: Positive | None = None
    kv_offloading: Literal["none", "dram"] | None = None
    kv_offload_backend: OffloadBackend | None = None
    offloading: Literal["none", "cpu"] | None = None  # the earlier schema's name of kv-offloading

    @property
    def multi_node(self) -> bool:
        """True when workers are written instead of the sizes of one server."""
        return self.tp is None

    @model_validator(mode="after")
    def _topology(self) -> AgenticPoint:
        workers = (self.prefill, self.decode, self.worker)
        if self.tp is not None and any(workers):
            raise ValueError("tp and prefill/decode exclude each other: write one topology")
        if self.tp is None:
            _check_roles(*workers)
            for name in ("ep", "dp_attn", "pp", "dcp_size", "pcp_size"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{kebab(name)} belongs inside prefill and decode here")
        else:
            _check_dcp(self.tp, self.dcp_size or 1)
            if self.kv_offloading is None and self.offloading is None:
                raise ValueError("kv-offloading is required beside tp (none or dram)")
        return self

    @model_validator(mode="after")
    def _offload(self) -> AgenticPoint:
        if self.offloading is not None and (self.kv_offloading or self.kv_offload_backend):
            raise ValueError("offloading is the earlier name of kv-offloading: write one of them")
        if self.kv_offloading == "dram" and self.kv_offload_backend is None:
            raise ValueError("kv-offload-backend is required with kv-offloading: dram")
        if self.kv_offloading != "dram" and self.kv_offload_backend is not None:
            raise ValueError("kv-offload-backend needs kv-offloading: dram")
        return self


def _check_dcp(tp: int, dcp: int) -> None:
    if tp % dcp:
        raise ValueError(f"tp ({tp}) must be divisible by dcp-size ({dcp})")


def _check_roles(prefill: Worker | None, decode: Worker | None, worker: Worker | None) -> None:
    if worker is not None:
        if prefill is not None or decode is not None:
            raise ValueError("worker and prefill/decode exclude each other: write one topology")
        return
    if prefill is None or decode is None:
        raise ValueError("both prefill and decode are required (decode with num-worker: 0 if aggregated)")
    if (prefill.hardware is None) != (decode.hardware is None):
        raise ValueError("hardware must be written for both prefill and decode, or for neither")
