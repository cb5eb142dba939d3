"""Union: the sum of its inputs, of any number of ports. Stateless: the same rows of two inputs just add up.

Does not: consolidate (whoever arranges does), widen types (all inputs have the same).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round, types_of
from controller_proto.errors import Refusal

__all__ = ["UnionOperator"]


class UnionOperator:
    """Passes blocks on. A column may be NULL if it may in any input."""

    def __init__(self, inputs: Sequence[Columns]) -> None:
        """inputs: the columns of each port, at least one. Raises Refusal(`invalid-plan`)."""
        first = inputs[0]
        for port, columns in enumerate(inputs):
            if types_of(columns) != types_of(first):
                names = [", ".join(t.name for t in types_of(c)) for c in (first, columns)]
                raise Refusal("invalid-plan", f"Union of ({names[0]}) and, as input {port}, ({names[1]})")
        nullable = [any(column.nullable for column in same) for same in zip(*inputs, strict=True)]
        self.schema: Columns = tuple(
            replace(column, nullable=may) for column, may in zip(first, nullable, strict=True)
        )

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        yield delta

    def finish(self) -> Iterator[Delta]:
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """Nothing is held."""
