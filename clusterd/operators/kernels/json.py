"""Parts of JSON texts in canonical form (controller_proto/jsonb.py): where they begin and end.

In that form there are no blanks outside strings, and every part is canonical itself; so a part is a span, and
keys are compared by their bytes as they are escaped. A span that begins below 0 is none.

Does not: check that a text is JSON, take escapes apart, know NULL (an empty span has no parts).
"""

from __future__ import annotations

from typing import Any

from shm_arrangements.kernels.jit import I64, OUT_BOOL, OUT_I64, U8, i64, inner, kernel

__all__ = [
    "count_elements", "count_members", "find_elements", "find_members", "has_key", "span_elements",
    "span_members",
]  # fmt: skip

_QUOTE, _COMMA, _BACKSLASH = 34, 44, 92
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = 91, 93, 123, 125


@inner
def _after_string(data: Any, at: Any) -> Any:
    """Where the string that begins at `at` has ended."""
    at += 1
    while data[at] != _QUOTE:
        at += 2 if data[at] == _BACKSLASH else 1
    return at + 1


@inner
def _after_value(data: Any, at: Any, end: Any) -> Any:
    """Where the value that begins at `at` has ended; `end` is where all ends."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == _QUOTE:
            at = _after_string(data, at)
            if depth == 0:
                return at
            continue
        if depth == 0 and byte in (_COMMA, _CLOSE, _CLOSE_LIST):
            return at
        at += 1
        if byte in (_OPEN, _OPEN_LIST):
            depth += 1
        elif byte in (_CLOSE, _CLOSE_LIST):
            depth -= 1
            if depth == 0:
                return at
    return at


@inner
def _same(data: Any, lo: Any, hi: Any, key: Any, key_lo: Any, key_hi: Any) -> Any:
    if hi - lo != key_hi - key_lo:
        return False
    at = 0
    while at < hi - lo and data[lo + at] == key[key_lo + at]:
        at += 1
    return at == hi - lo


@inner
def _member(data: Any, lo: Any, hi: Any, key: Any, key_lo: Any, key_hi: Any) -> Any:
    """Where the value of a key begins in the object data[lo:hi]; -1 if it has none, or is none."""
    if lo < 0 or lo >= hi or data[lo] != _OPEN:
        return -1
    at = lo + 1
    while at < hi and data[at] == _QUOTE:
        after = _after_string(data, at)
        if _same(data, at + 1, after - 1, key, key_lo, key_hi):
            return after + 1
        at = _after_value(data, after + 1, hi) + 1
    return -1


@kernel(U8, I64, I64, U8, I64, i64, OUT_I64, OUT_I64)
def find_members(
    data: Any, lo: Any, hi: Any, keys: Any, key_offsets: Any, key_step: int, out_lo: Any, out_hi: Any
) -> None:
    """out_lo, out_hi (n,) get the span of the value that each object has for its key, without quotes."""
    for i in range(lo.shape[0]):
        k = i * key_step
        at = _member(data, lo[i], hi[i], keys, key_offsets[k], key_offsets[k + 1])
        out_lo[i] = at
        out_hi[i] = at if at < 0 else _after_value(data, at, hi[i])


@inner
def _count(data: Any, lo: Any, hi: Any) -> Any:
    """How many elements an array has; -1 of what is none."""
    if lo < 0 or lo >= hi or data[lo] != _OPEN_LIST:
        return -1
    count = 0
    at = lo + 1
    while at < hi - 1:
        at = _after_value(data, at, hi) + 1
        count += 1
    return count


@kernel(U8, I64, I64, OUT_I64)
def count_elements(data: Any, lo: Any, hi: Any, out: Any) -> None:
    """out (n,) gets how many elements each array has; -1 of what is none."""
    for i in range(lo.shape[0]):
        out[i] = _count(data, lo[i], hi[i])


@kernel(U8, I64, I64, OUT_I64)
def count_members(data: Any, lo: Any, hi: Any, out: Any) -> None:
    """out (n,) gets how many members each object has; -1 of what is none."""
    for i in range(lo.shape[0]):
        out[i] = -1
        if lo[i] >= hi[i] or data[lo[i]] != _OPEN:
            continue
        count = 0
        at = lo[i] + 1
        while at < hi[i] - 1:
            at = _after_value(data, _after_string(data, at) + 1, hi[i]) + 1
            count += 1
        out[i] = count


@kernel(U8, I64, I64, OUT_I64, OUT_I64)
def span_elements(data: Any, lo: Any, hi: Any, out_lo: Any, out_hi: Any) -> None:
    """out_lo, out_hi (as many as there are elements) get their spans, one array after the other."""
    made = 0
    for i in range(lo.shape[0]):
        at = lo[i] + 1
        while at < hi[i] - 1:
            after = _after_value(data, at, hi[i])
            out_lo[made] = at
            out_hi[made] = after
            at = after + 1
            made += 1


@kernel(U8, I64, I64, OUT_I64, OUT_I64, OUT_I64, OUT_I64)
def span_members(
    data: Any, lo: Any, hi: Any, out_key_lo: Any, out_key_hi: Any, out_lo: Any, out_hi: Any
) -> None:
    """As `span_elements`, of the keys, with their quotes, and values of objects."""
    made = 0
    for i in range(lo.shape[0]):
        at = lo[i] + 1
        while at < hi[i] - 1:
            out_key_lo[made] = at
            at = _after_string(data, at)
            out_key_hi[made] = at
            out_lo[made] = at + 1
            at = _after_value(data, at + 1, hi[i])
            out_hi[made] = at
            at += 1
            made += 1


@kernel(U8, I64, I64, I64, i64, OUT_I64, OUT_I64)
def find_elements(
    data: Any, lo: Any, hi: Any, indexes: Any, index_step: int, out_lo: Any, out_hi: Any
) -> None:
    """out_lo, out_hi (n,) get the span of an element of each array, from 0; negative from the end."""
    for i in range(lo.shape[0]):
        out_lo[i] = -1
        out_hi[i] = -1
        index = indexes[i * index_step]
        if index < 0:
            count = _count(data, lo[i], hi[i])
            index = -1 if count < 0 else index + count
        if index < 0 or lo[i] < 0 or lo[i] >= hi[i] or data[lo[i]] != _OPEN_LIST:
            continue
        at = lo[i] + 1
        while at < hi[i] - 1:
            after = _after_value(data, at, hi[i])
            if index == 0:
                out_lo[i] = at
                out_hi[i] = after
                break
            index -= 1
            at = after + 1


@kernel(U8, I64, I64, U8, I64, i64, OUT_BOOL)
def has_key(data: Any, lo: Any, hi: Any, keys: Any, key_offsets: Any, key_step: int, out: Any) -> None:
    """out (n,): whether a text is a key of an object, a string in an array, or the string itself."""
    for i in range(lo.shape[0]):
        first = key_offsets[i * key_step]
        last = key_offsets[i * key_step + 1]
        found = _member(data, lo[i], hi[i], keys, first, last) >= 0
        at = lo[i]
        if at < hi[i] and data[at] == _OPEN_LIST:
            at += 1
            while at < hi[i] - 1 and not found:
                after = _after_value(data, at, hi[i])
                found = data[at] == _QUOTE and _same(data, at + 1, after - 1, keys, first, last)
                at = after + 1
        elif at < hi[i] and data[at] == _QUOTE:
            found = _same(data, at + 1, hi[i] - 1, keys, first, last)
        out[i] = found
