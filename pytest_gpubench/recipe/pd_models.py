"""perf-eval's ``serving:`` block as it is written: prefill and decode on workers of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pytest_gpubench.recipe.fields import Count, EnvName, EnvValue, Flag, Length, Size, Text, Texts, YamlModel
from pytest_gpubench.recipe.slurm_forms import time_seconds
from pytest_gpubench.recipe.yaml import written

__all__ = ["MountModel", "PdRole", "PdRouter", "ServingModel"]


def _time(value: object) -> object:
    text = written(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError("expected a Slurm time such as 03:00:00")
    time_seconds(text)
    return text.strip()


class MountModel(YamlModel):
    """One mount; the variable ``source_env`` of the caller, where it is set, wins over ``source``."""

    source: Text | None = None
    source_env: EnvName | None = None
    target: Text
    read_only: Flag = False

    @model_validator(mode="after")
    def _has_source(self) -> MountModel:
        if self.source is None and self.source_env is None:
            raise ValueError("expected source, source_env or both")
        return self


class PdContainer(YamlModel):
    """The container of every process."""

    runtime: Literal["pyxis"] = "pyxis"
    mounts: tuple[MountModel, ...] = Field(default=(), strict=False)


class PdSlurm(YamlModel):
    """What the block asks of Slurm; the profile's settings stay where it says nothing."""

    partition: Text | None = None
    time_limit: Annotated[str, BeforeValidator(_time)] | None = None
    grace_period_s: Length | None = None
    container: PdContainer = Field(default_factory=PdContainer)


class HealthCheck(YamlModel):
    """How long to wait. Path and pause are the launcher's own here."""

    path: Text | None = None
    timeout_s: Count | None = None
    poll_interval_s: Count | None = None


class PdRole(YamlModel):
    """``count`` workers, each on ``nodes_per_instance`` nodes with all their GPUs."""

    role: Literal["prefill", "decode"]
    count: Size = 1
    nodes_per_instance: Size = 1
    gpus_per_node: Size
    tensor_parallel_size: Size = 1
    base_port: Count | None = None
    kv_role: Text | None = None
    serve_args: Text | None = None
    env: dict[EnvName, EnvValue] | None = None
    health_check: HealthCheck = HealthCheck()


class PdRouter(YamlModel):
    """The router. Ports and hosts belong to the job here, and the router comes with the image."""

    repo_path: Text | None = None
    revision: Text | None = None
    command: Texts = ()
    policy: Text | None = None
    listen_host: Text | None = None
    client_host: Text | None = None
    port: Count | None = None
    metrics_port: Count | None = None
    nofile_limit: Count | None = None
    intra_node_data_parallel_size: Size = 1
    prefill_endpoints: Literal["all_instances", "all_nodes"] = "all_instances"
    decode_endpoints: Literal["all_instances", "all_nodes"] = "all_instances"
    env: dict[EnvName, EnvValue] | None = None
    health_check: HealthCheck = HealthCheck()


class ServingModel(YamlModel):
    """The whole block."""

    version: Literal[1] = 1
    mode: Literal["pd_disagg"]
    launcher: Literal["slurm"] = "slurm"
    common_serve_args: Text | None = None
    slurm: PdSlurm = PdSlurm()
    kv_transfer: dict[str, Any] = Field(default_factory=lambda: {"connector": "NixlConnector"})
    roles: tuple[PdRole, ...] = Field(strict=False)
    router: PdRouter = PdRouter()

    @model_validator(mode="after")
    def _one_of_each(self) -> ServingModel:
        names = sorted(role.role for role in self.roles)
        if names != ["decode", "prefill"]:
            raise ValueError(f"roles: expected one prefill and one decode (got {', '.join(names) or 'none'})")
        return self
