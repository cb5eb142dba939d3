"""Appending: an append to a shard of rows and errors, written piece by piece, committed as one.

Pieces are rows with times, or errors of the collection. Each kind is one part, written as the pieces come; a
long one goes to the disk meanwhile, so that no step waits for all of it. Nothing shows until `commit`, which
is one transaction of the catalog, as of any append: all of it, or nothing, if somebody else was faster.

Does not: check times or columns against the shard (its writer made them for it); read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from clusterd.storage import parts
from controller_proto.errors import Refusal
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["Appending"]

Commit = Callable[[Frontier, Frontier, Sequence[parts.PartInfo]], None]


class Appending:
    """Ends with `commit` or `abandon`. commit: moves the upper and lists parts, or raises Refusal.
    merge: is called after a commit, so that many small appends do not make many small parts.
    """

    def __init__(
        self, where: parts.Parts, specs: tuple[ColumnSpec, ...], commit: Commit, merge: Callable[[], object]
    ) -> None:
        self._parts = where
        self._specs = specs
        self._commit = commit
        self._merge = merge
        self._writers: dict[str, parts.PartWriter] = {}

    def add(self, updates: Updates) -> None:
        """Rows, at most `BATCH_ROWS` of them, with the shard's columns, in any order."""
        self._add(parts.ROWS, self._specs, updates)

    def add_errors(self, updates: Updates) -> None:
        """Errors, one column of text."""
        self._add(parts.ERRORS, parts.ERROR_SPECS, updates)

    def commit(self, expected_upper: Frontier, new_upper: Frontier) -> None:
        """Seal up to `new_upper` with what was added, which lies in [expected_upper, new_upper).

        Raises Refusal: `upper-mismatch` if the shard's upper is another one, `timeout` if the catalog is
        locked; nothing is left then. OSError: of writing the parts, when nothing is left either, or of the
        catalog, when nobody knows whether it took place.
        """
        written: list[parts.WrittenPart] = []
        is_whole = False
        try:
            while self._writers:
                written.append(self._writers.popitem()[1].finish())
            is_whole = True
            self._commit(expected_upper, new_upper, [part.info for part in written])
        except BaseException as error:
            if not is_whole or isinstance(error, Refusal):
                for part in written:
                    part.discard()
            raise
        finally:
            for part in written:
                part.release()  # of any other failure a sweep can tell what became of it
            self.abandon()
        with contextlib.suppress(Refusal, OSError):  # the append took place: the next one merges
            self._merge()

    def abandon(self) -> None:
        """Remove what was added. No effect after `commit`."""
        for writer in self._writers.values():
            writer.abandon()
        self._writers.clear()

    def _add(self, kind: str, specs: tuple[ColumnSpec, ...], updates: Updates) -> None:
        if not len(updates):
            return
        writer = self._writers.get(kind)
        if writer is None:
            writer = self._writers[kind] = parts.PartWriter(self._parts, specs, kind)
        writer.add(parts.sort_by_time(updates))
