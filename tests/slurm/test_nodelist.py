from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpubench.errors import SlurmError
from pytest_gpubench.slurm.nodelist import compress, expand


def test_fc_32_brackets_zeros_dashes_and_mixed_lists() -> None:
    hosts = expand("gb-r[01-02]-n[09-10],login7,gb-x[001,003-004]")
    assert hosts == (
        "gb-r01-n09",
        "gb-r01-n10",
        "gb-r02-n09",
        "gb-r02-n10",
        "login7",
        "gb-x001",
        "gb-x003",
        "gb-x004",
    )


@pytest.mark.parametrize(
    "text",
    [
        "gb[01-",
        "gb01-02]",
        "gb[]",
        "gb[01-02",
        "",
        ",",
        "a,,b",
        "gb[02-01]",
        "gb[1-010]",
        "gb[009-10]",
        "gb[[1]]",
        "gb[a-b]",
        "gb[1-2-3]",
        "gb[1,]",
        "gb 01",
        "(null)",
        "gb[0-99999999]",
        "gb[٣-٤]",
        "a;b",
        "gb[0-9][0-9][0-9][0-9][0-9][0-9]",
    ],
)
def test_fc_32_a_malformed_list_is_an_error_not_a_host(text: str) -> None:
    with pytest.raises(SlurmError, match="cannot be read"):
        expand(text)


def test_fc_32_another_count_than_requested_is_an_error() -> None:
    assert expand("gb[01-02]", expected=2) == ("gb01", "gb02")
    with pytest.raises(SlurmError, match=r"holds 2 hosts, the job asked for 3"):
        expand("gb[01-02]", expected=3)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[00-100]", [f"n{i:02d}" for i in range(101)]),
        ("a[1-2]b[3,5].site", ["a1b3.site", "a1b5.site", "a2b3.site", "a2b5.site"]),
        ("a[1-2][7-8]", ["a17", "a18", "a27", "a28"]),
        ("x-1-2", ["x-1-2"]),
        ("b2,a1", ["b2", "a1"]),
    ],
)
def test_order_and_width(text: str, hosts: list[str]) -> None:
    assert list(expand(text)) == hosts


def test_compress_makes_runs_and_keeps_the_order() -> None:
    assert compress(["gb01", "gb02", "gb03", "gb07", "login"]) == "gb[01-03,07],login"
    assert compress(["n9", "n10", "n010"]) == "n[9-10,010]"
    assert compress([]) == ""


hostname = st.from_regex(r"[a-z]{1,3}(-?[0-9]{1,4}){0,3}(\.[a-z]{1,3})?", fullmatch=True)


@given(st.lists(hostname, min_size=1, max_size=30))
@example(["a99", "a100"])
@example(["a099", "a100"])
@example(["a00", "a1", "a2"])
@example(["a-1", "a-02", "a-03"])
def test_round_trip(hosts: list[str]) -> None:
    assert list(expand(compress(hosts))) == hosts


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 5))
def test_round_trip_of_runs(low: int, count: int, width: int) -> None:
    hosts = [f"r1-n{number:0{width}d}" for number in range(low, low + count)]
    text = compress(hosts)
    assert list(expand(text)) == hosts
    assert "," not in text


@given(st.text(alphabet="ab01-9[],. x", max_size=25))
def test_any_text_gives_hosts_or_a_slurm_error(text: str) -> None:
    try:
        hosts = expand(text)
    except SlurmError:
        return
    assert hosts
    assert all(host and not set(host) & set("[], ") for host in hosts)
