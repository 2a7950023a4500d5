"""Collection, selection, workers and reports: what pytest users rely on."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest
from plugin.project import Project, Run

from pytest_gpubench.mock import MockCluster
from pytest_gpubench.results.text import TAIL_BYTES, TAIL_LINES, clean_tail

from .cases import Recipes, environment, recipe_text, workload
from .site import SiteRun
from .trouble import Trouble

# -- FC-39 -------------------------------------------------------------------------------------------


def twelve_recipes(project: Project, seed: int) -> list[str]:
    """Twelve files written in a random order, three points each; their node ids in order."""
    names = [f"recipe_{number:02d}" for number in range(12)]
    for name in random.Random(seed).sample(names, len(names)):
        project.recipe(name, "[1, 2, 4]")
    return [
        f"workloads/{name}.yaml::test_serving[tp1-32x16-conc{conc}]" for name in names for conc in (1, 2, 4)
    ]


def listed(run: Run) -> list[str]:
    """The node ids that a run listed."""
    return [line for line in run.out.splitlines() if "::" in line]


def test_fc_39_ids_and_order_are_the_same_in_every_process(project: Project) -> None:
    ids = twelve_recipes(project, seed=39)
    arguments = ("--workload=recipe_*", "-q", "--collect-only")
    seen = []
    for seed, stamp in (("1", "a"), ("2", "b")):
        env = project.env(None, PYTHONHASHSEED=seed, BUILDKITE_BUILD_ID=stamp, HOSTNAME=stamp, TZ=stamp)
        seen.append(listed(project.run(*arguments, env=env)))
    assert seen == [ids, ids]


@pytest.mark.slow
def test_fc_39_twenty_runs_on_four_workers(project: Project) -> None:
    ids = twelve_recipes(project, seed=40)
    for turn in range(20):
        env = project.env(None, **{**environment("FC-39"), "HOSTNAME": str(turn)})
        arguments = ("--workload=recipe_*", "-n", "4", "--gpubench-dry-run", "-v")
        run = project.run(*arguments, env=env, timeout=180)
        assert run.code == 0, run.out
        assert "Different tests were collected" not in run.out
        done = re.findall(r"SKIPPED (\S+)", run.out)
        assert sorted(done) == sorted(ids)


# -- FC-41 -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["alone", "four workers"])
def swept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Run, MockCluster]]:
    """One deployment on two nodes under four loads."""
    found = workload("FC-41")
    project = Project(tmp_path_factory.mktemp("swept") / "project")
    conc = json.dumps(found["search_space"]["conc"])
    project.recipe("sweep", conc, nodes=found["slurm"]["nodes"], prompts=32)
    with project.cluster() as cluster:
        workers = ("-n", "4") if request.param == "four workers" else ()
        run = project.run("--workload=sweep", *workers, env=project.env(cluster.env()))
        yield run, cluster


@pytest.mark.slow
def test_fc_41_one_allocation_per_deployment(swept: tuple[Run, MockCluster]) -> None:
    run, cluster = swept
    assert run.code == 0, run.out
    assert len(cluster.calls("sbatch")) == 1
    (job,) = cluster.jobs()
    rows = sorted(run.rows.values(), key=lambda row: row["started"])
    assert [row["status"] for row in rows] == ["passed"] * 4
    assert {row["conc"] for row in rows} == {4, 8, 16, 32}
    assert {row["job_id"] for row in rows} == {str(job.id)}


@pytest.mark.slow
def test_fc_41_loads_never_meet_and_the_server_outlives_them(swept: tuple[Run, MockCluster]) -> None:
    run, cluster = swept
    rows = sorted(run.rows.values(), key=lambda row: row["started"])
    assert all(one["ended"] <= other["started"] for one, other in pairwise(rows))
    (cancel,) = cluster.calls("scancel")
    assert cancel.time >= max(row["ended"] for row in rows)


# -- FC-43 -------------------------------------------------------------------------------------------


def fc_43(points: str) -> str:
    """The entry's recipe with these points."""
    found = workload("FC-43")
    space = f"search_space: [{{isl: 32, osl: 16, points: [{points}]}}]\n"
    return f"name: {found['name']}\n" + recipe_text(model=f"'{found['model']}'", rest=space)


