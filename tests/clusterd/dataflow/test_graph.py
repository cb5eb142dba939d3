"""Rounds through a graph: depth first, finish in order, chunks by turns; and dropping in the middle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterd.dataflow.exchange import ExchangeEdge
from clusterd.dataflow.graph import Graph
from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round
from clusterd.dataflow.scheduler import RoundDone, Scheduler
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

COLUMNS: Columns = (ColumnSpec("x", ColumnType.INT64, False),)
ROUND = Round(0, Frontier.at(5), 0)


def block(*values: int) -> Delta:
    return Delta.of(Updates.from_rows([ColumnType.INT64], [((v,), 0, 1) for v in values]))


class Clock:
    """Each look takes `tick_s`."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s, self.tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


class Numbers:
    """A source of given blocks."""

    schema = COLUMNS

    def __init__(self, log: list[str], *blocks: Delta, name: str = "source") -> None:
        self.frontier = Frontier.at(5)
        self._log, self._blocks, self._name = log, blocks, name

    def start(self, round: Round) -> None:
        self._log.append(f"{self._name} starts")

    def blocks(self) -> Iterator[Delta]:
        yield from self._blocks

    def finish(self) -> None:
        self._log.append(f"{self._name} finishes")

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics()

    def close(self) -> None:
        self._log.append(f"{self._name} closes")


class Spy:
    """Passes on what it gets, in `pieces` empty pieces before each, and a 100 when it finishes."""

    schema = COLUMNS

    def __init__(self, log: list[str], name: str, pieces: int = 0) -> None:
        self._log, self._name, self._pieces = log, name, pieces

    def start(self, round: Round) -> None:
        self._log.append(f"{self._name} starts")

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        self._log.append(f"{self._name}[{port}] {delta.oks.columns[0].to_pylist()}")
        for _ in range(self._pieces):
            yield Delta.empty((ColumnType.INT64,))
        yield delta

    def finish(self) -> Iterator[Delta]:
        self._log.append(f"{self._name} finishes")
        yield block(100)

    def statistics(self) -> OperatorStatistics:
        return OperatorStatistics(state_rows=7)

    def close(self) -> None:
        self._log.append(f"{self._name} closes")


def test_blocks_go_depth_first_and_finishing_follows_the_order_of_nodes() -> None:
    log: list[str] = []
    graph = Graph(clock=Clock())
    source = graph.add_source(Numbers(log, block(1), block(2, 3)), "source")
    a = graph.add_operator(Spy(log, "a"), [source], "a")
    graph.add_operator(Spy(log, "b"), [source, a], "b")
    for _ in graph.run(ROUND):
        pass
    assert log == [
        "source starts", "a starts", "b starts",
        "a[0] [1]", "b[1] [1]", "b[0] [1]",
        "a[0] [2, 3]", "b[1] [2, 3]", "b[0] [2, 3]",
        "a finishes", "b[1] [100]", "b finishes", "source finishes",
    ]  # fmt: skip


def test_statistics_count_updates_and_each_nodes_own_time() -> None:
    log: list[str] = []
    graph = Graph(clock=Clock(1.0))
    source = graph.add_source(Numbers(log, block(1), block(2, 3)), "numbers")
    graph.add_operator(Spy(log, "a", pieces=2), [source], "a")
    for _ in graph.run(ROUND):
        pass
    first, second = graph.statistics()
    assert (first.rows_in, first.rows_out, first.name) == (0, 3, "numbers")
    assert (second.rows_in, second.rows_out, second.inputs, second.state.state_rows) == (3, 4, (0,), 7)
    # One tick a resumption: 2 blocks and the end; 2 pushes of 3 yields and an end, and the finish.
    assert (first.elapsed_s, second.elapsed_s) == (3.0, 10.0)


