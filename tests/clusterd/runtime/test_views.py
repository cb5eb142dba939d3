"""Materialized views in real workers, over real shards, turned by hand: K1 to K11, I16, restarts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from controller_proto.codec import encode_body
from controller_proto.command import (
    AllowCompaction,
    AllowWrites,
    CreateDataflow,
    InitializationComplete,
    Schedule,
)
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.parse_dataflow import parse_dataflow, resolve
from controller_proto.response import Frontiers, Refused
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.shell import Shell

MODES = pytest.mark.parametrize("workers", [0, 1])
ABC = [(1, "alpha"), (2, "beta"), (3, "gamma")]
SAMPLE = Schema((Column("id", ColumnType.INT64), Column("payload", ColumnType.TEXT)))
STRICT = Schema((Column("id", ColumnType.INT64), Column("half", ColumnType.INT64)))
SCHEMAS = {"": SAMPLE, "strict": STRICT}
VIEW = ("export kind=materialized-view sink=5 on=9 shard=m key=[0]",)
ALL = ("build id=9", "  Project (#0, #1)", "    Get u1")


class Views(Shell):
    """A replica whose controller makes views of shard `s`, which is collection u1."""

    def create(self, *lines: str, as_of: int = 0, schedule: Sequence[str] = ("u5",)) -> None:
        text = parse_dataflow(["import source=1 shard=s upper=1", *lines])
        header, body = resolve(
            text,
            name="d",
            as_of=as_of,
            until=None,
            schema_of=lambda item: SCHEMAS[item.schema],
            indexes={},
        )
        self.send(CreateDataflow(0, header, encode_body(body)))
        for id in schedule:
            self.send(Schedule(0, id))

    def stored(self, shard: str = "m") -> list[tuple[Any, int, int]]:
        """All updates of a shard, by time, then row."""
        found = self.store.shard(shard)
        blocks = found.read(0, found.upper, block_rows=1000)
        return sorted((u for b in blocks for u in b.to_rows()), key=lambda u: (u[1], str(u[0]), u[2]))

    def upper(self, shard: str = "m") -> Frontier:
        return self.store.shard(shard).upper

    def reported(self, id: str) -> list[Any]:
        """The last of what was reported of each kind."""
        last: list[Any] = [None, None, None]
        for said in self.responses:
            if isinstance(said, Frontiers) and said.id == id:
                kinds = said.write, said.input, said.output
                last = [old if new is None else new for old, new in zip(last, kinds, strict=True)]
        return last

    def refusals(self) -> list[str]:
        return [said.code for said in self.responses if isinstance(said, Refused)]


@pytest.fixture
def views(tmp_path: Path) -> Callable[[int], Views]:
    def make(workers: int) -> Views:
        made = Views(tmp_path, workers)
        made.boot()
        return made

    return make


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_k1_k2_k3_a_view_beside_an_index_is_written_once_it_may_be(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.create(*ALL, "export index=6 on=9 key=[0]", *VIEW, schedule=("u5", "u6"))
        replica.peek("view", "u5", 0)
        replica.peek("index", "u6", 0)
        replica.settle()
        assert replica.rows("index") == ABC
        assert replica.answer("view") is None
        assert replica.upper() == Frontier.at(0)
        assert replica.reported("u5") == [None, (1,), (1,)]
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        assert replica.rows("view") == ABC
        answer = replica.answer("view")
        assert answer is not None
        assert answer.served_by == ("interactive" if workers else "solo")
        assert replica.reported("u5") == [(1,), (1,), (1,)]
        replica.peek("key", "u5", 0, ((3,), (1,)))
        replica.peek("latest", "u5", None, limit=1)
        replica.peek("later", "u5", 1)
        replica.settle()
        assert replica.rows("key") == [ABC[0], ABC[2]]
        assert replica.rows("latest") == ABC[:1]
        assert replica.answer("later") is None
        replica.write([(1, "alpha"), (4, "delta")], 1, [-1, 1])
        replica.settle()
        assert replica.rows("later") == [*ABC[1:], (4, "delta")]
        replica.send(AllowCompaction(0, "u6", ()))
        replica.settle()
        replica.write([], 2)
        replica.settle()
        assert replica.reported("u5") == [(3,), (3,), (3,)]
        replica.peek("parked", "u5", 9)
        replica.drop("u5")
        replica.settle()
        assert replica.error("parked").code == "dropped"
        assert replica.reported("u5") == [(), (), ()]
        replica.write([], 3)
        replica.settle()
        assert replica.upper() == Frontier.at(3)
        for loop in replica.loops:
            held = loop.core.statistics()
            assert (held.collections, held.dataflows, held.shards) == (0, 0, 0)
            assert loop.dataflows.views.count == 0
        assert not replica.names()
        replica.mux.validate_state()


@MODES
def test_k10_permission_is_per_collection_and_means_nothing_to_an_index(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        other = "export kind=materialized-view sink=7 on=9 shard=n"
        replica.create(*ALL, "export index=6 on=9 key=[0]", *VIEW, other, schedule=("u5", "u6", "u7"))
        replica.send(AllowWrites(0, "u5"), AllowWrites(0, "u5"), AllowWrites(0, "u6"))
        replica.settle()
        assert [replica.upper("m"), replica.upper("n")] == [Frontier.at(1), Frontier.at(0)]
        assert replica.refusals() == []


@MODES
def test_k9_an_error_is_in_the_shard_while_it_is_in_the_collection_and_reaches_who_reads_the_shard(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write([(3, "x"), (4, "y")], 0)
        replica.create("build id=9", "  Project (#0, #2)", "    Map (1 / (#0 - 1))", "      Get u1", *VIEW)
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        reading = ["import source=2 shard=m upper=1 schema=strict", "export index=8 on=2 key=[0]"]
        text = parse_dataflow(reading)
        header, body = resolve(
            text,
            name="r",
            as_of=0,
            until=None,
            schema_of=lambda item: replica.store.shard("m").schema,
            indexes={},
        )
        replica.send(CreateDataflow(0, header, encode_body(body)), Schedule(0, "u8"))
        replica.write([(1, "z")], 1)
        replica.write([(1, "z")], 2, -1)
        for id in ("u5", "u8"):
            for time in range(3):
                replica.peek(f"{id}@{time}", id, time)
        replica.settle()
        for id in ("u5", "u8"):
            assert replica.rows(f"{id}@0") == replica.rows(f"{id}@2") == [(3, 0), (4, 0)]
            error = replica.error(f"{id}@1")
            assert (error.code, error.message) == ("eval-error", "division by zero")


@MODES
def test_null_where_the_shard_declares_none_is_an_error_until_its_row_goes(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        null = "    Map (CASE WHEN #0 = 3 THEN null::bigint ELSE #0 END)"
        sink = "export kind=materialized-view sink=5 on=9 shard=m schema=strict"
        replica.create("build id=9", "  Project (#0, #2)", null, "      Get u1", sink)
        replica.send(AllowWrites(0, "u5"))
        replica.write(ABC[2:], 1, -1)
        replica.peek("a", "u5", 0)
        replica.peek("b", "u5", 1)
        replica.settle()
        error = replica.error("a")
        assert (error.code, error.message) == ("invalid-data", "column 'half' of u5 is NULL")
        assert replica.rows("b") == [(1, 1), (2, 2)]


@MODES
def test_k11_a_peek_of_a_view_is_judged_as_any_and_below_the_shards_since_it_is_refused(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        for time in range(4):
            replica.write([(time, "x"), (time, "y")], time)
        replica.create(*ALL, *VIEW)
        replica.send(AllowWrites(0, "u5"), AllowCompaction(0, "u5", (2,)))
        replica.peek("below", "u5", 1)
        replica.peek("key", "u5", 2, ((1,),), limit=1)
        replica.settle()
        error = replica.error("below")
        assert (error.code, "read at 1" in error.message, "since is 2" in error.message) == (
            "below-since", True, True,
        )  # fmt: skip
        assert replica.rows("key") == [(1, "x")]
        assert len(replica.stored()) == 8  # the shard's history is its readers'
        replica.store.shard("m").advance_since(Frontier.at(3))
        replica.peek("gone", "u5", 2)
        replica.peek("there", "u5", 3)
        replica.settle()
        assert replica.error("gone").code == "below-since"
        assert len(replica.rows("there")) == 8


@MODES
def test_k4_k6_what_is_stored_is_not_stored_again_after_a_restart(
    views: Callable[[int], Views], workers: int
) -> None:
    plan = ("build id=9", "  Reduce group_by=[#1] aggregates=[sum(#0)]", "    Get u1")
    with views(workers) as replica:
        replica.write([(1, "a"), (2, "a"), (1, "b")], 0)
        replica.create(*plan, *VIEW)
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        replica.write([(1, "a"), (1, "b")], 1, -1)
        replica.settle()
        replica.write([(2, "a")], 2, -1)
        replica.settle()
        before = replica.stored()
        assert before == [
            (("a", 3), 0, 1), (("b", 1), 0, 1),
            (("a", 2), 1, 1), (("a", 3), 1, -1), (("b", 1), 1, -1),
            (("a", 2), 2, -1),
        ]  # fmt: skip
    with views(workers) as replica:
        replica.create(*plan, *VIEW, as_of=2)
        replica.settle()
        assert replica.reported("u5") == [(3,), (3,), (3,)]
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        assert replica.stored() == before
        replica.write([(7, "c")], 3)
        replica.settle()
        assert replica.stored() == [*before, (("c", 7), 3, 1)]
        assert replica.reported("u5") == [(4,), (4,), (4,)]


@MODES
def test_i16_a_view_that_goes_on_may_still_write_and_one_that_is_replaced_may_not(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.create(*ALL, *VIEW)
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        replica.connect(complete=False)
        replica.create(*ALL, *VIEW)
        replica.peek("again", "u5", 0)
        replica.send(InitializationComplete(0))
        replica.settle()
        assert replica.mux.statistics().reconciled == {"reused": 1}
        assert replica.rows("again") == ABC
        replica.responses.clear()
        replica.write([(5, "e")], 5)
        replica.settle()
        assert replica.upper() == Frontier.at(6)
        assert replica.reported("u5") == [(6,), (6,), (6,)]
        replica.connect(complete=False)
        replica.create("build id=9", "  Distinct project=[#0, #1]", "    Get u1", *VIEW)
        replica.send(InitializationComplete(0))
        replica.write([(6, "f")], 6)
        replica.settle()
        assert replica.upper() == Frontier.at(6)
        replica.send(AllowWrites(0, "u5"))
        replica.peek("new", "u5", 6)
        replica.settle()
        assert replica.rows("new") == [*ABC, (5, "e"), (6, "f")]


@pytest.mark.slow
@MODES
def test_two_replicas_write_one_shard_and_both_serve_it(tmp_path: Path, workers: int) -> None:
    with Views(tmp_path, workers) as one, Views(tmp_path, workers) as other:
        for replica in (one, other):
            replica.boot()
            replica.write([], 0) if replica is one else None
            replica.create(*ALL, *VIEW)
            replica.send(AllowWrites(0, "u5"))
            replica.settle()
        for time in range(1, 6):
            one.write([(time, "x"), (0, "y")], time)
            for _ in range(6):
                for replica in (one, other) if time % 2 else (other, one):
                    replica.exchange()
                    for loop in replica.loops:
                        if loop.has_work:
                            loop.turn()
            one.settle()
            other.settle()
        rows = sorted([*((time, "x") for time in range(1, 6)), *[(0, "y")] * 5])
        for replica in (one, other):
            assert replica.upper() == Frontier.at(6)
            replica.peek("all", "u5", 5)
            replica.settle()
            assert replica.rows("all") == rows
        assert len(one.stored()) == 10


@MODES
def test_a_view_that_does_not_fit_its_shard_is_refused_without_effect(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.store.create_shard("m", STRICT)
        replica.create(*ALL, *VIEW)
        replica.settle()
        assert replica.refusals() == ["schema-mismatch", "unknown-id"]
        assert not replica.store.has_shard("n")


@MODES
def test_the_end_of_a_source_ends_the_shard_of_its_view(views: Callable[[int], Views], workers: int) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.create(*ALL, *VIEW)
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        source = replica.store.shard("s")
        source.begin().commit(source.upper, Frontier.empty())
        replica.settle()
        assert replica.upper() == Frontier.empty()
        assert replica.reported("u5") == [(), (), ()]
        replica.peek("late", "u5", 1 << 40)
        replica.settle()
        assert replica.rows("late") == ABC


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_racing_replicas_that_end_at_any_moment_leave_the_view_right_at_every_time(
    tmp_path: Path, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    plan = ("build id=9", "  Distinct project=[#0, #1]", "    Get u1")
    history: list[tuple[Any, int, int]] = []
    present: list[tuple[int, str]] = []

    def change(replica: Views, time: int) -> None:
        rows, diffs = [], []
        for _ in range(rng.randint(0, 4)):
            if present and rng.random() < 0.5:
                rows.append(present.pop(rng.randrange(len(present))))
                diffs.append(-1)
            else:
                rows.append((rng.randint(0, 3), rng.choice("ab")))
                diffs.append(1)
                present.append(rows[-1])
        history.extend((row, time, diff) for row, diff in zip(rows, diffs, strict=True))
        replica.write(rows, time, diffs)

    with ExitStack() as standing:
        replicas: list[tuple[Views, ExitStack]] = []

        def start() -> tuple[Views, ExitStack]:
            own = standing.enter_context(ExitStack())
            replica = own.enter_context(Views(tmp_path, rng.randint(0, 1), chunk_s=0.0))
            replica.boot()
            if not history and not replica.store.has_shard("s"):
                replica.write([], 0)
            upper = replica.upper().time if replica.store.has_shard("m") else 0
            replica.create(*plan, *VIEW, as_of=rng.randint(0, max(upper - 1, 0)))
            if rng.random() < 0.8:
                replica.send(AllowWrites(0, "u5"))
            return replica, own

        replicas = [start(), start()]
        time = 1
        for _ in range(60):
            number = rng.randrange(len(replicas))
            replica, own = replicas[number]
            match rng.randint(0, 9):
                case 0:
                    own.close()  # between any two turns
                    replicas[number] = start()
                case 1 | 2 | 3:
                    change(replica, time)
                    time += 1
                case 4:
                    replica.settle()
                case _:
                    replica.exchange()
                    for loop in replica.loops:
                        if loop.has_work:
                            loop.turn()
        for replica, _ in replicas:
            replica.send(AllowWrites(0, "u5"))
            replica.settle()
        for replica, _ in replicas:
            replica.settle()
            assert replica.upper() == Frontier.at(time)
        stored = replicas[0][0].stored()
        assert max(Counter((row, at) for row, at, _ in stored).values(), default=1) == 1
        for at in range(time):
            counts: Counter[Any] = Counter()
            for row, when, diff in history:
                counts[row] += diff * (when <= at)
            found: Counter[Any] = Counter()
            for row, when, diff in stored:
                found[row] += diff * (when <= at)
            assert {row: n for row, n in found.items() if n} == {row: 1 for row, n in counts.items() if n}
        for replica, _ in replicas:
            assert replica.refusals() == []
            replica.peek("last", "u5", time - 1)
            replica.settle()
            assert replica.rows("last") == sorted(row for row, n in counts.items() if n)


@MODES
def test_a_view_that_is_dropped_before_initialisation_is_complete_goes_with_it(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.create(*ALL, *VIEW)
        replica.send(AllowWrites(0, "u5"))
        replica.settle()
        for lines in (ALL, ("build id=9", "  Distinct project=[#0, #1]", "    Get u1")):
            replica.connect(complete=False)
            replica.create(*lines, *VIEW)
            replica.send(AllowWrites(0, "u5"))
            replica.peek("parked", "u5", 9)
            replica.drop("u5")
            replica.peek("refused", "u5", 0)
            replica.settle()
            assert replica.error("refused").code == "dropped"
            replica.write([], replica.upper("s").time)
            replica.settle()
            assert replica.upper("m") == replica.upper("s")  # what runs goes on until then (P11)
            replica.send(InitializationComplete(0))
            replica.settle()
            assert replica.error("parked").code == "dropped"
            assert replica.reported("u5") == [(), (), ()]
            for loop in replica.loops:
                held = loop.core.statistics()
                assert (held.collections, held.dataflows, held.shards) == (0, 0, 0)
                assert loop.dataflows.views.count == 0
            replica.responses.clear()
            replica.connect(complete=True)
            replica.create(*ALL, *VIEW)
            replica.send(AllowWrites(0, "u5"))
            replica.settle()


@MODES
def test_a_view_waits_for_its_schedule_and_may_be_dropped_before_it(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.create(*ALL, *VIEW, schedule=())
        replica.send(AllowWrites(0, "u5"))
        replica.peek("parked", "u5", 0)
        replica.settle()
        assert (replica.upper(), replica.answer("parked")) == (Frontier.at(0), None)
        replica.drop("u5")
        replica.settle()
        assert replica.error("parked").code == "dropped"
        assert replica.reported("u5") == [(), (), ()]
        assert replica.upper() == Frontier.at(0)


@MODES
def test_a_view_over_an_index_with_an_until_is_refreshed_a_last_time_and_ends(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.index("u20")
        export = Export("u20", "index", "u1000", SAMPLE, (0,))
        text = parse_dataflow(
            [
                "import index=20",
                "build id=9",
                "  Filter #0 > 1",
                "    Get u20",
                "export kind=materialized-view sink=5 on=9 shard=m",
            ]
        )
        header, body = resolve(
            text, name="v", as_of=0, until=2, schema_of=lambda item: SAMPLE, indexes={"u20": export}
        )
        replica.send(CreateDataflow(0, header, encode_body(body)), Schedule(0, "u5"), AllowWrites(0, "u5"))
        replica.settle()
        assert replica.upper() == Frontier.at(1)
        for time in range(1, 4):
            replica.write([(time + 10, "x")], time)
            replica.settle()
        assert replica.upper() == Frontier.empty()
        assert replica.reported("u5") == [(), (), ()]
        replica.peek("end", "u5", None)
        replica.settle()
        assert replica.rows("end") == [*ABC[1:], (11, "x")]
        assert len(replica.stored()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_controller_that_comes_back_names_a_view_and_in_one_go_what_reads_its_shard(
    views: Callable[[int], Views], workers: int
) -> None:
    with views(workers) as replica:
        replica.write(ABC, 0)
        replica.connect(complete=False)
        replica.create(*ALL, *VIEW)
        replica.index("u7", shard="m")
        replica.index("u8", shard="n")  # which nobody makes
        query = Export("t1", "index", "u1000", SAMPLE, (0,))
        header = DataflowHeader("q", 0, 1, (SourceImport("u1000", "m", SAMPLE),), (), (query,))
        replica.send(
            CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, "t1"), AllowWrites(0, "u5")
        )
        replica.settle()
        assert replica.refusals() == ["unknown-shard", "unknown-id"]
        replica.send(InitializationComplete(0))
        replica.peek("index", "u7", 0)
        replica.peek("query", "t1", 0)
        replica.settle()
        for loop in replica.loops:
            loop.dataflows._retries._waits = dict.fromkeys(loop.dataflows._retries._waits, (0.0, 0.1))
        replica.settle()
        assert replica.rows("index") == ABC
        assert replica.rows("query") == ABC
