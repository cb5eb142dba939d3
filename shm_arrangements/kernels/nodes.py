"""The nodes of a batch: what each of its columns is made of, and where; as the bytes of a batch hold them.

A node is 12 words (`NODE_FIELDS`): what it is, how many values, how many are NULL, its children, and four
extents (offset, bytes) within the batch. The columns come first; behind them the fields of records and the
elements of lists, which are nodes too, and last the dictionaries. Here they are placed, checked, made a table
(cells.py) of, and their contents verified.

`forms` says how values of a type lie: a row (kind of cells.py, bytes a value) for each code of a type, kind 0
for a code that is none.

Does not: know types by name, or the header before the nodes (layout.py); see docs/shm-format.md, section 3.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.cells import (
    CHILD,
    CONSTANT,
    FIELDS,
    INDICES,
    KIND,
    KIND_BYTES,
    KIND_LIST,
    KIND_RECORD,
    MODE,
    OFFSETS,
    VALIDITY,
    VALUES,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
)
from shm_arrangements.kernels.jit import I64, I64_2D, OUT_I64, OUT_I64_2D, OUT_U8, i64, inner, kernel

NODE_FIELDS: Final = 12
TYPE, LENGTH, NULLS, CHILDREN = range(4)
# Each is followed by its bytes.
VALUES_AT, OFFSETS_AT, VALIDITY_AT, INDICES_AT = range(4, 12, 2)
# What TYPE holds, by the bit it begins at: code, may be NULL, encoding, bytes an index, scale.
NULLABLE_BIT, ENCODING_BIT, INDEX_BIT, SCALE_BIT = 16, 24, 32, 48
PLAIN, CONSTANT_NODE, DICTIONARY = range(3)
# What SAME_TYPE keeps of TYPE: all but how the column is stored.
SAME_TYPE: Final = ~(0xFFFF << ENCODING_BIT)

_LIMIT = 1 << 48  # lengths and extents stay below, so that no product of them overflows
_ALIGN = 63

# Why nodes are refused.
(
    OK, BAD_TYPE, BAD_ENCODING, OTHER_SCHEMA, BAD_CHILDREN, BAD_LENGTH, BAD_NULLS, BAD_EXTENT, OUTSIDE,
    BAD_OFFSETS, BAD_INDEX, BAD_VALIDITY,
) = range(12)  # fmt: skip


@inner
def _encoding(node: Any) -> Any:
    return (node[TYPE] >> ENCODING_BIT) & 0xFF


@inner
def _sizes(node: Any, kind: Any, width: Any) -> Any:
    """Bytes of a node's values (-1: any number), offsets, validity and indices."""
    length, encoding = node[LENGTH], _encoding(node)
    values, offsets, indices = np.int64(0), np.int64(0), np.int64(0)
    if encoding == DICTIONARY:
        indices = length * ((node[TYPE] >> INDEX_BIT) & 0xFF)
    elif kind == KIND_BYTES:
        values, offsets = np.int64(-1), 8 * (length + 1)
    elif kind == KIND_LIST:
        offsets = 8 * (length + 1)
    elif kind != KIND_RECORD:
        values = length * width
    validity = (length + 7) >> 3 if node[NULLS] > 0 else np.int64(0)
    return values, offsets, validity, indices


@inner
def _place(at: Any, nbytes: Any, node: Any, field: Any) -> Any:
    """Place an extent at or behind `at`. Returns where it ends."""
    node[field], node[field + 1] = 0, nbytes
    if nbytes == 0:
        return at
    start = (at + _ALIGN) & ~_ALIGN
    node[field] = start
    return start + nbytes


