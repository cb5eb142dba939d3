"""Bounds: where the window of each group of a top-k begins and ends; numbers, or expressions over the group.

An expression reads columns of the group alone, so it is evaluated once for a group that comes, and known as
long as the group has rows. NULL is no limit, or no offset. What fails, or is negative, leaves no window but
an error.

Does not: find out which rows are in the window, or say when a group has an error (windows.py does both).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clusterd.dataflow.operator import BLOCK_ROWS, Columns
from clusterd.operators.growable import Growable
from clusterd.operators.kernels.windows import CODE, END, OFFSET
from clusterd.operators.ordered import MOST_COPIES, MOST_OFFSET, UNLIMITED
from clusterd.operators.row_table import RowTable
from clusterd.operators.time_steps import Work
from clusterd.render.expr import CompiledExpr, compile_expr
from clusterd.render.functions import Codes, Evaluated, error_texts, told
from controller_proto.expr import Expr

__all__ = ["Bounds"]

Ints = NDArray[np.int64]

_UNKNOWN = -2  # an end that no group has


class Bounds:
    """The windows of groups by the positions `group` of `columns`, which is what the expressions number.

    Raises: ValueError for a number that is negative; Refusal(`invalid-plan`) from the compiler.
    """

    def __init__(
        self, columns: Columns, group: Sequence[int], limit: int | Expr | None, offset: int | Expr
    ) -> None:
        self._places = [group.index(k) if k in group else 0 for k in range(len(columns))]
        numbers = (0 if limit is None else limit, offset)
        if any(isinstance(number, int) and number < 0 for number in numbers):
            raise ValueError(f"a window from {offset} of {limit} rows")
        self._limit, self._offset = (
            compile_expr(bound, columns) if bound is not None and not isinstance(bound, int) else bound
            for bound in (limit, offset)
        )
        self.is_constant = not any(isinstance(b, CompiledExpr) for b in (self._limit, self._offset))
        self._by_group = Growable(np.int64, (3,), fill=_UNKNOWN)
        self._constant: Ints = np.zeros((1, 3), np.int64)
        if self.is_constant:
            first, rows = _number(self._offset, 0, MOST_OFFSET), _number(self._limit, UNLIMITED, UNLIMITED)
            self._constant[0] = first, first + rows, 0

    @property
    def a(self) -> Ints:
        """(groups, 3), or (1, 3) if all have the same: offset, end and the code of an error, as kernels want.

        As every array by slot: not to be kept.
        """
        return self._constant if self.is_constant else self._by_group.a

    @property
    def nbytes(self) -> int:
        return self._by_group.nbytes

    def learn(self, groups: RowTable, slots: Ints) -> Work[None]:
        """Find the windows of those groups among `slots` (distinct) that came, piece by piece."""
        if self.is_constant:
            return
        self._by_group.grow(groups.capacity)
        fresh = slots[self._by_group.a[slots, END] == _UNKNOWN]
        for lo in range(0, len(fresh), BLOCK_ROWS):
            self._evaluate(groups, fresh[lo : lo + BLOCK_ROWS])
            yield

    def forget(self, slots: Ints) -> None:
        """Groups that are no more."""
        if not self.is_constant:
            self._by_group.a[slots, END] = _UNKNOWN

    def _evaluate(self, groups: RowTable, slots: Ints) -> None:
        n = len(slots)
        keys = [Evaluated(column) for column in groups.columns(slots)]
        inputs = [keys[place] for place in self._places]  # what is not of the key is not read
        limits, wrong = _numbers(self._limit, "limit", UNLIMITED, UNLIMITED, inputs, n)
        offsets, unfit = _numbers(self._offset, "offset", 0, MOST_OFFSET, inputs, n)
        codes = np.where(wrong != 0, wrong, unfit)
        fine = codes == 0
        found = np.empty((n, 3), np.int64)
        found[:, OFFSET] = np.where(fine, offsets, 0)
        found[:, END] = np.where(fine, offsets + limits, 0)
        found[:, CODE] = codes
        self._by_group.a[slots] = found

    def sees_all(self, slots: Ints) -> NDArray[np.bool_]:
        """(n,) whether the window of a group ends behind more copies than are counted."""
        ends = self.a[slots if not self.is_constant else np.zeros(len(slots), np.int64), END]
        found: NDArray[np.bool_] = ends > MOST_COPIES
        return found

    def errors(self, slots: Ints) -> list[str]:
        """The messages of groups that have an error instead of a window."""
        return [str(text) for text in error_texts(self.a[slots, CODE].astype(np.uint32)).to_pylist()]


def _number(bound: int | CompiledExpr | None, missing: int, most: int) -> int:
    assert not isinstance(bound, CompiledExpr)
    return missing if bound is None else min(bound, most)


def _numbers(
    bound: int | CompiledExpr | None, name: str, missing: int, most: int, inputs: list[Evaluated], n: int
) -> tuple[Ints, Codes]:
    """The numbers of n groups, at most `most`, and the codes of their errors."""
    codes = np.zeros(n, np.uint32)
    if not isinstance(bound, CompiledExpr):
        return np.full(n, _number(bound, missing, most), np.int64), codes
    value = bound(inputs, n)
    column = value.column.plain()
    negative = column.values < 0
    numbers: Ints = np.where(negative, 0, np.minimum(column.values.astype(np.uint64), most)).astype(np.int64)
    if column.validity is not None:
        numbers = np.where(column.validity, numbers, missing)
        negative = negative & column.validity
    codes[negative] = told(f"{name} must not be negative")
    if value.errors is not None:
        codes = np.where(value.errors != 0, value.errors, codes)
    return numbers, codes
