"""What a function gives for a row depends on that row alone: not on its block, nor on whether it is constant.

Every signature of the table is called on columns of values at the edges of their types, NULL among them:
whole, in parts, and row by row as literals, which are folded when they are compiled.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from numba import config

from clusterd.convert import column_from_scalars, column_specs, scalars_from_column
from clusterd.render.expr import compile_expr
from clusterd.render.functions import MESSAGES, Evaluated
from controller_proto.expr import Call, ColumnRef, Expr, Literal
from controller_proto.functions import FUNCTIONS, Function, Signature
from controller_proto.literals import parse_type
from controller_proto.schema import Column, ColumnType, Scalar, Schema, type_name
from controller_proto.typing_rules import expr_type
from tests.clusterd.columns import VALUES

T = ColumnType
ROWS = 23
# Beside the edges: what makes functions do something.
COMMON: dict[ColumnType, list[Any]] = {
    T.INT16: [1, 2, -3], T.INT32: [1, 2, -3], T.INT64: [1, 2, 3, -2, 12, 2013], T.UINT16: [2, 3],
    T.UINT32: [2, 3], T.UINT64: [2, 3], T.FLOAT32: [1.0, 2.5, -0.5],
    T.FLOAT64: [1.0, 2.5, -0.5, 3.5, 1e-5, 1e15], T.NUMERIC: ["1", "2", "-3"],
    T.TEXT: [
        "abc", "ABC def", "12", " 1.5 ", "-3e2", "2013-07-01", "a,b,,c", "%b_", "b", ",", "(b)(x)?", "[",
        "hex", "year", "month", "b*", "^|$", "UTC", "xyz\u00e9\u4e16", "{\"a\":1}", "true", "FMDay DD", "\\",
        "'q' \"r\"",
    ],
    T.BYTEA: [b"abc", b"\xc3\xa9"],
    T.DATE: [15706, 15765, -1, 11016],
    T.TIMESTAMP: [1_372_636_800_500_000, 951_782_400_000_000, -62_135_596_800_000_001],
    T.TIMESTAMPTZ: [1_372_636_800_500_000, -1], T.TIME: [3_600_000_000, 86_399_999_999],
    T.INTERVAL: [(1, 0, 0), (0, 1, 3_600_000_000_000), (-14, 40, -1), (0, 0, 900_000_000_000)],
    T.JSONB: ["{\"a\":[1,{\"b\":\"x\\ny\"}]}", "[1,2,\"a\"]", "\"a\"", "2.5", "true", "{}"],
}  # fmt: skip
ANY = ["bigint", "text", "double precision", "numeric(38,2)", "date", "boolean"]


def values_of(column: Column) -> list[Any]:
    if column.type is T.LIST:
        element = column.fields[0]
        inside = [*values_of(element), *([None] if element.nullable else [])]
        return [(), *((v,) for v in inside), tuple(inside[:4]), tuple(inside[-3:])]
    if column.type is T.NUMERIC and column.scale == 2:
        return ["0.00", "1.25", "-2.50", "99999999999999999999.99", "-" + "9" * 36 + ".99"]
    edges = [v for c, vs in VALUES.values() if c.type is column.type and c.scale == column.scale for v in vs]
    return edges + COMMON.get(column.type, [])


def argument_types(rng: random.Random, signature: Signature) -> list[Column]:
    """A column that fits each argument."""
    chosen = {"T": rng.choice(ANY), "U": rng.choice(ANY)}
    count = len(signature.args) + (rng.choice([0, 1, 2]) if signature.variadic else 0)
    found = []
    for position in range(count):
        pattern = signature.pattern(position)
        if pattern.variable:
            name = chosen.get(pattern.variable) or rng.choice(ANY)
        else:
            assert pattern.type is not None
            name = pattern.type.value
            if pattern.scale:
                name = rng.choice(["numeric", "numeric(38,2)"])
        optional = "?" * (pattern.is_list and rng.random() < 0.5)
        found.append(parse_type(f"{name}{optional} list" if pattern.is_list else name, "c", nullable=True))
    return found


def evaluate(expr: Expr, types: list[Column], rows: list[tuple[Scalar, ...]]) -> list[Any]:
    """Wire values, an error as its message; checks the promises of a result on the way."""
    schema = Schema(tuple(types))
    specs = column_specs(schema)
    compiled = compile_expr(expr, specs)
    wire = expr_type(expr, schema)
    assert (compiled.wire.type, compiled.scale, compiled.wire.fields) == (wire.type, wire.scale, wire.fields)
    values = [[row[i] for row in rows] for i in range(len(types))]
    inputs = [Evaluated(column_from_scalars(spec, v)) for spec, v in zip(specs, values, strict=True)]
    out = compiled(inputs, len(rows))
    assert len(out.column) == len(rows)
    assert out.column.type == compiled.type
    found = list(scalars_from_column(compiled.spec, out.column))
    assert (
        column_from_scalars(compiled.spec, found).to_pylist().__repr__() == out.column.to_pylist().__repr__()
    )
    if out.errors is not None:
        assert compiled.fallible
        for row in np.flatnonzero(out.errors).tolist():
            assert found[row] is None, "an error has a value"
            found[row] = MESSAGES[out.errors[row] - 1]
    elif None in found:
        assert wire.nullable
    return found


def calls(function: Function, signature: Signature) -> str:
    return (
        f"cast {signature.result.type.value}"
        if function.name == "cast" and signature.result.type
        else function.name
    )


SIGNATURES = [
    (function, signature)
    for function in FUNCTIONS.values()
    for signature in function.signatures
    if function.name not in ("now_ts", "error")
    and not (function.name == "cast" and signature.args[0].variable)
]
HEAVY = {"repeat", "lpad", "rpad"}


def check(function: Function, signature: Signature) -> None:
    seed = zlib.crc32(f"{function.name} {signature.text}".encode())
    print(f"seed {seed}")
    rng = random.Random(seed)
    types = argument_types(rng, signature)
    domains = [[*values_of(column), None] for column in types]
    if function.name in HEAVY:
        domains[1] = [-1, 0, 1, 5, 1 << 40, (1 << 63) - 1, None]
    rows = [tuple(rng.choice(domain) for domain in domains) for _ in range(ROWS)]
    constants = {}
    for position in function.constant:
        constants[position] = Literal(types[position].type, rng.choice(["year", "second", "epoch", "dow"]))
    args = [constants.get(i) or ColumnRef(i) for i in range(len(types))]
    expr = Call(calls(function, signature), tuple(args))
    whole = evaluate(expr, types, rows)
    assert evaluate(expr, types, []) == []
    at = rng.randrange(ROWS)
    parts = evaluate(expr, types, rows[:at]) + evaluate(expr, types, rows[at:])
    assert repr(parts) == repr(whole)
    # One argument constant, then all: a literal of each row.
    for row, wanted in zip(rows, whole, strict=True):
        literals = [
            constants.get(i) or Literal(c.type, v, c.scale, c.fields)
            for i, (c, v) in enumerate(zip(types, row, strict=True))
        ]
        assert repr(evaluate(Call(expr.function, tuple(literals)), [], [()])) == repr([wanted]), row
        if literals:
            mixed = list(args)
            which = rng.randrange(len(literals))
            mixed[which] = literals[which]
            same = [r for r in rows if repr(r[which]) == repr(row[which])]
            found = evaluate(Call(expr.function, tuple(mixed)), types, same)
            shown = set(map(repr, same))
            assert repr(found) == repr([w for r, w in zip(rows, whole, strict=True) if repr(r) in shown])
    for row, value in zip(rows, whole, strict=True):
        looked_at = [v for i, v in enumerate(row) if i not in constants]
        if function.nulls == "strict" and None in looked_at:
            # But for what widening the others says: an error outweighs NULL.
            assert value in (None, "eval-error: numeric out of range"), row
        if function.nulls == "never":
            assert value is not None, row


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({function.name for function, _ in SIGNATURES}))
def test_a_row_gives_the_same_in_any_block_and_as_constants(name: str) -> None:
    over: Any = "ignore" if config.DISABLE_JIT else "raise"  # words wrap, which compiled code does silently
    with np.errstate(all="raise", under="ignore", over=over):
        for function, signature in SIGNATURES:
            if function.name == name:
                check(function, signature)


def test_the_types_drawn_for_signatures_are_those_that_resolve_to_them() -> None:
    rng = random.Random(1)
    for function, signature in SIGNATURES:
        types = [msgspec.structs.replace(c, nullable=False) for c in argument_types(rng, signature)]
        args = tuple(
            Literal(T.TEXT, "year") if i in function.constant else ColumnRef(i) for i in range(len(types))
        )
        found = expr_type(Call(calls(function, signature), args), Schema(tuple(types)))
        assert type_name(found)
