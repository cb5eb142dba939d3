"""A dataflow: what it imports, what it builds, what it exports, at which times.

`DataflowHeader` is all that a multiplexer may know: ids, kinds, schemas, times. The body (`DataflowBody`)
travels beside it as undecoded bytes and is validated, whole, by the owner before any effect.

Frontiers on the wire are tuples: `(t,)` is the frontier at t, `()` the empty one (closed, sealed for ever).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from controller_proto.ids import GlobalId, is_transient
from controller_proto.plan import Plan
from controller_proto.schema import U64, Schema

__all__ = [
    "MAX_TIME", "TOLD_KINDS", "Build", "DataflowBody", "DataflowHeader", "Export", "IndexImport",
    "SourceImport", "WireFrontier", "copy_format", "is_one_shot",
]  # fmt: skip

WireFrontier = Annotated[tuple[U64, ...], msgspec.Meta(max_length=1)]

MAX_TIME = (1 << 64) - 1
TOLD_KINDS = frozenset(
    {"subscribe", "copy-to"}
)  # of exports that answer their session, and have no frontiers


class SourceImport(msgspec.Struct, frozen=True):
    """The shard `shard`, readable as `id`; `upper` is the upper of the shard that the controller has seen."""

    id: GlobalId
    shard: str
    schema: Schema
    upper: WireFrontier = (0,)


class IndexImport(msgspec.Struct, frozen=True):
    """The arrangement of index `id`; what it arranges is readable by its own id (`on`) and by `id`."""

    id: GlobalId


class Export(msgspec.Struct, frozen=True):
    """kind: `index` (key: columns of `on`), `subscribe`, `materialized-view`, `copy-to`.

    `schema` is the schema of `on`; the owner checks it against the plan. A subscription tells the session the
    changes of `on`: from what is there at `as_of` on, or, without `snapshot`, what comes after; up to `up_to`
    if it is given. A materialized view is written into `shard`, whose schema `schema` is: that of `on`, but
    for names and what may be NULL. Its `key` is what peeks of it select by. A copy writes the rows at `as_of`
    to the file `uri`, of `format` (`copy_format`).
    """

    id: GlobalId
    kind: str
    on: GlobalId
    schema: Schema
    key: tuple[int, ...] = ()
    snapshot: bool = True
    up_to: U64 | None = None
    shard: str = ""
    uri: str = ""
    format: str = ""


class DataflowHeader(msgspec.Struct, frozen=True):
    """What the multiplexer decodes: all but the plans."""

    name: str
    as_of: U64
    until: U64 | None
    source_imports: tuple[SourceImport, ...]
    index_imports: tuple[IndexImport, ...]
    exports: tuple[Export, ...]


class Build(msgspec.Struct, frozen=True):
    """Collection `id` is what `plan` computes."""

    id: GlobalId
    plan: Plan


class DataflowBody(msgspec.Struct, frozen=True):
    """What the owner alone decodes."""

    builds: tuple[Build, ...]


def copy_format(export: Export) -> str:
    """`parquet` or `csv`: as a copy says, or, if it does not, as the name of its file ends.

    >>> copy_format(Export("u1", "copy-to", "u2", Schema(()), uri="file:///tmp/a.csv"))
    'csv'
    """
    return export.format or ("csv" if export.uri.lower().endswith(".csv") else "parquet")


def is_one_shot(header: DataflowHeader) -> bool:
    """Whether the dataflow is a query: only transient indexes out, one single time in."""
    return (
        bool(header.exports)
        and all(e.kind == "index" and is_transient(e.id) for e in header.exports)
        and (header.as_of == MAX_TIME or header.until == header.as_of + 1)
    )
