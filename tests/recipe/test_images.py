"""The image rules, one line each."""

from __future__ import annotations

import pytest
from recipe_helpers import BENCH, Folder, head

from pytest_gpubench.recipe.images import (
    commit_in_tag,
    docker_form,
    image_allowed,
    image_problem,
    is_squashfs,
    pyxis_form,
    resolve_image,
)

SHA = "0123456789abcdef0123456789abcdef01234567"
ROCM = "vllm/vllm-openai-rocm"


@pytest.mark.parametrize(
    ("env", "recipe", "repository", "image", "commit", "source"),
    [
        ({}, None, None, "vllm/vllm-openai:nightly", None, "default"),
        ({}, None, ROCM, f"{ROCM}:nightly", None, "default"),
        ({}, "team/vllm:v1", None, "team/vllm:v1", None, "recipe"),
        ({}, "team/vllm:v1", ROCM, "team/vllm:v1", None, "recipe"),
        ({}, f"team/vllm:nightly-{SHA}", None, f"team/vllm:nightly-{SHA}", SHA, "recipe"),
        ({"VLLM_COMMIT": SHA}, "team/x:1", None, f"vllm/vllm-openai:nightly-{SHA}", SHA, "VLLM_COMMIT"),
        ({"VLLM_COMMIT": SHA}, "team/x:1", ROCM, f"{ROCM}:nightly-{SHA}", SHA, "VLLM_COMMIT"),
        ({"VLLM_IMAGE": "a/b:c"}, "team/x:1", None, "a/b:c", None, "VLLM_IMAGE"),
        ({"VLLM_IMAGE": "a/b:c", "VLLM_COMMIT": "abc"}, None, None, "a/b:c", "abc", "VLLM_IMAGE"),
        ({"VLLM_IMAGE": f"a/b:nightly-{SHA}"}, None, None, f"a/b:nightly-{SHA}", SHA, "VLLM_IMAGE"),
        # A CUDA image is never served on ROCm: its commit is.
        ({"VLLM_IMAGE": f"a/b:nightly-{SHA}"}, None, ROCM, f"{ROCM}:nightly-{SHA}", SHA, "VLLM_COMMIT"),
        ({"VLLM_IMAGE": "a/b:c"}, "team/x:1", ROCM, "team/x:1", None, "recipe"),
        ({"VLLM_IMAGE": "a/b-rocm:c"}, "team/x:1", ROCM, "a/b-rocm:c", None, "VLLM_IMAGE"),
        ({"VLLM_IMAGE": "  "}, "team/x:1", None, "team/x:1", None, "recipe"),
        ({"VLLM_IMAGE": "x.sqsh"}, None, None, "./x.sqsh", None, "VLLM_IMAGE"),
        ({}, "/containers/x.sqsh", None, "/containers/x.sqsh", None, "recipe"),
    ],
)
def test_precedence(
    env: dict[str, str],
    recipe: str | None,
    repository: str | None,
    image: str,
    commit: str | None,
    source: str,
) -> None:
    found = resolve_image(env, recipe, repository)
    assert (found.name, found.commit, found.source) == (image, commit, source)


@pytest.mark.parametrize(
    ("image", "commit"),
    [
        ("vllm/vllm-openai:nightly-abc1234", "abc1234"),
        ("vllm/vllm-openai:nightly-abc1234-cu130", "abc1234"),
        ("team/x:v1-0123456789ab", "0123456789ab"),
        ("team/x:v1-0123456", None),
        ("localhost:5000/x", None),
        (f"team/x@sha256:{SHA}{SHA[:24]}", None),
        ("/a/nightly-abc1234.sqsh", None),
    ],
)
def test_commits_in_tags(image: str, commit: str | None) -> None:
    assert commit_in_tag(image) == commit


DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("image", "pyxis", "docker"),
    [
        ("vllm/vllm-openai:nightly", "vllm/vllm-openai:nightly", "vllm/vllm-openai:nightly"),
        ("ubuntu", "ubuntu", "ubuntu"),
        (
            "registry.example.com:5050#team/vllm:v1",
            "registry.example.com:5050#team/vllm:v1",
            "registry.example.com:5050/team/vllm:v1",
        ),
        (
            "registry.example.com:5050/team/vllm:v1",
            "registry.example.com:5050#team/vllm:v1",
            "registry.example.com:5050/team/vllm:v1",
        ),
        ("docker://nvcr.io#nvidia/x:1", "docker://nvcr.io#nvidia/x:1", "nvcr.io/nvidia/x:1"),
        ("docker://vllm/vllm-openai:v1", "docker://vllm/vllm-openai:v1", "vllm/vllm-openai:v1"),
        (f"nvcr.io/a/b@{DIGEST}", f"nvcr.io#a/b@{DIGEST}", f"nvcr.io/a/b@{DIGEST}"),
        (f"a/b:v1@{DIGEST}", f"a/b:v1@{DIGEST}", f"a/b:v1@{DIGEST}"),
        ("./x.sqsh", "./x.sqsh", "./x.sqsh"),
        ("/containers/vllm-v0.20.0-cu130.sqsh", "/containers/vllm-v0.20.0-cu130.sqsh", None),
    ],
)
def test_forms(image: str, pyxis: str, docker: str | None) -> None:
    assert image_problem(image) is None
    assert pyxis_form(image) == pyxis
    assert docker is None or docker_form(image) == docker


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("a b", "no blanks"),
        ("'a'", "no blanks, quotes"),
        ("${IMAGE}", "not expanded"),
        ("~/x.sqsh", "~ is not expanded"),
        ("Team/VLLM:v1", "no repository"),
        ("a/b:", "no tag"),
        ("a/b:v1:v2", "no repository"),
        ("a/b@sha256:abc", "no digest"),
        ("a/b@md5:" + "a" * 64, "no digest"),
        ("https://example.com/a/b", "scheme https:// is not known"),
        ("", "no repository"),
        ("a//b", "no repository"),
    ],
)
def test_what_is_no_image(image: str, words: str) -> None:
    assert words in (image_problem(image) or "")


def test_a_bad_image_has_its_place(folder: Folder) -> None:
    text = f"gpu: H200\nvllm:\n  model: a/b\n  image: a b\n{BENCH}"
    assert folder.problem(text).startswith("recipe.yaml:4:10: vllm.image: an image holds no blanks")
    problem = folder.problem(head() + BENCH, env={"VLLM_IMAGE": "a b"})
    assert "(got 'a b') (VLLM_IMAGE)" in problem


def test_a_hash_in_an_unquoted_image_is_kept(folder: Folder) -> None:
    image = "registry.example.com:5050#team/vllm:v1"
    text = f"gpu: H200\nvllm:\n  model: a/b\n  image: {image}\n{BENCH}"
    assert folder.point(text).deployment.image == image


def test_squashfs() -> None:
    assert is_squashfs("x.sqsh")
    assert is_squashfs("./x")
    assert not is_squashfs("a/b:v1")


LOCAL = "H200: {runtime: slurm, local_images_only: true, container: {runtime: pyxis}}"


def test_a_rack_without_registry_takes_files_only(folder: Folder) -> None:
    text = head(num_gpus=8) + BENCH
    problem = folder.problem(text, LOCAL)
    assert "allows .sqsh files only, nothing is imported from a registry there" in problem
    assert "set VLLM_IMAGE or vllm.image to a .sqsh path" in problem
    assert folder.point(text, LOCAL, {"VLLM_IMAGE": "/c/x.sqsh"}).deployment.image == "/c/x.sqsh"


@pytest.mark.parametrize("runtime", ["runtime: native", "runtime: slurm, container: {runtime: none}"])
def test_without_containers_no_image_is_judged(folder: Folder, runtime: str) -> None:
    profile = f"H200: {{local_images_only: true, allowed_images: [x], {runtime}}}"
    assert folder.load(head() + BENCH, profile).warnings == ()


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        ((), True),
        (("vllm/*",), True),
        (("*:nightly",), True),
        (("team/*", "nvcr.io/*"), False),
        (("VLLM/*",), False),
    ],
)
def test_patterns(patterns: tuple[str, ...], allowed: bool) -> None:
    assert image_allowed("vllm/vllm-openai:nightly", patterns) is allowed


ALLOWED = "H200: {allowed_images: ['team/*', 'nvcr.io/*']}"


def test_an_image_that_is_not_allowed_is_noted_with_its_line(folder: Folder) -> None:
    text = f"gpu: H200\nvllm:\n  model: a/b\n  image: vllm/vllm-openai:v1\n{BENCH}"
    (note,) = folder.load(text, ALLOWED).foreign_images
    assert note.place.endswith("recipe.yaml:4:10: vllm.image")
    assert (note.image, note.profile, note.allowed) == (
        "vllm/vllm-openai:v1",
        "H200",
        ("team/*", "nvcr.io/*"),
    )
    assert folder.load(text.replace("vllm/vllm-openai:v1", "team/x:1"), ALLOWED).foreign_images == ()


@pytest.mark.parametrize(("key", "env"), [("nightly: true\n", {}), ("", {"NIGHTLY": "1"})])
def test_and_an_error_under_nightly(folder: Folder, key: str, env: dict[str, str]) -> None:
    assert "matches none of the patterns" in folder.problem(head() + key + BENCH, ALLOWED, env)
