"""Work that is given up, and work that comes and goes a thousand times: nothing of it stays, in both modes.

H6 Cancel during a long scan. H14 The query life cycle a thousand times. I14 Reconnect during hydration.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil
import pytest

from clusterd.driver.driver import carry_out
from clusterd.driver.run import Target, launched
from clusterd.driver.state import Run
from tests.e2e.support import MODES, segments, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROWS = 1_000_000
ANSWERED_WITHIN_S = 0.1
# What a busy machine adds; a scan that went on would use all of it.
CPU_AFTER_CANCEL_S = 0.1
CYCLES = 1_000
MORE_TICKS = 50


@pytest.fixture(scope="module", params=MODES)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """A replica with an index u1 on a million rows (id bigint, payload text)."""
    with launched(Target(mode=request.param, timeout_s=60.0)) as run:
        for line in (
            "create-instance",
            "initialization-complete",
            f"write-single-ts shard=big ts=0 count={ROWS} row-bytes=40",
            "define-index source=1000 index=1 shard=big key=[0] as-of=0 upper=1",
            "schedule id=1",
            "await-frontier id=1 ts=1",
        ):
            assert not carry_out(run, line)[0].startswith("error")
        yield run


def _do(run: Run, line: str, *body: str) -> list[str]:
    return carry_out(run, line, body)


def _process(run: Run, role: str) -> psutil.Process:
    assert run.replica is not None
    return psutil.Process(run.replica.pids["solo/0" if run.mode == "solo" else role])


def test_h6_a_cancel_during_a_long_scan_ends_it_at_once(run: Run) -> None:
    def scan(number: int, patterns: int) -> str:
        """Patterns that match no row, about 1 us each a row; others each time, as what is found is kept."""
        tests = (f'#1 ~ "(0*1)*2(3|4)*{100 * number + n}x"' for n in range(patterns))
        return f"id=1 ts=0 filter=({' OR '.join(tests)})"

    assert _do(run, f"count {scan(4, 1)}") == ["0"]  # the first one of a process takes longer
    patterns, whole_s = 1, 0.0
    while whole_s < 5 * ANSWERED_WITHIN_S:  # how fast a machine is shows only by trying
        assert patterns <= 32, f"{patterns // 2} patterns take {whole_s:.2f} s: too short to be cancelled"
        start = time.monotonic()
        assert _do(run, f"count {scan(5 + patterns, patterns)}") == ["0"]
        whole_s = time.monotonic() - start
        print(f"h6 {run.mode}: a scan for {patterns} patterns takes {whole_s:.2f} s")
        patterns *= 2
    process = _process(run, "interactive/0")
    took_s: list[float] = []
    for number in range(5):
        assert _do(run, f"start-peek name=a{number} {scan(number, patterns)} project=(#0)") == ["ok"]
        _do(run, "sleep ms=20")
        assert _do(run, f"cancel-peek name=a{number} no-sync") == ["ok"]
        start = time.monotonic()
        assert _do(run, f"await-peek name=a{number}") == ["canceled"]
        took_s.append(time.monotonic() - start)
    # The median, as others may be using the machine.
    assert sorted(took_s)[2] < ANSWERED_WITHIN_S, took_s
    assert _do(run, "peek id=1 ts=0 keys=[(5)] project=(#0)") == ["5"]
    used = process.cpu_times().user
    assert _do(run, "quiet ms=300 kind=peek") == ["ok"]
    used_s = process.cpu_times().user - used
    assert used_s < CPU_AFTER_CANCEL_S, f"{used_s} s of CPU after the cancel"


def _counts(run: Run) -> dict[str, int]:
    """What of a replica can be counted from outside."""
    assert run.replica is not None
    counts = {"segments": len(segments(run.replica.instance))}
    for name, pid in run.replica.pids.items():
        counts[f"descriptors of {name}"] = len(os.listdir(f"/proc/{pid}/fd"))
        counts[f"threads of {name}"] = psutil.Process(pid).num_threads()
    return counts


def test_h14_a_query_a_thousand_times_leaves_nothing_behind(run: Run) -> None:
    assert _do(run, "write-rows shard=s ts=0", "0 a") == ["wrote 1"]
    define = "define-index source=1001 index=2 shard=s key=[0] as-of=0 upper=1"
    assert _do(run, define) == _do(run, "schedule id=2") == _do(run, "await-frontier id=2 ts=1") == ["ok"]
    now = 0

    def query(number: int) -> None:
        nonlocal now
        if number % (CYCLES // MORE_TICKS) == 0:
            now += 1
            assert _do(run, f"write-rows shard=s ts={now}", f"{now} a") == ["wrote 1"]
        id = f"t{number + 1}"
        body = (
            "import index=2",
            "build id=t9000",
            "  Reduce aggregates=[count(*)]",
            "    Get u2",
            f"export index={id} on=t9000 key=[]",
        )
        create = f"create-dataflow name=q as-of={now} until={now + 1} no-sync"
        assert _do(run, create, *body) == _do(run, f"schedule id={id} no-sync") == ["ok"]
        assert _do(run, f"peek id={id} ts={now}") == [str(now + 1)], number
        assert _do(run, f"allow-compaction id={id} frontier=[] no-sync") == ["ok"]
        assert _do(run, f"allow-compaction id=2 frontier={now} no-sync") == ["ok"]

    def settled(number: int) -> dict[str, int]:
        assert _do(run, f"await-gone id=t{number + 1}") == ["ok"]
        assert _do(run, f"await-published id=2 since={now} upper={now + 1}") == ["ok"]
        return _counts(run)

    query(0)
    first = settled(0)
    for number in range(1, CYCLES):
        query(number)
    last = settled(CYCLES - 1)
    print(f"h14 {run.mode}: {first}, {last}")

    def nothing_stays() -> bool:
        return all(count <= first[what] for what, count in _counts(run).items())

    wait_until(nothing_stays, 10.0, f"no more than {first}, it was {last}")
    assert _do(run, "published id=2 fields=since,upper") == [f"since={now} upper={now + 1}"]
    assert _do(run, "allow-compaction id=2 frontier=[]") == _do(run, "await-gone id=2") == ["ok"]


def test_i14_a_reconnect_during_hydration_loses_no_progress(run: Run) -> None:
    process = _process(run, "maintenance/0")

    def define(index: int) -> None:
        body = (
            "import source=1000 shard=big upper=1",
            "build id=9000",
            "  Filter #2 = 0",
            "    FlatMap generate_series(0, 19, 1)",
            "      Get u1000",
            f"export index={index} on=9000 key=[0]",
        )
        assert _do(run, "create-dataflow as-of=0", *body) == _do(run, f"schedule id={index}") == ["ok"]

    def hydrated_s(index: int, share_s: float | None) -> float:
        """CPU seconds until `index` stands; with a reconnect after `share_s` of them."""
        used = process.cpu_times().user
        define(index)
        if share_s is not None:
            wait_until(lambda: process.cpu_times().user - used > share_s, 30.0, "a share of the work is done")
            assert _do(run, "reconnect") == ["ok"]
            assert _do(run, "define-index source=1000 index=1 shard=big key=[0] as-of=0 upper=1") == ["ok"]
            assert _do(run, "schedule id=1") == ["ok"]
            define(index)
            assert _do(run, f"frontiers id={index}") == ["write=? input=? output=?"]
            assert _do(run, "initialization-complete") == ["ok"]
        assert _do(run, f"await-frontier id={index} ts=1") == ["ok"]
        print(f"i14 {run.mode}: u{index} took {process.cpu_times().user - used:.2f} s of CPU")
        return process.cpu_times().user - used

    def drop(index: int) -> None:
        assert _do(run, f"allow-compaction id={index} frontier=[]") == ["ok"]
        assert _do(run, f"await-gone id={index}") == ["ok"]

    whole_s = hydrated_s(12, None)
    drop(12)
    with_reconnect_s = hydrated_s(13, whole_s * 0.3)
    assert with_reconnect_s < 1.25 * whole_s + 0.1
    assert _do(run, "count id=13 ts=0") == [str(ROWS)]
    drop(13)
