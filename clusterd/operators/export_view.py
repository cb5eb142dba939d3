"""Materialized view: the end of a dataflow, where its rows and errors are written into a shard.

A round's updates are collected and, when the round is over, offered to whoever writes the shard
(view_writer.py). A row with NULL in a column that the shard declares not null is an error in data instead,
which names the column and goes when the row does.

Does not: read or write the shard, own its writer (closing the graph leaves that as it stands).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round, types_of
from clusterd.operators.view_writer import ViewWriter
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

__all__ = ["ExportView"]


class ExportView:
    """Feeds a ViewWriter whose shard has columns of the types of `columns`; puts nothing out."""

    def __init__(self, columns: Columns, writer: ViewWriter) -> None:
        if types_of(columns) != types_of(writer.columns):
            raise InvariantViolation("a shard of other rows", rows=columns, shard=writer.columns)
        self.schema = columns
        self._writer = writer
        self._nothing = Delta.empty(types_of(columns))
        pairs = enumerate(zip(columns, writer.columns, strict=True))
        self._not_null = [at for at, (given, wanted) in pairs if given.nullable and not wanted.nullable]
        self._deltas: list[Delta] = []
        self._round: Round | None = None

    def start(self, round: Round) -> None:
        self._round = round

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if self._not_null:
            delta = self._without_nulls(delta)
        if len(delta):
            self._deltas.append(delta)
        yield self._nothing

    def finish(self) -> Iterator[Delta]:
        assert self._round is not None
        deltas, self._deltas = self._deltas, []
        self._writer.offer(self._round.upper, deltas)
        yield self._nothing

    def statistics(self) -> OperatorStatistics:
        """What waits for the end of the round, and what the writer keeps."""
        kept = self._writer.statistics()
        rows = sum(map(len, self._deltas))
        nbytes = sum(delta.oks.nbytes + delta.errs.nbytes for delta in self._deltas)
        return OperatorStatistics(kept.state_rows + rows, kept.state_bytes + nbytes)

    def close(self) -> None:
        self._deltas = []

    def _without_nulls(self, delta: Delta) -> Delta:
        oks, errs = delta.oks, delta.errs
        for at in self._not_null:
            validity = oks.columns[at].validity
            if validity is None or validity.all():
                continue
            refused = np.flatnonzero(~validity)
            text = f"invalid-data: column {self._writer.columns[at].name!r} of {self._writer.name} is NULL"
            column = Column.constant(ColumnType.TEXT, text, len(refused)).plain()
            failed = Updates((column,), oks.times.take(refused), oks.diffs.take(refused))
            errs = Updates.concat([errs, failed]) if len(errs) else failed
            oks = oks.filter(validity)
        return Delta(oks, errs)
