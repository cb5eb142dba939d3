"""Dataflows: what a client creates, and the names and ids that its plans may use.

It numbers what it creates, imports what a plan mentions, and asks after each creation whether it was
accepted.

Does not: wait; the operations here say for what.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from clusterd.client import peeks
from clusterd.client.answer import Answer
from clusterd.client.arguments import LAST_TIME, position_of, renamed, require_list, time_of
from clusterd.client.core import Core
from clusterd.client.feed import Feed
from clusterd.client.handle import Handle, Standing
from clusterd.client.operation import DEADLINE_S, Operation, work
from clusterd.client.shards import Shards, ShardState
from clusterd.convert import wire_schema
from clusterd.introspection.exports import export_of
from controller_proto import command
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
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.ids import GlobalId, parse_id
from controller_proto.parse_plan import parse_plan
from controller_proto.plan import Get, Plan
from controller_proto.schema import Schema
from controller_proto.typing_rules import plan_schema
from shm_arrangements.attach import attach

__all__ = ["Dataflows", "gets"]

_GET = re.compile(r"^(\s*Get\s+)(\S+)", re.MULTILINE)
_ID = re.compile(r"[ustl]?[0-9]+", re.ASCII)


class Dataflows:
    """What this session created, and found. `sources`: the ids by which plans name shards."""

    def __init__(self, core: Core, shards: Shards) -> None:
        self.sources: dict[str, GlobalId] = {}
        self.schemas: dict[GlobalId, Schema] = {}  # of sources
        self.standing: dict[GlobalId, Standing] = {}  # indexes that we created
        self._core = core
        self._shards = shards
        self._found: dict[GlobalId, Standing] = {}  # indexes that others created
        self._next = {"u": 1, "t": 1}

    def fresh(self, kind: str) -> GlobalId:
        """An id that this session has not used; kind: `u`, or `t` for what does not stay."""
        number = self._next[kind]
        self._next[kind] = number + 1
        return f"{kind}{number}"

    # -- what a plan is made of

    def source(self, name: str) -> Operation[Get]:
        """As `Client.source`."""
        if name not in self.sources:
            schema = yield from work(lambda: self._shards.schema(name))
            if name not in self.sources:  # another operation may have been quicker
                self.sources[name] = self.fresh("u")
                self.schemas[self.sources[name]] = schema
        return Get(self.sources[name])

    def plan(self, text: str) -> Operation[Plan]:
        """As `Client.plan`."""
        text = textwrap.dedent(text).strip()
        ids = {}
        for _, name in _GET.findall(text):
            ids[name] = name if _ID.fullmatch(name) else (yield from self.source(name)).id
        return parse_plan(_GET.sub(lambda match: match[1] + ids[match[2]], text).splitlines())

    def input(self, on: str | Plan | Handle) -> Operation[Plan]:
        """What a dataflow is made on, as a plan, in which views are their shards. Raises TypeError."""
        plan: Plan
        if isinstance(on, Handle):
            plan = on.get
        elif isinstance(on, str):
            plan = yield from (self.plan(on) if " " in on.strip() else self.source(on))
        elif isinstance(on, msgspec.Struct):
            plan = on
        else:
            raise TypeError(f"{on!r} is no index, plan, text of one or name of a shard")
        shards = {}
        for id in gets(plan):
            view = self.standing.get(id) or self._found.get(id)
            if view is not None and view.export.shard:
                shards[id] = (yield from self.source(view.export.shard)).id
        return _with_gets(plan, shards) if shards else plan

    def find(self, id: GlobalId, instance: str | None) -> Operation[Standing]:
        """As `Client.index`, in the shared memory of `instance`."""
        id = parse_id(id)
        if id in self.standing:
            return self.standing[id]

        def look() -> Standing:
            with attach(id, instance) as attached:
                schema, since = attached.schema, attached.since
            export = Export(id, "index", id, wire_schema(schema.columns), schema.key)
            return Standing(export, 0 if since.is_empty else since.time)

        self._found[id] = yield from work(look)
        return self._found[id]

    def find_view(self, id: GlobalId, shard: str, key: Sequence[str | int]) -> Operation[Standing]:
        """As `Client.view`."""
        id = parse_id(id)
        require_list("key", key)
        if id in self.standing:
            return self.standing[id]
        schema = yield from work(lambda: self._shards.schema(shard))
        positions = tuple(position_of(schema, column) for column in key)
        self._found[id] = Standing(Export(id, "materialized-view", id, schema, positions, shard=shard), 0)
        return self._found[id]

    def relation(self, name: str) -> Operation[Standing]:
        """As `Client.relation`."""
        export = export_of(name)
        newest = yield from peeks.peek(self._core, Standing(export, 0), DEADLINE_S, {"limit": 0})
        self._found[export.id] = Standing(export, newest.time or 0)
        return self._found[export.id]

    # -- creating

    def create_index(
        self,
        on: str | Plan | Handle,
        key: Sequence[str | int],
        names: Sequence[str] | None,
        id: GlobalId | None,
        as_of: int | None,
        schedule: bool,
    ) -> Operation[Standing]:
        """As `Client.create_index`."""
        require_list("key", key)
        require_list("names", names)
        as_of = time_of(as_of, "as_of")
        plan = yield from self.input(on)
        id = parse_id(id) if id is not None else self.fresh("u")
        return (yield from self.create(plan, key, names, id, as_of, until=None, schedule=schedule))

    def reads(self, plan: Plan) -> list[Standing | str]:
        """What a plan reads, as far as we know it: indexes, and shards by name."""
        used = gets(plan)
        shards = [name for name, source in self.sources.items() if source in used]
        known = {**self._found, **self.standing}
        return [*shards, *(known[id] for id in used if id in known)]

    def newest(self, plan: Plan) -> Operation[int]:
        """The newest time that all that a plan reads have sealed, of indexes as far as was heard."""
        reads = self.reads(plan)
        shards = [one for one in reads if isinstance(one, str)]
        states = (yield from work(lambda: self._shards.states(shards))) if shards else {}
        return self._newest(list(states.values()), [one for one in reads if isinstance(one, Standing)])

    def query(
        self, plan: Plan, time: int, names: Sequence[str] | None, timeout_s: float | None
    ) -> Operation[Answer]:
        """As `Client.query`, at `time`."""
        require_list("names", names)
        until = None if time == LAST_TIME else time + 1
        index = yield from self.create(plan, (), names, self.fresh("t"), time, until=until, schedule=True)
        try:
            return (yield from peeks.peek(self._core, index, timeout_s, {"at": time}))
        finally:
            self.drop(index)

    def subscribe(
        self,
        on: str | Plan | Handle,
        as_of: int | None,
        up_to: int | None,
        snapshot: bool,
        names: Sequence[str] | None,
    ) -> Operation[Feed]:
        """As `Client.subscribe`."""
        require_list("names", names)
        as_of, up_to = time_of(as_of, "as_of"), time_of(up_to, "up_to")
        plan = yield from self.input(on)
        id = self.fresh("t")

        def export(on_id: GlobalId, schema: Schema) -> Export:
            return Export(id, "subscribe", on_id, schema, (), snapshot, up_to)

        header, body = yield from self.dataflow(plan, names, as_of, None, export)
        feed = self._core.open_feed(header.exports[0])
        try:
            yield from self.create_dataflow(header, body, schedule=True)
        except BaseException:
            self._core.discard_feed(feed)  # create_dataflow saw to the rest
            raise
        return feed

    def create(
        self,
        plan: Plan,
        key: Sequence[str | int],
        names: Sequence[str] | None,
        id: GlobalId,
        as_of: int | None,
        *,
        until: int | None,
        schedule: bool,
    ) -> Operation[Standing]:
        """An index on `plan`, of the times from `as_of` up to `until`."""

        def export(on: GlobalId, schema: Schema) -> Export:
            return Export(id, "index", on, schema, tuple(position_of(schema, column) for column in key))

        header, body = yield from self.dataflow(plan, names, as_of, until, export)
        yield from self.create_dataflow(header, body, schedule=schedule)
        self.standing[id] = Standing(header.exports[0], header.as_of, self.shards_under(header))
        return self.standing[id]

    def dataflow(
        self,
        plan: Plan,
        names: Sequence[str] | None,
        as_of: int | None,
        until: int | None,
        export: Callable[[GlobalId, Schema], Export],
    ) -> Operation[tuple[DataflowHeader, DataflowBody]]:
        """A dataflow of one export, which `export` makes of the id of what it exports, and its schema."""
        used = gets(plan)
        sources = [(name, source) for name, source in self.sources.items() if source in used]
        known = {**self._found, **self.standing}
        indexes = [known[each] for each in used if each in known]
        readable = {source: self.schemas[source] for _, source in sources}
        readable.update({index.export.id: index.export.schema for index in indexes})
        schema = renamed(plan_schema(plan, readable), names)
        builds: tuple[Build, ...] = ()
        if isinstance(plan, Get) and not sources:
            on = plan.id
        else:
            # Also for a bare source: an import of an index on it stands for it, and a plan may want both.
            on = self.fresh("u")
            builds = (Build(on, plan),)
        made = export(on, schema)
        states: dict[str, ShardState] = {}
        if sources:
            states = yield from work(lambda: self._shards.states(name for name, _ in sources))
        if as_of is None:
            as_of = self._newest(list(states.values()), indexes)
        header = DataflowHeader(
            name=made.id,
            as_of=as_of,
            until=until,
            source_imports=tuple(
                SourceImport(source, name, self.schemas[source], states[name].upper)
                for name, source in sources
            ),
            index_imports=tuple(IndexImport(index.export.id) for index in indexes),
            exports=(made,),
        )
        return header, DataflowBody(builds)

    def create_dataflow(
        self, header: DataflowHeader, body: DataflowBody, *, schedule: bool
    ) -> Operation[None]:
        """Say it, and wait until it was accepted; whoever gives up waiting drops it."""
        id = header.exports[0].id
        sent = [self._core.say(command.CreateDataflow(0, header, encode_body(body)), judged=True)]
        if schedule:
            sent.append(self._core.say(command.Schedule(0, id), judged=True))
        try:
            yield from self._core.accepted(sent)
        except Refusal:
            raise
        except BaseException:
            self._core.give_up(command.AllowCompaction(0, id, ()))
            raise

    def _newest(self, shards: Sequence[ShardState], indexes: Sequence[Standing]) -> int:
        """The newest time that all of these have sealed, as far as we know; else the first readable one."""
        uppers = [shard.upper for shard in shards]
        for index in indexes:
            heard = self._core.frontier(index.export.id)
            uppers.append((0,) if heard is None else heard)
        floor = max([*(shard.since for shard in shards), *(index.since for index in indexes)], default=0)
        return max(floor, min((upper[0] - 1 for upper in uppers if upper), default=floor))

    # -- what was created

    def shards_under(self, header: DataflowHeader) -> frozenset[str] | None:
        """What a dataflow reads in the end, through indexes and views; None if that is not known."""
        views = {each.export.shard: each for each in self.standing.values() if each.export.shard}
        under: set[str] = set()
        for source in header.source_imports:
            view = views.get(source.shard)
            under |= {source.shard} if view is None or view.shards is None else view.shards
        for index in header.index_imports:
            known = self.standing.get(index.id)
            if known is None or known.shards is None:
                return None
            under |= known.shards
        return frozenset(under)

    def uppers(self, of: Standing | str) -> Operation[list[WireFrontier]]:
        """How far the shards that `of` is made of are sealed; a text is the name of a shard, of a view
        perhaps. Raises LocalProtocolError if we cannot know.
        """
        if isinstance(of, str):
            of = next((one for one in self.standing.values() if one.export.shard == of), of)
        name = of if isinstance(of, str) else of.export.id
        shards = frozenset([of]) if isinstance(of, str) else of.shards
        try:
            if shards is not None:
                states = yield from work(lambda: self._shards.states(shards))
                return [state.upper for state in states.values()]
        except Refusal:
            if not isinstance(of, str):
                raise
        message = f"what {name} is made of is not known to this client, which did not create it"
        raise LocalProtocolError("unknown-shard", message, "read at a time, or at='latest'")

    def schedule(self, index: Standing) -> Operation[None]:
        """As `Client.schedule`."""
        yield from self._core.accepted([self._core.say(command.Schedule(0, index.export.id), judged=True)])

    def allow_compaction(self, index: Standing, since: int) -> None:
        """As `Client.allow_compaction`."""
        since = time_of(since, "since") or 0
        index.since = max(index.since, since)
        self._core.say(command.AllowCompaction(0, index.export.id, (since,)))

    def drop(self, index: Standing) -> None:
        """As `Client.drop`."""
        self.standing.pop(index.export.id, None)
        self._core.say(command.AllowCompaction(0, index.export.id, ()))


def gets(plan: object) -> list[GlobalId]:
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


def _with_gets(item: Any, ids: Mapping[GlobalId, GlobalId]) -> Any:
    """A plan, or a part of one, with other ids in its Gets."""
    if isinstance(item, Get):
        return Get(ids.get(item.id, item.id))
    if isinstance(item, tuple):
        return tuple(_with_gets(each, ids) for each in item)
    if isinstance(item, msgspec.Struct):
        fields = {field: _with_gets(getattr(item, field), ids) for field in item.__struct_fields__}
        return msgspec.structs.replace(item, **fields)
    return item
