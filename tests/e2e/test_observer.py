"""The introspection relations of a real replica: who answers, when, how fresh, and for how long (L26)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bench.heavy import append_pairs, self_join
from clusterd.client import Client, PeekFailed
from clusterd.introspection.observer import HISTORY_MS
from clusterd.introspection.relations import RELATIONS
from controller_proto.errors import Refusal
from controller_proto.expr import ColumnRef
from controller_proto.plan import Join
from tests.e2e.support import MODES, client_in, replica_in, segments, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEADLINE_S = 60.0


def _rows(client: Client, name: str) -> list[dict[str, object]]:
    answer = client.relation(name).peek(at="latest")
    assert answer.served_by == "introspection"
    return answer.dicts()


@pytest.mark.parametrize("mode", MODES)
def test_l26_a_hydration_is_seen_while_it_goes_on(mode: str, tmp_path: Path) -> None:
    worker = "maintenance/0" if mode == "two-runtime" else "solo/0"
    with client_in(mode, tmp_path, introspection=True) as (replica, client):
        rows = 100_000
        append_pairs(client, "s", np.arange(rows) % (rows // 400), np.arange(rows))
        plan = self_join(client, "s")  # 40 million pairs
        with Client.connect(replica, reader=True) as reader:
            index = client.create_index(plan, key=[0], as_of=0)
            put_out: set[object] = set()
            sampled: list[int] = []

            def looked() -> bool:
                for row in _rows(reader, "hydration"):
                    assert (row["worker"], row["id"]) == (worker, index.id)
                    if row["status"] == "hydrating":
                        assert row["progress"] is None or row["progress"] < 1  # type: ignore[operator]
                put_out.add(sum(int(row["rows_out"]) for row in _rows(reader, "operator_elapsed")))  # type: ignore[call-overload]
                told = {row["process"]: row["sampled_at_ms"] for row in _rows(reader, "processes")}
                sampled.append(int(told[worker]))  # type: ignore[call-overload]
                return any(row["status"] == "hydrated" for row in _rows(reader, "hydration"))

            wait_until(looked, DEADLINE_S, "the hydration ended")
            assert len(put_out) > 3, "its operators were not seen to move"
            assert len(set(sampled)) > 3, "its figures did not move while it worked"
            joined = reader.sql(
                "SELECT d.name, h.status FROM hydration h"
                " JOIN exports e ON e.worker = h.worker AND e.id = h.id"
                " JOIN dataflows d ON d.worker = e.worker AND d.dataflow = e.dataflow"
            )
            assert joined.rows() == [(index.id, "hydrated")]


@pytest.mark.parametrize("mode", MODES)
def test_relations_are_there_for_everybody_and_as_long_as_the_replica(mode: str, tmp_path: Path) -> None:
    with (
        replica_in(mode, tmp_path, introspection=True) as replica,
        Client.connect(replica, reader=True) as reader,  # before any controller
    ):
        assert {row["process"] for row in _rows(reader, "processes")} == set(replica.pids)
        for relation in RELATIONS:
            reader.relation(relation.name).peek(at="latest")
        with pytest.raises(ValueError, match="did you mean hydration"):
            reader.relation("hydraton")
        with Client.connect(replica) as client, reader.subscribe(reader.relation("dataflows")) as told:
            append_pairs(client, "s", np.arange(10), np.arange(10))
            index = client.create_index("s", key=["a"])
            index.wait(0)
            heard: set[object] = set()  # names of dataflows, those that read introspection too
            while index.id not in heard:
                batch = told.next(DEADLINE_S)
                assert batch is not None
                heard |= {row[2] for row, _, _ in batch.changes.rows()}
            # Relations join among themselves, in a dataflow of their own, and with nothing else.
            dataflows, exports = client.relation("dataflows"), client.relation("exports")
            second = len(dataflows.schema.columns)
            same = tuple((ColumnRef(at), ColumnRef(second + at)) for at in (0, 1))
            joined = client.query(Join((dataflows.get, exports.get), same), at=exports.since)
            assert joined.served_by == "introspection"
            assert index.id in {row[2] for row in joined.rows()}
            with pytest.raises(Refusal, match="no maintained dataflow"):
                client.create_index(exports.get, key=[0])
            with pytest.raises(Refusal, match="beside introspection relations"):
                client.query(Join((index.get, exports.get), ()), at=exports.since)
        with Client.connect(replica) as client:  # another controller: they stand

            def has_gone() -> bool:
                return index.id not in {row["name"] for row in _rows(client, "dataflows")}

            wait_until(has_gone, DEADLINE_S, "what the controller before had was seen to end")
            # I18: times that are let go are empty, and no error; the present is there.
            exports = client.relation("exports")
            for at in (0, int(time.time() * 1000) - 10 * HISTORY_MS):
                answer = exports.peek(at=at)
                assert (answer.rows(), answer.time) == ([], at)
            assert _rows(client, "processes")
        token = replica.instance
        assert segments(token)
    assert not segments(token)


def test_without_introspection_there_is_none(tmp_path: Path) -> None:
    with client_in("solo", tmp_path) as (replica, client):
        assert not any("introspection" in name for name in replica.pids)
        with pytest.raises(PeekFailed, match="unknown-id"):
            client.relation("dataflows")


def test_a_storm_of_looks_leaves_the_replica_answering(tmp_path: Path) -> None:
    with replica_in("two-runtime", tmp_path, introspection=True) as replica:
        failed: list[BaseException] = []

        def look() -> None:
            try:
                with Client.connect(replica, reader=True) as reader:
                    for relation in RELATIONS * 2:
                        reader.relation(relation.name).peek(at="latest")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert not failed
