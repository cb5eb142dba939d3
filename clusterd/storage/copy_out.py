"""Copies out: rows of a collection as a Parquet or CSV file, at any URI that Arrow has a file system for.

All or nothing: rows go to a file of a temporary name beside the one asked for, which is moved there when it
is whole, in place of what was there; on a failure, or a drop, it is removed. For the case that the process is
killed first, what is being written stands in a journal, a file in the data directory that its writer holds an
flock on: who finds the lock free at a start removes the one, then the other.

Types with no form in CSV are refused when the copy is asked for, as are file systems that Arrow does not
know.

Does not: consolidate, expand multiplicities, sync to the disk; survive a data directory that is gone. A file
system far away holds its caller up for as long as it takes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import pyarrow as pa

from clusterd.convert import column_specs
from controller_proto.dataflow import Export, copy_format
from controller_proto.errors import Refusal
from controller_proto.schema import ColumnType, distinct_names, type_name
from shm_arrangements import failpoints
from shm_arrangements.arrow import require_parquet, to_record_batch
from shm_arrangements.columns import Column
from shm_arrangements.types import ColumnSpec

__all__ = ["CopyOut", "check_copy", "sweep_copies"]

failpoints.declare("copy.commit")  # the file is whole, and has another name

_JOURNAL: Final = "copies"  # a directory in the data directory
_SCHEMES: Final = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_NOT_IN_CSV: Final = frozenset(
    {ColumnType.BYTEA, ColumnType.UUID, ColumnType.INTERVAL, ColumnType.LIST, ColumnType.RECORD}
)
_NOT_IN_ANY: Final = frozenset({ColumnType.INTERVAL})  # all that parquet has no place for


def check_copy(export: Export) -> None:
    """Whether the URI, the format and the types of a copy go together. Raises Refusal(`invalid-plan`)."""
    if not _is_place(export.uri):
        known = ", ".join(_SCHEMES)
        why = f"export {export.id}: uri {export.uri!r} is no place for a file"
        raise Refusal("invalid-plan", why, f"write a path from / on, or a URI, escaped: {known}")
    for column in export.schema.columns:
        if copy_format(export) == "csv" and column.type in _NOT_IN_CSV:
            why = f"export {export.id}: column {column.name!r} ({type_name(column)}) has no form in csv"
            hint = "cast it to text" if column.type in _NOT_IN_ANY else "cast it to text, or write parquet"
            raise Refusal("invalid-plan", why, hint)
    if copy_format(export) == "parquet":
        try:
            require_parquet(_specs(export))
        except ValueError as error:
            why = f"export {export.id}: {error}"
            raise Refusal("invalid-plan", why, "cast it to text") from error


class CopyOut:
    """One copy: `write` any number of times, then `commit` or `abort`. All raise Refusal(`write-failed`)."""

    def __init__(self, export: Export, data_dir: Path | None) -> None:
        """data_dir: where the journal is; without one nobody removes what a killed process was writing."""
        self._uri = export.uri
        self._format = copy_format(export)
        self._specs = _specs(export)
        self._journal = None if data_dir is None else data_dir / _JOURNAL
        self._entry: tuple[Path, int] | None = None
        self._system: Any = None
        self._path = self._temporary = ""
        self._stream: Any = None
        self._writer: Any = None

    def write(self, columns: Sequence[Column]) -> None:
        """Append rows."""
        with self._failing():
            if self._writer is None:
                self._begin()
            self._writer.write_batch(to_record_batch(self._specs, columns))

    def commit(self) -> None:
        """Give the file its name; one without rows has a header, or a schema. If it fails, as `abort`."""
        with self._failing():
            if self._writer is None:
                self._begin()
            self._writer.close()
            self._stream.close()
            failpoints.hit("copy.commit")
            self._system.move(self._temporary, self._path)
            self._temporary = ""
        self._end()

    def abort(self) -> None:
        """Leave nothing; what cannot be removed, for its place is out of reach, is left to a sweep. No effect
        after the end.
        """
        if self._stream is not None:
            for part in (self._writer, self._stream):
                with contextlib.suppress(OSError, pa.ArrowException, ValueError):
                    if part is not None:
                        part.close()
        made = self._stream is not None and self._temporary
        self._end(is_gone=not made or _removed(self._system, made))

    def _begin(self) -> None:
        import pyarrow.csv
        import pyarrow.parquet

        self._system, self._path = _place(self._uri)
        folder, _, name = self._path.rpartition("/")
        self._temporary = f"{folder}/.{name}.{secrets.token_hex(8)}.writing"
        if self._journal is not None:
            self._entry = _note(self._journal, _beside(self._uri, self._temporary))
        self._stream = self._system.open_output_stream(self._temporary)
        schema = to_record_batch(self._specs, [Column.empty(spec.type) for spec in self._specs]).schema
        if self._format == "csv":
            self._writer = pyarrow.csv.CSVWriter(self._stream, schema)
        else:
            self._writer = pyarrow.parquet.ParquetWriter(self._stream, schema)

    def _end(self, *, is_gone: bool = True) -> None:
        self._writer = self._stream = None
        self._temporary = ""
        if self._entry is not None:
            path, fd = self._entry
            self._entry = None
            if is_gone:
                with contextlib.suppress(OSError):  # a sweep finds nothing to remove, and has it
                    path.unlink()
            os.close(fd)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What goes wrong ends the copy."""
        try:
            yield
        except (OSError, ValueError, pa.ArrowException) as error:
            told = str(error).replace(self._temporary, self._path) if self._temporary else str(error)
            self.abort()
            why = f"{self._uri} could not be written: {told}"
            raise Refusal("write-failed", why, "see that the place is there and may be written to") from error
        except BaseException:
            self.abort()
            raise


