"""What a subscription says on the wire: every type, whole, in messages that fit their frames."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from clusterd.client.feed import Feed
from clusterd.convert import column_from_scalars, column_specs, updates_from_rows
from clusterd.operators.export_subscribe import Told
from clusterd.runtime import subscriptions
from clusterd.runtime.subscriptions import encode_told
from controller_proto.dataflow import Export
from controller_proto.response import SubscribeBatch, SubscribeResponse, SubscribeUpdates
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.columns import Column as Values
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates
from tests.clusterd.columns import VALUES

ONE_MESSAGE = 3 * subscriptions._PART_BYTES  # what is kept in 16 bytes may take 42 on the wire

_decode = msgspec.msgpack.Decoder(SubscribeBatch).decode


def told(schema: Schema, *parts: Updates) -> list[tuple[SubscribeUpdates, int]]:
    """What the messages of one batch carry, and how long each is."""
    found = []
    for raw in encode_told(column_specs(schema), Told(0, Frontier.at(9), parts)):
        batch = _decode(raw)
        assert isinstance(batch.contents, SubscribeUpdates)
        found.append((batch.contents, len(raw)))
    assert [contents.more for contents, _ in found] == [True] * (len(found) - 1) + [False]
    return found


def rows_of(found: Sequence[tuple[SubscribeUpdates, int]]) -> list[tuple[Any, ...]]:
    return [row for contents, _ in found for row in zip(*contents.columns, strict=True)]


@pytest.mark.parametrize("name", VALUES)
def test_every_value_of_every_type_is_told_as_it_is_written(name: str) -> None:
    column, values = VALUES[name]
    schema = Schema((Column("x", column.type, True, column.scale, column.fields),))
    rows = [(value,) for value in [None, *values, None, *reversed(values)]]
    times = list(range(len(rows)))
    found = told(schema, updates_from_rows(schema, rows, times, [1 - 2 * (t % 2) for t in times]))
    # As text, so that NaN is NaN and 0.0 is not -0.0.
    assert list(map(repr, rows_of(found))) == list(map(repr, rows))
    assert [t for contents, _ in found for t in contents.times] == times
    feed = Feed(Export("t1", "subscribe", "u1", schema))
    for raw in encode_told(
        column_specs(schema), Told(0, Frontier.at(99), (updates_from_rows(schema, rows, 0),))
    ):
        assert feed.hear(SubscribeResponse("t1", _decode(raw)))
    batch = feed.take()
    assert batch is not None
    again = column_from_scalars(column_specs(schema)[0], [row[0] for row in rows])
    assert list(map(repr, batch.changes.raw_columns()[0].to_pylist())) == list(map(repr, again.to_pylist()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "list", "record", "constant", "dictionary"])
def test_long_rows_beside_short_ones_are_cut_by_what_each_takes(kind: str) -> None:
    """A message of as many rows as fit on average exceeded a frame where the long ones came together."""
    short, long = "x", "y" * (5 << 20)
    texts = [short] * 4000 + [long] * 20 + [short] * 4000
    text = Column("t", ColumnType.TEXT)
    if kind == "list":
        column, values = (
            Column("x", ColumnType.LIST, fields=(Column("element", ColumnType.TEXT),)),
            [(t, t[:9]) for t in texts],
        )
    elif kind == "record":
        column, values = Column("x", ColumnType.RECORD, fields=(text,)), [(t,) for t in texts]
    else:
        column, values = text, texts
    schema = Schema((Column("n", ColumnType.INT64), column))
    if kind == "constant":
        values = [long] * 20
        columns = Values.repeated(column_from_scalars(column_specs(schema)[1], [long]), 20)
    elif kind == "dictionary":
        codes = np.array([int(t is long) for t in texts], np.uint8)
        columns = Values.of_dictionary(column_from_scalars(column_specs(schema)[1], [short, long]), codes)
    else:
        columns = column_from_scalars(column_specs(schema)[1], values)
    n = len(values)
    numbers = column_from_scalars(column_specs(schema)[0], list(range(n)))
    part = Updates((numbers, columns), np.zeros(n, np.uint64), np.ones(n, np.int64))
    found = told(schema, part)
    assert rows_of(found) == list(enumerate(values))
    for contents, length in found:
        assert length < ONE_MESSAGE or len(contents.times) == 1
    assert len(found) <= 2 * 20 + 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_messages_are_about_as_long_as_they_may_be(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    schema = Schema(tuple(column for column, _ in VALUES.values()))
    rows = [tuple(rng.choice(values) for _, values in VALUES.values()) for _ in range(6000)]
    found = told(schema, updates_from_rows(schema, rows, 0), updates_from_rows(schema, rows[:10], 1))
    assert list(map(repr, rows_of(found))) == list(map(repr, rows + rows[:10]))
    lengths = [length for _, length in found]
    assert max(lengths) < ONE_MESSAGE
    assert min(lengths[:-2]) > subscriptions._PART_BYTES // 4


def test_no_rows_are_one_message() -> None:
    schema = Schema((Column("x", ColumnType.INT64),))
    ((contents, _),) = told(schema, updates_from_rows(schema, [], 0))
    assert contents == SubscribeUpdates(((),), (), ())
