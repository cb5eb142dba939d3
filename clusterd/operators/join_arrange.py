"""Arrange: a stream kept by key in private memory, for every join of the dataflow that looks it up.

It is to joins what an imported index is: an ArrangedInput. The round's updates are sorted into one batch, and
the batches of earlier rounds stand in a spine, in which a time may be rounded up to the last one before the
round, so what is old stays told apart from what is new. As nodes finish in order, and a join stands behind
what it reads, every join sees the same history and the same batch; the batch joins the history at the next
round's end, when nobody reads it as new any more.

Does not: put anything out, publish, compute keys; errors of the stream go on through each join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from clusterd.dataflow.operator import (
    NO_ERRS,
    ArrangedInput,
    Columns,
    Delta,
    OperatorStatistics,
    Round,
    types_of,
)
from clusterd.operators.arrange import Arranger
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator
from shm_arrangements.description import Description
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import Spine
from shm_arrangements.updates import Updates

__all__ = ["ArrangeOperator"]

_HEAP: Final = HeapAllocator()


class ArrangeOperator:
    """Rows of `columns` by `key`: distinct positions, in key order."""

    def __init__(self, columns: Columns, key: Sequence[int]) -> None:
        self.schema: Columns = columns
        self._pause = Delta.empty(types_of(columns))
        self._view = _View(ArrangementSchema(columns, tuple(key)))
        self._arranger = Arranger(self._view.schema)
        self._round: Round | None = None

    @property
    def arranged(self) -> ArrangedInput:
        """What joins read, after this has finished its round."""
        return self._view

    def start(self, round: Round) -> None:
        self._round = round
        self._view.errs = []

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        if len(delta.errs):
            self._view.errs.append(delta.errs)
        for _ in self._arranger.add(delta.oks):
            yield self._pause

    def finish(self) -> Iterator[Delta]:
        round, view = self._round, self._view
        if round is None:
            raise InvariantViolation("a round that was not started is finished")
        if view.batch is not None:
            # Of the round before; merges with the fuel that its updates bring.
            view.spine.insert(view.batch)
            view.spine.set_logical_compaction(Frontier.at(round.lower - 1))
            view.spine.drain_retired()
            view.batch = None
            yield self._pause
        description = Description(Frontier.at(round.lower), round.upper, Frontier.minimum())
        for _ in self._arranger.seal(description, _HEAP):
            yield self._pause
        view.batch = self._arranger.take()
        self._round = None

    def statistics(self) -> OperatorStatistics:
        spine, batch = self._view.spine.statistics(), self._view.batch
        rows, nbytes = (0, 0) if batch is None else (len(batch), batch.nbytes)
        return OperatorStatistics(
            spine.updates + rows + self._arranger.rows, spine.nbytes + nbytes + self._arranger.nbytes
        )

    def close(self) -> None:
        self._arranger.clear()
        self._view.clear()


class _View:
    """The ArrangedInput: the spine is the past, `batch` the round."""

    def __init__(self, schema: ArrangementSchema) -> None:
        self.schema = schema
        self.spine = Spine(schema, _HEAP)
        self.batch: Batch | None = None
        self.errs: list[Updates] = []

    def clear(self) -> None:
        self.spine = Spine(self.schema, _HEAP)
        self.batch = None
        self.errs = []

    def history(self) -> Sequence[Batch]:
        return self.spine.batches()

    def delta(self) -> Sequence[Batch]:
        return () if self.batch is None else (self.batch,)

    def errs_delta(self) -> Updates:
        return Updates.concat(self.errs) if self.errs else NO_ERRS
