"""A dataflow: what it imports, what it builds, what it exports, at which times.

`DataflowHeader` is all that a multiplexer may know: ids, kinds, schemas, times. The body (`DataflowBody`)
travels beside it as undecoded bytes and is validated, whole, by the owner before any effect.

Frontiers on the wire are tuples: `(t,)` is the frontier at t, `()` the empty one (closed, sealed for ever).
"""

from __future__ import annotations

import msgspec

from controller_proto.ids import GlobalId
from controller_proto.plan import Plan
from controller_proto.schema import Schema

__all__ = ["Build", "DataflowBody", "DataflowHeader", "Export", "IndexImport", "SourceImport", "WireFrontier", "is_one_shot"]

WireFrontier = tuple[int, ...]

MAX_TIME = (1 << 64) - 1


class SourceImport(msgspec.Struct, frozen=True):
    """The shard `shard`, readable in the dataflow as `id`; `upper` is the shard's upper the controller has seen."""

    id: GlobalId
    shard: str
    schema: Schema
    upper: WireFrontier = (0,)


class IndexImport(msgspec.Struct, frozen=True):
    """The arrangement of index `id`; the collection it arranges is readable by its own id (`on`) and by `id`."""

    id: GlobalId


class Export(msgspec.Struct, frozen=True):
    """kind: `index` (key: columns of `on`), or `materialized-view`, `subscribe`, `copy-to` (refused by name as yet).

    `schema` is the schema of `on`; the owner checks it against the plan.
    """

    id: GlobalId
    kind: str
    on: GlobalId
    schema: Schema
    key: tuple[int, ...] = ()


class DataflowHeader(msgspec.Struct, frozen=True):
    name: str
    as_of: int
    until: int | None
    source_imports: tuple[SourceImport, ...]
    index_imports: tuple[IndexImport, ...]
    exports: tuple[Export, ...]


class Build(msgspec.Struct, frozen=True):
    id: GlobalId
    plan: Plan


class DataflowBody(msgspec.Struct, frozen=True):
    builds: tuple[Build, ...]


def is_one_shot(header: DataflowHeader) -> bool:
    """Whether the dataflow is a query: only transient indexes out, one single time in."""
    from controller_proto.ids import is_transient

    return bool(header.exports) and all(
        e.kind == "index" and is_transient(e.id) for e in header.exports
    ) and (header.as_of == MAX_TIME or header.until == header.as_of + 1)