@kernel(OUT_I64_2D, I64_2D, i64, i64, i64, i64, i64, OUT_I64)
def place_nodes(
    nodes: Any, forms: Any, start: int, rows: int, own_codes: int, times: int, diffs: int, extents: Any
) -> int:
    """Give every array of a batch its place, one behind the other from byte `start` on.

    nodes: all but the extents, and of texts how many bytes they have. own_codes: 0 if codes are the values of
    the first column. times, diffs: how many are stored. extents (6,) gets those of codes, times, diffs.
    Returns the bytes of the batch, a multiple of 64.
    """
    at = np.int64(start)
    at = _place(at, 8 * rows * own_codes, extents, 0)
    at = _place(at, 8 * times, extents, 2)
    at = _place(at, 8 * diffs, extents, 4)
    for i in range(nodes.shape[0]):
        node = nodes[i]
        code = node[TYPE] & 0xFFFF
        values, offsets, validity, indices = _sizes(node, forms[code, 0], forms[code, 1])
        if values < 0:
            values = node[VALUES_AT + 1]
        at = _place(at, values, node, VALUES_AT)
        at = _place(at, offsets, node, OFFSETS_AT)
        at = _place(at, validity, node, VALIDITY_AT)
        at = _place(at, indices, node, INDICES_AT)
    if own_codes == 0:
        extents[0], extents[1] = nodes[0, VALUES_AT], nodes[0, VALUES_AT + 1]
    return (at + _ALIGN) & ~_ALIGN  # type: ignore[no-any-return]


@inner
def _zero_until(offset: Any, nbytes: Any, at: Any, out: Any) -> Any:
    if nbytes == 0:
        return at
    for k in range(at, offset):
        out[k] = 0
    return offset + nbytes


@kernel(I64, I64_2D, i64, OUT_U8)
def zero_gaps(extents: Any, nodes: Any, start: int, out: Any) -> None:
    """Zero what nobody fills of a batch from `start` on: what lies in no extent, and where offsets begin."""
    at = np.int64(start)
    # Codes are before times, unless they are values of the first column.
    for field in range(0 if extents[0] < extents[2] else 2, 6, 2):
        at = _zero_until(extents[field], extents[field + 1], at, out)
    for node in range(nodes.shape[0]):
        for field in range(VALUES_AT, NODE_FIELDS, 2):
            at = _zero_until(nodes[node, field], nodes[node, field + 1], at, out)
        if nodes[node, OFFSETS_AT + 1] > 0:
            for k in range(nodes[node, OFFSETS_AT], nodes[node, OFFSETS_AT] + 8):
                out[k] = 0
    _zero_until(np.int64(out.shape[0]), np.int64(1), at, out)


@inner
def _fits(at: Any, end: Any, words: Any, field: Any, nbytes: Any) -> Any:
    """Where an extent ends that must be of `nbytes` (-1: any), within [at, end); or less a reason."""
    offset, size = words[field], words[field + 1]
    if nbytes >= 0 and size != nbytes:
        return np.int64(-BAD_EXTENT)
    if size < 0 or size >= _LIMIT or offset < 0 or offset >= _LIMIT:
        return np.int64(-OUTSIDE)
    if size == 0:
        return at if offset == 0 else np.int64(-BAD_EXTENT)
    if offset & _ALIGN or offset < at or offset + size > end:
        return np.int64(-OUTSIDE)
    return offset + size


@inner
def _check_kind(node: Any, kind: Any, is_column: Any) -> int:
    """Whether a node is stored in a way that there is."""
    index = (node[TYPE] >> INDEX_BIT) & 0xFF
    encoding = _encoding(node)
    if kind == 0:
        return BAD_TYPE
    if encoding > DICTIONARY or (encoding != PLAIN and not is_column):
        return BAD_ENCODING
    if encoding == DICTIONARY:
        if kind != KIND_BYTES or (index != 1 and index != 2 and index != 4):
            return BAD_ENCODING
    elif index != 0:
        return BAD_ENCODING
    if (node[TYPE] >> NULLABLE_BIT) & 0xFF > 1:
        return BAD_NULLS
    if node[LENGTH] < 0 or node[LENGTH] >= _LIMIT:
        return BAD_LENGTH
    if node[NULLS] < 0 or node[NULLS] > node[LENGTH]:
        return BAD_NULLS
    if node[NULLS] > 0 and (node[TYPE] >> NULLABLE_BIT) & 1 == 0:
        return BAD_NULLS
    return OK


