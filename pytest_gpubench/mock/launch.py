"""The program behind every file of the mock's ``bin`` folder: ``launch.py COMMAND ARGUMENTS``.

It is started with ``python -I -S`` (no site packages: a command is up in some 30 ms), so it finds its package
itself.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command that the first argument names; its exit status."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if here not in sys.path:
        sys.path.insert(0, here)
    name, argv = sys.argv[1], sys.argv[2:]
    from pytest_gpubench.mock.slurm.store import Store

    store = Store.from_env()
    store.log_call([name, *argv])
    if name == "vllm":
        return _run("vllm.main", "main", store.folder, argv)
    if name == "vllm-router":
        return _run("vllm.router", "main", store.folder, argv)
    if name == "lm_eval":
        return _run("vllm.lm_eval", "main", store.folder, argv)
    module, function = {"sacct": ("sinfo", "sacct"), "sinfo": ("sinfo", "sinfo")}.get(name, (name, "main"))
    return _run(f"slurm.{module}", function, store, argv)


def _run(module: str, function: str, where: object, argv: list[str]) -> int:
    """Import only the module of the command: a poll of squeue should cost little."""
    from importlib import import_module

    status: int = getattr(import_module(f"pytest_gpubench.mock.{module}"), function)(where, argv)
    return status


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
