"""Client: one session with a replica, as its controller or beside it; see the package's head.

Right in what a session must know: a command's success is silent, so creation ends with a Sync, and the first
refusal among the commands before it is raised. Frontiers that are not asked for are taken in by whatever call
reads next, so that waiting for one thing never loses another.

What was said is kept as a reduced history (controller_proto.history), so that `reconnect` can say it again.

Does not: run threads, reconnect by itself (one that was fenced must not).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import ENOENT
from pathlib import Path
from time import monotonic, time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex
from uuid import uuid4

import msgspec

from clusterd.client.answer import Answer, PeekCanceled, PeekFailed, schema_of
from clusterd.client.index import DEADLINE_S, Index
from clusterd.client.subscription import Subscription, SubscriptionEnded
from clusterd.client.values import key_rows, wire_rows
from clusterd.convert import updates_from_rows, wire_schema
from clusterd.storage.store import Store
from controller_proto import command, response
from controller_proto.client import WireClient
from controller_proto.codec import encode_body
from controller_proto.dataflow import (
    Build,
    DataflowBody,
    DataflowHeader,
    Export,
    IndexImport,
    SourceImport,
    WireFrontier,
)
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from controller_proto.expr import Expr
from controller_proto.history import History
from controller_proto.ids import GlobalId, parse_id
from controller_proto.parse_expr import parse_expr
from controller_proto.parse_plan import parse_plan
from controller_proto.plan import Get, OrderBy, Plan
from controller_proto.schema import Row, Schema
from controller_proto.typing_rules import plan_schema
from controller_proto.validate import validate_peek
from shm_arrangements.attach import Attached, attach
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import list_instances

if TYPE_CHECKING:
    from clusterd.launcher import Replica

__all__ = ["Client"]

_GET = re.compile(r"^(\s*Get\s+)(\S+)", re.MULTILINE)
_ID = re.compile(r"[ustl]?[0-9]+", re.ASCII)
_LAST = (1 << 64) - 1


class _Asked(NamedTuple):
    """A peek that was sent: `schema` is that of the rows it brings."""

    of: Index
    at: int | None
    schema: Schema
    seq: int = 0


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
        self._epoch = epoch
        self._history = History()
        self._store = store
        self._instance = instance
        self._sources: dict[str, GlobalId] = {}
        self._schemas: dict[GlobalId, Schema] = {}
        self._indexes: dict[GlobalId, Index] = {}  # that we created
        self._found: dict[GlobalId, Index] = {}  # that others did
        self._frontiers: dict[GlobalId, response.Frontiers] = {}
        self._peeks: dict[str, _Asked] = {}  # sent and not awaited
        self._answers: dict[str, response.PeekResponse] = {}
        self._refused: dict[int, response.Refused] = {}
        self._subscriptions: dict[GlobalId, Subscription] = {}
        self._next = {"u": 1, "t": 1}

    # -- the session ----------------------------------------------------------------------------------------

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
        """
        if not isinstance(where, str):
            instance, data_dir = where.instance, data_dir if data_dir is not None else where.data_dir
            config = {**where.config, **(config or {})}
            where = where.address
        wire = WireClient.connect(where, timeout_s=timeout_s)
        try:
            store = None
            if data_dir is not None:
                store = _store_at(Path(data_dir))
            if instance is None:
                instance = _instance_of(wire.peer_pid)
            if not reader and epoch is None:
                epoch = time_ns() // 1000
            client = cls(wire, store, instance, address=where, epoch=None if reader else epoch)
            client._history.sent(command.CreateInstance(0, config=dict(config or {})))
            client._begin(timeout_s)
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
        for subscription in list(self._subscriptions.values()):
            subscription.end(SubscriptionEnded("disconnected", "the connection was lost", subscription.upper))
            self._history.sent(command.AllowCompaction(0, subscription.id, ()))
        self._subscriptions.clear()
        self._wire.close()
        self._wire = WireClient.connect(self._address, timeout_s=timeout_s)
        self._instance = _instance_of(self._wire.peer_pid) or self._instance  # it may have started anew
        self._frontiers.clear()
        self._refused.clear()
        if self._epoch is not None:
            self._epoch += 1
        self._begin(timeout_s)

    def _begin(self, timeout_s: float) -> None:
        """Say hello, and what the history has."""
        history, self._history = self._history, History()
        for uuid in self._peeks.keys() - history.open_peeks - self._answers.keys():
            self._answers[uuid] = response.PeekResponse(uuid, response.PeekCanceled())  # as was asked
        nonce = uuid4().hex
        said = history.commands()
        if self._epoch is None:
            sent = [self._wire.hello(nonce, kind="reader")]
            said = [each for each in said if isinstance(each, command.Peek)]
        else:
            sent = [self._wire.hello(nonce, epoch=self._epoch)]
        try:
            seqs = [self._send(each) for each in said]
            # A peek that is refused is answered so, as always.
            sent += [seq for seq, each in zip(seqs, said, strict=True) if not isinstance(each, command.Peek)]
            self._accepted(sent, timeout_s)
        except BaseException as error:
            self._history = history
            if isinstance(error, Disconnected) and error.reason == "fenced":
                message = error.message.removeprefix(f"{error.reason}: ")
                raise Refusal(error.reason, message, error.hint) from error  # the close came first
            raise

    def _send(self, said: command.Command) -> int:
        seq = self._wire.send(said)
        self._history.sent(msgspec.structs.replace(said, seq=seq))
        if isinstance(said, command.Peek):
            self._peeks[said.uuid] = self._peeks[said.uuid]._replace(seq=seq)
        return seq

    def close(self) -> None:
        """Leave. What was created runs on until another controller comes."""
        self._wire.close()
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        data_dir = None if self._store is None else str(self._store.data_dir)
        kind = "reader" if self._epoch is None else "controller"
        return f"Client({kind} at {self._address}, instance={self._instance}, data_dir={data_dir})"

    def fileno(self) -> int:
        """Readable when there is something to `pump`."""
        return self._wire.fileno()

    def pump(self, timeout_s: float | None = 0.0) -> bool:
        """Take in what has arrived; wait for something up to `timeout_s` (None: as long as it takes).
        Returns whether there was anything.
        """
        got = False
        while (said := self._wire.recv(0.0 if got else timeout_s)) is not None:
            got = True
            self._history.heard(said)
            if isinstance(said, response.Frontiers):
                self._note(said)
            elif isinstance(said, response.PeekResponse):
                self._answers[said.uuid] = said
            elif isinstance(said, response.SubscribeResponse):
                if said.id in self._subscriptions:
                    self._subscriptions[said.id].take(said)
            elif isinstance(said, response.Refused):
                self._refused[said.seq] = said
                for uuid in [uuid for uuid, asked in self._peeks.items() if asked.seq == said.seq]:
                    error = response.PeekError(said.code, said.message, said.hint)
                    self._answers[uuid] = response.PeekResponse(uuid, error)
        return got

    def _note(self, said: response.Frontiers) -> None:
        known = self._frontiers.get(said.id)
        if known is not None:
            said = response.Frontiers(
                said.id,
                known.write if said.write is None else said.write,
                known.input if said.input is None else said.input,
                known.output if said.output is None else said.output,
            )
        self._frontiers[said.id] = said

    def _accepted(self, sent: Iterable[int], timeout_s: float = DEADLINE_S) -> None:
        """Wait until the commands were validated; raise the first refusal among them."""
        synced = self._wire.sync(timeout_s)
        self.pump()
        self._history.heard(synced)
        for seq in sent:
            refused = self._refused.pop(seq, None)
            if refused is not None:
                raise Refusal(refused.code, refused.message, refused.hint)

    # -- shards ---------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The shards. Raises LocalProtocolError if the client was not told where they are."""
        if self._store is None:
            raise LocalProtocolError(
                "unknown-shard", "the client was not told where the shards are: connect with data_dir=DIR"
            )
        return self._store

    def create_shard(self, name: str, columns: Schema | Mapping[str, str]) -> None:
        """Make a shard, if it is not there; columns as `schema_of` takes them. Raises
        Refusal(`schema-mismatch`).
        """
        self.store.create_shard(name, schema_of(columns))

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
        at = _time(at)
        shard = self.store.shard(name)
        upper = shard.upper
        if upper.is_empty:
            raise Refusal("upper-mismatch", f"shard {name!r} has ended")
        time = upper.time if at is None else at
        if time < upper.time:
            hint = f"write at {upper.time} or later; diff=-1 retracts what was written before"
            raise Refusal("upper-mismatch", f"time {time} of shard {name!r} is sealed", hint)
        names = [c.name for c in shard.schema.columns]
        plain = wire_rows(shard.schema.columns, [_plain(row, names) for row in rows])
        shard.append(updates_from_rows(shard.schema, plain, time, diff), upper, Frontier.at(time + 1))
        return time

    def advance(self, name: str, upper: int | None) -> None:
        """Seal a shard up to `upper` without writing; None ends it."""
        shard = self.store.shard(name)
        new = Frontier.empty() if upper is None else Frontier.at(upper)
        shard.append(updates_from_rows(shard.schema, [], 0), shard.upper, new)

    # -- dataflows ------------------------------------------------------------------------------------------

    def source(self, name: str) -> Get:
        """A shard as the input of a plan. Raises Refusal(`unknown-shard`)."""
        if name not in self._sources:
            schema = self.store.shard(name).schema
            id = self._fresh("u")
            self._sources[name] = id
            self._schemas[id] = schema
        return Get(self._sources[name])

    def plan(self, text: str) -> Plan:
        """A plan from the script language, in which `Get` may also name a shard.

        Raises LocalProtocolError naming the line, Refusal(`unknown-shard`).
        """

        def by_id(match: re.Match[str]) -> str:
            return match[1] + (match[2] if _ID.fullmatch(match[2]) else self.source(match[2]).id)

        return parse_plan(_GET.sub(by_id, textwrap.dedent(text).strip()).splitlines())

    def create_index(
        self,
        on: str | Plan | Index,
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
        _require_list("key", key)
        _require_list("names", names)
        on = self._input(on)
        index_id = parse_id(id) if id is not None else self._fresh("u")
        return self._create(on, key, names, index_id, _time(as_of, "as_of"), until=None, schedule=schedule)

    def query(
        self, on: str | Plan | Index, *, at: int | None = None, names: Sequence[str] | None = None
    ) -> Answer:
        """The rows of a plan over indexes (or its text), computed once, by the runtime for reads if there is
        one. at: default the newest time that all of them have sealed. Raises Refusal as `create_index`.
        """
        _require_list("names", names)
        plan, at = self._input(on), _time(at)
        if at is None:
            at = self._newest((), [self._indexes[id] for id in _gets(plan) if id in self._indexes])
        index = self._create(plan, (), names, self._fresh("t"), at, until=at + 1, schedule=True)
        try:
            return index.peek(at=at)
        finally:
            index.drop()

    def subscribe(
        self,
        on: str | Plan | Index,
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
        """
        _require_list("names", names)
        on = self._input(on)
        id = self._fresh("t")

        def export(on_id: GlobalId, schema: Schema) -> Export:
            return Export(id, "subscribe", on_id, schema, (), snapshot, _time(up_to, "up_to"))

        header, body = self._dataflow(on, names, _time(as_of, "as_of"), None, export)
        subscription = self._subscriptions[id] = Subscription(self, header.exports[0])
        try:
            self._create_dataflow(header, body, schedule=True)
        except Refusal:
            del self._subscriptions[id]
            raise
        return subscription

    def _input(self, on: str | Plan | Index) -> Plan:
        """What a dataflow is made on, as a plan. Raises TypeError."""
        if isinstance(on, Index):
            return on.get
        if isinstance(on, str):
            return self.plan(on) if " " in on.strip() else self.source(on)
        if not isinstance(on, msgspec.Struct):
            raise TypeError(f"{on!r} is no index, plan, text of one or name of a shard")
        return on

    def forget(self, subscription: Subscription) -> None:
        """End a subscription; `Subscription.close` calls this."""
        if self._subscriptions.pop(subscription.id, None) is not None:
            self._send(command.AllowCompaction(0, subscription.id, ()))

    def _create(
        self,
        plan: Plan,
        key: Sequence[str | int],
        names: Sequence[str] | None,
        id: GlobalId,
        as_of: int | None,
        *,
        until: int | None,
        schedule: bool,
    ) -> Index:
        def export(on: GlobalId, schema: Schema) -> Export:
            return Export(id, "index", on, schema, tuple(_position(schema, column) for column in key))

        header, body = self._dataflow(plan, names, as_of, until, export)
        self._create_dataflow(header, body, schedule=schedule)
        index = Index(self, header.exports[0], header.as_of)
        self._indexes[id] = index
        return index

    def _dataflow(
        self,
        plan: Plan,
        names: Sequence[str] | None,
        as_of: int | None,
        until: int | None,
        export: Callable[[GlobalId, Schema], Export],
    ) -> tuple[DataflowHeader, DataflowBody]:
        """A dataflow of one export, which `export` makes of the id of what it exports, and its schema."""
        used = _gets(plan)
        sources = [(name, source) for name, source in self._sources.items() if source in used]
        known = {**self._found, **self._indexes}
        indexes = [known[each] for each in used if each in known]
        readable = {source: self._schemas[source] for _, source in sources}
        readable.update({index.id: index.schema for index in indexes})
        schema = _renamed(plan_schema(plan, readable), names)
        builds: tuple[Build, ...] = ()
        if isinstance(plan, Get) and not sources:
            on = plan.id
        else:
            # Also for a bare source: an import of an index on it stands for it, and a plan may want both.
            on = self._fresh("u")
            builds = (Build(on, plan),)
        made = export(on, schema)
        if as_of is None:
            as_of = self._newest([name for name, _ in sources], indexes)
        header = DataflowHeader(
            name=made.id,
            as_of=as_of,
            until=until,
            source_imports=tuple(
                SourceImport(source, name, self._schemas[source], self.store.shard(name).upper.to_wire())
                for name, source in sources
            ),
            index_imports=tuple(IndexImport(index.id) for index in indexes),
            exports=(made,),
        )
        return header, DataflowBody(builds)

    def _create_dataflow(self, header: DataflowHeader, body: DataflowBody, *, schedule: bool) -> None:
        sent = [self._send(command.CreateDataflow(0, header, encode_body(body)))]
        if schedule:
            sent.append(self._send(command.Schedule(0, header.exports[0].id)))
        self._accepted(sent)

    def _newest(self, shards: Sequence[str], indexes: Sequence[Index]) -> int:
        """The newest time that all of these have sealed, as far as we know; else the first readable one."""
        states = [self.store.shard(name) for name in shards]
        uppers = [shard.upper.to_wire() for shard in states]
        uppers += [(0,) if index.frontier is None else index.frontier for index in indexes]
        floors = [shard.since.time for shard in states if not shard.since.is_empty]
        floor = max([*floors, *(index.since for index in indexes)], default=0)
        return max(floor, min((upper[0] - 1 for upper in uppers if upper), default=floor))

    def schedule(self, index: Index) -> None:
        """Let a dataflow that was created with `schedule=False` run."""
        self._accepted([self._send(command.Schedule(0, index.id))])

    def allow_compaction(self, index: Index, since: int) -> None:
        """Promise that `index` is not read before `since` any more; reads below it are refused."""
        since = _time(since, "since") or 0
        index.since = max(index.since, since)
        self._send(command.AllowCompaction(0, index.id, (since,)))

    def drop(self, index: Index) -> None:
        """End a dataflow; what waits for it is answered `dropped`."""
        self._indexes.pop(index.id, None)
        self._send(command.AllowCompaction(0, index.id, ()))

    def update_configuration(self, **settings: bool | int | float | str) -> None:
        """Change settings, for everything at once. Raises Refusal(`unknown-setting`)."""
        self._accepted([self._send(command.UpdateConfiguration(0, config=settings))])

    def frontier(self, id: GlobalId) -> WireFrontier | None:
        """The write frontier last reported: `(t,)`, `()` when closed, None before the first report."""
        self.pump()
        known = self._frontiers.get(id)
        return None if known is None else known.write

    def wait_frontier(self, id: GlobalId, time: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait until the write frontier of `id` is at or beyond `time`. Raises TimeoutError."""
        deadline = monotonic() + timeout_s
        while True:
            found = self.frontier(id)
            if found is not None and (found == () or found[0] >= time):
                return
            if not self.pump(max(0.0, deadline - monotonic())):
                raise TimeoutError(self._late(id, max(0, time - 1), timeout_s))

    def index(self, id: GlobalId) -> Index:
        """A handle on an index: one that we created, or by its page in this machine's shared memory.

        Raises PublicationClosed if it is not there.
        """
        id = parse_id(id)
        if id in self._indexes:
            return self._indexes[id]
        with attach(id, self._instance) as attached:
            schema, since = attached.schema, attached.since
        export = Export(id, "index", id, wire_schema(schema.columns), schema.key)
        found = self._found[id] = Index(self, export, 0 if since.is_empty else since.time)
        return found

    # -- reads ----------------------------------------------------------------------------------------------

    def peek(
        self,
        index: Index,
        *,
        at: int | None = None,
        keys: Sequence[Any] | None = None,
        where: Sequence[Expr | str] = (),
        order_by: Sequence[str | OrderBy] = (),
        limit: int | None = None,
        offset: int = 0,
        select: Sequence[str] | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> Answer:
        """The rows of an index; arguments as for `start_peek`.

        Raises PeekFailed with the code of the answer; TimeoutError, the peek then being canceled.
        """
        uuid = self.start_peek(
            index,
            at=at,
            keys=keys,
            where=where,
            order_by=order_by,
            limit=limit,
            offset=offset,
            select=select,
        )
        return self.await_peek(uuid, timeout_s)

    def start_peek(
        self,
        index: Index,
        *,
        at: int | None = None,
        keys: Sequence[Any] | None = None,
        where: Sequence[Expr | str] = (),
        order_by: Sequence[str | OrderBy] = (),
        limit: int | None = None,
        offset: int = 0,
        select: Sequence[str] | None = None,
    ) -> str:
        """Ask for the rows of an index at time `at` (None: the newest sealed); answered when that is sealed.

        keys: values (or tuples, for a key of several columns) of the index's key; None is all rows. where:
        predicates, as expressions or their text (`#1 > 5`). order_by: names, or OrderBy; without, rows come
        sorted by value. select: columns to return. Returns the uuid for `await_peek` and `cancel_peek`.
        Raises TypeError, ValueError, Refusal(`invalid-plan`) for arguments that cannot be meant.
        """
        at = _time(at)
        for name, given in (("keys", keys), ("where", where), ("order_by", order_by), ("select", select)):
            _require_list(name, given)
        schema = index.schema
        finishing = command.Finishing(
            predicates=tuple(parse_expr(each) if isinstance(each, str) else each for each in where),
            order_by=tuple(
                each if isinstance(each, OrderBy) else OrderBy(_position(schema, each)) for each in order_by
            ),
            limit=limit,
            offset=offset,
            projection=None if select is None else tuple(_position(schema, name) for name in select),
        )
        rows = None if keys is None else key_rows([schema.columns[i] for i in index.key], keys)
        uuid = uuid4().hex
        peek = command.Peek(0, uuid=uuid, id=index.id, time=at, keys=rows, finishing=finishing)
        self._peeks[uuid] = _Asked(index, at, validate_peek(peek, index.export))
        self._send(peek)
        return uuid

    def await_peek(self, uuid: str, timeout_s: float = DEADLINE_S) -> Answer:
        """The answer of a started peek. Raises PeekFailed, PeekCanceled, TimeoutError."""
        deadline = monotonic() + timeout_s
        while uuid not in self._answers:
            if not self.pump(max(0.0, deadline - monotonic())):
                self._send(command.CancelPeek(0, uuid=uuid))
                asked = self._peeks[uuid]
                raise TimeoutError(self._late(asked.of.id, asked.at, timeout_s, asked.of.since))
        answer = self._answers.pop(uuid)
        schema = self._peeks.pop(uuid).schema
        match answer.result:
            case response.PeekRows() as rows:
                return Answer(schema, rows, answer.time, answer.served_by)
            case response.PeekError(code, message, hint):
                raise PeekFailed(code, message, hint)
            case _:
                raise PeekCanceled(uuid)

    def cancel_peek(self, uuid: str) -> None:
        """Ask for a started peek to be canceled; it is answered all the same, once."""
        self._send(command.CancelPeek(0, uuid=uuid))

    def attach(self, index: Index) -> Attached:
        """The index in this machine's shared memory; reads from it make no call into the daemon."""
        return attach(index.id, self._instance)

    def _late(self, id: GlobalId, at: int | None, timeout_s: float, since: int = 0) -> str:
        """Why `id` is not there at `at` yet, as far as we were told."""
        known = self._frontiers.get(id)
        found = None if known is None else known.write
        asked = f"{id} at {'newest' if at is None else at}"
        after = f"after {timeout_s:g} s"
        if found is not None and (found == () or found[0] > (since if at is None else at)):
            return f"{asked}: sealed (frontier {_braced(found)}), but not answered {after}"
        hint = "write to or advance its shards, or schedule it"
        if found is None:
            return f"{asked}: no frontier was heard {after}; {hint}"
        what = "nothing is sealed yet" if found[0] <= since else "that time is not sealed yet"
        return f"{asked}: {what} (frontier {_braced(found)}) {after}; {hint}"

    def _fresh(self, kind: str) -> GlobalId:
        number = self._next[kind]
        self._next[kind] = number + 1
        return f"{kind}{number}"


def _gets(plan: object) -> list[GlobalId]:
    """The ids that a plan names, each once, in order."""
    found: dict[GlobalId, None] = {}
    stack: list[object] = [plan]
    while stack:
        item = stack.pop()
        if isinstance(item, Get):
            found[item.id] = None
        elif isinstance(item, msgspec.Struct):
            stack += [getattr(item, field) for field in reversed(item.__struct_fields__)]
        elif isinstance(item, tuple):
            stack += reversed(item)
    return list(found)


def _braced(frontier: WireFrontier) -> str:
    return f"{{{', '.join(map(str, frontier))}}}"


def _time(at: object, name: str = "at") -> int | None:
    """`at` as a time. Raises TypeError, ValueError."""
    if at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, SupportsIndex):
        raise TypeError(f"{name} must be an int time or None, not {at!r}")
    if at.__index__() < 0:
        raise ValueError(f"{name} must not be negative, it is {at!r}")
    if at.__index__() > _LAST:
        raise ValueError(f"{name} must not be beyond 2^64 - 1, it is {at!r}")
    return at.__index__()


def _plain(row: Sequence[Any] | Mapping[str, Any], names: Sequence[str]) -> Row:
    """A row to write as a tuple. Raises TypeError."""
    if isinstance(row, tuple | list):
        return tuple(row)
    if isinstance(row, Mapping):
        return tuple(row[name] for name in names)
    raise TypeError(f"row {row!r} is no tuple or mapping: write [('pear', 5)] or [{{'name': 'pear', ...}}]")


def _require_list(name: str, given: object) -> None:
    """A text is a sequence too, of letters, and never meant as one. Raises TypeError."""
    if isinstance(given, str | bytes):
        raise TypeError(f"{name} must be a list: {name}=[{given!r}]")


def _store_at(data_dir: Path) -> Store:
    """The shards of a replica that is there. Raises FileNotFoundError, DataDirMismatch."""
    if not data_dir.exists():
        raise FileNotFoundError(ENOENT, "no such data_dir; give the replica's --data-dir", str(data_dir))
    return Store.open(data_dir, create=False)


def _instance_of(pid: int | None) -> str | None:
    """The living instance whose supervisor is `pid`, if there is exactly one."""
    if pid is None:
        return None
    tokens = [each.token for each in list_instances() if each.alive and each.pid == pid]
    return tokens[0] if len(tokens) == 1 else None


def _renamed(schema: Schema, names: Sequence[str] | None) -> Schema:
    if names is None:
        return schema
    if len(names) != schema.arity:
        raise Refusal("invalid-plan", f"{len(names)} names for {schema.arity} columns")
    pairs = zip(names, schema.columns, strict=True)
    return Schema(tuple(msgspec.structs.replace(column, name=name) for name, column in pairs))


def _position(schema: Schema, column: str | int) -> int:
    names = [c.name for c in schema.columns]
    if isinstance(column, int):
        return column
    if column not in names:
        raise Refusal("invalid-plan", f"no column {column!r}", f"there are: {', '.join(names)}")
    return names.index(column)
