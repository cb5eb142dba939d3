"""Snapshot: all tables as they are at one place of the WAL, from which a new slot goes on.

The slot is a temporary one at first: making it tells a place S and a snapshot of exactly what was committed
before. Rows read under that snapshot go to the shards at time S. Then the temporary slot is copied to one
that stays, from the same S. Whoever is killed or beaten before that leaves no slot behind, which would make
the server keep WAL for nobody.

Does not: decide whether to take one (binding.py).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv

from clusterd.events import emit
from clusterd.ingest.binding import Binding
from clusterd.ingest.columns import column_of_texts
from clusterd.ingest.connection import Connection, quote_literal, quote_name
from clusterd.ingest.errors import IngestError
from clusterd.ingest.events import SnapshotTaken, TableCopied
from clusterd.ingest.shards import TableShard
from clusterd.ingest.source import PublishedTable, Server, lsn_of
from shm_arrangements import failpoints
from shm_arrangements.updates import Updates

__all__ = ["take_snapshot"]

failpoints.declare("ingest.table-copied", "ingest.slot-missing", "ingest.slot-made")

_CHUNK_BYTES = 8 << 20  # of CSV, parsed at once
_NULL = "\\N"


class _Target(msgspec.Struct, frozen=True):
    table: PublishedTable
    shard: TableShard


def take_snapshot(
    stream: Connection,
    side: Connection,
    server: Server,
    slot: str,
    shards: Mapping[int, TableShard],
    tables: Mapping[int, PublishedTable],
    *,
    drop_slot: bool,
) -> int:
    """Bring all shards to the tables' contents at one time, and make the slot that goes on from there.

    stream: a replication connection; side: another one. Returns the time. Raises as `Connection` does, and
    IngestError: `invalid-data`, `shard-taken`.
    """
    temporary = f"{slot}_snapshot"
    made = stream.query(
        f"CREATE_REPLICATION_SLOT {quote_name(temporary)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
    )
    _, place, snapshot, _ = made[0]
    assert place is not None
    assert snapshot is not None
    time = lsn_of(place)
    # In the order of their names, as always: of two processes one is stopped at the first of them.
    targets = sorted(
        (_Target(tables[oid], shard) for oid, shard in shards.items()), key=lambda each: each.shard.shard.name
    )
    rows = 0
    side.query("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    side.query(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")
    for table, shard in ((each.table, each.shard) for each in targets):
        columns = table.columns[: shard.arity]
        binding = Binding(
            server.system, server.database, slot, table.full_name, table.oid, columns, time, table.filter
        )  # fmt: skip
        wanted = list(_rows(side, table, shard, time))
        read = sum(map(len, wanted))
        updates = shard.correct(wanted, time, binding)
        emit(TableCopied(table=table.full_name, shard=shard.shard.name, rows=read, updates=updates))
        rows += read
        failpoints.hit("ingest.table-copied")
    side.query("COMMIT")
    if drop_slot:
        stream.query(f"DROP_REPLICATION_SLOT {quote_name(slot)} WAIT")  # until a killed process has left it
    failpoints.hit("ingest.slot-missing")
    side.query(
        f"SELECT pg_copy_logical_replication_slot({quote_literal(temporary)}, {quote_literal(slot)}, false)"
    )
    failpoints.hit("ingest.slot-made")
    stream.query(f"DROP_REPLICATION_SLOT {quote_name(temporary)}")
    emit(SnapshotTaken(slot=slot, time=time, tables=len(shards), rows=rows))
    return time


def _rows(side: Connection, table: PublishedTable, shard: TableShard, time: int) -> Iterator[Updates]:
    names = ", ".join(quote_name(column.name) for column in table.columns[: shard.arity])
    only = "ONLY " if table.only else ""
    where = f" WHERE {table.filter}" if table.filter else ""
    relation = f"{quote_name(table.namespace)}.{quote_name(table.name)}"
    copy = side.copy_out(
        f"COPY (SELECT {names} FROM {only}{relation}{where}) TO STDOUT (FORMAT csv, NULL '{_NULL}')"
    )
    held: list[bytes] = []
    nbytes = 0
    for row in copy:
        held.append(row)
        nbytes += len(row)
        if nbytes >= _CHUNK_BYTES:
            yield _updates(b"".join(held), shard, time)
            held, nbytes = [], 0
    if held:
        yield _updates(b"".join(held), shard, time)


def _updates(data: bytes, shard: TableShard, time: int) -> Updates:
    """Whole rows of CSV, at `time`."""
    specs = shard.shard.specs
    names = [str(i) for i in range(len(specs))]
    try:
        parsed: Any = pa.csv.read_csv(
            io.BytesIO(data),
            read_options=pa.csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_string()), null_values=[_NULL],
                strings_can_be_null=True, quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except pa.ArrowInvalid as error:
        raise IngestError("invalid-data", f"table {shard.table}: {error}") from error
    columns = tuple(
        column_of_texts(_whole(parsed.column(i)), spec, f"table {shard.table}, column {spec.name}")
        for i, spec in enumerate(specs)
    )
    return Updates(columns, np.full(len(parsed), time, np.uint64), np.ones(len(parsed), np.int64))


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
