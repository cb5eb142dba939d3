"""RowImage: rows in one normal form, of which equality, order and hash are taken without their columns.

A row becomes a few u64 lanes that order as its values do: per column a NULL flag if it may be NULL (1 is
NULL, so NULL sorts last), then its value: its order words (kernels/cells.py), and for a text (bytes, JSON,
the image of a list or record) its first 8 bytes, with the whole of it in a slot beside. Who compares images
and who compares columns in place agree about which rows are equal, for both read the same words.

Texts are not copied unless several columns must share one buffer. `decode` is the exact inverse of `encode`.

Does not: choose the canonical form of values (columns.py does), or know about times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import nested
from shm_arrangements.columns import Column, Encoding, Ints
from shm_arrangements.errors import InvariantViolation, MultiplicityOverflow
from shm_arrangements.kernels import accumulate, cells, gather, hashing
from shm_arrangements.kernels import rows as kernels
from shm_arrangements.table import Table
from shm_arrangements.types import VARIABLE, WIDE, AnyType, ColumnSpec, ColumnType, is_nested

Words = NDArray[np.uint64]

_NO_WORDS: Final = np.empty(0, np.uint64)
_NO_TEXT: Final = np.empty(0, np.uint8)


@dataclass(frozen=True)
class RowSpec:
    """The types of a row's columns, each with whether it may be NULL; fixes the lanes."""

    types: tuple[tuple[AnyType, bool], ...]

    @staticmethod
    def of(columns: Sequence[ColumnSpec]) -> RowSpec:
        return RowSpec(tuple((c.type, c.nullable) for c in columns))

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """(L,) kind of each lane, as in kernels/hashing.py."""
        kinds: list[int] = []
        for type_, nullable in self.types:
            if nullable:
                kinds.append(hashing.NULL_FLAG)
            if has_slot(type_):
                kinds.append(hashing.TEXT)
            elif type_ in WIDE:
                kinds += (hashing.VALUE_HIGH, hashing.VALUE)
            else:
                kinds.append(hashing.VALUE)
        return np.array(kinds, np.uint8)

    @cached_property
    def text_columns(self) -> tuple[int, ...]:
        """Positions of the columns that have bytes beside their lanes; the k-th owns text slot k."""
        return tuple(i for i, (type_, _) in enumerate(self.types) if has_slot(type_))


