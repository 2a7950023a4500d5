"""The environment that Slurm's commands, and through ``sbatch`` the job, are given.

A run may itself stand inside an allocation, a pod or a CI agent. What they leave in the environment
must not decide what our job asks for, nor reach the server (Slurm exports the whole environment of
``sbatch`` to the job).
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["clean_env"]

# Inherited ones would add options to our commands or filter their answers: an outer SLURM_MEM_PER_CPU
# clashes with the request, SQUEUE_STATES hides jobs, SCANCEL_STATE spares pending ones.
_DROPPED_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SCANCEL_",
    "SACCT_",
    "SCONTROL_",
    "SINFO_",
    "PMI_",
    "PMIX_",
    # A Kubernetes service called vllm leaves VLLM_PORT=tcp://...; the recipe alone configures vLLM.
    "VLLM_",
)
# These choose which cluster the commands talk to and how they prove who asks, nothing of the job.
_KEPT = frozenset(
    {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS", "SLURM_CONF_SERVER"}
)
_DROPPED = frozenset(
    {
        # The host's libraries and modules, in front of the container's own.
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "PYTHONPATH",
        "PYTHONHOME",
        # The outer allocation's GPUs; Slurm sets the new job's.
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
        # Only the controlling process talks to the dashboard.
        "INGEST_BEARER_TOKEN",
    }
)


# Processes on this host run with its libraries, on the GPUs that the caller left visible.
_DROPPED_LOCALLY = frozenset({"INGEST_BEARER_TOKEN"})


def clean_env(
    base: Mapping[str, str], extra: Mapping[str, str] | None = None, *, local: bool = False
) -> dict[str, str]:
    """``base`` without what must not be inherited, then ``extra``, which the workload named, as it is.

    ``local``: for processes on this very host, which keep its libraries and visible GPUs.
    """
    dropped = _DROPPED_LOCALLY if local else _DROPPED
    kept = {
        name: value
        for name, value in base.items()
        if name in _KEPT or not (name in dropped or name.startswith(_DROPPED_PREFIXES))
    }
    kept.update(extra or {})
    return kept
