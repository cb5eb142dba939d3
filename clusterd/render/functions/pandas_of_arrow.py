"""What pyarrow makes of pandas: decided when a worker starts, not while it reads.

At its first conversion to numpy pyarrow loads pandas, if that is installed, which takes most of a second in
which the worker answers nobody; whether it found it, it remembers for good. A worker has no use for it, but
the user's functions may (`Array.to_pandas`).

Does not: keep anybody from importing pandas afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pyarrow as pa

__all__ = ["settle_pandas"]


class _Absent:
    """A finder of modules to which there is no pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow is to do without pandas here", name=name)


def settle_pandas(*, wanted: bool) -> None:
    """Once a process: let pyarrow load pandas now, if it is there and `wanted`, and else never."""
    absent = _Absent()
    if not wanted and "pandas" not in sys.modules:
        sys.meta_path.insert(0, absent)
    try:
        pa.array([True]).to_numpy(zero_copy_only=False)
    finally:
        if absent in sys.meta_path:
            sys.meta_path.remove(absent)
