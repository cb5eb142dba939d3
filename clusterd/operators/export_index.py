"""Export: the end of a dataflow, where its rows and errors become an index that others read.

A round's updates are arranged as they come (arrange.py); when the round is over both halves are sealed up to
its upper, each with a batch if it got anything. A round without updates seals too: that is how an index says
that nothing happened, at the cost of a store. Batches that are built when the dataflow is dropped are
discarded, so no segment is left. An index that is closed while another export of its dataflow lives on takes
nothing more.

Does not: own the index (closing the graph leaves it as it stands), decide compaction, notify.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.dataflow.operator import Columns, Delta, OperatorStatistics, Round, types_of
from clusterd.operators.arrange import Arranger
from shm_arrangements.batch import Batch
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.writer import ERRS_SCHEMA

__all__ = ["ExportIndex"]


class ExportIndex:
    """Feeds an IndexWriter whose rows are those of `columns`; puts nothing out."""

    def __init__(self, columns: Columns, index: IndexWriter) -> None:
        if types_of(columns) != types_of(index.schema.columns):
            raise InvariantViolation("an index of other rows", rows=columns, index=index.schema)
        self.schema = columns
        self._index = index
        self._nothing = Delta.empty(types_of(columns))
        self._oks = Arranger(index.schema)
        self._errs = Arranger(ERRS_SCHEMA)
        self._round: Round | None = None

    def start(self, round: Round) -> None:
        self._round = round

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if self._index.is_closed:
            return
        for arranger, updates in ((self._oks, delta.oks), (self._errs, delta.errs)):
            for _ in arranger.add(updates):
                yield self._nothing

    def finish(self) -> Iterator[Delta]:
        round, index = self._round, self._index
        assert round is not None
        if index.is_closed:
            self.close()
            return
        if not self._oks.rows and not self._errs.rows:
            index.advance(round.upper)
            return
        built: list[Batch] = []
        try:
            for arranger, half in ((self._oks, index.oks), (self._errs, index.errs)):
                if not arranger.rows:
                    built.append(half.nothing(round.upper))
                    continue
                description = Description(half.upper, round.upper, half.since)
                for _ in arranger.seal(description, half.allocator):
                    yield self._nothing
                built.append(arranger.take())
        except BaseException:
            index.discard(*built)
            raise
        if index.is_closed:  # perhaps since the first piece
            index.discard(*built)
        else:
            index.commit(*built)

    def statistics(self) -> OperatorStatistics:
        """What waits for the end of the round; the index has statistics of its own."""
        rows = self._oks.rows + self._errs.rows
        return OperatorStatistics(rows, self._oks.nbytes + self._errs.nbytes)

    def close(self) -> None:
        self._oks.clear()
        self._errs.clear()