def test_fc_43_equal_points_are_an_error_that_names_both(recipes: Recipes) -> None:
    points = [
        f"{{request_rate: {point['rate']}, conc: {point['conc']}}}"
        for point in workload("FC-43")["search_space"]
    ]
    assert points[:2] == ["{request_rate: 1, conc: 8}", "{request_rate: 1.0, conc: 8}"]
    text = fc_43(", ".join(points))
    (problem,) = recipes.problems(text)
    assert "search_space[0].points[1]: this is the point 'tp1-rate1-32x16-conc8' again" in problem
    assert re.search(r"which \S*case\.yaml:6:\d+ already gives", problem)


def test_fc_43_every_id_can_be_pasted(project: Project, recipes: Recipes) -> None:
    text = fc_43(
        "{request_rate: 1, conc: 8}, {request_rate: .inf, conc: 8}, {request_rate: 2.5, conc: 8}, "
        "{conc: 8, name: a.b, num_prompts: 99}, {conc: 8, serve_args: '--foo=(x,y)/../z'}"
    )
    points = [point.id for point in recipes.load(text).points]
    assert len(set(points)) == 5
    for name in points:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        assert ".." not in name
        assert not re.search(r"_\d$", name)
    project.write("workloads/glm.yaml", text.replace("SITE", "GB300_SLURM"))
    for name in (points[0], points[-1]):
        run = project.run("--workload=glm-5", "--collect-only", "-q", "-k", name)
        assert listed(run) == [f"workloads/glm.yaml::test_serving[{name}]"], run.out
    nodeid = f"workloads/glm.yaml::test_serving[{points[2]}]"
    assert listed(project.run(nodeid, "--collect-only", "-q")) == [nodeid]


def test_fc_43_a_point_elsewhere_renames_nothing(recipes: Recipes) -> None:
    own = "{conc: 8, serve_args: --block-size 64}, {request_rate: 3, conc: 2}"
    before = [point.id for point in recipes.load(fc_43(own)).points]
    more = f"{{conc: 8}}, {{conc: 8, serve_args: --block-size 32}}, {own}, {{request_rate: 3, conc: 4}}"
    after = [point.id for point in recipes.load(fc_43(more)).points]
    assert set(before) < set(after)


# -- FC-44 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", ["", ",deepseek_v4_flash_gb300"])
def test_fc_44_an_unknown_name_is_a_usage_error_with_near_ones(project: Project, others: str) -> None:
    project.recipe("deepseek_v4_flash_gb300")
    wanted = environment("FC-44")["WORKLOADS"] + others
    run = project.run(env=project.env(None, WORKLOADS=wanted))
    assert run.code == pytest.ExitCode.USAGE_ERROR, run.out
    assert "deepseek_v4_flsh_gb300" in run.out
    assert "did you mean deepseek_v4_flash_gb300" in run.out
    assert not run.results.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{recipe_text(rest='')}search_space: {workload('FC-44')['search_space']}\n", "expands to nothing"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
    ],
)
def test_fc_44_nothing_to_measure_is_a_collection_error(project: Project, text: str, says: str) -> None:
    project.write("workloads/empty.yaml", text.replace("SITE", "GB300_SLURM"))
    run = project.run("--workload=empty", "--gpubench-dry-run")
    assert run.code == pytest.ExitCode.INTERRUPTED, run.out
    assert says in run.out
    assert "Traceback" not in run.out


def test_fc_44_a_filter_that_leaves_nothing_keeps_exit_5(project: Project) -> None:
    project.recipe("sweep")
    run = project.run("--workload=sweep", "-k", "conc512")
    assert run.code == pytest.ExitCode.NO_TESTS_COLLECTED, run.out


# -- FC-45 -------------------------------------------------------------------------------------------


