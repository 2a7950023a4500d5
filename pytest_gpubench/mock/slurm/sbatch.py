"""``sbatch``."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

from .. import hostlist
from ..faults import FaultBox, SbatchAnswers, SbatchHangsButQueues, SbatchRefuses
from . import directives, environment, formats, pyxis, schedule, tables
from .command import TIMED_OUT, Command, uid, user
from .getopt import Arg, Parsed
from .keeper import Keeper, detach
from .model import Job
from .resources import gpu_numbers
from .store import Store, write_json

__all__ = ["enter", "keep", "main", "options_of", "request"]

_USAGE = 255


def options_of(command: Command) -> dict[str, Arg]:
    """Options beyond the table: Pyxis's where the cluster has it, and those of newer versions."""
    spec = command.store.spec
    extra = dict(tables.PYXIS) if spec.pyxis else {}
    extra.update({name: arg for name, (since, arg) in tables.NEWER.items() if spec.numbers >= since})
    return extra


def main(store: Store, argv: list[str]) -> int:
    """Submit a batch job."""
    command = Command("sbatch", store)
    given = command.parse(tables.SBATCH, argv, usage=_USAGE, permute=False, extra=options_of(command))
    script, arguments = _script(command, given)
    parsed = given
    if "wrap" not in given:
        words = directives.read(command, script, given.rest[0] if given.rest else "stdin")
        inside = command.parse(tables.SBATCH, words, usage=_USAGE, extra=options_of(command))
        parsed = Parsed({**inside.values, **_from_environment(given), **given.values}, given.rest)
    command.refuse(parsed, "array", "dependency")
    job = request(command, parsed, batch=True)
    job.command = " ".join([os.path.abspath(given.rest[0]), *arguments]) if given.rest else "(null)"
    job.argv = arguments
    if "test-only" in parsed:
        print(f"sbatch: Job {job.id} to start at {formats.clock(time.time())}", file=sys.stderr)
        return 0
    return _submit(command, job, script, parsed)


def _from_environment(given: Parsed) -> dict[str, str]:
    """SBATCH_* variables: they win over the script's lines and lose to the command line."""
    found = {}
    for name, value in os.environ.items():
        if name.startswith("SBATCH_"):
            key = name.removeprefix("SBATCH_").lower().replace("_", "-")
            key = {"timelimit": "time", "job-name": "job-name"}.get(key, key)
            if key not in given.values:
                found[key] = value
    return found


def _script(command: Command, given: Parsed) -> tuple[str, list[str]]:
    wrapped = given.get("wrap")
    if wrapped is not None:
        if given.rest:
            command.fail("Script arguments not permitted with --wrap option")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped}\n", []
    if given.rest:
        try:
            text = Path(given.rest[0]).read_text(errors="surrogateescape")
        except OSError:
            command.fail(f"Unable to open file {given.rest[0]}")
    else:
        text = sys.stdin.read()
    if not text.strip():
        command.fail("Batch script is empty!")
    if not text.startswith("#!"):
        sys.stderr.write("sbatch: error: This does not look like a batch script.  The first\n")
        sys.stderr.write("sbatch: error: line must start with #! followed by the path to an interpreter.\n")
        command.fail("For instance: #!/bin/sh")
    if "\r\n" in text:
        sys.stderr.write("sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n")
        command.fail("instead of expected UNIX line breaks (\\n).")
    return text, given.rest[1:]


def request(command: Command, parsed: Parsed, *, batch: bool) -> Job:
    """The job that a command line asks for; ends the command where the real one refuses."""
    store = command.store
    check_container(command, parsed)
    default = next((name for name, part in store.spec.partitions.items() if part.default), "")
    job = Job(0, "", user(), uid(), parsed.get("partition") or default, batch=batch)
    job.submit_dir = os.getcwd()
    job.workdir = os.path.abspath(parsed.get("chdir") or job.submit_dir)
    job.export = parsed.get("export")
    _numbers(command, parsed, job)
    job.name = parsed.get("job-name") or (
        "wrap"
        if "wrap" in parsed
        else Path(parsed.rest[0]).name
        if parsed.rest
        else "sbatch"
        if batch
        else "srun"
    )
    job.exclusive = "exclusive" in parsed
    job.held = "hold" in parsed
    job.requeue = "no-requeue" not in parsed
    job.account, job.qos = parsed.get("account") or "", parsed.get("qos") or ""
    job.comment = parsed.get("comment") or ""
    job.stdout = _file(parsed, "output", "slurm-%j.out")
    job.stderr = _file(parsed, "error", job.stdout)
    job.stdin = _file(parsed, "input", os.devnull)
    mode = parsed.get("open-mode") or "truncate"
    if mode[0] not in "at":
        command.fail("Invalid --open-mode specification", _USAGE)
    job.append = mode[0] == "a"
    job.container = {key: value for key, value in parsed.values.items() if key in tables.PYXIS}
    if job.partition not in store.spec.partitions:
        sys.stderr.write(f"{command.name}: error: invalid partition specified: {job.partition}\n")
        command.fail(_failed(command, "Invalid partition name specified"))
    if job.minutes == 0:
        job.minutes = store.spec.partitions[job.partition].default_minutes
    if "licenses" in parsed:
        command.fail(_failed(command, "Invalid license specification"))
    if "constraint" in parsed:
        command.fail(_failed(command, "Invalid feature specification"))
    if "reservation" in parsed:
        command.fail(_failed(command, "Requested reservation is invalid"))
    known = set(store.node_names())
    if any(name not in known for name in [*job.wanted, *job.excluded]):
        command.fail(_failed(command, "Invalid node name specified"))
    return job


