"""Feed: from a publication into shards, from the first snapshot until a signal or an error ends it.

A session connects twice: one connection streams, the other one asks the catalog and holds an advisory lock of
the slot's name, so that a second process of the same slot waits shortly, then says who is there. A lost
connection is a new session, after a while that doubles; everything is asked anew, and the shards' uppers say
where to go on. So is a stream that has what no shard can take, if a new snapshot is allowed: it begins behind
that. A server that says nothing is asked to; one that does not answer is a lost connection.

What is complete is appended as soon as nothing more lies ready, so under load appends are larger, not later.
Only what is in all shards is confirmed to the server. When nothing happens, its keepalives say up to where,
and the shards are sealed there.

Does not: print, read the environment (cli.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from clusterd.events import emit
from clusterd.ingest.binding import Binding, Found, Resume, check_relation, plan_start
from clusterd.ingest.changes import Transactions
from clusterd.ingest.connection import (
    ANSWER_TIMEOUT_S,
    Connection,
    ConnectionLost,
    ServerError,
    quote_literal,
    quote_name,
)
from clusterd.ingest.errors import IngestError
from clusterd.ingest.events import FeedStopped, Retrying, SlotLag, SnapshotBegun, Streaming
from clusterd.ingest.pgoutput import Commit, Keepalive, Relation, decode_frame, decode_message, status_update
from clusterd.ingest.shards import TableShard, append_all, find_shard, make_shard
from clusterd.ingest.snapshot import take_snapshot
from clusterd.ingest.source import (
    PublishedTable,
    lsn_text,
    published_tables,
    read_types,
    server_of,
    shard_schema,
    slot_state,
)
from clusterd.ingest.stopping import Stop, StopRequested
from clusterd.storage.store import Store
from controller_proto.suggest import did_you_mean

__all__ = ["Feed", "FeedOptions"]

_LOCK_TIMEOUT_S = 3
_SLOT_TIMEOUT_S = 90.0  # a server notices after wal_sender_timeout, 60 s, that nobody is at the other end
_MAX_SLOT_DELAY_S = 2.0
_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 10.0
_STATUS_INTERVAL_S = 10.0  # the server ends connections that are silent for wal_sender_timeout, 60 s
_LAG_INTERVAL_S = 10.0
_SEAL_INTERVAL_S = 0.1  # a seal is a transaction a shard; the WAL of other tables may grow all the time
_APPEND_INTERVAL_S = 0.5  # when there is always more at hand: the shards follow, and a restart has less to do
_APPEND_ROWS = 100_000
_APPEND_BYTES = 32 << 20
_SLOT_IN_USE = "55006"
_LOCK_NOT_AVAILABLE = "55P03"
_UNDEFINED = "42704"
_SNAPSHOT_MENDS = ("identity-not-full", "invalid-data", "schema-changed")  # a stream has it for ever
_SLOT_GONE = ("42704", "55000", "58P01")  # no such slot; invalidated; its WAL was removed


class FeedOptions(msgspec.Struct, frozen=True):
    """dsn: not for any message. shards: names by `schema.table`, for tables whose shard has another name.

    numeric_scale: digits behind the point of numerics that do not say. resnapshot: over shards that cannot go
    on, a new snapshot may be taken.
    """

    dsn: str
    publication: str
    slot: str
    shards: Mapping[str, str]
    numeric_scale: int | None
    resnapshot: bool

    def __repr__(self) -> str:
        return f"FeedOptions({self.publication!r}, {self.slot!r})"  # dsn may have a password

    def shard_of(self, table: PublishedTable) -> str:
        default = table.name if table.namespace == "public" else table.full_name
        return self.shards.get(table.full_name, default)


class Feed:
    """`run` it once."""

    def __init__(self, store: Store, options: FeedOptions, stop: Stop) -> None:
        self._store = store
        self._options = options
        self._stop = stop
        self._sealed: int | None = None
        self._delay_s = _FIRST_DELAY_S
        self._broken = ""
        self._last_pids = (0, 0)

    def run(self) -> None:
        """Feed until a signal. Raises IngestError; Refusal of the storage."""
        try:
            while True:
                try:
                    self._session()
                except ConnectionLost as error:
                    if self._sealed is None:
                        hint = "a server that is there at the start is waited for when it goes away later"
                        raise IngestError("cannot-connect", str(error), hint) from error
                    emit(Retrying(reason=str(error), delay_s=self._delay_s))
                    self._stop.wait(self._delay_s)
                    self._delay_s = min(2 * self._delay_s, _MAX_DELAY_S)
        except StopRequested:
            emit(FeedStopped(signal=self._stop.signal, sealed=self._sealed))
        except ServerError as error:
            hint = "the role needs LOGIN, REPLICATION, and SELECT on the tables"
            raise IngestError("cannot-connect", f"{error} (SQLSTATE {error.state})", hint) from error

    def _session(self) -> None:
        dsn = self._options.dsn
        with (
            Connection.open(dsn, self._stop, replication=True) as stream,
            Connection.open(dsn, self._stop) as side,
        ):
            session = _Session(self._store, self._options, self._stop, stream, side)
            session.take_over(*self._last_pids)
            self._last_pids = (stream.server_pid, side.server_pid)
            session.start(self._sealed, self._broken)
            self._delay_s, self._broken = _FIRST_DELAY_S, ""
            try:
                session.stream()
            except IngestError as error:
                if not self._options.resnapshot or error.code not in _SNAPSHOT_MENDS:
                    raise
                self._broken = error.message
            finally:
                self._sealed = session.sealed


class _Session:
    def __init__(
        self, store: Store, options: FeedOptions, stop: Stop, stream: Connection, side: Connection
    ) -> None:
        self._store = store
        self._options = options
        self._stop = stop
        self._stream = stream
        self._side = side
        self._shards: dict[int, TableShard] = {}
        self._bindings: dict[int, Binding] = {}
        self._updates = self._commits = 0  # since the last line about the lag
        self.sealed = 0

    def take_over(self, stream_pid: int, side_pid: int) -> None:
        """End what our last session has left on the server: it may not have noticed that it is over."""
        slot = quote_literal(self._options.slot)
        self._side.query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = {slot} AND active_pid = {stream_pid}"
        )
        self._side.query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks"
            f" WHERE locktype = 'advisory' AND pid = {side_pid}"
            f" AND classid::bigint << 32 | objid::bigint = {self._lock_key}"
        )

    @property
    def _lock_key(self) -> str:
        return f"hashtextextended({quote_literal(f'clusterd-ingest {self._options.slot}')}, 0)"

    def start(self, known: int | None, broken: str) -> None:
        """Bring all shards to where the stream begins; `sealed` is the least time that is sealed in all.

        known: up to where this process has sealed them before. broken: why its stream cannot be gone on with.
        """
        options, slot = self._options, self._options.slot
        server = server_of(self._stream)
        tables = {table.oid: table for table in published_tables(self._side, options.publication)}
        _check_named(self._options.shards, tables.values())
        _check_identities(tables)
        self._lock(tables, known)
        found = self._find(tables)
        plan = plan_start(
            found, server, slot, slot_state(self._side, slot), resnapshot=options.resnapshot, broken=broken
        )
        if isinstance(plan, Resume):
            for each in found:
                shard = TableShard(each.table.full_name, self._store.shard(each.shard))
                self._shards[each.table.oid] = shard
            self.sealed = plan.lsn
        else:
            emit(SnapshotBegun(slot=slot, reason=plan.reason))
            types = read_types(self._side)
            # A slot waits for the transactions there are, a COPY for rows that a filter lets through.
            for connection in (self._stream, self._side):
                connection.is_working = partial(self._is_working, connection.server_pid)
            for each in found:
                self._shards[each.table.oid] = make_shard(
                    self._store,
                    each,
                    lambda table, arity: shard_schema(
                        table, arity, types, numeric_scale=options.numeric_scale
                    ),
                )
            self.sealed = take_snapshot(
                self._stream, self._side, server, slot, self._shards, tables, drop_slot=plan.drop_slot
            )
        for each in self._find(tables):
            assert each.binding is not None
            self._bindings[each.table.oid] = each.binding
            self._shards[each.table.oid].shard.sweep()  # what this process left when it was killed

    def _is_working(self, pid: int) -> bool:
        """Whether the server has something to do for the connection, and does not wait for us; so a third
        connection tells, for one between us may be frozen.
        """
        try:
            with Connection.open(self._options.dsn, self._stop) as third:
                return bool(
                    third.query(
                        f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"
                        " AND wait_event_type IS DISTINCT FROM 'Client'"
                    )
                )
        except ConnectionLost:
            return False
        except IngestError:  # it lets nobody else in: nobody can tell
            return True

    def _find(self, tables: Mapping[int, PublishedTable]) -> list[Found]:
        named: dict[str, str] = {}
        found = []
        for table in tables.values():
            name = self._options.shard_of(table)
            if name in named:
                message = f"tables {named[name]} and {table.full_name} would both go to shard {name!r}"
                raise IngestError("bad-setup", message, f"--shard {table.full_name}=NAME")
            named[name] = table.full_name
            found.append(find_shard(self._store, table, name))
        return found

    def _lock(self, tables: Mapping[int, PublishedTable], known: int | None) -> None:
        """Become the one process of this slot."""
        self._side.query(f"SET lock_timeout = '{_LOCK_TIMEOUT_S}s'")
        try:
            self._side.query(f"SELECT pg_advisory_lock({self._lock_key})")
        except ServerError as error:
            if error.state != _LOCK_NOT_AVAILABLE:
                raise
            found = self._find(tables)
            if known is not None and all(each.upper == known + 1 for each in found):
                message = "the server has not noticed that the last connection is over"
                raise ConnectionLost(message) from error
            uppers = ", ".join(f"{each.shard!r} has upper {each.upper}" for each in found)
            raise IngestError(
                "already-running",
                f"another process feeds from slot {self._options.slot!r}: shard {uppers}",
                "it goes on; end it first if this one shall take its place",
            ) from error
        self._side.query("SET lock_timeout = 0")

    def stream(self) -> None:
        """Append what comes. Ends by an exception only."""
        self._start_stream()
        self._stream.is_working = self._side.is_working = None
        emit(
            Streaming(
                slot=self._options.slot,
                behind=self.sealed,
                shards=tuple(sorted(shard.shard.name for shard in self._shards.values())),
            )
        )
        facts = {oid: (shard.table, shard.arity, shard.upper) for oid, shard in self._shards.items()}
        transactions = Transactions(facts, self.sealed)
        wal_end = confirmed = self.sealed  # what ends at or before `wal_end` has come
        status_at = seal_at = append_at = lag_at = time.monotonic()
        answer_by: float | None = None
        while True:
            data = None if self._stop.signal else self._read()
            asked = False
            if data is not None:
                answer_by = None
                frame = decode_frame(data)
                if isinstance(frame, Keepalive):
                    asked = frame.reply
                    if not transactions.in_transaction:
                        wal_end = max(wal_end, frame.wal_end)
                else:
                    message = decode_message(frame.payload)
                    try:
                        if isinstance(message, Relation):
                            self._check_relation(message)
                        transactions.feed(message, len(data))
                    except IngestError:
                        self._append(transactions, wal_end)  # what came before is right
                        raise
                    if isinstance(message, Commit):
                        wal_end = max(wal_end, transactions.sealed)
                        self._commits += 1
            # There may be more at hand: then only what is large or old is appended, or what is asked about.
            now = time.monotonic()
            large = transactions.rows >= _APPEND_ROWS or transactions.nbytes >= _APPEND_BYTES
            old = transactions.has_changes and now >= append_at
            if data is not None and not (large or old or asked):
                continue
            if wal_end > self.sealed and (transactions.has_changes or asked or now >= seal_at):
                self._append(transactions, wal_end)
                now = time.monotonic()
                seal_at, append_at = now + _SEAL_INTERVAL_S, now + _APPEND_INTERVAL_S
            if data is None and answer_by is not None and now >= answer_by:
                raise ConnectionLost(f"the server said nothing for {ANSWER_TIMEOUT_S:g} s")
            if asked or confirmed != self.sealed or now >= status_at:
                ask = now >= status_at
                self._stream.write(status_update(self.sealed, ask=ask))
                if ask and answer_by is None:
                    answer_by = now + ANSWER_TIMEOUT_S
                confirmed, status_at = self.sealed, now + _STATUS_INTERVAL_S
            if now >= lag_at:
                if data is None and not self._commits:
                    self._tidy()
                self._tell_lag()
                lag_at = now + _LAG_INTERVAL_S
            if data is not None:
                continue
            due = min(status_at, lag_at, seal_at if wal_end > self.sealed else status_at)
            self._stream.wait_to_read(due - now)

    def _read(self) -> bytes | None:
        try:
            return self._stream.read()
        except ServerError as error:
            if error.state != _UNDEFINED:
                raise
            # As of the changes that are read, though there may be one of that name by now.
            message = f"publication {self._options.publication!r} was dropped ({error})"
            raise IngestError(
                "schema-changed", message, "once it is there, start with --resnapshot"
            ) from error

    def _append(self, transactions: Transactions, sealed: int) -> None:
        self._updates += append_all(self._shards, transactions.take(), sealed)
        self.sealed = sealed

    def _start_stream(self) -> None:
        slot, publication = (
            quote_name(self._options.slot),
            quote_literal(quote_name(self._options.publication)),
        )
        sql = (
            f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(self.sealed)}"
            f" (proto_version '1', publication_names {publication})"
        )
        delay_s = _FIRST_DELAY_S
        deadline = time.monotonic() + _SLOT_TIMEOUT_S
        while True:
            try:
                self._stream.start_stream(sql)
            except ServerError as error:
                if error.state in _SLOT_GONE:
                    raise IngestError("slot-gone", str(error), "start with --resnapshot") from error
                if error.state != _SLOT_IN_USE:
                    raise
                if time.monotonic() >= deadline:
                    hint = "whoever reads from it is no clusterd-ingest; take another --slot"
                    raise IngestError("already-running", str(error), hint) from error
                emit(Retrying(reason=str(error), delay_s=delay_s))
                self._stop.wait(delay_s)
                delay_s = min(2 * delay_s, _MAX_SLOT_DELAY_S)
            else:
                return

    def _check_relation(self, relation: Relation) -> None:
        """A table is told anew after anything that may have changed it: then the catalog is asked."""
        binding = self._bindings.get(relation.oid)
        if binding is not None:  # else it is refused as unknown
            tables = {table.oid: table for table in published_tables(self._side, self._options.publication)}
            check_relation(relation, binding, tables.get(relation.oid))

    def _tidy(self) -> None:
        """Nothing happens: merge the parts that are too large to be merged between two appends."""
        for shard in self._shards.values():
            shard.shard.merge()

    def _tell_lag(self) -> None:
        state = slot_state(self._side, self._options.slot)
        if state is not None:
            emit(
                SlotLag(
                    slot=self._options.slot,
                    sealed=self.sealed,
                    behind_bytes=max(0, state.wal_end - self.sealed),
                    retained_bytes=state.retained_bytes,
                    transactions=self._commits,
                    updates=self._updates,
                )
            )
        self._commits = self._updates = 0


def _check_identities(tables: Mapping[int, PublishedTable]) -> None:
    lacking = [table.full_name for table in tables.values() if not table.identity_full]
    if lacking:
        raise IngestError(
            "identity-not-full",
            f"these tables do not log whole old rows: {', '.join(lacking)}",
            "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in lacking),
        )


def _check_named(shards: Iterable[str], tables: Iterable[PublishedTable]) -> None:
    """A table that is named wrongly would go to a shard of its own name, unnoticed."""
    published = [table.full_name for table in tables]
    for name in shards:
        if name not in published:
            raise IngestError(
                "bad-setup",
                f"--shard names table {name!r}, which is not in the publication",
                did_you_mean(name, published),
            )
