"""The spine against the model, and its promises about work, length and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shm_arrangements import failpoints, read
from shm_arrangements import spine as spine_module
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow
from shm_arrangements.frontier import Frontier
from shm_arrangements.merger import Merger
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import MAX_BATCHES, Spine
from shm_arrangements.testing.model import rows_of
from shm_arrangements.testing.suite import HeapTrace, TraceTests, TraceUnderTest
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

SCHEMA = ArrangementSchema(
    (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.INT64, False)), (0,)
)
TYPES = (ColumnType.INT64, ColumnType.INT64)


@pytest.mark.slow
class TestSpine(TraceTests):
    def make(self, schema: ArrangementSchema, *, held: bool = False) -> TraceUnderTest:
        return HeapTrace(schema, held=held)


class MovingTrace(HeapTrace):
    """Whose batches are put into other memory all the time, those being merged too."""

    def exert(self, fuel_updates: int) -> bool:
        for batch in self.spine.batches():
            if len(batch):
                copy = batch.copied(HeapAllocator())
                self.spine.replace(batch, copy)
                assert copy in self.spine.batches()
        return super().exert(fuel_updates)


@pytest.mark.slow
class TestSpineWhoseBatchesMove(TraceTests):
    def make(self, schema: ArrangementSchema, *, held: bool = False) -> TraceUnderTest:
        return MovingTrace(schema, held=held)


def insert(spine: Spine, updates: Updates, upper: Frontier) -> Batch:
    batch = build_batch(updates, spine.schema, Description(spine.upper, upper, spine.since), HeapAllocator())
    spine.insert(batch)
    return batch


def block(keys: Any, values: Any, time: int, diff: int) -> Updates:
    keys, values = np.asarray(keys, np.int64), np.asarray(values, np.int64)
    n = len(keys)
    columns = (Column(ColumnType.INT64, keys), Column(ColumnType.INT64, values))
    return Updates(columns, np.full(n, time, np.uint64), np.full(n, diff, np.int64))


def test_a_batch_that_does_not_abut_is_refused_and_changes_nothing() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    insert(spine, block([1], [1], 0, 1), Frontier.at(1))
    with pytest.raises(InvariantViolation) as caught:
        spine.insert(Batch.empty(SCHEMA, Description(Frontier.at(2), Frontier.at(3), Frontier.minimum())))
    assert caught.value.upper == Frontier.at(1)
    assert spine.upper == Frontier.at(1)
    spine.validate_state()


@pytest.mark.slow
def test_the_chain_stays_logarithmic_under_single_updates() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    longest = 0
    for t in range(3000):
        insert(spine, block([t], [t], t, 1), Frontier.at(t + 1))
        longest = max(longest, len(spine.batches()))
    assert longest <= 2 * 12 + 2  # two a level, log2(3000) < 12
    spine.validate_state()
    # Amortized: 4 units an update and level, 12 levels.
    assert spine.statistics().merged_updates <= 4 * 12 * 3000
    while spine.exert(100):
        pass
    assert len(spine.batches()) <= 5
    columns, counts = read.scan_at(spine.batches(), 2999)
    assert len(counts) == 3000
    assert sorted(columns[0].values.tolist()) == list(range(3000))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_chain_stays_short_under_batches_of_any_size(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    spine = Spine(SCHEMA, HeapAllocator())
    total = 0
    for t in range(300):
        n = int(rng.choice([0, 1, 3, 50, 1000, 20_000], p=[0.2, 0.3, 0.2, 0.15, 0.1, 0.05]))
        insert(spine, block(np.arange(total, total + n), np.arange(n), t, 1), Frontier.at(t + 1))
        total += n
        sizes = [len(batch) for batch in spine.batches()]
        assert len(sizes) <= 2 * total.bit_length() + 2
        assert len(sizes) <= MAX_BATCHES
    columns, counts = read.scan_at(spine.batches(), 299)
    assert len(counts) == total
    assert (np.sort(columns[0].values) == np.arange(total)).all()


def test_large_insertions_without_pause_put_merging_off_but_neither_lengthen_nor_square_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spine_module, "_INSERT_FUEL_LIMIT", 500)
    spine = Spine(SCHEMA, HeapAllocator())
    blocks, size = 200, 300
    for t in range(blocks):
        keys = np.arange(size) * blocks + t
        insert(spine, block(keys, keys, t, 1), Frontier.at(t + 1))
        assert len(spine.batches()) <= MAX_BATCHES
    while spine.exert(10_000):
        pass
    # Three units an update and level; 8 levels of halves, and one for what is uneven.
    assert spine.statistics().merged_updates <= 3 * 9 * blocks * size
    columns, _ = read.scan_at(spine.batches(), blocks)
    assert (np.sort(columns[0].values) == np.arange(blocks * size)).all()


@pytest.mark.slow
def test_churn_on_a_fixed_key_set_does_not_grow_memory_while_since_follows() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    keys = np.arange(1000)
    current = np.zeros(1000, np.int64)
    insert(spine, block(keys, current, 0, 1), Frontier.at(1))
    peaks = []
    for t in range(1, 1501):
        chosen = np.arange(t * 37, t * 37 + 50) % 1000
        before = block(chosen, current[chosen], t, -1)
        current[chosen] += 1
        insert(spine, Updates.concat([before, block(chosen, current[chosen], t, 1)]), Frontier.at(t + 1))
        spine.set_logical_compaction(Frontier.at(t))
        if t % 500 == 0:
            peaks.append(0)
        if peaks:
            peaks[-1] = max(peaks[-1], spine.statistics().updates)
    assert peaks[0] <= 6 * 1000  # live rows, as much again in smaller levels, merges showing their inputs
    assert peaks[1] <= peaks[0] * 1.2
    columns, counts = read.scan_at(spine.batches(), 1500)
    assert (counts == 1).all()
    assert (columns[1].values[np.argsort(columns[0].values)] == current).all()
    while spine.exert(1000):
        pass
    assert spine.statistics().updates <= 1200


def test_time_passing_without_updates_costs_no_memory_and_no_length() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    insert(spine, block([1, 2], [1, 2], 0, 1), Frontier.at(1))
    before = spine.statistics()
    for t in range(1, 200):
        insert(spine, Updates.empty(TYPES), Frontier.at(t + 1))
    after = spine.statistics()
    assert (after.batches, after.nbytes) == (1, before.nbytes)
    assert spine.batches()[0].description.upper == Frontier.at(200)
    assert spine.drain_retired() == []


def test_an_empty_start_is_absorbed_by_the_first_updates() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    insert(spine, Updates.empty(TYPES), Frontier.at(5))
    insert(spine, block([1], [1], 5, 1), Frontier.at(6))
    assert [b.description.lower for b in spine.batches()] == [Frontier.minimum()]


def test_updates_that_cancel_leave_an_empty_batch_without_memory() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    keys = np.arange(500)
    insert(spine, block(keys, keys, 0, 1), Frontier.at(1))
    spine.set_logical_compaction(Frontier.at(1))
    insert(spine, block(keys, keys, 1, -1), Frontier.at(2))
    while spine.exert(1000):
        pass
    assert spine.statistics().nbytes == 0
    assert spine.statistics().batches == 1
    assert sorted(len(batch) for batch in spine.drain_retired()) == [500, 500]
    assert rows_of(*read.scan_at(spine.batches(), 1)) == {}


def test_no_call_merges_beyond_its_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    work = Merger.work

    def counted(self: Merger, fuel_updates: int) -> int:
        used = work(self, fuel_updates)
        calls.append((fuel_updates, used))
        return used

    monkeypatch.setattr(Merger, "work", counted)
    spine = Spine(SCHEMA, HeapAllocator())
    insert(spine, block(np.arange(20_000), np.arange(20_000), 1, 1), Frontier.at(2))
    insert(spine, block(np.arange(1), np.arange(1), 2, 1), Frontier.at(3))
    while spine.exert(333):
        pass
    insert(spine, block(np.arange(10_001), np.arange(10_001), 3, 1), Frontier.at(4))
    calls.clear()
    while spine.exert(333):
        used = sum(u for _, u in calls)
        assert used <= 333, f"one exert used {used}"
        calls.clear()
    assert all(used <= fuel for fuel, used in calls)
    assert [len(b) for b in spine.batches()] == [30_002]


def test_a_merge_in_progress_shows_its_inputs_and_then_its_result() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    n = 300
    first = insert(spine, block(np.arange(n), np.arange(n), 1, 1), Frontier.at(2))
    second = build_batch(
        block(np.arange(3 * n), np.arange(3 * n), 2, 1), SCHEMA,
        Description(Frontier.at(2), Frontier.at(3), Frontier.minimum()), HeapAllocator(),
    )  # fmt: skip
    failpoints.arm("spine.merge", "error", times=1)
    try:
        with pytest.raises(failpoints.FailpointError):
            spine.insert(second)
    finally:
        failpoints.disarm_all()
    assert list(spine.batches()) == [first, second]
    assert spine.statistics().merges == 1
    insert(spine, Updates.empty(TYPES), Frontier.at(9))
    assert len(spine.batches()) == 2
    spine.validate_state()
    assert spine.exert(10)
    assert len(spine.batches()) == 2
    while spine.exert(100):
        pass
    (merged,) = spine.batches()
    assert merged.description == Description(Frontier.minimum(), Frontier.at(9), Frontier.minimum())
    assert [len(b) for b in spine.drain_retired()] == [n, 3 * n]
    spine.validate_state()


def test_physical_compaction_keeps_boundaries_until_it_is_allowed() -> None:
    spine = Spine(SCHEMA, HeapAllocator(), physical=Frontier.minimum())
    for t in range(1, 11):
        insert(spine, block([t], [t], t, 1), Frontier.at(t + 1))
    insert(spine, Updates.empty(TYPES), Frontier.at(12))
    assert len(spine.batches()) == 11
    spine.set_physical_compaction(Frontier.at(5))
    while spine.exert(100):
        pass
    assert [b.description.upper.time for b in spine.batches()] == [5, 6, 7, 8, 9, 10, 11, 12]
    with pytest.raises(InvariantViolation):
        spine.set_physical_compaction(Frontier.at(4))
    spine.set_physical_compaction(Frontier.empty())
    while spine.exert(100):
        pass
    assert [len(b) for b in spine.batches()] == [10]


def test_what_since_has_passed_is_not_merged_with_what_it_has_not() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    spine.set_logical_compaction(Frontier.at(3))
    for t in range(6):
        insert(spine, block(np.arange(100), np.arange(100), t, 1), Frontier.at(t + 1))
    while spine.exert(1000):
        pass
    assert [(len(b), b.description.upper.time) for b in spine.batches()] == [(100, 4), (200, 6)]
    passed, _ = spine.batches()
    assert passed.time_cells.tolist() == [3]
    assert passed.diff_cells.tolist() == [4] * 100
    spine.set_logical_compaction(Frontier.at(5))
    while spine.exert(1000):
        pass
    assert [len(b) for b in spine.batches()] == [100]


def test_since_never_regresses() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    spine.set_logical_compaction(Frontier.at(5))
    with pytest.raises(InvariantViolation):
        spine.set_logical_compaction(Frontier.at(4))
    assert spine.since == Frontier.at(5)


def test_compaction_to_the_empty_frontier_lets_go_of_everything() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    insert(spine, block(np.arange(10), np.arange(10), 0, 1), Frontier.at(1))
    spine.set_logical_compaction(Frontier.empty())
    insert(spine, block([1], [1], 1, 1), Frontier.at(2))
    assert spine.statistics().nbytes == 0
    assert sorted(len(b) for b in spine.drain_retired()) == [1, 10]
    assert spine.upper == Frontier.at(2)


def test_a_sum_beyond_64_bits_stays_in_parts_is_no_answer_and_heals() -> None:
    most = (1 << 63) - 1
    spine = Spine(SCHEMA, HeapAllocator())
    true = 0
    for time, diff in enumerate((most, 1, most, most, -most, -most, -5, -most, -most - 1, -1, 7)):
        insert(spine, block([1, 2], [1, 2], time, diff), Frontier.at(time + 1))
        spine.set_logical_compaction(Frontier.at(time))
        while spine.exert(1 << 20):
            pass
        spine.validate_state()
        true += diff
        if -most - 1 <= true <= most:
            assert rows_of(*read.scan_at(spine.batches(), time)) == {(1, 1): true, (2, 2): true}
        else:
            with pytest.raises(MultiplicityOverflow):
                read.scan_at(spine.batches(), time)
            with pytest.raises(MultiplicityOverflow):
                read.lookup_at(spine.batches(), time, (Column(ColumnType.INT64, np.array([2])),))


def test_a_batch_of_a_sum_beyond_64_bits_holds_it_in_parts() -> None:
    most = (1 << 63) - 1
    description = Description(Frontier.minimum(), Frontier.at(1), Frontier.minimum())
    for diffs in (
        [most] * 3,
        [-most - 1] * 3,
        [most, most, 1, 1],
        [-most, -most, -most, 7],
        [most, most, -most],
    ):
        updates = Updates.from_rows(TYPES, [((1, 1), 0, diff) for diff in diffs])
        batch = build_batch(updates, SCHEMA, description, HeapAllocator())
        batch.validate_state()
        assert sum(batch.diffs.tolist()) == sum(diffs)
        assert len(batch) <= len(diffs)
        assert set(batch.diffs.tolist()[:-1]) <= {most, -most - 1}
        if -most - 1 <= sum(diffs) <= most:
            assert rows_of(*read.scan_at([batch], 0)) == {(1, 1): sum(diffs)}
        else:
            with pytest.raises(MultiplicityOverflow):
                read.scan_at([batch], 0)


def test_batches_replaced_by_copies_also_inside_merges_change_no_answer_and_are_retired_once() -> None:
    heap = HeapAllocator()
    spine = Spine(SCHEMA, heap)
    merging = 0
    for time in range(30):
        n = 20_000 if time % 6 == 0 else 40
        insert(spine, block(np.arange(n), np.full(n, time % 3), time, 1), Frontier.at(time + 1))
        merging += spine.statistics().merges
        expected = read.scan_at(spine.batches(), time)
        for old in spine.batches():
            copy = old.copied(heap)
            spine.replace(old, copy)
            assert copy in spine.batches()
            assert [old is one for one in spine.drain_retired()].count(True) == 1
            with pytest.raises(InvariantViolation):
                spine.replace(old, copy)
        assert rows_of(*read.scan_at(spine.batches(), time)) == rows_of(*expected)
        spine.validate_state()
    assert merging > 0, "some were replaced while they were merged"
    expected = read.scan_at(spine.batches(), 29)
    while spine.exert(1 << 20):
        pass
    assert rows_of(*read.scan_at(spine.batches(), 29)) == rows_of(*expected)
    one, *_ = spine.batches()
    with pytest.raises(InvariantViolation):
        spine.replace(one, Batch.empty(SCHEMA, one.description))


def churned(spine: Spine, keys: int, rounds: int) -> None:
    """Insert rows of distinct keys, and then give all of them another value, `rounds` times; one batch."""
    updates = [block(np.arange(keys), np.zeros(keys), 0, 1)]
    for t in range(1, rounds + 1):
        updates.append(block(np.arange(keys), np.full(keys, t - 1), t, -1))
        updates.append(block(np.arange(keys), np.full(keys, t), t, 1))
    insert(spine, Updates.concat(updates), Frontier.at(rounds + 1))


def test_a_lone_batch_is_rewritten_once_since_has_passed_its_times() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    churned(spine, 1000, 4)
    (batch,) = spine.batches()
    assert len(batch) == 9000
    assert not spine.exert(1 << 30), "nothing is to be gained yet"
    for since, updates in ((3, 3000), (4, 1000)):
        spine.set_logical_compaction(Frontier.at(since))
        assert spine.exert(0)
        assert spine.exert(3000), "it costs more than that"
        calls = 0
        while spine.exert(3000):
            calls += 1
            assert calls < 100
        assert spine.statistics().updates == updates
        spine.validate_state()
    assert len(spine.drain_retired()) == 2
    columns, counts = read.scan_at(spine.batches(), 4)
    assert (columns[1].values == 4).all()
    assert (counts == 1).all()


def test_a_lone_batch_from_which_nothing_would_go_stays_where_it_is() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    insert(spine, block(np.arange(1000), np.arange(1000), 0, 1), Frontier.at(1))
    (batch,) = spine.batches()
    for since in range(1, 5):
        spine.set_logical_compaction(Frontier.at(since))
        assert not spine.exert(1 << 30)
    assert spine.batches() == (batch,)


def test_exertion_does_not_look_at_a_batch_again_until_since_passes_more_of_its_times() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    many = Updates.concat([block(np.arange(1000), np.arange(1000), 0, 1), block([7], [7], 8, 1)])
    insert(spine, many, Frontier.at(9))
    spine.set_logical_compaction(Frontier.at(5))
    assert spine.exert(0), "it must be looked at"
    assert not spine.exert(1 << 30)
    assert not spine.exert(0)


def test_where_updates_replace_each_other_the_dead_stay_within_half_of_the_living() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    keys = np.arange(20_000)
    current = np.zeros(len(keys), np.int64)
    insert(spine, block(keys, current, 0, 1), Frontier.at(1))
    most = 0
    for t in range(1, 101):
        chosen = (np.arange(500) + 500 * t) % len(keys)
        before = block(chosen, current[chosen], t, -1)
        current[chosen] += 1
        insert(spine, Updates.concat([before, block(chosen, current[chosen], t, 1)]), Frontier.at(t + 1))
        spine.set_logical_compaction(Frontier.at(t))
        most = max(most, spine.statistics().updates)
    assert most <= 2.1 * len(keys)


def test_an_insertion_pays_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    paid: list[int] = []
    work = Merger.work

    def counted(self: Merger, fuel_updates: int) -> int:
        paid.append(work(self, fuel_updates))
        return paid[-1]

    monkeypatch.setattr(Merger, "work", counted)
    spine = Spine(SCHEMA, HeapAllocator())
    merges = 0
    for t in range(24):
        keys = np.arange(30_000 if t % 2 else 5_000) * 12 + t
        insert(spine, block(keys, keys, t, 1), Frontier.at(t + 1))
        limit = max(spine_module._INSERT_FUEL_LIMIT, spine_module._MOST_FUEL * len(keys))
        assert sum(paid) <= limit
        paid.clear()
        merges = max(merges, spine.statistics().merges)
    assert merges > 0, "none was put off"


def test_what_replaces_a_batch_is_the_same_updates_and_what_it_replaces_is_shown() -> None:
    spine = Spine(SCHEMA, HeapAllocator())
    first = insert(spine, block([1], [1], 0, 1), Frontier.at(1))
    with pytest.raises(InvariantViolation, match="another batch"):
        spine.replace(first, Batch.empty(SCHEMA, first.description))
    copy = first.copied(HeapAllocator())
    spine.replace(first, copy)
    assert spine.batches() == (copy,)
    assert spine.drain_retired() == [first]
    with pytest.raises(InvariantViolation, match="not shown"):
        spine.replace(first, copy)
