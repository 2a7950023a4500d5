"""Two runs of one user at the same time: neither touches the other's job."""

from __future__ import annotations

from plugin.project import Project

from .cases import environment


def test_fc_27_the_end_of_one_run_leaves_the_other_runs_job(project: Project) -> None:
    project.recipe("first")
    project.recipe("second", prompts=80_000)
    with project.cluster() as cluster:
        env = project.env(cluster.env(), **environment("FC-27"))
        long = project.start("--workload=second", "--gpubench-results=other", env=env)
        long.wait_for("ready: after")
        short = project.run("--workload=first", env=env)
        assert short.code == 0, short.out
        states = {
            name: job.state for job in cluster.jobs() for name in ("first", "second") if name in job.name
        }
        assert states["second"] == "RUNNING"
        assert states["first"] != "RUNNING"
        long.process.terminate()
        long.end()
        jobs = cluster.jobs()
        cancels = [call.argv for call in cluster.calls("scancel")]
    assert [job.state for job in jobs if not job.ended] == []
    assert len({job.name for job in jobs}) == 2
    words = [word for argv in cancels for word in argv]
    assert not [word for word in words if word.startswith(("--name", "--user", "-n", "-u"))]
    assert {argv[-1] for argv in cancels} <= {str(job.id) for job in jobs}
