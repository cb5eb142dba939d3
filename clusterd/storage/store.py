"""Store: the shards of a place (place.py), by name.

Does not: delete shards; know how a place keeps them.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from types import TracebackType
from weakref import WeakValueDictionary, finalize

from clusterd.storage.catalog import LOCK_BRIEFLY_S, LOCK_WAIT_S, Catalog
from clusterd.storage.data_dir import directory_of, open_data_dir
from clusterd.storage.directory_place import DirectoryPlace
from clusterd.storage.parts import Parts
from clusterd.storage.place import Place
from clusterd.storage.shard import Shard
from controller_proto.errors import Refusal
from controller_proto.schema import Column, Schema, type_name

__all__ = ["Store"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}", re.ASCII)


class Store:
    """A process's handle on a place. created: whether that was initialised by it. data_dir: where files
    that go with the shards may be put: the data directory, or of a database a temporary one of this user.
    """

    def __init__(self, place: Place, data_dir: Path, *, created: bool = False, keep: bool = True) -> None:
        self.place = place
        self.data_dir = data_dir
        self.created = created
        self._keep = keep
        self._shards: MutableMapping[str, Shard] = {} if keep else WeakValueDictionary()

    @classmethod
    def open(cls, location: Path | str, *, create: bool = True, keep: bool = True) -> Store:
        """Open the shards at a location (place.py); an absent or empty one is initialised if `create`.

        keep: shards stay open until the store is closed; else until nobody has a handle any more.

        Raises DataDirMismatch (a Refusal, `format-mismatch`) if it holds something else; DataDirUnusable if
        it cannot be made or written to; FileNotFoundError if it is absent and not to be created; Refusal
        (`format-mismatch`) for a URI of no known kind; OSError if the database cannot be reached.
        """
        directory = directory_of(location)
        if directory is not None:
            created = open_data_dir(directory, create=create)
            return cls(DirectoryPlace(directory), directory, created=created, keep=keep)
        # Imported here: most processes have no use for a database.
        from clusterd.storage.postgres_place import PostgresPlace

        place = PostgresPlace.open(str(location), create=create)
        return cls(place, _own_directory(), created=place.created, keep=keep)

    def has_shard(self, name: str) -> bool:
        """Whether there is a shard `name`. Raises Refusal(`unknown-shard`) if that is no name of a shard."""
        return self.place.has(_validated(name))

    def create_shard(
        self, name: str, schema: Schema, *, fill: Callable[[Shard], None] | None = None
    ) -> Shard:
        """The shard `name`, made if it is not there.

        `fill` appends to it, there or new; a new one appears with that in it, or not at all if it raises.

        Raises Refusal: `unknown-shard` if that is no name of a shard; `schema-mismatch` if it is there
        with another schema, naming the first column that differs.
        """

        def fill_new(catalog: Catalog, parts: Parts) -> None:
            if fill is not None:
                fill(Shard(name, catalog, parts))

        created = self.place.create(_validated(name), schema, None if fill is None else fill_new)
        shard = self.shard(name)
        if shard.schema != schema:
            raise Refusal("schema-mismatch", f"shard {name!r} exists, {_difference(shard.schema, schema)}")
        if fill is not None and not created:
            fill(shard)
        return shard

    def shard(self, name: str, *, briefly: bool = False) -> Shard:
        """The shard `name`; the same handle each time. briefly: a lock on one that is not open is not waited
        for. Raises Refusal(`unknown-shard`), and as a Catalog.
        """
        shard = self._shards.get(name)
        if shard is None:
            if not self.place.has(_validated(name)):
                raise Refusal(
                    "unknown-shard", f"no shard named {name!r} in {self.place.location}", "write to it first"
                )
            wait_s = LOCK_BRIEFLY_S if briefly else LOCK_WAIT_S
            catalog, parts = self.place.open_shard(name, lock_wait_s=wait_s)
            try:
                shard = self._shards[name] = Shard(name, catalog, parts)
            except BaseException:
                catalog.close()
                raise
            catalog.wait_for_locks(LOCK_WAIT_S)
            if not self._keep:
                finalize(shard, catalog.close)
        return shard

    def list(self) -> Sequence[str]:
        """The names of all shards, sorted."""
        return self.place.names()

    def sweep(self) -> Sequence[str]:
        """Remove what makers and writers that were killed left behind. Returns the files removed."""
        left = [*self.place.sweep()]
        return left + [f"{name}/{file}" for name in self.list() for file in self.shard(name).sweep()]

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self.place.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _validated(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refusal("unknown-shard", f"{name!r} is not a shard name", "letters, digits, '_', '-' and '.'")
    return name


def _own_directory() -> Path:
    """One of this user's, whatever the database. Raises OSError if it is another user's."""
    path = Path(tempfile.gettempdir()) / f"clusterd-shards-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user", str(path))
    return path


def _difference(found: Schema, given: Schema) -> str:
    for ours, theirs in zip(found.columns, given.columns, strict=False):
        if ours != theirs:
            return f"column {ours.name!r} is {_column(ours)}, not {theirs.name!r} {_column(theirs)}"
    return f"it has {found.arity} columns, not {given.arity}"


def _column(column: Column) -> str:
    return f"{type_name(column)}{' nullable' if column.nullable else ''}"