@dataclass(frozen=True, slots=True)
class RowImage:
    """n rows: lanes (n, L) uint64, C order; text slots [text_lo, text_hi) (n, T) int64 into text uint8."""

    spec: RowSpec
    lanes: Words
    text_lo: NDArray[np.int64]
    text_hi: NDArray[np.int64]
    text: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.lanes)

    def take(self, rows: Ints) -> RowImage:
        """The image of `rows` (m,); lanes copied, text bytes shared."""
        lo, hi = self.text_lo.take(rows, axis=0), self.text_hi.take(rows, axis=0)
        return RowImage(self.spec, self.lanes.take(rows, axis=0), lo, hi, self.text)

    def hash(self) -> Words:
        """(n,) hash of the values; the same values hash the same whether their columns may be NULL or not."""
        out = np.empty(len(self.lanes), np.uint64)
        hashing.hash_rows(self.lanes, self.spec.kinds, self.text_lo, self.text_hi, self.text, out)
        return out

    def equal(self, rows: Ints, other: RowImage, other_rows: Ints) -> NDArray[np.bool_]:
        """(m,) whether rows[k] here equals other_rows[k] there. Specs must be the same."""
        if self.spec != other.spec:
            raise InvariantViolation("rows of different specs compared", left=self.spec, right=other.spec)
        out = np.empty(len(rows), np.bool_)
        kernels.equal_rows(
            self.lanes, self.text_lo, self.text_hi, self.text, rows,
            other.lanes, other.text_lo, other.text_hi, other.text, other_rows, self.spec.kinds, out,
        )  # fmt: skip
        return out

    def sort_order(self, code: Words | None = None, times: Words | None = None) -> Ints:
        """(n,) the stable permutation that sorts by (code if given, row, time if given); NULL last."""
        n = len(self.lanes)
        order = np.arange(n, dtype=np.int64)
        if n > 1:
            kernels.sort_rows(
                _NO_WORDS if code is None else code,
                self.lanes, self.spec.kinds, self.text_lo, self.text_hi, self.text,
                _NO_WORDS if times is None else times,
                order, np.empty(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.uint64),
                np.empty(2048, np.int64), np.empty(3 * (n // 192 + 2), np.int64),
            )  # fmt: skip
        return order

    def sort_ties(self, keys: Words, order: Ints) -> None:
        """Sort the rows of equal keys, in place: order (n,) names rows by keys (n,), which ascend."""
        kernels.sort_ties(
            keys, self.lanes, self.spec.kinds, self.text_lo, self.text_hi, self.text,
            order, np.empty(len(order), np.int64),
        )  # fmt: skip

    def run_starts(self, order: Ints) -> Ints:
        """Positions in `order` where a run of equal rows begins, ascending; `order` must be sorted by row."""
        out = np.empty(len(order), np.int64)
        runs = kernels.run_starts(
            self.lanes, self.spec.kinds, self.text_lo, self.text_hi, self.text, order, out
        )
        return out[:runs]

    def consolidate(self, order: Ints, diffs: Ints, times: Words | None = None) -> tuple[Ints, Ints]:
        """Rows and sums of diffs of neighbours in sorted `order` equal in row (and time if given).

        Returns (rows (k,), sums (k,)) without zero sums, in order. Raises: MultiplicityOverflow.
        """
        rows = np.empty(len(order), np.int64)
        sums = np.empty(len(order), np.int64)
        kept = accumulate.consolidate(
            self.lanes, self.spec.kinds, self.text_lo, self.text_hi, self.text,
            _NO_WORDS if times is None else times, diffs, order, rows, sums,
        )  # fmt: skip
        if kept < 0:
            raise MultiplicityOverflow("a sum of diffs is beyond 64 bits")
        return rows[:kept], sums[:kept]


def has_slot(type_: AnyType) -> bool:
    """Whether an image keeps bytes of such values, in a slot: texts, and the images of lists and records."""
    return is_nested(type_) or type_ in VARIABLE


def encode(columns: Sequence[Column], spec: RowSpec, rows: int | None = None) -> RowImage:
    """The image of `columns`, in the order given.

    rows: how many, needed only for zero columns.
    Raises: ValueError if a NULL is in a column that the spec says has none.
    """
    n = len(columns[0]) if columns else int(rows or 0)
    lanes = np.empty((n, len(spec.kinds)), np.uint64)
    table = Table(columns)
    lo, hi, text = _text_slots([columns[i] for i in spec.text_columns], n)
    lane = slot = 0
    for at, (column, (type_, nullable)) in enumerate(zip(columns, spec.types, strict=True)):
        if column.type != type_ or len(column) != n:
            raise InvariantViolation(
                "column does not fit its row", column=repr(column), type=type_.name, rows=n
            )
        if nullable:
            validity = column.validity if column.has_validity else None
            lanes[:, lane] = 0 if validity is None else ~validity
            lane += 1
        elif column.has_validity and column.null_count:
            raise ValueError(f"NULL in a column of type {type_.name.lower()} that has none")
        if has_slot(type_):
            hashing.text_lanes(text, lo, hi, slot, lanes, lane)
            slot += 1
        else:
            cells.order_lane(table.cells, at, 0, lanes, lane)
            if type_ in WIDE:
                lane += 1
                cells.order_lane(table.cells, at, 1, lanes, lane)
        lane += 1
    return RowImage(spec, lanes, lo, hi, text)


def decode(image: RowImage, rows: Ints | None = None) -> tuple[Column, ...]:
    """The columns of `rows` (None: all) of an image; NULLs in the canonical form."""
    lanes = image.lanes if rows is None else image.lanes.take(rows, axis=0)
    out: list[Column] = []
    lane = slot = 0
    for type_, nullable in image.spec.types:
        validity: NDArray[np.bool_] | None = None
        if nullable:
            validity = lanes[:, lane] == 0
            validity = None if validity.all() else validity
            lane += 1
        if has_slot(type_):
            lo, hi = (e[:, slot] if rows is None else e[rows, slot] for e in (image.text_lo, image.text_hi))
            lo, hi = np.ascontiguousarray(lo), np.ascontiguousarray(hi)
            slot += 1
            if isinstance(type_, ColumnType):
                offsets = np.empty(len(lo) + 1, np.int64)
                values = np.empty(gather.span_offsets(lo, hi, offsets), np.uint8)
                gather.gather_spans(image.text, lo, offsets, values)
                out.append(Column(type_, values, offsets, validity))
            else:
                out.append(nested.column_of_images(type_, image.text, lo))
        else:
            assert isinstance(type_, ColumnType)
            words = [lanes[:, lane]]
            if type_ in WIDE:
                lane += 1
                words.append(lanes[:, lane])
            out.append(nested.column_of_words(type_, words, validity))
        lane += 1
    return tuple(out)


def _text_slots(columns: list[Column], n: int) -> tuple[Ints, Ints, NDArray[np.uint8]]:
    if not columns:
        none = np.empty((n, 0), np.int64)
        return none, none, _NO_TEXT
    slots = [_spans(column) for column in columns]
    if len(slots) == 1:
        lo, hi, text = slots[0]
        return lo.reshape(n, 1), hi.reshape(n, 1), text
    starts = np.cumsum([0] + [len(text) for _, _, text in slots[:-1]])
    lo = np.stack([lo + start for (lo, _, _), start in zip(slots, starts, strict=True)], axis=1)
    hi = np.stack([hi + start for (_, hi, _), start in zip(slots, starts, strict=True)], axis=1)
    return lo, hi, np.concatenate([text for _, _, text in slots])


def _spans(column: Column) -> tuple[Ints, Ints, NDArray[np.uint8]]:
    """Where each row's bytes are, in an array; no byte is copied but for lists, records and repetitions."""
    if is_nested(column.type):
        offsets, images = nested.images_of(column)
        return offsets[:-1], offsets[1:], images
    if column.encoding is Encoding.DICTIONARY:
        assert column.stored is not None
        assert column.indices is not None
        ends = column.stored.offsets
        assert ends is not None
        return ends[:-1].take(column.indices), ends[1:].take(column.indices), column.stored.values
    bounds = column.offsets
    assert bounds is not None
    first = int(bounds[0])
    if first or int(bounds[-1]) != len(column.values):
        return bounds[:-1] - first, bounds[1:] - first, column.values[first : int(bounds[-1])]
    return bounds[:-1], bounds[1:], column.values
