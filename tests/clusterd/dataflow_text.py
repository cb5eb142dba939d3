"""Dataflows for tests, written as scripts write them."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

from controller_proto.dataflow import DataflowBody, DataflowHeader, Export
from controller_proto.parse_dataflow import parse_dataflow, resolve
from controller_proto.schema import Column, ColumnType, Schema

T = ColumnType


def schema(*columns: str) -> Schema:
    """`schema("id bigint", "name text?")`."""
    made = []
    for column in columns:
        name, type_ = column.split(" ", 1)
        made.append(Column(name, T(type_.rstrip("?")), type_.endswith("?")))
    return Schema(tuple(made))


def dataflow(
    text: str,
    schemas: Mapping[str, Schema],
    *,
    name: str = "d",
    as_of: int = 0,
    until: int | None = None,
    indexes: Mapping[str, Export] | None = None,
) -> tuple[DataflowHeader, DataflowBody]:
    """schemas: by shard name."""
    parsed = parse_dataflow(dedent(text).strip("\n").splitlines())
    return resolve(
        parsed,
        name=name,
        as_of=as_of,
        until=until,
        schema_of=lambda source: schemas[source.shard],
        indexes=indexes or {},
    )


def index(id: str, on: str, of: Schema, *key: int) -> dict[str, Export]:
    """An index that may be imported."""
    return {id: Export(id, "index", on, of, key)}
