"""``scontrol``: show, hold, release, requeue, update, ping."""

from __future__ import annotations

import os
import sys
import time

from .. import hostlist
from . import formats
from .command import Command
from .model import Job
from .resources import cpus_on_node
from .store import Store

__all__ = ["main"]

_UNKNOWN = "slurm_load_jobs error: Invalid job id specified"


def main(store: Store, argv: list[str]) -> int:
    """Administer the cluster."""
    command = Command("scontrol", store)
    words, flags = _words(command, argv)
    if {"-V", "--version"}.intersection(flags):
        print(f"slurm {store.spec.version}")
        return 0
    if not words:
        command.fail("interactive mode is not modelled by this mock")
    verb, *rest = words
    one_line = bool({"-o", "--oneliner"}.intersection(flags))
    if verb == "show":
        return _show(command, rest, one_line)
    if verb == "ping":
        return _ping(command)
    if verb in ("hold", "release", "requeue"):
        return _change(command, verb, rest)
    if verb == "update":
        return _update(command, rest)
    return command.fail(f"invalid keyword: {verb}", prefix="")


def _words(command: Command, argv: list[str]) -> tuple[list[str], list[str]]:
    """What is no option, and the options; the cluster is looked at here."""
    words: list[str] = []
    flags: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        if word in ("-M", "--clusters", "--cluster"):
            command.check_cluster(left.pop(0) if left else "")
        elif word.startswith(("--clusters=", "--cluster=")):
            command.check_cluster(word.partition("=")[2])
        else:
            (flags if word.startswith("-") else words).append(word)
    return words, flags


def _ping(command: Command) -> int:
    host = os.uname().nodename
    if not (command.unreached() or command.unanswered()):
        print(f"Slurmctld(primary) at {host} is UP")
        return 0
    stars = "*" * 41
    print(
        f"Slurmctld(primary) at {host} is DOWN\n{stars}\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n{stars}"
    )
    return 1


# -- show ----------------------------------------------------------------------------------------------------


def _show(command: Command, words: list[str], one_line: bool) -> int:
    if not words:
        command.fail("too few arguments for keyword:show", prefix="")
    what, *names = words
    what, equals, value = what.partition("=")
    names = [value] if equals else names
    if what.startswith("hostname"):
        return _hostnames(names)
    if what.startswith("hostlist"):
        print(hostlist.compress(hostlist.expand(",".join(names))))
        return 0
    kind = {"no": "slurm_load_node error", "co": "slurm_load_ctl_conf error"}.get(
        what[:2], "slurm_load_partitions error" if what.startswith("p") else "slurm_load_jobs error"
    )
    command.reach_controller(f"{kind}: ")
    if what.startswith("job"):
        return _jobs(command, names, one_line)
    if what.startswith("step"):
        return _step(command, names)
    if what.startswith("node"):
        return _nodes(command, names, one_line)
    if what.startswith("conf"):
        return _config(command)
    if what.startswith("part"):
        return _partitions(command, names, one_line)
    return command.fail(f"invalid entity:{what} for keyword:show ", prefix="")


def _hostnames(names: list[str]) -> int:
    text = names[0] if names else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        print("\n".join(hostlist.expand(text)))
    except ValueError:
        print(text.replace("[", "").split("-")[0])
    return 0


def _print(blocks: list[list[str]], one_line: bool) -> None:
    for lines in blocks:
        print(" ".join(lines) + " " if one_line else "\n   ".join(lines) + "\n")


def _jobs(command: Command, names: list[str], one_line: bool) -> int:
    jobs = command.store.jobs()
    if names:
        if not names[0].isdigit():
            command.fail("scontrol_print_job error: Invalid job id specified", prefix="")
        number = int(names[0])
        jobs = [job for job in jobs if number in (0, job.id)]  # 0 is every job
        if not jobs and not number:
            print("Job 0 not found")
            return 1
        if not jobs:
            command.fail(_UNKNOWN, prefix="")
    elif not jobs:
        print("No jobs in the system")
        return 0
    _print([_job(command.store, job) for job in jobs], one_line)
    return 0


