"""AggregateCall: one aggregate over columns of the input, and the column that it makes.

Does not: evaluate. Types are the rule of controller_proto/aggregates.py, here by the columns of the replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from clusterd.convert import from_wire, to_wire
from clusterd.operators.ordered import OrderColumn
from controller_proto.aggregates import AGGREGATES, aggregate_result
from shm_arrangements.types import ColumnSpec

__all__ = ["AggregateCall", "Source", "result_spec"]

Source = tuple[int, bool]  # a column of the input, and whether each of its values counts once
_INSENSITIVE = frozenset({"min", "max", "bool_and", "bool_or"})  # to how often a value is there


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """`function` of column `column` of the input rows, None for `count(*)`, and of further columns `args`.

    order: how the rows of an ordered aggregate go; then by argument.
    """

    function: str
    column: int | None = None
    name: str = ""
    distinct: bool = False
    args: tuple[int, ...] = ()
    order: tuple[OrderColumn, ...] = ()

    @property
    def kind(self) -> str:
        return AGGREGATES[self.function].kind

    @property
    def source(self) -> Source:
        """What an accumulable aggregate adds up."""
        assert self.column is not None
        return self.column, self.distinct and self.function not in _INSENSITIVE


def result_spec(call: AggregateCall, columns: Sequence[ColumnSpec]) -> ColumnSpec:
    """The output column of an aggregate.

    Raises: ValueError for a function that does not exist or does not take its arguments.
    """
    args = [] if call.column is None else [to_wire(columns[k]) for k in (call.column, *call.args)]
    column = aggregate_result(call.function, args)
    return from_wire(msgspec.structs.replace(column, name=call.name or call.function))
