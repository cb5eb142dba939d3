"""Client: one session with a replica, as its controller or beside it, blocking; see the package's head.

A thin shell: what a call does is an operation (operation.py) over the core; here is how it waits. Whatever
call reads takes in all that arrives, so that waiting for one thing never loses another.

Does not: run threads, reconnect by itself (one that was fenced must not).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack
from uuid import uuid4

from clusterd.client import copies, modes, peeks
from clusterd.client.answer import Answer
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.feed import Feed
from clusterd.client.handle import Handle, standing_of
from clusterd.client.index import Index
from clusterd.client.operation import DEADLINE_S, Operation, Wait, Work
from clusterd.client.peeks import At, PeekOptions
from clusterd.client.place import instance_of, open_store, place_of
from clusterd.client.shards import Shards
from clusterd.client.sql import SqlSession
from clusterd.client.sql_reads import Names, sql
from clusterd.client.sql_result import SqlResult
from clusterd.client.subscription import Subscription
from clusterd.client.view import View
from clusterd.client.views import allow_writes, create_view
from clusterd.storage.store import Store
from controller_proto import command
from controller_proto.client import WireClient
from controller_proto.dataflow import WireFrontier
from controller_proto.errors import Disconnected
from controller_proto.ids import GlobalId
from controller_proto.plan import Get, Plan
from controller_proto.response import Status
from controller_proto.schema import Schema
from shm_arrangements.attach import Attached, attach

if TYPE_CHECKING:
    from clusterd.launcher import Replica

__all__ = ["Client"]

T = TypeVar("T")


class Client:
    """One session with a replica. Not for use by two threads at once."""

    def __init__(
        self,
        wire: WireClient,
        store: Store | None,
        instance: str | None,
        *,
        address: str = "",
        epoch: int | None = None,
    ) -> None:
        """epoch: of a controller; None for a reader."""
        self._wire = wire
        self._address = address
        self._instance = instance
        self._shards = Shards(store)
        self._sql: SqlSession | None = None  # made by the first query
        self.core = Core(wire.end, epoch)
        self.dataflows = Dataflows(self.core, self._shards)

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
    ) -> Client:
        """Connect to an address (`unix:PATH`, `tcp:HOST:PORT`) or a launched replica.

        data_dir, instance: where the replica's shards are, and the token of its shared memory (of its
        READY line; over a unix socket it is found without); a launched replica knows both. A controller's
        `epoch` (default: the clock) fences those with a lower one. It starts from nothing: what earlier
        controllers created ends. Raises OSError if nobody listens, or there is no `data_dir`; Refusal as
        the replica says (`fenced`, `incompatible-config`).

        >>> with Client.connect(replica) as client:
        ...     client.create_shard("cups", {"colour": "text", "ml": "bigint"})
        ...     cups = client.create_index("cups", key=["colour"])
        ...     t = client.write("cups", [("red", 250), ("blue", 300)])
        ...     cups.peek(keys=["blue"], at=t).dicts()
        [{'colour': 'blue', 'ml': 300}]
        """
        place = place_of(where, data_dir, instance, config)
        wire = WireClient.connect(place.address, timeout_s=timeout_s)
        try:
            store = open_store(place.data_dir)
            if not reader and epoch is None:
                epoch = time_ns() // 1000
            instance = place.instance or instance_of(wire.peer_pid)
            client = cls(wire, store, instance, address=place.address, epoch=None if reader else epoch)
            client.core.create_instance(place.config)
            client.run(client.core.begin(wire.end, uuid4().hex, timeout_s))
        except BaseException:
            wire.close()
            raise
        return client

    def reconnect(self, *, timeout_s: float = 10.0) -> None:
        """Connect again after `Disconnected`, and say again all that stands: it goes on where it can.

        Indexes stay what they were, readable from what they were allowed to compact to; peeks that were not
        answered are asked again. Subscriptions have ended (`disconnected`): subscribe anew, from where they
        had come to. Raises as `connect`; Refusal(`fenced`) if another controller came since.
        """
        self.core.lose()
        self._wire.close()
        self._wire = WireClient.connect(self._address, timeout_s=timeout_s)
        self._instance = instance_of(self._wire.peer_pid) or self._instance  # it may have started anew
        self._close_sql()
        self.run(self.core.begin(self._wire.end, uuid4().hex, timeout_s))

    def close(self) -> None:
        """Leave. What was created runs on until another controller comes."""
        self._wire.close()
        self._shards.close()
        self._close_sql()

    def _close_sql(self) -> None:
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "reader" if self.core.epoch is None else "controller"
        return f"Client({kind} at {self._address}, instance={self._instance}, data_dir={self._shards})"

    def fileno(self) -> int:
        """Readable when there is something to `pump`."""
        return self._wire.fileno()

    def pump(self, timeout_s: float | None = 0.0) -> bool:
        """Take in what has arrived; wait for something up to `timeout_s` (None: as long as it takes).
        Returns whether there was anything. Raises Disconnected when there is not, and nothing can come.
        """
        got = False
        while not (got and self._wire.end.over is not None and not self._wire.end.inbox):
            said = self._wire.recv(0.0 if got else timeout_s)
            if said is None:
                break
            got = True
            self.core.hear(said)
        return got

    def run(self, operation: Operation[T]) -> T:
        """Do an operation of this session to its end, waiting for it here."""
        try:
            step = next(operation)
            while True:
                try:
                    done = self._perform(step)
                except BaseException as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(done)
        except StopIteration as end:
            self._wire.flush()
            result: T = end.value
            return result
        except BaseException:
            with suppress(Disconnected):
                self._wire.flush()  # what it said to clean up
            raise

    def _perform(self, step: Wait | Work[Any]) -> Any:
        self._wire.flush()
        if isinstance(step, Work):
            return step.do()
        deadline = None if step.timeout_s is None else monotonic() + step.timeout_s
        while not step.ready():
            if not self.pump(None if deadline is None else max(0.0, deadline - monotonic())):
                raise TimeoutError(f"no such answer within {step.timeout_s:g} s")
        return None

    # -- shards

    @property
    def store(self) -> Store:
        """The shards. Raises LocalProtocolError if the client was not told where they are."""
        return self._shards.store

    def create_shard(self, name: str, columns: Schema | Mapping[str, str]) -> None:
        """Make a shard, if it is not there; columns as `schema_of` takes them. Raises
        Refusal(`schema-mismatch`).
        """
        self._shards.create(name, columns)

    def write(
        self,
        name: str,
        rows: Sequence[Sequence[Any] | Mapping[str, Any]],
        *,
        at: int | None = None,
        diff: int = 1,
    ) -> int:
        """Append `rows` (tuples, or dicts by column) to a shard at time `at`, and seal it. Returns the time.

        rows: values as answers give them, of Python's own types (values.py), or as on the wire. at: default
        the shard's upper. diff: -1 retracts. Raises Refusal: `upper-mismatch`, `schema-mismatch`; TypeError.
        """
        return self._shards.write(name, rows, at, diff)

    def advance(self, name: str, upper: int | None) -> None:
        """Seal a shard up to `upper` without writing; None ends it."""
        self._shards.advance(name, upper)

    # -- dataflows

    def source(self, name: str) -> Get:
        """A shard as the input of a plan. Raises Refusal(`unknown-shard`)."""
        return self.run(self.dataflows.source(name))

    def plan(self, text: str) -> Plan:
        """A plan from the script language, in which `Get` may also name a shard.

        Raises LocalProtocolError naming the line, Refusal(`unknown-shard`).
        """
        return self.run(self.dataflows.plan(text))

    def create_index(
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
        default the newest time that all its inputs have sealed. Raises Refusal (`invalid-plan`,
        `unknown-shard`, ...).
        """
        self.pump()
        return Index(self, self.run(self.dataflows.create_index(on, key, names, id, as_of, schedule)))

    def create_materialized_view(
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
        self.pump()
        made = self.run(
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

    def allow_writes(self, view: Handle) -> None:
        """Let a materialized view be written, for good."""
        self.run(allow_writes(self.core, standing_of(view)))

    def query(
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
        self.pump()
        return self.run(modes.query(self.dataflows, on, at, names, timeout_s))

    def subscribe(
        self,
        on: str | Plan | Handle,
        *,
        as_of: int | None = None,
        up_to: int | None = None,
        snapshot: bool = True,
        names: Sequence[str] | None = None,
    ) -> Subscription:
        """The changes of an index, a shard (by name) or a plan (or its text), from `as_of` on (default: the
        newest time that all its inputs have sealed).

        snapshot: first what is there at `as_of`; without it only what comes after. up_to: the first time
        that is not told. Raises Refusal as `create_index`.

        >>> with Client.connect(replica) as client:
        ...     client.create_shard("moves", {"piece": "text"})
        ...     t = client.write("moves", [("rook",)])
        ...     for batch in client.subscribe("moves", as_of=t, up_to=t + 1):
        ...         print(batch.changes.rows() == [(("rook",), t, 1)])
        True
        """
        self.pump()
        return Subscription(self, self.run(self.dataflows.subscribe(on, as_of, up_to, snapshot, names)))

    def copy_to(
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
        self.pump()
        return self.run(copies.copy_to(self.core, self.dataflows, on, to, format, as_of, names, timeout_s))

    def forget(self, feed: Feed) -> None:
        """End a subscription; `Subscription.close` calls this."""
        self.core.close_feed(feed)
        self._wire.flush()

    def schedule(self, index: Handle) -> None:
        """Let a dataflow that was created with `schedule=False` run."""
        self.run(self.dataflows.schedule(standing_of(index)))

    def allow_compaction(self, index: Handle, since: int) -> None:
        """Promise that `index` is not read before `since` any more; reads below it are refused."""
        self.dataflows.allow_compaction(standing_of(index), since)
        self._wire.flush()

    def drop(self, index: Handle) -> None:
        """End a dataflow; what waits for it is answered `dropped`."""
        self.dataflows.drop(standing_of(index))
        self._wire.flush()

    def update_configuration(self, **settings: bool | int | float | str) -> None:
        """Change settings, for everything at once. Raises Refusal(`unknown-setting`)."""
        said = self.core.say(command.UpdateConfiguration(0, config=settings), judged=True)
        self.run(self.core.accepted([said]))

    def frontier(self, id: GlobalId) -> WireFrontier | None:
        """The write frontier last reported: `(t,)`, `()` when closed, None before the first report."""
        self.pump()
        return self.core.frontier(id)

    def status(self, id: GlobalId) -> Status | None:
        """How far `id` is on its way to its `as_of`, as last heard: `created`, `scheduled`, `hydrating`,
        `hydrated`, `stalled` or `errored`. None before that, and of what another session created.
        """
        self.pump()
        return self.core.statuses.get(id)

    def wait_hydrated(self, id: GlobalId, timeout_s: float | None = DEADLINE_S) -> Status:
        """Wait until all of `id` at its `as_of` is computed. Raises Refusal, as its status says, if it ended
        in an error; TimeoutError with the status it is in.
        """
        return self.run(peeks.wait_hydrated(self.core, id, timeout_s))

    def wait_frontier(self, id: GlobalId, time: int, timeout_s: float | None = DEADLINE_S) -> None:
        """Wait until the write frontier of `id` is at or beyond `time`. Raises TimeoutError."""
        self.run(peeks.wait_frontier(self.core, id, time, timeout_s))

    def index(self, id: GlobalId) -> Index:
        """A handle on an index: one that we created, or by its page in this machine's shared memory.

        Raises PublicationClosed if it is not there. A view has no such page: see `view`.
        """
        return Index(self, self.run(self.dataflows.find(id, self._instance)))

    def view(self, id: GlobalId, shard: str, key: Sequence[str | int] = ()) -> View:
        """A handle on a materialized view: one that we created, or another's, which is in `shard` and can be
        read by anybody. key: what its creator said it is, for `keys` of peeks.

        Raises Refusal(`unknown-shard`, `invalid-plan`); LocalProtocolError if the client was not told where
        shards are. Whether there is such a view the first peek tells.
        """
        return View(self, self.run(self.dataflows.find_view(id, shard, key)))

    def relation(self, name: str) -> Index:
        """What the replica says of itself, as an index to peek or subscribe to: `hydration`, `peeks_active`;
        `clusterd introspection` lists them. Its times are milliseconds since 1970, and what is older than
        some seconds is gone; so subscribe with a fresh handle.

        Raises ValueError for a name there is not; PeekFailed(`unknown-id`) if the replica was started
        without introspection.
        """
        return Index(self, self.run(self.dataflows.relation(name)))

    # -- reads

    def peek(
        self, index: Handle, *, timeout_s: float | None = DEADLINE_S, **options: Unpack[PeekOptions]
    ) -> Answer:
        """The rows of an index; `at`, `keys`, `where`, `order_by`, `limit`, `offset`, `select` as
        PeekOptions says, `at` also as modes.py does.

        Raises TypeError, ValueError, Refusal(`invalid-plan`) for arguments that cannot be meant; PeekFailed
        with the code of the answer; TimeoutError, the peek then being canceled.

        >>> with Client.connect(replica) as client:
        ...     client.create_shard("peaks", {"name": "text", "height": "bigint"})
        ...     peaks = client.create_index("peaks", key=["name"])
        ...     t = client.write("peaks", [("Ben", 983), ("Arthur", 251)])
        ...     client.peek(peaks, at=t, where=["#1 < 500"], select=["name"]).rows()
        ...     answer = peaks.peek(at="latest", order_by=["height"], limit=1)
        ...     answer.to_arrow().to_pydict(), answer["height"].tolist(), answer.time == t
        [('Arthur',)]
        ({'name': ['Arthur'], 'height': [251]}, [251], True)
        """
        return self.run(modes.read(self.core, self.dataflows, standing_of(index), timeout_s, options))

    def start_peek(self, index: Handle, **options: Unpack[PeekOptions]) -> str:
        """Ask for the rows of an index, as `peek` does. Returns the uuid for `await_peek` and `cancel_peek`.

        Raises TypeError, ValueError, Refusal(`invalid-plan`) for arguments that cannot be meant.
        """
        uuid = peeks.start_peek(self.core, standing_of(index), **options)
        self._wire.flush()
        return uuid

    def await_peek(self, uuid: str, timeout_s: float | None = DEADLINE_S) -> Answer:
        """The answer of a started peek. Raises PeekFailed, PeekCanceled; TimeoutError, the peek then being
        canceled; Disconnected, and `reconnect` asks again.
        """
        return self.run(peeks.wait_answer(self.core, uuid, timeout_s))

    def cancel_peek(self, uuid: str) -> None:
        """Ask for a started peek to be canceled; it is answered all the same, once."""
        self.core.say(command.CancelPeek(0, uuid=uuid))
        self._wire.flush()

    def sql(
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

        >>> with Client.connect(replica) as client:
        ...     client.create_shard("mugs", {"colour": "text", "ml": "bigint"})
        ...     mugs = client.create_index("mugs")
        ...     t = client.write("mugs", [("red", 250), ("red", 250), ("blue", 300)])
        ...     query = "SELECT colour, sum(ml) AS ml FROM mine GROUP BY ALL ORDER BY 1"
        ...     client.sql(query, at=t, names={"mine": mugs}).rows()
        [('blue', 300), ('red', 500)]
        """
        self.pump()
        operation = sql(self.core, self.dataflows, self._sql_session(), query, at, names, timeout_s)
        return self.run(operation)

    def _sql_session(self) -> SqlSession:
        if self._sql is None:
            self._sql = SqlSession(self._instance, self._shards.location)
        return self._sql

    def attach(self, index: Handle) -> Attached:
        """The index in this machine's shared memory; reads from it make no call into the daemon."""
        return attach(index.id, self._instance)
