"""What a Reduce owes for a multiset of rows: its rows and its errors, by Python's integers and fractions.

Rows hold values as `Column.to_pylist` gives them, made hashable by `frozen`. Nothing here knows an operator.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import numpy as np

from clusterd.dataflow.operator import Columns
from clusterd.operators.aggregates import AggregateCall, result_spec
from shm_arrangements.types import ColumnSpec, ColumnType

Row = tuple[Any, ...]
T = ColumnType
FLOATS = (T.FLOAT32, T.FLOAT64)
UNSIGNED = (T.UINT16, T.UINT32, T.UINT64)
SPREADS = ("variance", "var_samp", "var_pop", "stddev", "stddev_samp", "stddev_pop")
NAN = "nan"


def frozen(value: Any) -> Any:
    """A hashable value, equal where the system's are: NaN is one value, -0.0 is 0.0, lists are tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    return value


def compare(a: Any, b: Any) -> int:
    """Order of two values of one type; NULL is last, NaN the last number."""
    if a is None or b is None:
        return (a is None) - (b is None)
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=False):
            order = compare(x, y)
            if order:
                return order
        return (len(a) > len(b)) - (len(a) < len(b))
    if NAN in (a, b) and not (isinstance(a, str) and isinstance(b, str) and a != NAN != b):
        return (a == NAN) - (b == NAN)
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return (a > b) - (a < b)


class Unfit(Exception):
    """An error in place of a result."""


def show(row: Sequence[Any]) -> str:
    return f"({', '.join('NULL' if v is None else str(v) for v in row)})"


def label(call: AggregateCall) -> str:
    return f"{call.function}(distinct)" if call.distinct else call.function


def nearest(exact: Fraction, type_: ColumnType) -> float:
    """The nearest float, ties to even. Raises: OverflowError."""
    double = exact.numerator / exact.denominator
    if type_ is T.FLOAT64:
        return double
    with np.errstate(over="ignore"):
        near = np.float32(double)
    if np.isinf(near):
        # Below half a unit over the greatest it is still that one.
        greatest = np.finfo(np.float32).max
        if abs(exact) >= Fraction(float(greatest)) + Fraction(2) ** 103:
            raise OverflowError
        return math.copysign(float(greatest), double)
    with np.errstate(over="ignore"):
        around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    by = sorted(
        (v for v in around if np.isfinite(v)),
        key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1),
    )
    return float(by[0])


def floats(counts: dict[Any, int]) -> tuple[Any, Fraction]:
    """(NaN or an infinity if they decide, else None; the exact sum of the rest)."""
    nan, up, down = counts.get(NAN, 0), counts.get(math.inf, 0), counts.get(-math.inf, 0)
    rest = {v: n for v, n in counts.items() if v != NAN and not math.isinf(v)}
    total = sum((Fraction(v) * n for v, n in rest.items()), Fraction(0))
    if nan or ((up > 0 or down < 0) and (down > 0 or up < 0)):
        return NAN, total
    if up or down:
        return (math.inf if up > 0 or down < 0 else -math.inf), total
    return None, total


def sum_of(counts: dict[Any, int], result: ColumnType) -> Any:
    if result not in FLOATS:
        total = sum(v * n for v, n in counts.items())
        if abs(total) >= 10**38:
            raise OverflowError
        return total
    special, exact = floats(counts)
    return nearest(exact, result) if special is None else special


def mean_of(counts: dict[Any, int], result: ColumnSpec, of: ColumnSpec) -> Any:
    n = sum(counts.values())
    if result.type is T.FLOAT64:
        total = sum_of(counts, T.FLOAT64)
        return NAN if total == NAN else total / n
    exact = Fraction(sum(v * k for v, k in counts.items()) * 10 ** (result.scale - of.scale), n)
    rounded = math.floor(abs(exact) + Fraction(1, 2))
    if rounded >= 10**38:
        raise OverflowError
    return rounded if exact >= 0 else -rounded


