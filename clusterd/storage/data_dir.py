"""A data directory as such: whether it is one, of which format, and making it; and what is no directory.

    DIR/VERSION              the format, one line; a directory of another format is refused, never guessed at
    DIR/shards/              the shards (store.py)

Apart from the store, so that the daemon's parent can judge the directory before it starts anything: no Arrow
and no numpy here.

Does not: look at the shards; lock the directory.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

from clusterd.errors import DaemonError
from controller_proto.errors import Refusal

__all__ = [
    "VERSION", "DataDirMismatch", "DataDirUnusable", "absolute_location", "directory_of", "open_data_dir",
    "sync_directory",
]  # fmt: skip

VERSION = "clusterd-data 1"
_VERSION_FILE = "VERSION"
_DATABASES = ("postgres", "postgresql")


class DataDirMismatch(Refusal):
    """The data directory is of another format, or something else than a data directory."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(
            "format-mismatch",
            f"data directory {path} holds {found}, this version reads {VERSION!r}",
            "use another directory, or the version that wrote this one",
        )
        self.path = path
        self.found = found


class DataDirUnusable(DaemonError):
    """The data directory cannot be made, read or written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"data directory {path} cannot be used: {error.strerror or error}",
            hint="name one that this user may make and write to",
        )
        self.path = path


def directory_of(location: Path | str) -> Path | None:
    """The absolute directory that a location names; None if it is a database.

    Raises Refusal(`format-mismatch`) if it is a URI of another kind.
    """
    if isinstance(location, Path) or "://" not in location:
        return Path(location).absolute()
    parts = urlsplit(location)
    if parts.scheme == "file" and not parts.netloc and not parts.query:
        return Path(unquote(parts.path))
    if parts.scheme in _DATABASES:
        return None
    raise Refusal(
        "format-mismatch",
        f"{location!r} is no place for shards",
        "give a directory, file:///DIR, or postgres://HOST/DB?parts=URI",
    )


def absolute_location(location: Path | str) -> str:
    """The same place, whatever the working directory is. Raises Refusal as `directory_of`."""
    directory = directory_of(location)
    return str(location if directory is None else directory)


def open_data_dir(path: Path, *, create: bool = True) -> bool:
    """Check that `path` is a data directory; an absent or empty one is initialised if `create`.

    Returns whether it was initialised now. Raises DataDirMismatch (a Refusal, `format-mismatch`) if it holds
    something else; if `create`, DataDirUnusable if it cannot be made or written to; else FileNotFoundError
    if it is absent.
    """
    if not create:
        return _open(path, create=False)
    try:
        return _open(path, create=True)
    except OSError as error:
        raise DataDirUnusable(path, error) from error


def _open(path: Path, *, create: bool) -> bool:
    if path.exists() and not path.is_dir():
        raise DataDirMismatch(path, "a file")
    if create:
        path.mkdir(parents=True, exist_ok=True)
    try:
        found = (path / _VERSION_FILE).read_text(errors="replace").strip()
    except FileNotFoundError:
        found = ""
    if not found:
        others = [name for name in os.listdir(path) if not name.startswith(_VERSION_FILE)]
        if others:
            raise DataDirMismatch(path, f"{sorted(others)[0]!r} and no {_VERSION_FILE} file")
        if not create:
            raise DataDirMismatch(path, f"no {_VERSION_FILE} file")
        _initialise(path)
    elif found != VERSION:
        raise DataDirMismatch(path, repr(found[:80]))
    shards = path / "shards"
    shards.mkdir(exist_ok=True)
    if create and not os.access(shards, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(None, "its shards may not be written")
    return not found


def _initialise(path: Path) -> None:
    temporary = path / f"{_VERSION_FILE}.{secrets.token_hex(8)}"
    with temporary.open("w") as file:
        file.write(VERSION + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path / _VERSION_FILE)
    sync_directory(path)


def sync_directory(directory: Path) -> None:
    """Put names created in, or renamed into, `directory` on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
