"""Mfp, union and negate: what they keep, what they call an error, and what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clusterd.dataflow.operator import Columns, Delta, Operator
from clusterd.operators.mfp import MfpOperator, Stage, StageSpec
from clusterd.operators.negate import NegateOperator
from clusterd.operators.union import UnionOperator
from controller_proto.errors import Refusal
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.schema import ColumnType as T
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

INT, TEXT = ColumnType.INT64, ColumnType.TEXT
X: Columns = (ColumnSpec("x", INT, True),)
ONE, ZERO, TEN = Literal(T.INT64, 1), Literal(T.INT64, 0), Literal(T.INT64, 10)
DIVISION = "eval-error: division by zero"
Change = tuple[tuple[Any, ...], int, int]


def through(operator: Operator, *changes: Change, port: int = 0) -> tuple[list[Change], list[Change]]:
    [out] = operator.push(port, Delta.of(Updates.from_rows([INT], list(changes))))
    assert not [*operator.finish()]
    return out.oks.to_rows(), out.errs.to_rows()


def test_a_failing_row_becomes_an_error_of_its_own_time_and_count_and_heals() -> None:
    operator = MfpOperator([StageSpec((Call("/", (TEN, ColumnRef(0))),))], X)
    oks, errs = through(operator, ((5,), 1, 2), ((0,), 1, 3), ((None,), 2, 1), ((0,), 4, -3))
    assert oks == [((5, 2), 1, 2), ((None, None), 2, 1)]
    assert errs == [((DIVISION,), 1, 3), ((DIVISION,), 4, -3)]
    assert operator.schema[1].nullable


def test_a_predicate_guards_the_expressions_beside_it_whatever_the_order() -> None:
    quotient = Call("/", (TEN, ColumnRef(0)))
    big, fine = Call(">", (quotient, ONE)), Call("!=", (ColumnRef(0), ZERO))
    for predicates in ((big, fine), (fine, big)):
        operator = MfpOperator([StageSpec((quotient,), predicates)], X)
        assert through(operator, ((0,), 1, 1), ((5,), 1, 1), ((None,), 1, 1)) == ([((5, 2), 1, 1)], [])


def test_an_error_that_nobody_looks_at_is_none_but_a_later_stage_hides_nothing() -> None:
    quotient = Call("/", (TEN, ColumnRef(0)))
    assert through(MfpOperator([StageSpec((quotient,), (), (0,))], X), ((0,), 1, 1)) == ([((0,), 1, 1)], [])
    later = MfpOperator([StageSpec((quotient,)), StageSpec((), (), (0,))], X)
    assert through(later, ((0,), 1, 1)) == ([], [((DIVISION,), 1, 1)])
    filtered = MfpOperator([StageSpec((quotient,)), StageSpec((), (Call("!=", (ColumnRef(0), ZERO)),))], X)
    assert through(filtered, ((0,), 1, 1)) == ([], [((DIVISION,), 1, 1)])


def test_an_error_passes_through_later_columns_that_read_it() -> None:
    quotient = Call("/", (TEN, ColumnRef(0)))
    stage = StageSpec((quotient, Call("is_null", (ColumnRef(1),))), (), (2,))
    assert Stage(stage, X).fallible
    assert through(MfpOperator([stage], X), ((0,), 1, 1), ((None,), 1, 1)) == (
        [((True,), 1, 1)],
        [((DIVISION,), 1, 1)],
    )


def test_projection_repeats_reorders_and_may_keep_nothing() -> None:
    two: Columns = (ColumnSpec("a", INT, False), ColumnSpec("b", INT, False))
    operator = MfpOperator([StageSpec((), (), (1, 0, 1))], two)
    assert [c.name for c in operator.schema] == ["b", "a", "b"]
    [out] = operator.push(0, Delta.of(Updates.from_rows([INT, INT], [((1, 2), 0, 1)])))
    assert out.oks.to_rows() == [((2, 1, 2), 0, 1)]
    nothing = MfpOperator([StageSpec((), (Call("=", (ColumnRef(0), ONE)),), ())], X)
    assert through(nothing, ((1,), 3, 4), ((2,), 3, 5)) == ([((), 3, 4)], [])


def test_errors_from_before_pass_on() -> None:
    errs = Updates.from_rows([TEXT], [(("old: one",), 1, 1)])
    operator = MfpOperator([StageSpec((Call("/", (TEN, ColumnRef(0))),))], X)
    [out] = operator.push(0, Delta(Updates.from_rows([INT], [((0,), 2, 1)]), errs))
    assert out.errs.to_rows() == [(("old: one",), 1, 1), ((DIVISION,), 2, 1)]


def test_a_projection_beyond_the_columns_is_refused() -> None:
    with pytest.raises(Refusal, match="Mfp projects column #2 of 1 columns"):
        MfpOperator([StageSpec((), (), (2,))], X)


def test_union_passes_both_ports_and_is_nullable_where_either_is() -> None:
    operator = UnionOperator([(ColumnSpec("a", INT, False),), (ColumnSpec("b", INT, True),)])
    assert operator.schema == (ColumnSpec("a", INT, True),)
    assert through(operator, ((1,), 0, 1), port=0)[0] == [((1,), 0, 1)]
    assert through(operator, ((None,), 0, -1), port=1)[0] == [((None,), 0, -1)]
    with pytest.raises(Refusal, match="input 1"):
        UnionOperator([X, (ColumnSpec("t", TEXT, False),)])


def test_negate_turns_counts_and_keeps_errors() -> None:
    operator = NegateOperator(X)
    errs = Updates.from_rows([TEXT], [(("a: b",), 1, 1)])
    [out] = operator.push(0, Delta(Updates.from_rows([INT], [((1,), 2, 3), ((2,), 2, -1)]), errs))
    assert out.oks.to_rows() == [((1,), 2, -3), ((2,), 2, 1)]
    assert out.errs.to_rows() == [(("a: b",), 1, 1)]


def test_a_count_that_has_no_negative_is_negated_in_two_halves_as_if_it_had_come_in_two() -> None:
    updates = Updates.from_rows([INT], [((1,), 2, -(1 << 63)), ((2,), 2, 1)])
    out = list(NegateOperator(X).push(0, Delta.of(updates)))
    rows = [row for delta in out for row in delta.oks.to_rows()]
    assert sorted(rows) == [((1,), 2, 1 << 62), ((1,), 2, 1 << 62), ((2,), 2, -1)]
    assert not any(len(delta.errs) for delta in out)


def test_blocks_of_many_rows_are_cut_as_columns() -> None:
    n = 50_000
    values = np.arange(n, dtype=np.int64)
    updates = Updates.from_rows([INT], [((0,), 0, 1)]).take(np.zeros(n, np.int64))
    updates.columns[0].values[:] = values
    operator = MfpOperator([StageSpec((), (Call("<", (Call("%", (ColumnRef(0), TEN)), ONE)),))], X)
    [out] = operator.push(0, Delta.of(updates))
    assert out.oks.columns[0].to_pylist() == [*range(0, n, 10)]
