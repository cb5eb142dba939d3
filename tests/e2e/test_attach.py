"""Attached readers and SQL beside a real replica in both modes: found by its socket, over several indexes,
through its views, and when an index or the replica goes and comes back."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterd.__main__ import main
from clusterd.client import Bounded, Client, TooStale, instance_at
from clusterd.launcher import launch
from controller_proto.errors import Disconnected
from shm_arrangements.attach import attach, snapshot, wait_all
from shm_arrangements.errors import NoSuchInstance, PublicationClosed, WriterGone
from tests.e2e.support import ENDS_WITHIN_S, MODES, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOTALS = "Reduce group_by=[#0] aggregates=[sum(#1)]\n  Get fruit"
WITHIN_S = 30.0


@pytest.mark.parametrize("mode", MODES)
def test_readers_and_sql_are_right_while_indexes_and_replicas_come_and_go(mode: str, tmp_path: Path) -> None:
    data, listen = tmp_path / "data", f"unix:{tmp_path / 'socket'}"
    config = {"enable_two_runtime_compute": mode == "two-runtime"}
    with launch(config, data, listen=listen, test_hooks=True) as replica:
        assert replica.mode == mode
        token = instance_at(listen)
        assert token == replica.instance
        client = Client.connect(replica)
        client.create_shard("fruit", {"name": "text", "kilos": "bigint?"})
        fruit = client.create_index("fruit", key=["name"], as_of=0)
        totals = client.create_index(TOTALS, key=[0], names=["name", "sum"], as_of=0)
        kept = client.create_materialized_view(totals, "totals", as_of=0)
        t = client.write("fruit", [("pear", 5), ("pear", 5), ("fig", None)])
        later = client.write("fruit", [("pear", 5)], diff=-1)
        check_views(client, token, (fruit.id, totals.id), t, later)
        check_sql(client, fruit.id, later)
        told = CliRunner().invoke(
            main, ["sql", f"FROM {fruit.id} JOIN totals USING (name) ORDER BY ALL", "--at", str(later),
                   "--wait", "30", "--instance", listen, "--data-dir", str(data), "--format", "csv"],
        )  # fmt: skip
        assert told.stdout.splitlines() == ["name,kilos,sum", "fig,,", "pear,5,5"], told.stderr
        kept.drop()
        check_dropped(client, token, fruit.id, t)
        # Shared fate, with a reader that sleeps, one that holds a view, and one that asks again.
        again = client.index(totals.id).attach()
        view = again.snapshot(later)
        ended: list[type[Exception]] = []

        def sleep() -> None:
            try:
                again.wait(1 << 40)
            except WriterGone as gone:
                ended.append(type(gone))

        sleeping = threading.Thread(target=sleep)
        sleeping.start()
        os.kill(replica.pids["maintenance/0" if mode == "two-runtime" else "solo/0"], signal.SIGKILL)
        sleeping.join(WITHIN_S)
        assert ended == [WriterGone]
        wait_until(lambda: _is_gone(token), ENDS_WITHIN_S + 1, "the names of the replica are gone")
        with pytest.raises(WriterGone):
            again.lookup("pear")
        assert sorted(view.scan().rows()) == [("fig", None), ("pear", 5)]
        with pytest.raises(NoSuchInstance):
            attach(totals.id, token)
        with pytest.raises(Disconnected):
            client.sql(f"FROM {totals.id}")
    with launch(config, data, listen=listen) as replica, client:
        client.reconnect()
        assert instance_at(listen) != token
        with pytest.raises(WriterGone):
            again.snapshot()
        with totals.attach() as fresh:
            fresh.wait(later, timeout_s=WITHIN_S)
            assert sorted(fresh.scan(later).rows()) == sorted(view.scan().rows())
        assert client.sql(f"SELECT sum(sum) FROM {totals.id}", at=later).rows() == [(5,)]
    again.close()


def check_views(client: Client, token: str, ids: tuple[str, str], t: int, later: int) -> None:
    """Several indexes at one time, and what a peek gives at each."""
    with attach(ids[0], token) as fruit, attach(ids[1], token) as totals:
        wait_all([fruit, totals], later, timeout_s=WITHIN_S)
        for at in (t, later):
            with snapshot([fruit, totals], at=at) as views:
                assert views.at == at
                for id, view in zip(ids, views, strict=True):
                    asked = client.index(id).peek(at=at)
                    assert sorted(view.scan().rows(), key=str) == sorted(asked.rows(), key=str)
            again = snapshot([fruit, totals], at=at)
            assert again[0].scan().rows() == views[0].scan().rows()
        assert fruit.changes(t, later).rows() == [(("pear", 5), later, -1)]
        assert sorted(totals.changes(t, later).rows()) == [(("pear", 5), later, 1), (("pear", 10), later, -1)]


def check_sql(client: Client, id: str, later: int) -> None:
    """In every mode of reading; each says when it read."""
    counted = f"SELECT count(*) FROM {id} JOIN totals USING (name)"
    strict = client.sql(counted, at="strict")
    assert (strict.rows(), strict.time) == ([(2,)], later)
    assert client.sql(counted, at=Bounded(behind=0)).time == later
    assert client.query(TOTALS, at="strict").time == later
    with pytest.raises(TooStale):
        client.sql(
            f"SELECT count(*) FROM {id}, ahead", at=Bounded(behind=0), names={"ahead": _behind(client)}
        )
    reader = Client.connect(client._address, reader=True)
    with reader:
        assert reader.sql(f"SELECT count(*) FROM {id}", at=later).rows() == [(2,)]
        found = reader.sql("SELECT count(*) > 0 FROM dataflows d JOIN exports e USING (worker, dataflow)")
        assert found.rows() == [(True,)]


def _behind(client: Client) -> str:
    """A shard that is sealed further than what is made of it can be, for it has not been scheduled."""
    client.create_shard("held", {"n": "bigint"})
    held = client.create_index("held", as_of=0, schedule=False)
    client.write("held", [(1,)])
    return held.id


def check_dropped(client: Client, token: str, id: str, t: int) -> None:
    """An index that is dropped and made again under its id: handles of before are told, new ones read it."""
    query = f"SELECT count(*) FROM {id}"
    assert client.sql(query, at=t).rows() == [(3,)]
    old = attach(id, token)
    view = old.snapshot(t)
    client.index(id).drop()
    with pytest.raises(PublicationClosed):
        old.wait(1 << 40, timeout_s=WITHIN_S)
    with pytest.raises(PublicationClosed):
        old.lookup("pear")
    assert len(view.lookup("pear")) == 1
    client.reconnect()
    made = client.create_index("Filter #1 > 0\n  Get fruit", key=[0], id=id, as_of=0)
    assert made.peek(at=t).total == 2
    with attach(id, token) as new:
        assert new.incarnation > old.incarnation
        assert new.scan(t).total == 2
    assert client.sql(query, at=t).rows() == [(2,)]
    with pytest.raises(PublicationClosed):
        old.snapshot()
    old.close()


def _is_gone(token: str) -> bool:
    return not [name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{token}.")]
