"""The parts of a shard on an object store, or anywhere Arrow has a file system for: `s3://`, `gs://`, `file://`.

Such a store knows no locks, and takes what is removed from under a reader. So nothing is removed before its
age says that nobody can be about to list it or reading it: a sweep takes what no catalog lists, and has not
listed for `GRACE_S`, and was written longer ago than that.

Does not: cache what it reads; retry (Arrow's file systems do).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pyarrow import fs

from clusterd.storage.parts import PREFIXES, Listing, open_part, updates_of
from controller_proto.errors import Refusal
from shm_arrangements.types import ColumnSpec
from shm_arrangements.updates import Updates

__all__ = ["GRACE_S", "ObjectParts", "file_system_of"]

GRACE_S = 3600.0  # longer than a write takes from its first byte to the catalog, and a read from list to end


def file_system_of(uri: str) -> tuple[Any, str]:
    """Arrow's file system of a URI, and the path in it. Raises Refusal(`format-mismatch`) if it has none."""
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (ValueError, NotImplementedError) as error:
        raise Refusal(
            "format-mismatch",
            f"no place for parts: {uri!r}: {error}",
            "give s3://BUCKET/PREFIX or file:///DIR",
        ) from error
    return system, path.rstrip("/")


class ObjectParts:
    """The Parts below `path` of an Arrow file system. clock: seconds since 1970, as the store counts them."""

    def __init__(self, system: Any, path: str, *, clock: Any = time.time) -> None:
        self._system = system
        self._path = path
        self._clock = clock

    def sink(self, kind: str) -> ObjectSink:
        self._system.create_dir(self._path, recursive=True)
        return ObjectSink(self._system, f"{self._path}/{kind}{secrets.token_hex(12)}.arrow")

    def read(
        self, file: str, specs: tuple[ColumnSpec, ...], lower: int, upper: int | None
    ) -> Iterator[Updates]:
        path = f"{self._path}/{file}"
        reader = open_part(self._system.open_input_file(path), path, specs)
        batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
        return updates_of(batches, specs, lower, upper)

    def retire(self, files: Iterable[str]) -> None:
        """Nothing yet: a sweep has them in time."""

    def sweep(self, catalog: Listing) -> list[str]:
        before = self._clock() - GRACE_S
        found = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        old = [
            info.base_name
            for info in found
            if info.is_file and info.base_name.startswith(PREFIXES) and info.mtime_ns / 1e9 < before
        ]
        kept = catalog.files() | catalog.dropped()  # after the list: what is old is listed by now, or never
        removed = sorted(name for name in old if name not in kept)
        for name in removed:
            self._system.delete_file(f"{self._path}/{name}")
        return removed


class ObjectSink:
    """A Sink: an object that is there when it is whole."""

    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self._path = path
        self._stream = system.open_output_stream(path)

    def stream(self) -> Any:
        return self._stream

    def finish(self, file: str) -> tuple[str, int]:
        """Its name was chosen at first: objects cannot be renamed."""
        size = int(self._stream.tell())
        self._stream.close()
        return self._path.rsplit("/", 1)[1], size

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            if not self._stream.closed:
                self._stream.close()
        with contextlib.suppress(OSError):  # a sweep has it in time
            self._system.delete_file(self._path)

    def release(self) -> None:
        """Its age protects it."""