def check_container(command: Command, parsed: Parsed) -> None:
    """End the command as Slurm does when a plugin refuses its options."""
    wrong = pyxis.check(parsed.values)
    if wrong is None:
        return
    key, text = wrong
    sys.stderr.write(f"{command.name}: error: pyxis: {text}\n")
    if key:
        command.fail(f"Invalid --{key} argument: {parsed.values[key]}", _USAGE)
    init = "spank: required plugin spank_pyxis.so: init_post_opt() failed with rc=-1"
    dot = "." if command.name == "srun" else ""
    command.fail(f"{init}\n{command.name}: error: Plugin stack post-option processing failed{dot}")


def _file(parsed: Parsed, key: str, default: str) -> str:
    name = parsed.get(key) or default
    return os.devnull if name == "none" else name


def _failed(command: Command, text: str) -> str:
    lead = "Batch job submission failed" if command.name == "sbatch" else "Unable to allocate resources"
    return f"{lead}: {text}"


def _numbers(command: Command, parsed: Parsed, job: Job) -> None:
    """Counts, times and resources, each with the complaint of the real command."""

    def complain(key: str) -> None:
        command.fail(f"Invalid --{key} specification", _USAGE)

    nodes = parsed.get("nodes")
    try:
        job.nodes_min, job.nodes_max = formats.parse_count(nodes) if nodes is not None else (1, 1)
    except ValueError as err:
        command.fail(str(err), _USAGE)
    for key in ("ntasks", "ntasks-per-node", "cpus-per-task"):
        value = parsed.get(key)
        if value is not None and not (value.isdigit() and int(value)):
            command.fail(f'Invalid numeric value "{value}" for --{key}.')
    job.tasks_per_node = int(parsed.get("ntasks-per-node") or 0)
    job.cpus_per_task = int(parsed.get("cpus-per-task") or 0)
    job.tasks = int(parsed.get("ntasks") or 0)
    job.counted = bool(job.tasks)
    if nodes is None and job.tasks and job.tasks_per_node:
        job.nodes_min = job.nodes_max = -(-job.tasks // job.tasks_per_node)
    elif nodes is None and job.tasks > command.store.spec.cpus:
        job.nodes_min = job.nodes_max = -(-job.tasks // command.store.spec.cpus)
    job.tasks = job.tasks or job.nodes_min * max(1, job.tasks_per_node)
    try:
        if (limit := parsed.get("time")) is not None:
            job.minutes = formats.parse_minutes(limit) or formats.UNLIMITED
        else:
            job.minutes = 0
    except ValueError:
        complain("time")
    try:
        begin = parsed.get("begin")
        job.begin = formats.parse_begin(begin, time.time()) if begin else 0.0
    except ValueError:
        sys.stderr.write(f"Invalid time specification (pos=0): {begin}\n")
        complain("begin")
    if parsed.get("exclusive") not in (None, "", "user", "mcs"):
        complain("exclusive")
    try:
        job.memory_mb = formats.parse_megabytes(parsed.get("mem") or "0")
    except ValueError:
        complain("mem")
    _signal(command, parsed, job)
    _places(command, parsed, job)


def _signal(command: Command, parsed: Parsed, job: Job) -> None:
    """``--signal=[{R|B}:]SIGNAL[@SECONDS]``."""
    text = parsed.get("signal")
    if text is None:
        return
    match = re.fullmatch(r"(?:([RB]):)?(\w+)(?:@(\d+))?", text)
    name = match[2].upper().removeprefix("SIG") if match else ""
    number = int(name) if name.isdigit() else getattr(signal, f"SIG{name}", 0)
    if match is None or not number:
        command.fail("Invalid --signal specification", _USAGE)
    job.signal, job.signal_batch = int(number), match[1] == "B"
    job.signal_before = int(match[3] or 60) * command.store.spec.minute / 60


def _places(command: Command, parsed: Parsed, job: Job) -> None:
    try:
        job.wanted = hostlist.expand(parsed.get("nodelist") or "")
        job.excluded = hostlist.expand(parsed.get("exclude") or "")
    except ValueError:
        command.fail(_failed(command, "Invalid node name specified"))
    if job.wanted and "nodes" in parsed and len(job.wanted) > job.nodes_max:
        command.fail(f"invalid number of nodes (-N {len(job.wanted)}-{job.nodes_max})")
    if job.wanted:
        job.nodes_min = max(job.nodes_min, len(job.wanted))
        job.nodes_max = max(job.nodes_max, job.nodes_min)
    try:
        job.gres = formats.parse_gres(parsed.get("gres") or "")
        for key, divide in (("gpus-per-node", 1), ("gpus", job.nodes_min), ("gpus-per-task", 0)):
            value = parsed.get(key)
            if value is None:
                continue
            (kind, count), *_ = formats.parse_gres(f"gpu:{value}").items()
            if key == "gpus" and "nodes" not in parsed:
                most = max(1, len(gpu_numbers(command.store.spec, kind)))
                divide = max(job.nodes_min, -(-count // most))
                if divide > len(command.store.node_names()):
                    divide = 1  # more than there are: no node will do
                job.nodes_min = job.nodes_max = divide
                job.tasks = max(job.tasks, divide)
            each = -(-count // divide) if divide else count * max(1, job.tasks_per_node)
            job.gres[kind] = max(job.gres.get(kind, 0), each)
    except ValueError:
        command.fail("Invalid generic resource (gres) specification")
    if any(key.split(":")[0] not in schedule.gres_kinds(command.store) for key in job.gres):
        command.fail("Invalid generic resource (gres) specification")


def _submit(command: Command, job: Job, script: str, parsed: Parsed) -> int:
    store, faults = command.store, FaultBox(command.store.folder)
    trouble = command.unreached()
    if trouble is not None:
        command.fail(_failed(command, trouble))
    refusal = faults.find(SbatchRefuses, job.name)
    if refusal is not None:
        command.fail(refusal.text, prefix="")
    enter(command, job, script, environment.export(parsed.get("export"), os.environ, step=False))
    if job.state == "FAILED":
        command.fail(_failed(command, "Requested node configuration is not available"))
    keep(store, job)
    trouble = command.unanswered()
    if trouble is not None:
        command.fail(_failed(command, trouble))
    hang = faults.find(SbatchHangsButQueues, job.name)
    if hang is not None:
        time.sleep(hang.seconds)
        command.fail(_failed(command, TIMED_OUT))
    answer = faults.find(SbatchAnswers, job.name)
    if answer is not None:
        sys.stdout.write(answer.text.format(id=job.id))
    elif "quiet" in parsed:
        pass
    elif "parsable" in parsed:
        print(f"{job.id};{parsed.get('clusters')}" if "clusters" in parsed else job.id)
    else:
        print(
            f"Submitted batch job {job.id}"
            + (f" on cluster {parsed.get('clusters')}" if "clusters" in parsed else "")
        )
    sys.stdout.flush()
    return _wait(store, job.id) if "wait" in parsed else 0


def _wait(store: Store, number: int) -> int:
    """``--wait``: until the job has ended; its exit status."""
    while (job := store.job(number)) is not None and not job.ended:
        time.sleep(store.spec.poll)
    return 1 if job is None else job.exit_code or (128 + job.exit_signal if job.exit_signal else 0)


def keep(store: Store, job: Job) -> None:
    """Start the job's keeper."""
    if not detach(store, f"keeper of job {job.id}"):
        return
    code = 0
    try:
        Keeper(store, job.id).run()
    except BaseException as err:  # nobody else would ever see it
        code = 1
        (store.folder / "spool" / str(job.id) / "keeper-error").write_text(f"{type(err).__name__}: {err}\n")
    finally:
        os._exit(code)


def enter(command: Command, job: Job, script: str, env: dict[str, str]) -> None:
    """Put a job into the queue, as slurmctld does: id, a copy of the script, the first look at the nodes."""
    store = command.store
    with store.lock():
        job.id = store.next_id()
        job.submit = time.time()
        spool = store.folder / "spool" / str(job.id)
        spool.mkdir()
        path = spool / "slurm_script"
        path.write_text(script, errors="surrogateescape")
        path.chmod(0o700)
        write_json(spool / "env.json", env)
        if schedule.misfit(store, job):
            job.state, job.reason, job.end = "FAILED", "BadConstraints", time.time()
            store.put(job)
            return
        store.put(job)
        schedule.try_start(store, job, store.active(), FaultBox(store.folder))