@kernel(I64_2D, I64_2D, I64_2D, i64, i64, i64, i64, i64, I64, OUT_I64)
def check_nodes(
    nodes: Any, forms: Any, wanted: Any, columns: int, rows: int, own_codes: int, start: int, end: int,
    extents: Any, lengths: Any,
) -> int:  # fmt: skip
    """Whether nodes are those of a schema, and every array lies within bytes [start, end), behind the last.

    wanted (k, 2): TYPE, less its encoding, and number of children, of each node that the schema asks for.
    own_codes, extents (6,): as `place_nodes` has them. lengths (nodes,): scratch.
    Returns a reason, and above its lowest 8 bits the node; OK is 0.
    """
    n = nodes.shape[0]
    at: Any = np.int64(start)
    if own_codes != 0:
        at = _fits(at, end, extents, 0, 8 * rows)
    elif (
        n == 0 or extents[0] != nodes[0, VALUES_AT] or extents[1] != 8 * rows or _encoding(nodes[0]) != PLAIN
    ):
        return BAD_EXTENT
    for field in (2, 4):
        if at >= 0:
            nbytes = np.int64(extents[field + 1])
            if nbytes != 8 * rows and nbytes != 8 and (nbytes != 0 or field == 2):
                return BAD_EXTENT
            at = _fits(at, end, extents, field, nbytes)
    if at < 0:
        return -at  # type: ignore[no-any-return]
    if n < wanted.shape[0]:
        return OTHER_SCHEMA
    for i in range(n):
        lengths[i] = rows if i < columns else -1
    dictionaries = wanted.shape[0]
    for i in range(n):
        node = nodes[i]
        here = i << 8
        code = node[TYPE] & 0xFFFF
        if code >= forms.shape[0]:
            return BAD_TYPE | here
        kind, encoding = forms[code, 0], _encoding(node)
        reason = _check_kind(node, kind, i < columns)
        if reason != OK:
            return reason | here
        children = wanted[i, 1] if i < wanted.shape[0] else 0
        if i < wanted.shape[0] and (node[TYPE] & SAME_TYPE) != wanted[i, 0]:
            return OTHER_SCHEMA | here
        if i >= wanted.shape[0] and lengths[i] != -2:
            return BAD_CHILDREN | here  # behind the schema's there are dictionaries alone
        if encoding == CONSTANT_NODE:
            if node[LENGTH] != 1:
                return BAD_LENGTH | here
        elif lengths[i] >= 0 and node[LENGTH] != lengths[i]:
            return BAD_LENGTH | here
        first, count = node[CHILDREN] & 0xFFFFFFFF, node[CHILDREN] >> 32
        if encoding == DICTIONARY:
            if count != 1 or first != dictionaries or first >= n:
                return BAD_CHILDREN | here
            if nodes[first, TYPE] != code:
                return BAD_TYPE | here
            lengths[first] = -2
            dictionaries += 1
        else:
            if count != children or (count == 0 and first != 0):
                return BAD_CHILDREN | here
            if count > 0 and (first <= i or first + count > wanted.shape[0]):
                return BAD_CHILDREN | here
            for child in range(first, first + count):
                if child < columns or lengths[child] != -1:
                    return BAD_CHILDREN | here
                lengths[child] = node[LENGTH] if kind == KIND_RECORD else -3
        if i >= columns and lengths[i] == -1:
            return BAD_CHILDREN | here
        values, offsets, validity, indices = _sizes(node, kind, forms[code, 1])
        at = _fits(at, end, node, VALUES_AT, values)
        if at >= 0:
            at = _fits(at, end, node, OFFSETS_AT, offsets)
        if at >= 0:
            at = _fits(at, end, node, VALIDITY_AT, validity)
        if at >= 0:
            at = _fits(at, end, node, INDICES_AT, indices)
        if at < 0:
            return -at | here  # type: ignore[no-any-return]
    return BAD_CHILDREN if dictionaries != n else OK