def _job(store: Store, job: Job) -> list[str]:
    spent = ((job.end or time.time()) - job.start) if job.start else 0.0
    limit = "UNLIMITED" if job.minutes < 0 else formats.padded(job.minutes * 60)
    end = job.end or (job.start + job.minutes * store.spec.minute if job.start else 0.0)
    nodes = job.completing_nodes or job.nodes
    count = str(len(nodes)) if nodes else f"{job.nodes_min}-{job.nodes_max}"
    gres = ",".join(f"gres:{key}:{number}" for key, number in job.gres.items())
    cpus = cpus_on_node(store.spec, job) * (len(job.nodes) or job.nodes_min)
    since = formats.clock(0.0 if job.held else max(job.submit, job.begin))
    tres = f"cpu={cpus},node={len(job.nodes) or job.nodes_min},billing={cpus}"
    return [
        f"JobId={job.id} JobName={job.name}",
        f"UserId={job.user}({job.uid}) GroupId={job.user}({job.uid}) MCS_label=N/A",
        f"Priority={0 if job.held else 4294901760 - job.id} Nice=0 "
        f"Account={job.account or '(null)'} QOS={job.qos or '(null)'}",
        f"JobState={job.state} Reason={job.reason.replace(' ', '_')} Dependency=(null)",
        f"Requeue={int(job.requeue)} Restarts={job.restarts} BatchFlag={int(job.batch)} Reboot=0 "
        f"ExitCode={job.exit_code}:{job.exit_signal}",
        f"RunTime={formats.padded(spent)} TimeLimit={limit} TimeMin=N/A",
        f"SubmitTime={formats.clock(job.submit)} EligibleTime={since}",
        f"AccrueTime={since}",
        f"StartTime={formats.clock(job.start or job.begin)} EndTime={formats.clock(end)} Deadline=N/A",
        "SuspendTime=None SecsPreSuspend=0 "
        f"LastSchedEval={formats.clock(job.start or job.submit)} Scheduler=Main",
        f"Partition={job.partition} AllocNode:Sid={os.uname().nodename}:{os.getppid()}",
        f"ReqNodeList={hostlist.compress(job.wanted) or '(null)'} "
        f"ExcNodeList={hostlist.compress(job.excluded) or '(null)'}",
        f"NodeList={hostlist.compress(nodes)}",
        *([f"BatchHost={job.nodes[0]}"] if job.nodes else []),
        f"NumNodes={count} NumCPUs={cpus} NumTasks={job.tasks} "
        f"CPUs/Task={job.cpus_per_task or 1} ReqB:S:C:T=0:0:*:*",
        f"TRES={tres}",
        "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
        f"MinCPUsNode={job.cpus_per_task or 1} MinMemoryNode={job.memory_mb or 0}{'M' * bool(job.memory_mb)}"
        " MinTmpDiskNode=0",
        "Features=(null) DelayBoot=00:00:00",
        f"OverSubscribe={'NO' if job.exclusive else 'OK'} Contiguous=0 Licenses=(null) Network=(null)",
        *([f"Comment={job.comment}"] if job.comment else []),
        f"Command={job.command}",
        f"WorkDir={job.workdir}",
        f"StdErr={_path(job, job.stderr)}",
        f"StdIn={job.stdin}",
        f"StdOut={_path(job, job.stdout)}",
        "Power=",
        *([f"TresPerNode={gres}"] if gres else []),
    ]


def _path(job: Job, pattern: str) -> str:
    from . import environment

    return os.path.join(job.workdir, formats.fill_pattern(pattern, environment.pattern(job)))


