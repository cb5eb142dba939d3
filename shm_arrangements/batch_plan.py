"""Plan: what a batch of chosen rows of some runs is made of, and its size, before there is memory for it.

A plan is told of the rows, in pieces, and finds out what each column needs: bytes of text, NULLs, whether all
its values are the same, whether a dictionary would save a quarter of its bytes (dictionaries.py). It reads
the runs in place, in whatever encoding (kernels/assemble.py).

Of a single run each column is looked at: if it is constant, and, by a sample first, if its texts repeat. Of
several, constant columns stay so if they agree, and dictionaries are united, by entries and not by rows, as
long as the largest run has one; where it has none, a sample of all is looked at.

Refs (kernels/refs.py) say which rows, runs being the sources.

Does not: decide which rows, or their order (builder.py, merger.py); allocate or write (assembler.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shm_arrangements import layout as layouts
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column, Ints
from shm_arrangements.dictionaries import LEAST_ROWS, Dictionary, begin_dictionaries
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels import assemble as kernels
from shm_arrangements.kernels import nodes as fields
from shm_arrangements.kernels.cells import CHILD
from shm_arrangements.layout import FORMS, BatchLayout
from shm_arrangements.rows import Words
from shm_arrangements.schema import ArrangementSchema, CodeKind
from shm_arrangements.table import Table
from shm_arrangements.types import LIST_CODE


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


class Plan:
    """What a batch of certain rows of some runs is made of.

    `add` the rows as long as `needs_rows`, then `settle`; `nbytes` is known then.
    """

    __slots__ = (
        "_asks", "_looks", "begun", "dictionaries", "diff", "facts", "layout", "node_rows", "rows", "runs",
        "schema", "since", "tables", "time",
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
        self.dictionaries: list[Dictionary] = []
        if schema.variable_columns and sum(map(len, runs)) >= LEAST_ROWS:
            texts = [c for c in schema.variable_columns if self.facts[c, kernels.SAME] != kernels.KNOWN]
            parts = {column: [run.columns[column] for run in runs] for column in texts}
            self.dictionaries = begin_dictionaries(self.tables, parts)

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
        for each in self.dictionaries:
            each.add(self.tables, refs)
        if self.dictionaries:
            self.dictionaries = [each for each in self.dictionaries if not each.is_full]

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
        if self.dictionaries:
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

    def _with_dictionaries(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The nodes with those of dictionaries behind them, as far as they save enough."""
        facts = self.facts
        self.dictionaries = [
            each
            for each in self.dictionaries
            if not facts[each.column, kernels.SAME]
            and each.saves(self.rows, int(facts[each.column, kernels.BYTES]))
        ]
        more = np.zeros((len(self.dictionaries), fields.NODE_FIELDS), np.int64)
        for i, each in enumerate(self.dictionaries):
            each.node = len(nodes) + i
            node = nodes[each.column]
            more[i, fields.TYPE] = node[fields.TYPE] & 0xFFFF
            more[i, fields.LENGTH], more[i, fields.VALUES_AT + 1] = each.count, each.nbytes
            node[fields.TYPE] |= fields.DICTIONARY << fields.ENCODING_BIT
            node[fields.TYPE] |= each.index_bytes << fields.INDEX_BIT
            node[fields.CHILDREN] = each.node | 1 << 32
        if self.dictionaries:
            columns = [each.column for each in self.dictionaries]
            self.node_rows = np.concatenate((self.node_rows, self.node_rows[columns]))
            self.facts = np.concatenate((facts, np.zeros((len(columns), kernels.FACTS), np.int64)))
        return np.concatenate((nodes, more))


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
