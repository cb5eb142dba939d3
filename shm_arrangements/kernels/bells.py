"""Cells of a clock: 64 bytes each, {u64 upper, u32 bell}, and the futex by which a process sleeps on a bell.

A cell is eight u64 words; the first is the upper, the low half of the second is the bell. The bell is counted
up and everyone who sleeps on it is woken, by one system call that costs half a microsecond if nobody does;
whoever read the bell before it looked at anything, and sleeps only while the bell still says the same, misses
no ring. It wraps after 2^32 rings; who slept through exactly so many wakes at the end of its slice.

Sleeping needs no right to write: the kernel finds the bell by its file and place, and a read-only mapping of
them will do. Little-endian words are assumed, as everywhere in the format.

Does not: check a time, or know who has which cell (clock.py).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numba import config, types
from numba.extending import intrinsic

from shm_arrangements.bells import EVERYONE, FUTEX, FUTEX_WAIT, FUTEX_WAKE
from shm_arrangements.kernels.jit import I64, OUT_I64, OUT_U64, U64, i64, inner, kernel, u64

CELL_WORDS: Final = 8
BELL_WORD: Final = 1  # within a cell

_WORD_BYTES: Final = 8

# A plain prototype for a variadic function: right where integer arguments go in registers either way.
_syscall: Any = types.ExternalFunction("syscall", i64(i64, i64, i64, i64, i64, i64, i64))


@intrinsic
def _address_of(typingctx: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(builder.gep(data, [args[1]]), context.get_value_type(types.int64))

    return types.int64(array, types.intp), codegen


@intrinsic
def _store_release(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.store_atomic(args[2], builder.gep(data, [args[1]]), "release", _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


_address: Any = _address_of
_store: Any = _store_release

if getattr(config, "DISABLE_JIT", 0):  # only tests run so
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _syscall.argtypes, _syscall.restype = [ctypes.c_long] * 7, ctypes.c_long
    _address, _store = (lambda array, index: array[index:].ctypes.data), np.ndarray.__setitem__


@inner
def _ring(words: Any, at: int) -> None:
    _store(words, at + BELL_WORD, words[at + BELL_WORD] + np.uint64(1))
    _syscall(FUTEX, _address(words, at + BELL_WORD), FUTEX_WAKE, EVERYONE, 0, 0, 0)


@kernel(OUT_U64, i64)
def ring(words: Any, at: int) -> None:
    """Count the bell of the cell that begins at word `at` up, and wake everyone who sleeps on it.

    words: of a clock; this process alone writes to it.
    """
    _ring(words, at)


@kernel(OUT_U64, i64, u64)
def advance(words: Any, at: int, upper: int) -> None:
    """Set the upper of the cell at word `at`, with release, and ring its bell."""
    _store(words, at, upper)
    _ring(words, at)


@kernel(OUT_U64, I64, u64)
def advance_many(words: Any, ats: Any, upper: int) -> int:
    """Set the uppers of the cells at words `ats`, (n,) int64, to `upper`, and ring those that moved.

    All or none: returns -1, or the place in `ats` of a cell whose upper is beyond `upper`.
    """
    wanted = np.uint64(upper)
    for i in range(ats.shape[0]):
        if words[ats[i]] > wanted:
            return i
    for i in range(ats.shape[0]):
        at = ats[i]
        if words[at] != wanted:
            _store(words, at, wanted)
            _ring(words, at)
    return -1


@kernel(U64, i64, i64, OUT_I64)
def sleep(words: Any, at: int, seen: int, timespec: Any) -> int:
    """Sleep while the bell of the cell at word `at` says `seen`, at most for `timespec`; the GIL is released.

    words: may be a read-only mapping. seen: the low 32 bits of the bell's word. timespec: (2,) int64,
    seconds and nanoseconds. Returns 0 if woken by a ring, else -1: it rang before, time is over, or a signal.
    """
    result: int = _syscall(
        FUTEX, _address(words, at + BELL_WORD), FUTEX_WAIT, seen, _address(timespec, 0), 0, 0
    )
    return result
