"""``srun``: a step of a job, or an allocation of its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from .. import hostlist, procs
from . import environment, formats, pyxis, resources, sbatch, tables
from .command import Command
from .frontend import Frontend
from .getopt import Parsed
from .keeper import detach
from .model import Job, Step
from .stepd import Request, StepKeeper
from .store import Store

__all__ = ["main"]

_USAGE = 255


def main(store: Store, argv: list[str]) -> int:
    """Run a command on the nodes of a job."""
    command = Command("srun", store)
    parsed = command.parse(tables.SRUN, argv, usage=_USAGE, permute=False, extra=sbatch.options_of(command))
    _check(command, parsed)
    number = parsed.get("jobid") or os.environ.get("SLURM_JOB_ID")
    if number is None:
        command.reach_controller("srun: error: Unable to allocate resources: ")
        return _own_allocation(command, parsed)
    if not number.isdigit() or not int(number):
        command.fail(f'Invalid numeric value "{number}" for --jobid.')
    job = _confirm(command, int(number))
    return _step(command, job, parsed)


def _check(command: Command, parsed: Parsed) -> None:
    """What srun refuses before it asks the controller."""
    mpi = parsed.get("mpi")
    if mpi is not None and mpi not in command.store.spec.mpi:
        for text in (
            f"Couldn't find the specified plugin name for mpi/{mpi} looking at all files",
            f"cannot find mpi plugin for mpi/{mpi}",
            f"MPI: Cannot create context for mpi/{mpi}",
            "MPI: Unable to load any plugin",
        ):
            sys.stderr.write(f"srun: error: {text}\n")
        command.fail(f"Invalid MPI type '{mpi}', --mpi=list for acceptable types")
    command.refuse(parsed, "multi-prog", "het-group", "dependency")
    try:
        formats.parse_minutes(parsed.get("time") or "1")
    except ValueError:
        command.fail("Invalid --time specification", _USAGE)
    try:
        formats.parse_count(parsed.get("nodes") or "1")
    except ValueError as err:
        command.fail(str(err), _USAGE)
    for key in ("ntasks", "ntasks-per-node", "cpus-per-task"):
        value = parsed.get(key)
        if value is not None and not (value.isdigit() and int(value)):
            command.fail(f'Invalid numeric value "{value}" for --{key}.')
    if "overlap" in parsed and "exclusive" in parsed:
        command.fail("--exclusive and --overlap are mutually exclusive")
    sbatch.check_container(command, parsed)
    if not parsed.rest:
        command.fail("No command given to execute.", prefix="srun: fatal: ")
    program = parsed.rest[0]
    if command.store.spec.test_exec and program.startswith("/") and not os.access(program, os.X_OK):
        command.fail(f"Can not execute {program}", prefix="srun: fatal: ")


def _confirm(command: Command, number: int) -> Job:
    lead = f"Unable to confirm allocation for job {number}"
    hint = f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {number}"
    command.reach_controller(f"srun: error: {lead}: ", f"\n{hint}")
    job = command.store.job(number)
    if job is None:
        command.fail(f"{lead}: Invalid job id specified\n{hint}")
    if job.state == "PENDING":
        command.fail(f"{lead}: Job is pending execution\n{hint}")
    if job.state != "RUNNING":
        command.fail(f"Slurm job {number} has expired\n{hint}")
    return job


# -- an allocation of its own --------------------------------------------------------------------------------


def _own_allocation(command: Command, parsed: Parsed) -> int:
    """Queue, wait, run, give back."""
    store = command.store
    job = sbatch.request(command, parsed, batch=False)
    job.owner, job.owner_start = os.getpid(), procs.start_time(os.getpid()) or ""
    sbatch.enter(command, job, "", {})
    if job.state == "FAILED":
        command.fail("Unable to allocate resources: Requested node configuration is not available")
    sbatch.keep(store, job)
    told = False
    deadline = time.monotonic() + float(parsed.get("immediate") or 1) if "immediate" in parsed else None
    try:
        while (now := store.job(job.id)) is not None and now.state == "PENDING":
            if deadline is not None and time.monotonic() > deadline:
                words = "Requested partition configuration not available now"
                command.fail(f"Unable to allocate resources: {words}")
            if not told:
                told = True
                sys.stderr.write(f"srun: job {job.id} queued and waiting for resources\n")
            time.sleep(store.spec.poll)
        if now is None or now.state != "RUNNING":
            command.fail(f"Job allocation {job.id} has been revoked.")
        if told:
            sys.stderr.write(f"srun: job {job.id} has been allocated resources\n")
        return _step(command, now, parsed)
    finally:
        with store.lock():
            last = store.job(job.id)
            if last is not None and not last.ended and not last.order:
                last.order = "release" if last.state == "RUNNING" else "cancel"
                store.put(last)


# -- a step --------------------------------------------------------------------------------------------------


def _step(command: Command, job: Job, parsed: Parsed) -> int:
    nodes = _nodes(command, job, parsed)
    _resources(command, job, parsed)
    placed = _place(nodes, parsed)
    step = _create(command, job, parsed, nodes)
    request = Request(
        argv=parsed.rest,
        env=environment.export(
            parsed.get("export") or os.environ.get("SLURM_EXPORT_ENV"), os.environ, step=True
        ),
        cwd=parsed.get("chdir") or os.getcwd(),
        placed=placed,
        outputs=_files(command, job, step, parsed, "output", placed),
        errors=[],
        container=pyxis.read({**job.container, **parsed.values}),
        options=_gpu_counts(parsed),
    )
    request.errors = (
        _files(command, job, step, parsed, "error", placed) if "error" in parsed else request.outputs
    )
    if "time" in parsed:
        request.seconds = formats.parse_minutes(parsed.values["time"]) * command.store.spec.minute
    mode = parsed.get("input") or "all"
    if mode.isdigit():
        request.feed = {int(mode)}
    elif mode != "none":
        request.feed = set(range(len(placed)))
        if mode != "all":
            _read_from(command, mode)
    ours, theirs = socket.socketpair()
    files = {handle for handle in (*request.outputs, *request.errors) if handle is not None}
    if detach(command.store, f"keeper of step {job.id}.{step.id}", {theirs.fileno(), *files}):
        code = 0
        try:
            StepKeeper(command.store, job, step, request, theirs).run()
        except BaseException as err:  # nobody else would ever see it
            code = 1
            spool = command.store.folder / "spool" / str(job.id)
            (spool / f"step-{step.id}-error").write_text(f"{type(err).__name__}: {err}\n")
        finally:
            os._exit(code)
    theirs.close()
    _shepherd(command.store, step)
    return Frontend(step, placed, parsed, ours).run(feed=bool(request.feed))


def _read_from(command: Command, name: str) -> None:
    """``--input=FILE``: as if the file were srun's standard input."""
    try:
        handle = os.open(name, os.O_RDONLY)
    except OSError as err:
        command.fail(f"Could not open stdin file: {err.strerror}")
    os.dup2(handle, 0)
    os.close(handle)


