"""The judgements on dataflows and peeks that need more than the core knows: plans, and the store's shards.

Does not: have effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusterd.render.physical import PhysicalPlan
from clusterd.render.plan import plan_dataflow
from clusterd.runtime.evaluate import check_peek
from clusterd.storage.copy_out import check_copy
from clusterd.storage.store import Store
from controller_proto.codec import decode_body
from controller_proto.command import CreateDataflow, Peek
from controller_proto.dataflow import Export, SourceImport
from controller_proto.errors import CodecError, Refusal
from controller_proto.ids import GlobalId
from controller_proto.schema import same_type, type_name
from shm_arrangements.frontier import Frontier

__all__ = ["WorkerPorts"]

ViewIn = Callable[[str], Export | None]  # the view that will have made the shard when it is read


class WorkerPorts:
    """Ports of a worker over `store`; None is a replica without a data directory."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def plan(
        self, create: CreateDataflow, indexes: Mapping[GlobalId, Export], view_in: ViewIn
    ) -> PhysicalPlan:
        """The physical plan. Raises Refusal, naming what does not fit."""
        try:
            body = decode_body(create.body)
        except CodecError as error:
            raise Refusal(error.code, error.message, error.hint) from error
        plan = plan_dataflow(create.header, body, indexes)
        try:
            self._check_shards(create, view_in)
        except OSError as error:
            raise Refusal("unknown-shard", f"a shard could not be looked at: {error}") from error
        return plan

    def _check_shards(self, create: CreateDataflow, view_in: ViewIn) -> None:
        for source in create.header.source_imports:
            self._check_source(source, create.header.as_of, view_in)
        for export in create.header.exports:
            if export.kind == "materialized-view":
                self._check_view(export)
            elif export.kind == "copy-to":
                check_copy(export)

    def check_peek(self, peek: Peek, index: Export) -> None:
        check_peek(peek, index)

    def _check_view(self, export: Export) -> None:
        """A shard that is there says itself what may be NULL; one that is not is made as `export` says."""
        if self._store is None:
            raise Refusal(
                "unknown-shard", f"export {export.id}: there is no data directory for shard {export.shard!r}",
                "start the replica with --data-dir",
            )  # fmt: skip
        if not self._store.has_shard(export.shard):
            return
        found = self._store.shard(export.shard).schema
        for ours, given in zip(found.columns, export.schema.columns, strict=False):
            if ours.name != given.name or not same_type(ours, given):
                what = f"column {given.name!r} ({type_name(given)}) is {ours.name!r} ({type_name(ours)})"
                raise Refusal("schema-mismatch", f"export {export.id}: {what} in shard {export.shard!r}")
        if found.arity != export.schema.arity:
            raise Refusal(
                "schema-mismatch",
                f"export {export.id} has {export.schema.arity} columns, "
                f"shard {export.shard!r} has {found.arity}",
            )

    def _check_source(self, source: SourceImport, as_of: int, view_in: ViewIn) -> None:
        if self._store is None:
            raise Refusal(
                "unknown-shard", f"import {source.id}: no shard {source.shard!r}, there is no data directory",
                "start the replica with --data-dir",
            )  # fmt: skip
        view = None if self._store.has_shard(source.shard) else view_in(source.shard)
        if view is not None:
            schema, since = view.schema, Frontier.minimum()
        else:
            shard = self._store.shard(source.shard)
            schema, since = shard.schema, shard.since
        for found, given in zip(schema.columns, source.schema.columns, strict=False):
            same = found.name == given.name and same_type(found, given)
            if not same or (found.nullable and not given.nullable):
                what = f"column {given.name!r} ({type_name(given)}) is {found.name!r} ({type_name(found)})"
                if found.nullable and not given.nullable:
                    what = f"column {given.name!r} is nullable"
                raise Refusal("schema-mismatch", f"import {source.id}: {what} in shard {source.shard!r}")
        if schema.arity != source.schema.arity:
            raise Refusal(
                "schema-mismatch",
                f"import {source.id} has {source.schema.arity} columns, "
                f"shard {source.shard!r} has {schema.arity}",
            )
        if not since.less_equal(as_of):
            raise Refusal(
                "below-since",
                f"import {source.id} cannot be read at {as_of}: "
                f"the since of shard {source.shard!r} is {since}",
            )
