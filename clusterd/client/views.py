"""Views: what a client says to have a collection kept up in a shard, and what it may do with it then.

Does not: wait; the operations here say for what. Create the shard: the replica does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from clusterd.client.arguments import position_of, require_list, time_of
from clusterd.client.core import Core
from clusterd.client.dataflows import Dataflows
from clusterd.client.handle import Handle, Standing
from clusterd.client.operation import Operation, work
from clusterd.client.shards import Shards
from controller_proto import command
from controller_proto.dataflow import DataflowHeader, Export
from controller_proto.ids import GlobalId, parse_id
from controller_proto.plan import Plan
from controller_proto.schema import Schema, distinct_names

__all__ = ["allow_writes", "create_view"]


def create_view(
    core: Core,
    dataflows: Dataflows,
    shards: Shards,
    on: str | Plan | Handle,
    shard: str,
    *,
    key: Sequence[str | int],
    names: Sequence[str] | None,
    not_null: Sequence[str],
    id: GlobalId | None,
    as_of: int | None,
    writes: bool,
) -> Operation[Standing]:
    """As `Client.create_materialized_view`."""
    require_list("key", key)
    require_list("names", names)
    require_list("not_null", not_null)
    as_of = time_of(as_of, "as_of")
    plan = yield from dataflows.input(on)
    id = parse_id(id) if id is not None else dataflows.fresh("u")

    def export(on_id: GlobalId, schema: Schema) -> Export:
        schema = _declared(distinct_names(schema), not_null)
        positions = tuple(position_of(schema, column) for column in key)
        return Export(id, "materialized-view", on_id, schema, positions, shard=shard)

    header, body = yield from dataflows.dataflow(plan, names, as_of, None, export)
    if as_of is None:
        header = yield from work(lambda: _resumed(header, dataflows, shards))
    yield from dataflows.create_dataflow(header, body, schedule=True)
    made = dataflows.standing[id] = Standing(header.exports[0], header.as_of, dataflows.shards_under(header))
    if writes:
        yield from allow_writes(core, made)
    return made


def allow_writes(core: Core, view: Standing) -> Operation[None]:
    """As `Client.allow_writes`."""
    yield from core.accepted([core.say(command.AllowWrites(0, view.export.id), judged=True)])


def _declared(schema: Schema, not_null: Iterable[str]) -> Schema:
    positions = {position_of(schema, column) for column in not_null}
    columns = enumerate(schema.columns)
    return Schema(
        tuple(msgspec.structs.replace(c, nullable=c.nullable and at not in positions) for at, c in columns)
    )


def _resumed(header: DataflowHeader, dataflows: Dataflows, shards: Shards) -> DataflowHeader:
    """The dataflow from an earlier time on, if it can be, so that no time of a shard that is there is left
    out: what was written up to now stays, and is gone on with.
    """
    name = header.exports[0].shard
    if not shards.store.has_shard(name):
        return header
    upper = shards.states([name])[name].upper
    if not upper or not upper[0]:
        return header
    read = shards.states(source.shard for source in header.source_imports).values()
    floor = max(
        [state.since for state in read] + [dataflows.standing[i.id].since for i in header.index_imports],
        default=0,
    )
    return msgspec.structs.replace(header, as_of=min(header.as_of, max(floor, upper[0] - 1)))
