"""Functions against DuckDB where it means the same, and against exact arithmetic where it does not."""

from __future__ import annotations

import math
import random
import re
from fractions import Fraction
from typing import Any

import duckdb
import pytest

from controller_proto.literals import format_scalar
from controller_proto.parse_expr import parse_expr
from controller_proto.schema import Column, ColumnType
from tests.clusterd.test_function_rows import evaluate

T = ColumnType
# Columns #0, #1, ...: a type of ours, DuckDB's name of it, and values; times as microseconds.
COLUMNS: dict[str, tuple[Column, str, list[Any]]] = {
    "i": (Column("i", T.INT64), "BIGINT", [
        0, 1, -1, 2, 3, 7, -7, 12, 63, 1000, 3037000500, 2**63 - 1, -(2**63),
    ]),
    "j": (Column("j", T.INT64), "BIGINT", [0, 1, -1, 2, 3, 5, -2, -5, 100]),
    "h": (Column("h", T.INT16), "SMALLINT", [0, 1, -1, 181, 182, 32767, -32768]),
    "u": (Column("u", T.UINT32), "UINTEGER", [0, 1, 65535, 65536, 2**32 - 1]),
    "d": (Column("d", T.FLOAT64), "DOUBLE", [0.0, 1.0, -1.0, 0.5, -0.25, 2.75, 3.25, 1e10, 1e-7, 100.0, 0.1]),
    "t": (Column("t", T.TEXT), "VARCHAR", [
        "", "a", "abc", "ABC", " x ", "a,b,,c", "n\u00e9e \u4e16", "foo bar", "12", "-7", "1.5", "zz",
        "hello%", "x_y",
    ]),
    "s": (Column("s", T.TEXT), "VARCHAR", ["", "a", "b", ",", "o", "abc", "\u00e9", "xyz"]),
    "ts": (Column("ts", T.TIMESTAMP), "TIMESTAMP", [
        0, -1, 1_372_636_800_500_000, 951_782_400_000_000, 1_356_998_399_999_999, -2_208_988_800_000_000,
        1_330_473_600_000_000, 4_102_444_800_000_000,
    ]),
    "tt": (Column("tt", T.TIMESTAMP), "TIMESTAMP", [
        0, 1_372_636_800_500_000, 1_330_473_600_000_000, 86_399_999_999,
    ]),
    "da": (Column("da", T.DATE), "DATE", [0, -1, 15706, 15765, 11016, 15399, 15400, -25567]),
    "b": (Column("b", T.BOOL), "BOOLEAN", [True, False]),
    "c": (Column("c", T.BOOL), "BOOLEAN", [True, False]),
}  # fmt: skip
NAMES = list(COLUMNS)

