"""The asyncio client and a replica in one loop: who is woken, what is canceled, who waits for whom."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import clusterd.client
from clusterd.client import PeekCanceled, PeekFailed, SubscriptionEnded, aio, feed
from clusterd.client.aio import Client, Index, wire
from clusterd.client.core import Core
from clusterd.client.handle import Standing
from clusterd.storage.store import Store
from controller_proto.client_end import ClientEnd
from controller_proto.command import AllowCompaction, CancelPeek, CreateDataflow, Peek, Sync
from controller_proto.dataflow import Export
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from controller_proto.response import (
    Closing,
    Frontiers,
    PeekError,
    PeekResponse,
    PeekRows,
    Refused,
    SubscribeBatch,
    SubscribeResponse,
    SubscribeUpdates,
)
from controller_proto.response import PeekCanceled as Canceled
from controller_proto.schema import SAMPLE_SCHEMA
from tests.clusterd.fake_replica import WITHIN_S, FakeReplica, fake_replica

Story = Callable[[FakeReplica, Client, Index], Awaitable[None]]


def tell(story: Story, tmp_path: Path, **connect: Any) -> None:
    """Run `story` with a client of a fake replica, and an index that is there."""

    async def told() -> None:
        async with fake_replica(tmp_path / "socket") as replica, asyncio.timeout(WITHIN_S):
            async with Client.connect(replica.address, **connect) as client:
                index = Index(client, Standing(Export("u9", "index", "u1", SAMPLE_SCHEMA, (0,)), 0))
                await story(replica, client, index)
            assert not client.core.asked, "an answer is kept that nobody waits for"

    asyncio.run(told())


def rows(*values: str) -> PeekRows:
    return PeekRows((tuple(range(len(values))), values), (1,) * len(values))


def batch(id: str, lower: int, upper: int, value: str) -> SubscribeResponse:
    updates = SubscribeUpdates(((lower,), (value,)), (lower,), (1,))
    return SubscribeResponse(id, SubscribeBatch(lower, (upper,), updates))


def test_what_is_not_awaited_says_that_it_has_to_be() -> None:
    with pytest.raises(AttributeError, match="without 'index': `await` it first, or use `async with`"):
        Client.connect("unix:/run/x").index("u1")  # type: ignore[attr-defined]


def test_each_of_several_peeks_under_way_gets_its_own_answer(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        tasks = [asyncio.create_task(index.peek(at=at)) for at in range(5)]
        peeks = await replica.hear(Peek, 5)
        for peek in reversed(peeks):
            await replica.say(PeekResponse(peek.uuid, rows(str(peek.time)), peek.time, "solo"))
        answers = await asyncio.gather(*tasks)
        assert [(a.time, a.rows()) for a in answers] == [(at, [(0, str(at))]) for at in range(5)]

    tell(story, tmp_path)


def test_a_peek_whose_task_gives_up_is_canceled_once_and_its_late_answer_is_not_kept(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        task = asyncio.create_task(index.peek(at=0))
        (peek,) = await replica.hear(Peek)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (canceled,) = await replica.hear(CancelPeek)
        assert canceled.uuid == peek.uuid
        await replica.say(PeekResponse(peek.uuid, rows("late"), 0, "solo"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await index.peek(at=1)
        await replica.say(Frontiers("u9", (2,)))
        await client.wait_frontier("u9", 2)
        with pytest.raises(TimeoutError, match=r"u9 at 2: that time is not sealed yet \(frontier \{2\}\)"):
            await index.peek(at=2, timeout_s=0)
        with pytest.raises(TimeoutError, match=r"u9 at 7: that time is not sealed yet .* after 0.01 s"):
            await index.wait(7, timeout_s=0.01)
        uuid = await client.start_peek(index, at=3)
        with pytest.raises(TimeoutError):
            await client.await_peek(uuid, 0)
        await replica.hear(CancelPeek, 4)
        assert len({each.uuid for each in replica.all(CancelPeek)}) == 4

    tell(story, tmp_path)


def test_answers_that_are_no_rows_are_raised(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        uuids = [await client.start_peek(index) for _ in range(3)]
        peeks = await replica.hear(Peek, 3)
        await client.cancel_peek(uuids[0])
        await replica.hear(CancelPeek)
        await replica.say(
            Refused(peeks[2].seq, "duplicate-uuid", "said before"),
            PeekResponse(uuids[1], PeekError("eval-error", "division by zero", "do not")),
            PeekResponse(uuids[0], Canceled()),
        )
        with pytest.raises(PeekCanceled):
            await client.await_peek(uuids[0])
        with pytest.raises(PeekFailed, match="eval-error: division by zero; do not"):
            await client.await_peek(uuids[1])
        with pytest.raises(PeekFailed, match="duplicate-uuid"):
            await client.await_peek(uuids[2])
        with pytest.raises(LocalProtocolError, match=r"no answer to a peek .* is owed"):
            await client.await_peek(uuids[2])

    tell(story, tmp_path)


def test_a_creation_that_is_given_up_is_dropped_and_one_that_is_refused_raises(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        store.create_shard("fruit", SAMPLE_SCHEMA)

    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        replica.refuse = "invalid-plan", "no"
        with pytest.raises(Refusal, match="invalid-plan: no"):
            await client.create_index("fruit")
        replica.answers_sync = False
        for make in (client.create_index, client.query, client.subscribe):
            given_up = [each.id for each in replica.all(AllowCompaction)]
            task = asyncio.ensure_future(_awaited(make("fruit")))  # type: ignore[operator]
            made = (await replica.hear(CreateDataflow, 2 + len(given_up)))[-1]
            await replica.hear(Sync, 3 + len(given_up))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            dropped = await replica.hear(AllowCompaction, 1 + len(given_up))
            assert (dropped[-1].id, dropped[-1].frontier) == (made.header.exports[0].id, ())
        assert not client.dataflows.standing

    tell(story, tmp_path, data_dir=tmp_path / "data")


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@pytest.mark.parametrize("how", ["closing", "eof", "garbage", "no message"])
def test_all_who_wait_are_told_why_the_connection_is_over(how: str, tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        tasks = [
            asyncio.create_task(index.peek(at=0)),
            asyncio.create_task(index.wait(5)),
            asyncio.create_task(client.update_configuration()),
        ]
        replica.answers_sync = False
        await replica.hear(Peek)
        match how:
            case "closing":
                await replica.say(Closing("fenced", "by another"))
                replica.hang_up()
            case "eof":
                replica.hang_up()
            case "garbage":
                await replica.say_bytes(b"\xff" * 8)
            case _:
                await replica.say_bytes(b"\0\0\0\1\x80")
        wanted = {"closing": "fenced: by another", "eof": "closed the connection"}.get(how, "frame|message")
        for task in tasks:
            with pytest.raises(Disconnected, match=wanted):
                await task
        with pytest.raises(Disconnected, match=wanted):
            await index.peek(at=0)

    tell(story, tmp_path)


def test_a_client_that_lost_its_connection_asks_again_what_is_still_awaited(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        awaited = await client.start_peek(index, at=1)
        waiting = asyncio.create_task(index.peek(at=2))
        await replica.hear(Peek, 2)
        replica.hang_up()
        with pytest.raises(Disconnected):
            await waiting
        await client.reconnect()
        again = (await replica.hear(Peek, 3))[-1]
        assert (replica.connections, again.uuid) == (2, awaited)
        await replica.say(PeekResponse(awaited, rows("there"), 1, "solo"))
        assert (await client.await_peek(awaited)).rows() == [(0, "there")]
        assert len(replica.all(Peek)) == 3

    tell(story, tmp_path)


def test_a_client_that_is_closed_tells_those_who_wait_and_nobody_can_go_on(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        task = asyncio.create_task(index.peek(at=0))
        await replica.hear(Peek)
        await client.close()
        with pytest.raises(Disconnected, match="closed by this end"):
            await task
        with pytest.raises(Disconnected, match="closed by this end"):
            await index.peek()
        with pytest.raises(LocalProtocolError, match="the client was closed"):
            await client.write("fruit", [])

    tell(story, tmp_path)


def test_nobody_listens_is_said_with_the_address(tmp_path: Path) -> None:
    async def alone() -> None:
        with pytest.raises(FileNotFoundError, match=r"cannot connect to unix:.* is `clusterd serve` running"):
            await Client.connect(f"unix:{tmp_path / 'none'}")
        async with fake_replica(tmp_path / "socket") as replica:
            with pytest.raises(FileNotFoundError, match="no such data_dir"):
                await Client.connect(replica.address, data_dir=tmp_path / "none")
            replica.answers_sync = False
            with pytest.raises(TimeoutError):
                await Client.connect(replica.address, timeout_s=0.01)

    asyncio.run(alone())


def test_a_full_backlog_is_waited_for_within_the_timeout(tmp_path: Path) -> None:
    async def crowded() -> None:
        path = str(tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
            listener.bind(path)
            listener.listen(0)
            first.connect(path)
            core = Core(end := ClientEnd(), 1)
            with pytest.raises(TimeoutError, match=r"cannot connect to unix:.*: timed out"):
                await wire.Wire.connect(f"unix:{path}", core, end, 0.05)
            waiting = asyncio.create_task(wire.Wire.connect(f"unix:{path}", core, end, WITHIN_S))
            await asyncio.sleep(0)  # it was turned away once
            listener.accept()[0].close()
            await (await waiting).close()

    asyncio.run(crowded())


def test_a_client_is_of_one_loop_and_says_so_in_others(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        waiting = asyncio.create_task(index.peek(at=0))
        await replica.hear(Peek)
        heard = len(replica.heard)
        calls: list[Callable[[], Awaitable[Any]]] = [
            index.peek, lambda: client.start_peek(index), lambda: client.cancel_peek("x"), index.drop,
            lambda: index.wait(0), lambda: index.allow_compaction(3), client.update_configuration,
            client.reconnect,
        ]  # fmt: skip

        async def elsewhere() -> None:
            for call in calls:
                with pytest.raises(RuntimeError, match="the event loop it was connected in"):
                    await call()

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        await replica.say(PeekResponse(replica.all(Peek)[0].uuid, rows("here"), 0, "solo"))
        assert (await waiting).rows() == [(0, "here")]
        assert len(replica.heard) == heard, "something was said from elsewhere"

    tell(story, tmp_path)


def test_who_was_closed_cannot_reconnect_and_leaves_no_connection(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        await client.close()
        with pytest.raises(LocalProtocolError, match="the client was closed; connect another"):
            await client.reconnect()
        assert replica.connections == 1

    tell(story, tmp_path)


async def _subscribed(replica: FakeReplica, client: Client, index: Index) -> aio.Subscription:
    client.dataflows.standing["u9"] = index.standing
    return await client.subscribe(index, as_of=0)


def test_who_does_not_take_batches_stops_the_reading_but_nobody_elses_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "PAUSE_BYTES", 1000)

    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        changes = await _subscribed(replica, client, index)
        transport = client._wire._transport
        assert transport is not None
        task = asyncio.create_task(index.peek(at=0))
        (peek,) = await replica.hear(Peek)
        await replica.say(*(batch(changes.id, t, t + 1, "x" * 500) for t in range(4)))
        await replica.say(PeekResponse(peek.uuid, rows("first"), 0, "solo"))
        assert (await task).rows() == [(0, "first")]
        assert not transport.is_reading(), "2000 bytes wait, and nobody for anything"
        task = asyncio.create_task(index.peek(at=1))
        peek = (await replica.hear(Peek, 2))[-1]
        assert transport.is_reading()
        await replica.say(PeekResponse(peek.uuid, rows("second"), 1, "solo"))
        assert (await task).rows() == [(0, "second")]
        assert not transport.is_reading()
        taken = [await changes.next(), await changes.next(), await changes.next()]
        assert [each.lower for each in taken if each is not None] == [0, 1, 2]
        assert transport.is_reading()
        async with asyncio.timeout(WITHIN_S):
            async for each in changes:
                assert each.lower == 3
                break
        await changes.close()
        with pytest.raises(SubscriptionEnded, match="was closed"):
            await changes.next()

    tell(story, tmp_path)


def test_a_subscription_that_nobody_takes_ends_at_a_limit_and_says_from_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LIMIT_BYTES", 1000)

    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        changes = await _subscribed(replica, client, index)
        await replica.say(*(batch(changes.id, t, t + 1, "x" * 500) for t in range(5)))
        (dropped,) = await replica.hear(AllowCompaction)
        assert (dropped.id, dropped.frontier) == (changes.id, ())
        taken = [await changes.next(), await changes.next()]
        assert [each.upper for each in taken if each is not None] == [1, 2]
        with pytest.raises(SubscriptionEnded, match=r"limit: 1.* bytes of batches were not taken") as ended:
            await changes.next()
        assert ended.value.upper == 2
        assert client.core.untaken_bytes == 0

    tell(story, tmp_path)


def test_several_tasks_share_the_batches_of_a_subscription(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        changes = await _subscribed(replica, client, index)
        tasks = [asyncio.create_task(changes.next()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await replica.say(batch(changes.id, 0, 1, "a"), batch(changes.id, 1, 2, "b"))
        first, second = await tasks[0], await tasks[2]
        assert first is not None
        assert second is not None
        assert {first.lower, second.lower} == {0, 1}
        with pytest.raises(TimeoutError, match="nothing was told after 0 s, up to 2"):
            await changes.next(timeout_s=0)

    tell(story, tmp_path)


def test_who_says_more_than_is_read_waits_and_others_hear_meanwhile(tmp_path: Path) -> None:
    async def story(replica: FakeReplica, client: Client, index: Index) -> None:
        replica.reads.clear()
        long = "x" * (1 << 18)
        asking = [asyncio.create_task(client.start_peek(index, where=[f'#1 = "{long}"'])) for _ in range(4)]
        await replica.say(Frontiers("u9", (1,)))
        await index.wait(0)
        assert not all(task.done() for task in asking)
        replica.reads.set()
        uuids = await asyncio.gather(*asking)
        assert {peek.uuid for peek in await replica.hear(Peek, 4)} == set(uuids)
        for uuid in uuids:
            client.core.forget_peek(uuid)

    tell(story, tmp_path)


def test_both_clients_have_the_same_calls_with_the_same_arguments() -> None:
    """But for `pump`, `fileno` and `store`, which are about blocking."""
    for blocking, awaited in (
        (clusterd.client.Client, aio.Client),
        (clusterd.client.Index, aio.Index),
        (clusterd.client.Subscription, aio.Subscription),
    ):
        names = {name for name in dir(blocking) if not name.startswith("_")} - {"pump", "fileno", "store"}
        assert names == {name for name in dir(awaited) if not name.startswith("_")}
        for name in names:
            one, other = getattr(blocking, name), getattr(awaited, name)
            if callable(one):
                assert (
                    inspect.signature(one).parameters.keys() == inspect.signature(other).parameters.keys()
                ), f"{blocking.__name__}.{name}"
