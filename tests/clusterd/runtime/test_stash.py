"""Large answers go in parts: the same rows, one answer however it ends, nothing left, little memory."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterd.multiplexer import events as mx
from clusterd.runtime.evaluate import Readable, Stashing, evaluate, evaluate_pieces
from clusterd.runtime.limits import Limits
from clusterd.runtime.scans import AT_ONCE
from clusterd.runtime.stash import Stash, Stashes
from controller_proto.command import CancelPeek, Finishing, Peek, UpdateConfiguration
from controller_proto.parts import Parts
from controller_proto.plan import OrderBy
from controller_proto.response import PeekCanceled, PeekError, PeekPart, PeekResponse, PeekRows
from controller_proto.schema import Column, ColumnType, Schema
from tests.clusterd.runtime.shell import Shell
from tests.clusterd.runtime.test_evaluate import index, plus

MODES = pytest.mark.parametrize("workers", [0, 1, 2])
TEXTS = Schema((Column("k", ColumnType.INT64), Column("text", ColumnType.TEXT)))
ROWS = [(k, f"{k:06d}" + "x" * 194) for k in range(4000)]
BIG = 1 << 30
SMALL_ROWS = [(k, "y" * 40) for k in range(4)]


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[int], Shell]:
    def make(workers: int) -> Shell:
        replica = Shell(tmp_path, workers)
        replica.boot()
        replica.write(ROWS, 0)
        replica.index("u1")
        replica.settle()
        replica.send(UpdateConfiguration(0, {"stash_result_bytes": 1000}))
        return replica

    return make


def _open_files() -> int:
    """Files without a name that this process has, but for shared memory."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(name.endswith(" (deleted)") and not name.startswith("/dev/shm/") for name in found)


def _stashed(replica: Shell) -> int:
    return sum(loop._stashes.statistics().answers for loop in replica.loops)


def _at_rest(replica: Shell) -> bool:
    """Whether no worker keeps anything of a peek."""
    return _stashed(replica) == 0 and all(
        len(loop._scans) == 0 and len(loop.core.state.peeks) == 0 for loop in replica.loops
    )


# -- the parts by themselves --------------------------------------------------------------------------------


def test_a_stash_gives_its_messages_in_order_and_its_file_has_no_name(tmp_path: Path) -> None:
    before = _open_files()
    stash = Stash(tmp_path)
    messages = [os.urandom(size) for size in (1, 0, 70_000, 3)]
    for message in messages:
        stash.append(message)
    assert (stash.nbytes, len(stash)) == (70_004, 4)
    assert list(tmp_path.iterdir()) == []
    assert [stash.take() for _ in messages] == messages
    assert len(stash) == 0
    stash.close()
    assert _open_files() == before


def test_stashes_tell_what_is_asked_for_in_that_order_and_let_go_of_the_file_with_the_last() -> None:
    before, stashes = _open_files(), Stashes(None)
    for name, count in (((1, "a"), 2), ((1, "b"), 1)):
        stash = stashes.create()
        for number in range(count):
            stash.append(b"%d" % number)
        stashes.add(name, stash)
    assert not stashes.has_asked
    stashes.ask((1, "b"))
    stashes.ask((1, "a"))
    stashes.ask((1, "gone"))
    assert stashes.tell() == ((1, "b"), b"0", True)
    assert stashes.tell() == ((1, "a"), b"0", False)
    assert not stashes.has_asked
    assert (stashes.statistics().answers, stashes.statistics().made) == (1, 2)
    stashes.ask((1, "a"))
    stashes.drop((1, "a"))
    assert not stashes.has_asked
    stashes.clear()
    assert _open_files() == before