def spread_of(function: str, counts: dict[Any, int], of: ColumnSpec) -> Any:
    n = sum(counts.values())
    is_known = n != 0 and ("pop" in function or n != 1)
    if of.type in FLOATS and any(counts.get(v, 0) for v in (NAN, math.inf, -math.inf)):
        return NAN if is_known else None
    total = sum((Fraction(v) * k for v, k in counts.items()), Fraction(0))
    squares = sum((Fraction(v) ** 2 * k for v, k in counts.items()), Fraction(0))
    above = n * squares - total * total
    if above < 0:
        raise Unfit
    if not is_known:
        return None
    below = float(n) * float(n if "pop" in function else n - 1)
    out = nearest(above, T.FLOAT64) / below / float(10 ** (2 * of.scale))
    return math.sqrt(out) if function.startswith("stddev") else out


def json_of(value: Any) -> str:
    if isinstance(value, float | str) and value in (NAN, math.inf, -math.inf) and value != "inf":
        return {NAN: '"NaN"', math.inf: '"Infinity"'}.get(value, '"-Infinity"')
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def ordering(call: AggregateCall) -> Callable[[Row], Any]:
    """A sort key of rows: as the call asks, then by its arguments."""

    def rows(a: Row, b: Row) -> int:
        for item in call.order:
            x, y = a[item.column], b[item.column]
            order = compare(x, y)
            if order and (x is None or y is None):
                return -order if item.nulls_first else order
            if order:
                return -order if item.descending else order
        for k in (call.column, *call.args):
            order = compare(a[k], b[k])
            if order:
                return order
        return 0

    return cmp_to_key(rows)


def list_of(call: AggregateCall, counts: Counter[Row]) -> Any:
    assert call.column is not None
    listed: list[Row] = []
    for row in sorted(counts, key=ordering(call)):
        listed += [row] * (1 if call.distinct else counts[row])
    values = [row[call.column] for row in listed]
    if call.function == "array_agg":
        return tuple(values)
    if call.function == "jsonb_agg":
        return f"[{','.join(map(json_of, values))}]"
    if call.function == "string_agg":
        texts = [(row[call.args[0]] or "") * (at > 0) + row[call.column] for at, row in enumerate(listed)]
        return "".join(texts) if texts else None
    pairs = {row[call.column]: json_of(row[call.args[0]]) for row in listed}
    return "{" + ",".join(f"{json_of(key)}:{pairs[key]}" for key in sorted(pairs)) + "}"


def accumulated(call: AggregateCall, types: Columns, counts: dict[Any, int], every: int) -> Any:
    """counts: of values that are not NULL. Raises: Unfit with the code of the fault, OverflowError."""
    if call.column is None:
        return every
    of, n = types[call.column], sum(counts.values())
    if call.function == "count":
        return n
    if call.function in ("bool_and", "bool_or"):
        if min(counts.get(True, 0), counts.get(False, 0)) < 0:
            raise Unfit
        if n == 0:
            return None
        return counts.get(False, 0) == 0 if call.function == "bool_and" else counts.get(True, 0) > 0
    if call.function in SPREADS:
        return spread_of(call.function, counts, of)
    if of.type in UNSIGNED:
        total = sum(v * k for v, k in counts.items())
        if n < 0 or total < 0 or (n == 0 and total):
            raise Unfit
    if n == 0:
        return None
    result = result_spec(call, types)
    return sum_of(counts, result.type) if call.function == "sum" else mean_of(counts, result, of)


def type_name(call: AggregateCall, types: Columns) -> str:
    return {T.FLOAT64: "double precision", T.FLOAT32: "real"}.get(result_spec(call, types).type, "numeric")


def reduce_naively(
    types: Columns, key: Sequence[int], calls: Sequence[AggregateCall], rows: Counter[Row]
) -> tuple[Counter[Row], Counter[str]]:
    oks: Counter[Row] = Counter()
    errs: Counter[str] = Counter()
    groups: dict[Row, Counter[Row]] = {}
    for row, count in rows.items():
        groups.setdefault(tuple(row[k] for k in key), Counter())[tuple(map(frozen, row))] += count
    for group, mine in groups.items():
        _reduce_group(types, tuple(map(frozen, group)), calls, mine, oks, errs)
    return oks, errs


