"""Scope: a recursion as one operator of a dataflow, run to its fixed point at each time, by differences.

At time t every binding begins empty; at each iteration all of them are evaluated in order, a binding seeing
what this iteration gave for those before it, and what the last one gave for itself and those after it; until
nothing changes. What is computed is not that, but how the whole course of iterations differs from the course
at the time before: inputs change at iteration 0, operators (operators/iterative.py) say what changes at which
iteration, and only iterations at which something does are run. As each difference is against the course at
the time before, and not against its end, what supported itself in a cycle goes when its reason goes. The
collection at t is the sum of all differences of a binding. Work is what changes, at any iteration.

Times of a round are run one by one, in order. With a limit, differences from that iteration on are left out;
if any binding changes in the last one before (in the course at t, not by t) the recursion is not at its
end, which is an error in data of every binding, or is put up with.

If a multiplicity leaves 64 bits, the scope ends: rows stay as they were before that time and an error says
so from then on.

`ScopeOutput` is a binding's end outside: it stands behind the scope in the graph, and so finishes after it.

Does not: exchange rows with other workers inside a recursion; end by itself if there is no fixed point (it
yields after every piece, and is dropped there).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from clusterd.dataflow.gathered import Gathered
from clusterd.dataflow.operator import (
    BLOCK_ROWS,
    NO_ERRS,
    Columns,
    Delta,
    OperatorStatistics,
    Round,
)
from clusterd.operators.iteration_index import MOST_ITERATIONS
from clusterd.operators.iterative import IterativeOperator
from clusterd.operators.iterative_counts import CountMode, IterativeCounts
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow
from shm_arrangements.updates import Updates
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["Limit", "Place", "PlaceStatistics", "Scope", "ScopeOutput"]

_OVERFLOW = "multiplicity-overflow: a multiplicity in a recursion leaves 64 bits"


@dataclass(frozen=True, slots=True)
class Place:
    """A node of a recursion: an operator and the places feeding its ports; None: filled from elsewhere."""

    operator: IterativeOperator | None
    inputs: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class PlaceStatistics:
    """What a place of a recursion has done, at all iterations together; rows and errs are updates. inputs:
    the places that feed it, at this iteration or at the one before; `is_entry`: rows come from outside.
    """

    place: int
    name: str
    inputs: tuple[int, ...]
    is_entry: bool
    rows_in: int
    rows_out: int
    errs_in: int
    errs_out: int
    state: OperatorStatistics


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `iterations`, at least 1; reaching it is an error unless `is_answer`."""

    iterations: int
    is_answer: bool


@dataclass(slots=True)
class _Node:
    operator: IterativeOperator | None
    place: Place
    ports: int
    rows_in: int = 0
    rows_out: int = 0
    errs_in: int = 0
    errs_out: int = 0
    targets: list[tuple[int, int]] = field(default_factory=list)  # node, port
    inbox: dict[int, list[list[Delta]]] = field(default_factory=dict)  # by iteration, by port


