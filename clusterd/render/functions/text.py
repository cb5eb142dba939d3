"""Text.

Does not: loop over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clusterd.operators.kernels import scalar
from clusterd.render.functions.evaluated import rows_of, step
from clusterd.render.functions.registry import CallSite, Outcome, strict
from clusterd.render.functions.texts import plain_texts
from shm_arrangements.columns import Column

__all__ = ["joined"]


def joined(a: Column, b: Column) -> Column:
    """Texts of `a`, each followed by that of `b`; NULL as an empty one."""
    n = rows_of((a, b))
    (a_data, a_offsets), (b_data, b_offsets) = plain_texts(a), plain_texts(b)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(np.broadcast_to(np.diff(a_offsets) + np.diff(b_offsets), n), out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    scalar.text_concat(a_data, a_offsets, step(a), b_data, b_offsets, step(b), offsets, data)
    return Column(a.type, data, offsets)


@strict("||")
def _concat(call: CallSite, args: Sequence[Column]) -> Outcome:
    return joined(*args)
