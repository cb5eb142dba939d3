"""Filling the nodes of a batch with chosen rows of some sources, each byte moved once, to where it stays.

Refs (refs.py) say which rows. First they are measured, so that the size of every array is known; then, in
pieces of any size, they are filled in. Both read sources in any encoding, by their tables, which have a node
of the batch at the same row; both write by address. Between pieces each node has a row of *facts*.

Does not: allocate, choose what is stored how (batch_plan.py), or number texts for a dictionary (intern.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.cells import (
    CONSTANT,
    INDEX_U8,
    INDEX_U16,
    INDICES,
    KIND,
    KIND_BYTES,
    KIND_LIST,
    KIND_RECORD,
    MODE,
    OFFSETS,
    PLAIN,
    VALIDITY,
    VALUES,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
)
from shm_arrangements.kernels.jit import (
    I64,
    I64_2D,
    OUT_I64,
    OUT_I64_2D,
    OUT_U64,
    i64,
    inner,
    kernel,
    u64,
)
from shm_arrangements.kernels.nodes import (
    CONSTANT_NODE,
    DICTIONARY,
    ENCODING_BIT,
    LENGTH,
    NULLS,
    OFFSETS_AT,
    TYPE,
    VALIDITY_AT,
    VALUES_AT,
)
from shm_arrangements.kernels.refs import (
    ROW_BITS,
    ROW_MASK,
    TABLES,
    null_at,
    place_at,
    same_value,
    span_at,
)
from shm_arrangements.kernels.stores import store_i64, store_u8, store_u16, store_u32, store_u64

# Of a node: whether its values are all the same, and the first of them; how many values, how many of them
# NULL, their bytes or elements; and how many values and bytes or elements have been filled in.
FACTS: Final = 8
SAME, FIRST, COUNT, NULL_COUNT, BYTES, DONE, AT = range(7)
# What SAME may be: not all values are the same; those met are; all are, and have been measured.
NOT, SO_FAR, KNOWN = range(3)


@inner
def _is_sized(kind: Any) -> bool:
    return kind in (KIND_BYTES, KIND_LIST)


@inner
def _any_null(tables: Any, row: Any) -> bool:
    """Whether a source may have NULLs in a row of its table."""
    found = False
    for source in range(tables.shape[0]):
        found = found or tables[source, row, VALIDITY] != 0
    return found


@kernel(TABLES, I64, i64, i64, I64, OUT_I64_2D)
def measure(tables: Any, rows: Any, first: int, last: int, refs: Any, facts: Any) -> int:
    """Add refs (m,) to the facts of nodes first..last-1. Returns how many may have one value in all rows yet.

    rows: of each node its row in the tables. Whether all values are the same is asked of columns alone, whose
    row is their number.
    """
    m = refs.shape[0]
    so_far = np.int64(0)
    for node in range(first, last):
        row = rows[node]
        if facts[node, SAME] == KNOWN:
            continue
        if facts[node, SAME] == SO_FAR and m > 0:
            if facts[node, COUNT] == 0:
                facts[node, FIRST] = refs[0]
            head = facts[node, FIRST]
            for k in range(m):
                if not same_value(tables, node, head, refs[k]):
                    facts[node, SAME] = NOT
                    break
        facts[node, COUNT] += m
        if _any_null(tables, row):
            nulls = np.int64(0)
            for k in range(m):
                nulls += np.int64(null_at(tables, row, refs[k]))
            facts[node, NULL_COUNT] += nulls
        if _is_sized(tables[0, row, KIND]):
            total = np.int64(0)
            for k in range(m):
                lo, hi = span_at(tables, row, refs[k])
                total += hi - lo
            facts[node, BYTES] += total
        so_far += np.int64(facts[node, SAME] == SO_FAR)
    return so_far  # type: ignore[return-value]


@kernel(TABLES, i64, I64, OUT_I64_2D)
def find_constants(tables: Any, columns: int, lengths: Any, facts: Any) -> None:
    """Fill in the facts of columns that have one value in all sources, and are constant in each.

    lengths: the rows of each source; those of none count for nothing, and not all are of none.
    """
    first = np.int64(0)
    while lengths[first] == 0:
        first += 1
    head = first << ROW_BITS
    for node in range(columns):
        same = True
        for source in range(first, tables.shape[0]):
            if lengths[source] > 0 and same:
                same = tables[source, node, MODE] == CONSTANT
                same = same and same_value(tables, node, head, np.int64(source) << ROW_BITS)
        if same:
            facts[node, SAME], facts[node, FIRST], facts[node, COUNT] = KNOWN, head, 1
            facts[node, NULL_COUNT] = np.int64(null_at(tables, node, head))
            if _is_sized(tables[first, node, KIND]):
                lo, hi = span_at(tables, node, head)
                facts[node, BYTES] = hi - lo


@kernel(I64_2D, i64, i64, OUT_I64_2D)
def decide(facts: Any, columns: int, rows: int, nodes: Any) -> None:
    """Write into nodes what was measured; columns whose values are all the same are stored as constants."""
    for node in range(nodes.shape[0]):
        count, nulls, nbytes = facts[node, COUNT], facts[node, NULL_COUNT], facts[node, BYTES]
        if node < columns:
            count = np.int64(rows)
            if facts[node, SAME] != NOT:
                if rows > 1:
                    count = np.int64(1)
                    nodes[node, TYPE] |= CONSTANT_NODE << ENCODING_BIT
                nbytes //= facts[node, COUNT]
                nulls = np.int64(nulls > 0)
        nodes[node, LENGTH], nodes[node, NULLS], nodes[node, VALUES_AT + 1] = count, nulls, nbytes


@kernel(TABLES, i64, I64, OUT_I64)
def child_refs(tables: Any, row: int, refs: Any, out: Any) -> int:
    """The refs of what the lists or records `refs` are made of: elements one after the other, or fields.

    out: room for them all. Returns how many.
    """
    at: Any = np.int64(0)
    for k in range(refs.shape[0]):
        source = refs[k] & ~ROW_MASK
        if tables[0, row, KIND] == KIND_RECORD:
            out[at] = source | place_at(tables, row, refs[k])
            at += 1
            continue
        lo, hi = span_at(tables, row, refs[k])
        for element in range(lo, hi):
            out[at] = source | element
            at += 1
    return at  # type: ignore[no-any-return]


@inner
def _at(mode: Any, indices: Any, row: Any) -> Any:
    """As `place_of`, of a mode and indices that were looked up before."""
    if mode == PLAIN:
        return np.int64(row)
    if mode == CONSTANT:
        return np.int64(0)
    if mode == INDEX_U8:
        return np.int64(load_u8(indices + row))
    if mode == INDEX_U16:
        return np.int64(load_u16(indices + 2 * row))
    return np.int64(load_u32(indices + 4 * row))


@inner
def _value_at(tables: Any, row: Any, width: Any, values: Any, mode: Any, indices: Any, ref: Any) -> Any:
    """Where the value of a ref lies; values, mode, indices: of the first source, looked up before."""
    if ref <= ROW_MASK:
        return values + width * _at(mode, indices, ref)
    source = ref >> ROW_BITS
    mode, indices = tables[source, row, MODE], tables[source, row, INDICES]
    return tables[source, row, VALUES] + width * _at(mode, indices, ref & ROW_MASK)


@inner
def _fill_values(tables: Any, row: Any, width: Any, refs: Any, m: Any, out: Any) -> None:
    """Copy the values of m refs, `width` bytes each, to address `out` and on."""
    values, mode, indices = tables[0, row, VALUES], tables[0, row, MODE], tables[0, row, INDICES]
    if width == 8:
        for k in range(m):
            store_u64(out + 8 * k, load_u64(_value_at(tables, row, 8, values, mode, indices, refs[k])))
    elif width == 4:
        for k in range(m):
            store_u32(out + 4 * k, load_u32(_value_at(tables, row, 4, values, mode, indices, refs[k])))
    elif width == 16:
        for k in range(m):
            source = _value_at(tables, row, 16, values, mode, indices, refs[k])
            store_u64(out + 16 * k, load_u64(source))
            store_u64(out + 16 * k + 8, load_u64(source + 8))
    elif width == 2:
        for k in range(m):
            store_u16(out + 2 * k, load_u16(_value_at(tables, row, 2, values, mode, indices, refs[k])))
    else:
        for k in range(m):
            store_u8(out + k, load_u8(_value_at(tables, row, 1, values, mode, indices, refs[k])))


@inner
def _copy(source: Any, target: Any, size: Any) -> None:
    """Copy bytes that do not overlap; mostly few."""
    if size >= 8:
        k: Any = np.int64(0)
        while k + 8 <= size:
            store_u64(target + k, load_u64(source + k))
            k += 8
        if k < size:  # the last 8 bytes again, some of them for the second time
            store_u64(target + size - 8, load_u64(source + size - 8))
        return
    for k in range(size):
        store_u8(target + k, load_u8(source + k))


@inner
def _fill_texts(tables: Any, row: Any, refs: Any, m: Any, offsets: Any, values: Any, at: Any) -> Any:
    """Append the texts of m refs, and the offsets of where they end. Returns the bytes there are then."""
    first, mode, indices = tables[0, row, OFFSETS], tables[0, row, MODE], tables[0, row, INDICES]
    for k in range(m):
        ref = refs[k]
        entry = _offset_at(tables, row, first, mode, indices, ref)
        lo = load_i64(entry)
        size = load_i64(entry + 8) - lo
        _copy(tables[ref >> ROW_BITS, row, VALUES] + lo, values + at, size)
        at += size
        store_i64(offsets + 8 * k + 8, at)
    return at


@inner
def _offset_at(tables: Any, row: Any, first: Any, mode: Any, indices: Any, ref: Any) -> Any:
    """As `_value_at`, of the offsets."""
    if ref <= ROW_MASK:
        return first + 8 * _at(mode, indices, ref)
    source = ref >> ROW_BITS
    mode, indices = tables[source, row, MODE], tables[source, row, INDICES]
    return tables[source, row, OFFSETS] + 8 * _at(mode, indices, ref & ROW_MASK)


@inner
def _fill_sizes(tables: Any, row: Any, refs: Any, m: Any, offsets: Any, at: Any) -> Any:
    """Of lists, the offsets alone: elements are filled in as nodes of their own."""
    for k in range(m):
        lo, hi = span_at(tables, row, refs[k])
        at += hi - lo
        store_i64(offsets + 8 * k + 8, at)
    return at


@inner
def _fill_validity(tables: Any, row: Any, refs: Any, m: Any, out: Any, done: Any) -> None:
    """Set bits `done` and on: 1 where a value is not NULL. Bits before stay, those behind are 0."""
    for k in range(m):
        at = done + k
        byte = np.int64(0) if at & 7 == 0 else np.int64(load_u8(out + (at >> 3)))
        store_u8(out + (at >> 3), byte | (np.int64(not null_at(tables, row, refs[k])) << (at & 7)))


@kernel(TABLES, I64, i64, i64, I64, I64_2D, I64_2D, i64, OUT_I64_2D)
def fill(
    tables: Any, rows: Any, first: int, last: int, refs: Any, nodes: Any, forms: Any, base: int, facts: Any
) -> None:
    """Fill refs (m,) in behind what nodes first..last-1 have; of a dictionary's column, the validity alone.

    A constant node is filled with its first value. rows: as of `measure`. nodes, forms: as in nodes.py.
    base: address of the batch.
    """
    for node in range(first, last):
        row = rows[node]
        encoding = (nodes[node, TYPE] >> ENCODING_BIT) & 0xFF
        code = nodes[node, TYPE] & 0xFFFF
        kind, width = forms[code, 0], forms[code, 1]
        done = facts[node, DONE]
        m = np.int64(refs.shape[0])
        if encoding == CONSTANT_NODE:
            m = min(m, np.int64(1 - done))
        if m == 0:
            continue
        if nodes[node, NULLS] > 0:
            _fill_validity(tables, row, refs, m, base + nodes[node, VALIDITY_AT], done)
        if encoding != DICTIONARY:
            values = base + nodes[node, VALUES_AT]
            offsets = base + nodes[node, OFFSETS_AT] + 8 * done
            if kind == KIND_BYTES:
                facts[node, AT] = _fill_texts(tables, row, refs, m, offsets, values, facts[node, AT])
            elif kind == KIND_LIST:
                facts[node, AT] = _fill_sizes(tables, row, refs, m, offsets, facts[node, AT])
            elif kind != KIND_RECORD:
                _fill_values(tables, row, width, refs, m, values + width * done)
        facts[node, DONE] = done + m


@kernel(I64_2D, I64, u64, OUT_U64)
def fill_words(sources: Any, refs: Any, least: Any, out: Any) -> None:
    """out[k] = the word of refs[k], a code or a time, at least `least`.

    sources (k, 2): where the words of a source begin, and the bytes from one to the next: 8, or 0 if it has
    one for all.
    """
    for k in range(refs.shape[0]):
        source, row = refs[k] >> ROW_BITS, refs[k] & ROW_MASK
        out[k] = max(load_u64(sources[source, 0] + sources[source, 1] * row), least)
