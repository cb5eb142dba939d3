"""What the client does without a replica: schemas, plans' ids, answers as Python and numpy."""

from __future__ import annotations

import datetime
import decimal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterd.client import Answer, Client, Index, PeekFailed, schema_of
from clusterd.client.arguments import position_of, renamed
from clusterd.client.dataflows import gets
from clusterd.client.handle import Standing
from clusterd.client.values import key_rows, wire_rows
from clusterd.storage.store import Store
from controller_proto.client import WireClient
from controller_proto.dataflow import Export
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.expr import ColumnRef
from controller_proto.plan import Aggregate, Get, Join, Mfp, Reduce, Union
from controller_proto.response import Frontiers, PeekRows
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType


def test_a_schema_is_written_as_names_and_types() -> None:
    schema = schema_of({"id": "bigint", "x": "double precision?", "t": "timestamp ?"})
    assert schema.columns == (
        Column("id", ColumnType.INT64),
        Column("x", ColumnType.FLOAT64, True),
        Column("t", ColumnType.TIMESTAMP, True),
    )
    assert schema_of(schema) is schema
    with pytest.raises(
        Refusal, match="schema-mismatch: column 'n': no type 'money'; there are: boolean, smallint"
    ):
        schema_of({"n": "money"})


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
    with pytest.raises(KeyError, match="no column 'nope'; there are: k, name, total, at"):
        answer["nope"]
    assert answer.columns["at"].dtype == np.dtype("datetime64[us]")


def test_python_values_go_in_as_answers_give_them_out() -> None:
    schema = schema_of({
        "n": "numeric(38,2)", "i": "numeric", "d": "date", "tm": "time", "ts": "timestamp",
        "tz": "timestamptz", "u": "uuid", "b": "bytea", "iv": "interval", "l": "date? list",
        "r": "record(a numeric(38,1), b text?)", "j": "jsonb", "s": "smallint", "f": "real",
    })  # fmt: skip
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)
    row = (
        decimal.Decimal("12.30"), 5, datetime.date(2020, 1, 2), datetime.time(3, 4, 5, 6), moment,
        moment.replace(tzinfo=datetime.UTC), uuid.UUID(int=7), b"\x00\xff", (1, 2, 3),
        [datetime.date(1969, 12, 31), None], (decimal.Decimal("-0.5"), None), '{"a":1}', -7, 0.5,
    )  # fmt: skip
    (wire,) = wire_rows(schema.columns, [row])
    assert wire == (
        "12.30", "5", 18263, 11_045_000_006, 1_577_934_245_000_006, 1_577_934_245_000_006,
        str(uuid.UUID(int=7)), b"\x00\xff", (1, 2, 3), (-1, None), ("-0.5", None), '{"a":1}', -7, 0.5,
    )  # fmt: skip
    answer = Answer(schema, PeekRows(tuple((value,) for value in wire), (1,)), 0, "solo")
    assert answer.rows() == [row]
    assert wire_rows(schema.columns, [wire]) == [wire]


@pytest.mark.parametrize(
    ("type_", "value", "wire"),
    [
        ("numeric(38,2)", decimal.Decimal("1.5000"), "1.50"),
        ("numeric(38,2)", decimal.Decimal("1E+2"), "100"),
        ("numeric", decimal.Decimal("7.0"), "7"),
        (
            "timestamptz",
            datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            0,
        ),
        ("timestamp", np.datetime64("1970-01-01T00:00:01"), 1_000_000),
        ("date", np.datetime64("1970-01-02"), 1),
        ("date", datetime.datetime(1970, 1, 2), datetime.datetime(1970, 1, 2)),
        ("timestamp", datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "1970-01-01 00:00:00+00:00"),
        ("bigint", True, True),
    ],
)
def test_what_a_type_has_no_place_for_is_left_for_the_check(type_: str, value: Any, wire: Any) -> None:
    columns = schema_of({"c": type_}).columns
    assert wire_rows(columns, [(value,)]) == [(wire,)]
    assert wire_rows(columns, [(value, value)]) == [(value, value)]


def test_a_key_is_a_tuple_or_where_there_is_one_column_its_value() -> None:
    one, day, pair = (schema_of({"k": t}).columns for t in ("bigint", "date", "record(a bigint, b bigint)"))
    assert key_rows(one, [1, (2,), (3, 4)]) == ((1,), (2,), (3, 4))
    assert key_rows(day, [datetime.date(1970, 1, 2)]) == ((1,),)
    assert key_rows(pair, [(1, 2), [3, 4], None]) == (((1, 2),), ((3, 4),), (None,))
    assert key_rows((*one, *day), [(1, datetime.date(1970, 1, 2))]) == ((1, 1),)


def test_an_answer_without_columns_still_counts() -> None:
    answer = Answer(schema_of({}), PeekRows((), (3,)), 0, "solo")
    assert answer.rows() == [(), (), ()]


def test_the_ids_of_a_plan_are_found_once_each_in_order() -> None:
    side = Mfp(Get("u2"), projection=(0,))
    plan = Reduce(Union((Join((Get("u1"), side), ((ColumnRef(0), ColumnRef(2)),)), Get("u3"), side)), ())
    assert gets(plan) == ["u1", "u2", "u3"]


