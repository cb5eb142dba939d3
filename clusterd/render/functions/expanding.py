"""Table functions: who implements what, and the pieces that their rows come in.

An implementation gets its argument columns, each of length 1 or n and without NULL, and n; it yields rows in
pieces of at most BLOCK_ROWS, and those of one row of the input stand together, in order. Rows with a NULL
argument give nothing: here, once for all. What it yields may be cut wherever it is, so a series of any length
and a list of any size need the memory of a piece beside their own.

Does not: know where the rows come from (operators/flat_map.py does).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from clusterd.dataflow.operator import BLOCK_ROWS, Columns
from clusterd.render.functions.evaluated import Codes, Ints, all_valid
from controller_proto.functions import TABLE_FUNCTIONS
from shm_arrangements.columns import Column

__all__ = ["Expand", "Made", "TableCall", "cut_rows", "expanding", "implemented_tables", "table_function"]


@dataclass(frozen=True, slots=True)
class TableCall:
    """A call as it was resolved. signature: its text in the table. columns: what the function appends."""

    function: str
    signature: str
    args: Columns
    columns: Columns
    with_ordinality: bool = False


# Rows of the input, and for each the columns made for it; or rows that fail, and their codes.
Made = tuple[Ints, tuple[Column, ...]] | tuple[Ints, Codes]
Expand = Callable[[TableCall, Sequence[Column], int], Iterator[Made]]

_FOUND: Final[dict[tuple[str, str], Expand]] = {}


def expanding(name: str, *signatures: str) -> Callable[[Expand], Expand]:
    """Register an implementation of these signatures, or of all that the function has."""

    def register(function: Expand) -> Expand:
        def run(call: TableCall, args: Sequence[Column], n: int) -> Iterator[Made]:
            valid = all_valid(args)
            if valid is None or valid.all():
                yield from function(call, args, n)
                return
            kept = np.flatnonzero(np.broadcast_to(valid, n))
            if not len(kept):
                return
            args = [column if len(column) == 1 else column.take(kept) for column in args]
            for rows, made in function(call, args, len(kept)):
                yield kept[rows], made  # type: ignore[misc]

        for text in signatures or [each.text for each in TABLE_FUNCTIONS[name].signatures]:
            assert (name, text) not in _FOUND, f"{name}({text}) is implemented twice"
            _FOUND[name, text] = run
        return function

    return register


def _load() -> None:
    for module in ("series", "unnesting"):
        importlib.import_module(f"clusterd.render.functions.{module}")


def table_function(call: TableCall) -> Expand:
    """The implementation of a call."""
    _load()
    return _FOUND[call.function, call.signature]


def implemented_tables() -> frozenset[tuple[str, str]]:
    """Every name and signature that has an implementation."""
    _load()
    return frozenset(_FOUND)


def cut_rows(ends: Ints) -> Iterator[tuple[Ints, slice]]:
    """Rows of n spans, `ends` (n + 1,) from 0, in pieces: the row of each place, and which places."""
    total = int(ends[-1])
    for lo in range(0, total, BLOCK_ROWS):
        hi = min(lo + BLOCK_ROWS, total)
        first = int(np.searchsorted(ends, lo, side="right")) - 1
        last = int(np.searchsorted(ends, hi, side="left"))
        sizes = np.minimum(ends[first + 1 : last + 1], hi) - np.maximum(ends[first:last], lo)
        yield np.repeat(np.arange(first, last, dtype=np.int64), sizes), slice(lo, hi)
