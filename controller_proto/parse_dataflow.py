"""The body of `create-dataflow`: imports, builds, exports.

Schemas are named, not written out; who runs the script knows them. `resolve` turns the text's form into
header and body once it is told them.

Does not: know which ids exist, validate beyond what it must compute (validate.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

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
from controller_proto.parse_expr import parse_columns
from controller_proto.parse_plan import plan_of, tree
from controller_proto.plan import Plan
from controller_proto.schema import Column, ColumnType, Schema, distinct_names
from controller_proto.script import Words, split_words
from controller_proto.tokens import Tokens
from controller_proto.typing_rules import plan_schema

__all__ = [
    "DataflowText", "ExportText", "SourceText", "parse_dataflow", "parse_frontier", "parse_key",
    "resolve",
]  # fmt: skip

_ID_OF_KIND = {"index": "index", "materialized-view": "sink", "subscribe": "sink", "copy-to": "sink"}


class SourceText(msgspec.Struct, frozen=True):
    """`import source=ID shard=NAME upper=U [schema=]`; schema "" is the schema of the shard."""

    id: GlobalId
    shard: str
    upper: WireFrontier
    schema: str = ""


class ExportText(msgspec.Struct, frozen=True):
    """`export index=ID on=ID key=[...]`, or `export kind=KIND sink=ID on=ID`, with `up-to=` and
    `snapshot=false` for a subscription, `shard=`, `key=[...]` and `schema=` for a materialized view,
    `uri=` and `format=` for a copy.
    """

    kind: str
    id: GlobalId
    on: GlobalId
    key: tuple[int, ...] = ()
    snapshot: bool = True
    up_to: int | None = None
    shard: str = ""
    schema: str = ""
    uri: str = ""
    format: str = ""


class DataflowText(msgspec.Struct, frozen=True):
    """A body as it is written."""

    sources: tuple[SourceText, ...]
    indexes: tuple[GlobalId, ...]
    builds: tuple[Build, ...]
    exports: tuple[ExportText, ...]


def parse_frontier(text: str) -> WireFrontier:
    """`5` -> (5,), `[]` -> (). Raises LocalProtocolError `bad-message`."""
    if text == "[]":
        return ()
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 64):
        raise LocalProtocolError(
            "bad-message", f"{text!r} is no frontier", "write a u64, or [] for the empty one"
        )
    return (int(text),)


def parse_dataflow(lines: Sequence[str]) -> DataflowText:
    """Read a body. Raises LocalProtocolError, naming the line."""
    sources: list[SourceText] = []
    indexes: list[GlobalId] = []
    builds: list[Build] = []
    exports: list[ExportText] = []
    for line in tree(lines):
        try:
            words = split_words(line.text)
            if words.name == "build":
                builds.append(Build(parse_id(words.one("id")), plan_of(line.children)))
                words.expect_all_used()
                continue
            if line.children:
                raise line.error(f"nothing is indented below {words.name!r}")
            if words.name == "import":
                _import(words, sources, indexes)
            elif words.name == "export":
                exports.append(_export(words))
            else:
                raise line.error(f"expected import, build or export, not {words.name!r}")
            words.expect_all_used()
        except LocalProtocolError as error:
            if error.message.startswith("line "):
                raise
            raise LocalProtocolError(
                error.code, f"line {line.number}: {error.message}", error.hint
            ) from error
    return DataflowText(tuple(sources), tuple(indexes), tuple(builds), tuple(exports))


def _import(words: Words, sources: list[SourceText], indexes: list[GlobalId]) -> None:
    index = words.get("index")
    if index is not None:
        indexes.append(parse_id(index))
        return
    sources.append(
        SourceText(
            parse_id(words.one("source")),
            words.one("shard"),
            parse_frontier(words.one("upper")),
            words.get("schema") or "",
        )
    )


def _export(words: Words) -> ExportText:
    kind = words.get("kind") or "index"
    id = parse_id(words.one(_ID_OF_KIND.get(kind, "sink")))
    on = parse_id(words.one("on"))
    if kind == "subscribe":
        up_to = words.get("up-to")
        snapshot = words.get("snapshot") or "true"
        if snapshot not in ("true", "false"):
            raise LocalProtocolError("bad-message", f"snapshot={snapshot}: write true or false")
        words.get("schema")
        frontier = () if up_to is None else parse_frontier(up_to)
        return ExportText(kind, id, on, (), snapshot == "true", frontier[0] if frontier else None)
    key_text = words.get("key")
    key = () if key_text is None else parse_key(key_text)
    if kind == "materialized-view":
        shard, schema = words.one("shard"), words.get("schema") or ""
        return ExportText(kind, id, on, key, shard=shard, schema=schema)
    if kind == "copy-to":
        return ExportText(kind, id, on, key, uri=words.one("uri"), format=words.get("format") or "")
    return ExportText(kind, id, on, key)


def parse_key(text: str) -> tuple[int, ...]:
    """`[0, 2]` -> (0, 2)."""
    tokens = Tokens(text)
    key = parse_columns(tokens, "[", "]")
    tokens.expect_end()
    return key


def resolve(
    text: DataflowText,
    *,
    name: str,
    as_of: int,
    until: int | None,
    schema_of: Callable[[SourceText | ExportText], Schema],
    indexes: Mapping[GlobalId, Export],
) -> tuple[DataflowHeader, DataflowBody]:
    """Header and body as they are sent.

    An export's schema is computed from the plans by the rules that the replica checks it with. Where that
    cannot be done, since something is wrong, a placeholder is sent: the replica refuses the dataflow, and
    says why.

    schema_of: of a source, and of a view that names a schema. indexes: what is known of the indexes that may
    be imported.
    """
    readable: dict[GlobalId, Schema] = {}
    for source in text.sources:
        readable[source.id] = schema_of(source)
    sources = tuple(SourceImport(s.id, s.shard, readable[s.id], s.upper) for s in text.sources)
    for id in text.indexes:
        if id in indexes:
            readable[id] = indexes[id].schema
            readable.setdefault(indexes[id].on, indexes[id].schema)
    for build in text.builds:
        schema = _schema(build.plan, readable)
        if schema is not None:
            readable[build.id] = schema
    exports = tuple(
        Export(
            e.id,
            e.kind,
            e.on,
            schema_of(e) if e.schema else _export_schema(e, readable),
            e.key,
            e.snapshot,
            e.up_to,
            e.shard,
            e.uri,
            e.format,
        )
        for e in text.exports
    )
    header = DataflowHeader(
        name, as_of, until, sources, tuple(IndexImport(id) for id in text.indexes), exports
    )
    return header, DataflowBody(text.builds)


def _export_schema(export: ExportText, readable: Mapping[GlobalId, Schema]) -> Schema:
    """The schema of what is exported; where it is not known, one that lets the plan be judged first."""
    found = readable.get(export.on)
    if found is not None:
        return distinct_names(found) if export.kind == "materialized-view" else found
    return Schema(tuple(Column(f"c{n}", ColumnType.INT64) for n in range(max(export.key, default=-1) + 1)))


def _schema(plan: Plan, readable: Mapping[GlobalId, Schema]) -> Schema | None:
    try:
        return plan_schema(plan, readable)
    except Refusal:
        return None
