"""Assembler: chosen rows of some runs become the bytes of a batch, each moved once to its final place.

First a `Plan` is told of the rows, in pieces, and finds out what each column needs: bytes of text, NULLs,
whether all its values are the same, whether a dictionary would save a quarter of its bytes. Then the size is
known, memory is allocated once, and the `Assembler` fills it, again in pieces. Both read the runs in place,
in whatever encoding (kernels/assemble.py).

Of a single run each column is looked at: if it is constant, and, by a sample first, if its texts repeat. Of
several, constant columns stay so if they agree, and dictionaries are united, by entries and not by rows, as
long as the largest run has one; where it has none, a sample of all is looked at.

Refs (kernels/refs.py) say which rows, runs being the sources.

Does not: decide which rows, or their order (builder.py, merger.py).
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Encoding, Ints, Table
from shm_arrangements.contracts import Allocation, Allocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import assemble as kernels
from shm_arrangements.kernels import intern as interning
from shm_arrangements.kernels import nodes as fields
from shm_arrangements.kernels.cells import CHILD
from shm_arrangements.kernels.refs import ROW_BITS
from shm_arrangements.layout import FORMS, BatchLayout
from shm_arrangements.rows import Words
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.types import LIST_CODE

_LEAST_COPIED: Final = 1024  # codes that are worth a call of their own to be copied as they are
_LEAST_WORDS: Final = 64  # rows below which no dictionary is thought of: arrays are rounded up to 64 bytes
_MERGE_SAMPLE: Final = 1024  # rows looked at in a merge; about 0.1 ms
_SAMPLE: Final = 256  # of a single run: so many, or one of so many, but not more than this
_SAMPLE_SHARE: Final = 64
_MOST_SAMPLE: Final = 1 << 16
_UNSIGNED: Final = struct.Struct("<Q")
_SIGNED: Final = struct.Struct("<q")
_MERGED: Final = 4096  # rows below which two runs without a dictionary get none


class Run(Protocol):
    """What a batch is assembled from: parallel arrays, columns in stored order; times one a row, or one."""

    @property
    def codes(self) -> Words: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def time_cells(self) -> Words: ...
    @property
    def table(self) -> Table: ...
    def __len__(self) -> int: ...


class _Words:
    """The dictionary of one column in the making."""

    __slots__ = ("column", "entries", "hashes", "known", "node", "slots", "starts", "state")

    def __init__(self, column: int, capacity: int, sizes: list[int]) -> None:
        """sizes: of the dictionary of each run; its rows if it has none."""
        self.column = column
        self.node = -1
        self.entries = np.empty(capacity, np.int64)
        self.hashes = np.empty(capacity, np.uint64)
        self.slots = np.full(1 << (2 * capacity).bit_length(), interning.NONE, np.uint32)
        self.starts = np.array([0, *itertools.accumulate(sizes)], np.int64)
        self.known = np.full(int(self.starts[-1]), interning.NONE, np.uint32)
        self.state = np.zeros(3, np.int64)

    @property
    def count(self) -> int:
        return int(self.state[interning.ENTRIES])

    @property
    def nbytes(self) -> int:
        """Bytes of the texts."""
        return int(self.state[interning.ENTRY_BYTES])

    @property
    def is_full(self) -> bool:
        return bool(self.state[interning.FULL])

    def add(self, tables: NDArray[np.int64], refs: Ints) -> None:
        interning.intern(
            tables, self.column, refs, self.slots, self.entries, self.hashes, self.known, self.starts,
            self.state,
        )  # fmt: skip


class Plan:
    """What a batch of certain rows of some runs is made of.

    `add` the rows as long as `needs_rows`, then `settle`; `nbytes` is known then.
    """

    __slots__ = (
        "_asks", "_looks", "begun", "diff", "facts", "layout", "node_rows", "rows", "runs", "schema", "since",
        "tables", "time", "words",
    )  # fmt: skip

    def __init__(self, schema: ArrangementSchema, runs: Sequence[Run], *, since: int = 0) -> None:
        """runs: one, or several batches. since: times before it are rounded up to it."""
        self.schema = schema
        self.runs = tuple(runs)
        self.since = since
        self.rows = 0
        self.time: int | None = None
        self.diff: int | None = None
        self.layout: BatchLayout | None = None
        self.begun = False  # whether its rows are being filled in, by whomever
        self.words: list[_Words] = []
        self.tables = _stacked([run.table.cells for run in runs])
        self.node_rows = _node_rows(schema, runs[0])
        columns = len(schema.columns)
        self.facts = np.zeros((len(schema.nodes), kernels.FACTS), np.int64)
        # Texts and lists are looked at for their size, and what may be NULL for how often it is.
        self._looks = schema.is_sized or any([run.table.may_have_nulls for run in runs])
        self._asks = len(runs) == 1 and columns > 0
        if len(runs) == 1:
            self.facts[int(schema.code is CodeKind.IDENTITY) : columns, kernels.SAME] = kernels.SO_FAR
        elif any(map(len, runs)):
            lengths = np.array([len(run) for run in runs], np.int64)
            kernels.find_constants(self.tables, columns, lengths, self.facts)
            for root in schema.nested_columns:
                if self.facts[root, kernels.SAME]:
                    self._measure_first(root)
        if schema.variable_columns:
            self._think_of_dictionaries()

    @property
    def needs_rows(self) -> bool:
        """Whether what is not known yet depends on which rows there are."""
        return self._looks or self._asks

    def add(self, refs: Ints) -> None:
        """Refs (m,) of some of the rows, each once over all calls, in any order."""
        facts, nested = self.facts, self.schema.nested_columns
        before = [int(facts[root, kernels.BYTES]) for root in nested]
        columns = len(self.schema.columns)
        self._asks = kernels.measure(self.tables, self.node_rows, 0, columns, refs, facts) > 0
        for root, size in zip(nested, before, strict=True):
            if facts[root, kernels.SAME] != kernels.KNOWN:
                self._measure_children(root, refs, int(facts[root, kernels.BYTES]) - size)
        for words in self.words:
            words.add(self.tables, refs)
        if self.words:
            self.words = [words for words in self.words if not words.is_full]

    def settle(self, rows: int, time: int | None, diff: int | None) -> None:
        """All rows have been told, `rows` > 0 of them. time, diff: what they all have, where it is one."""
        if self.layout is not None:
            return
        schema, facts = self.schema, self.facts
        self.rows, self.time, self.diff = rows, time, diff
        for root in schema.nested_columns:
            if facts[root, kernels.SAME] == kernels.SO_FAR:
                self._measure_first(root)
        nodes = schema.nodes.copy()
        kernels.decide(facts, len(schema.columns), rows, nodes)
        if self.words:
            nodes = self._with_dictionaries(nodes)
        extents = np.empty(6, np.int64)
        nbytes = fields.place_nodes(
            nodes, FORMS, layouts.NODES_AT + nodes.nbytes, rows, int(schema.code is not CodeKind.IDENTITY),
            rows if time is None else 1, rows if diff is None else int(diff != 1), extents,
        )  # fmt: skip
        self.layout = BatchLayout(rows, nbytes, extents, nodes)

    @property
    def nbytes(self) -> int:
        """Bytes of the batch, once settled."""
        return self.settled.nbytes

    @property
    def settled(self) -> BatchLayout:
        """Where everything will be. Raises: InvariantViolation if that is not known yet."""
        if self.layout is None:
            raise InvariantViolation("a plan has a layout once it is settled")
        return self.layout

    def child_refs(self, node: int, refs: Ints, size: int) -> Ints:
        """Of lists or records: what they are made of, `size` elements or fields."""
        out = np.empty(size, np.int64)
        kernels.child_refs(self.tables, int(self.node_rows[node]), refs, out)
        return out

    def _measure_children(self, node: int, refs: Ints, elements: int) -> None:
        first, count, is_list = children_of(self.schema, node)
        if count == 0:
            return
        parts = self.child_refs(node, refs, elements if is_list else len(refs))
        for child in range(first, first + count):
            before = int(self.facts[child, kernels.BYTES])
            kernels.measure(self.tables, self.node_rows, child, child + 1, parts, self.facts)
            self._measure_children(child, parts, int(self.facts[child, kernels.BYTES]) - before)

    def _measure_first(self, root: int) -> None:
        """Measure what is in a list or record as if there were its first value alone."""
        todo = [root]
        while todo:
            first, count, _ = children_of(self.schema, todo.pop())
            self.facts[first : first + count] = 0
            todo += range(first, first + count)
        facts = self.facts[root].tolist()
        head = np.array([facts[kernels.FIRST]], np.int64)
        self._measure_children(root, head, facts[kernels.BYTES] // facts[kernels.COUNT])

    def _think_of_dictionaries(self) -> None:
        is_single, rows = len(self.runs) == 1, sum(map(len, self.runs))
        if rows < _LEAST_WORDS:
            return
        for column in self.schema.variable_columns:
            if self.facts[column, kernels.SAME] == kernels.KNOWN:
                continue
            parts = [run.columns[column] for run in self.runs]
            if max(parts, key=len).encoding is not Encoding.PLAIN:
                # The entries, and perhaps all rows of smaller parts that have none.
                capacity = sum(len(part) if part.stored is None else len(part.stored) for part in parts)
            elif is_single or rows >= _MERGED:
                share = max(_SAMPLE, min(rows // _SAMPLE_SHARE, _MOST_SAMPLE))
                capacity = self._likely_entries(column, parts, share if is_single else _MERGE_SAMPLE)
            else:
                continue
            if capacity:
                sizes = [len(part) if part.stored is None else len(part.stored) for part in parts]
                self.words.append(_Words(column, capacity, sizes))

    def _likely_entries(self, column: int, parts: list[Column], sampled: int) -> int:
        """The most entries that a dictionary is given room for; 0 if it would not save enough."""
        rows = sum(map(len, parts))
        picked = _some_of(rows, sampled)
        size = len(picked)
        if len(parts) > 1:
            ends = np.array([0, *itertools.accumulate(map(len, parts))], np.int64)
            part = np.searchsorted(ends, picked, "right") - 1
            picked = part << ROW_BITS | (picked - ends[part])
        sample = _Words(column, size, [0] * len(parts))
        sample.add(self.tables, picked)
        entries = _distinct(sample.count, size, rows)
        entry_bytes = sample.nbytes / sample.count
        if not _saves(entries, int(entries * entry_bytes), rows, sum(map(_text_bytes, parts))):
            return 0
        return min(rows, 2 * entries + _MERGE_SAMPLE)

    def _with_dictionaries(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The nodes with those of dictionaries behind them, as far as they save enough."""
        facts = self.facts
        self.words = [
            words
            for words in self.words
            if not facts[words.column, kernels.SAME]
            and _saves(words.count, words.nbytes, self.rows, int(facts[words.column, kernels.BYTES]))
        ]
        more = np.zeros((len(self.words), fields.NODE_FIELDS), np.int64)
        for i, words in enumerate(self.words):
            words.node = len(nodes) + i
            node = nodes[words.column]
            more[i, fields.TYPE] = node[fields.TYPE] & 0xFFFF
            more[i, fields.LENGTH], more[i, fields.VALUES_AT + 1] = words.count, words.nbytes
            node[fields.TYPE] |= fields.DICTIONARY << fields.ENCODING_BIT
            node[fields.TYPE] |= _index_bytes(words.count) << fields.INDEX_BIT
            node[fields.CHILDREN] = words.node | 1 << 32
        if self.words:
            columns = [words.column for words in self.words]
            self.node_rows = np.concatenate((self.node_rows, self.node_rows[columns]))
            self.facts = np.concatenate((facts, np.zeros((len(columns), kernels.FACTS), np.int64)))
        return np.concatenate((nodes, more))


