"""Which recipes a command line collects, and what it says about those it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .project import REPOSITORY, Project, recipe_text

POINT = "test_serving[tp1-32x16-conc4]"


class Inside:
    """Runs pytest in this process on a project: for what starts no process itself."""

    def __init__(self, project: Project, pytester: pytest.Pytester) -> None:
        self.project = project
        self.pytester = pytester

    def __call__(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)

    def ids(self, *arguments: str) -> list[str]:
        """The node ids that are collected."""
        result = self("--collect-only", "-q", *arguments)
        assert result.ret in (0, 5), result.stdout.str() + result.stderr.str()
        return [line for line in result.outlines if "::" in line]


@pytest.fixture
def inside(project: Project, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inside:
    project.recipe("alpha", "[4, 8]")
    project.recipe("beta")
    project.write("workloads/gamma_file.yaml", recipe_text("gamma-name"))
    project.recipe("other", gpu="H200_SLURM")
    monkeypatch.chdir(project.folder)
    return Inside(project, pytester)


def ids_of(stem: str, *concurrencies: int) -> list[str]:
    return [f"workloads/{stem}.yaml::test_serving[tp1-32x16-conc{n}]" for n in concurrencies]


def test_without_a_name_nothing_is_collected(inside: Inside) -> None:
    result = inside()
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "gpubench:" not in result.stdout.str()


def test_an_empty_workloads_variable_selects_nothing(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKLOADS", " \n")
    assert inside().ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("arguments", "stems"),
    [
        (["--workload", "beta"], ["beta"]),
        (["--workload", "beta", "--workload", "gamma_file"], ["beta", "gamma_file"]),
        (["--workload", "gamma_file, beta"], ["gamma_file", "beta"]),
        (["--workload=gamma-name"], ["gamma_file"]),
        (["--workload=[bg]*"], ["beta", "gamma_file"]),
        (["--workload=workloads/beta.yaml"], ["beta"]),
        (["--workload=workloads/be*.yaml"], ["beta"]),
        (["workloads/beta.yaml"], ["beta"]),
        (["workloads/beta.yaml", "workloads/gamma_file.yaml"], ["beta", "gamma_file"]),
        (["--workload=beta,beta"], ["beta"]),
        (["workloads/gamma_file.yaml", "--workload=beta"], ["gamma_file", "beta"]),
    ],
)
def test_names_globs_and_paths(inside: Inside, arguments: list[str], stems: list[str]) -> None:
    assert inside.ids(*arguments) == [node for stem in stems for node in ids_of(stem, 4)]


@pytest.mark.parametrize("text", ["beta,gamma_file", "beta\ngamma-name\n", " beta ,\n gamma_file"])
def test_workloads_variable(inside: Inside, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKLOADS", text)
    assert inside.ids() == [*ids_of("beta", 4), *ids_of("gamma_file", 4)]


def test_the_command_line_wins_over_the_variable(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKLOADS", "beta")
    assert inside.ids("--workload=gamma_file") == ids_of("gamma_file", 4)
    assert inside.ids(*ids_of("other", 4)) == ids_of("other", 4)


@pytest.mark.parametrize("names", ["btea", "beta,btea", "btea,beta", "BETAA"])
def test_an_unknown_name_is_a_usage_error_with_close_matches(inside: Inside, names: str) -> None:
    result = inside("--workload", names)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--workload *: no recipe*did you mean beta?"])
    assert "Traceback" not in result.stderr.str()


def test_an_unknown_name_in_the_variable_is_one_too(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKLOADS", "alhpa")
    result = inside()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*did you mean alpha?"])
    assert "WORKLOADS" in result.stderr.str()


def test_a_broken_recipe_stops_nobody_else(inside: Inside) -> None:
    inside.project.write("workloads/broken.yaml", "name: broken\nvllm: [\n")
    assert inside.ids("--workload=beta") == ids_of("beta", 4)
    result = inside("--workload=beta,broken", "--gpubench-dry-run")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*broken.yaml:*"])
    result = inside("--workload=beta,broken", "--gpubench-dry-run", "--continue-on-collection-errors")
    result.assert_outcomes(errors=1, skipped=1)


def test_a_typo_is_shown_with_its_place_and_the_near_key(inside: Inside) -> None:
    text = recipe_text("typo").replace("gpus_per_node", "gpus_per_nod")
    inside.project.write("workloads/typo.yaml", text)
    result = inside("--workload=typo")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*workloads/typo.yaml:4:1: gpus_per_nod: *gpus_per_node*"])
    assert "Traceback" not in result.stdout.str()
    assert "collect.py" not in result.stdout.str()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "*nothing.yaml*empty*"),
        (recipe_text("nothing").replace("points: [{conc: [4]}]", "points: []"), "*nothing.yaml:*"),
        (recipe_text("nothing").split("search_space")[0] + "search_space: []\n", "*nothing.yaml*"),
    ],
)
def test_a_recipe_that_measures_nothing_is_an_error(inside: Inside, text: str, says: str) -> None:
    inside.project.write("workloads/nothing.yaml", text)
    result = inside("--workload=nothing")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([says])


def test_a_folder_outside_of_the_project(inside: Inside, tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "far.yaml").write_text(recipe_text(f"far-{name}"))
        shutil.copy(inside.project.workloads / "gpu_profiles.yaml", folder)
    names = f"--workload={tmp_path}/first/far.yaml,../second/far.yaml"
    nodes = [f"{tmp_path}/{name}/far.yaml::{POINT}" for name in ("first", "second")]
    assert inside.ids(names) == nodes
    for node in nodes:
        (found,) = inside.ids(node)  # alone on the command line it moves pytest's rootdir
        assert node.endswith(found)


def test_recipe_folders_can_be_named(inside: Inside) -> None:
    inside.project.write("benches/deep/delta.yaml", recipe_text("delta"))
    inside.project.write(
        "benches/deep/gpu_profiles.yaml", (inside.project.workloads / "gpu_profiles.yaml").read_text()
    )
    node = f"benches/deep/delta.yaml::{POINT}"
    assert inside.ids("-o", "gpubench_workloads=benches workloads", "--workload=delta") == [node]
    assert inside.ids("-o", "gpubench_workloads=benches workloads", "--workload=beta") == ids_of("beta", 4)


def test_profiles_can_be_named(inside: Inside) -> None:
    (inside.project.workloads / "gpu_profiles.yaml").rename(inside.project.folder / "site.yaml")
    assert inside("--workload=beta").ret == pytest.ExitCode.INTERRUPTED
    assert inside.ids("-o", "gpubench_profiles=site.yaml", "--workload=beta") == ids_of("beta", 4)


# -- pytest's own ways to select ---------------------------------------------------------------------


def test_a_node_id_in_quotes(inside: Inside) -> None:
    (wanted, _) = ids_of("alpha", 8, 4)
    assert inside.ids(wanted) == [wanted]
    assert inside.ids("--workload=alpha", wanted) == [wanted]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-k", "conc8"], ids_of("alpha", 8)),
        (["-k", "tp1-32x16-conc8"], ids_of("alpha", 8)),
        (["-k", "beta or other"], [*ids_of("beta", 4), *ids_of("other", 4)]),
        (["-m", "gb300"], [*ids_of("alpha", 4, 8), *ids_of("beta", 4)]),
        (["-m", "h200 and slurm"], ids_of("other", 4)),
        (["-m", "gpubench(platform='h200')"], ids_of("other", 4)),
        (["-m", "gpubench(recipe='beta', runtime='slurm')"], ids_of("beta", 4)),
        (["-m", "multinode"], []),
    ],
)
def test_keywords_and_markers(inside: Inside, arguments: list[str], expected: list[str]) -> None:
    assert inside.ids("--workload=alpha,beta,other", *arguments) == expected


def test_a_filter_that_leaves_nothing_keeps_exit_5(inside: Inside) -> None:
    result = inside("--workload=beta", "-m", "mi300x")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "error" not in result.stdout.str().lower()


def test_every_id_works_after_k(inside: Inside) -> None:
    text = recipe_text("glm-5", "[2, 8]").replace("org/tiny", "org/GLM-5.2 (FP8)")
    inside.project.write("workloads/glm.yaml", text)
    for node in inside.ids("--workload=glm"):
        point = node.split("[")[1].rstrip("]")
        assert inside.ids("--workload=glm", "-k", point) == [node]


def test_equal_points_are_a_collection_error_that_names_both(inside: Inside) -> None:
    inside.project.recipe("twice", "[8, 16, 8]")
    result = inside("--workload=twice")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*twice.yaml:*tp1-32x16-conc8*"])


def test_last_failed(inside: Inside, pytester: pytest.Pytester) -> None:
    fails = "import pytest\n@pytest.fixture\ndef gpubench_run(gpubench_point):\n"
    fails += "    assert gpubench_point.load.concurrency != 4\n    pytest.skip('met')\n"
    inside.project.write("conftest.py", fails)
    options = ("--mock-slurm", "--workload=alpha,other")
    assert pytester.runpytest_inprocess(*options, "--gpubench-dry-run").ret == pytest.ExitCode.TESTS_FAILED
    result = pytester.runpytest_inprocess("--lf", "--collect-only", "-q", *options)
    assert [line for line in result.outlines if "::" in line] == [*ids_of("alpha", 4), *ids_of("other", 4)]
    result = pytester.runpytest_inprocess("--lf", "--collect-only", "-q", "workloads/alpha.yaml")
    assert [line for line in result.outlines if "::" in line] == ids_of("alpha", 4)


def test_setup_plan_starts_nothing(inside: Inside) -> None:
    result = inside("--workload=beta", "--setup-plan", "--mock-slurm")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*gpubench_server*"])
    assert not (inside.project.folder / "results").exists()


def test_collecting_writes_and_needs_nothing(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert inside.ids("--workload=beta") == ids_of("beta", 4)
    assert not (inside.project.folder / "results").exists()


def test_without_the_plugin_the_projects_own_tests_run(project: Project) -> None:
    project.recipe("alpha")
    project.write("test_own.py", "def test_own(): pass\n")
    project.write("workloads/test_beside.py", "def test_beside(): pass\n")
    run = project.run("-p", "no:gpubench", "-v")
    assert run.code == 0, run.out
    assert set(run.outcomes()) == {"test_own", "test_beside"}


def test_this_repositorys_own_tests_do_not_need_the_plugin(project: Project) -> None:
    run = project.run("-p", "no:gpubench", "tests/recipe/test_yaml.py", cwd=REPOSITORY)
    assert run.code == 0, run.out


def test_arguments_select_beside_workloads(inside: Inside) -> None:
    inside.project.write("tests/test_own.py", "def test_own(): pass\n")
    assert inside.ids("tests", "--workload=beta") == ["tests/test_own.py::test_own", *ids_of("beta", 4)]
    assert inside.ids("tests") == ["tests/test_own.py::test_own"]
    assert inside.ids("workloads", "--workload=beta") == ids_of("beta", 4)


def test_a_yaml_file_that_is_no_recipe_is_left_alone(inside: Inside) -> None:
    inside.project.write("compose.yaml", "services: {}\n")
    inside.project.write("test_own.py", "def test_own(): pass\n")
    assert inside.ids() == ["test_own.py::test_own"]
    assert sorted(inside.ids("--workload=beta", ".")) == ["test_own.py::test_own", *ids_of("beta", 4)]
