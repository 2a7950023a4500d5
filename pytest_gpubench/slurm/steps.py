"""The ``srun`` command line of a step inside an allocation that already exists. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpubench.slurm.types import JobId

__all__ = ["step_argv"]


def step_argv(
    job: JobId,
    *,
    nodes: Sequence[str],
    command: Sequence[str],
    extra: Sequence[str] = (),
    overlap: bool = True,
    output: str | None = None,
) -> list[str]:
    """One task per node of ``nodes``, in job ``job``; ``extra`` are further srun options.

    The job is named, so that an outer allocation's SLURM_JOB_ID cannot win. ``--overlap``: the ranks
    hold the nodes' GPUs and CPUs, without it the step waits for ever. Options are written ``--k=v``,
    since Slurm 25.11 takes the separate value of an option for the command.
    """
    if not nodes or not command:
        raise ValueError(f"a step needs nodes and a command, got nodes={nodes!r} command={command!r}")
    argv = ["srun", f"--jobid={job.number}"]
    if job.cluster is not None:
        argv.append(f"--clusters={job.cluster}")
    if overlap:
        argv.append("--overlap")
    argv += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    if len(nodes) > 1:
        # One failed task ends the step; an exit of 0 does not, so the caller still watches every rank.
        argv += ["--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    if output is not None:
        argv.append(f"--output={output}")
    return [*argv, *extra, *command]
