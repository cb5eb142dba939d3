"""The introspection relations against what is known otherwise: of real workers, turned by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterd.convert import updates_from_rows
from clusterd.introspection import collect_worker
from clusterd.introspection.relations import IDS, RELATIONS
from clusterd.introspection.rows_metrics import METRICS
from clusterd.introspection.samples import Samples
from controller_proto.codec import encode_body
from controller_proto.command import AllowCompaction, CancelPeek, CreateDataflow, Schedule
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import Aggregate, Get, Join, LetRec, Mfp, OrderBy, Plan, Reduce, TopK, Union
from controller_proto.response import Frontiers
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Schema
from shm_arrangements.discover import list_publications
from tests.clusterd.introspection.looking import Looking, one, only
from tests.clusterd.runtime.shell import Shell

MODES = pytest.mark.parametrize("workers", [0, 2])
ABC = [(1, "alpha"), (2, "beta"), (3, "gamma")]
JOINED = Schema(SAMPLE_SCHEMA.columns * 2)
INTEGERS = Schema((Column("n", ColumnType.INT64),))


def over(replica: Shell, id: str, imports: tuple[str, ...], plan: Plan, schema: Schema) -> None:
    """A maintained index over indexes."""
    made = f"{id}000"
    header = DataflowHeader(
        id, 0, None, (), tuple(map(IndexImport, imports)), (Export(id, "index", made, schema, ()),)
    )
    replica.send(CreateDataflow(0, header, encode_body(DataflowBody((Build(made, plan),)))))
    replica.send(Schedule(0, id))


def index(replica: Shell, id: str, shard: str) -> None:
    """An index of a shard, of a collection of its own."""
    source = SourceImport(f"{id}000", shard, SAMPLE_SCHEMA)
    export = Export(id, "index", source.id, SAMPLE_SCHEMA, (0,))
    header = DataflowHeader(id, 0, None, (source,), (), (export,))
    replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, id))


@pytest.mark.slow
@MODES
def test_sizes_frontiers_and_rows_are_those_of_pages_reports_and_inputs(tmp_path: Path, workers: int) -> None:
    with Shell(tmp_path, workers) as replica:
        replica.boot()
        replica.write(ABC, 0)
        replica.index("u1")
        over(replica, "u2", ("u1",), Join((Get("u1"), Get("u1")), ((ColumnRef(0), ColumnRef(2)),)), JOINED)
        over(replica, "u3", ("u1",), Get("u1"), SAMPLE_SCHEMA)
        replica.settle()
        replica.write([(4, "delta"), (1, "alpha")], 1, [1, -1])
        replica.settle()
        said = Looking(replica).look()

        published = {info.id: info for info in list_publications(replica.instance.token)}
        assert set(published) == {"u1", "u2", "u3"}
        for id, info in published.items():
            halves = only(said["arrangement_sizes"], id=id)
            assert sum(half["records"] for half in halves) == info.updates
            assert sum(half["bytes"] for half in halves) == info.nbytes
            page = one(said["publications"], id=id)
            assert (page["state"], page["incarnation"]) == (info.status.name.lower(), info.incarnation)
            assert (page["since"],) == info.since.to_wire()
            assert (page["upper"],) == info.upper.to_wire()
            assert page["held_by"] is None
            told = [r.write for r in replica.responses if isinstance(r, Frontiers) and r.id == id and r.write]
            assert (one(said["frontiers"], id=id)["upper"],) == told[-1]
            assert one(said["hydration"], id=id)["status"] == "hydrated"
            assert one(said["staleness"], id=id)["behind_ms"] == 0

        dataflow = one(said["exports"], id="u1")["dataflow"]
        source = one(said["operator_elapsed"], dataflow=dataflow, operator="0")
        assert (source["name"], source["rows_out"]) == ("source u1000", 5)
        assert one(said["operator_elapsed"], dataflow=dataflow, name="export u1")["rows_in"] == 5
        assert one(said["dataflow_channels"], dataflow=dataflow)["target"] == "1"

        addresses = {(row["worker"], row["address"]) for row in said["dataflow_operators"]}
        assert len(addresses) == len(said["dataflow_operators"])
        for line in said["plan_mapping"]:
            if line["operator"] is not None:
                assert (line["worker"], f"{line['dataflow']}/{line['operator']}") in addresses
        of_join = one(said["exports"], id="u2")["dataflow"]
        mapped = {
            row["text"].split()[0]: row["operator"] for row in only(said["plan_mapping"], dataflow=of_join)
        }
        names = {row["operator"]: row["name"] for row in only(said["dataflow_operators"], dataflow=of_join)}
        assert (names[mapped["Join"]], names[mapped["Export"]]) == ("join", "export u2")
        # The index is read in place; it stands for itself in the graph all the same.
        edges = only(said["dataflow_channels"], dataflow=of_join)
        assert {(names[e["source"]], names[e["target"]], e["port"]) for e in edges} == {
            ("index u1", "join", None),
            ("join", "export u2", 0),
        }


@pytest.mark.slow
@MODES
def test_an_alias_shows_memory_that_is_counted_once(tmp_path: Path, workers: int) -> None:
    with Shell(tmp_path, workers) as replica:
        replica.boot()
        replica.write(ABC, 0)
        replica.index("u1")
        export = Export("u2", "index", "u1000", SAMPLE_SCHEMA, (0,))
        header = DataflowHeader("alias", 0, None, (), (IndexImport("u1"),), (export,))
        replica.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, "u2"))
        replica.settle()
        said = Looking(replica).look()
        assert one(said["publications"], id="u2")["alias_of"] == "u1"
        assert one(said["publications"], id="u1")["alias_of"] is None
        counted = [row for row in said["arrangement_sizes"] if row["part"] == "oks"]
        assert [(row["id"], row["records"]) for row in counted] == [("u1", 3)]
        (memory,) = only(said["metrics"], name="clusterd_arrangement_records", labels="")
        assert memory["value"] == 3


@pytest.mark.slow
@MODES
def test_which_input_holds_a_stuck_frontier_back_is_found_step_by_step(tmp_path: Path, workers: int) -> None:
    with Shell(tmp_path, workers) as replica:
        replica.boot()
        for shard in ("fast", "slow"):
            replica.write(ABC, 0, shard=shard)
        index(replica, "u1", "fast")
        index(replica, "u2", "slow")
        over(replica, "u3", ("u1", "u2"), Union((Get("u1"), Get("u2"))), SAMPLE_SCHEMA)
        over(replica, "u4", ("u3", "u1"), Union((Get("u3"), Get("u1"))), SAMPLE_SCHEMA)
        replica.settle()
        for time in range(1, 5):
            replica.write([], time, shard="fast")
        replica.settle()
        looking = Looking(replica)
        said = looking.look()
        at, path = "u4", []
        while True:
            made = only(said["exports"], id=at)
            if not made:
                break
            inputs = only(said["import_frontiers"], dataflow=made[0]["dataflow"], worker=made[0]["worker"])
            (held,) = [each for each in inputs if each["holds_back"]]
            at = held["id"]
            path.append(at)
        assert path == ["u3", "u2", "slow"]
        assert one(said["frontiers"], id="u4")["upper"] == 1
        # The inputs of u4 are the more in arrears; u1 goes on.
        assert (one(said["staleness"], id="u1")["upper"], one(said["staleness"], id="u4")["lag"]) == (5, 0)
        replica.write([], 1, shard="slow")
        replica.settle()
        assert one(looking.look()["frontiers"], id="u4")["upper"] == 2


@pytest.mark.slow
@MODES
def test_a_parked_peek_says_what_it_waits_for_and_holds_and_is_counted(tmp_path: Path, workers: int) -> None:
    with Shell(tmp_path, workers) as replica:
        replica.boot()
        replica.write(ABC, 0)
        replica.index("u1")
        replica.settle()
        looking = Looking(replica)
        for time in range(1, 4):
            replica.write([], time)
        replica.settle()
        replica.peek("parked", "u1", 7)
        replica.peek("also", "u1", 9, ((1,),))
        replica.peek("done", "u1", 2, ((1,),))
        replica.peek("refused", "u9", 2)
        replica.send(AllowCompaction(0, "u1", (8,)))
        replica.settle()
        said = looking.look()
        parked = one(said["peeks_active"], uuid="parked")
        assert parked["worker"].startswith("interactive/" if workers else "solo/0")
        assert (parked["state"], parked["lane"], parked["time"], parked["upper"]) == ("parked", "heavy", 7, 4)
        assert parked["waits_for"] == "u1 sealed beyond 7"
        assert one(said["peeks_active"], uuid="also")["path"] == "key"
        page = one(said["publications"], id="u1")
        assert (page["waiting_reads"], page["since"], page["allowed"]) == (2, 7, 8)
        holder = parked["worker"] if workers else "a peek"
        assert page["held_by"] == holder
        role = ',role="interactive"' if workers else ""
        (answered,) = only(
            said["metrics"], name="clusterd_peeks_total", labels=f'result="rows",path="key"{role}'
        )
        assert answered["value"] == 1
        (active,) = only(said["metrics"], name="clusterd_peeks_active", labels=role[1:])
        assert active["value"] == 2
        for phase in ("running", "sending", "total"):
            assert (
                sum(row["count"] for row in only(said["peek_durations_histogram"], id="u1", phase=phase)) == 1
            )

        replica.send(CancelPeek(0, "parked"))
        replica.write([], 4)
        for time in range(5, 10):
            replica.write([], time)
        replica.settle()
        replica.drop("u1")
        replica.settle()
        said = looking.look()
        assert not said["peeks_active"]
        # What was counted of a collection that is gone stays counted, under no name.
        assert not only(said["peek_durations_histogram"], id="u1")
        assert sum(row["count"] for row in only(said["peek_durations_histogram"], id="", phase="total")) == 2
        (canceled,) = only(
            said["metrics"], name="clusterd_peeks_total", labels=f'result="canceled",path="none"{role}'
        )
        assert canceled["value"] == 1
        assert not said["dataflows"]
        assert not said["publications"]


@pytest.mark.slow
@MODES
def test_errors_in_data_are_counted_where_they_lie_and_go_when_their_rows_do(
    tmp_path: Path, workers: int
) -> None:
    inverse = Mfp(Get("u1"), (Call("div", (Literal(ColumnType.INT64, 6), ColumnRef(0))),), (), (2,))
    with Shell(tmp_path, workers) as replica:
        replica.boot()
        replica.write([(0, "none"), (2, "two"), (0, "nil")], 0)
        replica.index("u1")
        over(replica, "u2", ("u1",), inverse, INTEGERS)
        replica.settle()
        looking = Looking(replica)
        found = one(looking.look()["errors"], id="u2")
        assert (found["count"], found["first"]) == (2, 0)
        assert found["sample"].startswith("eval-error: division by zero")
        replica.write([(0, "none")], 1, -1)
        replica.settle()
        found = one(looking.look()["errors"], id="u2")
        assert (found["count"], found["last"]) == (1, 1)
        replica.write([(0, "nil")], 2, -1)
        replica.settle()
        assert not looking.look()["errors"]


@pytest.mark.slow
def test_a_hydration_says_how_far_it_is_and_what_it_works_at(tmp_path: Path) -> None:
    with Shell(tmp_path, 0, chunk_s=1e-6) as replica:
        replica.boot()
        rows = [(n, "x") for n in range(200_000)]
        replica.write(rows, 0)
        replica.index("u1", schedule=False)
        replica.settle()
        looking = Looking(replica)
        before = one(looking.look()["hydration"], id="u1")
        assert (before["status"], before["progress"], before["began_ms"]) == ("created", None, None)
        replica.send(Schedule(0, "u1"))
        seen = []

        def half() -> bool:
            said = looking.look()
            seen.append(one(said["hydration"], id="u1"))
            return 0 < seen[-1]["rows_done"] < len(rows)

        replica.settle(until=half)
        said = looking.look()
        now = one(said["hydration"], id="u1")
        assert (now["status"], now["rows_expected"], now["hydrated_ms"]) == ("hydrating", len(rows), None)
        assert 0 < now["progress"] < 1
        flow = one(said["dataflows"])
        assert flow["is_running"]
        assert flow["working"] in {row["operator"] for row in said["dataflow_operators"]}
        states = {row["status"] for row in said["hydration_operators"]}
        assert "hydrating" in states
        assert one(said["staleness"], id="u1")["lag"] == 1
        replica.settle()
        said = looking.look()
        after = one(said["hydration"], id="u1")
        assert (after["status"], after["progress"]) == ("hydrated", 1.0)
        assert after["created_ms"] <= after["began_ms"] <= after["hydrated_ms"]
        assert {row["status"] for row in said["hydration_operators"]} == {"hydrated"}


@pytest.mark.slow
def test_a_recursion_has_its_operators_with_what_each_did_and_keeps(tmp_path: Path) -> None:
    reach = Reduce(Union((Get("u1"), Get("l0"))), (ColumnRef(0), ColumnRef(1)), ())
    with Shell(tmp_path, 0) as replica:
        replica.boot()
        replica.write(ABC, 0)
        replica.index("u1")
        over(replica, "u2", ("u1",), LetRec((("l0", SAMPLE_SCHEMA, reach),), Get("l0")), SAMPLE_SCHEMA)
        replica.settle()
        said = Looking(replica).look()
        (scope,) = only(said["dataflow_operators"], name="recursion")
        inside = only(said["dataflow_operators"], parent=scope["operator"], dataflow=scope["dataflow"])
        assert {"distinct", "union", "binding l0", "feedback", "enter"} <= {row["name"] for row in inside}
        distinct = one(inside, name="distinct")["operator"]
        # Three rows enter, and come back once.
        did = one(said["operator_elapsed"], dataflow=scope["dataflow"], operator=distinct)
        assert (did["rows_in"], did["rows_out"]) == (6, 3)
        kept = one(said["arrangement_sizes"], dataflow=scope["dataflow"], operator=distinct)
        assert kept["records"] == 3
        mapped = only(said["plan_mapping"], dataflow=scope["dataflow"], operator=distinct)
        assert [row["text"] for row in mapped] == ["Distinct"]
        # What enters comes from the recursion itself, what comes back from the binding.
        operators = only(said["dataflow_operators"], dataflow=scope["dataflow"])
        names = {row["operator"]: row["name"] for row in operators}
        edges = only(said["dataflow_channels"], dataflow=scope["dataflow"])
        assert {e["target"] for e in edges} >= {row["operator"] for row in inside}
        within = {(names[e["source"]], names[e["target"]]) for e in edges}
        assert {("recursion", "enter"), ("binding l0", "feedback"), ("union", "distinct")} <= within


@pytest.mark.slow
def test_a_group_much_larger_than_the_others_is_told_with_what_to_do(tmp_path: Path) -> None:
    top = TopK(Get("u1"), (1,), (OrderBy(0),), Literal(ColumnType.INT64, 1))
    least = Reduce(Get("u1"), (ColumnRef(1),), (Aggregate("min", ColumnRef(0)),))
    smallest = Schema((SAMPLE_SCHEMA.columns[1], Column("min", ColumnType.INT64)))
    with Shell(tmp_path, 0) as replica:
        replica.boot()
        replica.write([(n, "large") for n in range(3_000)] + [(n, f"small {n}") for n in range(100)], 0)
        replica.index("u1")
        over(replica, "u2", ("u1",), top, SAMPLE_SCHEMA)
        over(replica, "u3", ("u1",), least, smallest)
        replica.settle()
        looking = Looking(replica)
        said = looking.look()
        for name in ("top-k", "reduce"):
            told = one(said["group_size_advice"], name=name)
            assert (told["groups"], told["largest"]) == (101, 3_000)
            assert told["skew"] > 10
            assert "group key" in told["advice"]
        replica.write([(n, "large") for n in range(2_999)], 1, -1)
        replica.settle()
        told = one(looking.look()["group_size_advice"], name="top-k")
        assert (told["groups"], told["largest"], told["advice"]) == (101, 1, None)


@pytest.mark.slow
def test_what_does_not_move_is_the_same_object_in_the_next_samples(tmp_path: Path) -> None:
    with Shell(tmp_path, 0) as replica:
        replica.boot()
        replica.write(ABC, 0)
        replica.write(ABC, 0, shard="other")
        replica.index("u1")
        replica.index("u2", shard="other")
        replica.settle()
        looking = Looking(replica)
        looking.look()
        before = dict(looking.samples.figures("solo/0"))
        replica.write([], 1, shard="other")
        replica.settle()
        looking.look()
        after = looking.samples.figures("solo/0")
        assert after[1] is before[1]
        assert after[2].upper == 2


@pytest.mark.slow
def test_a_sample_takes_a_moment_however_much_moved_and_the_next_ones_tell_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect_worker, "_MOMENT_S", 0.0)
    with Shell(tmp_path, 0) as replica:
        replica.boot()
        replica.write(ABC, 0)
        for number in range(1, 6):
            index(replica, f"u{number}", "s")
        replica.settle()
        (loop,) = replica.loops
        samples = Samples()
        samples.take(loop.sample())
        assert not samples.figures("solo/0")
        assert loop._collector.has_more
        monkeypatch.setattr(collect_worker, "_MOMENT_S", 1e9)
        samples.take(loop.sample())
        assert not loop._collector.has_more
        assert sorted(samples.figures("solo/0")) == [1, 2, 3, 4, 5]
        replica.write([], 1)
        replica.settle()
        monkeypatch.setattr(collect_worker, "_MOMENT_S", 0.0)
        samples.take(loop.sample())
        assert {now.upper for now in samples.figures("solo/0").values()} == {1}
        assert loop._collector.has_more
        monkeypatch.setattr(collect_worker, "_MOMENT_S", 1e9)
        samples.take(loop.sample())
        assert {now.upper for now in samples.figures("solo/0").values()} == {2}


@pytest.mark.slow
@MODES
def test_every_row_has_the_types_of_its_columns_and_no_metric_is_told_twice(
    tmp_path: Path, workers: int
) -> None:
    with Shell(tmp_path, workers) as replica:
        replica.boot()
        replica.write(ABC, 0)
        replica.index("u1")
        replica.over("t1", "u1")
        replica.peek("a", "u1", 0)
        replica.peek("b", "t1", 0)
        replica.peek("c", "u1", None)
        replica.peek("parked", "u1", 5)
        replica.settle()
        said = Looking(replica).look()
        for relation in RELATIONS:
            rows = [tuple(row.values()) for row in said[relation.name]]
            assert len(set(rows)) == len(rows), relation.name
            if rows:
                updates_from_rows(relation.columns, rows, 0)
        series = [(row["name"], row["labels"]) for row in said["metrics"]]
        assert len(set(series)) == len(series)
        assert {row["family"] for row in said["metrics"]} <= set(METRICS)
        assert all(row["kind"] == METRICS[row["family"]].kind for row in said["metrics"])


def test_relations_keep_their_ids() -> None:
    assert list(IDS.values()) == [f"s{number}" for number in range(1, len(RELATIONS) + 1)]
    assert [relation.name for relation in RELATIONS][:4] == [
        "dataflows", "dataflow_operators", "dataflow_channels", "exports",
    ]  # fmt: skip
