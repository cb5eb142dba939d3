"""A column of every type with values at its edges, as wire values; used by several tests."""

from __future__ import annotations

from typing import Any

from controller_proto.schema import Column, ColumnType, Scalar

T = ColumnType
BIG = 10**37 + 7
INF, NAN = float("inf"), float("nan")

# In ascending order, without NULL; the least and the greatest among them.
VALUES: dict[str, tuple[Column, list[Scalar]]] = {}


def _add(column: Column, values: list[Any]) -> None:
    VALUES[column.name] = (column, values)


_add(Column("flag", T.BOOL), [False, True])
_add(Column("i2", T.INT16), [-(2**15), -1, 0, 7, 2**15 - 1])
_add(Column("i4", T.INT32), [-(2**31), -1, 0, 7, 2**31 - 1])
_add(Column("i8", T.INT64), [-(2**63), -1, 0, 7, 2**63 - 1])
_add(Column("u2", T.UINT16), [0, 1, 2**15, 2**16 - 1])
_add(Column("u4", T.UINT32), [0, 1, 2**31, 2**32 - 1])
_add(Column("u8", T.UINT64), [0, 1, 2**63, 2**64 - 1])
_add(Column("f4", T.FLOAT32), [-INF, -1.5, 0.0, 2.0**-149, 0.25, INF, NAN])
_add(Column("f8", T.FLOAT64), [-INF, -1e300, -1.5, 0.0, 5e-324, 0.1, INF, NAN])
_add(Column("n0", T.NUMERIC), [str(-(10**38) + 1), str(-BIG), "-1", "0", "1", str(10**38 - 1)])
_add(
    Column("n2", T.NUMERIC, scale=2),
    ["-" + "9" * 36 + ".99", "-0.01", "0.00", "0.01", "12.30", "9" * 36 + ".99"],
)
_add(Column("n38", T.NUMERIC, scale=38), ["-0." + "9" * 38, "0." + "0" * 38, "0." + "0" * 37 + "1"])
_add(Column("t", T.TEXT), ["", "a", "a\x00b", "abcdefghij", "abcdefghik", "null", "\N{SNOWMAN}"])
_add(Column("b", T.BYTEA), [b"", b"\x00", b"\x00\xff", b"a", b"abcdefghi", b"\xff"])
_add(Column("d", T.DATE), [-(2**31), -1, 0, 15706, 2**31 - 1])
_add(Column("tm", T.TIME), [0, 1, 18_000_500_000, 86_400_000_000])
_add(Column("ts", T.TIMESTAMP), [-(2**63), -1, 0, 1_356_998_400_000_000, 2**63 - 1])
_add(Column("tz", T.TIMESTAMPTZ), [-(2**63), -1, 0, 1_356_998_400_000_000, 2**63 - 1])
_add(
    Column("iv", T.INTERVAL),
    [
        (-(2**31), 0, 0),
        (-1, 40, 0),
        (0, 0, -1),
        (0, 0, 0),
        (0, 0, 2**63 - 1),
        (0, 1, 0),
        (1, -2, 5),
        (2**31 - 1, 0, 0),
    ],
)
_add(
    Column("u", T.UUID),
    [f"{n:08x}-0000-0000-0000-{m:012x}" for n, m in ((0, 0), (0, 1), (1, 0), (2**32 - 1, 5))],
)
_add(Column("j", T.JSONB), ["1", "[]", '[{"a":null}]', "null", '{"a":"x","b":12.5}', '{"a":"y"}'])
_add(
    Column("l", T.LIST, fields=(Column("element", T.INT16, True),)),
    [(), (1,), (1, 2), (1, None), (2,), (None,)],
)
_add(
    Column("lt", T.LIST, fields=(Column("element", T.TEXT),)),
    [(), ("",), ("a",), ("a", ""), ("a", "b"), ("abcdefghij",)],
)
_add(
    Column("r", T.RECORD, fields=(Column("x", T.NUMERIC, scale=1), Column("y", T.TEXT, True))),
    [("-0.5", "z"), ("1.0", "a"), ("1.0", "b"), ("1.0", None), ("2.0", "a")],
)
_add(Column("r0", T.RECORD), [()])
_add(
    Column(
        "deep", T.LIST, fields=(Column("element", T.RECORD, True, fields=(
            Column("at", T.DATE), Column("many", T.LIST, fields=(Column("element", T.UUID),)),
        )),),
    ),
    [(), ((0, ()),), ((0, ("00000000-0000-0000-0000-000000000001",)),), (None,), (None, (5, ()))],
)  # fmt: skip