def _step(command: Command, names: list[str]) -> int:
    name = names[0] if names else ""
    for step in command.store.steps():
        if name in (f"{step.job}.{step.id}", str(step.job), ""):
            nodes = hostlist.compress(step.nodes)
            print(f"StepId={step.job}.{step.id} StartTime={formats.clock(step.start)} TimeLimit=UNLIMITED")
            count = f"Nodes={len(step.nodes)} Tasks={len(step.tasks)}"
            print(f"   State=RUNNING NodeList={nodes} {count} Name={step.name}\n")
            name = name or "-"
    if name and not any(name in (f"{step.job}.{step.id}", str(step.job)) for step in command.store.steps()):
        print(f"Job step {name}{'' if '.' in name else '.'} not found")
        return 1
    return 0


def node_state(store: Store, name: str, holders: list[Job]) -> str:
    """The state of a node as sinfo words it, in capitals."""
    told = store.node_states().get(name)
    if told is not None:
        return told["state"]
    here = [job for job in holders if name in (job.completing_nodes or job.nodes)]
    if any(job.state == "COMPLETING" for job in here):
        return "COMPLETING"
    if any(job.exclusive for job in here):
        return "ALLOCATED"
    return "MIXED" if here else "IDLE"


def _nodes(command: Command, names: list[str], one_line: bool) -> int:
    store = command.store
    wanted = hostlist.expand(names[0]) if names else store.node_names()
    known = set(store.node_names())
    holders = [job for job in store.active() if job.state in ("RUNNING", "COMPLETING")]
    gres = ",".join(f"{key}:{count}" for key, count in store.spec.gres.items())
    cpus = store.spec.cpus
    status = 0
    blocks = []
    for name in wanted:
        if name not in known:
            print(f"Node {name} not found")
            status = 1
            continue
        state = node_state(store, name, holders)
        told = store.node_states().get(name)
        parts = ",".join(
            part
            for part, data in store.spec.partitions.items()
            if data.nodes == "ALL" or name in hostlist.expand(data.nodes)
        )
        blocks.append(
            [
                f"NodeName={name} Arch=x86_64 CoresPerSocket={cpus} ",
                f"CPUAlloc={cpus if state == 'ALLOCATED' else 0} CPUTot={cpus} CPULoad=0.00",
                f"Gres={gres}",
                f"NodeAddr=127.0.0.1 NodeHostName={name} Version={store.spec.version}",
                f"RealMemory={store.spec.memory_mb} AllocMem=0 Sockets=1 Boards=1",
                f"State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
                f"Partitions={parts} ",
                *([f"Reason={told['reason']} [slurm@{formats.clock(float(told['time']))}]"] if told else []),
            ]
        )
    _print(blocks, one_line)
    return status


def _partitions(command: Command, names: list[str], one_line: bool) -> int:
    spec = command.store.spec
    wanted = names or list(spec.partitions)
    blocks = []
    for name in wanted:
        if name not in spec.partitions:
            command.fail(f"Partition {name} not found", prefix="")
        part = spec.partitions[name]
        limit = "UNLIMITED" if part.max_minutes < 0 else formats.padded(part.max_minutes * 60)
        blocks.append(
            [
                f"PartitionName={name}",
                f"Default={'YES' if part.default else 'NO'} "
                f"DefaultTime={formats.padded(part.default_minutes * 60)}",
                f"MaxTime={limit} Nodes={spec.nodes if part.nodes == 'ALL' else part.nodes} State=UP",
            ]
        )
    _print(blocks, one_line)
    return 0


def _config(command: Command) -> int:
    spec = command.store.spec
    print(f"Configuration data as of {formats.clock(time.time())}")
    values = {
        "AccountingStorageType": "accounting_storage/slurmdbd"
        if spec.accounting
        else "accounting_storage/none",
        "ClusterName": spec.name,
        "KillWait": f"{spec.kill_wait:g} sec",
        "MinJobAge": f"{spec.min_job_age:g} sec",
        "MpiDefault": "none",
        "SLURM_VERSION": spec.version,
    }
    for key, value in values.items():
        print(f"{key:<23} = {value}")
    print(f"\nSlurmctld(primary) at {os.uname().nodename} is UP")
    return 0


