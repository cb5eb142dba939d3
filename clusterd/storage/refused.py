"""Which row of a file it was: refusals of values get the file's name and the row's number.

Columns are read whole, so what cannot be taken is told without its row. It is looked for only then, by
halves: what is refused depends on one value alone.

Does not: read files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from controller_proto.errors import Refusal

__all__ = ["at_row", "find_refused", "refused_value"]


def at_row(file: Path, row: int, refusal: Refusal) -> Refusal:
    """The same refusal, of row `row` of `file`. Rows count from 1, without a line of names."""
    return Refusal(refusal.code, f"{file}, row {row}: {refusal.message}", refusal.hint)


def refused_value(
    file: Path,
    first_row: int,
    values: Sequence[Any],
    check: Callable[[Sequence[Any]], object],
    refusal: Refusal,
) -> Refusal:
    """`refusal` of all `values` by `check`, as that of the row of `file` that it is about.

    first_row: the number of the first value's row.
    """
    found = find_refused(lambda lo, hi: check(values[lo:hi]), len(values))
    return refusal if found is None else at_row(file, first_row + found[0], found[1])


def find_refused(check: Callable[[int, int], object], n: int) -> tuple[int, Refusal] | None:
    """The first of `n` rows for which `check(lo, hi)` raises a Refusal, and that refusal; None if there is
    none. Costs as much as checking twice all rows.
    """

    def refusal(lo: int, hi: int) -> Refusal | None:
        try:
            check(lo, hi)
        except Refusal as refused:
            return refused
        return None

    lo, hi = 0, n
    found = refusal(lo, hi) if n else None
    while found is not None and hi - lo > 1:
        middle = (lo + hi) // 2
        before = refusal(lo, middle)
        if before is not None:
            found, hi = before, middle
        else:
            lo = middle
            found = refusal(lo, hi) or found
    return None if found is None else (lo, found)
