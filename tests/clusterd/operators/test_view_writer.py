"""A view's shard is the collection at every time: whoever writes, restarts or is slower."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import Columns, Delta, Round
from clusterd.operators.corrections import Corrections
from clusterd.operators.export_view import ExportView
from clusterd.operators.view_writer import Unwritable, ViewWriter
from controller_proto.errors import Refusal
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

COLUMNS: Columns = (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True))
TYPES = tuple(spec.type for spec in COLUMNS)
ERROR = "eval-error: division by zero"
Change = tuple[tuple[Any, ...], int, int]


class Stored:
    """A shard in memory (view_writer.StoredCollection)."""

    def __init__(self, columns: Columns = COLUMNS) -> None:
        self.specs = columns
        self.upper = self.since = Frontier.minimum()
        self.rows: list[Updates] = []
        self.errors: list[Updates] = []
        self.appends = 0
        self.faults: random.Random | None = None

    def fail(self) -> None:
        """Now and then it is out of reach."""
        if self.faults is not None and self.faults.random() < 0.15:
            raise self.faults.choice([Refusal("timeout", "locked"), OSError(28, "no space")])

    def read(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        self.fail()
        return (_between(updates, lower, upper) for updates in list(self.rows))

    def read_errors(self, lower: int, upper: Frontier, *, block_rows: int) -> Iterator[Updates]:
        self.fail()
        return (_between(updates, lower, upper) for updates in list(self.errors))

    def begin(self) -> Append:
        return Append(self)

    def sweep(self) -> None:
        self.fail()


class Append:
    def __init__(self, shard: Stored) -> None:
        self._shard = shard
        self._rows: list[Updates] = []
        self._errors: list[Updates] = []

    def add(self, updates: Updates) -> None:
        self._shard.fail()
        self._rows.append(updates)

    def add_errors(self, updates: Updates) -> None:
        self._errors.append(updates)

    def commit(self, expected_upper: Frontier, new_upper: Frontier) -> None:
        shard = self._shard
        shard.fail()
        if shard.upper != expected_upper:
            raise Refusal("upper-mismatch", f"{shard.upper}, not {expected_upper}")
        assert expected_upper.precedes(new_upper)
        for updates in (*self._rows, *self._errors):
            assert len(_between(updates, expected_upper.time, new_upper)) == len(updates)
        shard.rows += self._rows
        shard.errors += self._errors
        shard.upper = new_upper
        shard.appends += 1
        if shard.faults is not None and shard.faults.random() < 0.1:
            raise OSError(5, "nobody knows")  # but it took place

    def abandon(self) -> None:
        return


def _between(updates: Updates, lower: int, upper: Frontier) -> Updates:
    inside = updates.times >= np.uint64(lower)
    if not upper.is_empty:
        inside &= updates.times < np.uint64(upper.time)
    return updates.filter(inside)


def changes_of(parts: list[Updates]) -> list[Change]:
    return [update for part in parts for update in part.to_rows()]


def at(changes: list[Change], time: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row, when, diff in changes:
        if when <= time:
            found[row] += diff
    return Counter({row: count for row, count in found.items() if count})


def delta(rows: list[Change], errors: list[Change] = ()) -> Delta:  # type: ignore[assignment]
    oks = Updates.from_rows(TYPES, rows)
    return Delta(oks, Updates.from_rows((ColumnType.TEXT,), list(errors)))


def run(writer: ViewWriter, pieces: int = 1 << 30) -> None:
    while pieces and writer.has_work:
        try:
            writer.step()
        except (Refusal, OSError):
            assert writer.has_work
        pieces -= 1


def upper(time: int) -> Frontier:
    return Frontier.at(time)


def test_k4_every_change_is_written_at_its_time_and_once() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    writer.offer(upper(1), [delta([((1, "3"), 0, 1), ((2, "1"), 0, 1)])])
    run(writer)
    writer.offer(upper(3), [delta([((1, "3"), 1, -1), ((1, "2"), 1, 1), ((2, "1"), 1, -1)])])
    writer.offer(upper(3), [delta([((1, "2"), 2, -1)])])
    run(writer)
    assert sorted(changes_of(shard.rows), key=lambda c: (c[1], c[0])) == [
        ((1, "3"), 0, 1), ((2, "1"), 0, 1),
        ((1, "2"), 1, 1), ((1, "3"), 1, -1), ((2, "1"), 1, -1),
        ((1, "2"), 2, -1),
    ]  # fmt: skip
    assert (shard.upper, shard.appends, writer.statistics().state_rows) == (upper(3), 2, 0)


def test_k2_nothing_is_written_without_permission_and_all_of_it_afterwards() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 0)
    writer.offer(upper(1), [delta([((1, "a"), 0, 1)])])
    run(writer)
    writer.offer(upper(2), [delta([((1, "a"), 1, -1)])])
    run(writer)
    assert (shard.upper, shard.appends) == (upper(0), 0)
    writer.permit()
    writer.permit()
    run(writer)
    assert changes_of(shard.rows) == [((1, "a"), 0, 1), ((1, "a"), 1, -1)]
    assert (shard.upper, shard.appends) == (upper(2), 1)


def test_an_upper_moves_when_nothing_changes_and_a_collection_that_ends_ends_its_shard() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    for frontier in (upper(1), upper(9), Frontier.empty()):
        writer.offer(frontier, [])
        run(writer)
        assert (shard.upper, shard.rows) == (frontier, [])
    assert not writer.has_work


def test_k6_after_a_restart_nothing_is_written_twice_and_the_upper_moves_on() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    writer.offer(upper(3), [delta([((1, "a"), 0, 1), ((2, "b"), 1, 1), ((1, "a"), 2, -1)])])
    run(writer)
    before = changes_of(shard.rows)
    again = ViewWriter("u5", shard, 2)
    again.permit()
    again.offer(upper(3), [delta([((2, "b"), 2, 1)])])
    run(again)
    assert (changes_of(shard.rows), shard.upper) == (before, upper(3))
    again.offer(upper(4), [delta([((3, "c"), 3, 1)])])
    run(again)
    assert changes_of(shard.rows) == [*before, ((3, "c"), 3, 1)]
    assert shard.upper == upper(4)


def test_what_is_wrong_in_the_shard_is_put_right_from_its_upper_on() -> None:
    shard = Stored()
    other = shard.begin()
    other.add(Updates.from_rows(TYPES, [((1, "a"), 0, 2), ((7, None), 1, 1)]))
    other.add_errors(Updates.from_rows((ColumnType.TEXT,), [((ERROR,), 0, 1)]))
    other.commit(upper(0), upper(3))
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    writer.offer(upper(5), [delta([((1, "a"), 0, 1), ((2, "b"), 4, 1)])])
    run(writer)
    rows, errors = changes_of(shard.rows), changes_of(shard.errors)
    assert at(rows, 2) == {(1, "a"): 2, (7, None): 1}
    assert at(rows, 3) == {(1, "a"): 1}
    assert at(rows, 4) == {(1, "a"): 1, (2, "b"): 1}
    assert (at(errors, 2), at(errors, 3)) == ({(ERROR,): 1}, {})


@pytest.mark.slow
def test_k7_a_writer_without_permission_keeps_little_of_what_is_stored() -> None:
    n = 100_000
    keys = np.arange(n, dtype=np.int64)
    rows = Updates.from_rows(TYPES[:1], [])
    columns: Columns = COLUMNS[:1]
    column = rows.columns[0]
    shard = Stored(columns)
    for time in range(10):
        part = keys[time::10]
        append = shard.begin()
        append.add(_ints(column, part, time))
        append.commit(upper(time), upper(time + 1))
    writer = ViewWriter("u5", shard, 0)
    blocks = [_ints(column, keys[lo : lo + 20_000], 0) for lo in range(0, n, 20_000)]
    writer.offer(upper(1), [Delta.of(block) for block in blocks])
    run(writer)
    assert writer.statistics().state_rows < 15_000
    assert shard.appends == 10


def _ints(like: Any, values: Any, time: int) -> Updates:
    column = type(like)(ColumnType.INT64, np.ascontiguousarray(values))
    return Updates((column,), np.full(len(values), time, np.uint64), np.ones(len(values), np.int64))


@pytest.mark.slow
def test_a_step_writes_or_reads_back_one_block_at_most() -> None:
    n, block = 300_000, 65_536
    keys = np.arange(n, dtype=np.int64)
    like = Updates.from_rows(TYPES[:1], []).columns[0]
    blocks = [_ints(like, keys[lo : lo + block], 0) for lo in range(0, n, block)]
    shard = Stored(COLUMNS[:1])
    begun: list[Append] = []
    shard.begin = lambda: begun.append(Append(shard)) or begun[-1]  # type: ignore[method-assign, func-returns-value]
    for wanted in (blocks, blocks[1:]):  # the second reads all back, and takes the first block away
        writer = ViewWriter("u5", shard, 0)
        writer.permit()
        upper_now = Frontier.at(shard.upper.time + 1)
        writer.offer(upper_now, [Delta.of(updates) for updates in wanted])
        begun.clear()
        steps = 0
        while writer.has_work:
            before = [len(append._rows) for append in begun]
            writer.step()
            steps += 1
            assert sum(len(append._rows) for append in begun) <= sum(before) + 1
        assert steps > 2 * len(blocks)
        assert len(begun) == 1
    assert (sum(map(len, shard.rows)), shard.upper) == (n + block, Frontier.at(2))


def test_a_gap_before_as_of_reads_as_an_error_and_ends_there() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 5)
    writer.permit()
    writer.offer(upper(7), [delta([((1, "a"), 5, 1)])])
    run(writer)
    errors = changes_of(shard.errors)
    assert [at(errors, time) for time in (5, 6)] == [{}, {}]
    assert list(at(errors, 0)) == list(at(errors, 4)) == [
        ("below-since: u5 was begun at 5 and tells nothing before",)
    ]  # fmt: skip
    assert at(changes_of(shard.rows), 5) == {(1, "a"): 1}


def test_k9_errors_are_stored_and_go_again() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    writer.offer(upper(3), [delta([((3, None), 0, 1)], [((ERROR,), 1, 1), ((ERROR,), 2, -1)])])
    run(writer)
    errors = changes_of(shard.errors)
    assert [at(errors, time) for time in range(3)] == [{}, {(ERROR,): 1}, {}]


def test_null_where_the_shard_has_none_is_an_error_that_goes_with_its_row() -> None:
    strict: Columns = (COLUMNS[0], ColumnSpec("v", ColumnType.TEXT, False))
    shard = Stored(strict)
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    operator = ExportView(COLUMNS, writer)
    operator.start(Round(0, upper(2), 0))
    for _ in operator.push(0, delta([((1, "a"), 0, 1), ((2, None), 0, 1), ((2, None), 1, -1)])):
        pass
    for _ in operator.finish():
        pass
    run(writer)
    assert at(changes_of(shard.rows), 1) == {(1, "a"): 1}
    errors = changes_of(shard.errors)
    assert at(errors, 0) == {("invalid-data: column 'v' of u5 is NULL",): 1}
    assert at(errors, 1) == {}


def _run_once(writer: ViewWriter) -> None:
    while writer.has_work:
        writer.step()


def test_a_shard_compacted_beyond_what_was_read_is_not_guessed_at() -> None:
    shard = Stored()
    writer = ViewWriter("u5", shard, 0)
    writer.permit()
    writer.offer(upper(2), [])
    run(writer)
    shard.upper, shard.since = upper(9), upper(7)
    writer.moved()
    with pytest.raises(Unwritable, match=r"compacted to \{7\}, and u5 had read it up to \{2\}"):
        _run_once(writer)


def test_corrections_take_the_least_diff_there_is() -> None:
    least = -(1 << 63)
    corrections = Corrections(COLUMNS)
    for _ in corrections.stored(Updates.from_rows(TYPES, [((1, "a"), 0, least)])):
        pass
    for _ in corrections.want(Updates.from_rows(TYPES, [((1, "a"), 0, least)])):
        pass
    taken: list[Updates] = []

    def take() -> Iterator[None]:
        taken.extend((yield from corrections.take(Frontier.empty())))

    for _ in take():
        pass
    assert taken == []


class Computed:
    """One dataflow of a replica: it computes the history from `as_of` on, at its own pace."""

    def __init__(self, rng: random.Random, shard: Stored, history: list[Change], as_of: int) -> None:
        self.rng = rng
        self.history = history
        self.as_of = as_of
        self.known = 0  # its upper
        self.writer = ViewWriter("u5", shard, as_of)
        if rng.random() < 0.9:
            self.writer.permit()

    def compute(self, end: int) -> None:
        """A round up to somewhere before `end`."""
        to = self.rng.randint(max(self.known, self.as_of) + 1, max(self.known, self.as_of, end - 1) + 1)
        if to > end:
            return
        rows: list[Change] = []
        errors: list[Change] = []
        for row, time, diff in self.history:
            when = max(time, self.as_of)
            if self.known <= when < to:
                (errors if row[0] is None else rows).append(
                    (row if row[0] is not None else row[1:], when, diff)
                )
        self.rng.shuffle(rows)
        half = len(rows) // 2
        self.writer.offer(Frontier.at(to), [delta(rows[:half]), delta(rows[half:], errors)])
        self.known = to


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_racing_writers_that_restart_and_fail_at_any_point_store_the_collection_at_every_time(
    seed: int,
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    end = rng.randint(3, 25)
    history: list[Change] = []
    present: list[tuple[Any, ...]] = []
    for time in range(end):
        for _ in range(rng.randint(0, 4)):
            if present and rng.random() < 0.5:
                row = present.pop(rng.randrange(len(present)))
                history.append((row, time, -1))
            else:
                text = rng.choice(["a", "b", None])
                row = (
                    (None, rng.choice(["x: 1", "x: 2"])) if rng.random() < 0.1 else (rng.randint(0, 3), text)
                )
                present.append(row)
                history.append((row, time, 1))
    shard = Stored()
    shard.faults = rng if seed % 2 else None
    flows = [Computed(rng, shard, history, 0) for _ in range(rng.randint(1, 3))]
    for _ in range(rng.randint(20, 200)):
        number = rng.randrange(len(flows))
        flow = flows[number]
        match rng.randint(0, 9):
            case 0:
                flow.writer.close()
                assert not flow.writer.has_work
                most = shard.upper.time if rng.random() < 0.9 else end - 1
                flows[number] = Computed(rng, shard, history, rng.randint(0, max(most - 1, 0)))
            case 1 | 2 | 3:
                flow.compute(end)
            case 4:
                flow.writer.permit()
            case 5:
                flow.writer.moved()
            case _:
                run(flow.writer, rng.randint(1, 12))
    last = Computed(rng, shard, history, max(shard.upper.time - 1, 0))
    last.writer.permit()
    while last.known < end:
        last.compute(end)
    run(last.writer)
    assert shard.upper == upper(end)
    rows, errors = changes_of(shard.rows), changes_of(shard.errors)
    oks = [change for change in history if change[0][0] is not None]
    failed = [(row[1:], time, diff) for row, time, diff in history if row[0] is None]
    for time in range(end):
        told = at(errors, time)
        if any(text.startswith("below-since") for (text,) in told):
            continue
        assert at(rows, time) == at(oks, time), time
        assert told == at(failed, time), time
    once = Counter((row, time) for row, time, _ in rows)
    assert max(once.values(), default=1) == 1
    assert all(diff for _, _, diff in (*rows, *errors))
