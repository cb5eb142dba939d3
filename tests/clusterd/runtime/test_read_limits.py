"""What one read may take, with real workers: limits name themselves, alike in both modes and runtimes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller_proto.command import CancelPeek, Finishing, Peek, ReadLimits, UpdateConfiguration
from controller_proto.plan import OrderBy
from controller_proto.response import PeekError, PeekRows
from tests.clusterd.runtime.shell import Shell

MODES = pytest.mark.parametrize("workers", [0, 1], ids=["solo", "two-runtime"])
ROWS = 40_000


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[int], Shell]:
    def make(workers: int) -> Shell:
        replica = Shell(tmp_path, workers)
        replica.boot()
        replica.write([(i, "x") for i in range(ROWS)], 0)
        replica.index("u1")
        replica.settle()
        return replica

    return make


def _ask(replica: Shell, uuid: str, keys: Any = None, **more: Any) -> None:
    replica.send(Peek(0, uuid, "u1", 0, keys, **more))


@MODES
def test_a_limit_of_the_read_or_of_the_settings_is_told_by_its_name(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        _ask(replica, "own", limits=ReadLimits(rows_read=100))
        _ask(replica, "point", ((7,),), limits=ReadLimits(rows_read=1, result_rows=1))
        _ask(replica, "none", ((7,),), limits=ReadLimits(rows_read=0))
        replica.settle()
        assert replica.error("own").code == replica.error("none").code == "limit"
        assert replica.error("own").message.endswith("limits.rows_read, which is 100")
        assert replica.rows("point") == [(7, "x")]
        replica.send(UpdateConfiguration(0, {"max_rows_read": 10, "max_result_rows": 1}))
        _ask(replica, "all")
        _ask(replica, "two", ((7,), (8,)))
        _ask(replica, "more than may be", limits=ReadLimits(rows_read=10**9))
        replica.settle()
        assert replica.error("all").message.endswith("max_rows_read, which is 10")
        assert replica.error("more than may be").message == replica.error("all").message
        assert replica.error("two").message == "the answer has 2 rows, max_result_rows is 1"


@MODES
def test_a_read_over_rows_read_stops_where_it_is(shell: Callable[[int], Shell], workers: int) -> None:
    with shell(workers) as replica:
        replica.write([(i, "y") for i in range(4 * ROWS)], 1)
        replica.settle()
        turns: list[int] = []
        for limits in (ReadLimits(rows_read=10), ReadLimits()):
            replica.send(Peek(0, f"p{len(turns)}", "u1", 1, None, Finishing(projection=()), limits=limits))
            replica.reader._scan_s = 0.0  # one piece a turn
            before = replica.reader.scan_pieces
            replica.settle()
            turns.append(replica.reader.scan_pieces - before)
        assert turns[0] == 1 < turns[1]


@MODES
def test_the_run_time_counts_from_the_snapshot_and_is_a_timer_of_the_loop(
    shell: Callable[[int], Shell], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("clusterd.runtime.loop.time.monotonic", lambda: now)
    with shell(workers) as replica:
        loop = replica.reader
        loop._scan_s = 0.0  # one piece a turn
        order = Finishing(order_by=(OrderBy(0, True),))
        _ask(replica, "hasty", finishing=order, limits=ReadLimits(run_s=5.0))
        _ask(replica, "point", ((1,),), limits=ReadLimits(run_s=0.0))
        _ask(replica, "patient", finishing=order)
        loop.turn()
        now += 5.0
        replica.settle()
        error = replica.error("hasty")
        assert (error.code, error.message) == (
            "timeout", "u1 was read for 5 s, which is limits.run_s, and there is no answer yet",
        )  # fmt: skip
        assert replica.rows("point") == [(1, "x")]
        assert len(replica.rows("patient")) == ROWS
        _ask(replica, "by setting", finishing=order)
        loop.turn()
        replica.send(UpdateConfiguration(0, {"run_limit": 2.0}))
        now += 2.0
        replica.settle()
        assert replica.error("by setting").message.startswith("u1 was read for 2 s, which is run_limit")
        assert not len(loop._scans)


@MODES
def test_an_answer_that_is_stashed_is_made_and_runs_out_of_no_time(
    shell: Callable[[int], Shell], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("clusterd.runtime.loop.time.monotonic", lambda: now)
    with shell(workers) as replica:
        replica.takes_parts = False
        _ask(replica, "large", limits=ReadLimits(run_s=5.0))
        replica.settle()
        now += 100.0
        replica.settle()
        assert replica.answer("large") is None
        replica.takes_parts = True
        replica.settle()
        assert len(replica.rows("large")) == ROWS


def test_both_runtimes_give_the_same_answers_wherever_a_hint_sends_a_peek(tmp_path: Path) -> None:
    with Shell(tmp_path, 2) as replica:
        replica.boot()
        replica.write([(i % 50, f"v{i % 7}") for i in range(500)], 0)
        replica.write([(3, "v3"), (4, "v4")], 1, -1)
        replica.write([(100, "gone")], 2, -1)
        replica.index("u1")
        replica.settle()
        replica.send(UpdateConfiguration(0, {"read_routing": "hinted"}))
        finishings: list[dict[str, Any]] = [
            {}, {"limit": 3}, {"order_by": (OrderBy(1, True),), "offset": 2, "limit": 5},
            {"projection": (1,)},
        ]  # fmt: skip
        reads: list[tuple[int | None, Any, dict[str, Any], ReadLimits]] = [
            (time, keys, finishing, limits)
            for time in (0, 1, 2, None)
            for keys in (None, (), ((3,),), ((4,), (999,), (4,)))
            for finishing in finishings
            for limits in (ReadLimits(), ReadLimits(rows_read=8), ReadLimits(result_rows=4, result_bytes=60))
        ]
        for number, (time, keys, finishing, limits) in enumerate(reads):
            for runtime in ("interactive", "maintenance"):
                peek = Peek(0, f"{runtime}{number}", "u1", time, keys, Finishing(**finishing), limits=limits)
                replica.send(msgspec.structs.replace(peek, runtime=runtime))
        replica.settle()
        kinds = set()
        for number, read in enumerate(reads):
            interactive, maintenance = (
                replica.answer(f"{runtime}{number}") for runtime in ("interactive", "maintenance")
            )
            assert interactive is not None
            assert maintenance is not None
            assert (interactive.result, interactive.time) == (maintenance.result, maintenance.time), read
            assert (interactive.served_by, maintenance.served_by) == ("interactive", "maintenance")
            result = interactive.result
            kinds.add(result.code if isinstance(result, PeekError) else type(result).__name__)
        assert kinds == {"PeekRows", "invalid-data", "limit", "result-too-large"}


@MODES
def test_decision_15_a_canceled_read_has_no_further_piece_and_no_memory_in_any_state(
    shell: Callable[[int], Shell], workers: int
) -> None:
    """Pieces are counted, not time: what a cancel frees is free in the turn that reads it."""
    with shell(workers) as replica:
        loop = replica.reader
        loop._scan_s = 0.0  # one piece a turn
        order = Finishing(order_by=(OrderBy(0, True),))
        states: dict[str, Callable[[], bool]] = {
            "not begun": lambda: not loop.core.statistics().peeks.ready,
            "waits for its turn": lambda: loop.core.statistics().peeks.ready == 1,
            "walks": lambda: loop.scan_pieces >= begun + 1,
            "sorts": lambda: loop.scan_pieces >= begun + 6,
            "is stashed": lambda: bool(loop._stashes.statistics().answers),
        }
        for state, reached in states.items():
            begun = loop.scan_pieces
            replica.takes_parts = state != "is stashed"
            _ask(replica, state, finishing=order)
            replica.settle(until=reached)
            replica.send(CancelPeek(0, state))
            loop.read()
            pieces = loop.scan_pieces
            assert (len(loop._scans), loop._stashes.statistics().answers) == (0, 0), state
            replica.settle()
            assert loop.scan_pieces == pieces, state
            answer = replica.answer(state)
            assert answer is not None
            assert not isinstance(answer.result, PeekRows), state
