"""Cores that are kept for reads: how they are written, who runs where, and that a daemon's processes do."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from clusterd.__main__ import main
from clusterd.cores import parse_cores, plan_cores
from clusterd.launcher import launch

EIGHT = frozenset(range(8))


@pytest.mark.parametrize(
    ("text", "cores"), [("1", (1,)), ("3,1-2", (1, 2, 3)), ("0-6", tuple(range(7))), (" 2 , 2", (2,))]
)
def test_cores_are_written_as_for_taskset(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text, EIGHT) == cores


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("one", "lists no cores"), ("", "lists no cores"), ("3-1", "lists no cores"),
        ("-1", "lists no cores"), ("0-9999999", "lists no cores"),
        ("8", "core 8 is not there"), ("0-7", "no core is left"),
    ],
)  # fmt: skip
def test_cores_that_cannot_be_kept_are_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_cores(text, EIGHT)


def test_what_reads_has_the_kept_cores_and_the_rest_has_all_others() -> None:
    assert plan_cores((2, 3), EIGHT, reads=True) == {2, 3}
    assert plan_cores((2, 3), EIGHT, reads=False) == EIGHT - {2, 3}
    assert plan_cores((), EIGHT, reads=True) == plan_cores((), EIGHT, reads=False) == EIGHT


def test_cores_are_kept_only_where_something_reads_on_them() -> None:
    kept = min(os.sched_getaffinity(0))
    asked = CliRunner().invoke(main, ["serve", "--read-cores", str(kept)])
    assert asked.exit_code == 2
    assert "--interactive-workers" in asked.output or "no core is left" in asked.output
    asked = CliRunner().invoke(main, ["serve", "--interactive-workers", "1", "--read-cores", "x"])
    assert (asked.exit_code, "'x' lists no cores" in asked.output) == (2, True)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_the_processes_of_a_daemon_run_on_the_cores_kept_for_them() -> None:
    allowed = os.sched_getaffinity(0)
    kept = max(allowed)
    with launch({"enable_two_runtime_compute": True}, read_cores=str(kept)) as replica:
        where = {name: os.sched_getaffinity(pid) for name, pid in replica.pids.items()}
    assert where["mux"] == where["interactive/0"] == {kept}
    assert where["maintenance/0"] == allowed - {kept}
