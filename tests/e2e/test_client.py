"""The user's client against a real replica, in both modes, through the launcher."""

from __future__ import annotations

import datetime
import decimal
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterd import exit_codes
from clusterd.client import Client, PeekCanceled, PeekFailed, SubscriptionEnded
from clusterd.launcher import LaunchError, Replica, launch
from clusterd.storage.store import Store
from controller_proto.errors import Disconnected, Refusal
from controller_proto.expr import Call, ColumnRef, Literal
from controller_proto.plan import Mfp
from controller_proto.schema import ColumnType
from shm_arrangements.attach import attach
from shm_arrangements.instance import Instance

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FRUIT = {"name": "text", "kilos": "bigint?"}


@pytest.fixture(params=["solo", "two-runtime"])
def replica(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replica]:
    config = {"enable_two_runtime_compute": request.param == "two-runtime"}
    with launch(config, tmp_path / "data") as running:
        assert running.mode == request.param
        yield running


@pytest.fixture
def client(replica: Replica) -> Iterator[Client]:
    with Client.connect(replica) as connected:
        yield connected


def test_a_first_session(replica: Replica, client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"])
    t = client.write("fruit", [("apple", 3), ("pear", 5), {"name": "pear", "kilos": None}])
    answer = fruit.peek(keys=["pear"], at=t)
    assert answer.dicts() == [{"name": "pear", "kilos": 5}, {"name": "pear", "kilos": None}]
    assert answer.served_by == ("interactive" if replica.mode == "two-runtime" else "solo")
    assert answer.time == t
    assert fruit.count() == 3
    with fruit.attach() as attached:
        assert attached.lookup("apple", at=t)["kilos"].tolist() == [3]
        assert attached.scan(at=t).total == 3
    again = client.write("fruit", [("apple", 3)], diff=-1)
    assert [row["name"] for row in fruit.peek(at=again, select=["name"]).dicts()] == ["pear", "pear"]
    assert fruit.peek(at=again, where=["#1 > 4"], order_by=["name"], limit=1).rows() == [("pear", 5)]
    assert fruit.count(at=t) == 3


def test_views_from_text_and_a_query_over_them(replica: Replica, client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    for day in range(3):
        client.write("fruit", [("apple", day), ("pear", 10 * day), ("fig", None)])
    totals = client.create_index(
        "Reduce group_by=[#0] aggregates=[count(*), sum(#1)]\n  Get fruit",
        key=["name"], names=["name", "times", "kilos"], as_of=0,
    )  # fmt: skip
    assert totals.peek(at=0).rows() == [("apple", 1, 0), ("fig", 1, None), ("pear", 1, 0)]
    assert totals.peek(at=2).rows() == [("apple", 3, 3), ("fig", 3, None), ("pear", 3, 30)]
    totals.wait(2)
    heavy = Mfp(totals.get, predicates=(Call(">", (ColumnRef(2), Literal(ColumnType.NUMERIC, "5"))),))
    answer = client.query(heavy, at=2)
    assert [row[0] for row in answer.rows()] == ["pear"]
    assert answer.served_by == ("interactive" if replica.mode == "two-runtime" else "solo")


def test_a_plan_reads_a_shard_and_an_index_on_it(client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"])
    t = client.write("fruit", [("apple", 3)])
    both = client.create_index(f"Union\n  Get fruit\n  Get {fruit.id}", as_of=t)
    assert both.peek(at=t).rows() == [("apple", 3), ("apple", 3)]


def test_refusals_come_as_they_are_and_harm_nothing(client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    client.write("fruit", [("apple", 3)])
    with pytest.raises(Refusal, match="unknown-shard"):
        client.create_index("bread")
    with pytest.raises(Refusal, match="invalid-plan"):
        client.create_index("fruit", key=[7])
    fruit = client.create_index("fruit", key=["name"], id="u500")
    with pytest.raises(Refusal, match="duplicate-id"):
        client.create_index("fruit", key=["name"], id="u500")
    assert fruit.count(at=0) == 1
    client.write("fruit", [("pear", 1)], at=9)
    fruit.wait(9)
    fruit.allow_compaction(5)
    with pytest.raises(PeekFailed, match="below-since"):
        fruit.peek(at=3)
    assert fruit.count(at=5) == 1
    with pytest.raises(TimeoutError, match=rf"{fruit.id} at 1000: that time is not sealed yet \(frontier"):
        fruit.peek(at=1000, timeout_s=0.2)
    fruit.drop()
    with pytest.raises(PeekFailed, match="dropped"):
        fruit.peek(at=5)


def test_a_reader_beside_the_controller_and_a_later_controller(replica: Replica, client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"])
    client.write("fruit", [("apple", 3)])
    # The instance is found by who listens, though another one lives.
    with Instance.create(), Client.connect(replica.address, reader=True) as reader:
        assert (
            repr(reader) == f"Client(reader at {replica.address}, instance={replica.instance}, data_dir=None)"
        )
        assert reader.index(fruit.id).peek(keys=["apple"], at=0).rows() == [("apple", 3)]
        with Client.connect(replica) as later:
            later.create_index("fruit", key=["kilos"])
            with pytest.raises(Disconnected, match=r"fenced.*reader=True"):
                client.wait_frontier(fruit.id, 100, timeout_s=10)


def test_a_client_that_lost_its_connection_comes_back_to_what_stands(
    replica: Replica, client: Client
) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"], as_of=0)
    t = client.write("fruit", [("apple", 3), ("pear", 5)])
    heavy = client.create_index(client.plan(f"Filter #1 > 3\n  Get {fruit.id}"), key=["name"])
    assert heavy.peek(at=t).rows() == [("pear", 5)]
    parked = client.start_peek(heavy, at=t + 1)
    canceled = client.start_peek(fruit, at=t + 1)
    client.cancel_peek(canceled)
    assert replica.instance is not None
    pages = {name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{replica.instance}.p.")}
    with socket.socket(fileno=os.dup(client.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)
    with pytest.raises(Disconnected):
        fruit.peek()
    client.reconnect()
    assert fruit.peek(at=t).rows() == [("apple", 3), ("pear", 5)]
    later = client.write("fruit", [("fig", 9)])
    assert client.await_peek(parked).rows() == [("fig", 9), ("pear", 5)]
    with pytest.raises(PeekCanceled):
        client.await_peek(canceled)
    fruit.wait(later)
    left = {name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{replica.instance}.p.")}
    assert left == pages, "nothing was built anew"
    with Client.connect(replica):
        with pytest.raises(Disconnected, match="fenced"):
            client.peek(fruit, at=t)
        with pytest.raises(Refusal, match="epoch"):
            client.reconnect()


def test_changes_are_told_as_they_come(replica: Replica, client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"], as_of=0)
    t = client.write("fruit", [("apple", 3), ("pear", None)])
    totals = client.subscribe(
        f"Reduce group_by=[#0] aggregates=[sum(#1)]\n  Get {fruit.id}", names=["name", "kilos"], as_of=t
    )
    whole = client.subscribe(fruit, as_of=t, up_to=t + 2)
    after = client.subscribe("fruit", as_of=t, snapshot=False)
    first = totals.next()
    assert first is not None
    assert (first.lower, first.upper, first.error) == (0, t + 1, "")
    assert sorted(first.changes.rows(), key=str) == [(("apple", 3), t, 1), (("pear", None), t, 1)]
    again = client.write("fruit", [("apple", 4)])
    second = totals.next()
    assert second is not None
    assert sorted(second.changes.rows(), key=str) == [(("apple", 3), again, -1), (("apple", 7), again, 1)]
    client.advance("fruit", again + 1)
    told = list(whole)
    assert [batch.lower for batch in told] == [0, *[batch.upper for batch in told[:-1]]]
    assert sum(batch.changes.diffs.sum() for batch in told) == 3
    batches = [after.next(), after.next()]
    assert [len(batch.changes) for batch in batches if batch is not None] == [0, 1]
    with totals, pytest.raises(TimeoutError, match="nothing was told"):
        totals.next(timeout_s=0.05)
    fruit.drop()
    after.close()
    with client.subscribe("fruit", as_of=again) as shard:
        assert shard.next() is not None


def test_readers_subscribe_beside_the_controller_and_across_controllers(
    replica: Replica, client: Client
) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"], as_of=0)
    t = client.write("fruit", [("apple", 3)])
    fruit.wait(t)
    with Client.connect(replica, reader=True) as reader, Client.connect(replica, reader=True) as other:
        streams = [each.subscribe(each.index(fruit.id)) for each in (reader, other)]
        for stream in streams:
            first = stream.next()
            assert first is not None
            assert first.changes.rows() == [(("apple", 3), t, 1)]
        with pytest.raises(Refusal, match="unauthorized"):
            reader.create_index("fruit", key=["name"])
        other.close()
        client.reconnect()
        again = client.write("fruit", [("pear", None)])
        second = streams[0].next()
        assert second is not None
        assert second.changes.rows() == [(("pear", None), again, 1)]
        fruit.drop()
        with pytest.raises(SubscriptionEnded, match="dropped"):
            streams[0].next()


def test_a_subscription_over_what_is_dropped_says_so_once_all_was_told(client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"], as_of=0)
    t = client.write("fruit", [("apple", 3)])
    told = client.subscribe(fruit, as_of=t)
    fruit.wait(t)
    first = told.next()
    assert first is not None
    assert len(first.changes) == 1
    fruit.drop()
    with pytest.raises(SubscriptionEnded, match="dropped") as ended:
        told.next()
    assert ended.value.upper == t + 1
    told.close()


def test_what_the_command_line_loads_is_followed(replica: Replica, client: Client, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"t": [0, 1], "n": [5, 6]}), tmp_path / "a.parquet")
    command = [sys.executable, "-m", "clusterd", "load", str(tmp_path / "a.parquet"), "--shard", "a"]
    command += ["--time-column", "t", "--data-dir", str(replica.data_dir)]
    subprocess.run(command, check=True, timeout=60)
    index = client.create_index("a", key=["t"], as_of=0)
    assert index.peek(at=1).rows() == [(0, 5), (1, 6)]
    pq.write_table(pa.table({"t": [2], "n": [7]}), tmp_path / "a.parquet")
    subprocess.run(command, check=True, timeout=60)
    assert index.peek(at=2, keys=[2]).rows() == [(2, 7)]


def test_a_replica_stops_in_order_and_is_told_apart_from_one_that_died(tmp_path: Path) -> None:
    replica = launch(None, tmp_path / "data")
    assert replica.mode == "solo"
    assert replica.stop() == exit_codes.STOPPED
    with launch(None, tmp_path / "data") as killed:
        killed.kill("solo/0" if "solo/0" in killed.pids else "maintenance/0")
        assert killed.wait(10) == exit_codes.PROCESS_DIED
        assert "ProcessDied" in killed.stderr()
        with pytest.raises(KeyError, match="there are supervisor"):
            killed.kill("nobody")


def test_a_replica_that_cannot_start_says_why(tmp_path: Path) -> None:
    Store.open(tmp_path / "data").close()
    (tmp_path / "data" / "VERSION").write_text("clusterd-data 99\n")
    with pytest.raises(LaunchError, match="format-mismatch") as failed:
        launch(None, tmp_path / "data")
    assert failed.value.exit_code == exit_codes.DATA_FORMAT
    address = f"unix:{tmp_path / 'socket'}"
    with launch(None, tmp_path / "other", listen=address), pytest.raises(LaunchError) as failed:
        launch(None, tmp_path / "third", listen=address)
    assert failed.value.exit_code == exit_codes.SOCKET_IN_USE
    with pytest.raises(Refusal, match="unknown-setting"):
        launch({"no_such_setting": 1})


EVERY_TYPE: dict[str, tuple[str, Any]] = {
    "flag": ("boolean", True),
    "i2": ("smallint", -(2**15)),
    "i4": ("integer", 7),
    "i8": ("bigint", 2**63 - 1),
    "u2": ("uint2", 2**16 - 1),
    "u4": ("uint4", 2**32 - 1),
    "u8": ("uint8", 2**64 - 1),
    "f4": ("real", 0.25),
    "f8": ("double precision", 0.1),
    "n0": ("numeric", 10**38 - 1),
    "n2": ("numeric(38,2)", decimal.Decimal("-12.30")),
    "t": ("text", "snow\N{SNOWMAN}"),
    "b": ("bytea", b"\x00\xff"),
    "d": ("date", datetime.date(2020, 1, 2)),
    "tm": ("time", datetime.time(3, 4, 5, 6)),
    "ts": ("timestamp", datetime.datetime(2020, 1, 2, 3)),
    "tz": ("timestamptz", datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC)),
    "iv": ("interval", (1, -2, 3)),
    "u": ("uuid", uuid.UUID(int=7 << 64)),
    "j": ("jsonb", '{"a":[1.5,null]}'),
    "l": ("date? list", [datetime.date(1969, 12, 31), None]),
    "r": ("record(a numeric(38,1), b text? list?)", (decimal.Decimal("0.5"), ["x", None])),
}


def test_values_of_every_type_go_in_and_come_out_the_same_by_every_way(
    replica: Replica, client: Client
) -> None:
    types = {name: type_ + "?" for name, (type_, _) in EVERY_TYPE.items()}
    row = tuple(value for _, value in EVERY_TYPE.values())
    client.create_shard("all", {"id": "bigint", **types})
    t = client.write("all", [(1, *row), (2, *[None] * len(row))])
    for at, name in enumerate(EVERY_TYPE, 1):
        index = client.create_index("all", key=[name])
        assert index.peek(at=t, keys=[row[at - 1]]).rows() == [(1, *row)], name
        assert index.peek(at=t, keys=[None], select=["id"]).rows() == [(2,)]
        assert index.peek(at=t).rows() == [(1, *row), (2, *[None] * len(row))]
        assert index.peek(at=t, where=[f"#{at} = #{at}"], select=["id"]).rows() == [(1,)]
        with index.attach() as attached:
            assert attached.lookup(row[at - 1], at=t).rows() == [(1, *row)], name
        client.drop(index)
    index = client.create_index("all", key=["n2"])
    index.wait(t)
    with Client.connect(replica, reader=True) as reader:  # which knows it by its page in shared memory alone
        assert reader.index(index.id).schema == index.schema
        assert reader.index(index.id).peek(at=t, keys=[decimal.Decimal("-12.3")]).rows() == [(1, *row)]


def test_an_index_is_found_without_its_creator(replica: Replica, client: Client) -> None:
    client.create_shard("fruit", FRUIT)
    fruit = client.create_index("fruit", key=["name"])
    fruit.wait(client.write("fruit", [("apple", 3)]))
    assert attach(fruit.id, replica.instance).lookup("apple").rows() == [("apple", 3)]
