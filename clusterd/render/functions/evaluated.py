"""What an expression gives on rows: values, NULL, and errors as data.

A value of a row is one of three things: a value, NULL, or an error code. Errors combine like values do: FALSE
AND error is FALSE, TRUE OR error is TRUE, on whichever side the error stands, and CASE takes value and error
of the chosen arm alone. Where nothing decides, an error outweighs NULL, and the first of two errors is told.
That is why guards need no order of evaluation, which columns do not have.

Every function keeps the canonical form of columns (NULL positions hold zero), and takes a column of length 1
as standing for any number of equal rows.

Does not: compute anything (the modules of the families do), choose functions or types (expr.py does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller_proto.functions import ERRORS
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__ = [
    "MESSAGES", "Bools", "Codes", "Evaluated", "Ints", "all_valid", "code_of", "either", "error_texts",
    "filled",
    "first_errors", "fixed", "rows_of", "step", "told", "with_nulls",
]  # fmt: skip

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Codes = NDArray[np.uint32]

# By error code, from 1. The texts are what a reader sees. Those behind the declared ones are texts of plans
# (`error("...")`), which get a code when they are compiled: a code never leaves its process.
MESSAGES: Final = [f"eval-error: {text}" for text in ERRORS]
_CODES: Final = {text: code for code, text in enumerate(ERRORS, 1)}


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A column and its errors: `errors` (len(column),) codes, 0 for none, or None if no row has one.

    Where there is an error the value is NULL. A column of length 1 stands for any number of equal rows.
    """

    column: Column
    errors: Codes | None = None


def code_of(text: str) -> int:
    """The code of a declared error. Raises KeyError: it is not declared."""
    return _CODES[text]


def told(text: str) -> int:
    """The code of an error whose text a plan or a function of the user gives; kept for good."""
    code = _CODES.get(text)
    if code is None:
        MESSAGES.append(f"eval-error: {text}")
        code = _CODES[text] = len(MESSAGES)
    return code


def filled(evaluated: Evaluated, n: int) -> Evaluated:
    """`evaluated` with n rows of its own."""
    if len(evaluated.column) == n:
        return evaluated
    errors = None if evaluated.errors is None else np.repeat(evaluated.errors, n)
    return Evaluated(evaluated.column.take(np.zeros(n, np.int64)), errors)


def error_texts(codes: Codes) -> Column:
    """The messages of error codes (n,), none of them 0, as a text column."""
    found, inverse = np.unique(codes, return_inverse=True)
    texts = Column.from_pylist(ColumnType.TEXT, [MESSAGES[code - 1] for code in found.tolist()])
    return texts.take(inverse.astype(np.int64))


def rows_of(columns: Sequence[Column]) -> int:
    """How many rows a function of these columns has: a column of length 1 stands for all, also for none."""
    return next((len(column) for column in columns if len(column) != 1), 1)


def step(column: Column) -> int:
    """How far kernels move in a column from row to row."""
    return 0 if len(column) == 1 else 1


def all_valid(columns: Sequence[Column]) -> Bools | None:
    """Where no column is NULL, of length 1 or n; None if nowhere one is."""
    valid: Bools | None = None
    for column in columns:
        more = column.validity
        if more is not None:
            valid = more if valid is None else valid & more
    return valid


def first_errors(*errors: Codes | None) -> Codes | None:
    """Of each row the first code that is not 0."""
    found: Codes | None = None
    for more in errors:
        if more is not None:
            found = more if found is None else np.where(found != 0, found, more)
    return found


def fixed(type_: AnyType, values: NDArray[Any], valid: Bools | None, *errors: Codes | None) -> Evaluated:
    """A result of fixed width: NULL where it is not valid or in error, whatever `values` hold there."""
    n = len(values)
    codes = first_errors(*errors)
    if codes is not None:
        codes = _broadcast(codes, n).astype(np.uint32) if codes.any() else None
    if codes is not None:
        fine = codes == 0
        valid = fine if valid is None else valid & fine
    if valid is not None:
        valid = _broadcast(valid, n)
        if valid.all():
            valid = None
        else:
            values = np.where(valid[:, None] if values.ndim == 2 else valid, values, values.dtype.type(0))
    return Evaluated(Column(type_, np.ascontiguousarray(values), None, valid), codes)


def with_nulls(column: Column, valid: Bools | None, *errors: Codes | None) -> Evaluated:
    """A column of any type, n rows, with NULL where it is not valid or in error, besides where it is."""
    n = len(column)
    codes = first_errors(*errors)
    if codes is not None:
        codes = _broadcast(codes, n).astype(np.uint32) if codes.any() else None
    if codes is not None:
        fine = codes == 0
        valid = fine if valid is None else valid & fine
    if valid is None:
        return Evaluated(column, codes)
    own = column.validity
    valid = _broadcast(valid if own is None else valid & own, n)
    if own is not None and np.array_equal(valid, own):
        return Evaluated(column, codes)
    column = Column(
        column.type, column.values, column.offsets, valid, children=column.children, length=n
    ).canonical()
    return Evaluated(column, codes)


def either(which: Bools, yes: Evaluated, no: Evaluated) -> Evaluated:
    """Of n rows those of `yes` where `which` (n,) is true, else those of `no`, each in turn.

    An argument has as many rows as it is taken from, or one that stands for all of them.
    """
    n = len(which)
    if len(yes.column) == n and which.all():
        return yes
    ranks = np.cumsum(which) - 1
    first = len(yes.column)
    others = np.arange(n, dtype=np.int64) - ranks - 1
    pick = np.where(which, ranks * step(yes.column), first + others * step(no.column))
    column = Column.concat(yes.column.type, (yes.column, no.column)).take(pick)
    if yes.errors is None and no.errors is None:
        return Evaluated(column)
    parts = [np.zeros(len(e.column), np.uint32) if e.errors is None else e.errors for e in (yes, no)]
    return Evaluated(column, np.concatenate(parts)[pick])


def _broadcast(array: NDArray[Any], n: int) -> NDArray[Any]:
    return np.ascontiguousarray(np.broadcast_to(array, n))
