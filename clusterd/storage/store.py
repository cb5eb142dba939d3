"""Store: a data directory, and the shards in it by name.

    DIR/VERSION              the format, one line; a directory of another format is refused, never guessed at
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
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from clusterd.storage import catalog
from clusterd.storage.catalog import Catalog
from clusterd.storage.parts import sync_directory
from clusterd.storage.shard import Shard
from controller_proto.errors import Refusal
from controller_proto.schema import Column, Schema

__all__ = ["VERSION", "DataDirMismatch", "Store"]

VERSION = "clusterd-data 1"
_VERSION_FILE = "VERSION"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}", re.ASCII)


class DataDirMismatch(Refusal):
    """The data directory is of another format, or something else than a data directory."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(
            "format-mismatch",
            f"{path} holds {found}, this version reads {VERSION!r}",
            "use another directory, or the version that wrote this one",
        )
        self.path = path
        self.found = found


class Store:
    """A process's handle on a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._shards: dict[str, Shard] = {}

    @classmethod
    def open(cls, data_dir: Path | str, *, create: bool = True) -> Store:
        """Open `data_dir`; an absent or empty one is initialised if `create`.

        Raises DataDirMismatch (a Refusal, `format-mismatch`) if it holds something else; FileNotFoundError
        if it is absent and not to be created.
        """
        path = Path(data_dir).absolute()
        if create:
            path.mkdir(parents=True, exist_ok=True)
        try:
            found = (path / _VERSION_FILE).read_text(errors="replace").strip()
        except FileNotFoundError:
            found = ""
        except NotADirectoryError:
            raise DataDirMismatch(path, "a file") from None
        if not found:
            others = [name for name in os.listdir(path) if not name.startswith(_VERSION_FILE)]
            if others:
                raise DataDirMismatch(path, f"{sorted(others)[0]!r} and no {_VERSION_FILE} file")
            if not create:
                raise DataDirMismatch(path, f"no {_VERSION_FILE} file")
            _initialise(path)
        elif found != VERSION:
            raise DataDirMismatch(path, repr(found[:80]))
        (path / "shards").mkdir(exist_ok=True)
        return cls(path)

    def create_shard(self, name: str, schema: Schema) -> Shard:
        """The shard `name`, made if it is not there.

        Raises Refusal: `unknown-shard` if that is no name of a shard; `schema-mismatch` if it is there
        with another schema, naming the first column that differs.
        """
        directory = self._directory(name)
        if not directory.exists():
            temporary = directory.with_name(f".new-{secrets.token_hex(8)}")
            temporary.mkdir()
            Catalog.create(temporary / catalog.NAME, schema)
            try:
                temporary.rename(directory)
                sync_directory(directory.parent)
            except OSError as error:
                shutil.rmtree(temporary, ignore_errors=True)
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        shard = self.shard(name)
        if shard.schema != schema:
            raise Refusal("schema-mismatch", f"shard {name!r} exists, {_difference(shard.schema, schema)}")
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


def _initialise(path: Path) -> None:
    temporary = path / f"{_VERSION_FILE}.{secrets.token_hex(8)}"
    with temporary.open("w") as file:
        file.write(VERSION + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path / _VERSION_FILE)
    sync_directory(path)


def _difference(found: Schema, given: Schema) -> str:
    for ours, theirs in zip(found.columns, given.columns, strict=False):
        if ours != theirs:
            return f"column {ours.name!r} is {_column(ours)}, not {theirs.name!r} {_column(theirs)}"
    return f"it has {found.arity} columns, not {given.arity}"


def _column(column: Column) -> str:
    return f"{column.type.value}{' nullable' if column.nullable else ''}"
