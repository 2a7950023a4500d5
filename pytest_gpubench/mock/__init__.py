"""A mocked Slurm and a simulated vLLM, for tests of the plugin, of recipes and of overridden fixtures.

The mock is a folder of real executables (``sbatch srun squeue sacct scontrol scancel sinfo``, ``vllm``,
``lm_eval``) for the front of PATH, so that exactly the code of the real path runs. Jobs are real local
processes. Nothing here needs a GPU, a network, or a daemon.

>>> from pytest_gpubench.mock import MockCluster, ServerExits        # doctest: +SKIP
>>> with MockCluster(tmp_path / "cluster", faults=[ServerExits(rank=1, code=1)]) as cluster:
...     run_my_launcher(env=cluster.env())
...     assert cluster.jobs()[0].state == "CANCELLED"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import Call, MockCluster
    from .faults import (
        CancelledExternally,
        ClientExits,
        ClientHangs,
        ContainerLocked,
        ControllerDown,
        ControllerHangs,
        DiskFull,
        EngineDeadButHealthy,
        Fault,
        ForeignServer,
        ImportFails,
        ImportSlow,
        LoadHangs,
        LogNoise,
        NeverHealthy,
        NodeFails,
        OutOfMemory,
        PortTaken,
        Preempted,
        RequestFailures,
        Requeued,
        ResultLate,
        ResultMissing,
        SbatchAnswers,
        SbatchHangsButQueues,
        SbatchRefuses,
        ServerExits,
        SlowQueue,
        SqueueTimesOut,
        StuckCompleting,
        TimeLimit,
    )
    from .slurm.model import Job, Partition

__all__ = [
    "Call",
    "CancelledExternally",
    "ClientExits",
    "ClientHangs",
    "ContainerLocked",
    "ControllerDown",
    "ControllerHangs",
    "DiskFull",
    "EngineDeadButHealthy",
    "Fault",
    "ForeignServer",
    "ImportFails",
    "ImportSlow",
    "Job",
    "LoadHangs",
    "LogNoise",
    "MockCluster",
    "NeverHealthy",
    "NodeFails",
    "OutOfMemory",
    "Partition",
    "PortTaken",
    "Preempted",
    "RequestFailures",
    "Requeued",
    "ResultLate",
    "ResultMissing",
    "SbatchAnswers",
    "SbatchHangsButQueues",
    "SbatchRefuses",
    "ServerExits",
    "SlowQueue",
    "SqueueTimesOut",
    "StuckCompleting",
    "TimeLimit",
]

_HOME = {"Call": "cluster", "MockCluster": "cluster", "Job": "slurm.model", "Partition": "slurm.model"}


def __getattr__(name: str) -> Any:
    # Late, so that a plugin that only offers --mock-slurm does not pay for it at start-up.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'faults')}", __name__), name)