class Recording:
    """An exchange that keeps the last block back until the round ends, as one with peers may."""

    def __init__(self, log: list[str], key: tuple[int, ...]) -> None:
        self._log, self._held = log, list[Delta]()
        self._log.append(f"edge on {key}")

    def start(self, round: Round) -> None:
        self._log.append("edge starts")

    def send(self, delta: Delta) -> Iterator[Delta]:
        self._held.append(delta)
        if len(self._held) > 1:
            yield self._held.pop(0)

    def finish(self) -> Iterator[Delta]:
        yield Delta.empty((ColumnType.INT64,))  # a peer's message is outstanding
        yield from self._held
        self._held = []

    def close(self) -> None:
        self._log.append("edge closes")


def test_what_an_exchange_holds_back_arrives_before_its_operator_finishes() -> None:
    log: list[str] = []

    def factory(edge: int, key: tuple[int, ...]) -> ExchangeEdge:
        assert edge == 0
        return Recording(log, key)

    graph = Graph(clock=Clock(), exchange=factory)
    source = graph.add_source(Numbers(log, block(1), block(2)), "source")
    graph.add_operator(Spy(log, "a"), [source], "a", exchange_on={0: (0,)})
    for _ in graph.run(ROUND):
        pass
    assert log == [
        "edge on (0,)", "source starts", "edge starts", "a starts",
        "a[0] [1]", "a[0] [2]", "a finishes", "source finishes",
    ]  # fmt: skip
    graph.close()
    assert log[-3:] == ["a closes", "source closes", "edge closes"]


def test_a_node_is_fed_by_earlier_nodes_and_rounds_do_not_overlap() -> None:
    log: list[str] = []
    graph = Graph(clock=Clock())
    source = graph.add_source(Numbers(log, block(1)), "source")
    with pytest.raises(InvariantViolation, match="fed by nodes before it"):
        graph.add_operator(Spy(log, "a"), [source + 1], "a")
    next(graph.run(ROUND))
    with pytest.raises(InvariantViolation, match="one round at a time"):
        next(graph.run(ROUND))


def test_the_frontier_of_a_graph_is_the_meet_of_its_sources() -> None:
    graph = Graph(clock=Clock())
    assert graph.frontier.is_empty
    early, late = Numbers([]), Numbers([])
    early.frontier, late.frontier = Frontier.at(3), Frontier.empty()
    graph.add_source(early, "early")
    graph.add_source(late, "late")
    assert graph.frontier == Frontier.at(3)


# The scheduler.


def graph_of(log: list[str], name: str, pieces: int) -> Graph:
    graph = Graph(clock=Clock())
    source = graph.add_source(Numbers(log, block(1), name=f"{name}'s source"), "source")
    graph.add_operator(Spy(log, name, pieces), [source], name)
    return graph


def test_a_short_round_gets_its_turn_while_a_long_one_runs() -> None:
    log: list[str] = []
    scheduler = Scheduler(chunk_s=0.05)
    for name, pieces in (("long", 1000), ("short", 0)):
        scheduler.add(name, graph_of(log, name, pieces))
    scheduler.begin("long", ROUND)
    clock = Clock(0.001)
    first = scheduler.step(0.0, clock)
    assert first.more
    assert not first.completed
    scheduler.begin("short", Round(0, Frontier.at(9), 0))
    done: list[RoundDone] = []
    while not done:
        done += scheduler.step(0.05, clock).completed
    assert done == [RoundDone("short", Frontier.at(9))]
    assert "long finishes" not in log
    while scheduler.has_work:
        done += scheduler.step(0.05, clock).completed
    assert done[1:] == [RoundDone("long", Frontier.at(5))]
    statistics = scheduler.statistics()
    assert statistics.rounds == 2
    assert statistics.longest_chunk_s <= 0.05
    assert not scheduler.step(1.0, clock).more


