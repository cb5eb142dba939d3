"""Filling the nodes of a batch with chosen rows of one or two sources, each byte moved once to its final place.

A ref says which row: r >= 0 is row r of the first source, r < 0 row ~r of the second. First the refs are
measured, so that the size of every array is known; then, in the same order and in pieces of any size, they
are filled in. Both read sources in any encoding, by their tables (cells.py), and write by address. Between
pieces each node has a row of *facts*.

Texts that are to be stored in a dictionary are interned: looked up by their bytes in a table of those met,
numbered as they come. What is in a source's dictionary is looked up once, and then known by its place there.

Does not: allocate, or choose what is stored how (builder.py).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numba import config, types
from numba.extending import intrinsic

from shm_arrangements.kernels.cells import (
    CHILD,
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
    TABLE,
    VALIDITY,
    VALUES,
    bytes_at,
    compare_cells,
    is_null,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    mix_bytes,
    place_of,
)
from shm_arrangements.kernels.jit import (
    I64,
    OUT_I64,
    OUT_U32,
    OUT_U64,
    U32,
    U64,
    i64,
    inner,
    kernel,
    read,
    u64,
)
from shm_arrangements.kernels.nodes import (
    CONSTANT_NODE,
    DICTIONARY,
    ENCODING_BIT,
    INDEX_BIT,
    INDICES_AT,
    LENGTH,
    NULLS,
    OFFSETS_AT,
    OUT_I64_2D,
    TYPE,
    VALIDITY_AT,
    VALUES_AT,
)

I64_2D = read(i64, 2)

# Of a node: whether its values are all the same, and the first of them; how many values, how many of them NULL,
# their bytes or elements; and how many values and bytes or elements have been filled in.
FACTS: Final = 8
SAME, FIRST, COUNT, NULL_COUNT, BYTES, DONE, AT = range(7)
# What SAME may be: not all values are the same; those met are; all are, and have been measured.
NOT, SO_FAR, KNOWN = range(3)

_SEED = np.uint64(0x6A09E667F3BCC908)
_ZERO = np.uint64(0)
NONE: Final = 0xFFFFFFFF  # no entry


def _storer(numba_type: Any, ctype: Any) -> Any:
    """A function that writes one value at an address, aligned or not."""
    if getattr(config, "DISABLE_JIT", 0):

        def put(address: Any, value: Any) -> None:
            ctype.from_address(int(address)).value = int(value)

        return put

    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = context.get_data_type(numba_type).as_pointer()
            word = context.cast(builder, args[1], signature.args[1], numba_type)
            builder.store(word, builder.inttoptr(args[0], place), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), codegen

    return store


store_u8: Any = _storer(types.uint8, ctypes.c_uint8)
store_u16: Any = _storer(types.uint16, ctypes.c_uint16)
store_u32: Any = _storer(types.uint32, ctypes.c_uint32)
store_u64: Any = _storer(types.uint64, ctypes.c_uint64)
store_i64: Any = _storer(types.int64, ctypes.c_int64)


@inner
def _same(a: Any, b: Any, column: Any, r: Any, s: Any) -> bool:
    """Whether two refs have the same value."""
    if r >= 0:
        if s >= 0:
            return compare_cells(a, r, a, s, column, column + 1) == 0
        return compare_cells(a, r, b, ~s, column, column + 1) == 0
    if s >= 0:
        return compare_cells(b, ~r, a, s, column, column + 1) == 0
    return compare_cells(b, ~r, b, ~s, column, column + 1) == 0


@kernel(TABLE, TABLE, I64, I64, i64, i64, I64, OUT_I64_2D)
def measure(
    a: Any, b: Any, rows_a: Any, rows_b: Any, first: int, last: int, refs: Any, facts: Any
) -> None:
    """Add refs (m,) to the facts of nodes first..last-1.

    rows_a, rows_b: of each node, its row in the table of the first and of the second source. Whether all
    values are the same is asked of columns alone, whose row is their number.
    """
    m = refs.shape[0]
    for node in range(first, last):
        ca, cb = rows_a[node], rows_b[node]
        if facts[node, SAME] == KNOWN:
            continue
        if facts[node, SAME] == SO_FAR and m > 0:
            if facts[node, COUNT] == 0:
                facts[node, FIRST] = refs[0]
            head = facts[node, FIRST]
            for k in range(m):
                if not _same(a, b, node, head, refs[k]):
                    facts[node, SAME] = NOT
                    break
        facts[node, COUNT] += m
        if a[ca, VALIDITY] != 0 or b[cb, VALIDITY] != 0:
            nulls = np.int64(0)
            for k in range(m):
                r = refs[k]
                nulls += np.int64(is_null(a, ca, r) if r >= 0 else is_null(b, cb, ~r))
            facts[node, NULL_COUNT] += nulls
        kind = a[ca, KIND]
        if kind == KIND_BYTES or kind == KIND_LIST:
            total = np.int64(0)
            for k in range(m):
                r = refs[k]
                if r >= 0:
                    lo, hi = bytes_at(a, ca, place_of(a, ca, r))
                else:
                    lo, hi = bytes_at(b, cb, place_of(b, cb, ~r))
                total += hi - lo
            facts[node, BYTES] += total


@kernel(TABLE, TABLE, i64, i64, i64, OUT_I64_2D)
def find_constants(a: Any, b: Any, columns: int, a_rows: int, b_rows: int, facts: Any) -> None:
    """Fill in the facts of columns that are constant in both sources, with the same value; or in the only one
    that has rows."""
    for node in range(columns):
        if (a_rows > 0 and a[node, MODE] != CONSTANT) or (b_rows > 0 and b[node, MODE] != CONSTANT):
            continue
        first = np.int64(0) if a_rows > 0 else np.int64(-1)
        if a_rows > 0 and b_rows > 0 and not _same(a, b, node, np.int64(0), np.int64(-1)):
            continue
        facts[node, SAME], facts[node, FIRST], facts[node, COUNT] = KNOWN, first, 1
        if a_rows > 0:
            null, place = is_null(a, node, np.int64(0)), np.int64(0)
            lo, hi = bytes_at(a, node, place) if _is_sized(a[node, KIND]) else (np.int64(0), np.int64(0))
        else:
            null = is_null(b, node, np.int64(0))
            lo, hi = bytes_at(b, node, np.int64(0)) if _is_sized(b[node, KIND]) else (np.int64(0), np.int64(0))
        facts[node, NULL_COUNT] = np.int64(null)
        facts[node, BYTES] = hi - lo


@inner
def _is_sized(kind: Any) -> bool:
    return kind == KIND_BYTES or kind == KIND_LIST  # type: ignore[no-any-return]


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


@kernel(TABLE, i64, TABLE, i64, I64, OUT_I64)
def child_refs(a: Any, ca: int, b: Any, cb: int, refs: Any, out: Any) -> int:
    """The refs of what the lists or records `refs` are made of: elements one after the other, or fields.

    out: room for them all. Returns how many.
    """
    at = np.int64(0)
    for k in range(refs.shape[0]):
        r = refs[k]
        place = place_of(a, ca, r) if r >= 0 else place_of(b, cb, ~r)
        if a[ca, KIND] == KIND_RECORD:
            out[at] = place if r >= 0 else ~place
            at += 1
            continue
        if r >= 0:
            lo, hi = bytes_at(a, ca, place)
        else:
            lo, hi = bytes_at(b, cb, place)
        for element in range(lo, hi):
            out[at] = element if r >= 0 else ~element
            at += 1
    return at  # type: ignore[return-value]


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
def _fill_values(a: Any, ca: Any, b: Any, cb: Any, width: Any, refs: Any, first: Any, m: Any, out: Any) -> None:
    """Copy the values of refs[first : first + m], `width` bytes each, to address `out` and on."""
    va, ma, ia = a[ca, VALUES], a[ca, MODE], a[ca, INDICES]
    vb, mb, ib = b[cb, VALUES], b[cb, MODE], b[cb, INDICES]
    if width == 8:
        for k in range(m):
            r = refs[first + k]
            source = va + 8 * _at(ma, ia, r) if r >= 0 else vb + 8 * _at(mb, ib, ~r)
            store_u64(out + 8 * k, load_u64(source))
    elif width == 4:
        for k in range(m):
            r = refs[first + k]
            source = va + 4 * _at(ma, ia, r) if r >= 0 else vb + 4 * _at(mb, ib, ~r)
            store_u32(out + 4 * k, load_u32(source))
    elif width == 16:
        for k in range(m):
            r = refs[first + k]
            source = va + 16 * _at(ma, ia, r) if r >= 0 else vb + 16 * _at(mb, ib, ~r)
            store_u64(out + 16 * k, load_u64(source))
            store_u64(out + 16 * k + 8, load_u64(source + 8))
    elif width == 2:
        for k in range(m):
            r = refs[first + k]
            source = va + 2 * _at(ma, ia, r) if r >= 0 else vb + 2 * _at(mb, ib, ~r)
            store_u16(out + 2 * k, load_u16(source))
    else:
        for k in range(m):
            r = refs[first + k]
            source = va + _at(ma, ia, r) if r >= 0 else vb + _at(mb, ib, ~r)
            store_u8(out + k, load_u8(source))


@inner
def _copy(source: Any, target: Any, size: Any) -> None:
    """Copy bytes that do not overlap; mostly few."""
    if size >= 8:
        k = np.int64(0)
        while k + 8 <= size:
            store_u64(target + k, load_u64(source + k))
            k += 8
        if k < size:  # the last 8 bytes again, some of them for the second time
            store_u64(target + size - 8, load_u64(source + size - 8))
        return
    for k in range(size):
        store_u8(target + k, load_u8(source + k))


@inner
def _fill_texts(
    a: Any, ca: Any, b: Any, cb: Any, refs: Any, first: Any, m: Any, offsets: Any, values: Any, at: Any
) -> Any:
    """Append the texts of refs, the offsets of where they end with them. Returns the bytes there are then."""
    va, oa, ma, ia = a[ca, VALUES], a[ca, OFFSETS], a[ca, MODE], a[ca, INDICES]
    vb, ob, mb, ib = b[cb, VALUES], b[cb, OFFSETS], b[cb, MODE], b[cb, INDICES]
    for k in range(m):
        r = refs[first + k]
        if r >= 0:
            entry = oa + 8 * _at(ma, ia, r)
            source = va
        else:
            entry = ob + 8 * _at(mb, ib, ~r)
            source = vb
        lo = load_i64(entry)
        size = load_i64(entry + 8) - lo
        _copy(source + lo, values + at, size)
        at += size
        store_i64(offsets + 8 * k + 8, at)
    return at


@inner
def _fill_sizes(
    a: Any, ca: Any, b: Any, cb: Any, refs: Any, first: Any, m: Any, offsets: Any, at: Any
) -> Any:
    """Of lists, the offsets alone: elements are filled in as nodes of their own."""
    for k in range(m):
        r = refs[first + k]
        if r >= 0:
            lo, hi = bytes_at(a, ca, place_of(a, ca, r))
        else:
            lo, hi = bytes_at(b, cb, place_of(b, cb, ~r))
        at += hi - lo
        store_i64(offsets + 8 * k + 8, at)
    return at


@inner
def _fill_validity(
    a: Any, ca: Any, b: Any, cb: Any, refs: Any, first: Any, m: Any, out: Any, done: Any
) -> None:
    """Set bits `done` and on: 1 where a value is not NULL. Bits before stay, those behind are 0."""
    for k in range(m):
        r = refs[first + k]
        null = is_null(a, ca, r) if r >= 0 else is_null(b, cb, ~r)
        at = done + k
        byte = np.int64(0) if at & 7 == 0 else np.int64(load_u8(out + (at >> 3)))
        store_u8(out + (at >> 3), byte | (np.int64(not null) << (at & 7)))


@kernel(TABLE, TABLE, I64, I64, i64, i64, I64, I64_2D, I64_2D, i64, OUT_I64_2D)
def fill(
    a: Any, b: Any, rows_a: Any, rows_b: Any, first: int, last: int, refs: Any, nodes: Any, forms: Any,
    base: int, facts: Any,
) -> None:  # fmt: skip
    """Fill refs (m,) in behind what nodes first..last-1 have; of a dictionary's column, the validity alone.

    A constant node is filled with its first value. nodes, forms: as in nodes.py. base: address of the batch.
    """
    for node in range(first, last):
        ca, cb = rows_a[node], rows_b[node]
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
            _fill_validity(a, ca, b, cb, refs, 0, m, base + nodes[node, VALIDITY_AT], done)
        if encoding != DICTIONARY:
            values = base + nodes[node, VALUES_AT]
            offsets = base + nodes[node, OFFSETS_AT] + 8 * done
            if (kind == KIND_BYTES or kind == KIND_LIST) and done == 0:
                store_i64(offsets, 0)
            if kind == KIND_BYTES:
                facts[node, AT] = _fill_texts(
                    a, ca, b, cb, refs, 0, m, offsets, values, facts[node, AT]
                )
            elif kind == KIND_LIST:
                facts[node, AT] = _fill_sizes(a, ca, b, cb, refs, 0, m, offsets, facts[node, AT])
            elif kind != KIND_RECORD:
                _fill_values(a, ca, b, cb, width, refs, 0, m, values + width * done)
        facts[node, DONE] = done + m


@kernel(U64, U64, I64, u64, OUT_U64)
def fill_words(a: Any, b: Any, refs: Any, least: Any, out: Any) -> None:
    """out[k] = the word of refs[k], codes or times, but `least` where it is less. One word may stand for all."""
    one_a, one_b = a.shape[0] == 1, b.shape[0] == 1
    for k in range(refs.shape[0]):
        r = refs[k]
        if r >= 0:
            out[k] = max(a[0 if one_a else r], least)
        else:
            out[k] = max(b[0 if one_b else ~r], least)


@inner
def _text_of(a: Any, ca: Any, b: Any, cb: Any, ref: Any) -> Any:
    """Address and bytes of the text of a ref."""
    if ref >= 0:
        lo, hi = bytes_at(a, ca, place_of(a, ca, ref))
        return a[ca, VALUES] + lo, hi - lo
    lo, hi = bytes_at(b, cb, place_of(b, cb, ~ref))
    return b[cb, VALUES] + lo, hi - lo


# Of an interner: the entries there are, their bytes together, and whether there was no room for one.
ENTRIES, ENTRY_BYTES, FULL = range(3)


@inner
def _find(
    a: Any, ca: Any, b: Any, cb: Any, ref: Any, slots: Any, entries: Any, hashes: Any
) -> Any:
    """The slot of the text of a ref, its hash, and its bytes; the slot is empty if the text is not there."""
    address, size = _text_of(a, ca, b, cb, ref)
    digest = mix_bytes(_SEED, address, size)
    mask = slots.shape[0] - 1
    slot = np.int64(digest >> np.uint64(20)) & mask
    while slots[slot] != NONE:
        entry = np.int64(slots[slot])
        if hashes[entry] == digest:
            other, other_size = _text_of(a, ca, b, cb, entries[entry])
            if other_size == size:
                k = np.int64(0)
                while k + 8 <= size and load_u64(address + k) == load_u64(other + k):
                    k += 8
                while k < size and load_u8(address + k) == load_u8(other + k):
                    k += 1
                if k == size:
                    break
        slot = (slot + 1) & mask
    return slot, digest, size


@kernel(TABLE, TABLE, i64, I64, OUT_U32, OUT_I64, OUT_U64, OUT_U32, OUT_U32, OUT_I64)
def intern(
    a: Any, b: Any, column: int, refs: Any, slots: Any, entries: Any, hashes: Any, known_a: Any, known_b: Any,
    state: Any,
) -> None:  # fmt: skip
    """Number the texts of refs (m,) that have no number yet, until there is no room.

    slots: a power of two, more than entries; entries: of each number, a ref that has it; hashes as many.
    known_a, known_b: of each place in a source's dictionary, its number, NONE at first; empty for a source
    without one. state (3,): zeros at first.
    """
    count = state[ENTRIES]
    for k in range(refs.shape[0]):
        r = refs[k]
        place = np.int64(-1)
        if r >= 0 and known_a.shape[0] > 0:
            place = place_of(a, column, r)
            if known_a[place] != NONE:
                continue
        elif r < 0 and known_b.shape[0] > 0:
            place = place_of(b, column, ~r)
            if known_b[place] != NONE:
                continue
        slot, digest, size = _find(a, column, b, column, r, slots, entries, hashes)
        if slots[slot] == NONE:
            if count == entries.shape[0]:
                state[FULL] = 1
                break
            slots[slot] = np.uint32(count)
            entries[count] = r
            hashes[count] = digest
            count += 1
            state[ENTRY_BYTES] += size
        if place >= 0:
            if r >= 0:
                known_a[place] = slots[slot]
            else:
                known_b[place] = slots[slot]
    state[ENTRIES] = count


@kernel(TABLE, TABLE, i64, I64, U32, I64, U64, U32, U32, I64_2D, i64, i64, i64)
def fill_indices(
    a: Any, b: Any, column: int, refs: Any, slots: Any, entries: Any, hashes: Any, known_a: Any, known_b: Any,
    nodes: Any, node: int, done: int, base: int,
) -> None:  # fmt: skip
    """Write the numbers of the texts of refs (m,), which are interned, as indices `done` and on of a node."""
    width = (nodes[node, TYPE] >> INDEX_BIT) & 0xFF
    out = base + nodes[node, INDICES_AT] + width * done
    for k in range(refs.shape[0]):
        r = refs[k]
        if r >= 0 and known_a.shape[0] > 0:
            number = known_a[place_of(a, column, r)]
        elif r < 0 and known_b.shape[0] > 0:
            number = known_b[place_of(b, column, ~r)]
        else:
            slot, _, _ = _find(a, column, b, column, r, slots, entries, hashes)
            number = slots[slot]
        if width == 1:
            store_u8(out + k, number)
        elif width == 2:
            store_u16(out + 2 * k, number)
        else:
            store_u32(out + 4 * k, number)


@kernel(I64, I64_2D, i64, i64, i64)
def zero_gaps(extents: Any, nodes: Any, start: int, end: int, base: int) -> None:
    """Zero the bytes of [start, end) of a batch at address `base` that lie in no extent."""
    at = np.int64(start)
    for field in range(0, 6, 2):
        at = _zero_until(extents[field], extents[field + 1], at, end, base)
    for node in range(nodes.shape[0]):
        for field in (VALUES_AT, OFFSETS_AT, VALIDITY_AT, INDICES_AT):
            at = _zero_until(nodes[node, field], nodes[node, field + 1], at, end, base)
    _zero_until(end, 1, at, end, base)


@inner
def _zero_until(offset: Any, nbytes: Any, at: Any, end: Any, base: Any) -> Any:
    if nbytes == 0 or offset < at:  # an extent that was met already
        return at
    for k in range(at, min(offset, end)):
        store_u8(base + k, 0)
    return np.int64(offset + nbytes)


assert LENGTH == 1 and CHILD == 7  # noqa: PT018
