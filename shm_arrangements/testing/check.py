"""Every read of a chain, at every readable time, against the model.

Through views and below them: scans whole and in pieces, lookups of one key and of many, changes. Keys are
asked for that are there, that were, that will be, and twice; what is found must come in the keys' order.

Does not: drive a trace (suite.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column
from shm_arrangements.conversion import to_python
from shm_arrangements.errors import DataError
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.testing.model import Model, Row, normal_row, rows_of, some_value, updates_of
from shm_arrangements.view import ReadView, Result

_SINGLE = 3  # keys that are looked up one by one, of all that are looked up together
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
        for t2 in {upper - 1, (t + upper) // 2}:
            changes = read.updates_between(batches, t, t2, schema=schema)
            assert updates_of(changes) == model.between(t, t2), f"changes from {t} to {t2}"


def check_chain(batches: Sequence[Batch], upper: int) -> None:
    """The batches abut from the minimum time to `upper`, and each is sound."""
    at = Frontier.minimum()
    for batch in batches:
        assert batch.description.lower == at, f"gap before {batch}"
        at = batch.description.upper
        batch.validate_state()
        assert batch.checksum_holds()
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
