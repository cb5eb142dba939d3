"""A FlatMap over constant rows, run by its operator alone: what it gives, in order, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from clusterd.convert import column_from_scalars, column_specs, scalars_from_column, wire_schema
from clusterd.dataflow.operator import Delta, Round
from clusterd.operators.flat_map import FlatMapOperator
from clusterd.render.expr import compile_expr
from clusterd.render.functions import Evaluated
from clusterd.render.tables import is_constant, table_call
from controller_proto.plan import Constant, FlatMap
from controller_proto.schema import Column as WireColumn
from shm_arrangements.columns import Column
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates

__all__ = ["expanded"]

Rows = list[tuple[tuple[Any, ...], int]]


def expanded(plan: FlatMap) -> tuple[Rows, list[tuple[str, int]], tuple[WireColumn, ...]]:
    """Rows of the function alone, as wire values with their diffs; errors; and the columns of the rows."""
    assert isinstance(plan.input, Constant)
    specs = column_specs(plan.input.schema)
    n = len(plan.input.rows)
    columns = [
        column_from_scalars(spec, [row[k] for row, _ in plan.input.rows]) for k, spec in enumerate(specs)
    ]
    call, exprs = table_call(plan, specs)
    args: list[int | Column] = []
    for expr in exprs:
        if is_constant(expr):
            args.append(compile_expr(expr, ()).run((), 1).column)
        else:
            made = compile_expr(expr, specs)([Evaluated(column) for column in columns], n)
            assert made.errors is None
            args.append(len(columns))
            columns.append(made.column)
    diffs = np.array([diff for _, diff in plan.input.rows], np.int64)
    updates = Updates(tuple(columns), np.zeros(n, np.uint64), diffs)
    operator = FlatMapOperator((*specs, *specs, *specs), (), call, args)
    operator.start(Round(0, Frontier.at(1), 0))
    oks: Rows = []
    errs: list[tuple[str, int]] = []
    for delta in operator.push(0, Delta.of(updates)):
        lists = [scalars_from_column(s, c) for s, c in zip(call.columns, delta.oks.columns, strict=True)]
        oks += zip(zip(*lists, strict=True), delta.oks.diffs.tolist(), strict=True)
        errs += [(row[0], diff) for row, _, diff in delta.errs.to_rows()]
    return oks, errs, wire_schema(call.columns).columns
