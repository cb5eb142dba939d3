from __future__ import annotations

import msgspec
import pytest

from controller_proto.command import Finishing, Peek
from controller_proto.dataflow import (
    Build,
    DataflowBody,
    DataflowHeader,
    Export,
    IndexImport,
    SourceImport,
)
from controller_proto.errors import Refusal
from controller_proto.expr import Call, ColumnRef
from controller_proto.plan import Get, Mfp, OrderBy, Reduce
from controller_proto.schema import SAMPLE_SCHEMA, Column, ColumnType, Row, Schema
from controller_proto.validate import validate, validate_header, validate_peek

ID = Schema((Column("id", ColumnType.INT64),))
INDEXES = {
    "u1": Export("u1", "index", "u1000", SAMPLE_SCHEMA, (0,)),
    "u2": Export("u2", "index", "u1000", SAMPLE_SCHEMA, (1,)),
    "u5": Export("u5", "subscribe", "u1000", SAMPLE_SCHEMA),
}
SOURCE = SourceImport("u1000", "s", SAMPLE_SCHEMA)
HEADER = DataflowHeader("d", 0, None, (SOURCE,), (), (Export("u3001", "index", "u3000", ID, (0,)),))
BODY = DataflowBody((Build("u3000", Mfp(Get("u1000"), projection=(0,))),))


def _header(**changes: object) -> DataflowHeader:
    return msgspec.structs.replace(HEADER, **changes)


def _export(**changes: object) -> DataflowHeader:
    return _header(exports=(msgspec.structs.replace(HEADER.exports[0], **changes),))


def test_a_good_dataflow_tells_the_schema_of_all_that_is_readable_in_it() -> None:
    assert validate(HEADER, BODY, {}) == {"u1000": SAMPLE_SCHEMA, "u3000": ID}


def test_an_imported_index_is_readable_by_its_id_and_by_what_it_arranges() -> None:
    header = _header(source_imports=(), index_imports=(IndexImport("u2"), IndexImport("u1")))
    readable = validate(header, BODY, INDEXES)
    assert readable["u1"] == readable["u2"] == readable["u1000"] == SAMPLE_SCHEMA


def test_an_index_that_is_itself_what_another_arranges_may_stand_beside_it() -> None:
    indexes = {**INDEXES, "u7": Export("u7", "index", "u1", SAMPLE_SCHEMA, (0,))}
    header = _header(source_imports=(), index_imports=(IndexImport("u7"), IndexImport("u1")))
    assert validate_header(header, indexes)["u7"] == SAMPLE_SCHEMA


