"""Graph: the operators of one dataflow and how a round runs through them.

Nodes are added in arrival order, each after its inputs, and never change; so their order is topological, and
a round is one walk along it: a source's blocks are pushed through its consumers depth first, as far as they
go; an operator's `finish` comes when every node before it has finished, so all its inputs have. A block is
handed on before the next is made, so a round holds one block an operator deep, not one relation.

`run` is a generator that yields after every piece of work: that is where a scheduler may turn elsewhere.

Does not: decide rounds (scheduler.py), read a clock of its own, run two rounds at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from clusterd.dataflow.exchange import ExchangeEdge, ExchangeFactory, identity_exchange
from clusterd.dataflow.operator import Columns, Delta, Operator, OperatorStatistics, Round, Source
from clusterd.dataflow.scope import PlaceStatistics, Scope
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["Clock", "Graph", "History", "NodeStatistics", "Progress"]

Clock = Callable[[], float]
_DONE: Final = object()


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """What a node has done since it was built. rows and errs are updates; elapsed_s its own time alone, and
    longest_s the longest piece of it (R11). reads: the sources it reads in place. places: of a recursion,
    what is in it.
    """

    node: int
    name: str
    inputs: tuple[int, ...]
    rows_in: int
    rows_out: int
    errs_in: int
    errs_out: int
    elapsed_s: float
    longest_s: float
    state: OperatorStatistics
    reads: tuple[int, ...] = ()
    places: tuple[PlaceStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a round is. node, name: which works. rows_done: updates that have come from the sources that
    are read as streams; rows_expected: that will have, 0 for what is not known.
    """

    node: int
    name: str
    rows_done: int
    rows_expected: int


@dataclass(slots=True)
class History:
    """When rounds were, on the graph's clock; None for what has not been. pieces, rounds: that are over. As
    long as `pieces` and `rounds` stay, so do all statistics.
    """

    created_s: float
    pieces: int = 0
    rounds: int = 0
    first_began_s: float | None = None
    first_ended_s: float | None = None
    began_s: float | None = None  # the round that runs

    def begin(self, now_s: float) -> None:
        self.began_s = now_s
        if self.first_began_s is None:
            self.first_began_s = now_s

    def end(self, now_s: float) -> None:
        self.began_s = None
        self.rounds += 1
        if self.first_ended_s is None:
            self.first_ended_s = now_s


@dataclass(slots=True)
class _Edge:
    target: _Node
    port: int
    exchange: ExchangeEdge | None


@dataclass(slots=True)
class _Node:
    number: int
    name: str
    source: Source | None
    operator: Operator | None  # exactly one of the two
    inputs: tuple[int, ...]
    reads: tuple[int, ...] = ()
    outputs: list[_Edge] = field(default_factory=list)
    incoming: list[_Edge] = field(default_factory=list)
    rows_in: int = 0
    rows_out: int = 0
    errs_in: int = 0
    errs_out: int = 0
    elapsed_s: float = 0.0
    longest_s: float = 0.0
    rows_before: int = 0  # rows_out when the round began

    @property
    def work(self) -> Source | Operator:
        work = self.source or self.operator
        assert work is not None
        return work


