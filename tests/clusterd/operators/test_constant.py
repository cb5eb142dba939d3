"""A constant is there in the first round, at as_of, and holds nothing back."""

from __future__ import annotations

import pytest

from clusterd.dataflow.operator import Round
from clusterd.operators.constant import ConstantSource
from controller_proto.plan import Constant
from controller_proto.schema import Column, Schema
from controller_proto.schema import ColumnType as T
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

SCHEMA = Schema((Column("a", T.INT64), Column("b", T.TEXT, nullable=True)))


def test_bug44_all_rows_come_at_as_of_in_the_first_round_and_the_frontier_is_empty() -> None:
    source = ConstantSource(Constant((((1, "a"), 2), ((2, None), -1)), SCHEMA))
    assert source.frontier.is_empty
    source.start(Round(0, Frontier.at(6), 5))
    assert [row for block in source.blocks() for row in block.oks.to_rows()] == [
        ((1, "a"), 5, 2), ((2, None), 5, -1),
    ]  # fmt: skip
    source.finish()
    source.start(Round(6, Frontier.empty(), 5))
    assert list(source.blocks()) == []


def test_an_error_stands_alone() -> None:
    source = ConstantSource(Constant((), SCHEMA, "division by zero"))
    source.start(Round(0, Frontier.empty(), 3))
    (block,) = source.blocks()
    assert len(block.oks) == 0
    assert block.errs.to_rows() == [(("eval-error: division by zero",), 3, 1)]


def test_many_rows_come_in_pieces() -> None:
    rows = tuple(((n, str(n)), 1) for n in range(10_000))
    source = ConstantSource(Constant(rows, SCHEMA))
    source.start(Round(0, Frontier.empty(), 0))
    blocks = [block.oks.to_rows() for block in source.blocks()]
    assert len(blocks) > 1
    assert [row for block in blocks for row, _, _ in block] == [row for row, _ in rows]


def test_it_is_read_within_a_round() -> None:
    with pytest.raises(InvariantViolation):
        next(ConstantSource(Constant((), SCHEMA)).blocks())