# Calls separated by semicolons; `=>` where DuckDB writes it another way.
SAME = r"""
i + j; i - j; i * j; -i; i / j => i // nullif(j, 0) + 0 * (1 // nullif(j, 0)); abs(j);
i % j => i % nullif(j, 0); h * h; h + h; u + u => (u::HUGEINT + u)::UINTEGER; sign(j); j & 3; j | 8;
j # 3 => xor(j, 3); gcd(i, j); lcm(j, 6); cast(i AS smallint) => i::SMALLINT;
cast(i AS integer) => i::INTEGER; cast(i AS uint4) => i::UINTEGER; cast(h AS uint2) => h::USMALLINT; d + 1.5;
d * d; d / (d + 1.0) => d / nullif(d + 1.0, 0); floor(d); ceil(d); trunc(d);
sqrt(d) => CASE WHEN d >= 0 THEN sqrt(d) END; exp(d / 1e10); ln(d) => CASE WHEN d > 0 THEN ln(d) END;
log10(d) => CASE WHEN d > 0 THEN log10(d) END; sin(d); cos(d); atan(d); atan2(d, 2.0); power(d, 2.0);
degrees(d); radians(d); tan(d); asin(d) => CASE WHEN abs(d) <= 1 THEN asin(d) END;
acos(d) => CASE WHEN abs(d) <= 1 THEN acos(d) END; sinh(d / 1e9); tanh(d); cbrt(d);
cast(d AS bigint) => d::BIGINT; b AND c; b OR NOT c; b IS TRUE; (b AND c) IS NULL; i = j; i < j; i >= j;
t = s; t < s; t <> s; i BETWEEN j AND 5; j IN (1, 2, i); i IS DISTINCT FROM j; coalesce(i, j); nullif(i, j);
greatest(i, j); least(i, j); greatest(t, s); length(t); octet_length(t) => strlen(t); lower(t); upper(t);
trim(t); ltrim(t); rtrim(t); btrim(t, s) => CASE WHEN s = '' THEN t ELSE trim(t, s) END; t || s; left(t, j);
right(t, j); substr(t, 2, 3); strpos(t, s); reverse(t);
replace(t, s, "-") => CASE WHEN s = '' THEN t ELSE replace(t, s, '-') END; starts_with(t, s);
ends_with(t, s); repeat(s, j); lpad(t, 5, "xy") => lpad(t, 5, 'xy'); ascii(t);
rpad(t, 5, "xy") => rpad(t, 5, 'xy'); split_part(t, ",", 2) => split_part(t, ',', 2);
translate(t, "abc", "xy") => translate(t, 'abc', 'xy'); md5(t); concat_ws("-", t, s) => concat_ws('-', t, s);
concat(t, s); t LIKE s; t ILIKE s; t LIKE "%b%" => t LIKE '%b%'; t LIKE "_%a" => t LIKE '_%a';
t NOT ILIKE "A%" => t NOT ILIKE 'A%'; t LIKE "%!%" ESCAPE "!" => t LIKE '%!%' ESCAPE '!';
t ~ "[a-c]+" => regexp_matches(t, '[a-c]+');
regexp_replace(t, "[aeo]", "<>") => regexp_replace(t, '[aeo]', '<>');
regexp_replace(t, "([a-z])", "<\\1>", "g") => regexp_replace(t, '([a-z])', '<\1>', 'g');
cast(t AS bigint) => CASE WHEN t NOT LIKE '%.%' THEN t::BIGINT END; cast(t AS double precision) => t::DOUBLE;
cast(i AS text) => i::VARCHAR; cast(b AS text) => b::VARCHAR; cast(ts AS text) => ts::VARCHAR;
cast(da AS text) => da::VARCHAR; cast(ts AS date) => ts::DATE; ts < tt;
da = cast(ts AS date) => da = ts::DATE; da - cast(ts AS date) => da - ts::DATE; da + j => da + j::INTEGER;
da - j => da - j::INTEGER; ts + interval "1 month" => ts + INTERVAL 1 MONTH;
ts - interval "13 mons 3 days" => ts - INTERVAL 13 MONTH - INTERVAL 3 DAY;
extract(epoch FROM ts - tt) => epoch(ts - tt);
date_bin(interval "15 minutes", ts, tt) => time_bucket(INTERVAL '15 minutes', ts, tt);
make_date(2000 + j, j, 28 + j) => make_date((2000 + j)::INT, j::INT, (28 + j)::INT); age(ts, tt);
"""
PARTS = (
    "year", "month", "day", "hour", "minute", "quarter", "week", "isodow", "dow", "doy", "isoyear", "epoch",
    "century", "decade", "millennium",
)  # fmt: skip
CUTS = ["second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"]


