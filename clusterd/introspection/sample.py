"""Samples: what each process says of itself, and what the observer sees of all of them, as messages.

A sample is whole: it says everything that its process knows at one moment, so the newest one is enough. What
does not change of a dataflow (`DataflowShape`) and what does (`DataflowFigures`) are encoded by themselves
and embedded, so that what did not change is neither encoded nor decoded again (samples.py).

Frontiers are the time, or None for the empty frontier; times of day are milliseconds since 1970, 0 for what
has not happened; an `operator` is its address within the dataflow: `3`, or `3.2` inside the recursion `3`.

Does not: know how anything is found out (collect_*.py), or what rows are made of it (relations.py).
"""

from __future__ import annotations

import msgspec

__all__ = [
    "CollectionFigures", "DataflowFigures", "DataflowShape", "DurationFigures", "ErrorFigures",
    "ImportFigures", "IndexFigures", "MuxSample", "OperatorFigures", "OperatorShape", "Outside",
    "PeekFigures", "PlanLine", "ProcessFigures", "ReaderFigures", "Sample", "SnapshotFigures",
    "SupervisorSample", "Time", "WorkerSample",
]  # fmt: skip

Time = int | None  # of a frontier; None is the empty one


class OperatorShape(msgspec.Struct, frozen=True, array_like=True):
    """parent: the recursion it is in, "" for none. inputs: the operator that feeds each port; of what comes
    from outside a recursion, that recursion. export: the index that it makes, "" for none. reads: imported
    indexes that it reads in place.
    """

    operator: str
    parent: str
    name: str
    inputs: tuple[str, ...] = ()
    export: str = ""
    reads: tuple[str, ...] = ()


class PlanLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of a printed plan. operators: those that carry it out."""

    depth: int
    text: str
    operators: tuple[str, ...] = ()


class DataflowShape(msgspec.Struct, frozen=True):
    """What is fixed once a dataflow is built. exports: ids, incarnations and kinds."""

    dataflow: int
    name: str
    as_of: int
    until: Time
    exports: tuple[tuple[str, int, str], ...]
    operators: tuple[OperatorShape, ...] = ()
    plan: tuple[PlanLine, ...] = ()


class OperatorFigures(msgspec.Struct, frozen=True, array_like=True):
    """What one operator has done since it was built. largest_group: the most input rows of one group, -1 for
    what has no groups; groups: how many there are.
    """

    operator: str
    rows_in: int = 0
    rows_out: int = 0
    errs_in: int = 0
    errs_out: int = 0
    elapsed_ns: int = 0
    longest_ns: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    touched_rows: int = 0
    groups: int = 0
    largest_group: int = -1


class ImportFigures(msgspec.Struct, frozen=True, array_like=True):
    """kind: `index` or `shard`. upper: up to where it can be read."""

    id: str
    incarnation: int
    kind: str
    upper: Time


class DataflowFigures(msgspec.Struct, frozen=True):
    """upper: computed up to. running: the upper of the round in flight, -1 if none is. working: the operator
    whose turn it is in that, "" for none. waiting: exports that are not scheduled. moved_ms: when `upper` was
    last seen to move; behind_ms: since when its inputs are further than it is.
    """

    dataflow: int
    state: str
    upper: Time
    running: Time = -1
    working: str = ""
    waiting: int = 0
    rounds: int = 0
    rows_done: int = 0
    rows_expected: int = 0
    created_ms: int = 0
    began_ms: int = 0
    hydrated_ms: int = 0
    moved_ms: int = 0
    behind_ms: int = 0
    imports: tuple[ImportFigures, ...] = ()
    operators: tuple[OperatorFigures, ...] = ()


class CollectionFigures(msgspec.Struct, frozen=True, array_like=True):
    """A collection as one worker knows it. dataflow: the one here that makes it, 0 if another process does.

    announced, applied: compaction that was asked for, that was carried out here; applied_by: by each
    interactive worker (maintenance only). hold: below it nothing can be read. upper: sealed up to; computed:
    how far it could be sealed. parked: the least time a parked peek waits for. needs: the dataflows here that
    read it, with the time each holds. code, message: why it is `stalled` or `errored`.
    """

    id: str
    incarnation: int
    kind: str
    dataflow: int
    as_of: int
    status: str
    announced: Time
    applied: Time
    applied_by: tuple[Time, ...]
    hold: Time
    upper: Time
    computed: Time
    parked: Time
    parked_peeks: int
    needs: tuple[tuple[int, Time], ...]
    code: str = ""
    message: str = ""


class IndexFigures(msgspec.Struct, frozen=True, array_like=True):
    """One half of an index that this worker writes, as its page shows it. alias_of: whose memory it is."""

    id: str
    incarnation: int
    half: str
    since: Time
    upper: Time
    batches: int
    updates: int
    nbytes: int
    superseded: int
    alias_of: str = ""


class SnapshotFigures(msgspec.Struct, frozen=True, array_like=True):
    """An index of another process that this one has mapped for reads: its size, and last use."""

    id: str
    incarnation: int
    nbytes: int
    used_ms: int


class PeekFigures(msgspec.Struct, frozen=True, array_like=True):
    """A peek that is owed an answer. lane: `point` or `heavy`. path: `key`, `scan` or `shard`. state:
    `parked`, `queued`, `running` or `sending`. time: that it needs sealed. began_ms: when it came here.
    """

    session: int
    uuid: str
    id: str
    lane: str
    path: str
    state: str
    time: int
    latest: bool
    upper: Time
    rows_visited: int
    began_ms: int


class DurationFigures(msgspec.Struct, frozen=True, array_like=True):
    """A histogram, by the bounds of durations.py. of: what is measured; id: of which object, or ""."""

    of: str
    id: str
    counts: tuple[int, ...]
    total_ns: int


class WorkerSample(msgspec.Struct, frozen=True, tag="worker"):
    """What a worker says. peeks: of all that are open the oldest `collect_worker.MOST_PEEKS`.

    peeks_total: by result and path. peek_durations: by phase and object. step_durations: by kind of step.
    counters, gauges: further figures, by the name of the metric.
    """

    process: str
    role: str
    pid: int
    sampled_at_ms: int
    shapes: tuple[msgspec.Raw, ...] = ()
    dataflows: tuple[msgspec.Raw, ...] = ()
    collections: tuple[CollectionFigures, ...] = ()
    indexes: tuple[IndexFigures, ...] = ()
    snapshots: tuple[SnapshotFigures, ...] = ()
    peeks: tuple[PeekFigures, ...] = ()
    peeks_open: int = 0
    peeks_total: tuple[tuple[str, str, int], ...] = ()
    peek_durations: tuple[DurationFigures, ...] = ()
    step_durations: tuple[DurationFigures, ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    gauges: tuple[tuple[str, float], ...] = ()


class MuxSample(msgspec.Struct, frozen=True, tag="mux"):
    """What the multiplexer says. settings: in force. peeks: in flight, by session."""

    process: str
    role: str
    pid: int
    sampled_at_ms: int
    sessions: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    counters: tuple[tuple[str, int], ...] = ()
    gauges: tuple[tuple[str, float], ...] = ()


class SupervisorSample(msgspec.Struct, frozen=True, tag="supervisor"):
    """What the supervisor says. pids: of every process it started, by name. config: fixed at start."""

    process: str
    role: str
    pid: int
    sampled_at_ms: int
    pids: tuple[tuple[str, int], ...] = ()
    config: tuple[tuple[str, str], ...] = ()


Sample = WorkerSample | MuxSample | SupervisorSample


# What the observer finds out itself.


class ProcessFigures(msgspec.Struct, frozen=True):
    """What the system says of a process. rss_bytes holds shared_bytes. faults: major ones, from a disk."""

    process: str
    role: str
    pid: int
    cpu_seconds: float
    rss_bytes: int
    shared_bytes: int
    minor_faults: int
    major_faults: int
    threads: int


class ReaderFigures(msgspec.Struct, frozen=True):
    """A process that has attached to shared memory. oldest_time: of the view it has held longest,
    since oldest_ms.

    pins: the indexes, by id and incarnation, of which it has memory mapped, and how much.
    """

    pid: int
    command: str
    snapshots: int
    pinned_bytes: int
    oldest_time: int | None
    oldest_ms: int | None
    pins: tuple[tuple[str, int, int], ...] = ()


class ErrorFigures(msgspec.Struct, frozen=True):
    """Errors in data that stand in a collection. first, last: the least and the greatest time of one."""

    worker: str
    id: str
    incarnation: int
    count: int
    sample: str
    first: int
    last: int


class Outside(msgspec.Struct, frozen=True):
    """What the observer saw by itself at now_ms. segments_bytes: of all names of the instance."""

    now_ms: int
    processes: tuple[ProcessFigures, ...] = ()
    readers: tuple[ReaderFigures, ...] = ()
    errors: tuple[ErrorFigures, ...] = ()