def sweep_copies(data_dir: Path) -> int:
    """Remove what killed processes were writing; returns how many copies that were."""
    swept = 0
    journal = data_dir / _JOURNAL
    for path in sorted(journal.iterdir()) if journal.is_dir() else ():
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                system, temporary = _place(path.read_text())
                system.delete_file(temporary)
            path.unlink(missing_ok=True)
            swept += 1
        except BlockingIOError:
            continue  # its writer lives
        finally:
            os.close(fd)
    return swept


def _specs(export: Export) -> tuple[ColumnSpec, ...]:
    return column_specs(distinct_names(export.schema))


def _place(uri: str) -> tuple[Any, str]:
    """The file system and the path in it."""
    import pyarrow.fs

    system, path = pyarrow.fs.FileSystem.from_uri(uri)
    return system, str(path)


def _removed(system: Any, path: str) -> bool:
    """Remove a file; whether it is gone."""
    try:
        system.delete_file(path)
    except FileNotFoundError:
        return True
    except (OSError, pa.ArrowException):
        return False
    return True


def _is_place(uri: str) -> bool:
    """Whether it is the name of a file; a file system far away is asked only when it is written to."""
    try:
        parts = None if uri.startswith("/") else urlsplit(uri)
        path = uri if parts is None else parts.path
        if not path.startswith("/") or path.endswith("/") or not uri.isprintable():
            return False
        if parts is not None and parts.scheme not in _SCHEMES:
            return False
        return (parts is not None and parts.scheme != "file") or bool(_place(uri))
    except ValueError:  # Arrow's are, too
        return False


def _beside(uri: str, path: str) -> str:
    """The URI of `path`, another name in the same folder."""
    if uri.startswith("/"):
        return path
    parts = urlsplit(uri)
    folder = parts.path.rpartition("/")[0]
    return parts._replace(path=f"{folder}/{quote(path.rpartition('/')[2])}").geturl()


def _note(journal: Path, uri: str) -> tuple[Path, int]:
    """A journal entry, locked."""
    journal.mkdir(exist_ok=True)
    while True:
        path = journal / secrets.token_hex(8)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            try:
                os.write(fd, uri.encode())
            except OSError:
                path.unlink()
                os.close(fd)
                raise
            return path, fd
        os.close(fd)  # a sweep locked and removed it between its creation and our lock
