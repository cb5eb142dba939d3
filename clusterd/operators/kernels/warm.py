"""Warming of the operators' kernels: all of them, and those below, compiled before a worker says it is ready.

A kernel has one declared signature, so compiling is all there is to warm (shm_arrangements/kernels/warm.py).

Does not: run anything on data.
"""

from __future__ import annotations

import importlib
import pkgutil

import clusterd.operators.kernels as kernels
from shm_arrangements.kernels import warm as lower

__all__ = ["warm"]


def warm() -> int:
    """Compile every kernel, or load it from the cache. Returns how many there are."""
    for module in pkgutil.iter_modules(kernels.__path__, kernels.__name__ + "."):
        importlib.import_module(module.name)
    return lower.warm()