def near(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (
            (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=4e-15, abs_tol=1e-300)
        )
    return a is b if isinstance(a, bool) or isinstance(b, bool) else bool(a == b)


@pytest.fixture(scope="module")
def table() -> tuple[duckdb.DuckDBPyConnection, list[tuple[Any, ...]]]:
    seed = 5
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows = [tuple(rng.choice([*v, None]) for _, _, v in COLUMNS.values()) for _ in range(150)]
    db = duckdb.connect()
    db.execute(f"CREATE TABLE raw (n INTEGER, {', '.join(f'{n} {raw(n)}' for n in NAMES)})")
    db.executemany(
        f"INSERT INTO raw VALUES ({', '.join('?' * (len(NAMES) + 1))})", [[n, *r] for n, r in enumerate(rows)]
    )
    shown = {"TIMESTAMP": "make_timestamp({0})", "DATE": "DATE '1970-01-01' + {0}"}
    picks = ", ".join(f"{shown.get(COLUMNS[n][1], '{0}').format(n)} AS {n}" for n in NAMES)
    db.execute(f"CREATE TABLE t AS SELECT n, {picks} FROM raw")
    return db, rows


def raw(name: str) -> str:
    kind = COLUMNS[name][1]
    return {"TIMESTAMP": "BIGINT", "DATE": "INTEGER"}.get(kind, kind)


def columns_named(text: str) -> str:
    """The expression with `#n` for each name."""
    return re.sub(
        r'"(?:[^"\\]|\\.)*"|\b[a-z]+\b',
        lambda m: f"#{NAMES.index(m[0])}" if m[0] in COLUMNS else m[0],
        text,
    )


def cases() -> list[tuple[str, str]]:
    found = []
    for call in filter(None, map(str.strip, SAME.replace("\n", " ").split(";"))):
        ours, _, theirs = call.partition(" => ")
        found.append((ours, theirs or ours))
    for function, fields in (("date_part", PARTS), ("date_trunc", CUTS)):
        found += [(f'{function}("{field}", ts)', f"{function}('{field}', ts)") for field in fields]
    return found


CASES = cases()
MONTHS = "(datepart('year', x) * 12 + datepart('month', x))"
DAYS = "datepart('day', x)"
# How a result is asked for, by its type there.
SHOWN = {
    "DATE": "(x - DATE '1970-01-01')",
    "TIMESTAMP": "epoch_us(x)",
    "INTERVAL": f"CASE WHEN x IS NOT NULL THEN [{MONTHS}, {DAYS}, "
    f"epoch_ns(x - to_months({MONTHS}) - to_days({DAYS}::INT))] END",
}


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), CASES, ids=[case[0] for case in CASES])
def test_duckdb_gives_the_same(
    ours: str, theirs: str, table: tuple[duckdb.DuckDBPyConnection, list[tuple[Any, ...]]]
) -> None:
    """An error here is NULL there, by TRY."""
    db, rows = table
    found = evaluate(parse_expr(columns_named(ours)), [nullable(n) for n in NAMES], rows)
    result = db.execute(f"SELECT TRY({theirs}) AS x FROM t ORDER BY n")
    kind = str(result.description[0][1])
    of = SHOWN.get(kind, "x")
    rows_there = db.execute(f"SELECT {of} FROM (SELECT n, TRY({theirs}) AS x FROM t) ORDER BY n").fetchall()
    wanted = [value for (value,) in rows_there]
    for row, mine, its in zip(rows, found, wanted, strict=True):
        if isinstance(mine, str) and mine.startswith("eval-error"):
            mine = None
        if isinstance(its, list):
            its = tuple(its)
        if isinstance(mine, str) and not isinstance(its, str) and its is not None:
            mine, its = Fraction(mine), Fraction(str(its))
        assert near(mine, its), f"{ours} over {dict(zip(NAMES, row, strict=True))}: {mine!r}, DuckDB {its!r}"


def nullable(name: str) -> Column:
    return Column(name, COLUMNS[name][0].type, True)


def exact(digits: str) -> Fraction:
    return Fraction(digits)


def rounded(value: Fraction, scale: int) -> str:
    """As a numeric prints it: half away from zero; what has more than 38 digits is an error."""
    unscaled = math.floor(abs(value) * 10**scale + Fraction(1, 2))
    if unscaled >= 10**38:
        return "eval-error: numeric out of range"
    digits = str(unscaled).rjust(scale + 1, "0")
    sign = "-" if value < 0 and unscaled else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


