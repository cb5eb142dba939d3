"""Whether a CreateDataflow or a Peek can be accepted, as far as the description itself can tell.

Right because the owner runs it, whole, before any effect: a refused dataflow leaves nothing behind. What only
the owner's state can tell is checked there: that exported ids are new, that no import's since is beyond
`as_of`.

Checked, in this order: times; imports (named once, known, of a legal form); exports (at least one, named
once, of a known kind, a key in range and without repetition); builds (named once, each over what came before
it, typed, and monotonic over nothing that takes rows away); exports again (on something readable, with its
schema). Messages name the item.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from controller_proto.command import Peek
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.expr import Call, Case, Expr
from controller_proto.ids import GlobalId, parse_id
from controller_proto.monotonic import what_takes_away
from controller_proto.plan import Get, Mfp
from controller_proto.schema import Schema, counted, scalar_problem
from controller_proto.typing_rules import plan_schema, types_problem

__all__ = ["check_peek_size", "validate", "validate_header", "validate_peek"]

KINDS = frozenset({"index", "materialized-view", "subscribe", "copy-to"})
FORMATS = frozenset({"", "csv", "parquet"})


def validate(
    header: DataflowHeader, body: DataflowBody, indexes: Mapping[GlobalId, Export]
) -> dict[GlobalId, Schema]:
    """The schema of every collection readable in the dataflow. Raises Refusal `unknown-id` or `invalid-plan`.

    indexes: the exports, by id, of the indexes that may be imported.
    """
    readable = validate_header(header, indexes)
    is_one_time = header.until == header.as_of + 1  # what is of one time stays
    takes_away: dict[GlobalId, str] = {}
    for build in body.builds:
        _check_id(build.id, "build")
        if build.id in readable:
            raise _refuse(f"build {build.id} is named like an import or an earlier build")
        readable[build.id] = plan_schema(build.plan, readable, f"build {build.id}")
        if not is_one_time:
            takes_away[build.id] = what_takes_away(build.plan, takes_away, f"build {build.id}")
    for export in header.exports:
        if export.on not in readable:
            raise _refuse(f"export {export.id}: on {export.on}, which is no import and no build")
        problem = types_problem(_declared(export, readable[export.on]), readable[export.on])
        if problem is not None:
            raise _refuse(f"export {export.id}: its schema has {problem}")
        if export.id in readable:
            raise _refuse(f"export {export.id} is named like an import or a build")
    return readable


def validate_header(header: DataflowHeader, indexes: Mapping[GlobalId, Export]) -> dict[GlobalId, Schema]:
    """As `validate`, for what a header alone can tell; the schema of every imported collection."""
    if header.until is not None and header.until <= header.as_of:
        raise _refuse(f"until {header.until} is not beyond as_of {header.as_of}")
    readable: dict[GlobalId, Schema] = {}
    named: set[GlobalId] = set()
    for id in [*(s.id for s in header.source_imports), *(i.id for i in header.index_imports)]:
        _check_id(id, "import")
        if id in named:
            raise _refuse(f"import {id} is named twice")
        named.add(id)
    for source in header.source_imports:
        names = [column.name for column in source.schema.columns]
        if len(set(names)) != len(names):
            raise _refuse(f"import {source.id}: two columns are called {_repeated(names)}")
        readable[source.id] = source.schema
    sources = set(readable)
    for index in header.index_imports:
        if index.id not in indexes:
            raise Refusal("unknown-id", f"import {index.id} is not known")
        export = indexes[index.id]
        if export.kind != "index":
            raise _refuse(f"import {index.id} is a {export.kind}, not an index")
        # Several indexes on one collection may be imported: it is the same collection. A source is another.
        if export.on in sources or types_problem(readable.get(export.on, export.schema), export.schema):
            raise _refuse(f"import {index.id}: {export.on}, which it arranges, is imported in another form")
        readable[index.id] = readable[export.on] = export.schema
    _validate_exports(header)
    return readable


def _validate_exports(header: DataflowHeader) -> None:
    if not header.exports:
        raise _refuse("nothing is exported")
    seen: set[GlobalId] = set()
    for export in header.exports:
        _check_id(export.id, "export")
        if export.id in seen:
            raise _refuse(f"export {export.id} is named twice")
        seen.add(export.id)
        if export.kind not in KINDS:
            raise _refuse(f"export {export.id}: kind {export.kind} is not known")
        if export.kind == "subscribe":
            _validate_subscription(header, export)
        if export.kind == "materialized-view":
            _validate_view(header, export)
        if export.kind == "copy-to":
            _validate_copy(header, export)
        for position in export.key:
            if not 0 <= position < export.schema.arity:
                raise _refuse(f"export {export.id}: key column #{position} of {export.schema.arity} columns")
        if len(set(export.key)) != len(export.key):
            raise _refuse(f"export {export.id}: key repeats column #{_repeated(export.key)}")


def _declared(export: Export, found: Schema) -> Schema:
    """The schema of an export as it is held to the plan: a view may declare what may be NULL on its own."""
    if export.kind != "materialized-view" or export.schema.arity != found.arity:
        return export.schema
    pairs = zip(export.schema.columns, found.columns, strict=True)
    return Schema(tuple(msgspec.structs.replace(a, nullable=b.nullable) for a, b in pairs))


def _validate_view(header: DataflowHeader, export: Export) -> None:
    if not export.shard:
        raise _refuse(f"export {export.id}: a materialized view names the shard that it writes")
    if export.shard in {source.shard for source in header.source_imports}:
        raise _refuse(f"export {export.id} writes shard {export.shard!r}, which its dataflow reads")
    others = {each.shard for each in header.exports if each.id != export.id}
    if export.shard in others:
        raise _refuse(f"export {export.id}: two exports write shard {export.shard!r}")
    names = [column.name for column in export.schema.columns]
    if len(set(names)) != len(names):
        raise _refuse(f"export {export.id}: two columns are called {_repeated(names)}")


def _validate_copy(header: DataflowHeader, export: Export) -> None:
    if len(header.exports) > 1:
        raise _refuse(f"export {export.id}: a copy is the only export of its dataflow")
    if export.key:
        raise _refuse(f"export {export.id}: a copy has no key")
    if not export.uri:
        raise _refuse(f"export {export.id}: a copy names the uri of the file that it writes")
    if export.format not in FORMATS:
        raise _refuse(f"export {export.id}: format {export.format!r} is not known; write csv or parquet")
    if not export.schema.columns:
        raise _refuse(f"export {export.id}: rows of no columns have no form in a file")


def _validate_subscription(header: DataflowHeader, export: Export) -> None:
    if len(header.exports) > 1:
        raise _refuse(f"export {export.id}: a subscription is the only export of its dataflow")
    if export.key:
        raise _refuse(f"export {export.id}: a subscription has no key")
    if export.up_to is not None and export.up_to <= header.as_of:
        raise _refuse(f"export {export.id}: up_to {export.up_to} is not beyond as_of {header.as_of}")


def validate_peek(peek: Peek, index: Export) -> Schema:
    """The schema of the rows that `peek` of `index` answers. Raises Refusal `invalid-plan`.

    A key may be NULL whatever the column: point reads go by identity, and nothing matches what cannot be.
    """
    for number, key in enumerate(peek.keys or ()):
        if len(key) != len(index.key):
            values = counted(len(key), "value")
            raise _refuse(f"key {number} has {values}, the key of {index.id} has {len(index.key)}")
        for value, position in zip(key, index.key, strict=True):
            column = index.schema.columns[position]
            problem = scalar_problem(value, msgspec.structs.replace(column, nullable=True))
            if problem is not None:
                raise _refuse(f"key {number}: {problem}")
    finishing = peek.finishing
    schema = plan_schema(
        Mfp(Get(index.id), finishing.maps, finishing.predicates), {index.id: index.schema}, "peek"
    )
    for item in finishing.order_by:
        if not 0 <= item.column < schema.arity:
            raise _refuse(f"peek: order-by column #{item.column} of {schema.arity} columns")
    return plan_schema(Mfp(Get(index.id), projection=finishing.projection), {index.id: schema}, "peek")


def check_peek_size(peek: Peek, *, max_keys: int, max_nodes: int) -> None:
    """Whether `peek` is small enough to be planned and looked up in one go. Raises Refusal `limit`.

    Nodes are those of all maps and predicates, and each column of order_by and projection.
    """
    if peek.keys is not None and len(peek.keys) > max_keys:
        raise Refusal(
            "limit",
            f"the peek has {len(peek.keys)} keys, max_peek_keys is {max_keys}",
            "split it into several peeks, or raise the setting",
        )
    finishing = peek.finishing
    nodes = len(finishing.order_by) + len(finishing.projection or ())
    waiting: list[Expr] = [*finishing.maps, *finishing.predicates]
    while waiting and nodes <= max_nodes:
        nodes += 1
        match waiting.pop():
            case Call(_, args):
                waiting += args
            case Case(condition, then, otherwise):
                waiting += (condition, then, otherwise)
            case _:
                pass
    if nodes > max_nodes:
        raise Refusal(
            "limit",
            f"the finishing of the peek has more than {max_nodes} nodes, the limit of max_peek_nodes",
            "select by keys, maintain a view that selects, or raise the setting",
        )


def _check_id(id: GlobalId, what: str) -> None:
    try:
        canonical = parse_id(id)
    except LocalProtocolError:
        canonical = ""
    if canonical != id:
        raise Refusal("invalid-plan", f"{what} {id!r} is not an id", "write u1001, s1 or t7")


def _repeated(items: list[str] | tuple[int, ...]) -> str | int:
    return next(item for item in items if items.count(item) > 1)  # type: ignore[arg-type]


def _refuse(message: str) -> Refusal:
    return Refusal("invalid-plan", message)
