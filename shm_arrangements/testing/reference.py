"""What each kernel computes, in plain Python and numpy: slow, obvious, and written without the kernel.

`REFERENCES` has a function for each kernel, by its name. It takes what the kernel takes, less the arrays that
are only written to and the scratch, and returns what the kernel leaves in each array that it writes to, in
their order, and then what it returns, if anything. An array may be shorter than the kernel's: what is behind
is not said. Where a kernel takes a table or an image of rows, the reference takes a `Relation` (meaning.py).
Kernels that do one thing together, in turn, share a reference, which says what comes of it.

Does not: share code with the kernels, or say what arguments are fit (the tests of kernels draw them).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements.testing.meaning import (
    MASK,
    SIGN,
    Relation,
    bytes_of,
    hash_row,
    image_of,
    parts_of,
    row_key,
    words_of,
)
from shm_arrangements.types import AnyType, ColumnType, ListType

Array = NDArray[Any]
REFERENCES: Final[dict[str, Callable[..., Any]]] = {}


def reference_of(kernel: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the reference of a kernel, named as file.function; what it does, the kernel's text says."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        REFERENCES[kernel] = function
        function.__doc__ = function.__doc__ or f"The reference of `kernels.{kernel}`."
        return function

    return register


# cells


@reference_of("cells.hash_table")
def hash_table(relation: Relation, first: int, last: int) -> tuple[Array]:
    hashes = [hash_row(relation, row, first, last) for row in range(len(relation.rows))]
    return (np.array(hashes, np.uint64),)


_WIDTHS: Final = {
    ColumnType.BOOL: 8, ColumnType.INT16: 16, ColumnType.UINT16: 16, ColumnType.INT32: 32,
    ColumnType.UINT32: 32, ColumnType.DATE: 32, ColumnType.FLOAT32: 32,
}  # fmt: skip


@reference_of("cells.ordered_codes")
def ordered_codes(relation: Relation, last: int) -> tuple[Array]:
    codes = []
    for row in relation.rows:
        bits = ""
        for type_, value in itertools.islice(zip(relation.types, row, strict=True), last):
            width = _WIDTHS.get(type_, 64) if isinstance(type_, ColumnType) else 64
            word = 0
            if value is not None and isinstance(type_, ColumnType):
                word = words_of(type_, value)[0]
                if type_ in (ColumnType.INT16, ColumnType.INT32, ColumnType.DATE):
                    word += (1 << (width - 1)) - SIGN
            bits += f"{int(value is None)}{word:0{width}b}"
            if width == 64:
                break
        codes.append(int(bits[:64].ljust(64, "0"), 2))
    return (np.array(codes, np.uint64),)


@reference_of("cells.equal_pairs")
def equal_pairs(a: Relation, rows_a: Array, b: Relation, rows_b: Array, columns: int) -> tuple[Array, int]:
    pairs = zip(rows_a.tolist(), rows_b.tolist(), strict=True)
    same = [row_key(a, i, 0, columns) == row_key(b, j, 0, columns) for i, j in pairs]
    return np.array(same, np.bool_), sum(same)


@reference_of("cells.order_lane")
def order_lane(relation: Relation, column: int, part: int, out: Array, lane: int) -> tuple[Array]:
    type_ = relation.types[column]
    assert isinstance(type_, ColumnType)
    values = [row[column] for row in relation.rows]
    out[:, lane] = [0 if value is None else words_of(type_, value)[part] for value in values]
    return (out,)


# sort


@reference_of("sort.spread_codes")
@reference_of("sort.sort_buckets")
def sort_codes(codes: Array) -> tuple[Array, Array]:
    """The stable order of codes, and the codes in it."""
    order: Any = np.argsort(codes, kind="stable")
    return order.astype(np.uint32), codes[order]


# hashing


@reference_of("hashing.checksum")
def checksum(words: Array, first: int, state: int) -> tuple[int]:
    total = int(state)
    for position, word in enumerate(words.tolist(), int(first)):
        x = ((word ^ (position * 0x9E3779B97F4A7C15 & MASK)) * 0xD6E8FEB86659FD93) & MASK
        total = (total + (x ^ (x >> 32))) & MASK
    return (total,)


# seek


@reference_of("seek.find_runs")
def find_runs(codes: Array, keys: Array) -> tuple[Array, Array, int]:
    lo, hi = np.searchsorted(codes, keys, "left"), np.searchsorted(codes, keys, "right")
    return lo, hi, int((hi - lo).sum())


# gather


def _texts(data: Array, offsets: Array) -> list[bytes]:
    return [data[lo:hi].tobytes() for lo, hi in itertools.pairwise(offsets.tolist())]


def _laid(texts: Sequence[bytes]) -> tuple[Array, Array]:
    """Offsets of texts laid end to end, and their bytes."""
    offsets = np.array([*itertools.accumulate(map(len, texts), initial=0)], np.int64)
    return offsets, np.frombuffer(b"".join(texts), np.uint8)


@reference_of("gather.text_offsets")
def text_offsets(offsets: Array, rows: Array) -> tuple[Array, int]:
    sizes = np.diff(offsets)[rows]
    return np.concatenate([[0], np.cumsum(sizes)]), int(sizes.sum())


@reference_of("gather.gather_text")
def gather_text(data: Array, offsets: Array, rows: Array, out_offsets: Array) -> tuple[Array]:
    texts = _texts(data, offsets)
    return (_laid([texts[row] for row in rows.tolist()])[1],)


@reference_of("gather.list_elements")
def list_elements(offsets: Array, rows: Array, out_offsets: Array) -> tuple[Array]:
    elements = [at for row in rows.tolist() for at in range(offsets[row], offsets[row + 1])]
    return (np.array(elements, np.int64),)


@reference_of("gather.span_offsets")
def span_offsets(lo: Array, hi: Array) -> tuple[Array, int]:
    return np.concatenate([[0], np.cumsum(hi - lo)]), int((hi - lo).sum())


@reference_of("gather.gather_spans")
def gather_spans(data: Array, lo: Array, out_offsets: Array) -> tuple[Array]:
    sizes = np.diff(out_offsets)
    texts = [data[first : first + size].tobytes() for first, size in zip(lo, sizes, strict=True)]
    return (_laid(texts)[1],)


def _bits(bits: Array) -> list[bool]:
    return np.unpackbits(bits, bitorder="little").astype(np.bool_).tolist()


@reference_of("gather.gather_bits")
def gather_bits(bits: Array, bit_offset: int, rows: Array) -> tuple[Array, int]:
    found = np.array(_bits(bits), np.bool_)[rows + bit_offset]
    return found, int(found.sum())


UNTOUCHED: Final = 0xA5  # what arrays that are only written to hold before


# atomics


@reference_of("atomics.all_stand")
def all_stand(places: Array, seen: Array) -> tuple[bool]:
    told = [ctypes.c_uint64.from_address(int(place)).value for place in places]
    return (told == seen.tolist(),)


@reference_of("atomics.load_acquire")
@reference_of("atomics.fence_then_load")
def load(words: Array, index: int) -> tuple[int]:
    return (int(words[index]),)


@reference_of("atomics.store_release")
def store(words: Array, index: int, value: int) -> tuple[Array]:
    words[index] = value
    return (words,)


@reference_of("atomics.fence")
def fence() -> tuple[()]:
    return ()


# bells: a cell is its upper, then its bell


@reference_of("bells.ring")
def ring(words: Array, at: int) -> tuple[Array]:
    words[at + 1] = (int(words[at + 1]) + 1) & MASK
    return (words,)


@reference_of("bells.advance")
def advance(words: Array, at: int, upper: int) -> tuple[Array]:
    words[at] = upper
    return ring(words, at)  # type: ignore[no-any-return]


@reference_of("bells.advance_many")
def advance_many(words: Array, ats: Array, upper: int) -> tuple[Array, int]:
    beyond = [place for place, at in enumerate(ats.tolist()) if words[at] > upper]
    if beyond:
        return words, beyond[0]
    for at in ats.tolist():
        if words[at] != upper:
            advance(words, at, upper)
    return words, -1


@reference_of("bells.sleep")
def sleep(words: Array, at: int, seen: int, timespec: Array) -> tuple[Array, int]:
    return timespec, -1  # nobody else rings here: it rang before, or time is over


# Images of rows (hashing, rows, accumulate): the reference takes the relation they were made of.


@reference_of("hashing.hash_rows")
def hash_rows(relation: Relation) -> tuple[Array]:
    return hash_table(relation, 0, len(relation.types))  # type: ignore[no-any-return]


@reference_of("hashing.text_lanes")
def text_lanes(text: Array, lo: Array, hi: Array, slot: int, out: Array, lane: int) -> tuple[Array]:
    for row, (first, end) in enumerate(zip(lo[:, slot], hi[:, slot], strict=True)):
        out[row, lane] = words_of(ColumnType.BYTEA, text[first:end])[0]
    return (out,)


@reference_of("rows.sort_rows")
def sort_rows(codes: Array, relation: Relation, times: Array, order: Array) -> tuple[Array]:
    def key(row: int) -> tuple[Any, ...]:
        return (*codes[row : row + 1].tolist(), row_key(relation, row), *times[row : row + 1].tolist())

    return (np.array(sorted(order.tolist(), key=key), np.int64),)


@reference_of("rows.sort_ties")
def sort_ties(keys: Array, relation: Relation, order: Array) -> tuple[Array]:
    pairs = zip(keys.tolist(), order.tolist(), strict=True)
    return (
        np.array([row for _, row in sorted(pairs, key=lambda p: (p[0], row_key(relation, p[1])))], np.int64),
    )


@reference_of("rows.equal_rows")
def equal_rows(a: Relation, rows_a: Array, b: Relation, rows_b: Array) -> tuple[Array]:
    return (equal_pairs(a, rows_a, b, rows_b, len(a.types))[0],)


@reference_of("rows.run_starts")
def run_starts(relation: Relation, order: Array) -> tuple[Array, int]:
    keys = [row_key(relation, row) for row in order.tolist()]
    starts = [at for at in range(len(keys)) if at == 0 or keys[at] != keys[at - 1]]
    return np.array(starts, np.int64), len(starts)


@reference_of("accumulate.consolidate")
def consolidate(relation: Relation, times: Array, diffs: Array, order: Array) -> tuple[Array, Array, int]:
    def key(row: int) -> tuple[Any, ...]:
        return (row_key(relation, row), *times[row : row + 1].tolist())

    found = []
    for _, equal in itertools.groupby(order.tolist(), key):
        rows = list(equal)
        parts = parts_of(sum(int(diffs[row]) for row in rows))
        if len(parts) > 1:
            return order[:0], order[:0], -1
        found += [(rows[0], part) for part in parts]
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1], len(found)


@dataclass(frozen=True)
class Updates:
    """Rows of a relation with their codes, times and diffs."""

    relation: Relation
    codes: tuple[int, ...]
    times: tuple[int, ...]
    diffs: tuple[int, ...]


@reference_of("merge.merge_sources")
@reference_of("merge.replay_merge")
def merge(sources: Sequence[Updates], since: int) -> list[tuple[int, int, int]]:
    """Sorted sources as one: (source, row, diff), times advanced, equal ones summed to the first of them."""
    found = [
        (source.codes[row], row_key(source.relation, row), max(source.times[row], since), number, row)
        for number, source in enumerate(sources)
        for row in range(len(source.codes))
    ]
    merged = []
    for _, equal in itertools.groupby(sorted(found), lambda update: update[:3]):
        rows = [(number, row) for *_, number, row in equal]
        total = sum(sources[number].diffs[row] for number, row in rows)
        merged += [(*rows[0], part) for part in parts_of(total)]
    return merged


@reference_of("merge.count_folded")
def count_folded(updates: Updates, columns: int, since: int, starts: Array, span: int) -> tuple[int]:
    keys = [
        (code, row_key(updates.relation, row, 0, columns), max(time, int(since)))
        for row, (code, time) in enumerate(zip(updates.codes, updates.times, strict=True))
    ]
    rows = [row for start in starts.tolist() for row in range(start, start + span)]
    return (sum(0 < row < len(keys) and keys[row] == keys[row - 1] for row in rows),)


# nested


@reference_of("nested.image_offsets")
def image_offsets(relation: Relation, column: int) -> tuple[Array, int]:
    images = [image_of(relation.types[column], row[column]) for row in relation.rows]
    offsets = np.array([0, *itertools.accumulate(map(len, images))], np.int64)
    return offsets, sum(map(len, images))


@reference_of("nested.write_images")
def write_images(relation: Relation, column: int, offsets: Array) -> tuple[Array]:
    images = [image_of(relation.types[column], row[column]) for row in relation.rows]
    return (np.frombuffer(b"".join(images), np.uint8),)


# What reads images is given, here, the values whose images they are, and where those begin.


@dataclass(frozen=True)
class Images:
    """Values of a type whose images begin at `starts`."""

    type: AnyType
    values: tuple[Any, ...]
    starts: tuple[int, ...]

    @property
    def ends(self) -> Array:
        ends = [
            start + len(image_of(self.type, value))
            for start, value in zip(self.starts, self.values, strict=True)
        ]
        return np.array(ends, np.int64)

    @property
    def behind_nulls(self) -> Array:
        return np.array(self.starts, np.int64) + 1


@reference_of("nested.read_nulls")
def read_nulls(images: Images) -> tuple[Array, Array, int]:
    valid = np.array([value is not None for value in images.values], np.bool_)
    return images.behind_nulls, valid, int((~valid).sum())


@reference_of("nested.read_words")
def read_words(images: Images) -> tuple[Array, Array]:
    assert isinstance(images.type, ColumnType)
    known = [None if value is None else words_of(images.type, value)[0] for value in images.values]
    return images.behind_nulls + [0 if word is None else 8 for word in known], np.array(
        [word or 0 for word in known], np.uint64
    )


@reference_of("nested.text_sizes")
def text_sizes(images: Images) -> tuple[Array, int]:
    sizes = [len(bytes_of(value or b"")) for value in images.values]
    return np.array([0, *itertools.accumulate(sizes)], np.int64), sum(sizes)


@reference_of("nested.read_texts")
def read_texts(images: Images) -> tuple[Array, Array]:
    texts = [bytes_of(value or b"") for value in images.values]
    return images.ends, np.frombuffer(b"".join(texts), np.uint8)


@reference_of("nested.list_sizes")
def list_sizes(images: Images) -> tuple[Array, int]:
    sizes = [len(value or ()) for value in images.values]
    return np.array([0, *itertools.accumulate(sizes)], np.int64), sum(sizes)


@reference_of("nested.list_starts")
def list_starts(images: Images) -> tuple[Array, Array]:
    assert isinstance(images.type, ListType)
    starts = []
    for start, value in zip(images.starts, images.values, strict=True):
        at = start + 1
        for element in value or ():
            starts.append(at + 1)
            at += 1 + len(image_of(images.type.element.type, element))
    return images.ends, np.array(starts, np.int64)
