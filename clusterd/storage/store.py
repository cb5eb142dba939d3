"""Store: a data directory, and the shards in it by name.

    DIR/VERSION              the format (data_dir.py)
    DIR/shards/NAME/         one directory a shard: catalog.db and its parts (shard.py)
    DIR/shards/.new-*        a shard about to be; renamed into place when its catalog is whole

A shard appears by one rename of a finished directory, so nobody ever sees half of one, and of two processes
that create it at once one finds it there.

Does not: lock the directory (any number of processes may use it); delete shards.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

from clusterd.storage import catalog
from clusterd.storage.catalog import Catalog
from clusterd.storage.data_dir import open_data_dir, sync_directory
from clusterd.storage.shard import Shard
from controller_proto.errors import Refusal
from controller_proto.schema import Column, Schema, type_name

__all__ = ["Store"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}", re.ASCII)


class Store:
    """A process's handle on a data directory. created: whether the directory was initialised by it."""

    def __init__(self, data_dir: Path, *, created: bool = False) -> None:
        self.data_dir = data_dir
        self.created = created
        self._shards: dict[str, Shard] = {}

    @classmethod
    def open(cls, data_dir: Path | str, *, create: bool = True) -> Store:
        """Open `data_dir`; an absent or empty one is initialised if `create`.

        Raises DataDirMismatch (a Refusal, `format-mismatch`) if it holds something else; DataDirUnusable if
        it cannot be made or written to; FileNotFoundError if it is absent and not to be created.
        """
        path = Path(data_dir).absolute()
        created = open_data_dir(path, create=create)
        return cls(path, created=created)

    def has_shard(self, name: str) -> bool:
        """Whether there is a shard `name`. Raises Refusal(`unknown-shard`) if that is no name of a shard."""
        return (self._directory(name) / catalog.NAME).exists()

    def create_shard(
        self, name: str, schema: Schema, *, fill: Callable[[Shard], None] | None = None
    ) -> Shard:
        """The shard `name`, made if it is not there.

        `fill` appends to it, there or new; a new one appears with that in it, or not at all if it raises.

        Raises Refusal: `unknown-shard` if that is no name of a shard; `schema-mismatch` if it is there
        with another schema, naming the first column that differs.
        """
        directory = self._directory(name)
        filled = fill is None
        if not directory.exists():
            temporary = directory.with_name(f".new-{secrets.token_hex(8)}")
            temporary.mkdir()
            try:
                Catalog.create(temporary / catalog.NAME, schema)
                if fill is not None:
                    with closing(Shard(temporary)) as new:
                        new.name = name
                        fill(new)
                temporary.rename(directory)
                filled = True
                sync_directory(directory.parent)
            except BaseException as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if not isinstance(error, OSError) or error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        shard = self.shard(name)
        if shard.schema != schema:
            raise Refusal("schema-mismatch", f"shard {name!r} exists, {_difference(shard.schema, schema)}")
        if fill is not None and not filled:
            fill(shard)
        return shard

    def shard(self, name: str) -> Shard:
        """The shard `name`; the same handle each time. Raises Refusal(`unknown-shard`)."""
        if name not in self._shards:
            directory = self._directory(name)
            if not (directory / catalog.NAME).exists():
                raise Refusal(
                    "unknown-shard", f"no shard named {name!r} in {self.data_dir}", "write to it first"
                )
            self._shards[name] = Shard(directory)
        return self._shards[name]

    def list(self) -> Sequence[str]:
        """The names of all shards, sorted."""
        return sorted(name for name in os.listdir(self.data_dir / "shards") if not name.startswith("."))

    def sweep(self) -> Sequence[str]:
        """Remove what writers that were killed left behind in any shard. Returns the files removed."""
        return [f"{name}/{file}" for name in self.list() for file in self.shard(name).sweep()]

    def _directory(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise Refusal(
                "unknown-shard", f"{name!r} is not a shard name", "letters, digits, '_', '-' and '.'"
            )
        return self.data_dir / "shards" / name

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _difference(found: Schema, given: Schema) -> str:
    for ours, theirs in zip(found.columns, given.columns, strict=False):
        if ours != theirs:
            return f"column {ours.name!r} is {_column(ours)}, not {theirs.name!r} {_column(theirs)}"
    return f"it has {found.arity} columns, not {given.arity}"


def _column(column: Column) -> str:
    return f"{type_name(column)}{' nullable' if column.nullable else ''}"