def _run(pieces: Any) -> Any:
    """What the generator returns."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value


def _both(readable: Readable, keys: Any = None, **finishing: Any) -> tuple[PeekResponse, PeekResponse, int]:
    """The answer in one message, the one put together of parts, and how many messages these were."""
    peek = Peek(1, "p", "u1", 50, keys, Finishing(**finishing))
    stashing = Stashing(0, 1 << 20, lambda: Stash(None))
    pieces = evaluate_pieces(peek, 50, readable, limits=Limits(BIG), served_by="solo", stashing=stashing)
    found = _run(pieces)
    plain = evaluate(peek, 50, readable, limits=Limits(BIG), served_by="solo")
    whole = msgspec.msgpack.decode(plain, type=PeekResponse)
    if isinstance(found, bytes):
        assert found == plain
        return whole, whole, 1
    parts, count = Parts(), len(found)
    for _ in range(count - 1):
        assert parts.take(msgspec.msgpack.decode(found.take(), type=PeekPart)) is None
    answer = parts.take(msgspec.msgpack.decode(found.take(), type=PeekResponse))
    found.close()
    assert answer is not None
    return whole, answer, count


@pytest.mark.slow
@pytest.mark.parametrize(
    "finishing",
    [
        {},
        {"order_by": (OrderBy(1, descending=True),), "limit": 3200, "offset": 500},
        {"projection": (1,)},
        {"projection": ()},
        {"projection": (1, 0, 1)},
    ],
)
def test_an_answer_in_parts_has_the_rows_of_the_one_message(finishing: dict[str, Any]) -> None:
    readable = index(TEXTS, plus(ROWS))
    for keys in (None, tuple((k,) for k in range(0, 4000, 2))):
        whole, answer, count = _both(readable, keys, **finishing)
        assert isinstance(whole.result, PeekRows)
        assert isinstance(answer.result, PeekRows)
        assert answer.result.columns == whole.result.columns
        assert answer.result.counts == whole.result.counts
        assert (answer.time, answer.served_by, answer.result.parts) == (50, "solo", count - 1)
        assert count > 1 or finishing.get("projection") == ()


def test_errors_and_no_rows_are_told_as_ever() -> None:
    readable = index(TEXTS, plus(SMALL_ROWS))
    for keys in ((), ((17,),)):
        whole, answer, count = _both(readable, keys)
        assert (answer, count) == (whole, 1)
    negative = index(TEXTS, [((1, "a"), 0, -1)])
    whole, answer, count = _both(negative)
    assert isinstance(answer.result, PeekError)
    assert (answer, count) == (whole, 1)


@pytest.mark.slow
def test_a_row_that_fits_no_frame_is_an_error_and_what_fits_together_only_by_parts_goes_so() -> None:
    long = index(TEXTS, plus([(1, "z" * 3000), (2, "a")]))
    peek = Peek(1, "p", "u1", 50)

    def run(readable: Readable, limit_bytes: int, message_bytes: int) -> Any:
        stashing = Stashing(limit_bytes, message_bytes, lambda: Stash(None))
        pieces = evaluate_pieces(peek, 50, readable, limits=Limits(BIG), served_by="solo", stashing=stashing)
        return _run(pieces)

    before = _open_files()
    refused = msgspec.msgpack.decode(run(long, 0, 2000), type=PeekResponse).result
    assert refused.code == "result-too-large"
    assert "a frame 2000 at most" in refused.message
    assert _open_files() == before
    wide = Schema(tuple(Column(f"c{n}", ColumnType.TEXT) for n in range(40)))
    empty = index(wide, plus([("",) * 39 + (f"{k}",) for k in range(20_000)]))
    stash = run(empty, BIG, 700_000)  # 8 bytes a row as it is counted, over 40 on the wire
    assert isinstance(stash, Stash)
    assert len(stash) > 1
    stash.close()


def test_b16_memory_of_a_large_answer_is_bounded_by_a_part_of_it() -> None:
    readable = index(TEXTS, plus([(k, f"{k:06d}" + "x" * 194) for k in range(20_000)]))
    peek = Peek(1, "p", "u1", 50)

    def peak(stash: bool) -> int:
        stashing = Stashing(0, 1 << 26, lambda: Stash(None)) if stash else None
        pieces = evaluate_pieces(peek, 50, readable, limits=Limits(BIG), served_by="solo", stashing=stashing)
        tracemalloc.start()
        try:
            found = _run(pieces)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            if isinstance(found, Stash):
                found.close()

    columns = 20_000 * 216  # what is kept of it in columns, some times over while it is put in order
    whole, stashed = peak(stash=False), peak(stash=True)
    assert whole > stashed + 2 * columns
    assert stashed < 5 * columns


# -- a replica ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@MODES
def test_z27_a_large_answer_comes_in_parts_in_either_mode_and_leaves_nothing(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        before = _open_files()
        replica.peek("a", "u1", 0)
        replica.peek("keys", "u1", 0, tuple((k,) for k in range(0, 4000, 3)))
        replica.peek("latest", "u1", None, order_by=(OrderBy(0, descending=True),), limit=2000)
        replica.peek("small", "u1", 0, ((17,),))
        replica.settle()
        assert replica.rows("a") == ROWS
        assert replica.rows("keys") == ROWS[::3]
        assert replica.rows("latest") == ROWS[:1999:-1]
        assert replica.rows("small") == [ROWS[17]]
        answer = replica.answer("a")
        assert answer is not None
        assert isinstance(answer.result, PeekRows)
        assert answer.result.parts > 1
        small = replica.answer("small")
        assert small is not None
        assert isinstance(small.result, PeekRows)
        assert small.result.parts == 0
        assert replica.parts_heard > 4
        assert sum(loop._stashes.statistics().made for loop in replica.loops) == 3
        assert _at_rest(replica)
        assert _open_files() == before
        replica.send(UpdateConfiguration(0, {"max_result_bytes": 100_000}))
        replica.peek("too large", "u1", 0)
        replica.settle()
        assert replica.error("too large").code == "result-too-large"


def _waiting(replica: Shell) -> bool:
    return any(len(loop._scans) for loop in replica.loops)


def _told(replica: Shell) -> bool:
    return _stashed(replica) == 1


def _under_way(replica: Shell) -> bool:
    return replica.mux._state.sessions[replica.session].fetching is not None


def _in_between(replica: Shell) -> bool:
    return replica.parts_heard == 1


STATES: list[tuple[str, bool, Callable[[Shell], bool]]] = [
    ("waits for its turn", True, _waiting),
    ("stashed and not told of", True, _told),
    ("a part is under way", True, _under_way),
    ("a part was taken", True, _in_between),
    ("nobody takes a part", False, lambda replica: False),
]


@MODES
@pytest.mark.parametrize(("name", "takes", "state"), STATES, ids=[name for name, _, _ in STATES])
def test_z18_h6_a_cancel_is_answered_once_in_each_state_and_frees_the_file(
    shell: Callable[[int], Shell], workers: int, name: str, takes: bool, state: Callable[[Shell], bool]
) -> None:
    with shell(workers) as replica:
        before = _open_files()
        replica.takes_parts = takes
        replica.peek("a", "u1", 0)
        replica.settle(until=lambda: state(replica))
        assert replica.answer("a") is None
        replica.send(CancelPeek(0, "a"))
        replica.settle()
        answer = replica.answer("a")
        assert answer is not None
        assert answer.result == PeekCanceled()
        assert _at_rest(replica)
        assert _open_files() == before
        assert len(replica.parts) == 0
        replica.takes_parts = True
        replica.peek("b", "u1", 0, limit=100)
        replica.settle()
        assert replica.rows("b") == ROWS[:100]
        assert replica.mux.statistics().peeks_in_flight == 0


@MODES
def test_z18_a_cancel_behind_a_part_that_was_asked_for_is_the_answer(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.takes_parts = False
        replica.peek("a", "u1", 0)
        replica.settle()
        replica._perform(replica.mux.fetch(replica.session))
        loop = next(loop for loop in replica.loops if len(loop._scans))
        loop.read()
        assert loop.has_work
        replica.send(CancelPeek(0, "a"))
        loop.read()
        assert not loop.has_work
        replica.settle()
        answer = replica.answer("a")
        assert answer is not None
        assert answer.result == PeekCanceled()
        assert replica.parts_heard == 0
        assert _at_rest(replica)


@MODES
@pytest.mark.parametrize(("name", "takes", "state"), STATES, ids=[name for name, _, _ in STATES])
def test_h4_a_client_that_goes_takes_its_large_answers_with_it(
    shell: Callable[[int], Shell], workers: int, name: str, takes: bool, state: Callable[[Shell], bool]
) -> None:
    with shell(workers) as replica:
        before = _open_files()
        replica.takes_parts = takes
        replica.peek("a", "u1", 0)
        replica.settle(until=lambda: state(replica))
        replica.to_mux(mx.Closed(replica.session))
        replica.settle()
        assert replica.answer("a") is None
        assert _at_rest(replica)
        assert _open_files() == before
        assert replica.mux.sessions_to_fetch == []


@MODES
def test_r8_an_index_that_is_dropped_ends_no_answer_that_is_stashed(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.takes_parts = False
        replica.peek("a", "u1", 0)
        replica.settle()
        replica.drop("u1")
        replica.settle()
        assert not replica.names()
        replica.takes_parts = True
        replica.settle()
        assert replica.rows("a") == ROWS


@MODES
def test_b8_who_does_not_take_his_answers_has_four_of_them_stashed_and_delays_nobody(
    shell: Callable[[int], Shell], workers: int
) -> None:
    with shell(workers) as replica:
        replica.takes_parts = False
        for number in range(10):
            replica.peek(f"large {number}", "u1", 0)
        replica.settle()
        assert all(loop._stashes.statistics().answers <= AT_ONCE for loop in replica.loops)
        assert replica.parts_heard == 0
        assert not any(loop.has_work for loop in replica.loops)
        replica.peek("key", "u1", 0, ((5,),))
        replica.settle()
        assert replica.rows("key") == [ROWS[5]]
        replica.takes_parts = True
        replica.settle()
        for number in range(10):
            assert replica.rows(f"large {number}") == ROWS
        assert _at_rest(replica)


@MODES
def test_a_disk_without_room_costs_the_answer_and_nothing_else(
    shell: Callable[[int], Shell], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shell(workers) as replica:
        for loop in replica.loops:
            monkeypatch.setattr(loop._stashes, "_directory", Path("/nowhere"))
        replica.peek("a", "u1", 0)
        replica.peek("b", "u1", 0, ((1,), (2,)))
        replica.settle()
        assert replica.error("a").code == "limit"
        assert "/nowhere" in replica.error("a").message
        assert replica.rows("b") == ROWS[1:3]
        assert _at_rest(replica)