@kernel(I64_2D, I64_2D, i64, OUT_I64_2D)
def describe_nodes(nodes: Any, forms: Any, base: int, table: Any) -> None:
    """The table (cells.py) of the first nodes of a batch, a row a node; base: where its bytes begin."""
    for i in range(table.shape[0]):
        node, row = nodes[i], table[i]
        for field in range(FIELDS):
            row[field] = 0
        kind = row[KIND] = forms[node[TYPE] & 0xFFFF, 0]
        encoding = _encoding(node)
        inner_node = node
        if encoding == DICTIONARY:
            inner_node = nodes[node[CHILDREN] & 0xFFFFFFFF]
            row[MODE] = (node[TYPE] >> INDEX_BIT) & 0xFF
            row[INDICES] = base + node[INDICES_AT]
        elif encoding == CONSTANT_NODE:
            row[MODE] = CONSTANT
        row[VALUES] = base + inner_node[VALUES_AT]
        row[OFFSETS] = base + inner_node[OFFSETS_AT]
        if kind >= KIND_LIST:
            row[CHILD] = node[CHILDREN] & 0xFFFFFFFF
            if kind == KIND_RECORD:
                row[OFFSETS] = node[CHILDREN] >> 32
        if node[NULLS] > 0:
            row[VALIDITY] = base + node[VALIDITY_AT]


@inner
def _offsets_hold(at: Any, length: Any, limit: Any) -> bool:
    """Whether length + 1 offsets ascend from 0 to `limit`."""
    last = load_i64(at)
    if last != 0:
        return False
    for k in range(1, length + 1):
        offset = load_i64(at + 8 * k)
        if offset < last:
            return False
        last = offset
    return last == limit  # type: ignore[no-any-return]


@inner
def _greatest_index(at: Any, length: Any, width: Any) -> Any:
    greatest = np.int64(0)
    for k in range(length):
        if width == 1:
            greatest = max(greatest, np.int64(load_u8(at + k)))
        elif width == 2:
            greatest = max(greatest, np.int64(load_u16(at + 2 * k)))
        else:
            greatest = max(greatest, np.int64(load_u32(at + 4 * k)))
    return greatest


@kernel(I64_2D, I64_2D, i64)
def verify_nodes(nodes: Any, forms: Any, base: int) -> int:
    """Whether what checked nodes hold leads nowhere else: offsets and indices, and that NULLs are as many.

    Returns as `check_nodes`.
    """
    for i in range(nodes.shape[0]):
        node = nodes[i]
        here = i << 8
        kind = forms[node[TYPE] & 0xFFFF, 0]
        if _encoding(node) == DICTIONARY:
            width = (node[TYPE] >> INDEX_BIT) & 0xFF
            words = nodes[node[CHILDREN] & 0xFFFFFFFF, LENGTH]
            if _greatest_index(base + node[INDICES_AT], node[LENGTH], width) >= words:
                return BAD_INDEX | here
        elif kind in (KIND_BYTES, KIND_LIST):
            limit = node[VALUES_AT + 1]
            if kind == KIND_LIST:
                limit = nodes[node[CHILDREN] & 0xFFFFFFFF, LENGTH]
            if not _offsets_hold(base + node[OFFSETS_AT], node[LENGTH], limit):
                return BAD_OFFSETS | here
        if node[NULLS] > 0:
            nulls = np.int64(0)
            for k in range(node[LENGTH]):
                nulls += 1 - ((np.int64(load_u8(base + node[VALIDITY_AT] + (k >> 3))) >> (k & 7)) & 1)
            if nulls != node[NULLS]:
                return BAD_VALIDITY | here
    return OK
