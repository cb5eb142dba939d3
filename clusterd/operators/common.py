"""How a round reads arrangements that were imported. Here belongs what both kinds of import share, alone.

`ImportedRound` is the view of one imported arrangement in the round that runs: the source that owns it sets
it at `start` and clears it at `finish`, and joins hold it as their ArrangedInput. The same batches are the
stream and the state, cut by one function, so a join cannot see a row in one and miss it in the other (Z6).

Does not: decide which batches those are (import_index.py, import_snapshot.py), copy a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterd.dataflow.operator import BLOCK_ROWS, NO_ERRS, Columns, Delta, Round
from shm_arrangements.batch import Batch
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.updates import Updates

__all__ = ["ImportedRound", "cut_blocks"]


def cut_blocks(batches: Sequence[Batch], round: Round) -> Iterator[Updates]:
    """The updates of `round` in `batches`, in row order, in blocks of at most BLOCK_ROWS, times advanced."""
    for batch in batches:
        columns = batch.row_columns()
        for lo in range(0, len(batch), BLOCK_ROWS):
            hi = min(lo + BLOCK_ROWS, len(batch))
            part = tuple(column.slice(lo, hi) for column in columns)
            block = Updates(part, batch.times_at(lo, hi), batch.diffs_at(lo, hi))
            yield round.cut(block)


class ImportedRound:
    """An ArrangedInput: what one round sees of an imported index."""

    def __init__(self, schema: ArrangementSchema) -> None:
        self.schema = schema
        self._round: Round | None = None
        self._history: Sequence[Batch] = ()
        self._delta: Sequence[Batch] = ()
        self._errs: Sequence[Batch] = ()

    def set(
        self, round: Round, history: Sequence[Batch], delta: Sequence[Batch], errs: Sequence[Batch]
    ) -> None:
        """history, delta: as ArrangedInput says. errs: batches that hold the errors of the round."""
        self._round, self._history, self._delta, self._errs = round, history, delta, errs

    def clear(self) -> None:
        """The round is over: no batch is held any more."""
        self._round, self._history, self._delta, self._errs = None, (), (), ()

    @property
    def columns(self) -> Columns:
        return self.schema.columns

    def history(self) -> Sequence[Batch]:
        return self._history

    def delta(self) -> Sequence[Batch]:
        return self._delta

    @property
    def expected_rows(self) -> int:
        """Updates of the batches that the round reads."""
        return sum(map(len, self._delta))

    def errs_delta(self) -> Updates:
        parts = list(cut_blocks(self._errs, self._current))
        return Updates.concat(parts) if parts else NO_ERRS

    def blocks(self) -> Iterator[Delta]:
        """The round as a stream."""
        types = tuple(spec.type for spec in self.columns)
        errs = self.errs_delta()
        for lo in range(0, len(errs), BLOCK_ROWS):
            yield Delta(Updates.empty(types), errs.slice(lo, min(lo + BLOCK_ROWS, len(errs))))
        for oks in cut_blocks(self._delta, self._current):
            yield Delta.of(oks)

    @property
    def _current(self) -> Round:
        if self._round is None:
            raise InvariantViolation("an imported arrangement is read within a round", schema=self.schema)
        return self._round
