"""Assembling what merges choose: encodings survive where they still save, and values always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shm_arrangements.assembler import Assembler
from shm_arrangements.batch import Batch
from shm_arrangements.batch_plan import Plan
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Encoding
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.kernels.refs import ROW_BITS
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType, ListType
from shm_arrangements.updates import Updates

SCHEMA = ArrangementSchema(
    (ColumnSpec("k", ColumnType.INT64, False), ColumnSpec("v", ColumnType.TEXT, True)), (0,)
)
LISTS = ArrangementSchema(
    (
        ColumnSpec("k", ColumnType.INT64, False),
        ColumnSpec("v", ListType(ColumnSpec("e", ColumnType.TEXT, True)), True),
    ),
    (0,),
)
WHOLE = Description(Frontier.minimum(), Frontier.empty(), Frontier.minimum())


def batch_of(values: list[Any], first: int = 0, schema: ArrangementSchema = SCHEMA) -> Batch:
    """One update a value, keys ascending from `first`."""
    rows = [((first + i, value), 0, 1) for i, value in enumerate(values)]
    types = [spec.type for spec in schema.columns]
    return build_batch(Updates.from_rows(types, rows), schema, WHOLE, HeapAllocator())


def joined(*batches: Batch, time: int | None = 0, rows: slice = slice(None)) -> Batch:
    """The batches one behind the other, of each the rows `rows`."""
    plan = Plan(batches[0].schema, batches)
    refs = np.concatenate(
        [np.arange(len(b), dtype=np.int64)[rows] | s << ROW_BITS for s, b in enumerate(batches)]
    )
    for at in range(0, len(refs), 100):
        if plan.needs_rows:
            plan.add(refs[at : at + 100])
    plan.settle(len(refs), time, 1)
    assembler = Assembler(plan, HeapAllocator())
    for at in range(0, len(refs), 77):
        assembler.fill(refs[at : at + 77], refs[:0])
    assembler.write_header(WHOLE)
    made = assembler.seal(None)
    made.validate_state()
    wanted = [value for b in batches for value in b.columns[1].to_pylist()[rows]]
    assert made.columns[1].to_pylist() == wanted
    return made


def words(n: int, of: int, name: str = "word number") -> list[str]:
    return [f"{name} {i % of}" for i in range(n)]


def encoding(batch: Batch) -> Encoding:
    return batch.columns[1].encoding


def entries(batch: Batch) -> list[str]:
    stored = batch.columns[1].stored
    assert stored is not None
    return sorted(stored.to_pylist())


@pytest.mark.parametrize("value", ["the same", None, ""])
def test_a_constant_stays_one_if_all_have_it(value: str | None) -> None:
    a, b = batch_of([value] * 70), batch_of([value] * 9, 100)
    assert encoding(a) is encoding(b) is Encoding.CONSTANT
    assert encoding(joined(a, b)) is Encoding.CONSTANT
    assert encoding(joined(a, Batch.empty(SCHEMA, WHOLE), b)) is Encoding.CONSTANT
    assert encoding(joined(a)) is Encoding.CONSTANT


@pytest.mark.parametrize("value", [["a", None], [], None])
def test_a_constant_list_stays_one(value: Any) -> None:
    a, b = (batch_of([value] * 30, first, LISTS) for first in (0, 30))
    assert encoding(joined(a, b)) is Encoding.CONSTANT
    assert encoding(joined(a, batch_of([["other"]] * 9, 40, LISTS))) is Encoding.PLAIN


def test_constants_of_two_texts_become_a_dictionary() -> None:
    merged = joined(batch_of(["the first of two"] * 70), batch_of(["the other of the two"] * 70, 100))
    assert encoding(merged) is Encoding.DICTIONARY
    assert entries(merged) == ["the first of two", "the other of the two"]


def test_dictionaries_are_united_and_what_nobody_uses_is_left_out() -> None:
    a, b = batch_of(words(500, 100)), batch_of([*words(500, 50), *words(500, 60, "other word")], 1000)
    assert encoding(a) is encoding(b) is Encoding.DICTIONARY
    merged = joined(a, b)
    assert encoding(merged) is Encoding.DICTIONARY
    assert entries(merged) == sorted({*words(500, 100), *words(500, 60, "other word")})
    few = joined(a, b, rows=slice(0, 30))
    assert len(few) == 60
    assert encoding(few) is Encoding.PLAIN or entries(few) == sorted(words(30, 100))


def test_a_small_batch_without_a_dictionary_joins_a_large_one_that_has() -> None:
    large = batch_of(words(3000, 200))
    small = batch_of(["something new", None, *words(5, 9)], 5000)
    assert encoding(small) is Encoding.PLAIN
    merged = joined(large, small)
    assert encoding(merged) is Encoding.DICTIONARY
    assert entries(merged) == sorted({*words(200, 200), "something new", ""})


def test_a_dictionary_that_no_longer_saves_is_given_up() -> None:
    a = batch_of(words(1000, 400))
    assert encoding(a) is Encoding.DICTIONARY
    b = batch_of([f"{i} words that are all different" for i in range(999)], 2000)
    assert encoding(b) is Encoding.PLAIN
    assert encoding(joined(a, b)) is Encoding.PLAIN


def test_plain_batches_whose_texts_repeat_get_a_dictionary_when_they_are_many() -> None:
    parts = [batch_of(words(60, 60, "a word of some length"), 100 * k) for k in range(80)]
    assert {encoding(part) for part in parts} == {Encoding.PLAIN}
    assert encoding(joined(*parts[:20])) is Encoding.PLAIN
    assert encoding(joined(*parts)) is Encoding.DICTIONARY


def test_times_are_rounded_up_and_one_stands_for_all() -> None:
    rows = [[((i, "v"), time, 1) for i in range(5)] for time in (3, 4)]
    a, b = (
        build_batch(
            Updates.from_rows([ColumnType.INT64, ColumnType.TEXT], part), SCHEMA, WHOLE, HeapAllocator()
        )
        for part in rows
    )
    for since, expected in ((0, [3, 4]), (4, [4, 4]), (9, [9, 9])):
        plan = Plan(SCHEMA, (a, b), since=since)
        refs = np.array([0, 1 << ROW_BITS], np.int64)
        plan.add(refs)
        plan.settle(2, None, 1)
        assembler = Assembler(plan, HeapAllocator())
        assembler.fill(refs, refs[:0])
        assembler.write_header(WHOLE)
        assert assembler.seal(None).times.tolist() == expected


def test_a_plan_is_settled_before_it_has_a_size_and_a_batch_filled_before_its_header() -> None:
    plan = Plan(SCHEMA, (batch_of(["a", "b"]),))
    with pytest.raises(InvariantViolation):
        _ = plan.nbytes
    refs = np.arange(2)
    plan.add(refs)
    plan.settle(2, 0, 1)
    first = Assembler(plan, HeapAllocator())
    first.fill(refs[:1], refs[:0])
    with pytest.raises(InvariantViolation, match="not all rows"):
        first.write_header(WHOLE)
    first.abandon()
    second = Assembler(plan, HeapAllocator())  # a plan outlives an assembler that was given up
    second.fill(refs, refs[:0])
    second.write_header(WHOLE)
    second.seal(None).validate_state()
