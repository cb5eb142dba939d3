"""The asyncio client and a real replica: one story told by both clients, and what only tasks can do."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import inspect
import re
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from clusterd.client import Answer, Batch, Bounded, Client, PeekCanceled, aio
from clusterd.client.handle import Handle
from clusterd.launcher import Replica
from controller_proto.errors import Disconnected
from tests.e2e.support import MODES, replica_in, role

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WITHIN_S = 60.0
LAST = 2**64 - 1
NO_INPUT = 'Constant // { types: "(bigint)" }\n  - (1)'
ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000) b WHERE a.range % 7 = b.range % 5"

REFUSED = {  # what of the story is
    "shard again": "Refusal", "no source": "Refusal", "no plan": "LocalProtocolError",
    "write late": "Refusal", "write letters": "TypeError", "peek too early": "TimeoutError",
    "peek at soon": "TypeError", "peek at before": "ValueError",
    "peek bounded by less": "ValueError", "peek started strict": "TypeError", "peek keys": "TypeError",
    "peek order": "Refusal", "peek column": "Refusal", "no such shard": "Refusal", "no such key": "Refusal",
    "an id again": "Refusal", "query at the end of time": "TimeoutError", "nothing more": "TimeoutError",
    "closed": "SubscriptionEnded", "no setting": "Refusal", "answered once": "LocalProtocolError",
    "canceled": "PeekCanceled", "not found": "PublicationClosed", "below": "PeekFailed",
    "dropped": "PeekFailed", "kept twice": "Refusal", "sql of nothing": "PublicationClosed",
    "sql strict of nothing": "LocalProtocolError", "sql too early": "TimeoutError",
    "sql at soon": "TypeError",
}  # fmt: skip

Step = tuple[str, Callable[[], Any]]


@pytest.mark.parametrize("mode", MODES)
def test_both_clients_do_the_same_and_tasks_wait_for_their_own(mode: str, tmp_path: Path) -> None:
    """One daemon for all of it."""
    with replica_in(mode, tmp_path / "data") as replica:
        check_story(replica, tmp_path)
        check_examples(replica)
        asyncio.run(check_tasks(replica))
        threads = threading.active_count()
        asyncio.run(check_fenced(replica))
        assert threading.active_count() == threads


def story(c: Any, fruit: str, copies: Path) -> Generator[Step, Any, None]:
    """Every call of a client, each with what it is called in the record."""
    yield "shard", lambda: c.create_shard(fruit, {"name": "text", "kilos": "bigint?"})
    yield "shard again", lambda: c.create_shard(fruit, {"name": "bigint"})
    yield "source", lambda: c.source(fruit)
    yield "no source", lambda: c.source("bread")
    yield "plan", lambda: c.plan(f"Union\n  Get {fruit}\n  Get u77")
    yield "no plan", lambda: c.plan("Unions\n  Get 1")
    index = yield "index", lambda: c.create_index(fruit, key=["name"], as_of=0)
    t = yield "write", lambda: c.write(fruit, [("apple", 3), ("pear", 5), {"name": "pear", "kilos": None}])
    yield "write late", lambda: c.write(fruit, [("apple", 3)], at=0)
    yield "write letters", lambda: c.write(fruit, ["apple"])
    yield "wait", lambda: index.wait(t)
    yield "frontier", lambda: c.frontier(index.id)
    yield "peek", lambda: index.peek()
    yield "peek at a time", lambda: index.peek(at=t, keys=["pear", "fig"])
    yield "peek latest", lambda: c.peek(index, at="latest", order_by=["kilos"], limit=1, offset=1)
    yield "peek strict", lambda: index.peek(at="strict")
    yield "peek bounded", lambda: index.peek(at=Bounded(behind=0))
    yield "peek bounded by less", lambda: Bounded(behind=-1)
    yield "peek started strict", lambda: c.start_peek(index, at="strict")
    yield "sql", lambda: _rows_by_sql(c, f"SELECT name, kilos FROM {index.id} ORDER BY ALL", t)
    yield "sql strict", lambda: _rows_by_sql(c, "SELECT sum(kilos) FROM f", "strict", {"f": index})
    yield "sql bounded", lambda: _rows_by_sql(c, f"SELECT count(*) FROM {index.id}", Bounded(behind=0))
    yield "sql of a shard", lambda: _rows_by_sql(c, f"SELECT count(*) FROM {fruit}, {index.id}", "strict")
    yield "sql of nothing", lambda: _rows_by_sql(c, "FROM bread", "latest")
    yield "sql strict of nothing", lambda: _rows_by_sql(c, "FROM bread", "strict")
    yield "sql too early", lambda: _rows_by_sql(c, f"FROM {index.id}", t + 5, timeout_s=0)
    yield "sql at soon", lambda: _rows_by_sql(c, f"FROM {index.id}", "soon")
    yield "count strict", lambda: index.count("strict")
    yield "query strict", lambda: c.query(index, at="strict")
    yield "query bounded", lambda: c.query(fruit, at=Bounded(behind=0))
    yield "query of nothing strict", lambda: c.query(NO_INPUT, at="strict")
    yield "peek where", lambda: index.peek(at=t, where=["#1 > 3"], select=["kilos"])
    yield "peek too early", lambda: index.peek(at=t + 5, timeout_s=0)
    yield "peek at soon", lambda: index.peek(at="soon")
    yield "peek at before", lambda: index.peek(at=-1)
    yield "peek keys", lambda: index.peek(keys="pear")
    yield "peek order", lambda: index.peek(order_by=["weight"])
    yield "peek column", lambda: index.peek(where=["#9"])
    yield "count", lambda: index.count()
    again = yield "retract", lambda: c.write(fruit, [("apple", 3)], diff=-1)
    yield "count later", lambda: index.count(again)
    total = yield (
        "view",
        lambda: c.create_index(
            f"Reduce group_by=[#0] aggregates=[sum(#1)]\n  Get {fruit}",
            key=[0],
            names=["name", "kilos"],
            as_of=t,
        ),
    )
    yield "view's rows", lambda: total.peek(at=again)
    kept = yield "kept", lambda: c.create_materialized_view(total, f"{fruit}.kept", as_of=t, writes=False)
    yield "may be written", lambda: kept.allow_writes()
    yield "kept's rows", lambda: kept.peek(at=again)
    yield "sql of a view", lambda: _rows_by_sql(c, f"FROM {kept.id} JOIN v USING (name)", again, {"v": total})
    yield "sql of a view strict", lambda: _rows_by_sql(c, "SELECT count(*) FROM k", "strict", {"k": kept})
    yield "kept where", lambda: kept.shard
    yield "kept goes", lambda: kept.drop()
    yield "kept twice", lambda: c.create_materialized_view(fruit, f"{fruit}.kept")
    yield "copied", lambda: c.copy_to(total, copies / f"{fruit}.csv", as_of=again)
    yield "copied as Parquet", lambda: c.copy_to(total, copies / f"{fruit}.doc", as_of=again)
    yield "what was copied", lambda: (copies / f"{fruit}.csv").read_text()
    yield "no such shard", lambda: c.create_index("bread")
    yield "no such key", lambda: c.create_index(fruit, key=["weight"])
    yield "an id again", lambda: c.create_index(fruit, id=index.id)
    yield "query", lambda: c.query(f"Filter #1 > 3\n  Get {index.id}", at=again)
    yield "query latest", lambda: c.query(index)
    yield "query at the end of time", lambda: c.query(index, at=LAST, timeout_s=0)
    told = yield "subscribe", lambda: c.subscribe(total, as_of=t, up_to=again + 1)
    yield "all of it", lambda: _all_of(told)
    yield "the end", lambda: told.next()
    rest = yield "subscribe without what is there", lambda: c.subscribe(fruit, as_of=again, snapshot=False)
    yield "nothing", lambda: rest.next()
    again = yield "add", lambda: c.write(fruit, [("fig", 1)])
    yield "added", lambda: rest.next()
    yield "nothing more", lambda: rest.next(timeout_s=0)
    yield "close", lambda: rest.close()
    yield "closed", lambda: rest.next()
    yield "settings", lambda: c.update_configuration(max_peek_nodes=999)
    yield "no setting", lambda: c.update_configuration(bogus=1)
    late = yield "held back", lambda: c.create_index(index, key=["kilos"], as_of=t, schedule=False)
    parked = yield "parked", lambda: c.start_peek(late, at=t)
    yield "scheduled", lambda: c.schedule(late)
    yield "answered", lambda: c.await_peek(parked)
    yield "answered once", lambda: c.await_peek("0123")
    parked = yield "parked", lambda: c.start_peek(late, at=again + 100)
    yield "cancel", lambda: c.cancel_peek(parked)
    yield "canceled", lambda: c.await_peek(parked)
    found = yield "found", lambda: c.index(late.id)
    yield "attached", lambda: _scanned(c.attach(found), again)
    yield "not found", lambda: c.index("u4000")
    yield "compact", lambda: index.allow_compaction(again)
    yield "below", lambda: index.peek(at=t)
    yield "since", lambda: index.since
    yield "drop", lambda: late.drop()
    yield "dropped", lambda: late.peek(at=again)
    yield "reconnect", lambda: c.reconnect()
    yield "still there", lambda: index.peek(at=again)
    yield "advance", lambda: c.advance(fruit, again + 10)
    yield "empty time", lambda: total.peek(at=again + 9)
    yield "finish", lambda: c.advance(fruit, None)
    yield "at the end of time", lambda: c.query(index, at=LAST)
    yield "time of the end", lambda: index.peek(at="latest")
    yield "strict at the end", lambda: index.peek(at="strict")
    yield "told", lambda: repr(c)


def _rows_by_sql(c: Any, query: str, at: Any, names: Any = None, **options: Any) -> Any:
    done = c.sql(query, at=at, names=names, **options)

    async def awaited() -> Any:
        found = await done
        return found.time, found.rows()

    return awaited() if inspect.isawaitable(done) else (done.time, done.rows())


def _scanned(attached: Any, at: int) -> Any:
    with attached:
        return attached.scan(at=at).rows()


def _all_of(told: Any) -> Any:
    async def collected() -> list[Batch]:
        return [batch async for batch in told]

    return collected() if hasattr(told, "__aiter__") else list(told)


def shown(value: Any) -> Any:
    """A result as what can be compared between two sessions."""
    match value:
        case Answer():
            frame = value.to_arrow()
            columns = [value.column(i).tolist() for i in range(len(value.specs))]
            return value.time, value.served_by, value.rows(), frame.to_pylist(), columns
        case Batch():
            return value.lower, value.upper, value.error, sorted(value.changes.rows(), key=str)
        case [Batch(), *_]:
            rows = sorted((row for batch in value for row in batch.changes.rows()), key=str)
            return value[0].lower, value[-1].upper, rows
        case Handle():
            return repr(value)
        case BaseException():
            return type(value).__name__, str(value)
        case _ if type(value).__name__ == "Subscription":
            return repr(value)
        case _:
            return value


def _is_error(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(value[0], str)


def plain(result: Any) -> str:
    """Without what differs between two sessions on one daemon; the second meets the shards of the first."""
    same = re.sub(r"[0-9a-f]{32}", "UUID", str(result)).replace("fruit_b", "fruit_a")
    return re.sub(r"there are [^;]*", "there are SHARDS", same)


async def tell(steps: Generator[Step, Any, None]) -> list[tuple[str, Any]]:
    """Do the steps, of either client; an error is a result."""
    record = []
    result: Any = None
    while True:
        try:
            name, step = steps.send(result)
        except StopIteration:
            return record
        try:
            result = step()
            if inspect.isawaitable(result):
                result = await result
            record.append((name, shown(result)))
        except Exception as error:  # whatever it is, the other client has to raise the same
            result = None
            record.append((name, shown(error)))


def check_story(replica: Replica, copies: Path) -> None:
    """Told by the blocking client, then by the other."""

    async def awaited() -> list[tuple[str, Any]]:
        async with aio.Client.connect(replica) as client, asyncio.timeout(WITHIN_S):
            return await tell(story(client, "fruit_b", copies))

    with Client.connect(replica) as client:
        one = asyncio.run(tell(story(client, "fruit_a", copies)))
    other = asyncio.run(awaited())
    for (name, wanted), (_, got) in zip(one, other, strict=True):
        assert plain(got) == plain(wanted), name
    told = dict(one)
    assert told["peek latest"][:3] == (0, role(replica.mode), [("pear", 5)])
    assert told["peek strict"][:2] == told["peek bounded"][:2] == told["peek latest"][:2]
    assert told["strict at the end"][0] == LAST
    assert told["sql"] == (0, [("apple", 3), ("pear", 5), ("pear", None)])
    assert told["sql strict"] == (0, [(8,)])
    assert (told["sql of a shard"], told["sql bounded"]) == ((0, [(9,)]), (0, [(3,)]))
    assert (told["count strict"], told["query strict"][0], told["query bounded"][0]) == (3, 0, 0)
    assert told["sql of a view"] == (1, [("pear", 5, 5)])
    assert told["sql of a view strict"] == (1, [(1,)])
    assert told["query at the end of time"][0] == "TimeoutError"
    assert told["at the end of time"][0] == told["time of the end"][0] == LAST
    assert {name: value[0] for name, value in one if _is_error(value)} == REFUSED


def check_examples(replica: Replica) -> None:
    """Those of docstrings that need a replica."""
    for name in ("session", "aio.session"):
        module = importlib.import_module(f"clusterd.client.{name}")
        done = doctest.testmod(module, extraglobs={"replica": replica})
        assert done.attempted > 2
        assert done.failed == 0


async def check_tasks(replica: Replica) -> None:
    """Tasks of one client, and a reader beside it."""
    async with (
        aio.Client.connect(replica) as client,
        aio.Client.connect(replica, reader=True) as reader,
        asyncio.timeout(WITHIN_S),
    ):
        await client.create_shard("days", {"day": "bigint", "word": "text"})
        days = await client.create_index("days", key=["day"], as_of=0)
        await days.wait(await client.write("days", [(0, "zero")], at=0))
        read = await reader.index(days.id)
        seen: list[tuple[int, int]] = []

        async def follow() -> None:
            async with reader.subscribe(read, as_of=0) as changes:
                async for batch in changes:
                    seen.extend((row[0], diff) for row, _, diff in batch.changes.rows())
                    if len(seen) == 20:
                        return

        following = asyncio.create_task(follow())
        peeks = [asyncio.create_task(days.peek(at=at, keys=[at])) for at in range(1, 20)]
        beside = [asyncio.create_task(read.peek(at=at, keys=[at])) for at in range(1, 20)]
        for day in range(1, 20):
            await client.write("days", [(day, "x" * day)], at=day)
        for answers in (await asyncio.gather(*peeks), await asyncio.gather(*beside)):
            assert [answer.rows() for answer in answers] == [[(d, "x" * d)] for d in range(1, 20)]
        await following
        assert sorted(seen) == [(day, 1) for day in range(20)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await days.peek(at=1000)
        parked = await client.start_peek(days, at=1000)
        waits = asyncio.create_task(client.await_peek(parked))
        await client.cancel_peek(parked)
        with pytest.raises(PeekCanceled):
            await waits
        endless = asyncio.create_task(client.sql(ENDLESS))
        after = asyncio.create_task(client.sql(f"SELECT count(*) FROM {days.id}"))
        await client.write("days", [(20, "meanwhile")], at=20)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert (await after).rows() in ([(20,)], [(21,)])
        with pytest.raises(TimeoutError):
            await reader.sql(f"FROM {days.id}", at=1000, timeout_s=0.01)
        sleeping = asyncio.create_task(reader.sql(f"FROM {days.id}", at=1000))
        await asyncio.sleep(0)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        await days.drop()


async def check_fenced(replica: Replica) -> None:
    """Every task is told, and no thread stays."""
    async with aio.Client.connect(replica) as first:
        await first.create_shard("lost", {"n": "bigint"})
        lost = await first.create_index("lost")
        tasks = [asyncio.create_task(lost.peek(at=at)) for at in (5, 6)]
        await asyncio.sleep(0)
        async with aio.Client.connect(replica):
            for task in tasks:
                with pytest.raises(Disconnected, match="fenced") as ended:
                    async with asyncio.timeout(WITHIN_S):
                        await task
                assert ended.value.reason == "fenced"
