"""Changes: the messages of a replication stream, put together into what is appended to each shard.

A transaction's time is where its commit record ends in the WAL. Commits are sent in the order of their
records, so times rise strictly, and being a fact of the WAL they are the same whenever it is read again. An
update is the old row once less and the new one once more, at that time; of a new row, large values that were
not sent are those of the old one. A transaction counts once its Commit is there, all of its tables at once.

A shard may be ahead of the others, if we were killed between two appends. What it has is left out, by its
upper alone.

Does not: turn values into columns (columns.py), know what a shard holds: a TRUNCATE is a mark that its
writer fills in (shards.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from clusterd.ingest.errors import IngestError
from clusterd.ingest.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Tuple,
    Unchanged,
    Update,
)

__all__ = ["Changes", "Transactions", "Values"]

Values = tuple[bytes | None, ...]
_FULL_HINT = "ALTER TABLE {0} REPLICA IDENTITY FULL; then continue with --resnapshot"


class Changes(msgspec.Struct):
    """Of one table, in order: row i comes diffs[i] times at times[i]. cleared: (i, time) if a TRUNCATE took
    away all there was before row i.
    """

    rows: list[Values] = []
    times: list[int] = []
    diffs: list[int] = []
    cleared: list[tuple[int, int]] = []


class _Table(msgspec.Struct):
    name: str
    arity: int
    upper: int


class Transactions:
    """Feed it messages; `take` what is complete. sealed: the time of the last transaction that is.

    tables: by oid, the name, how many columns the shard has, and its upper at the start. sealed: the time
    that the stream was started behind.
    """

    def __init__(self, tables: Mapping[int, tuple[str, int, int]], sealed: int) -> None:
        self._tables = {oid: _Table(*facts) for oid, facts in tables.items()}
        self._strangers: dict[int, str] = {}
        self._open: dict[int, Changes] | None = None
        self._final_lsn = 0
        self._complete: dict[int, Changes] = {}
        self.sealed = sealed
        self.rows = 0  # complete ones, until they are taken
        self.nbytes = 0
        self._open_nbytes = 0

    @property
    def in_transaction(self) -> bool:
        return self._open is not None

    @property
    def has_changes(self) -> bool:
        """Whether there is something to take."""
        return bool(self._complete)

    def take(self) -> dict[int, Changes]:
        """The changes of complete transactions by table; forgets them."""
        complete, self._complete = self._complete, {}
        self.rows = self.nbytes = 0
        return complete

    def feed(self, message: Message, nbytes: int) -> None:
        """Add a message of `nbytes`. Raises IngestError: `identity-not-full`, `bad-stream`,
        `schema-changed`.
        """
        match message:
            case Insert(oid, new):
                self._add(oid, ((self._new(oid, new, None), 1),))
            case Update(oid, old, new):
                before = self._old(oid, old, "an UPDATE")
                self._add(oid, ((before, -1), (self._new(oid, new, before), 1)))
            case Delete(oid, old):
                self._add(oid, ((self._old(oid, old, "a DELETE"), -1),))
            case Truncate(oids):
                for oid in oids:
                    self._truncate(oid)
            case Begin(final_lsn):
                self._begin(final_lsn)
            case Commit():
                self._commit(message)
            case Relation():
                self._relation(message)
        if self._open is not None:
            self._open_nbytes += nbytes

    def _begin(self, final_lsn: int) -> None:
        if self._open is not None:
            raise IngestError("bad-stream", "a transaction begins inside of another")
        self._open, self._final_lsn, self._open_nbytes = {}, final_lsn, 0

    def _commit(self, commit: Commit) -> None:
        if self._open is None or commit.commit_lsn != self._final_lsn:
            raise IngestError("bad-stream", "a transaction is committed that did not begin")
        time = commit.end_lsn
        if time <= self.sealed:
            message = f"a transaction ends at {time}, at or before the one before it ({self.sealed})"
            raise IngestError("bad-stream", message)
        for oid, changes in self._open.items():
            if time >= self._tables[oid].upper:  # else its shard has it
                self._complete_table(oid, changes, time)
        self.nbytes += self._open_nbytes
        self.sealed, self._open = time, None

    def _complete_table(self, oid: int, changes: Changes, time: int) -> None:
        whole = self._complete.setdefault(oid, Changes())
        before = len(whole.rows)
        whole.cleared += [(before + at, time) for at, _ in changes.cleared]
        whole.rows += changes.rows
        whole.diffs += changes.diffs
        whole.times += [time] * len(changes.rows)
        self.rows += len(changes.rows)

    def _relation(self, relation: Relation) -> None:
        table = self._tables.get(relation.oid)
        if table is None:  # a partition is described beside the table that it is published as
            self._strangers[relation.oid] = f"{relation.schema}.{relation.name}"
        elif relation.identity != "f":
            raise _not_full(table.name, "its replica identity was changed")

    def _changes(self, oid: int) -> Changes:
        if self._open is None:
            raise IngestError("bad-stream", "a change outside of a transaction")
        if oid not in self._tables:
            name = self._strangers.get(oid)
            if name is None:
                raise IngestError("bad-stream", f"a change of table {oid}, which was not described")
            raise IngestError(
                "schema-changed",
                f"table {name} (oid {oid}) came into the publication, or was made anew",
                "start with --resnapshot to take it in",
            )
        return self._open.setdefault(oid, Changes())

    def _add(self, oid: int, rows: tuple[tuple[Values, int], ...]) -> None:
        changes = self._changes(oid)
        for row, diff in rows:
            changes.rows.append(row)
            changes.diffs.append(diff)

    def _truncate(self, oid: int) -> None:
        if oid in self._tables:  # of a table beside ours that is truncated along, nothing is known
            changes = self._changes(oid)
            changes.cleared.append((len(changes.rows), 0))

    def _old(self, oid: int, old: Tuple | None, what: str) -> Values:
        if old is None:
            self._changes(oid)
            raise _not_full(self._tables[oid].name, f"{what} came without the old row")
        return self._new(oid, old, None)

    def _new(self, oid: int, new: Tuple, old: Values | None) -> Values:
        """The columns that the shard has; what was not sent is taken from `old`."""
        self._changes(oid)
        table = self._tables[oid]
        if len(new) < table.arity:
            message = f"a row of table {table.name} has {len(new)} columns, not {table.arity}"
            raise IngestError("bad-stream", message)
        row: list[bytes | None] = []
        for at in range(table.arity):
            value = new[at]
            if isinstance(value, Unchanged):
                if old is None:
                    raise _not_full(table.name, "a large value was left out, and there is no old row with it")
                value = old[at]
            row.append(value)
        return tuple(row)


def _not_full(table: str, found: str) -> IngestError:
    return IngestError("identity-not-full", f"table {table}: {found}", _FULL_HINT.format(table))