class Graph:
    """Built once by `add_source` and `add_operator`, then run round by round.

    exchange: makes the edges into arranging operators. clock: seconds, for statistics alone.
    """

    def __init__(self, *, clock: Clock, exchange: ExchangeFactory = identity_exchange) -> None:
        self._clock = clock
        self._exchange = exchange
        self._nodes: list[_Node] = []
        self._sources: list[Source] = []
        self._exchanges: list[ExchangeEdge] = []
        self._running = False
        self._closed = False
        self._working = 0  # the node whose turn it is in the walk
        self._history = History(clock())

    def add_source(self, source: Source, name: str) -> int:
        """Returns the node's number, by which later nodes name it."""
        self._sources.append(source)
        return self._add(name, (), source, None)

    def add_operator(
        self,
        operator: Operator,
        inputs: Sequence[int],
        name: str,
        *,
        exchange_on: Mapping[int, tuple[int, ...]] | None = None,
        reads: Sequence[int] = (),
    ) -> int:
        """inputs: the node feeding each port. exchange_on: by port, the columns that decide a row's owner.
        reads: the sources whose arrangements it looks into; nothing is pushed from there.
        """
        number = self._add(name, tuple(inputs), None, operator)
        node = self._nodes[number]
        node.reads = tuple(reads)
        for port, feeding in enumerate(inputs):
            if not 0 <= feeding < number:
                raise InvariantViolation("a node is fed by nodes before it", node=number, input=feeding)
            exchange: ExchangeEdge | None = None
            if exchange_on is not None and port in exchange_on:
                exchange = self._exchange(len(self._exchanges), exchange_on[port])
                self._exchanges.append(exchange)
            edge = _Edge(node, port, exchange)
            self._nodes[feeding].outputs.append(edge)
            node.incoming.append(edge)
        return number

    def _add(
        self, name: str, inputs: tuple[int, ...], source: Source | None, operator: Operator | None
    ) -> int:
        self._nodes.append(_Node(len(self._nodes), name, source, operator, inputs))
        return len(self._nodes) - 1

    def schema(self, node: int) -> Columns:
        """The columns a node puts out."""
        return self._nodes[node].work.schema

    @property
    def frontier(self) -> Frontier:
        """What the next round may reach: the meet of all sources, the empty frontier without any."""
        frontier = Frontier.empty()
        for source in self._sources:
            frontier = Frontier.meet(frontier, source.frontier)
        return frontier

    def run(self, round: Round) -> Iterator[None]:
        """The work of one round, in pieces; to be run to its end, or the graph closed."""
        if self._running or self._closed:
            raise InvariantViolation("one round at a time, and none after the end", round=round)
        self._running = True
        self._history.begin(self._clock())
        # Sources first: operators may look at arranged inputs as soon as they start.
        for source in self._sources:
            source.start(round)
        for exchange in self._exchanges:
            exchange.start(round)
        for node in self._nodes:
            node.rows_before = node.rows_out
            if node.operator is not None:
                node.operator.start(round)
        for node in self._nodes:
            self._working = node.number
            if node.source is not None and node.outputs:
                yield from self._drain(node, node.source.blocks())
            if node.operator is None:
                continue
            for edge in node.incoming:
                if edge.exchange is not None:
                    for arrived in edge.exchange.finish():
                        yield from self._push(edge, arrived)
            yield from self._drain(node, node.operator.finish())
        for source in self._sources:
            source.finish()
        self._running = False
        self._history.end(self._clock())

    def _drain(self, node: _Node, produced: Iterator[Delta]) -> Iterator[None]:
        """Hand on, block by block, what `node` makes, and keep its accounts."""
        clock = self._clock
        while True:
            began = clock()
            delta = next(produced, _DONE)
            took = clock() - began
            node.elapsed_s += took
            self._history.pieces += 1
            if took > node.longest_s:
                node.longest_s = took
            if delta is _DONE:
                return
            assert isinstance(delta, Delta)
            if len(delta):
                node.rows_out += len(delta.oks)
                node.errs_out += len(delta.errs)
                for edge in node.outputs:
                    if edge.exchange is None:
                        yield from self._push(edge, delta)
                    else:
                        for arrived in edge.exchange.send(delta):
                            yield from self._push(edge, arrived)
            yield

    def _push(self, edge: _Edge, delta: Delta) -> Iterator[None]:
        target = edge.target
        if not len(delta):
            yield
            return
        target.rows_in += len(delta.oks)
        target.errs_in += len(delta.errs)
        assert target.operator is not None
        yield from self._drain(target, target.operator.push(edge.port, delta))

    def close(self) -> None:
        """Let go of everything; also in the middle of a round, whose iterator is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for node in reversed(self._nodes):
            node.work.close()
        for exchange in self._exchanges:
            exchange.close()
        for node in self._nodes:  # in a circle, until a collection of garbage that may be long in coming
            node.outputs.clear()
            node.incoming.clear()

    @property
    def history(self) -> History:
        """When rounds were. Not to be changed."""
        return self._history

    @property
    def working(self) -> int | None:
        """The node whose turn it is; None between rounds."""
        return self._working if self._running else None

    def progress(self) -> Progress | None:
        """How far the round is that runs, None between rounds. Costs a look at each source."""
        if not self._running:
            return None
        expected = sum(node.work.statistics().expected_rows for node in self._read)
        return Progress(self._working, self._nodes[self._working].name, self.rows_read, expected)

    @property
    def rows_read(self) -> int:
        """Updates that came from the sources that are read as streams, in the round that runs or ran last."""
        return sum(node.rows_out - node.rows_before for node in self._read)

    @property
    def _read(self) -> list[_Node]:
        return [node for node in self._nodes if node.source is not None and node.outputs]

    def statistics(self) -> tuple[NodeStatistics, ...]:
        return tuple(
            NodeStatistics(
                node.number,
                node.name,
                node.inputs,
                node.rows_in,
                node.rows_out,
                node.errs_in,
                node.errs_out,
                node.elapsed_s,
                node.longest_s,
                node.work.statistics(),
                node.reads,
                node.operator.places() if isinstance(node.operator, Scope) else (),
            )
            for node in self._nodes
        )