def _asks_for_rows(call: AggregateCall) -> bool:
    """Whether the values are looked at one by one, so that none may be below zero."""
    return call.kind != "accumulable" or (call.column is not None and call.source[1])


def _reduce_group(
    types: Columns, group: Row, calls: Sequence[AggregateCall], mine: Counter[Row], oks: Counter[Row],
    errs: Counter[str],
) -> None:  # fmt: skip
    total = sum(mine.values())
    unsigned = [call for call in calls if _asks_for_rows(call)]
    present = total > 0 if unsigned or not calls else total != 0
    if not calls and total < 0:
        errs[f"invalid-data: distinct: row {show(group)} has multiplicity {total}"] += 1
    lists = {c: _listed(types, c, group, mine, errs) for c in unsigned if c.kind == "basic"}
    one_by_one = {(c.column, c.kind) for c in unsigned if c.kind != "basic"}
    for column in dict.fromkeys(c.column for c in unsigned if c.kind != "basic" or _skips_nulls(c)):
        assert column is not None
        name = label(next(c for c in unsigned if c.column == column))
        counts = Counter[Any]()
        for row, n in mine.items():
            counts[row[column]] += n
        for value, n in counts.items():
            what = "NULL of group" if value is None else "group and value"
            shown = show(group) if value is None else show((*group, value))
            times = 1 if value is None else len([kind for k, kind in one_by_one if k == column])
            if n < 0 and times:
                errs[f"invalid-data: {name}: {what} {shown} has multiplicity {n}"] += times
    results: list[Any] = []
    for call in calls:
        try:
            if call.kind == "basic":
                results.append(list_of(call, +lists[call]))
            elif call.kind == "hierarchical":
                there = sorted(
                    (v for v, n in _values(call, mine, distinct=False).items() if n > 0),
                    key=cmp_to_key(compare),
                )
                results.append((there[0] if call.function == "min" else there[-1]) if there else None)
            else:
                distinct = call.column is not None and call.source[1]
                results.append(accumulated(call, types, _values(call, mine, distinct=distinct), total))
        except OverflowError:
            if present:
                errs[
                    f"eval-error: {type_name(call, types)} out of range: {label(call)} of group {show(group)}"
                ] += 1
            results.append(Unfit)
        except Unfit:
            errs[
                f"invalid-data: {label(call)}: values of group {show(group)} have negative multiplicity"
            ] += 1
            results.append(Unfit)
    if present and Unfit not in results:
        oks[(*group, *results)] += 1


def _skips_nulls(call: AggregateCall) -> bool:
    return call.function in ("string_agg", "jsonb_object_agg")


def _values(call: AggregateCall, mine: Counter[Row], *, distinct: bool) -> dict[Any, int]:
    counts: Counter[Any] = Counter()
    for row, n in mine.items():
        if call.column is not None and row[call.column] is not None:
            counts[row[call.column]] += n
    if distinct:
        return {v: 1 for v, n in counts.items() if n > 0}
    return {v: n for v, n in counts.items() if n}


def _listed(
    types: Columns, call: AggregateCall, group: Row, mine: Counter[Row], errs: Counter[str]
) -> Counter[Row]:
    """The rows that the list is made of, other columns than it looks at left out."""
    assert call.column is not None
    looked_at = tuple(dict.fromkeys((*(item.column for item in call.order), call.column, *call.args)))
    counts: Counter[Row] = Counter()
    for row, n in mine.items():
        if _skips_nulls(call) and row[call.column] is None:
            if call.function == "jsonb_object_agg":
                errs["eval-error: jsonb_object_agg: a key is NULL"] += n
            continue
        counts[tuple(v if k in looked_at else None for k, v in enumerate(row))] += n
    json_column = {"jsonb_agg": call.column, "jsonb_object_agg": (*call.args, None)[0]}.get(call.function)
    for row, n in counts.items():
        if n < 0:
            values = [row[k] for k in looked_at]
            if json_column is not None:
                values.append(json_of(row[json_column]))
            what = f"group and value {show((*group, *values))}"
            errs[f"invalid-data: {label(call)}: {what} has multiplicity {n}"] += 1
    return counts
