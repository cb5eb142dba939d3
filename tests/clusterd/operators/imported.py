"""An index of another dataflow, as a join sees it: what is pushed becomes batches of a spine, merged and
compacted as far as an import's hold allows.

It is used like an ArrangeOperator, for tests that hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.dataflow.operator import ArrangedInput, Columns, Delta, Round
from clusterd.operators.common import ImportedRound
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import Spine
from shm_arrangements.updates import Updates


class Imported:
    """`finished` is to be called when the joins have finished the round."""

    def __init__(self, columns: Columns, key: tuple[int, ...]) -> None:
        self._schema = ArrangementSchema(columns, key)
        self._spine = Spine(self._schema, HeapAllocator())
        self._view = ImportedRound(self._schema)
        self._waiting: list[Updates] = []

    @property
    def arranged(self) -> ArrangedInput:
        return self._view

    def start(self, round: Round) -> None:
        self._round = round
        self._waiting = []

    def push(self, port: int, delta: Delta) -> Iterator[Delta]:
        self._waiting.append(delta.oks)
        return iter(())

    def finish(self) -> Iterator[Delta]:
        round, spine = self._round, self._spine
        description = Description(Frontier.at(round.lower), round.upper, Frontier.minimum())
        batches = []
        if self._waiting:
            batches = [build_batch(Updates.concat(self._waiting), self._schema, description, HeapAllocator())]
        spine.insert(batches[0] if batches else Batch.empty(self._schema, description))
        # In the first round the chain is what there is to read, merged or not.
        self._view.set(round, spine.batches(), spine.batches() if round.is_first else batches, ())
        return iter(())

    def finished(self) -> None:
        if not self._round.upper.is_empty:
            # What an import holds: the time before the next round's lower stays apart from it.
            self._spine.set_logical_compaction(Frontier.at(max(self._round.upper.time - 1, 0)))
            self._spine.exert(1 << 20)

    def close(self) -> None:
        self._view.clear()
