"""What the commands say of ids, clusters and options that they do not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mock.slurm_desk import Desk

NOBODY = "60000001"
_KILL = "scancel: error: Kill job error on job id {0}: Invalid job id specified\n"


Case = tuple[tuple[str, ...], int, str, str]


def _compare(desk: Desk, cases: Sequence[Case]) -> None:
    """Command, exit status, the whole standard output, and standard error (a part of it)."""
    for argv, status, out, err in cases:
        done = desk.run(*argv)
        assert (done.returncode, done.stdout) == (status, out), (argv, done)
        assert err in done.stderr if err else done.stderr == "", (argv, done)


def check_signals_need_a_job(env: Mapping[str, str], folder: Path) -> None:
    """A plain cancel of an unknown or ended id is silent; a signal, a step or a filter is not."""
    with Desk(env, folder) as desk:
        ended = desk.submit("true\n", "--hold", "--job-name=done-with")
        desk.say("scancel", ended)
        desk.wait(ended)
        step = f"scancel: error: Kill job error on job step id {NOBODY}.0: Invalid job id specified\n"
        cases: list[Case] = [(("scancel", NOBODY), 0, "", ""), (("scancel", ended), 0, "", "")]
        for job in (NOBODY, ended):
            for options in (("--signal=TERM",), ("-s", "9"), ("--batch",), ("--state=PENDING",), ("-n", "x")):
                cases.append((("scancel", *options, job), 1, "", _KILL.format(job)))
        cases += [
            (("scancel", f"{NOBODY}.0"), 1, "", step),
            (("scancel", "--name=done-with"), 0, "", ""),
            (("scancel", "-u", "nosuchuser"), 1, "", "scancel: error: Invalid user name: nosuchuser\n"),
            (("scancel", "--signal=NONSENSE", ended), 1, "", "Unknown job signal: NONSENSE"),
        ]
        _compare(desk, cases)


def check_ids_that_are_none(env: Mapping[str, str], folder: Path) -> None:
    """Zero and words, each command in its own way; searches that find nothing are no errors."""
    with Desk(env, folder) as desk:
        _compare(
            desk,
            [
                (("squeue", "-h", "-j", "0"), 1, "", "squeue: error: Invalid job id: 0\n"),
                (("squeue", "-h", "--name", "nosuch"), 0, "", ""),
                (("squeue", "-h", "-w", "nonode"), 1, "", "squeue: error: Invalid node name nonode\n"),
                (("scontrol", "show", "job", "abc"), 1, "", "Invalid job id specified\n"),
                (("srun", "--jobid=0", "true"), 1, "", 'Invalid numeric value "0" for --jobid.'),
                (("sacct",), 1, "", "Slurm accounting storage is disabled\n"),
            ],
        )


def check_clusters_need_accounting(env: Mapping[str, str], folder: Path) -> None:
    """--clusters asks the accounting database: without one it fails, for our own cluster too."""
    with Desk(env, folder) as desk:
        for name in ("gpubench", "other"):
            words = (
                f"'{name}' can't be reached now, or it is an invalid entry for --cluster.  "
                "Use 'sacctmgr list clusters' to see available clusters.\n"
            )
            for argv in (
                ("sbatch", "--parsable", "-M", name, "--wrap", "true"),
                ("squeue", f"--clusters={name}", "-h"),
                ("scancel", "-M", name, "1"),
                ("scontrol", f"--clusters={name}", "show", "job", "1"),
                ("scontrol", "-M", name, "show", "job", "1"),
                ("srun", f"--clusters={name}", "--jobid=1", "true"),
            ):
                talk = f"{argv[0]}: error: Problem talking to database\n{argv[0]}: error: "
                _compare(desk, [(argv, 1, "", talk + words)])


def check_more_wrong_options(env: Mapping[str, str], folder: Path) -> None:
    """Counts, files and combinations."""
    with Desk(env, folder) as desk:
        script = desk.script("true\n")
        job = desk.hold_nodes()
        step = ("srun", f"--jobid={job}", "--overlap", "-N1", "-n1")
        few = "Maximum node count 1 is less than minimum node count 2"
        cases = [
            (("sbatch", "-N", "2-1", script), 255, "", f"sbatch: error: {few}\n"),
            (
                ("sbatch", "-n", "0", script),
                1,
                "",
                'sbatch: error: Invalid numeric value "0" for --ntasks.\n',
            ),
            (
                ("sbatch", "-N1", "-w", "gb300-[01-02]", script),
                1,
                "",
                "sbatch: error: invalid number of nodes (-N 2-1)\n",
            ),
            (("sbatch", "-L", "foo", script), 1, "", "Invalid license specification\n"),
            (("sbatch", "--open-mode=x", script), 255, "", "Invalid --open-mode specification\n"),
            (
                ("sbatch", "--begin=soon", script),
                255,
                "",
                "Invalid time specification (pos=0): soon\nsbatch: error: Invalid --begin specification\n",
            ),
            ((*step, "-c", "100", "true"), 1, "", "More processors requested than permitted\n"),
            (
                (*step, "--exclusive", "true"),
                1,
                "",
                "srun: error: --exclusive and --overlap are mutually exclusive\n",
            ),
            (
                ("scontrol", "update", "nodename=gb300-01", "state=down"),
                1,
                "",
                "You must specify a reason when DOWNING or DRAINING a node. Request denied\n",
            ),
            (("sbatch", "--quiet", "--hold", script), 0, "", ""),
        ]
        _compare(desk, cases)
        desk.jobs += desk.say("squeue", "-h", "-t", "PD", "-o", "%i").split()


def check_host_lists(env: Mapping[str, str], folder: Path) -> None:
    """The node lists that Slurm writes and reads."""
    with Desk(env, folder) as desk:
        forms = {
            "gb300-[01-03,07]": ["gb300-01", "gb300-02", "gb300-03", "gb300-07"],
            "gb[001-003],x,y-[9-11]": ["gb001", "gb002", "gb003", "x", "y-9", "y-10", "y-11"],
            "a[1-2]b[3-4]": ["a1b3", "a1b4", "a2b3", "a2b4"],
            "r[08-11]": ["r08", "r09", "r10", "r11"],
        }
        for text, names in forms.items():
            assert desk.say("scontrol", "show", "hostnames", text).split() == names
        listed = desk.say("scontrol", "show", "hostlist", "gb300-01,gb300-02,gb300-03,x9")
        assert listed == "gb300-[01-03],x9"


def check_containers(env: Mapping[str, str], folder: Path) -> None:
    """Pyxis's options: refused in one form by srun and sbatch, before anything runs."""
    with Desk(env, folder) as desk:
        image = "--container-image=registry/vllm:1"
        wrong = {
            ("--container-image=",): (255, "--container-image: an argument is wanted"),
            (image, "--container-mounts=/a"): (255, "a mount is SRC:DST[:FLAGS], got '/a'"),
            (image, "--container-mounts=a:/b"): (255, "both sides of a mount are absolute paths, got 'a:/b'"),
            (image, "--container-mounts=/a:/b,/c:d"): (255, "absolute paths, got '/c:d'"),
            (image, "--container-mounts=/a:/b:rx"): (255, "unknown mount flag 'rx' for '/a:/b'"),
            (image, "--container-mounts="): (255, "--container-mounts: an argument is wanted"),
            (image, "--container-workdir=out"): (255, "--container-workdir: an absolute path is wanted"),
            (image, "--container-env=A,1B"): (255, "--container-env: a list of variable names is wanted"),
            (image, "--container-remap-root", "--no-container-remap-root"): (1, "its opposite was given too"),
            ("--container-mounts=/a:/b",): (1, "does nothing without --container-image"),
            (image, "--container-bogus=1"): (255, "unrecognized option '--container-bogus=1'"),
        }
        for options, (status, words) in wrong.items():
            for argv in (("srun", *options, "true"), ("sbatch", *options, "--wrap=true")):
                _compare(desk, [(argv, status, "", words)])
        job = desk.hold_nodes()
        step = ("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", image)
        lost = f"couldn't chdir to {folder}/nowhere: No such file or directory"
        mounts = f"--container-mounts={folder}:/nfs_home/x:ro+rprivate,/tmp:/tmp:rw"
        _compare(
            desk,
            [
                ((*step, f"--container-workdir={folder}/nowhere", "true"), 1, "", lost),
                ((*step, mounts, "--container-workdir=/nfs_home/x", "ls", "-d", "hold-1"), 2, "", "hold-1"),
                ((*step, "no-such-program"), 2, "", "execve(): no-such-program: No such file or directory"),
                ((*step, "bash", "-c", "exit 4"), 4, "", "Exited with exit code 4"),
            ],
        )
        writable = f"--container-mounts={folder}:/nfs_home/x"
        inside = (*step, writable, "--container-workdir=/nfs_home/x", "bash", "-c", "echo made > made.txt")
        _compare(desk, [(inside, 0, "", "")])
        assert desk.read("made.txt") == "made\n"
