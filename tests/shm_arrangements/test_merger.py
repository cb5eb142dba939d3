"""Merging in pieces: the result does not depend on the pieces, and a failed piece can be done again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocation, HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation, ShmExhausted
from shm_arrangements.frontier import Frontier
from shm_arrangements.merger import Merger
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import Model, normal_row
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

TWO = strategies.histories(max_steps=2, max_updates=30).filter(lambda h: len(h.steps) == 2)
SCHEMA = ArrangementSchema(
    (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True)), (0,)
)


class Scarce:
    """Fails the first `failures` times, and counts what it lent."""

    checksums = True

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.lent = 0

    def allocate(self, nbytes: int, *, deferred: bool = False) -> Scarce._Lent:
        if self.failures:
            self.failures -= 1
            raise ShmExhausted("no room", asked_bytes=nbytes, free_bytes=0)
        self.lent += 1
        return Scarce._Lent(nbytes, self)

    class _Lent(HeapAllocation):
        def __init__(self, nbytes: int, owner: Scarce) -> None:
            super().__init__(nbytes)
            self.owner = owner

        def abandon(self) -> None:
            self.owner.lent -= 1


def two_batches(history: strategies.History) -> tuple[Batch, Batch]:
    first, second = history.steps
    types = [c.type for c in history.schema.columns]
    at = (Frontier.minimum(), Frontier.at(first.upper), Frontier.at(second.upper))
    older, newer = (
        build_batch(
            Updates.from_rows(types, step.updates), history.schema,
            Description(lower, upper, Frontier.minimum()), HeapAllocator(),
        )
        for step, lower, upper in zip((first, second), at, at[1:], strict=False)
    )  # fmt: skip
    return older, newer


def run(merger: Merger, fuel: int) -> Batch:
    while merger.result() is None:
        before = merger.remaining()
        used = merger.work(fuel)
        assert 0 < used <= fuel
        assert merger.remaining() <= before
    result = merger.result()
    assert result is not None
    assert merger.remaining() == 0
    assert merger.work(fuel) == 0
    return result


def memory(batch: Batch) -> NDArray[np.uint8] | None:
    return batch._buffer


@pytest.mark.slow
@given(TWO, st.integers(0, 25), st.sampled_from([1, 2, 7, 100]))
def test_a_merge_is_the_fold_of_both_whatever_the_pieces(
    history: strategies.History, since: int, fuel: int
) -> None:
    older, newer = two_batches(history)
    piecewise = run(Merger((older, newer), Frontier.at(since), Scarce(0)), fuel)
    whole = run(Merger((older, newer), Frontier.at(since), Scarce(0)), 1 << 40)
    piecewise.validate_state()
    piecewise.verify()
    assert piecewise.description == Description(
        Frontier.minimum(), newer.description.upper, Frontier.at(since)
    )
    if memory(whole) is None:
        assert memory(piecewise) is None
    else:
        assert np.array_equal(memory(whole), memory(piecewise))  # type: ignore[arg-type]
    model = Model()
    model.insert((row, max(time, since), diff) for step in history.steps for row, time, diff in step.updates)
    updates = Updates(piecewise.row_columns(), piecewise.times, piecewise.diffs)
    got = {(normal_row(row), time): diff for row, time, diff in updates.to_rows()}
    assert got == model.between(-1, 1 << 62)


def numbers(n: int, time: int) -> Updates:
    keys = np.arange(n)
    texts = Column.from_pylist(ColumnType.TEXT, ["a", None, "a text of some length"])
    columns = (Column(ColumnType.INT64, keys), texts.take(keys % 3))
    return Updates(columns, np.full(n, time, np.uint64), np.ones(n, np.int64))


def large(n: int = 20_000) -> tuple[Batch, Batch]:
    parts = (Frontier.at(0), Frontier.at(1), Frontier.at(2))
    older, newer = (
        build_batch(numbers(n, t), SCHEMA, Description(parts[t], parts[t + 1], parts[0]), HeapAllocator())
        for t in (0, 1)
    )
    return older, newer


@pytest.mark.parametrize("fuel", [999, 1 << 40])
def test_slices_beyond_one_encoding_join_seamlessly(fuel: int) -> None:
    older, newer = large()
    apart = run(Merger((older, newer), Frontier.at(0), HeapAllocator()), fuel)
    assert len(apart) == 40_000
    apart.validate_state()
    together = run(Merger((older, newer), Frontier.at(1), HeapAllocator()), fuel)
    assert len(together) == 20_000
    assert (together.diffs == 2).all()
    together.validate_state()


def test_a_merge_that_finds_no_memory_goes_on_when_there_is() -> None:
    older, newer = large(100)
    allocator = Scarce(2)
    merger = Merger((older, newer), Frontier.at(1), allocator)
    for _ in range(2):
        with pytest.raises(ShmExhausted):
            merger.work(1 << 40)
        assert merger.result() is None
    result = run(merger, 1000)
    result.validate_state()
    assert (result.diffs == 2).all()
    assert allocator.lent == 1


def test_an_abandoned_merge_gives_its_memory_back() -> None:
    older, newer = large(100)
    allocator = Scarce(0)
    merger = Merger((older, newer), Frontier.at(1), allocator)
    while not allocator.lent:
        merger.work(10)
    assert merger.result() is None
    merger.abandon()
    assert allocator.lent == 0


def test_batches_that_do_not_abut_are_not_merged() -> None:
    older, newer = large(3)
    with pytest.raises(InvariantViolation, match="abut"):
        Merger((newer, older), Frontier.at(0), HeapAllocator())


def test_codes_of_all_ones_are_codes_like_any_other() -> None:
    keys = Column(ColumnType.INT64, np.array([-1, 5, -1]))
    columns = (keys, Column.from_pylist(ColumnType.TEXT, ["a", None, "b"]))
    at = (Frontier.at(0), Frontier.at(1), Frontier.at(2), Frontier.at(3))
    parts = [
        build_batch(
            Updates(columns, np.full(3, t, np.uint64), np.ones(3, np.int64)), SCHEMA,
            Description(at[t], at[t + 1], at[0]), HeapAllocator(),
        )
        for t in range(2)
    ]  # fmt: skip
    for since, rows in ((0, 6), (1, 3)):
        merged = run(Merger(parts, Frontier.at(since), HeapAllocator()), 2)
        merged.validate_state()
        assert len(merged) == rows


class Slices(HeapAllocation):
    """Reserved in slices; the second one is not to be had at first."""

    slice_bytes = 64 << 10

    def __init__(self, nbytes: int, owner: Sparing) -> None:
        super().__init__(nbytes)
        self.owner = owner
        self._reserved = 0

    @property
    def reserved(self) -> int:
        return self._reserved

    def reserve(self, upto_bytes: int) -> None:
        assert upto_bytes > self._reserved
        if self._reserved and not self.owner.failed:
            self.owner.failed = True
            raise ShmExhausted("no room", asked_bytes=upto_bytes, free_bytes=0)
        whole = -(-upto_bytes // self.slice_bytes) * self.slice_bytes
        self._reserved = min(whole, len(self.buffer))


class Sparing:
    checksums = True

    def __init__(self) -> None:
        self.failed = False
        self.given: list[Slices] = []

    def allocate(self, nbytes: int, *, deferred: bool = False) -> Slices:
        assert deferred, "a merge reserves nothing at once"
        self.given.append(Slices(nbytes, self))
        return self.given[-1]


def test_memory_is_reserved_in_slices_that_are_paid_for_and_asked_for_again_where_there_was_none() -> None:
    merger = Merger(large(), Frontier.at(0), allocator := Sparing())
    calls, failures = 0, 0
    while merger.result() is None:
        before = sum(made.reserved for made in allocator.given)
        try:
            assert merger.work(1000) <= 1000
        except ShmExhausted:
            failures += 1
        taken = sum(made.reserved for made in allocator.given) - before
        assert taken <= Slices.slice_bytes, "no call takes two"
        calls += 1
    assert failures == 1
    assert len(allocator.given) == 2
    result = merger.result()
    assert result is not None
    result.validate_state()
    assert len(result) == 40_000
    assert calls >= result.nbytes // 16 // 1000, "what is reserved costs fuel"


@pytest.mark.slow
@given(strategies.histories(max_steps=4, max_updates=20), st.integers(0, 8), st.integers(1, 40))
def test_up_to_four_batches_are_merged_as_if_by_one_fold(
    history: strategies.History, since: int, fuel: int
) -> None:
    types = [c.type for c in history.schema.columns]
    model, parts, at = Model(), [], Frontier.minimum()
    for step in history.steps[:4]:
        upper = Frontier.at(step.upper)
        told = Description(at, upper, Frontier.minimum())
        parts.append(
            build_batch(Updates.from_rows(types, step.updates), history.schema, told, HeapAllocator())
        )
        model.insert([(row, max(time, since), diff) for row, time, diff in step.updates])
        at = upper
    if not parts:
        return
    merged = run(Merger(parts, Frontier.at(since), Scarce(0)), fuel)
    merged.validate_state()
    updates = Updates(merged.row_columns(), merged.times, merged.diffs)
    got = {(normal_row(row), time): diff for row, time, diff in updates.to_rows()}
    assert got == model.between(-1, 1 << 62)
