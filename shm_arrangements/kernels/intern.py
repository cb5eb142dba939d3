"""Dictionaries of texts: the distinct texts of chosen rows are numbered, and rows become those numbers.

Texts are looked up by their bytes in a table of those met, and numbered as they come. What is in a source's
dictionary is looked up once, and then known by its place there.

Does not: allocate, or choose which columns get a dictionary (dictionaries.py); write the texts (assemble.py).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shm_arrangements.kernels.cells import SEED, compare_bytes, mix_bytes
from shm_arrangements.kernels.jit import I64, I64_2D, OUT_I64, OUT_U32, OUT_U64, U32, U64, i64, inner, kernel
from shm_arrangements.kernels.nodes import INDEX_BIT, INDICES_AT, TYPE
from shm_arrangements.kernels.refs import ROW_BITS, TABLES, place_at, text_at
from shm_arrangements.kernels.stores import store_u8, store_u16, store_u32

NONE: Final = 0xFFFFFFFF  # no entry
# Of an interner: the entries there are, their bytes together, and whether there was no room for one.
ENTRIES, ENTRY_BYTES, FULL = range(3)


@inner
def _find(tables: Any, column: Any, ref: Any, slots: Any, entries: Any, hashes: Any) -> Any:
    """The slot of the text of a ref, its hash, and its bytes; the slot is empty if the text is not there."""
    address, size = text_at(tables, column, ref)
    digest = mix_bytes(SEED, address, size)
    mask = slots.shape[0] - 1
    slot = np.int64(digest >> np.uint64(20)) & mask
    while slots[slot] != NONE:
        entry = np.int64(slots[slot])
        if hashes[entry] == digest:
            other, other_size = text_at(tables, column, entries[entry])
            if other_size == size and compare_bytes(address, size, other, size) == 0:
                break
        slot = (slot + 1) & mask
    return slot, digest, size


@inner
def _known_place(tables: Any, column: Any, ref: Any, starts: Any) -> Any:
    """Where in `known` the text of a ref has its number; -1 if its source has no room there."""
    source = ref >> ROW_BITS
    if starts[source] == starts[source + 1]:
        return np.int64(-1)
    return starts[source] + place_at(tables, column, ref)


@kernel(TABLES, i64, I64, OUT_U32, OUT_I64, OUT_U64, OUT_U32, I64, OUT_I64)
def intern(
    tables: Any, column: int, refs: Any, slots: Any, entries: Any, hashes: Any, known: Any, starts: Any,
    state: Any,
) -> None:  # fmt: skip
    """Number the texts of refs (m,) that have no number yet, until there is no room.

    slots: a power of two, more than entries; entries: of each number, a ref that has it; hashes as many.
    known[starts[s] + i]: the number of entry i of the dictionary of source s, or of its row i if it has none,
    NONE at first; a source without room there (starts (k + 1,) ascend) is looked up anew each time.
    state (3,): zeros at first.
    """
    count = state[ENTRIES]
    for k in range(refs.shape[0]):
        place = _known_place(tables, column, refs[k], starts)
        if place >= 0 and known[place] != NONE:
            continue
        slot, digest, size = _find(tables, column, refs[k], slots, entries, hashes)
        if slots[slot] == NONE:
            if count == entries.shape[0]:
                state[FULL] = 1
                break
            slots[slot] = np.uint32(count)
            entries[count] = refs[k]
            hashes[count] = digest
            count += 1
            state[ENTRY_BYTES] += size
        if place >= 0:
            known[place] = slots[slot]
    state[ENTRIES] = count


@kernel(TABLES, i64, I64, U32, I64, U64, U32, I64, I64_2D, i64, i64)
def fill_indices(
    tables: Any, column: int, refs: Any, slots: Any, entries: Any, hashes: Any, known: Any, starts: Any,
    nodes: Any, done: int, base: int,
) -> None:  # fmt: skip
    """Write the numbers of the texts of refs (m,), which are interned, as indices `done` and on."""
    width = (nodes[column, TYPE] >> INDEX_BIT) & 0xFF
    out = base + nodes[column, INDICES_AT] + width * done
    for k in range(refs.shape[0]):
        place = _known_place(tables, column, refs[k], starts)
        if place >= 0:
            number = known[place]
        else:
            slot, _, _ = _find(tables, column, refs[k], slots, entries, hashes)
            number = slots[slot]
        if width == 1:
            store_u8(out + k, number)
        elif width == 2:
            store_u16(out + 2 * k, number)
        else:
            store_u32(out + 4 * k, number)