@pytest.mark.slow
def test_products_quotients_and_casts_of_numerics_are_exact_and_rounded_once() -> None:
    seed = 3
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        s, t = rng.choice([0, 1, 2, 6, 16, 19, 30, 38]), rng.choice([0, 1, 2, 6, 16, 19, 30, 38])
        left, right = Column("a", T.NUMERIC, True, s), Column("b", T.NUMERIC, True, t)

        def number(scale: int) -> str:
            size = rng.choice([1, 3, 10, 19, 20, 38])
            return rounded(Fraction(rng.randrange(-(10**size) + 1, 10**size), 10**scale), scale)

        rows = [(number(s), number(t)) for _ in range(40)]
        rows += [(number(s), "0" if t == 0 else "0." + "0" * t)]
        products = evaluate(parse_expr("#0 * #1"), [left, right], rows)
        quotients = evaluate(parse_expr("#0 / #1"), [left, right], rows)
        casts = evaluate(parse_expr(f"#0::numeric(38,{t})" if t else "#0::numeric"), [left, right], rows)
        whole = evaluate(parse_expr("round(#0)"), [left, right], rows)
        down = evaluate(parse_expr("floor(#0)"), [left, right], rows)
        for (a, b), product, quotient, cast, near_a, below in zip(
            rows, products, quotients, casts, whole, down, strict=True
        ):
            x, y = exact(a), exact(b)
            assert product == rounded(x * y, min(s + t, 38)), (a, b)
            zero = "eval-error: division by zero"
            assert quotient == (rounded(x / y, max(16, s, t)) if y else zero), (a, b)
            assert cast == rounded(x, t), (a, t)
            assert near_a == rounded(x, 0), a
            assert below == str(math.floor(x)), a


@pytest.mark.slow
def test_doubles_and_numerics_become_each_other_by_the_nearest_value() -> None:
    rng = random.Random(8)
    column = Column("n", T.NUMERIC, True, 20)
    rows = [
        (rounded(Fraction(rng.randrange(-(10**z), 10**z), 10**20), 20),)
        for z in range(1, 38)
        for _ in range(9)
    ]
    for (digits,), found in zip(rows, evaluate(parse_expr("#0::float8"), [column], rows), strict=True):
        assert found == float(exact(digits)), digits
    doubles = [(rng.choice([-1, 1]) * rng.random() * 10.0 ** rng.randrange(-20, 17),) for _ in range(300)]
    shown = evaluate(parse_expr("#0::numeric(38,20)"), [Column("d", T.FLOAT64, True)], doubles)
    for (value,), found in zip(doubles, shown, strict=True):
        assert found == rounded(Fraction(repr(value)), 20), value
    texts = evaluate(parse_expr("#0::text"), [Column("d", T.FLOAT64, True)], doubles)
    again = evaluate(parse_expr("#0::float8"), [Column("t", T.TEXT, True)], [(t,) for t in texts])
    assert again == [value for (value,) in doubles]


@pytest.mark.parametrize(
    ("text", "values", "error"),
    [
        ("#0 * #0", (T.INT64, [3037000500, 2]), "bigint out of range"),
        ("#0::smallint", (T.INT64, [70000, 7]), "smallint out of range"),
        ("sqrt(#0)", (T.FLOAT64, [-1.0, 4.0]), "cannot take square root of a negative number"),
        ("#0::bigint", (T.TEXT, ["abc", "12"]), "invalid input syntax for type bigint"),
        ("#0::bigint", (T.TEXT, [str(1 << 63), str((1 << 63) - 1)]), "bigint out of range"),
    ],
)
def test_what_a_column_fails_with_a_constant_fails_with_too(
    text: str, values: tuple[ColumnType, list[Any]], error: str
) -> None:
    """BUG79: an overflow is an error of its row, and the same however it was computed."""
    type_, (bad, good) = values
    column = Column("x", type_, True)
    failed, fine = evaluate(parse_expr(text), [column], [(bad,), (good,)])
    assert failed == f"eval-error: {error}"
    assert isinstance(fine, int | float)
    shown = format_scalar(bad, column)
    typed = shown if type_ is T.TEXT else f"({shown})"
    assert evaluate(parse_expr(text.replace("#0", typed)), [], [()]) == [failed]
