from __future__ import annotations

import pytest

from pytest_gpubench.recipe.slurm_forms import gres_gpus, mount_problem, seconds_of, time_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("10:30", 630),
        ("03:00:00", 10800),
        ("100:00:00", 360000),
        ("1-0", 86400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("2-01:02:03", 176523),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_time_limits(text: str, seconds: float | None) -> None:
    assert time_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "3h", "1:2:3:4", "-5", "1-", "a", "03:00:00:00", "1.5"])
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match="expected a Slurm time"):
        time_seconds(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("1d", 86400), ("01:00:00", 3600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "x", "0s", "00:00", "UNLIMITED"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:gb300", 1),
        ("gpu:gb300:4(S:0-1)", 4),
        ("gpu:gb300:4,nvme:1", 4),
        ("gpu:gb300:8", 8),
        ("gres/gpu:2", 2),
        ("gpu:a:2,gpu:b:2", 4),
        ("nvme:1", None),
    ],
)
def test_gres_counts(text: str, count: int | None) -> None:
    assert gres_gpus(text) == count


@pytest.mark.parametrize("text", ["", "gpu:", "gpu:a:b:c", "gpu:a:b", "gpu 4", ":4", "gpu:4,"])
def test_malformed_gres(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        gres_gpus(text)


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("/data/team a/models:/models", "'/data/team a/models' holds a space"),
        ("/data/a,b:/y", "'/data/a,b' holds a comma"),
        ("/data/v:1:/x", "'/data/v:1' holds a colon"),
        ("results:/out", "the source 'results' is not an absolute path"),
        ("/a", "expected SRC:DST"),
        ("/a:b", "holds a colon"),
        ("/a:/b:ro,rw", "holds a comma"),
        ("/a:/b:ro:rw", "colon"),
        ("/a:/b:", "flags"),
    ],
)
def test_mounts_that_pyxis_would_misread(mount: str, words: str) -> None:
    assert words in (mount_problem(mount) or "")


@pytest.mark.parametrize(
    "mount", ["/scratch:/scratch:ro+rprivate", "/home/bench:/nfs_home", "/a:/b:x-create=dir+bind"]
)
def test_good_mounts(mount: str) -> None:
    assert mount_problem(mount) is None
