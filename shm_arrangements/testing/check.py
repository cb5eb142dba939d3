"""Every read of a chain, at every readable time, against the model.

Through views and below them: scans whole and in pieces, lookups of one key and of many, ranges and prefixes
where keys are in order, changes. Keys are asked for that are there, that were, that will be, and twice; what
is found must come in the keys' order.

Does not: drive a trace (suite.py).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column
from shm_arrangements.conversion import to_python
from shm_arrangements.errors import DataError
from shm_arrangements.frontier import Frontier
from shm_arrangements.result import Result
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.testing.meaning import bytes_of, key_of
from shm_arrangements.testing.model import Model, Row, normal_row, rows_of, some_value, updates_of
from shm_arrangements.types import VARIABLE
from shm_arrangements.updates import Updates
from shm_arrangements.view import ReadView

_SINGLE = 3  # keys that are looked up one by one, of all that are looked up together
_RANGES = 2  # and as many prefixes, a time
_PIECE = 2  # rows a piece of a scan

Counts = dict[Row, int]


def check_trace(
    batches: Sequence[Batch],
    schema: ArrangementSchema,
    model: Model,
    since: int,
    upper: int,
    *,
    rows: Iterable[Sequence[object]] = (),
) -> None:
    """Compare every read of a chain, at every time in [since, upper), with the model.

    rows: further ones whose keys are asked for.  Raises: AssertionError saying what differs.
    """
    check_chain(batches, upper)
    known = {row for row, _, _ in model.updates} | {normal_row(row) for row in rows}
    keys = sorted({_key_of(schema, row) for row in known}, key=repr)
    for t in range(since, upper):
        wanted = model.at(t)
        _check_scans(batches, schema, t, wanted)
        if keys and schema.key:
            _check_lookups(batches, schema, t, wanted, keys)
            if schema.code is not CodeKind.HASH:
                _check_ranges(batches, schema, t, wanted, keys)
        for t2 in {upper - 1, (t + upper) // 2}:
            changes = read.updates_between(batches, t, t2, schema=schema)
            assert updates_of(changes) == model.between(t, t2), f"changes from {t} to {t2}"
            shown = ReadView("trace", schema, batches, (), t2).changes(t)
            assert updates_of(Updates(shown.raw_columns(), shown.times, shown.diffs)) == model.between(t, t2)


def check_chain(batches: Sequence[Batch], upper: int) -> None:
    """The batches abut from the minimum time to `upper`, and each is sound."""
    at = Frontier.minimum()
    for batch in batches:
        assert batch.description.lower == at, f"gap before {batch}"
        at = batch.description.upper
        batch.validate_state()
    assert at == Frontier.at(upper), f"the chain ends at {at}, not at {upper}"


def _check_scans(batches: Sequence[Batch], schema: ArrangementSchema, t: int, wanted: Counts) -> None:
    assert rows_of(*read.scan_at(batches, t, schema=schema)) == wanted, f"scan at {t}"
    pieces: Counts = {}
    for columns, counts in read.scan_pieces_at(batches, t, _PIECE, schema=schema):
        piece = rows_of(columns, counts)
        assert not piece.keys() & pieces.keys(), "a row is in two pieces"
        pieces |= piece
    assert pieces == wanted, f"scan in pieces at {t}"
    result = _answer(ReadView("trace", schema, batches, (), t).scan, wanted)
    assert result is None or rows_of(result.raw_columns(), result.counts) == wanted, f"view at {t}"


def _check_lookups(
    batches: Sequence[Batch], schema: ArrangementSchema, t: int, wanted: Counts, keys: list[Row]
) -> None:
    of_key: dict[Row, Counts] = defaultdict(dict)
    for row, count in wanted.items():
        of_key[_key_of(schema, row)][row] = count
    asked = [*keys, keys[0], keys[-1]]  # out of order, and some twice
    specs = schema.key_specs
    values = [tuple(some_value(s.type, v) for s, v in zip(specs, key, strict=True)) for key in asked]
    columns = tuple(Column.from_pylist(s.type, [key[i] for key in values]) for i, s in enumerate(specs))
    found, counts, index = read.lookup_at(batches, t, columns, schema=schema)
    assert (index[1:] >= index[:-1]).all(), "keys out of order"
    parts: list[Counts] = [{} for _ in asked]
    rows = zip(*(column.to_pylist() for column in found), strict=True)
    for row, count, at in zip(map(normal_row, rows), counts.tolist(), index.tolist(), strict=True):
        assert row not in parts[at], f"row {row} comes twice for key {at}"
        parts[at][row] = count
    for key, part in zip(asked, parts, strict=True):
        assert part == of_key.get(key, {}), f"lookup of {key} at {t}"
    view = ReadView("trace", schema, batches, (), t)
    given = list(zip(*(to_python(s, column) for s, column in zip(specs, columns, strict=True)), strict=True))
    if len(specs) == 1:
        given = [value for (value,) in given]
    for key, value in list(zip(asked, given, strict=True))[:: max(len(asked) // _SINGLE, 1)]:
        mine = of_key.get(key, {})
        result = _answer(partial(view.lookup, value), mine)
        assert result is None or rows_of(result.raw_columns(), result.counts) == mine, f"{key} at {t}"
    every = {row: count for key in asked for row, count in of_key.get(key, {}).items()}
    result = _answer(partial(view.lookup_many, given), every)
    if result is not None:
        assert result.key_index is not None
        assert (result.counts == counts).all(), f"lookup_many at {t}"
        assert (result.key_index == index).all(), f"lookup_many at {t}"


def _check_ranges(
    batches: Sequence[Batch], schema: ArrangementSchema, t: int, wanted: Counts, keys: list[Row]
) -> None:
    """Ranges and prefixes between keys that the time and their number choose."""
    specs = schema.key_specs
    draws = random.Random(t << 8 | len(keys))
    order = {row: _order_of(schema, _key_of(schema, row)) for row in wanted}
    for _ in range(_RANGES):
        lower, upper = ((draws.choice(keys) * draws.choice([0, 1, 1]))[: draws.randint(1, len(specs))]
                        for _ in range(2))  # fmt: skip
        from_, to, nulls = draws.random() < 0.5, draws.random() < 0.5, draws.random() < 0.5
        above, below = _order_of(schema, lower), _order_of(schema, upper)
        expected = {
            row: count
            for row, count in wanted.items()
            if (at := order[row][: len(lower)]) > above or (at == above and (from_ or not lower))
            if (at := order[row][: len(upper)]) < below or (at == below and (to or not upper))
            if upper or nulls or order[row][0] != (1,)
        }
        columns, counts = read.range_at(
            batches, t, _columns_of(schema, lower), _columns_of(schema, upper),
            include_lower=from_, include_upper=to, nulls=nulls, schema=schema,
        )  # fmt: skip
        what = f"range {lower} .. {upper}, {from_}, {to}, {nulls} at {t}"
        assert rows_of(columns, counts) == expected, what
        _check_order(schema, columns, what)
        prefix = draws.choice(keys)[: draws.randint(1, len(specs))]
        expected = {
            row: count for row, count in wanted.items() if _begins(schema, _key_of(schema, row), prefix)
        }
        columns, counts = read.prefix_at(batches, t, _columns_of(schema, prefix), schema=schema)
        assert rows_of(columns, counts) == expected, f"prefix {prefix} at {t}"
        _check_order(schema, columns, f"prefix {prefix} at {t}")


def _order_of(schema: ArrangementSchema, key: Row) -> tuple[object, ...]:
    """What orders as the first values of a key do."""
    pairs = zip(schema.key_specs, key, strict=False)
    return tuple(key_of(spec.type, some_value(spec.type, value)) for spec, value in pairs)


def _columns_of(schema: ArrangementSchema, key: Row) -> tuple[Column, ...]:
    pairs = zip(schema.key_specs, key, strict=False)
    return tuple(Column.from_pylist(spec.type, [some_value(spec.type, value)]) for spec, value in pairs)


def _check_order(schema: ArrangementSchema, columns: Sequence[Column], what: str) -> None:
    values = [columns[i].to_pylist() for i in schema.key]
    orders = [_order_of(schema, normal_row(key)) for key in zip(*values, strict=True)]
    assert orders == sorted(orders), f"{what}: not in the order of the keys"


def _begins(schema: ArrangementSchema, key: Row, prefix: Row) -> bool:
    """Whether a key begins with these values, and its text there with the last of them if that is one."""
    *first, last = prefix
    at = len(first)
    if key[:at] != tuple(first):
        return False
    if schema.key_specs[at].type in VARIABLE and last is not None and key[at] is not None:
        return bytes_of(key[at]).startswith(bytes_of(last))
    return bool(key[at] == last)


def _answer(ask: Callable[[], Result], wanted: Counts) -> Result | None:
    """What a view answers; None if it refuses, as it must where a wanted count is negative."""
    refused = any(count < 0 for count in wanted.values())
    try:
        result = ask()
    except DataError:
        assert refused, "refused without a negative count"
        return None
    assert not refused, f"a negative count was shown among {wanted}"
    return result


def _key_of(schema: ArrangementSchema, row: Row) -> Row:
    return tuple(row[i] for i in schema.key)
