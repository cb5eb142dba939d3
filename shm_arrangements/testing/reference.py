"""What each kernel computes, in plain numpy and Python: slow, obvious, and written without the kernel.

Does not: share code with the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def sort_codes(codes: NDArray[np.uint64]) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """The stable order of codes, and the codes in it."""
    order: Any = np.argsort(codes, kind="stable")
    return order.astype(np.uint32), codes[order]
