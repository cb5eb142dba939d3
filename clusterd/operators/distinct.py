"""Distinct: each row once, while its net count is positive.

It is the reduce without aggregates by all columns: a change of count that does not cross zero emits nothing,
and a net-negative row is an error in data that names it.

Does not: anything that reduce.py does not.
"""

from __future__ import annotations

from clusterd.dataflow.operator import Columns
from clusterd.operators.reduce import ReduceOperator

__all__ = ["DistinctOperator"]


class DistinctOperator(ReduceOperator):
    """Rows of `columns`, each once."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns, tuple(range(len(columns))), ())