def test_a_chain_of_short_rounds_waits_for_one_chunk_of_a_hydration_and_not_for_one_a_link() -> None:
    """As the runtime does: the round of an importer is decided when a step has completed the one before."""
    log: list[str] = []
    scheduler = Scheduler(chunk_s=0.05)
    names = [f"link {k}" for k in range(8)]
    for name, pieces in (("hydration", 100_000), ("another", 100_000), *((name, 2) for name in names)):
        scheduler.add(name, graph_of(log, name, pieces))
    scheduler.begin("hydration", ROUND)
    scheduler.begin("another", ROUND)
    clock = Clock(0.001)
    for _ in range(5):
        assert not scheduler.step(0.05, clock).completed
    began = clock.now_s
    waiting = list(names)
    scheduler.begin(waiting.pop(0), ROUND)
    while scheduler.running_round(names[-1]) is not None or waiting:
        for _ in scheduler.step(0.05, clock).completed:
            if waiting:
                scheduler.begin(waiting.pop(0), ROUND)
    own_s = 0.02 * len(names)  # its looks at the clock
    assert clock.now_s - began < 0.1 + own_s, "lag of a view while another hydrates"


def test_what_comes_while_a_hydration_runs_waits_for_one_chunk_and_not_for_a_step_full_of_them() -> None:
    log: list[str] = []
    scheduler = Scheduler(chunk_s=0.05)
    scheduler.add("hydration", graph_of(log, "hydration", 100_000))
    scheduler.begin("hydration", ROUND)
    clock = Clock(0.001)
    for _ in range(3):
        began = clock.now_s
        assert scheduler.step(0.05, clock).more
        assert clock.now_s - began < 0.035


def test_a_hydration_goes_on_however_many_short_rounds_there_are() -> None:
    log: list[str] = []
    scheduler = Scheduler(chunk_s=0.05)
    scheduler.add("hydration", graph_of(log, "hydration", 300))
    scheduler.begin("hydration", ROUND)
    clock = Clock(0.001)
    scheduler.step(0.0, clock)
    for k in range(20):
        scheduler.add(k, graph_of([], str(k), 0))
        scheduler.begin(k, ROUND)
    steps = 0
    while "hydration finishes" not in log:
        for done in scheduler.step(0.05, clock).completed:
            if isinstance(done.dataflow, int):
                scheduler.begin(done.dataflow, ROUND)  # at once again, for ever
        steps += 1
        assert steps < 200
    assert scheduler.statistics().rounds > 50


def test_a_step_keeps_to_its_budget() -> None:
    log: list[str] = []
    scheduler = Scheduler(chunk_s=10.0)
    scheduler.add("d", graph_of(log, "d", 1000))
    scheduler.begin("d", ROUND)
    clock = Clock(0.001)
    began = clock.now_s
    assert scheduler.step(0.02, clock).more
    assert clock.now_s - began < 0.03


def test_dropping_in_the_middle_of_a_round_closes_the_graph_and_nothing_more_happens() -> None:
    log: list[str] = []
    scheduler = Scheduler(chunk_s=0.002)
    for name in ("a", "b"):
        scheduler.add(name, graph_of(log, name, 50))
        scheduler.begin(name, ROUND)
    clock = Clock(0.001)
    scheduler.step(0.0, clock)
    scheduler.remove("a")
    assert "a closes" in log
    assert "a finishes" not in log
    done: list[RoundDone] = []
    while scheduler.has_work:
        done += scheduler.step(1.0, clock).completed
    assert done == [RoundDone("b", Frontier.at(5))]
    scheduler.add("a", graph_of(log, "a", 0))
    scheduler.begin("a", ROUND)
    scheduler.remove("a")
    assert not scheduler.has_work
    scheduler.close()
    assert log[-2:] == ["b closes", "b's source closes"]


def test_one_round_of_a_dataflow_at_a_time() -> None:
    scheduler = Scheduler(chunk_s=1.0)
    scheduler.add("a", graph_of([], "a", 0))
    with pytest.raises(InvariantViolation, match="here already"):
        scheduler.add("a", graph_of([], "a", 0))
    scheduler.begin("a", ROUND)
    assert scheduler.running_round("a") == ROUND
    with pytest.raises(InvariantViolation, match="one round at a time"):
        scheduler.begin("a", ROUND)