def test_columns_are_found_by_name_andrenamed() -> None:
    assert position_of(SAMPLE_SCHEMA, "payload") == 1
    assert position_of(SAMPLE_SCHEMA, 5) == 5  # the replica judges numbers
    with pytest.raises(Refusal, match="invalid-plan: no column 'pay'; there are: id, payload"):
        position_of(SAMPLE_SCHEMA, "pay")
    assert [c.name for c in renamed(SAMPLE_SCHEMA, ["a", "b"]).columns] == ["a", "b"]
    with pytest.raises(Refusal, match="invalid-plan: 1 names for 2 columns"):
        renamed(SAMPLE_SCHEMA, ["a"])


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


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    left, right = socket.socketpair()
    with Store.open(tmp_path / "data") as store, left, right:
        store.create_shard("fruit", SAMPLE_SCHEMA)
        wire = WireClient(left)
        wire.hello("n", kind="reader")
        yield Client(wire, store, "ab12", address="unix:/run/x")


@pytest.fixture
def index(client: Client) -> Index:
    return Index(client, Standing(Export("u2", "index", "u1", SAMPLE_SCHEMA, (0,)), 0))


def test_an_errors_text_ends_with_what_to_do() -> None:
    for made in (Refusal, LocalProtocolError, PeekFailed):
        error = made("limit", "too many", "close some")
        assert (str(error), error.message, error.hint) == (
            "limit: too many; close some",
            "too many",
            "close some",
        )
        assert str(made("limit", "too many")) == "limit: too many"


def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_sent(
    client: Client, index: Index
) -> None:
    for at in ("5", True, 2.0):
        with pytest.raises(TypeError, match="at must be an int time or"):
            index.peek(at=at)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at must not be negative"):
        index.peek(at=-1)
    with pytest.raises(TypeError, match=r"keys must be a list: keys=\['pear'\]"):
        index.peek(keys="pear")
    with pytest.raises(TypeError, match=r"key must be a list: key=\['id'\]"):
        client.create_index("fruit", key="id")
    for rows in (["pear"], [7], ("pear", 5), {"id": 1}):
        with pytest.raises(TypeError, match="is no tuple or mapping"):
            client.write("fruit", rows)  # type: ignore[arg-type]
    for make in (client.create_index, client.subscribe, client.query):
        with pytest.raises(TypeError, match="5 is no index, plan, text of one or name of a shard"):
            make(5)  # type: ignore[operator]
    assert client.store.shard("fruit").upper.to_wire() == (0,)


def test_a_write_at_a_time_that_is_sealed_says_from_when_on_it_may_be(client: Client) -> None:
    client.write("fruit", [(1, "pear")], at=4)
    with pytest.raises(Refusal, match="time 3 of shard 'fruit' is sealed; write at 5 or later"):
        client.write("fruit", [(1, "pear")], at=3)


def test_a_wait_that_ends_says_what_for_and_how_far_it_is(client: Client, index: Index) -> None:
    with pytest.raises(TimeoutError, match="u2 at newest: no frontier was heard after 0 s"):
        index.peek(timeout_s=0)
    client.core.hear(Frontiers("u2", (0,)))
    with pytest.raises(TimeoutError, match=r"u2 at newest: nothing is sealed yet \(frontier \{0\}\)"):
        index.peek(timeout_s=0)
    client.core.hear(Frontiers("u2", (4,)))
    with pytest.raises(
        TimeoutError, match=r"u2 at 7: that time is not sealed yet \(frontier \{4\}\).* advance"
    ):
        index.peek(at=7, timeout_s=0)
    with pytest.raises(TimeoutError, match="u2 at 7: that time is not sealed yet"):
        index.wait(7, timeout_s=0)
    with pytest.raises(TimeoutError, match=r"u2 at 3: sealed \(frontier \{4\}\), but not answered"):
        index.peek(at=3, timeout_s=0)


def test_a_client_and_an_index_say_what_they_are(client: Client, index: Index) -> None:
    assert repr(client).startswith("Client(reader at unix:/run/x, instance=ab12, data_dir=/")
    assert repr(index) == "Index(u2: id bigint, payload text; key=[id], since=0)"


def test_what_is_no_index_or_shard_is_refused_with_what_would_be(client: Client) -> None:
    with pytest.raises(TypeError, match="'u2' is no index or view: give what created it returned"):
        client.drop("u2")  # type: ignore[arg-type]
    with pytest.raises(Refusal, match=r"no shard named 'friut' in .*; did you mean fruit\?"):
        client.source("friut")
    with pytest.raises(Refusal, match=r"no shard named 'u2' in .* an index is given as .* index\(ID\)"):
        client.create_index("u2")
    with pytest.raises(LocalProtocolError, match="texts stand in double quotes; at \" 'x'\" of"):
        client.create_index("Filter #1 = 'x'\n  Get fruit")


def test_a_client_without_shards_says_how_to_have_them() -> None:
    left, right = socket.socketpair()
    with left, right:
        client = Client(WireClient(left), None, None)
        with pytest.raises(LocalProtocolError, match="connect with data_dir="):
            client.create_shard("fruit", SAMPLE_SCHEMA)
        with pytest.raises(LocalProtocolError, match=r"'u2' would be a shard, .* index\(ID\)"):
            client.subscribe("u2")


def test_a_data_dir_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        with pytest.raises(FileNotFoundError, match="no such data_dir"):
            Client.connect(f"unix:{tmp_path / 's'}", data_dir=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_order_with_its_direction_in_the_text_is_told_how_to_say_it(client: Client, index: Index) -> None:
    with pytest.raises(Refusal, match="no column 'id desc'") as down:
        index.peek(order_by=["id desc"], timeout_s=0)
    assert "OrderBy(0, descending=True)" in down.value.hint
    with pytest.raises(Refusal) as up:
        index.peek(order_by=["id ASC"], timeout_s=0)
    assert "order_by=['id']" in up.value.hint
    with pytest.raises(Refusal) as unknown:
        index.peek(order_by=["total desc"], timeout_s=0)
    assert "there are: " in unknown.value.hint