# -- change --------------------------------------------------------------------------------------------------


def _change(command: Command, verb: str, words: list[str]) -> int:
    status = 0
    trouble = command.unreached()
    for word in ",".join(words).split(","):
        number = word.removeprefix("jobid=")
        if trouble is not None:
            status = 1
            _silence(verb, number)
            continue
        with command.store.lock():
            job = command.store.job(int(number)) if number.isdigit() else None
            problem = _refusal(job, verb)
            if problem:
                status = 1
                sys.stderr.write(f"{problem} for job {number}\n")
                if verb != "requeue":
                    sys.stderr.write(f"slurm_suspend error: {problem}\n")
                continue
            assert job is not None
            if verb == "requeue":
                job.order, job.state, job.completing_nodes = "requeue", "COMPLETING", list(job.nodes)
            else:
                job.held = verb == "hold"
                if job.state == "PENDING":
                    job.reason = "JobHeldUser" if job.held else "None"
            command.store.put(job)
        if command.unanswered() is not None:
            status = 1
            _silence(verb, number)
    return status


def _silence(verb: str, number: str) -> None:
    sys.stderr.write(f"Unexpected message received for job {number}\n")
    if verb != "requeue":
        sys.stderr.write("slurm_suspend error: Unexpected message received\n")


def _refusal(job: Job | None, verb: str) -> str | None:
    if job is None:
        return "Invalid job id specified"
    if job.ended or (verb == "requeue" and job.state == "COMPLETING"):
        return "Job has already finished"  # the real one starts an ended job anew; here its files are gone
    if verb == "requeue" and job.state == "PENDING":
        return "Job is pending execution"
    if verb == "requeue" and not (job.requeue and job.batch):
        return "Requested operation is presently disabled"
    return None


def _update(command: Command, words: list[str]) -> int:
    values = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    store = command.store
    command.reach_controller("slurm_update error: ")
    if "jobid" in values:
        with store.lock():
            job = store.job(int(values["jobid"])) if values["jobid"].isdigit() else None
            if job is None:
                command.fail(f"Invalid job id specified for job {values['jobid']}", prefix="")
            if "timelimit" in values:
                job.minutes = formats.parse_minutes(values["timelimit"])
            store.put(job)
        return 0
    if "nodename" not in values:
        command.fail("No valid entity in update command", prefix="")
    names = hostlist.expand(values["nodename"])
    if any(name not in store.node_names() for name in names):
        command.fail("slurm_update error: Invalid node name specified", prefix="")
    return _update_nodes(command, names, values)


def _update_nodes(command: Command, names: list[str], values: dict[str, str]) -> int:
    store, state = command.store, values.get("state", "").upper()
    with store.lock():
        told = store.node_states()
        if state in ("DOWN", "DRAIN", "FAIL"):
            if "reason" not in values:
                command.fail(
                    "You must specify a reason when DOWNING or DRAINING a node. Request denied", prefix=""
                )
            for name in names:
                store.set_node(name, state, values["reason"])
        elif state in ("RESUME", "IDLE", "UNDRAIN"):
            if any(name not in told for name in names):
                command.fail("slurm_update error: Invalid node state specified", prefix="")
            for name in names:
                store.set_node(name, None)
        else:
            text = f"Invalid input: state={values.get('state', '')}\nRequest aborted\nValid states are: "
            text += "NoResp DRAIN FAIL FUTURE RESUME POWER_DOWN POWER_UP UNDRAIN"
            command.fail(f"{text}\nNot all states are valid given a node's prior state", prefix="")
        if state == "DOWN":
            fail_jobs(store, names)
    return 0


def fail_jobs(store: Store, names: list[str]) -> None:
    """Tell the jobs on nodes that went down. Call under the lock."""
    for job in store.active():
        hit = [name for name in names if name in job.nodes]
        if hit and job.state in ("RUNNING", "COMPLETING") and not job.order:
            job.order, job.order_text = "node_fail", hit[0]
            store.put(job)