@pytest.mark.parametrize(
    ("header", "code", "says"),
    [
        (_header(as_of=5, until=5), "invalid-plan", "until 5 is not beyond as_of 5"),
        (_header(source_imports=(SOURCE, SOURCE)), "invalid-plan", "import u1000 is named twice"),
        (_header(source_imports=(SourceImport("x1", "s", ID),)), "invalid-plan", "import 'x1' is not an id"),
        (
            _header(source_imports=(SourceImport("u1000", "s", Schema(ID.columns * 2)),)),
            "invalid-plan",
            "two columns are called id",
        ),
        (_header(index_imports=(IndexImport("u99"),)), "unknown-id", "import u99 is not known"),
        (_header(index_imports=(IndexImport("u5"),)), "invalid-plan", "u5 is a subscribe, not an index"),
        (_header(index_imports=(IndexImport("u1"),)), "invalid-plan", "import u1: u1000"),
        (_header(exports=()), "invalid-plan", "nothing is exported"),
        (_header(exports=HEADER.exports * 2), "invalid-plan", "export u3001 is named twice"),
        (_export(kind="subscribe"), "invalid-plan", "export u3001: a subscription has no key"),
        (
            _export(kind="subscribe", key=(), up_to=0),
            "invalid-plan",
            "export u3001: up_to 0 is not beyond as_of",
        ),
        (
            _header(
                exports=(
                    msgspec.structs.replace(HEADER.exports[0], kind="subscribe", key=()),
                    msgspec.structs.replace(HEADER.exports[0], id="u3002"),
                )
            ),
            "invalid-plan",
            "export u3001: a subscription is the only export of its dataflow",
        ),
        (_export(kind="view"), "invalid-plan", "kind view is not known"),
        (_export(key=(5,)), "invalid-plan", "key column #5 of 1 columns"),
        (_export(key=(0, 0)), "invalid-plan", "key repeats column #0"),
        (_export(on="u77"), "invalid-plan", "export u3001: on u77"),
        (_export(schema=SAMPLE_SCHEMA, key=(0,)), "invalid-plan", "its schema has 2 columns, not 1"),
        (_export(id="u3000"), "invalid-plan", "export u3000 is named like"),
        (_export(id="3001"), "invalid-plan", "export '3001' is not an id"),
        (_export(id="u03001"), "invalid-plan", "export 'u03001' is not an id"),
    ],
)
def test_a_header_is_refused_by_the_item_that_is_wrong(header: DataflowHeader, code: str, says: str) -> None:
    with pytest.raises(Refusal) as caught:
        validate(header, BODY, INDEXES)
    assert caught.value.code == code
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("builds", "says"),
    [
        ((), "on u3000"),
        ((Build("u3000", Get("u3009")), Build("u3009", Get("u1000"))), "build u3000: Get: u3009"),
        ((*BODY.builds, *BODY.builds), "build u3000 is named like"),
        ((Build("u1000", Get("u1000")),), "build u1000 is named like"),
        ((Build("u3000", Reduce(Get("u1000"), (ColumnRef(4),))),), "group key 0: column #4 of 2 columns"),
    ],
)
def test_builds_come_in_dependency_order_and_once(builds: tuple[Build, ...], says: str) -> None:
    with pytest.raises(Refusal) as caught:
        validate(HEADER, DataflowBody(builds), {})
    assert says in caught.value.message


def _peek(*, keys: tuple[Row, ...] | None = None, finishing: Finishing | None = None) -> Peek:
    return Peek(1, "a", "u1", 0, keys, finishing or Finishing())


def test_a_peek_has_the_schema_of_its_projection_over_its_maps() -> None:
    finishing = Finishing(
        maps=(Call("neg", (ColumnRef(0),)),),
        predicates=(Call("<", (ColumnRef(2), ColumnRef(0))),),
        order_by=(OrderBy(2),),
        projection=(2, 1),
    )
    schema = validate_peek(_peek(keys=((1,), (None,)), finishing=finishing), INDEXES["u1"])
    assert [column.type for column in schema.columns] == [ColumnType.INT64, ColumnType.TEXT]


@pytest.mark.parametrize(
    ("peek", "says"),
    [
        (_peek(keys=((1, 2),)), "key 0 has 2 values, the key of u1 has 1"),
        (_peek(keys=((1,), ("a",))), "key 1: column id: 'a' is no bigint"),
        (_peek(keys=(((1 << 64) - 1,),)), "out of range of bigint"),
        (_peek(finishing=Finishing(maps=(ColumnRef(2),))), "map 0: column #2 of 2 columns"),
        (_peek(finishing=Finishing(predicates=(ColumnRef(0),))), "predicate 0: it is bigint"),
        (_peek(finishing=Finishing(order_by=(OrderBy(2),))), "order-by column #2 of 2 columns"),
        (_peek(finishing=Finishing(projection=(0, 2))), "projection: column #2 of 2 columns"),
    ],
)
def test_a_peek_that_does_not_fit_its_index_is_refused(peek: Peek, says: str) -> None:
    with pytest.raises(Refusal) as caught:
        validate_peek(peek, INDEXES["u1"])
    assert caught.value.code == "invalid-plan"
    assert says in caught.value.message
