"""How kernels are compiled: one declared signature each, on first use, and never another.

Inputs are declared read-only, which numba also accepts writable arrays for; so one compiled function serves
mapped and private memory, and every schema. A wrong dtype is a TypeError at the call, instead of a compiler
run in the middle of a read. Compilation waits for the first call (or `compile_all`), so importing stays
cheap.

What kernels call is plain `inner`, which has no signature of its own, is compiled into each of its callers,
and may live in any file: the cache (cache.py) knows what a kernel was made of.

Does not: make kernels callable from other kernels; only `inner` functions are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config, njit, types

from shm_arrangements.kernels.cache import cache_of

F = TypeVar("F", bound=Callable[..., Any])

i64 = types.int64
u64 = types.uint64
i32 = types.int32
u32 = types.uint32
void = types.void


def read(dtype: Any, ndim: int = 1) -> Any:
    """The type of an input array: C order, not written."""
    return types.Array(dtype, ndim, "C", readonly=True)


def write(dtype: Any, ndim: int = 1) -> Any:
    """The type of an output array: C order."""
    return types.Array(dtype, ndim, "C")


U8, U32, I64, U64, BOOL, F64 = (read(t) for t in (types.uint8, u32, i64, u64, types.boolean, types.float64))
OUT_U8, OUT_U32, OUT_I64, OUT_U64, OUT_BOOL = (write(t) for t in (types.uint8, u32, i64, u64, types.boolean))
U64_2D, OUT_U64_2D = read(u64, 2), write(u64, 2)
I64_2D, OUT_I64_2D = read(i64, 2), write(i64, 2)
I32, OUT_I32 = read(i32), write(i32)
I32_2D, OUT_I32_2D = read(i32, 2), write(i32, 2)

# Kernels allocate nothing (a copy between slices would), so they need no reference counts: else each call
# of an inner function in a loop pays two atomic operations an array argument, ten times what most of them do.
_OPTIONS: Any = {"nogil": True, "_nrt": False}

_KERNELS: list[Kernel] = []


class Kernel:
    """A compiled function that compiles itself on its first call."""

    __slots__ = ("__wrapped__", "_call", "_signature", "name")

    def __init__(self, function: Callable[..., Any], signature: tuple[Any, ...]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.__wrapped__ = function
        self._signature = signature
        self._call: Callable[..., Any] | None = None
        _KERNELS.append(self)

    def compile(self) -> None:
        if getattr(config, "DISABLE_JIT", 0):
            self._call = self.__wrapped__
            return
        dispatcher: Any = njit(**_OPTIONS)(self.__wrapped__)
        cache = cache_of(self.__wrapped__)
        if cache is None:
            dispatcher.compile(self._signature)
        else:
            dispatcher._cache = cache
            try:
                dispatcher.compile(self._signature)
            finally:
                cache.release()
        dispatcher.disable_compile()
        self._call = dispatcher

    def __call__(self, *arguments: Any) -> Any:
        if self._call is None:
            self.compile()
        return self._call(*arguments)  # type: ignore[misc]

    def direct(self) -> Callable[..., Any]:
        """The compiled function itself, for who calls it so often that a step between costs too much."""
        if self._call is None:
            self.compile()
        assert self._call is not None
        return self._call

    @property
    def is_compiled(self) -> bool:
        return self._call is not None


def kernel(*signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a function a kernel of the given argument types."""
    return lambda function: Kernel(function, signature)


def inner(function: F) -> F:
    """Make a function callable from kernels and other inner functions."""
    return cast("F", njit(**_OPTIONS)(function))


def kernels() -> tuple[Kernel, ...]:
    """Every kernel of the modules imported so far."""
    return tuple(_KERNELS)


def compile_all() -> int:
    """Compile every kernel declared so far. Returns how many there are.

    Processes that do so at once begin at different places, and find the most compiled by the others.
    """
    first = os.getpid() * 7 % max(len(_KERNELS), 1)
    for declared in _KERNELS[first:] + _KERNELS[:first]:
        if not declared.is_compiled:
            declared.compile()
    return len(_KERNELS)