class Scope:
    """An operator whose ports are what enters, and whose outputs are taken by `ScopeOutput`s.

    places: in order of evaluation. entries: the place of each port. feedback: per binding, the place where
    the iteration before is seen. bindings: per binding, the place of its value.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        entries: Sequence[int],
        feedback: Sequence[int],
        bindings: Sequence[int],
        limit: Limit | None = None,
    ) -> None:
        self.schema: Columns = ()
        self._nodes = [_Node(place.operator, place, len(place.inputs)) for place in places]
        for number, place in enumerate(places):
            for port, feeding in enumerate(place.inputs):
                if feeding >= number:
                    raise InvariantViolation("a place is fed by places before it", place=number, by=feeding)
                self._nodes[feeding].targets.append((number, port))
        self._entries = tuple(entries)
        self._feedback = dict(zip(bindings, feedback, strict=True))
        self._number = {place: number for number, place in enumerate(bindings)}
        self.columns: list[Columns] = []
        for binding in bindings:
            operator = self._nodes[binding].operator
            if operator is None:
                raise InvariantViolation("a binding has a value", place=binding)
            self.columns.append(operator.schema)
        self._outputs = [Gathered(columns) for columns in self.columns]
        self._limit = limit
        self._is_cut = False  # the limit was reached at the time before
        # What changes in the last iteration there may be, by binding: rows and errors.
        self._last = [
            tuple(IterativeCounts(each, CountMode.SET) for each in (columns, ERRS_SCHEMA.columns))
            for columns in (self.columns if limit is not None and not limit.is_answer else ())
        ]
        self._arrived: dict[int, list[list[Delta]]] = {}  # by time, by port
        self._iterations: list[int] = []  # a heap of those at which something waits
        self._waiting: set[int] = set()
        self._is_broken = False

    def start(self, round: Round) -> None:
        self._arrived.clear()

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if not self._is_broken:
            for at, part in _by_time(delta):
                if at not in self._arrived:
                    self._arrived[at] = [[] for _ in self._entries]
                self._arrived[at][port].append(part)
        return iter(())

    def finish(self) -> Iterator[Delta]:
        for time in sorted(self._arrived):
            if self._is_broken:
                break
            for port, blocks in enumerate(self._arrived.pop(time)):
                for delta in blocks:
                    self._hand_on(self._entries[port], _at(delta, 0), 0)
            try:
                yield from self._settle_down(time)
            except MultiplicityOverflow:
                self._break(time, _OVERFLOW)
        self._arrived.clear()

    def _settle_down(self, time: int) -> Iterator[Delta]:
        """Run the iterations of `time` at which something changes."""
        pause = Delta.empty(())
        while self._iterations:
            iteration = heapq.heappop(self._iterations)
            if iteration >= MOST_ITERATIONS:
                self._break(time, f"recursion-limit: no fixed point after {MOST_ITERATIONS} iterations")
                return
            self._waiting.discard(iteration)
            for number, node in enumerate(self._nodes):
                inputs = node.inbox.pop(iteration, None)
                if inputs is None:
                    continue
                assert node.operator is not None
                merged: list[list[Delta]] = [[] for _ in inputs]
                for port, blocks in enumerate(inputs):
                    for delta in _merged(blocks):
                        if merged[port]:
                            yield pause
                        merged[port].append(delta)
                        node.rows_in += len(delta.oks)
                        node.errs_in += len(delta.errs)
                for delta in node.operator.step(iteration, merged):
                    if len(delta):
                        node.rows_out += len(delta.oks)
                        node.errs_out += len(delta.errs)
                        for at, part in _by_time(delta):
                            self._hand_on(number, part, at)
                            if number in self._number:
                                yield from self._keep(number, part, at, time)
                    yield pause
        for node in self._nodes:
            if node.operator is not None:
                for _ in node.operator.settle():
                    yield pause
        yield from self._judge_limit(time)

    def _hand_on(self, number: int, delta: Delta, iteration: int) -> None:
        """Give what a place made to those that see it: at this iteration, or through feedback at the next."""
        self._deliver(self._nodes[number].targets, delta, iteration)
        feedback = self._feedback.get(number)
        if feedback is not None:
            later = _at(delta, iteration + 1)
            self._deliver(self._nodes[feedback].targets, later, iteration + 1)

    def _deliver(self, targets: Sequence[tuple[int, int]], delta: Delta, iteration: int) -> None:
        if not targets or (self._limit is not None and iteration >= self._limit.iterations):
            return
        for number, port in targets:
            node = self._nodes[number]
            box = node.inbox.get(iteration)
            if box is None:
                box = node.inbox[iteration] = [[] for _ in range(node.ports)]
            box[port].append(delta)
        if iteration not in self._waiting:
            self._waiting.add(iteration)
            heapq.heappush(self._iterations, iteration)

    def _keep(self, place: int, delta: Delta, iteration: int, time: int) -> Iterator[Delta]:
        """Take what a binding changed at an iteration into its output at `time`."""
        number = self._number[place]
        if self._limit is not None and iteration >= self._limit.iterations:
            return
        if self._last and self._limit is not None and iteration == self._limit.iterations - 1:
            for counts, updates in zip(self._last[number], (delta.oks, delta.errs), strict=True):
                if len(updates):
                    for _ in counts.step(0, [[Delta.of(updates)]]):
                        yield Delta.empty(())
        output, outside = self._outputs[number], _at(delta, time)
        if len(outside.errs):
            output.errs.append(outside.errs)
        if len(outside.oks):
            for _ in output.add(outside.oks):
                yield Delta.empty(())

    def _judge_limit(self, time: int) -> Iterator[Delta]:
        """Say or take back that the recursion was cut off."""
        if not self._last or self._limit is None:
            return
        for pair in self._last:
            for counts in pair:
                for _ in counts.settle():
                    yield Delta.empty(())
        is_cut = any(len(counts) for pair in self._last for counts in pair)
        if is_cut != self._is_cut:
            n = self._limit.iterations
            self._complain(f"recursion-limit: no fixed point after {n} iterations", time, 1 if is_cut else -1)
        self._is_cut = is_cut

    def _complain(self, message: str, time: int, diff: int) -> None:
        for output in self._outputs:
            output.errs.append(Updates.from_rows(NO_ERRS.types, [((message,), time, diff)]))

    def _break(self, time: int, why: str) -> None:
        """What `time` comes to cannot be told: nothing of it counts, and there is no way on."""
        for output in self._outputs:
            output.drop(time)
        self._complain(why, time, 1)
        self._is_broken = True
        self._let_go()

    def take(self, number: int) -> Iterator[Delta]:
        """What binding `number` changed in the round, in blocks; once, after `finish`."""
        return self._outputs[number].take()

    def statistics(self) -> OperatorStatistics:
        """Of all operators of the recursion together."""
        parts = [node.operator.statistics() for node in self._nodes if node.operator is not None]
        return OperatorStatistics(
            sum(p.state_rows for p in parts), sum(p.state_bytes for p in parts),
            sum(p.touched_rows for p in parts),
        )  # fmt: skip

    def places(self) -> tuple[PlaceStatistics, ...]:
        """Of each by itself."""
        nothing = OperatorStatistics()
        before = {place: (binding,) for binding, place in self._feedback.items()}
        return tuple(
            PlaceStatistics(
                number, node.place.name, before.get(number, node.place.inputs), number in self._entries,
                node.rows_in, node.rows_out, node.errs_in, node.errs_out,
                nothing if node.operator is None else node.operator.statistics(),
            )
            for number, node in enumerate(self._nodes)
        )  # fmt: skip

    def close(self) -> None:
        self._let_go()
        for output in self._outputs:
            output.clear()

    def _let_go(self) -> None:
        for node in self._nodes:
            node.inbox.clear()
            if node.operator is not None:
                node.operator.close()
        for pair in self._last:
            for counts in pair:
                counts.close()
        self._arrived.clear()
        self._iterations.clear()
        self._waiting.clear()


class ScopeOutput:
    """The operator that gives binding `number` of a scope, its one input, from which nothing is pushed."""

    def __init__(self, scope: Scope, number: int) -> None:
        self._scope = scope
        self._binding = number
        self.schema = scope.columns[number]

    def start(self, round: Round) -> None:
        """Nothing depends on the round."""

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        raise InvariantViolation("a scope gives nothing itself", binding=self._binding)

    def finish(self) -> Iterator[Delta]:
        return self._scope.take(self._binding)

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        """The scope is closed by itself."""


def _at(delta: Delta, time: int) -> Delta:
    oks, errs = (
        Updates(updates.columns, np.full(len(updates), time, np.uint64), updates.diffs)
        for updates in (delta.oks, delta.errs)
    )
    return Delta(oks, errs)


def _merged(blocks: list[Delta]) -> Iterator[Delta]:
    """The same in fewer blocks: many small ones cost more than they hold."""
    held: list[Delta] = []
    rows = 0
    for delta in blocks:
        if held and rows + len(delta) > BLOCK_ROWS:
            yield _joined(held)
            held, rows = [], 0
        held.append(delta)
        rows += len(delta)
    if held:
        yield _joined(held)


def _joined(blocks: list[Delta]) -> Delta:
    if len(blocks) == 1:
        return blocks[0]
    errs = [delta.errs for delta in blocks if len(delta.errs)]
    return Delta(Updates.concat([delta.oks for delta in blocks]), Updates.concat(errs) if errs else NO_ERRS)


def _parts(updates: Updates) -> Iterator[tuple[int, Updates]]:
    """By time, ascending."""
    if not len(updates):
        return
    first = updates.times[0]
    if (updates.times == first).all():
        yield int(first), updates
        return
    order = np.argsort(updates.times, kind="stable")
    times = updates.times.take(order)
    ends = np.append(np.flatnonzero(times[1:] != times[:-1]) + 1, len(times))
    start = 0
    for end in ends.tolist():
        yield int(times[start]), updates.take(order[start:end])
        start = end


def _by_time(delta: Delta) -> Iterator[tuple[int, Delta]]:
    """The parts of a block, whose times are times or iterations."""
    nothing = delta.oks.slice(0, 0)
    for at, oks in _parts(delta.oks):
        yield at, Delta.of(oks)
    for at, errs in _parts(delta.errs):
        yield at, Delta(nothing, errs)
