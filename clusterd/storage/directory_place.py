"""The shards of a data directory: one directory each, with its catalog and its parts.

    DIR/VERSION              the format (data_dir.py)
    DIR/shards/NAME/         a shard: catalog.db (sqlite_catalog.py) and its parts (local_parts.py)
    DIR/shards/.new-*        a shard about to be; renamed into place when it is whole

A shard appears by one rename of a finished directory, so nobody ever sees half of one, and of two processes
that create it at once one finds it there. Until then its maker holds an flock on the directory, so a sweep
takes what dead makers left and nothing else.

Does not: lock the data directory (any number of processes may use it); delete shards.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from clusterd.storage import inotify, sqlite_catalog
from clusterd.storage.data_dir import sync_directory
from clusterd.storage.inotify import Inotify
from clusterd.storage.local_parts import LocalParts
from clusterd.storage.place import Fill
from clusterd.storage.sqlite_catalog import SqliteCatalog
from controller_proto.schema import Schema

__all__ = ["DirectoryPlace"]

_NEW = ".new-"


class DirectoryPlace:
    """The Place of a data directory that is there."""

    def __init__(self, data_dir: Path) -> None:
        self.location = str(data_dir)
        self._shards = data_dir / "shards"

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._shards) if not name.startswith("."))

    def has(self, name: str) -> bool:
        return (self._shards / name / sqlite_catalog.NAME).exists()

    def open_shard(self, name: str, *, lock_wait_s: float) -> tuple[SqliteCatalog, LocalParts]:
        directory = self._shards / name
        catalog = SqliteCatalog(directory / sqlite_catalog.NAME, lock_wait_s=lock_wait_s)
        return catalog, LocalParts(directory)

    def create(self, name: str, schema: Schema, fill: Fill | None) -> bool:
        directory = self._shards / name
        if directory.exists():
            return False
        with _temporary(self._shards) as temporary:
            SqliteCatalog.create(temporary / sqlite_catalog.NAME, schema)
            if fill is not None:
                with closing(SqliteCatalog(temporary / sqlite_catalog.NAME)) as catalog:
                    fill(catalog, LocalParts(temporary))
            try:
                temporary.rename(directory)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                return False
            sync_directory(self._shards)
        return True

    def sweep(self) -> list[str]:
        removed = []
        for path in sorted(self._shards.glob(f"{_NEW}*")):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # its maker renamed or removed it
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists():  # else it has its final name by now
                    shutil.rmtree(path)
                    removed.append(path.name)
            except BlockingIOError:
                continue
            finally:
                os.close(fd)
        return removed

    def notices(self) -> DirectoryNotices:
        return DirectoryNotices(self._shards)

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    """A new directory that a sweep leaves alone; removed at the end unless it was renamed."""
    while True:
        path = parent / f"{_NEW}{secrets.token_hex(8)}"
        path.mkdir()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a sweep removed it before it was locked
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists():
            break
        os.close(fd)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


class DirectoryNotices:
    """The Notices of a data directory: removals of catalogs' journals, each of which is a commit.

    A rolled back transaction, and a merge, cost one look too many; a full queue, a look at every shard.
    """

    def __init__(self, shards: Path) -> None:
        self._shards = shards
        self._inotify = Inotify()
        self._names: dict[int, str] = {}
        self._watches: dict[str, int] = {}

    def fileno(self) -> int:
        return self._inotify.fileno()

    def watch(self, name: str) -> None:
        if name not in self._watches:
            watch = self._inotify.watch(self._shards / name, inotify.DELETE)
            self._names[watch] = name
            self._watches[name] = watch

    def unwatch(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            del self._names[watch]
            self._inotify.unwatch(watch)

    def drain(self) -> set[str]:
        moved: set[str] = set()
        for notice in self._inotify.notices():
            if notice.mask & inotify.OVERFLOW:
                moved.update(self._watches)
            elif notice.watch in self._names and (
                notice.name == sqlite_catalog.JOURNAL or notice.mask & inotify.IGNORED
            ):
                moved.add(self._names[notice.watch])
        return moved

    def close(self) -> None:
        self._inotify.close()
