"""Client: one session with a replica, as its controller or beside it, for asyncio; see the package's head.

A thin shell: what a call does is an operation (operation.py) over the core; here is how it is awaited. A task
that is canceled has its cancellation thrown into its operation, which says what has to be said.

Does not: run threads but the one for files, reconnect by itself (one that was fenced must not).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack
from uuid import uuid4

from clusterd.client import copies, modes, peeks
from clusterd.client.aio.index import Index
from clusterd.client.aio.opening import Opening
from clusterd.client.aio.subscription import Subscription
from clusterd.client.aio.view import View
from clusterd.client.aio.wire import Wire
from clusterd.client.answer import Answer
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.feed import Feed
from clusterd.client.handle import Handle, standing_of
from clusterd.client.operation import DEADLINE_S, Operation, Wait, Work
from clusterd.client.peeks import At, PeekOptions
from clusterd.client.place import instance_of, open_store, place_of
from clusterd.client.shards import Shards
from clusterd.client.sql import SqlSession
from clusterd.client.sql_reads import Names, sql
from clusterd.client.sql_result import SqlResult
from clusterd.client.views import allow_writes, create_view
from controller_proto import command
from controller_proto.client_end import ClientEnd
from controller_proto.dataflow import WireFrontier
from controller_proto.errors import LocalProtocolError
from controller_proto.ids import GlobalId
from controller_proto.plan import Get, Plan
from controller_proto.response import Status
from controller_proto.schema import Schema
from shm_arrangements.attach import Attached, attach

if TYPE_CHECKING:
    from clusterd.launcher import Replica

__all__ = ["Client"]

T = TypeVar("T")

_STOP_AGAIN_S = 0.05


class Client:
    """One session with a replica. For any number of tasks of the loop it was connected in."""

    def __init__(
        self, address: str, core: Core, wire: Wire, shards: Shards, files: Executor, instance: str | None
    ) -> None:
        """What `connect` made, which are the client's to close. files: of one thread."""
        self.core = core
        self.dataflows = Dataflows(core, shards)
        self._address = address
        self._wire = wire
        self._shards = shards
        self._files = files
        self._instance = instance
        self._closed = False
        self._sql: SqlSession | None = None  # made by the first query
        self._sql_turn = asyncio.Lock()
        self._long = ThreadPoolExecutor(1, "clusterd-sql")  # no thread before the first query

    # -- the session

    @classmethod
    def connect(
        cls,
        where: str | Replica,
        *,
        data_dir: Path | str | None = None,
        instance: str | None = None,
        config: Mapping[str, Any] | None = None,
        reader: bool = False,
        epoch: int | None = None,
        timeout_s: float = 10.0,
    ) -> Opening[Client]:
        """To be awaited, or entered by `async with`; arguments and errors as those of the blocking client.

        >>> async def main():
        ...     async with Client.connect(replica) as client:
        ...         await client.create_shard("pets", {"name": "text", "legs": "bigint"})
        ...         pets = await client.create_index("pets", key=["name"])
        ...         await client.write("pets", [("cat", 4), ("hen", 2)], at=0)
        ...         return await pets.peek(keys=["hen"], at=0)
        >>> asyncio.run(main()).dicts()
        [{'name': 'hen', 'legs': 2}]
        """
        place = place_of(where, data_dir, instance, config)
        if reader:
            epoch = None
        elif epoch is None:
            epoch = time_ns() // 1000

        async def connected() -> Client:
            core = Core(end := ClientEnd(), epoch)
            core.create_instance(place.config)
            files = ThreadPoolExecutor(1, "clusterd-files")  # no thread before the first call
            wire = None
            try:
                wire = await Wire.connect(place.address, core, end, timeout_s)
                store = await _in(files, lambda: open_store(place.data_dir))
                found = place.instance or await _in(files, lambda: instance_of(wire.peer_pid))
                client = cls(place.address, core, wire, Shards(store), files, found)
                await client.run(core.begin(end, uuid4().hex, timeout_s))
            except BaseException:
                files.shutdown()
                if wire is not None:
                    await wire.close()
                raise
            return client

        return Opening(connected)

    async def reconnect(self, *, timeout_s: float = 10.0) -> None:
        """As `clusterd.client.Client.reconnect`. Tasks that wait for anything are told `Disconnected`."""
        self._wire.require_loop()
        self._require_open()
        self.core.lose()
        await self._wire.close()
        end = ClientEnd()
        self._wire = await Wire.connect(self._address, self.core, end, timeout_s)
        pid = self._wire.peer_pid
        self._instance = await _in(self._files, lambda: instance_of(pid)) or self._instance
        async with self._sql_turn:
            await self._close_sql()
        await self.run(self.core.begin(end, uuid4().hex, timeout_s))

    async def close(self) -> None:
        """Leave. What was created runs on until another controller comes; tasks that wait are told
        `Disconnected`.
        """
        await self._wire.close()
        if not self._closed:
            self._closed = True
            if self._sql is not None:
                self._sql.stop()
            async with self._sql_turn:
                await self._close_sql()
            self._long.shutdown()
            await _in(self._files, self._shards.close)
            self._files.shutdown()

    async def _close_sql(self) -> None:
        if self._sql is not None:
            session, self._sql = self._sql, None
            await _in(self._long, session.close)

    def __repr__(self) -> str:
        kind = "reader" if self.core.epoch is None else "controller"
        return f"Client({kind} at {self._address}, instance={self._instance}, data_dir={self._shards})"

    async def run(self, operation: Operation[T]) -> T:
        """Do an operation of this session to its end. Raises RuntimeError in another loop than its own."""
        self._wire.require_loop()
        try:
            step = next(operation)
            while True:
                try:
                    done = await self._perform(step)
                except BaseException as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(done)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self._wire.flush()
            self._wire.flow()

    async def _perform(self, step: Wait | Work[Any]) -> Any:
        self._wire.flush()
        if isinstance(step, Work):
            if step.stop is not None:
                return await self._at_length(step.do, step.stop)
            return await self._in_thread(step.do)
        if not step.ready():
            async with asyncio.timeout(step.timeout_s):
                await self._wire.drain()
                await self._wire.wait(step.topic, step.ready)
        return None

    async def _flush(self) -> None:
        self._wire.flush()
        await self._wire.drain()

    async def _in_thread(self, do: Callable[[], T]) -> T:
        self._require_open()
        return await _in(self._files, do)

    async def _at_length(self, do: Callable[[], T], stop: Callable[[], None]) -> T:
        """What `do` returns. A task that is canceled stops it, and goes when it has ended."""
        self._require_open()
        running = asyncio.wrap_future(self._long.submit(do))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                stop()  # again: it may have been about to begin
                await asyncio.wait([running], timeout=_STOP_AGAIN_S)
            running.exception()  # taken note of
            raise

    def _require_open(self) -> None:
        if self._closed:
            raise LocalProtocolError("disconnected", "the client was closed", "connect another")

    # -- shards

    async def create_shard(self, name: str, columns: Schema | Mapping[str, str]) -> None:
        """Make a shard, if it is not there; columns as `schema_of` takes them. Raises
        Refusal(`schema-mismatch`).
        """
        await self._in_thread(lambda: self._shards.create(name, columns))

    async def write(
        self,
        name: str,
        rows: Sequence[Sequence[Any] | Mapping[str, Any]],
        *,
        at: int | None = None,
        diff: int = 1,
    ) -> int:
        """Append `rows` to a shard at time `at`, and seal it; as `clusterd.client.Client.write`. A write
        whose task is canceled may be done all the same, and is never half done.
        """
        return await self._in_thread(lambda: self._shards.write(name, rows, at, diff))

    async def advance(self, name: str, upper: int | None) -> None:
        """Seal a shard up to `upper` without writing; None ends it."""
        await self._in_thread(lambda: self._shards.advance(name, upper))

    # -- dataflows

    async def source(self, name: str) -> Get:
        """A shard as the input of a plan. Raises Refusal(`unknown-shard`)."""
        return await self.run(self.dataflows.source(name))

    async def plan(self, text: str) -> Plan:
        """A plan from the script language, in which `Get` may also name a shard.

        Raises LocalProtocolError naming the line, Refusal(`unknown-shard`).
        """
        return await self.run(self.dataflows.plan(text))

    async def create_index(
        self,
        on: str | Plan | Handle,
        key: Sequence[str | int] = (),
        *,
        names: Sequence[str] | None = None,
        id: GlobalId | None = None,
        as_of: int | None = None,
        schedule: bool = True,
    ) -> Index:
        """Maintain a shard (by name), an index, or a plan over these (or its text), arranged by `key`.

        key: names or positions of columns. names: of the plan's columns. as_of: first time readable;
        default the newest time that all its inputs have sealed. Whoever gives up waiting drops it. Raises
        Refusal (`invalid-plan`, `unknown-shard`, ...).
        """
        return Index(self, await self.run(self.dataflows.create_index(on, key, names, id, as_of, schedule)))

    async def create_materialized_view(
        self,
        on: str | Plan | Handle,
        shard: str,
        key: Sequence[str | int] = (),
        *,
        names: Sequence[str] | None = None,
        not_null: Sequence[str] = (),
        id: GlobalId | None = None,
        as_of: int | None = None,
        writes: bool = True,
    ) -> View:
        """Keep a collection (as `create_index` takes it) up in `shard`, which is made if it is not there.

        key: what peeks select by. not_null: columns that the shard declares not null; a row with NULL there
        is an error in data. as_of: default where the shard ends, so that what it has stays and is gone on
        with, or else the newest time that all inputs have sealed. writes: without it nothing is written
        before `allow_writes`. Raises Refusal (`schema-mismatch`, `invalid-plan`, ...).
        """
        made = await self.run(
            create_view(
                self.core,
                self.dataflows,
                self._shards,
                on,
                shard,
                key=key,
                names=names,
                not_null=not_null,
                id=id,
                as_of=as_of,
                writes=writes,
            )
        )
        return View(self, made)

    async def allow_writes(self, view: Handle) -> None:
        """Let a materialized view be written, for good."""
        await self.run(allow_writes(self.core, standing_of(view)))

    async def query(
        self,
        on: str | Plan | Handle,
        *,
        at: At = "latest",
        names: Sequence[str] | None = None,
        timeout_s: float | None = DEADLINE_S,
    ) -> Answer:
        """The rows of a plan over indexes and shards (or its text), computed once, by the runtime for reads
        if there is one. at: as `peek` takes it; `latest` is the newest time that all of them have sealed, of
        indexes as far as was heard. Raises Refusal as `create_index`, and as `peek`; TooStale.
        """
        return await self.run(modes.query(self.dataflows, on, at, names, timeout_s))

    def subscribe(
        self,
        on: str | Plan | Handle,
        *,
        as_of: int | None = None,
        up_to: int | None = None,
        snapshot: bool = True,
        names: Sequence[str] | None = None,
    ) -> Opening[Subscription]:
        """The changes of an index, a shard (by name) or a plan (or its text), from `as_of` on (default: the
        newest time that all its inputs have sealed). To be awaited, or entered by `async with`, which ends
        it.

        snapshot: first what is there at `as_of`; without it only what comes after. up_to: the first time
        that is not told. Raises Refusal as `create_index`.

        >>> async def main():
        ...     told = []
        ...     async with Client.connect(replica) as client:
        ...         await client.create_shard("trips", {"to": "text"})
        ...         await client.write("trips", [("Oslo",)], at=0)
        ...         async with client.subscribe("trips", as_of=0, up_to=2) as changes:
        ...             await client.write("trips", [("Oslo",)], at=1, diff=-1)
        ...             async for batch in changes:
        ...                 told += batch.changes.rows()
        ...     return told
        >>> asyncio.run(main())
        [(('Oslo',), 0, 1), (('Oslo',), 1, -1)]
        """

        async def subscribed() -> Subscription:
            feed = await self.run(self.dataflows.subscribe(on, as_of, up_to, snapshot, names))
            return Subscription(self, feed)

        return Opening(subscribed)

    async def copy_to(
        self,
        on: str | Plan | Handle,
        to: str | Path,
        *,
        format: Literal["", "parquet", "csv"] = "",
        as_of: int | None = None,
        names: Sequence[str] | None = None,
        timeout_s: float | None = DEADLINE_S,
    ) -> int:
        """Have the replica write an index, a shard (by name) or a plan (or its text), as it is at `as_of`
        (default: the newest time that all its inputs have sealed), to a file. Returns how many rows.

        to: a path on the replica's machine, which begins in the current directory of this process if not
        with a /, or a URI (`s3://..`). format: by default as the name ends. The file is there whole, in place
        of what was there, or not at all. Raises Refusal as `create_index`; CopyFailed; TimeoutError, the copy
        then being dropped.
        """
        return await self.run(
            copies.copy_to(self.core, self.dataflows, on, to, format, as_of, names, timeout_s)
        )

    async def forget(self, feed: Feed) -> None:
        """End a subscription; `Subscription.close` calls this."""
        self._wire.require_loop()
        self.core.close_feed(feed)
        self._wire.flush()
        self._wire.flow()

    async def schedule(self, index: Handle) -> None:
        """Let a dataflow that was created with `schedule=False` run."""
        await self.run(self.dataflows.schedule(standing_of(index)))

    async def allow_compaction(self, index: Handle, since: int) -> None:
        """Promise that `index` is not read before `since` any more; reads below it are refused."""
        self._wire.require_loop()
        self.dataflows.allow_compaction(standing_of(index), since)
        await self._flush()

    async def drop(self, index: Handle) -> None:
        """End a dataflow; what waits for it is answered `dropped`."""
        self._wire.require_loop()
        self.dataflows.drop(standing_of(index))
        await self._flush()

    async def update_configuration(self, **settings: bool | int | float | str) -> None:
        """Change settings, for everything at once. Raises Refusal(`unknown-setting`)."""
        self._wire.require_loop()
        said = self.core.say(command.UpdateConfiguration(0, config=settings), judged=True)
        await self.run(self.core.accepted([said]))

    def frontier(self, id: GlobalId) -> WireFrontier | None:
        """The write frontier last reported: `(t,)`, `()` when closed, None before the first report."""
        return self.core.frontier(id)

    def status(self, id: GlobalId) -> Status | None:
        """How far `id` is on its way to its `as_of`, as last heard: `created`, `scheduled`, `hydrating`,
        `hydrated`, `stalled` or `errored`. None before that, and of what another session created.
        """
        return self.core.statuses.get(id)

    async def wait_hydrated(self, id: GlobalId, timeout_s: float | None = DEADLINE_S) -> Status:
        """Wait until all of `id` at its `as_of` is computed. Raises Refusal, as its status says, if it ended
        in an error; TimeoutError with the status it is in.
        """
        return await self.run(peeks.wait_hydrated(self.core, id, timeout_s))

    async def wait_frontier(self, id: GlobalId, time: int, timeout_s: float | None = DEADLINE_S) -> None:
        """Wait until the write frontier of `id` is at or beyond `time`. Raises TimeoutError."""
        await self.run(peeks.wait_frontier(self.core, id, time, timeout_s))

    async def index(self, id: GlobalId) -> Index:
        """A handle on an index: one that we created, or by its page in this machine's shared memory.

        Raises PublicationClosed if it is not there. A view has no such page: see `view`.
        """
        return Index(self, await self.run(self.dataflows.find(id, self._instance)))

    async def view(self, id: GlobalId, shard: str, key: Sequence[str | int] = ()) -> View:
        """A handle on a materialized view: one that we created, or another's, which is in `shard` and can be
        read by anybody. key: what its creator said it is, for `keys` of peeks.

        Raises Refusal(`unknown-shard`, `invalid-plan`); LocalProtocolError if the client was not told where
        shards are. Whether there is such a view the first peek tells.
        """
        return View(self, await self.run(self.dataflows.find_view(id, shard, key)))

    async def relation(self, name: str) -> Index:
        """What the replica says of itself, as an index to peek or subscribe to: `hydration`, `peeks_active`;
        `clusterd introspection` lists them. Its times are milliseconds since 1970, and what is older than
        some seconds is gone; so subscribe with a fresh handle.

        Raises ValueError for a name there is not; PeekFailed(`unknown-id`) if the replica was started
        without introspection.
        """
        return Index(self, await self.run(self.dataflows.relation(name)))

    # -- reads

    async def peek(
        self, index: Handle, *, timeout_s: float | None = DEADLINE_S, **options: Unpack[PeekOptions]
    ) -> Answer:
        """The rows of an index; `at`, `keys`, `where`, `order_by`, `limit`, `offset`, `select` as
        PeekOptions says. The answer has them as rows, dicts, numpy, Arrow or pandas.

        Several tasks may have peeks under way. One whose task gives up, by `timeout_s`, `asyncio.timeout`
        or cancellation, is canceled. Raises TypeError, ValueError, Refusal(`invalid-plan`) for arguments
        that cannot be meant; PeekFailed with the code of the answer; TimeoutError.

        >>> async def main():
        ...     async with Client.connect(replica) as client:
        ...         await client.create_shard("hills", {"name": "text", "height": "bigint"})
        ...         hills = await client.create_index("hills", key=["name"])
        ...         await client.write("hills", [("Ben", 983), ("Arthur", 251)], at=0)
        ...         low, all = await asyncio.gather(
        ...             hills.peek(where=["#1 < 500"], select=["name"], at=0), hills.peek(at="latest")
        ...         )
        ...         return low.rows(), all.to_arrow().num_rows, all["height"].tolist(), all.time
        >>> asyncio.run(main())
        ([('Arthur',)], 2, [251, 983], 0)
        """
        return await self.run(modes.read(self.core, self.dataflows, standing_of(index), timeout_s, options))

    async def start_peek(self, index: Handle, **options: Unpack[PeekOptions]) -> str:
        """Ask for the rows of an index, as `peek` does. Returns the uuid for `await_peek` and `cancel_peek`.

        Raises TypeError, ValueError, Refusal(`invalid-plan`) for arguments that cannot be meant.
        """
        self._wire.require_loop()
        uuid = peeks.start_peek(self.core, standing_of(index), **options)
        await self._flush()
        return uuid

    async def await_peek(self, uuid: str, timeout_s: float | None = DEADLINE_S) -> Answer:
        """The answer of a started peek. Raises PeekFailed, PeekCanceled; TimeoutError, the peek then being
        canceled, as with the task; Disconnected, and `reconnect` asks again.
        """
        return await self.run(peeks.wait_answer(self.core, uuid, timeout_s))

    async def cancel_peek(self, uuid: str) -> None:
        """Ask for a started peek to be canceled; it is answered all the same, once."""
        self._wire.require_loop()
        self.core.say(command.CancelPeek(0, uuid=uuid))
        await self._flush()

    async def sql(
        self,
        query: str,
        *,
        at: At = "latest",
        names: Names | None = None,
        timeout_s: float | None = DEADLINE_S,
    ) -> SqlResult:
        """One SELECT over the indexes of this replica in this machine's shared memory, by their ids, and over
        its shards and views, all at one time; sql.py says how. at: as `peek` takes it, for all of them.
        names: what tables stand for, beside that: `{"fruit": index}`. timeout_s: for what `at` waits for.

        Raises SqlFailed as DuckDB says; NotInstalled without duckdb; TooStale; TimeoutError; DataError,
        NotReadable, ..

        Queries of one client run one after the other; one whose task is canceled is stopped.
        """
        self._require_open()
        async with self._sql_turn:
            if self._sql is None:
                self._sql = SqlSession(self._instance, self._shards.location)
            return await self.run(sql(self.core, self.dataflows, self._sql, query, at, names, timeout_s))

    def attach(self, index: Handle) -> Attached:
        """The index in this machine's shared memory; reads from it make no call into the daemon."""
        return attach(index.id, self._instance)


async def _in(files: Executor, do: Callable[[], T]) -> T:
    """What `do` returns, which may block on files."""
    return await asyncio.get_running_loop().run_in_executor(files, do)
