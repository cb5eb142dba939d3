"""Operators inside a recursion: the contract, and how those for plain dataflows are used in it.

Inside a recursion an update has a pair of times: the time of the dataflow and the iteration. The former come
one by one, so only the iteration is written down, as the time of an update; what came before the time that
runs is one history. At each iteration an operator is given what changes there, against that history, and
gives what changes in its output: there, and at later iterations, where the change meets what earlier times
brought later. An operator is a function of histories and looks at nothing ahead, so what it gives after an
iteration is: output of the input so far, less what it gave already. Retraction needs no special case.

`Linear` wraps an operator without state. `Grouped` wraps one whose output for a key depends on the rows of
that key alone: iterations are times to it, so the history of a key, run through a new instance of it, gives
the history of its output. It is run for the keys that change, before and after, and the difference is given:
right for whatever the operator computes, errors included. Cost: the histories of these keys.

Does not: decide iterations (dataflow/scope.py), or judge what is a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import (
    NO_ERRS,
    Columns,
    Delta,
    Operator,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.iteration_index import IterationIndex, Keys, distinct_slots
from shm_arrangements.frontier import Frontier
from shm_arrangements.rows import RowSpec
from shm_arrangements.updates import Updates

__all__ = ["Blocks", "Grouped", "IterativeOperator", "Linear"]

Ints = NDArray[np.int64]
Blocks = Sequence[Delta]

_GROUPS = 8192  # looked at in one piece
_WHOLE = Round(0, Frontier.empty(), 0)  # a history as one round


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

    def settle(self) -> None:
        """The time is over: what it brought is history."""

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

    def settle(self) -> None:
        """Nothing is kept."""

    def statistics(self) -> OperatorStatistics:
        return self._operator.statistics()

    def close(self) -> None:
        self._operator.close()


class Grouped:
    """An operator of one input by key; `make` gives a new one, `key` are the positions it groups by."""

    def __init__(self, make: Callable[[], Operator], columns: Columns, key: Sequence[int]) -> None:
        self._make = make
        self._key = tuple(dict.fromkeys(key))
        self._rest = tuple(k for k in range(len(columns)) if k not in self._key)
        places = {k: at for at, k in enumerate((*self._key, *self._rest))}
        self._places = tuple(places[k] for k in range(len(columns)))
        self._specs = tuple(RowSpec.of([columns[k] for k in part]) for part in (self._key, self._rest))
        self.schema: Columns = make().schema
        self._types = types_of(self.schema)
        self._touched = 0
        self._reset()

    def _reset(self) -> None:
        self._keys = Keys(self._specs[0])
        self._index = IterationIndex(self._keys, self._specs[1])

    def step(self, iteration: int, inputs: Sequence[Blocks]) -> Iterator[Delta]:
        pause = Delta.empty(self._types)
        changes: list[tuple[Ints, Updates]] = []
        for delta in inputs[0]:
            oks = delta.oks
            if len(delta.errs):
                yield Delta(pause.oks, delta.errs)
            if len(oks):
                changes.append((self._keys.assign([oks.columns[k] for k in self._key], len(oks)), oks))
                yield pause
        if not changes:
            return
        slots = distinct_slots([each for each, _ in changes], self._keys.table.capacity)
        for start in range(0, len(slots), _GROUPS):
            chunk = slots[start : start + _GROUPS]
            mine = changes
            if len(chunk) < len(slots):
                mine = [
                    (of[held], oks.filter(held))
                    for of, oks in changes
                    if (held := (of >= chunk[0]) & (of <= chunk[-1])).any()
                ]
            yield from self._change(chunk, [oks for _, oks in mine])
            for of, oks in mine:
                rest = [oks.columns[k] for k in self._rest]
                self._index.add(of, rest, iteration, oks.diffs)
                yield pause

    def _change(self, slots: Ints, changes: Sequence[Updates]) -> Iterator[Delta]:
        """What `changes` of the keys `slots`, which are all of these keys, do to the output."""
        pause = Delta.empty(self._types)
        history: list[Updates] = []
        for owners, rest in self._index.history(slots):
            self._touched += len(owners)
            columns = (*self._keys.table.columns(owners), *rest.columns)
            columns = tuple(columns[at] for at in self._places)
            history.append(Updates(columns, rest.times, rest.diffs))
            yield pause
        self._touched += sum(map(len, changes))
        out: list[Delta] = []
        for _ in self._run([*history, *changes], out):
            yield pause
        if history:
            before: list[Delta] = []
            for _ in self._run(history, before):
                yield pause
            out += [Delta(_negated(delta.oks), _negated(delta.errs)) for delta in before]
        oks = [delta.oks for delta in out if len(delta.oks)]
        errs = [delta.errs for delta in out if len(delta.errs)]
        yield Delta(
            Updates.concat(oks).consolidate() if oks else pause.oks,
            Updates.concat(errs).consolidate() if errs else NO_ERRS,
        )

    def _run(self, history: Sequence[Updates], out: list[Delta]) -> Iterator[None]:
        """The output of a new operator, in pieces."""
        operator = self._make()
        operator.start(_WHOLE)
        for updates in history:
            for delta in operator.push(0, Delta.of(updates)):
                out.append(delta)
                yield
        for delta in operator.finish():
            out.append(delta)
            yield
        operator.close()

    def settle(self) -> None:
        self._keys.settle(self._index.is_empty)

    def statistics(self) -> OperatorStatistics:
        """touched_rows: rows of the histories of keys that changed."""
        held = self._keys.table.nbytes + self._index.nbytes
        return OperatorStatistics(len(self._index), held, self._touched)

    def close(self) -> None:
        self._reset()


def _negated(updates: Updates) -> Updates:
    return Updates(updates.columns, updates.times, -updates.diffs)
