"""Merging of held updates: two runs sorted by (time, mark), as one order.

Does not: compare rows, allocate.
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import OUT_I64, U32, U64, kernel

__all__ = ["merge_order"]


@kernel(U64, U32, U64, U32, OUT_I64)
def merge_order(times: Any, marks: Any, other_times: Any, other_marks: Any, out: Any) -> None:
    """Order all of n and m updates: out (n + m,), where the other's count from n on.

    Equal ones keep their order, those of the first before the other's.
    """
    n, m = times.shape[0], other_times.shape[0]
    i = j = 0
    for k in range(n + m):
        if j == m:
            other = False
        elif i == n:
            other = True
        elif times[i] != other_times[j]:
            other = other_times[j] < times[i]
        else:
            other = other_marks[j] < marks[i]
        if other:
            out[k] = n + j
            j += 1
        else:
            out[k] = i
            i += 1
