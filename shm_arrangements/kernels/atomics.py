"""Atomic words: the one pair of operations by which processes agree without a lock.

`store_release`: what this process wrote before is seen by whoever sees the word. `load_acquire`: what is
read afterwards is at least as new as the word. `fence_then_load`: what was read before is no newer than
the word: the second look of a reader that copies and rechecks. `fence`: nothing passes, either way; a
writer needs it between storing a word and overwriting what readers of the older word might be copying.

On x86-64 these are plain moves and one fence; elsewhere plain stores are not enough, and numpy does not
even promise that a u64 is stored in one piece.

Does not: offer exchange or add: every word here has one writer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import config, types
from numba.extending import intrinsic

from shm_arrangements.kernels.cells import load_u64
from shm_arrangements.kernels.jit import I64, OUT_U64, U64, i64, kernel, u64

_WORD_BYTES = 8


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """The address of `array[index]`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def _load_atomic(typingctx: Any, array: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *args)
        return builder.load_atomic(pointer, "acquire", _WORD_BYTES)

    return types.uint64(array, types.intp), codegen


@intrinsic
def _store_atomic(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, "release", _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


@intrinsic
def _fence_atomic(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


_load: Any = _load_atomic
_store: Any = _store_atomic
_fence: Any = _fence_atomic

if getattr(config, "DISABLE_JIT", 0):  # numpy's own moves: right on x86-64, and only tests run so
    _load, _store, _fence = (lambda words, index: words[index]), np.ndarray.__setitem__, lambda: None


@kernel(U64, i64)
def load_acquire(words: Any, index: int) -> Any:
    """Return `words[index]`; reads that follow see at least what was written before its `store_release`.

    words: (n,) uint64, 8-byte aligned, may be a read-only mapping. Cost: one load.
    """
    return _load(words, index)


@kernel(U64, i64)
def fence_then_load(words: Any, index: int) -> Any:
    """Return `words[index]`, read after every read that came before this call. Cost: a fence and a load."""
    _fence()
    return _load(words, index)


@kernel(I64, U64)
def all_stand(places: Any, seen: Any) -> Any:
    """Whether each word at the addresses `places` (n,) int64 is what was `seen` (n,) uint64.

    For who has read what they stood for, and only asks whether to read again. Cost: n loads.
    """
    stood = 0
    for i in range(places.shape[0]):
        stood += load_u64(places[i]) == seen[i]
    return stood == places.shape[0]


@kernel(OUT_U64, i64, u64)
def store_release(words: Any, index: int, value: int) -> None:
    """Set `words[index]`; who loads it sees every write that came before this call.

    words: (n,) uint64, 8-byte aligned. Cost: one store.
    """
    _store(words, index, value)


@kernel()
def fence() -> None:
    """Order every read and write before this call before every one after it, for all processes."""
    _fence()
