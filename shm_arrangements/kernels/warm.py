"""Warming: every kernel compiled, or loaded from numba's cache, before somebody waits for it.

A kernel has one declared signature (jit.py), so compiling that is all there is to warm: no call can ask for
another. The kernels of layers above are found too, if their modules were imported before.

Does not: run anything on data.
"""

from __future__ import annotations

import importlib
import pkgutil

from shm_arrangements import kernels
from shm_arrangements.kernels import jit


def declare() -> None:
    """Import every module of this package, and with it its kernels."""
    for module in pkgutil.iter_modules(kernels.__path__, kernels.__name__ + "."):
        importlib.import_module(module.name)


def warm() -> int:
    """Compile all kernels of this package, and all others declared so far. Returns how many there are."""
    declare()
    return jit.compile_all()
