"""TraceTests: what every trace must do, to be subclassed by the tests of each implementation.

A subclass makes a trace and adapts four calls; the suite drives it through random histories beside the
model, and compares every kind of read at every readable time, after every step, with merges in progress and
without.

Does not: test durability, publication or concurrency.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings

from shm_arrangements import read
from shm_arrangements.batch import Batch
from shm_arrangements.builder import HeapAllocator, build_batch
from shm_arrangements.columns import Column
from shm_arrangements.description import Description
from shm_arrangements.frontier import Frontier
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.spine import Spine
from shm_arrangements.testing import strategies
from shm_arrangements.testing.model import Model, Row, rows_of, some_value, updates_of
from shm_arrangements.updates import Updates

_SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow, HealthCheck.data_too_large],
)


class TraceUnderTest(abc.ABC):
    """One trace, adapted. `close` is called once, whatever happened."""

    @abc.abstractmethod
    def insert(self, updates: Updates, upper: Frontier) -> None: ...

    @abc.abstractmethod
    def compact(self, since: Frontier) -> None: ...

    @abc.abstractmethod
    def exert(self, fuel_updates: int) -> bool: ...

    @abc.abstractmethod
    def batches(self) -> Sequence[Batch]: ...

    def close(self) -> None:  # noqa: B027  # most have nothing to let go of
        """Let go of what the trace holds."""


class HeapTrace(TraceUnderTest):
    """A spine in private memory."""

    def __init__(self, schema: ArrangementSchema) -> None:
        self.spine = Spine(schema, HeapAllocator())

    def insert(self, updates: Updates, upper: Frontier) -> None:
        description = Description(self.spine.upper, upper, self.spine.since)
        self.spine.insert(build_batch(updates, self.spine.schema, description, HeapAllocator()))

    def compact(self, since: Frontier) -> None:
        self.spine.set_logical_compaction(since)

    def exert(self, fuel_updates: int) -> bool:
        return self.spine.exert(fuel_updates)

    def batches(self) -> Sequence[Batch]:
        return self.spine.batches()


class TraceTests(abc.ABC):
    """Subclass, and name the subclass `Test...`."""

    @abc.abstractmethod
    def make(self, schema: ArrangementSchema) -> TraceUnderTest:
        """A fresh trace."""

    @given(history=strategies.histories())
    @_SETTINGS
    def test_reads_at_every_time_equal_a_fold_from_scratch(self, history: strategies.History) -> None:
        trace = self.make(history.schema)
        try:
            run_history(trace, history)
        finally:
            trace.close()


def run_history(trace: TraceUnderTest, history: strategies.History) -> None:
    """Drive `trace` through `history`, comparing it to the model after every step."""
    model = Model()
    types = [c.type for c in history.schema.columns]
    since = 0
    for step in history.steps:
        trace.insert(Updates.from_rows(types, step.updates), Frontier.at(step.upper))
        model.insert(step.updates)
        check_trace(trace.batches(), history.schema, model, since, step.upper)
        trace.compact(Frontier.at(step.since))
        if step.fuel:
            trace.exert(step.fuel)
        since = step.since
        check_trace(trace.batches(), history.schema, model, since, step.upper)
    if history.steps:
        while trace.exert(64):
            pass
        check_trace(trace.batches(), history.schema, model, since, history.steps[-1].upper)


def check_trace(
    batches: Sequence[Batch], schema: ArrangementSchema, model: Model, since: int, upper: int
) -> None:
    """Compare every read of a chain, at every time in [since, upper), with the model."""
    at = Frontier.minimum()
    for batch in batches:
        assert batch.description.lower == at, f"gap before {batch}"
        at = batch.description.upper
        batch.validate_state()
        assert batch.checksum_holds()
    assert at == Frontier.at(upper)
    keys = sorted({tuple(row[i] for i in schema.key) for row, _, _ in model.updates}, key=repr)
    for t in range(since, upper):
        wanted = model.at(t)
        assert rows_of(*read.scan_at(batches, t, schema=schema)) == wanted, f"scan at {t}"
        pieces: dict[Row, int] = {}
        for columns, counts in read.scan_pieces_at(batches, t, 2, schema=schema):
            piece = rows_of(columns, counts)
            assert not piece.keys() & pieces.keys(), "a row is in two pieces"
            pieces |= piece
        assert pieces == wanted, f"scan in pieces at {t}"
        _check_lookups(batches, schema, model, t, keys)
        changes = read.updates_between(batches, t, upper - 1, schema=schema)
        assert updates_of(changes) == model.between(t, upper - 1), f"changes from {t}"


def _check_lookups(
    batches: Sequence[Batch], schema: ArrangementSchema, model: Model, t: int, keys: list[Row]
) -> None:
    if not keys or not schema.key:
        return
    asked = [*keys, keys[0], keys[-1]]  # out of order, and some twice
    columns = tuple(
        Column.from_pylist(spec.type, [some_value(spec.type, key[i]) for key in asked])
        for i, spec in enumerate(schema.key_specs)
    )
    found, counts, index = read.lookup_at(batches, t, columns, schema=schema)
    assert (index[1:] >= index[:-1]).all(), "keys out of order"
    for k, key in enumerate(asked):
        mine = index == k
        rows = rows_of([c.filter(mine) for c in found], counts[mine])
        assert rows == model.lookup(t, schema.key, key), f"lookup of {key} at {t}"
