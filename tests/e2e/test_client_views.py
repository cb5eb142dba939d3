"""Materialized views by either client, against a real replica in both modes, which is started anew."""

from __future__ import annotations

import asyncio
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterd.client import Client, PeekFailed, View, aio
from clusterd.driver_cli import main
from clusterd.storage.store import Store
from controller_proto.errors import Refusal
from tests.e2e.support import MODES, replica_in, role

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOTALS = "Reduce group_by=[#0] aggregates=[sum(#1)]\n  Get fruit"
NAMES = ("name", "kilos")


@pytest.mark.parametrize("mode", MODES)
def test_k2_k6_a_view_is_written_read_and_gone_on_with_by_a_replica_that_starts_anew(
    mode: str, tmp_path: Path
) -> None:
    with replica_in(mode, tmp_path) as replica, Client.connect(replica) as client:
        client.create_shard("fruit", {"name": "text", "kilos": "bigint?"})
        t = client.write("fruit", [("apple", 3), ("pear", 5), ("pear", 1)])
        totals = client.create_materialized_view(
            TOTALS, "totals", key=["name"], names=NAMES, not_null=["kilos"], writes=False
        )
        with pytest.raises(TimeoutError):
            totals.peek(at=t, timeout_s=0)
        totals.allow_writes()
        answer = totals.peek(at=t, keys=["pear"])
        assert (answer.rows(), answer.served_by) == ([("pear", 6)], role(mode))
        assert (totals.shard, totals.count(t)) == ("totals", 2)
        totals.wait(t)
        assert totals.frontier == (t + 1,)
        assert totals.wait_hydrated().status == "hydrated"
        with Client.connect(replica, reader=True) as reader:
            theirs = reader.view(totals.id, "totals", key=["name"])
            assert theirs.peek(at=t, keys=["pear"]).dicts() == [{"name": "pear", "kilos": 6}]
            assert theirs.status is None
            with pytest.raises(PeekFailed, match="u99 was not created"):
                reader.view("u99", "totals").peek()
        client.create_shard("days", {"day": "date", "since": "interval?"})
        days = client.create_index("days", key=["day"])
        at = client.write("days", [(date(2013, 1, 2), None)])
        said = CliRunner().invoke(main, ["exec", "--connect", replica.address, f"peek id={days.id} ts={at}"])
        assert said.output == '"2013-01-02" null\n'  # as its page tells, for the driver did not create it
        last = client.write("fruit", [("fig", None)])
        with pytest.raises(PeekFailed, match=r"column 'kilos' of u\d+ is NULL"):
            totals.peek(at=last)
        last = client.write("fruit", [("fig", None)], diff=-1)
        assert totals.count(last) == 2
        with pytest.raises(Refusal, match="in shard 'totals'"):
            client.create_materialized_view("fruit", "totals")
        totals.drop()
        with pytest.raises(PeekFailed, match="dropped"):
            totals.peek(at=last)

    async def again() -> list[object]:
        with replica_in(mode, tmp_path) as replica:
            async with aio.Client.connect(replica) as client:
                t = await client.write("fruit", [("pear", 1)])
                # Without as_of it goes on where the shard ends, not at the newest time.
                totals = await client.create_materialized_view(TOTALS, "totals", names=NAMES)
                await totals.wait(t)
                rows: list[object] = [*(await totals.peek(at=t - 1)).rows()]
                return rows + (await totals.peek(at=t)).rows()

    with Store.open(tmp_path) as store:
        before = store.shard("totals").statistics()
        assert asyncio.run(again()) == [("apple", 3), ("pear", 6), ("apple", 3), ("pear", 7)]
        after = store.shard("totals").statistics()
    assert (after.parts, after.updates) == (before.parts + 1, before.updates + 2)


def test_a_view_says_what_it_may_do() -> None:
    assert [name for name in dir(View) if not name.startswith("_")] == [
        "allow_compaction", "allow_writes", "count", "drop", "frontier", "get", "id", "key", "peek", "schema",
        "shard", "since", "status", "wait", "wait_hydrated",
    ]  # fmt: skip
    assert dir(View) == dir(aio.View)
