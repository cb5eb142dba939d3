"""Rows about memory: what operators and indexes keep, and who has which index mapped.

Does not: say what the columns mean (relations.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterd.introspection.sample import IndexFigures, Outside
from clusterd.introspection.samples import Samples
from controller_proto.schema import Row

__all__ = ["arrangement_sharing", "arrangement_sizes"]


def arrangement_sizes(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every operator that keeps something, every half of an index."""
    indexes: dict[tuple[str, str, int], list[IndexFigures]] = {}
    for sample in samples.workers:
        for half in sample.indexes:
            if not half.alias_of:  # the memory of an alias is counted where it was made
                indexes.setdefault((sample.process, half.id, half.incarnation), []).append(half)
    for worker, shape, now in samples.dataflows():
        for made, each in zip(shape.operators, now.operators, strict=True):
            if each.state_rows or each.state_bytes:
                yield (
                    worker, shape.dataflow, each.operator, made.name, "state", None,
                    each.state_rows, None, each.state_bytes,
                )  # fmt: skip
            for id, incarnation, _ in shape.exports:
                if made.export != id:
                    continue
                for half in indexes.pop((worker, id, incarnation), ()):
                    yield (
                        worker, shape.dataflow, each.operator, made.name, half.half, id, half.updates,
                        half.batches, half.nbytes,
                    )  # fmt: skip


def arrangement_sharing(samples: Samples, outside: Outside) -> Iterator[Row]:
    """Every process for every index that it has mapped."""
    for sample in samples.workers:
        for each in sample.snapshots:
            yield each.id, each.incarnation, sample.process, sample.pid, each.nbytes, None, each.used_ms
    for reader in outside.readers:
        who = f"{reader.command}[{reader.pid}]"
        for id, incarnation, nbytes in reader.pins:
            yield id, incarnation, who, reader.pid, nbytes, reader.oldest_time, reader.oldest_ms
