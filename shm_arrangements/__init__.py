"""Arrangements: sorted, versioned, changing collections in shared memory, read by any process without a copy.

    from shm_arrangements import attach
    with attach("flights") as index:
        index.snapshot().lookup("JFK").rows()

How to write one: docs/arrangements.md. Bytes: docs/shm-format.md. A name is imported when it is asked for.
"""

# ruff: noqa: TC004  (lazy.offer imports them at run time)

from typing import TYPE_CHECKING

from shm_arrangements import lazy

if TYPE_CHECKING:
    from shm_arrangements.arena import SegmentAllocator
    from shm_arrangements.attach import Attached, Snapshots, attach, snapshot, wait_all
    from shm_arrangements.columns import Column
    from shm_arrangements.discover import PublicationInfo, list_publications
    from shm_arrangements.errors import (
        AlreadyPublished,
        AmbiguousName,
        ArrangementError,
        DataError,
        FormatMismatch,
        InvariantViolation,
        MultiplicityOverflow,
        NoSuchInstance,
        NotInstalled,
        NotOrdered,
        NotReadable,
        NotSealed,
        PublicationClosed,
        RegistryFull,
        ShmExhausted,
        WaitTimeout,
        WriterGone,
    )
    from shm_arrangements.frontier import Frontier
    from shm_arrangements.index_writer import IndexWriter, advance_idle
    from shm_arrangements.instance import Instance, InstanceInfo, list_instances, sweep
    from shm_arrangements.names import collection_id, collection_text
    from shm_arrangements.readers import ReaderInfo, list_readers
    from shm_arrangements.result import Changes, Result
    from shm_arrangements.schema import ArrangementSchema
    from shm_arrangements.types import ColumnSpec, ColumnType, ListType, RecordType
    from shm_arrangements.updates import Updates
    from shm_arrangements.view import ReadView
    from shm_arrangements.writer import TraceWriter

__all__ = [
    "AlreadyPublished",
    "AmbiguousName",
    "ArrangementError",
    "ArrangementSchema",
    "Attached",
    "Changes",
    "Column",
    "ColumnSpec",
    "ColumnType",
    "DataError",
    "FormatMismatch",
    "Frontier",
    "IndexWriter",
    "Instance",
    "InstanceInfo",
    "InvariantViolation",
    "ListType",
    "MultiplicityOverflow",
    "NoSuchInstance",
    "NotInstalled",
    "NotOrdered",
    "NotReadable",
    "NotSealed",
    "PublicationClosed",
    "PublicationInfo",
    "ReadView",
    "ReaderInfo",
    "RecordType",
    "RegistryFull",
    "Result",
    "SegmentAllocator",
    "ShmExhausted",
    "Snapshots",
    "TraceWriter",
    "Updates",
    "WaitTimeout",
    "WriterGone",
    "advance_idle",
    "attach",
    "collection_id",
    "collection_text",
    "list_instances",
    "list_publications",
    "list_readers",
    "snapshot",
    "sweep",
    "wait_all",
]

lazy.offer(
    __name__,
    {
        "arena": ["SegmentAllocator"],
        "attach": ["Attached", "Snapshots", "attach", "snapshot", "wait_all"],
        "columns": ["Column"],
        "discover": ["PublicationInfo", "list_publications"],
        "errors": [
            "AlreadyPublished", "AmbiguousName", "ArrangementError", "DataError", "FormatMismatch",
            "InvariantViolation", "MultiplicityOverflow", "NoSuchInstance", "NotInstalled", "NotOrdered",
            "NotReadable", "NotSealed", "PublicationClosed", "RegistryFull", "ShmExhausted", "WaitTimeout",
            "WriterGone",
        ],
        "frontier": ["Frontier"],
        "index_writer": ["IndexWriter", "advance_idle"],
        "instance": ["Instance", "InstanceInfo", "list_instances", "sweep"],
        "names": ["collection_id", "collection_text"],
        "readers": ["ReaderInfo", "list_readers"],
        "result": ["Changes", "Result"],
        "schema": ["ArrangementSchema"],
        "types": ["ColumnSpec", "ColumnType", "ListType", "RecordType"],
        "updates": ["Updates"],
        "view": ["ReadView"],
        "writer": ["TraceWriter"],
    },
)  # fmt: skip