def test_fc_45_reports_of_a_noisy_log_are_read_by_strict_readers(trouble: Trouble) -> None:
    kept = trouble.run.results / "fc45"
    (log,) = kept.glob("*/rank-0.log")
    raw = log.read_bytes()
    for noise in (b"\x1b[31m", b"\0", b"\a", b"\r", b"\xff"):
        assert noise in raw
    junit = trouble.run.junit.read_bytes().decode("utf-8", "strict")
    case = next(
        case for case in ET.fromstring(junit).iter("testcase") if "fc45" in str(case.get("classname"))
    )
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", junit)
    assert len(ET.tostring(case)) < 10 * TAIL_BYTES

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(constant)

    ingest = (trouble.run.results / "ingest.json").read_bytes().decode("utf-8", "strict")
    assert json.loads(ingest, parse_constant=refuse)["rows"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", ingest)
    assert "RuntimeError: the engine is gone" in trouble.text("fc45")
    # With -W error nothing of ours warned: the run went to its end.
    assert trouble.run.code == 1
    assert "INTERNALERROR" not in trouble.run.out


def test_fc_45_the_entrys_very_bytes() -> None:
    bars = b"\r".join(b"loading %d%%" % number for number in range(200))
    tail = clean_tail(b"\x1b[31mERROR \x1b[0m\0\a boom\n" + bars + b"\n\xff end\n" * 500)
    assert tail.splitlines()[-1].endswith(" end")
    assert len(tail.splitlines()) <= TAIL_LINES
    assert len(tail.encode("utf-8", "strict")) <= TAIL_BYTES
    short = clean_tail(b"\x1b[31mERROR \x1b[0m\0\a boom\n" + bars + b"\n")
    assert short == "ERROR  boom\nloading 199%"
    ET.fromstring(f"<a>{short}</a>")


# -- FC-46 -------------------------------------------------------------------------------------------


def test_fc_46_a_token_is_nowhere_but_in_the_servers_environment(trouble: Trouble, site: SiteRun) -> None:
    """Points that fail in set-up and call, with locals and set-ups shown; and one that passes."""
    ((name, value),) = environment("FC-46").items()
    for run, calls in ((trouble.run, trouble.calls), (site.run, site.calls)):
        assert value not in run.out
        assert value not in run.junit.read_text(encoding="utf-8")
        folder = run.results.parent
        shown = [
            path
            for path in folder.rglob("*")
            if path.is_file() and "cluster" not in path.relative_to(folder).parts
            if value.encode() in path.read_bytes()
        ]
        assert shown == []
        assert not [call for call in calls if value in " ".join(call.argv)]
    assert {dump.env[name] for dump in site.dumps} == {value}
    tags = {child.tag for case in trouble.run.cases().values() for child in case}
    assert {"error", "failure"} <= tags
    assert trouble.row("fc25")["status"] == "passed"


@pytest.mark.parametrize("name", ["CI_TOKEN", "TEAM_API_KEY", "AWS_SECRET", "DB_PASSWORD", "DB_PASSWORD_RO"])
def test_fc_46_every_kind_of_name(project: Project, name: str) -> None:
    value = "not-a-secret-but-must-not-show"
    project.recipe("dry", extra=f"env_from_host: [{name}]\n")
    run = project.run("--workload=dry", "--gpubench-dry-run", "-vv", env=project.env(None, **{name: value}))
    assert run.code == 0, run.out
    kept = "".join(path.read_text() for path in run.results.rglob("*") if path.is_file())
    assert value not in run.out + kept
    assert name in kept


def test_fc_46_the_dry_runs_plan_has_the_name_and_not_the_value(project: Project, tmp_path: Path) -> None:
    ((name, value),) = environment("FC-46").items()
    project.recipe("dry", extra=f"env_from_host: {json.dumps(workload('FC-46')['serve']['env_from_host'])}\n")
    run = project.run("--workload=dry", "--gpubench-dry-run", env=project.env(None, **{name: value}))
    assert run.plan("dry", "tp1-32x16-conc4")["env"][name] == "***"
    assert value not in run.out
