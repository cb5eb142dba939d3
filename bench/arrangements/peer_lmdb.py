"""LMDB in the same run, by py-lmdb: what a sorted map in mapped files does for the same keys.

Keys are eight bytes in big-endian order, values eight bytes; what is asked for is made into bytes beforehand,
and what is found is left as it comes: the peer is given every advantage. It stands in /dev/shm, as we do.

Does not: load unless asked; the library is of the `bench` extra, and without it the comparison is skipped.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.arrangements.common import Words, require
from bench.harness import say


@contextmanager
def store(keys: Words, values: Words) -> Iterator[Any]:
    """A read transaction on all pairs, or None if py-lmdb is not there."""
    if importlib.util.find_spec("lmdb") is None:
        say("py-lmdb is not installed: no comparison with it (pip install '.[bench]')")
        yield None
        return
    import lmdb

    order = np.argsort(keys)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = f"{directory}/pairs"
        with lmdb.open(
            path, map_size=(len(keys) * 64 + (1 << 24)), subdir=False, sync=False, lock=False
        ) as env:
            ordered = zip(as_bytes(keys[order]), as_bytes(values[order]), strict=True)
            with env.begin(write=True) as transaction:
                transaction.cursor().putmulti(ordered, append=True)
            with env.begin() as transaction:
                yield transaction


def as_bytes(words: Words) -> list[bytes]:
    """Each word as eight bytes, big-endian."""
    data = words.astype(">u8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]


def get_us(transaction: Any, keys: list[int], wanted: list[int]) -> float:
    """Microseconds of one get of a Python int, the value taken out as one."""
    get = transaction.get
    start = time.perf_counter()
    found = [int.from_bytes(get(key.to_bytes(8, "big")), "big") for key in keys]
    took = time.perf_counter() - start
    require(found == wanted, "LMDB's values")
    return took * 1e6 / len(keys)


def get_many_s(transaction: Any, keys: list[bytes], wanted: list[bytes]) -> float:
    """Seconds of one getmulti."""
    with transaction.cursor() as cursor:
        start = time.perf_counter()
        found = cursor.getmulti(keys)
        took = time.perf_counter() - start
    require(sorted(found) == sorted(zip(keys, wanted, strict=True)), "LMDB's many values")
    return took
