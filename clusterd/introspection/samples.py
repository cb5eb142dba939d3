"""The newest samples of an instance's processes, decoded: what rows of introspection are made of.

A dataflow that did not move is the same bytes in the next sample, and is not decoded again: it stays the same
object.

Does not: read pages (page.py), make rows (relations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from clusterd.introspection.sample import (
    DataflowFigures,
    DataflowShape,
    MuxSample,
    Sample,
    SupervisorSample,
    WorkerSample,
)

__all__ = ["Samples"]

_T = TypeVar("_T", DataflowShape, DataflowFigures)


class _Kept(Generic[_T]):
    """The decoded forms of the parts of one process's sample."""

    def __init__(self, kind: type[_T]) -> None:
        self._decode: Callable[[bytes], _T] = msgspec.msgpack.Decoder(kind).decode
        self._known: dict[bytes, _T] = {}
        self.by_number: dict[int, _T] = {}

    def take(self, raws: Sequence[msgspec.Raw]) -> None:
        known, self._known = self._known, {}
        for raw in map(bytes, raws):
            found = known.get(raw)
            self._known[raw] = self._decode(raw) if found is None else found
        self.by_number = {each.dataflow: each for each in self._known.values()}


class Samples:
    """By process, each in place of the one before."""

    def __init__(self) -> None:
        self.by_process: dict[str, Sample] = {}
        self._decode: Callable[[bytes], Sample] = msgspec.msgpack.Decoder(Sample).decode
        self._shapes: dict[str, _Kept[DataflowShape]] = {}
        self._figures: dict[str, _Kept[DataflowFigures]] = {}

    def take(self, raw: bytes) -> Sample:
        """Raises msgspec.DecodeError or msgspec.ValidationError for what is no sample."""
        sample = self._decode(raw)
        self.by_process[sample.process] = sample
        if isinstance(sample, WorkerSample):
            shapes = self._shapes.setdefault(sample.process, _Kept(DataflowShape))
            figures = self._figures.setdefault(sample.process, _Kept(DataflowFigures))
            shapes.take(sample.shapes)
            figures.take(sample.dataflows)
        return sample

    @property
    def workers(self) -> Iterator[WorkerSample]:
        return (each for each in self.by_process.values() if isinstance(each, WorkerSample))

    @property
    def muxes(self) -> Iterator[MuxSample]:
        return (each for each in self.by_process.values() if isinstance(each, MuxSample))

    @property
    def supervisors(self) -> Iterator[SupervisorSample]:
        return (each for each in self.by_process.values() if isinstance(each, SupervisorSample))

    def figures(self, process: str) -> Mapping[int, DataflowFigures]:
        """The dataflows of a worker, by number."""
        kept = self._figures.get(process)
        return {} if kept is None else kept.by_number

    def dataflows(self) -> Iterator[tuple[str, DataflowShape, DataflowFigures]]:
        """Every dataflow, with the worker that runs it."""
        for process, shapes in self._shapes.items():
            figures = self._figures[process].by_number
            for number, shape in shapes.by_number.items():
                if number in figures:
                    yield process, shape, figures[number]
