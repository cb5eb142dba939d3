"""What the client does without a replica: schemas, plans' ids, answers as Python and numpy."""

from __future__ import annotations

import datetime
import socket
from pathlib import Path

import numpy as np
import pytest

from clusterd.client import Answer, Client, schema_of
from clusterd.client.session import _gets, _position, _renamed
from clusterd.storage.store import Store
from controller_proto.client import WireClient
from controller_proto.errors import Refusal
from controller_proto.expr import ColumnRef
from controller_proto.plan import Aggregate, Get, Join, Mfp, Reduce, Union
from controller_proto.response import PeekRows
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType


def test_a_schema_is_written_as_names_and_types() -> None:
    schema = schema_of({"id": "bigint", "x": "double precision?", "t": "timestamp ?"})
    assert schema.columns == (
        Column("id", ColumnType.INT64),
        Column("x", ColumnType.FLOAT64, True),
        Column("t", ColumnType.TIMESTAMP, True),
    )
    assert schema_of(schema) is schema
    with pytest.raises(Refusal, match="schema-mismatch: column 'n': no type 'int'"):
        schema_of({"n": "int"})


def test_an_answer_is_read_as_rows_dicts_and_numpy() -> None:
    schema = schema_of({"k": "bigint", "name": "text?", "total": "numeric", "at": "timestamp"})
    rows = PeekRows(((1, 2), ("a", None), ("12345678901234567890", "-1"), (0, 1_000_000)), (1, 2))
    answer = Answer(schema, rows, 7, "interactive")
    later = datetime.datetime(1970, 1, 1, 0, 0, 1)
    assert answer.rows() == [
        (1, "a", 12345678901234567890, datetime.datetime(1970, 1, 1)),
        *[(2, None, -1, later)] * 2,
    ]
    assert answer.dicts()[2] == {"k": 2, "name": None, "total": -1, "at": later}
    assert (len(answer), answer.total, answer.time, answer.served_by) == (2, 3, 7, "interactive")
    assert answer["k"].dtype == np.int64
    assert answer.columns["at"].dtype == np.dtype("datetime64[us]")


def test_an_answer_without_columns_still_counts() -> None:
    answer = Answer(schema_of({}), PeekRows((), (3,)), 0, "solo")
    assert answer.rows() == [(), (), ()]


def test_the_ids_of_a_plan_are_found_once_each_in_order() -> None:
    side = Mfp(Get("u2"), projection=(0,))
    plan = Reduce(Union((Join((Get("u1"), side), ((ColumnRef(0), ColumnRef(2)),)), Get("u3"), side)), ())
    assert _gets(plan) == ["u1", "u2", "u3"]


def test_columns_are_found_by_name_and_renamed() -> None:
    assert _position(SAMPLE_SCHEMA, "payload") == 1
    assert _position(SAMPLE_SCHEMA, 5) == 5  # the replica judges numbers
    with pytest.raises(Refusal, match="invalid-plan: no column 'pay'"):
        _position(SAMPLE_SCHEMA, "pay")
    assert [c.name for c in _renamed(SAMPLE_SCHEMA, ["a", "b"]).columns] == ["a", "b"]
    with pytest.raises(Refusal, match="invalid-plan: 1 names for 2 columns"):
        _renamed(SAMPLE_SCHEMA, ["a"])


def test_a_plan_is_written_as_text_over_shards_by_name(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    with Store.open(tmp_path / "data") as store, left, right:
        store.create_shard("fruit", SAMPLE_SCHEMA)
        client = Client(WireClient(left), store, None)
        plan = client.plan("""
            Reduce group_by=[#1] aggregates=[count(*)]
              Union
                Get fruit
                Get u77
        """)
        assert plan == Reduce(Union((Get("u1"), Get("u77"))), (ColumnRef(1),), (Aggregate("count"),))
        assert client.source("fruit") == Get("u1")
        with pytest.raises(Refusal, match="unknown-shard: no shard named 'bread'"):
            client.plan("Get bread")
