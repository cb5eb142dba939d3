from __future__ import annotations

import pytest

from controller_proto.dataflow import Export, IndexImport, SourceImport
from controller_proto.errors import LocalProtocolError, Refusal
from controller_proto.parse_dataflow import parse_dataflow, resolve
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Schema
from controller_proto.validate import validate

TEXT = """\
import source=u1000 shard=flights upper=1 schema=flights
import source=u1002 shard=s upper=[]
import index=u2001
build id=u3000
  Reduce group_by=[#0] aggregates=[count(*)]
    Get u1000
build id=u3001
  Project (#0)
    Get u7
export index=u4001 on=u3000 key=[0]
export kind=subscribe sink=t5 on=u3001
export kind=materialized-view sink=u4003 on=u3001 key=[0] shard=m schema=narrow
export kind=copy-to sink=t6 on=u3001 uri="file:///tmp/a b.csv" format=csv
export index=u4002 on=u7 key=[1, 0]"""
LINES = TEXT.splitlines()


INDEXES = {"u2001": Export("u2001", "index", "u7", SAMPLE_SCHEMA, (0,))}


def test_a_body_resolves_to_what_the_replica_accepts() -> None:
    text = parse_dataflow([line for line in LINES if "kind=" not in line])
    header, body = resolve(
        text, name="d", as_of=3, until=None, schema_of=lambda source: SAMPLE_SCHEMA, indexes=INDEXES
    )
    assert header.source_imports[0] == SourceImport("u1000", "flights", SAMPLE_SCHEMA, (1,))
    assert header.index_imports == (IndexImport("u2001"),)
    counted = Schema((Column("id", ColumnType.INT64), Column("count", ColumnType.INT64)))
    assert header.exports[0] == Export("u4001", "index", "u3000", counted, (0,))
    assert validate(header, body, INDEXES)["u3000"] == counted


def test_what_cannot_be_typed_is_sent_with_a_placeholder_and_refused_for_what_is_wrong() -> None:
    text = parse_dataflow(["build id=1", "  Negate", "    Get u9", "export index=2 on=1 key=[0]"])
    header, body = resolve(text, name="", as_of=0, until=None, schema_of=lambda s: SAMPLE_SCHEMA, indexes={})
    assert (header.exports[0].on, header.exports[0].key) == ("u1", (0,))
    with pytest.raises(Refusal, match="build u1: Get: u9 is no import"):
        validate(header, body, {})


def test_a_view_has_the_schema_of_what_it_shows_with_names_once_or_the_one_it_names() -> None:
    text = parse_dataflow(
        [
            "import source=1 shard=s upper=1",
            "build id=2",
            "  Project (#0, #0)",
            "    Get u1",
            "export kind=materialized-view sink=3 on=2 shard=m",
            "export kind=materialized-view sink=4 on=2 shard=n schema=narrow",
        ]
    )
    number = Column("id", ColumnType.INT64)
    narrow = Schema((Column("a", ColumnType.INT64, True), Column("b", ColumnType.INT64)))
    header, body = resolve(
        text,
        name="",
        as_of=0,
        until=None,
        schema_of=lambda item: narrow if item.schema else SAMPLE_SCHEMA,
        indexes={},
    )
    assert [export.shard for export in header.exports] == ["m", "n"]
    assert header.exports[0].schema == Schema((number, Column("id_2", ColumnType.INT64)))
    assert header.exports[1].schema == narrow
    validate(header, body, {})


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["export kind=copy-to sink=3 on=1 uri=/a", "export index=4 on=1 key=[0]"], "the only export"),
        (["export kind=copy-to sink=3 on=1 uri=/a key=[0]"], "a copy has no key"),
        (['export kind=copy-to sink=3 on=1 uri=""'], "names the uri"),
        (["export kind=copy-to sink=3 on=1 uri=/a format=xml"], "format 'xml' is not known; write csv or"),
    ],
)
def test_a_copy_that_cannot_be_written_is_refused(lines: list[str], says: str) -> None:
    text = parse_dataflow(["import source=1 shard=s upper=1", *lines])
    header, body = resolve(
        text, name="", as_of=0, until=None, schema_of=lambda item: SAMPLE_SCHEMA, indexes={}
    )
    with pytest.raises(Refusal) as raised:
        validate(header, body, {})
    assert says in raised.value.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("export kind=materialized-view sink=3 on=1 shard=s", "writes shard 's', which its dataflow reads"),
        ("export kind=materialized-view sink=3 on=1 shard=m", "two exports write shard 'm'"),
        ("export kind=materialized-view sink=3 on=1 shard=n schema=one", "has 1 columns, not 2"),
        ("export kind=materialized-view sink=3 on=1 shard=n schema=alike", "two columns are called a"),
    ],
)
def test_a_view_that_cannot_be_written_is_refused(line: str, says: str) -> None:
    a = Column("a", ColumnType.INT64)
    schemas = {"": SAMPLE_SCHEMA, "one": Schema((a,)), "alike": Schema((a, Column("a", ColumnType.TEXT)))}
    first = ["import source=1 shard=s upper=1", "export kind=materialized-view sink=2 on=1 shard=m"]
    text = parse_dataflow([*first, line])
    header, body = resolve(
        text, name="", as_of=0, until=None, schema_of=lambda item: schemas[item.schema], indexes={}
    )
    with pytest.raises(Refusal, match=says):
        validate(header, body, {})


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["imports index=1"], "line 1: expected import, build or export, not 'imports'"),
        (["import source=1 shard=s"], "line 1: import needs upper="),
        (["import source=1 shard=s upper=-1"], "line 1: '-1' is no frontier"),
        (["import index=x1"], "line 1: 'x1' is not an id"),
        (["import index=1 twice"], "line 1: import does not take twice"),
        (["build id=1"], "a plan is missing"),
        (["build id=1", "  Gett u1"], "line 2: no operator"),
        (["export index=2 on=1 key=[x]"], "line 1: expected a column"),
        (["import index=1", "  Get u1"], "line 1: nothing is indented below 'import'"),
    ],
)
def test_what_is_no_body_is_refused_by_line(lines: list[str], says: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse_dataflow(lines)
    assert says in caught.value.message
