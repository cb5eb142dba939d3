"""Directives that create dataflows and steer them.

Each is followed by a Sync, which tells whether the replica refused it; `no-sync` leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterd.driver.directive import Directive
from clusterd.driver.reads import frontier_of, parse_u64
from clusterd.driver.reasons import not_an_export
from clusterd.driver.state import Run
from clusterd.driver.streams import Stream
from clusterd.render.explain import explain as print_physical
from clusterd.render.plan import plan_dataflow
from controller_proto import command as c
from controller_proto.codec import encode_body
from controller_proto.dataflow import DataflowBody, DataflowHeader
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.ids import GlobalId, parse_id
from controller_proto.parse_dataflow import (
    DataflowText,
    ExportText,
    SourceText,
    parse_dataflow,
    parse_key,
    resolve,
)
from controller_proto.script import Words
from controller_proto.suggest import not_called

__all__ = ["DIRECTIVES"]


def define_index(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    source, index = parse_id(words.one("source")), parse_id(words.one("index"))
    upper = frontier_of(words, "upper")
    imported = SourceText(source, words.one("shard"), upper, words.get("schema") or "")
    exported = ExportText("index", index, source, parse_key(words.one("key")))
    return _create(run, words, DataflowText((imported,), (), (), (exported,)))


def create_dataflow(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    return _create(run, words, parse_dataflow(body))


def _create(run: Run, words: Words, text: DataflowText) -> list[str]:
    name = words.get("name") or f"dataflow-{next(run.names)}"
    header, body = _resolve(run, words, name, text)
    run.dataflows[name] = text
    session = run.session
    before = {export.id: session.as_of.get(export.id) for export in header.exports}
    for export in header.exports:
        session.as_of.setdefault(export.id, header.as_of)
        if export.kind == "subscribe":
            session.streams.setdefault(export.id, Stream(export.id, header.as_of))
    try:
        output = run.command(words, c.CreateDataflow(0, header=header, body=encode_body(body)))
    except Refusal:
        for id, as_of in before.items():
            if as_of is None:
                session.as_of.pop(id, None)
                session.streams.pop(id, None)
        raise
    for export in header.exports:
        run.indexes[export.id] = export
    return output


def _resolve(run: Run, words: Words, name: str, text: DataflowText) -> tuple[DataflowHeader, DataflowBody]:
    until = words.get("until")
    return resolve(
        text,
        name=name,
        as_of=parse_u64(words.one("as-of"), "as-of"),
        until=None if until is None else parse_u64(until, "until"),
        schema_of=lambda source: run.schema(source.schema, source.shard),
        indexes=run.indexes,
    )


def explain(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    """The physical plan, made here as the replica makes it; nothing is sent."""
    ref = words.get("ref")
    if ref is not None and ref not in run.dataflows:
        raise LocalProtocolError("unknown-id", not_called("dataflow", ref, run.dataflows))
    text = parse_dataflow(body) if ref is None else run.dataflows[ref]
    header, plans = resolve(
        text,
        name=ref or "explained",
        as_of=0,
        until=None,
        schema_of=lambda source: run.schema(source.schema, source.shard),
        indexes=run.indexes,
    )
    return print_physical(plan_dataflow(header, plans, run.indexes)).splitlines()


def schedule(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    id = parse_id(words.one("id"))
    return _to_export(run, words, c.Schedule(0, id=id), id)


def allow_writes(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    id = parse_id(words.one("id"))
    return _to_export(run, words, c.AllowWrites(0, id=id), id)


def allow_compaction(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    id, frontier = parse_id(words.one("id")), frontier_of(words, "frontier")
    return _to_export(run, words, c.AllowCompaction(0, id=id, frontier=frontier), id)


def _to_export(run: Run, words: Words, command: c.Command, id: GlobalId) -> list[str]:
    """Say it; a refusal of an id that is known, but is no export, says so."""
    try:
        return run.command(words, command)
    except Refusal as refusal:
        why = not_an_export(run, id) if refusal.code == "unknown-id" else ""
        if not why:
            raise
        raise Refusal(refusal.code, f"{refusal.message}; {why}", refusal.hint) from refusal


_DATAFLOW = "import, build and export, and below a build its plan"

DIRECTIVES: Mapping[str, Directive] = {
    "define-index": Directive(
        define_index,
        "source= index= shard= key= as-of= upper= [schema=] [name=] [until=] [no-sync]",
        "Says create-dataflow of an index on a shard.",
    ),
    "create-dataflow": Directive(
        create_dataflow, "as-of= [until=] [name=] [no-sync]", "Says create-dataflow.", _DATAFLOW
    ),
    "explain": Directive(
        explain,
        "[ref=]",
        "Shows the plan that would run, of the body or of a dataflow that was created.",
        _DATAFLOW,
        instead="ref",
    ),
    "schedule": Directive(schedule, "id= [no-sync]", "Lets the dataflow of this export begin."),
    "allow-writes": Directive(allow_writes, "id= [no-sync]", "Lets this export write."),
    "allow-compaction": Directive(
        allow_compaction,
        "id= frontier= [no-sync]",
        "Gives up times before the frontier; frontier=[] drops the collection.",
    ),
}