class Assembler:
    """Fills the batch that a settled plan is of, with the plan's rows in batch order."""

    __slots__ = (
        "_address", "_allocation", "_bytes", "_codes", "_description", "_filled", "_plan", "_times", "layout",
    )  # fmt: skip

    def __init__(self, plan: Plan, allocator: Allocator, *, deferred: bool = False) -> None:
        """deferred: as `Allocator.allocate`; all must be reserved before the first `fill`.

        Raises: what the allocator raises; the plan is as good as before then.
        """
        self._plan = plan
        self.layout = plan.settled
        self._allocation: Allocation = allocator.allocate(self.layout.nbytes, deferred=deferred)
        self._codes: NDArray[np.int64] | None = None
        self._times: NDArray[np.int64] | None = None
        self._bytes: NDArray[np.uint8] | None = None
        self._address = 0
        self._filled = 0
        self._description: Description | None = None

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def reserved(self) -> int:
        """As `Allocation.reserved`."""
        return self._allocation.reserved

    def reserve(self, upto_bytes: int) -> None:
        """As `Allocation.reserve`."""
        self._allocation.reserve(upto_bytes)

    def fill(self, refs: Ints, diffs: Ints, *, codes: Words | None = None) -> None:
        """Write the next rows, refs (m,), in batch order.

        diffs: (m,), not looked at if the plan has one for all. codes: (m,), if they are at hand.
        """
        plan, buffer = self._plan, self._buffer
        lo, hi = self._filled, self._filled + len(refs)
        codes_at, _, times_at, _, diffs_at, _ = self.layout.extents.tolist()
        begin = 0
        if plan.schema.code is not CodeKind.IDENTITY:
            out = layouts.array_at(buffer, codes_at + 8 * lo, 8 * len(refs), np.uint64)
            if codes is None:
                if self._codes is None:
                    self._codes = _word_sources([run.codes for run in plan.runs])
                kernels.fill_words(self._codes, refs, np.uint64(0), out)
            else:
                out[:] = codes
        elif codes is not None and len(refs) >= _LEAST_COPIED and not self.layout.nodes[0, fields.NULLS]:
            layouts.array_at(buffer, codes_at + 8 * lo, 8 * len(refs), np.uint64)[:] = codes
            plan.facts[0, kernels.DONE] = hi
            begin = 1
        if plan.time is None:
            out = layouts.array_at(buffer, times_at + 8 * lo, 8 * len(refs), np.uint64)
            if self._times is None:
                self._times = _word_sources([run.time_cells for run in plan.runs])
            kernels.fill_words(self._times, refs, np.uint64(plan.since), out)
        if plan.diff is None:
            layouts.array_at(buffer, diffs_at + 8 * lo, 8 * len(refs), np.int64)[:] = diffs
        schema = plan.schema
        nested = schema.nested_columns
        sizes = [int(plan.facts[root, kernels.AT]) for root in nested]
        self._fill_nodes(begin, len(schema.columns), refs)
        for root, size in zip(nested, sizes, strict=True):
            self._fill_children(root, self._refs_of(root, refs, lo), size)
        for words in plan.words:
            interning.fill_indices(
                plan.tables, words.column, refs, words.slots, words.entries, words.hashes, words.known,
                words.starts, self.layout.nodes, lo, self._address,
            )  # fmt: skip
        self._filled = hi

    def write_header(self, description: Description) -> None:
        """After the last `fill`, before any checksum."""
        if self._filled != self.layout.rows:
            raise InvariantViolation("not all rows are there", rows=self._filled, wanted=self.layout.rows)
        self._description = description
        layouts.write_header(self._buffer, self.layout, self._plan.schema, description)

    def checksum(self, start: int, stop: int, state: int) -> int:
        """Continue the checksum over bytes [start, stop), multiples of 8; it begins at CHECKSUM_FROM."""
        return layouts.checksum_words(self._buffer, start, stop, state)

    def seal(self, checksum: int | None) -> Batch:
        """The finished batch. `checksum`: of everything from CHECKSUM_FROM on, or None for none."""
        if checksum is not None:
            layouts.write_checksum(self._buffer, checksum)
        assert self._description is not None
        self._bytes = None
        return Batch(
            self._plan.schema,
            self._description,
            self.layout,
            self._allocation.seal()[: self.layout.nbytes],
            locator=self._allocation.locator,
        )

    def abandon(self) -> None:
        """Give the memory back unsealed."""
        self._bytes = None
        self._allocation.abandon()

    @property
    def _buffer(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            self._bytes = buffer = self._allocation.buffer[: self.layout.nbytes]
            self._address = layouts.address_of(buffer)
            if self._filled == 0:
                self._begin(buffer)
        return self._bytes

    def _begin(self, buffer: NDArray[np.uint8]) -> None:
        """Write what does not depend on the rows."""
        plan = self._plan
        _, _, times_at, _, diffs_at, diffs = self.layout.extents.tolist()
        if plan.time is not None:
            _UNSIGNED.pack_into(buffer.data, times_at, plan.time)
        if plan.diff is not None and diffs:
            _SIGNED.pack_into(buffer.data, diffs_at, plan.diff)
        if plan.begun:  # by another assembler, which was abandoned
            plan.facts[:, kernels.DONE :] = 0
        plan.begun = True
        for words in plan.words:
            self._fill_nodes(words.node, words.node + 1, words.entries[: words.count])

    def _fill_nodes(self, first: int, last: int, refs: Ints) -> None:
        plan = self._plan
        kernels.fill(
            plan.tables,
            plan.node_rows,
            first,
            last,
            refs,
            self.layout.nodes,
            FORMS,
            self._address,
            plan.facts,
        )

    def _refs_of(self, root: int, refs: Ints, done: int) -> Ints:
        """What of the next rows is to be written of a list or record."""
        encoding = (int(self.layout.nodes[root, fields.TYPE]) >> fields.ENCODING_BIT) & 0xFF
        return refs if encoding == fields.PLAIN else refs[: 1 if done == 0 else 0]

    def _fill_children(self, node: int, refs: Ints, before: int) -> None:
        """before: the elements that a list had before `refs` were filled in."""
        plan = self._plan
        first, count, is_list = children_of(plan.schema, node)
        if count == 0 or len(refs) == 0:
            return
        elements = int(plan.facts[node, kernels.AT]) - before
        parts = plan.child_refs(node, refs, elements if is_list else len(refs))
        for child in range(first, first + count):
            size = int(plan.facts[child, kernels.AT])
            self._fill_nodes(child, child + 1, parts)
            self._fill_children(child, parts, size)


def children_of(schema: ArrangementSchema, node: int) -> tuple[int, int, bool]:
    """Of a node of a schema: its first child, how many there are, and whether it is a list."""
    type_, children = schema.nodes[node, [fields.TYPE, fields.CHILDREN]].tolist()
    return children & 0xFFFFFFFF, children >> 32, type_ & 0xFFFF == LIST_CODE


def _node_rows(schema: ArrangementSchema, run: Run) -> NDArray[np.int64]:
    """Of each node its row in a run's table; of a batch's table, the same."""
    if isinstance(run, Batch) or not schema.nested_columns:
        return schema.node_numbers
    rows = schema.node_numbers.copy()
    for node in range(len(rows)):
        first, count, _ = children_of(schema, node)
        if count:
            child = int(run.table.cells[rows[node], CHILD])
            rows[first : first + count] = range(child, child + count)
    return rows


def _stacked(tables: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    if len(tables) == 1:
        return tables[0][np.newaxis]
    return np.concatenate(tables).reshape(len(tables), *tables[0].shape)


def _word_sources(arrays: list[Words]) -> NDArray[np.int64]:
    """As `fill_words` takes them."""
    return np.array([(layouts.address_of(a), 8 if len(a) > 1 else 0) for a in arrays], np.int64)


def _some_of(rows: int, size: int) -> Ints:
    """At most `size` row numbers, ascending, all over the rows; in no pattern, for values may come in one."""
    if rows <= size:
        return np.arange(rows, dtype=np.int64)
    mixed = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    within = (mixed >> np.uint64(20)) % np.uint64(rows // size)
    return np.arange(size, dtype=np.int64) * rows // size + within.astype(np.int64)


def _text_bytes(column: Column) -> int:
    """Bytes of all texts, about."""
    plain = column if column.stored is None else column.stored
    offsets = plain.offsets
    assert offsets is not None
    return int(offsets[-1] - offsets[0]) * len(column) // max(len(plain), 1)


def _index_bytes(entries: int) -> int:
    return 1 if entries <= 1 << 8 else 2 if entries <= 1 << 16 else 4


def _saves(entries: int, entry_bytes: int, rows: int, text_bytes: int) -> bool:
    """Whether texts of `text_bytes` take at least a quarter less with a dictionary."""
    encoded = _index_bytes(entries) * rows + 8 * (entries + 1) + entry_bytes
    return 4 * encoded <= 3 * (8 * (rows + 1) + text_bytes)


def _distinct(found: int, sampled: int, rows: int) -> int:
    """How many distinct values there are likely to be, if `found` were among `sampled` of the rows.

    As many as would give so many repetitions if each were as frequent as the others: where some are more
    frequent it is too low, and the dictionary turns out too large and is given up.
    """
    if found == sampled or sampled == rows:
        return rows if found == sampled else found
    low, high = float(found), float(rows)
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        if middle * -math.expm1(-sampled / middle) < found:
            low = middle
        else:
            high = middle
    return math.ceil(high)
