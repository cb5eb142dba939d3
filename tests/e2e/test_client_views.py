"""Materialized views by either client, against a real replica in both modes, which is started anew."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clusterd.client import Client, PeekFailed, View, aio
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
    assert [name for name in vars(View) if not name.startswith("_")] == [
        "shard", "frontier", "wait", "peek", "count", "allow_writes", "allow_compaction", "drop",
    ]  # fmt: skip
    assert sorted(vars(View)) == sorted(vars(aio.View))