def _gpu_counts(parsed: Parsed) -> dict[str, str]:
    """srun's options with GPUs as plain counts: ``gres`` is ``none`` where a step is to have none."""
    found = dict(parsed.values)
    for key in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
        value = found.pop(key, None)
        if value is None:
            continue
        wanted = formats.parse_gres(value if key == "gres" else f"gpu:{value}")
        count = sum(number for name, number in wanted.items() if name.split(":")[0] == "gpu")
        if count or value == "none":
            found[key] = str(count) if count else "none"
    return found


def _shepherd(store: Store, step: Step) -> None:
    """Fork the child that cancels the step when srun alone is killed; a KILL of the group takes it too."""
    watched, held = os.pipe()
    if os.fork():
        os.close(watched)
        os.set_inheritable(held, False)
        return
    os.closerange(0, watched)
    os.closerange(watched + 1, 1024)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.read(watched, 1)  # comes back when srun has ended
    keepers = [now.keeper for now in store.steps(step.job) if now.id == step.id]
    procs.send(keepers, signal.SIGUSR1)
    os._exit(0)


def _nodes(command: Command, job: Job, parsed: Parsed) -> list[str]:
    """The nodes of the step: those asked for, else those with the fewest steps on them."""
    asked = parsed.get("nodes")
    tasks = int(parsed.get("ntasks") or 0)
    low, high = formats.parse_count(asked) if asked else (0, 0)
    if low > len(job.nodes):
        command.fail(f"Only allocated {len(job.nodes)} nodes asked for {low}")
    count = min(high, len(job.nodes))
    if not count:
        each = int(parsed.get("ntasks-per-node") or 1)
        count = min(len(job.nodes), -(-tasks // each)) if tasks else len(job.nodes)
    try:
        wanted = hostlist.expand(parsed.get("nodelist") or "")
    except ValueError:
        wanted = ["?"]
    skipped = hostlist.expand(parsed.get("exclude") or "")
    if any(name not in job.nodes for name in wanted):
        command.fail(f"Unable to create step for job {job.id}: Requested node configuration is not available")
    if wanted and (not asked or len(wanted) > count):
        count = len(wanted)
    busy = dict.fromkeys(job.nodes, 0)
    for step in command.store.steps(job.id):
        for name in step.nodes:
            busy[name] = busy.get(name, 0) + 1
    start = int(parsed.get("relative") or 0)
    order = [name for name in job.nodes[start:] if name not in wanted and name not in skipped]
    chosen = [*wanted, *sorted(order, key=busy.__getitem__)][:count]
    return [name for name in job.nodes if name in chosen]


def _resources(command: Command, job: Job, parsed: Parsed) -> None:
    """A step cannot have more of a resource than its job has."""
    if int(parsed.get("cpus-per-task") or 1) > resources.cpus_on_node(command.store.spec, job):
        command.fail(f"Unable to create step for job {job.id}: More processors requested than permitted")
    for option, prefix in (("gres", ""), ("gpus-per-node", "gpu:")):
        value = parsed.get(option)
        if value is None:
            continue
        try:
            wanted = formats.parse_gres(prefix + value)
        except ValueError:
            command.fail("Invalid generic resource (gres) specification")
        for key, count in wanted.items():
            kind = key.split(":")[0]
            has = sum(number for name, number in job.gres.items() if name.split(":")[0] == kind)
            if count > has:
                if has:
                    asked = f"Step requested gres_per_node={kind}:{count} is more than"
                    sys.stderr.write(f"srun: error: {asked} the job's gres_per_node={kind}:{has}\n")
                command.fail(
                    f"Unable to create step for job {job.id}: Invalid generic resource (gres) specification"
                )


def _place(nodes: list[str], parsed: Parsed) -> list[str]:
    """The node of each rank, in blocks."""
    each = int(parsed.get("ntasks-per-node") or 0)
    tasks = int(parsed.get("ntasks") or len(nodes) * max(1, each))
    share, more = divmod(tasks, len(nodes))
    return [node for at, node in enumerate(nodes) for _ in range(share + (at < more))]


def _create(command: Command, job: Job, parsed: Parsed, nodes: list[str]) -> Step:
    """Enter the step, when no other step holds its nodes; without --overlap a step holds all of a node."""
    store = command.store
    shares = "overlap" in parsed or "exact" in parsed
    deadline = None
    if "immediate" in parsed:
        deadline = time.monotonic() + float(parsed.get("immediate") or 1)
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: stopped.append(got))
    told = False
    while True:
        with store.lock():
            now = store.job(job.id)
            if now is None or now.state != "RUNNING" or now.order:
                command.fail(
                    f"Unable to create step for job {job.id}: Job/step already completing or completed"
                )
            held = {name for step in store.steps(job.id) if not step.overlap for name in step.nodes}
            if shares or not held.intersection(nodes):
                name = parsed.get("job-name") or Path(parsed.rest[0]).name
                step = Step(job.id, now.next_step, name, nodes, shares, start=time.time())
                # Until its keeper writes itself down, the step counts as this srun's.
                step.keeper, step.keeper_start = os.getpid(), procs.start_time(os.getpid()) or ""
                now.next_step += 1
                store.put(now)
                store.put_step(step)
                break
        if deadline is not None and time.monotonic() > deadline:
            command.fail(f"Unable to create step for job {job.id}: Requested nodes are busy")
        if not told:
            told = True
            text = "step creation temporarily disabled, retrying (Requested nodes are busy)"
            sys.stderr.write(f"srun: Job {job.id} {text}\n")
            sys.stderr.flush()
        time.sleep(store.spec.poll)
        if stopped:
            sys.stderr.write(f"srun: Cancelled pending job step with signal {stopped[0]}\n")
            command.fail(f"Unable to create step for job {job.id}: Job/step already completing or completed")
    if told:
        sys.stderr.write(f"srun: Step created for job {job.id}\n")
    return step


def _files(
    command: Command, job: Job, step: Step, parsed: Parsed, key: str, placed: list[str]
) -> list[int | None]:
    """The open file of each rank; ranks of one name share one."""
    name = parsed.get(key)
    if name is None or name == "all":
        return [None] * len(placed)
    if name == "none":
        name = os.devnull
    fresh = os.O_APPEND if parsed.get("open-mode") == "append" else os.O_TRUNC
    handles: dict[str, int] = {}
    found: list[int | None] = []
    for rank, node in enumerate(placed):
        values = {
            **environment.pattern(job),
            "J": f"{job.id}.{step.id}",
            "s": str(step.id),
            "t": str(rank),
            "n": str(step.nodes.index(node)),
            "N": node,
        }
        path = os.path.join(parsed.get("chdir") or os.getcwd(), formats.fill_pattern(name, values))
        if path not in handles:
            try:
                handles[path] = os.open(path, os.O_WRONLY | os.O_CREAT | fresh | os.O_APPEND, 0o644)
            except OSError as err:
                command.store.drop_step(job.id, step.id)
                kind = "stdout" if key == "output" else "stderr"
                command.fail(f"Could not open {kind} file: {err.strerror}")
        found.append(handles[path])
    return found
