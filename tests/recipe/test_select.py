from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpubench.errors import OptionError
from pytest_gpubench.recipe.select import recipe_files, select_recipes, split_names


@pytest.fixture
def workloads(tmp_path: Path) -> Path:
    folder = tmp_path / "workloads"
    (folder / "kimi").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name, text in {
        "deepseek_v4_flash_gb300_slurm.yaml": "name: deepseek_v4_flash-gb300-slurm # the first\ngpu: X\n",
        "tiny_opt_1node.yaml": "gpu: X\nname: 'tiny-1'\n",
        "tiny_opt_2node.yml": 'name:   "tiny-2"\n',
        "broken.yaml": "name: broken-one\n  : [ {{{ \xff",
        "kimi/h200.yaml": "name: kimi-h200\n",
        "kimi/b200.yaml": "vllm:\n  name: not-this\n",
        ".hidden/x.yaml": "name: x\n",
        "gpu_profiles.yaml": "name: {}\n",
        "notes.txt": "name: notes\n",
    }.items():
        (folder / name).write_text(text, encoding="latin-1")
    return folder


def names(found: list[Path]) -> list[str]:
    return [path.name for path in found]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["deepseek_v4_flash_gb300_slurm"], ["deepseek_v4_flash_gb300_slurm.yaml"]),
        (["deepseek_v4_flash-gb300-slurm"], ["deepseek_v4_flash_gb300_slurm.yaml"]),
        (["tiny-1"], ["tiny_opt_1node.yaml"]),
        (["tiny-2", "tiny-1"], ["tiny_opt_2node.yml", "tiny_opt_1node.yaml"]),
        (["tiny_opt*"], ["tiny_opt_1node.yaml", "tiny_opt_2node.yml"]),
        (["tiny-[12]"], ["tiny_opt_1node.yaml", "tiny_opt_2node.yml"]),
        (["kimi/h200"], ["h200.yaml"]),
        (["kimi/*"], ["b200.yaml", "h200.yaml"]),
        (["broken-one"], ["broken.yaml"]),
        (["tiny-1", "tiny_opt_1node", "workloads/tiny_opt_1node.yaml"], ["tiny_opt_1node.yaml"]),
        (["workloads/tiny_opt_*.y*ml"], ["tiny_opt_1node.yaml", "tiny_opt_2node.yml"]),
    ],
)
def test_what_a_name_means(workloads: Path, wanted: list[str], expected: list[str]) -> None:
    found = select_recipes(wanted, [workloads], workloads.parent)
    assert sorted(names(found)) == sorted(expected)


def test_absolute_paths_and_folders_elsewhere(workloads: Path, tmp_path: Path) -> None:
    path = workloads / "tiny_opt_1node.yaml"
    assert select_recipes([str(path)], [], tmp_path) == [path]
    assert select_recipes([str(workloads / "tiny*1node.yaml")], [], tmp_path) == [path]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["deepsek_v4_flash"], "did you mean deepseek_v4_flash"),
        (["deepseek_v4_flsh_gb300"], "did you mean deepseek_v4_flash_gb300_slurm"),
        (["tiny-1", "TINY-3"], "--workload TINY-3: .*did you mean tiny-2|tiny-1"),
        (["zzz"], "has broken, broken-one, deepseek"),
        (["tiny_opt*", "nothing*"], "--workload nothing\\*"),
        (["workloads/tiny_opt_3node.yaml"], "did you mean tiny_opt_"),
        (["not-this"], "--workload not-this"),
        (["x"], "--workload x"),
        (["notes"], "--workload notes"),
        (["gpu_profiles"], "--workload gpu_profiles"),
    ],
)
def test_an_unknown_name_is_a_usage_error(workloads: Path, wanted: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        select_recipes(wanted, [workloads], workloads.parent)


def test_a_name_that_several_recipes_have(workloads: Path) -> None:
    (workloads / "kimi" / "tiny_opt_1node.yaml").write_text("")
    with pytest.raises(OptionError, match="several recipes have this name"):
        select_recipes(["tiny_opt_1node"], [workloads], workloads.parent)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there are no recipes in"):
        select_recipes(["a"], [tmp_path / "gone"], tmp_path)
    assert recipe_files(tmp_path / "gone") == []


def test_order_does_not_depend_on_the_directory(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        (tmp_path / f"{name}.yaml").write_text("")
    assert names(select_recipes(["*"], [tmp_path], tmp_path)) == ["a.yaml", "b.yaml", "c.yaml"]


def test_lists() -> None:
    assert split_names(["a, b\n\nc,", " d "]) == ["a", "b", "c", "d"]
    assert split_names(["", ","]) == []
