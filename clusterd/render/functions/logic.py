"""Logic and NULL: what decides for itself what NULL and errors mean.

Does not: loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clusterd.render.functions.comparison import compare, order_of
from clusterd.render.functions.evaluated import (
    Bools,
    Codes,
    Evaluated,
    first_errors,
    fixed,
    step,
    told,
    with_nulls,
)
from clusterd.render.functions.registry import CallSite, opened
from shm_arrangements.columns import Column
from shm_arrangements.types import AnyType, ColumnType

__all__ = ["Truth", "chosen", "logic", "of_truth", "truth"]


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean column as masks; a row in neither, without an error, is NULL."""

    true: Bools
    false: Bools
    errors: Codes | None


def truth(evaluated: Evaluated) -> Truth:
    """The masks of a boolean column."""
    values, valid = evaluated.column.values, evaluated.column.validity
    if valid is None:
        return Truth(values, ~values, evaluated.errors)
    return Truth(values & valid, ~values & valid, evaluated.errors)


def of_truth(masks: Truth) -> Evaluated:
    """The inverse of `truth`."""
    return fixed(ColumnType.BOOL, masks.true, masks.true | masks.false, masks.errors)


def logic(is_and: bool, args: Sequence[Evaluated]) -> Evaluated:
    """AND or OR of at least one boolean."""
    total = truth(args[0])
    for argument in args[1:]:
        one = truth(argument)
        errors = first_errors(total.errors, one.errors)
        if is_and:
            total = Truth(total.true & one.true, total.false | one.false, errors)
        else:
            total = Truth(total.true | one.true, total.false & one.false, errors)
    if total.errors is None:
        return of_truth(total)
    # What decides alone makes an error beside it unseen.
    decided = total.false if is_and else total.true
    return of_truth(Truth(total.true, total.false, total.errors * ~decided))


@opened("and")
def _and(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return logic(True, args)


@opened("or")
def _or(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return logic(False, args)


@opened("between")
def _between(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    value, low, high = args
    return logic(True, [compare(">=", value, low), compare("<=", value, high)])


@opened("in")
def _in(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    value, *items = args
    return logic(False, [compare("=", value, item) for item in items])


@opened("not")
def _not(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    masks = truth(args[0])
    return of_truth(Truth(masks.false, masks.true, masks.errors))


def _nulls(argument: Evaluated) -> Bools:
    valid = argument.column.validity
    return np.zeros(len(argument.column), np.bool_) if valid is None else ~valid


@opened("is_null")
def _is_null(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return fixed(ColumnType.BOOL, _nulls(args[0]), None, args[0].errors)


@opened("is_unknown")
def _is_unknown(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return fixed(ColumnType.BOOL, _nulls(args[0]), None, args[0].errors)


@opened("is_true")
def _is_true(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return fixed(ColumnType.BOOL, truth(args[0]).true, None, args[0].errors)


@opened("is_false")
def _is_false(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return fixed(ColumnType.BOOL, truth(args[0]).false, None, args[0].errors)


def chosen(
    type_: AnyType, which: np.ndarray[tuple[int], np.dtype[np.int64]], arms: Sequence[Evaluated]
) -> Evaluated:
    """Row i of arm which[i] (n,), with its error; the arms have length 1 or n."""
    n = len(which)
    starts = np.cumsum([0, *(len(arm.column) for arm in arms)])[:-1]
    steps = np.array([step(arm.column) for arm in arms], np.int64)
    pick = starts.astype(np.int64)[which] + steps[which] * np.arange(n, dtype=np.int64)
    column = Column.concat(type_, [arm.column for arm in arms]).take(pick)
    if all(arm.errors is None for arm in arms):
        return Evaluated(column)
    parts = [np.zeros(len(a.column), np.uint32) if a.errors is None else a.errors for a in arms]
    errors = np.concatenate(parts)[pick]
    return Evaluated(column, errors if errors.any() else None)


@opened("coalesce")
def _coalesce(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    which = np.full(n, len(args) - 1, np.int64)
    open_ = np.ones(n, np.bool_)
    for position, argument in enumerate(args[:-1]):
        # An error is looked at: it is this row's, unless something before it was not NULL.
        here = ~_nulls(argument) if argument.errors is None else ~_nulls(argument) | (argument.errors != 0)
        which[open_ & here] = position
        open_ = open_ & ~here
    return chosen(call.result.type, which, args)


@opened("nullif")
def _nullif(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    first, second = args
    _, equal = order_of(first.column, second.column)
    same = equal & ~_nulls(first) & ~_nulls(second)
    column = (
        first.column if len(first.column) == len(same) else first.column.take(np.zeros(len(same), np.int64))
    )
    return with_nulls(column, ~same, first.errors, second.errors)


def _extreme(call: CallSite, args: Sequence[Evaluated], n: int, greatest: bool) -> Evaluated:
    best = args[0]
    for other in args[1:]:
        less, _ = order_of(best.column, other.column)
        more, _ = order_of(other.column, best.column)
        better = np.broadcast_to((less if greatest else more) & ~_nulls(other) | _nulls(best), n)
        errors = first_errors(best.errors, other.errors)
        plain = [Evaluated(best.column), Evaluated(other.column)]
        best = with_nulls(chosen(call.result.type, better.astype(np.int64), plain).column, None, errors)
    return best


@opened("greatest")
def _greatest(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return _extreme(call, args, n, True)


@opened("least")
def _least(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return _extreme(call, args, n, False)


@opened("error")
def _error(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    codes = np.full(1, told(str(call.constants[0])), np.uint32)
    return Evaluated(Column.nulls(ColumnType.BOOL, 1), codes)


def _count(args: Sequence[Evaluated], n: int, nulls: bool) -> Evaluated:
    total = np.zeros(n, np.int64)
    for argument in args:
        total += _nulls(argument) == nulls
    return fixed(ColumnType.INT64, total, None, *(argument.errors for argument in args))


@opened("num_nulls")
def _num_nulls(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return _count(args, n, True)


@opened("num_nonnulls")
def _num_nonnulls(call: CallSite, args: Sequence[Evaluated], n: int) -> Evaluated:
    return _count(args, n, False)
