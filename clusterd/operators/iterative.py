"""Operators inside a recursion: the contract, and how those for plain dataflows are used in it.

Inside a recursion an update has a pair of times: the time of the dataflow and the iteration. The former come
one by one, so only the iteration is written down, as the time of an update; what came before the time that
runs is one history. At each iteration an operator is given what changes there, against that history, and
gives what changes in its output: there, and at later iterations, where the change meets what earlier times
brought later. An operator is a function of histories and looks at nothing ahead, so what it gives after an
iteration is: output of the input so far, less what it gave already. Retraction needs no special case.

`Linear` wraps an operator without state, `Grouped` (iterative_grouped.py) any that goes by key.

Does not: decide iterations (dataflow/scope.py), or judge what is a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from clusterd.dataflow.operator import Columns, Delta, Operator, OperatorStatistics, Round
from shm_arrangements.frontier import Frontier

__all__ = ["Blocks", "IterativeOperator", "Linear"]

Blocks = Sequence[Delta]


class IterativeOperator(Protocol):
    """A node of a recursion. See the head.

    Raises: MultiplicityOverflow, after which it is only closed.
    """

    @property
    def schema(self) -> Columns:
        """The columns of the output rows."""

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        """What changes by `inputs`, blocks by port with times `iteration`, at that iteration or later.

        Iterations ascend within a time. An empty Delta marks the end of a piece of work; run to the end.
        """

    def settle(self) -> Iterator[None]:
        """The time is over: what it brought is history. In pieces of work, to be run to the end."""

    def statistics(self) -> OperatorStatistics: ...

    def close(self) -> None: ...


class Linear:
    """An operator that keeps nothing and gives no update another time than it had."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.schema = operator.schema

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        self._operator.start(Round(iteration, Frontier.at(iteration + 1), 0))
        for port, blocks in enumerate(inputs):
            for delta in blocks:
                yield from self._operator.push(port, delta)
        yield from self._operator.finish()

    def settle(self) -> Iterator[None]:
        """Nothing is kept."""
        return iter(())

    def statistics(self) -> OperatorStatistics:
        return self._operator.statistics()

    def close(self) -> None:
        self._operator.close()
