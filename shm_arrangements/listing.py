"""Listing: what instances, publications and readers are, as rows of a table and as JSON.

Does not: find them, or print.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from shm_arrangements import text
from shm_arrangements.discover import PublicationInfo
from shm_arrangements.instance import InstanceInfo
from shm_arrangements.readers import ReaderInfo
from shm_arrangements.schema import ArrangementSchema


def instance_line(one: InstanceInfo) -> str:
    """One line: its token, whether it lives, whose it is, its age, names and memory."""
    what = "live" if one.alive else "dead (sweep removes it)"
    who = f", pid {one.pid} {_command(one.pid)}".rstrip() if one.pid and one.alive else ""
    age = f", {text.duration_text(max(0.0, time.time() - one.created_s))} old" if one.created_s else ""
    memory = f"{text.plural(one.names, 'name')}, {text.size_text(one.nbytes)}"
    return f"{one.token}  {what}{who}{age}, {memory}"


def publication_rows(publications: tuple[PublicationInfo, ...]) -> list[tuple[str, ...]]:
    """A table, its head first; columns 3 to 7 are numbers."""
    rows: list[tuple[str, ...]] = [("id", "name", "key", "updates", "bytes", "since", "upper", "batches", "")]
    for info in publications:
        notes = [info.status.name.lower()] if info.status.name != "LIVE" else []
        notes += [f"alias of {info.alias_of}"] if info.alias_of else []
        notes += [f"{info.errors:,} errors"] if info.errors else []
        rows.append((
            info.id, info.name, ", ".join(info.key) or "()", f"{info.updates:,}", text.size_text(info.nbytes),
            text.frontier_text(info.since), text.frontier_text(info.upper), str(info.batches),
            ", ".join(notes),
        ))  # fmt: skip
    return rows


def schema_rows(schema: ArrangementSchema) -> list[tuple[str, ...]]:
    """A table of the columns, its head first; `key` is the place in the key."""
    places = {position: str(at) for at, position in enumerate(schema.key, 1)}
    rows: list[tuple[str, ...]] = [("column", "type", "null", "key")]
    for at, spec in enumerate(schema.columns):
        scale = f"(38,{spec.scale})" if spec.scale else ""  # as scripts write it
        rows.append(
            (spec.name, spec.type.name.lower() + scale, "null" if spec.nullable else "", places.get(at, ""))
        )
    return rows


def reader_rows(readers: tuple[ReaderInfo, ...]) -> list[tuple[str, ...]]:
    """A table, its head first."""
    rows: list[tuple[str, ...]] = [("reader", "snapshots", "pins", "the oldest is of time")]
    for reader in readers:
        oldest = ""
        if reader.oldest_age_s is not None:
            oldest = f"{reader.oldest_time}, held {text.duration_text(reader.oldest_age_s)}"
        who = f"pid {reader.pid} {_command(reader.pid)}".rstrip()
        rows.append((who, str(reader.snapshots), text.size_text(reader.pinned_bytes), oldest))
    return rows


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def instance_json(
    one: InstanceInfo, publications: tuple[PublicationInfo, ...], readers: tuple[ReaderInfo, ...]
) -> dict[str, Any]:
    """An instance with all that was found in it."""
    return {
        "instance": one.token,
        "alive": one.alive,
        "pid": one.pid,
        "created_s": one.created_s,
        "names": one.names,
        "bytes": one.nbytes,
        "publications": [publication_json(info) for info in publications],
        "readers": [reader_json(reader) for reader in readers],
    }


def publication_json(info: PublicationInfo) -> dict[str, Any]:
    """A publication; frontiers as the wire has them: [time], or [] for the closed one."""
    return {
        "id": info.id,
        "name": info.name,
        "incarnation": info.incarnation,
        "alias_of": info.alias_of,
        "status": info.status.name.lower(),
        "shards": info.shards,
        "key": list(info.key),
        "columns": [
            {
                "name": spec.name,
                "type": spec.type.name.lower(),
                "nullable": spec.nullable,
                "scale": spec.scale,
            }
            for spec in info.schema.columns
        ],
        "since": list(info.since.to_wire()),
        "upper": list(info.upper.to_wire()),
        "updates": info.updates,
        "errors": info.errors,
        "bytes": info.nbytes,
        "batches": info.batches,
    }


def reader_json(reader: ReaderInfo) -> dict[str, Any]:
    """A reader; of what holds no view `oldest_time` and `oldest_age_s` are null."""
    return {
        "pid": reader.pid,
        "snapshots": reader.snapshots,
        "pinned_bytes": reader.pinned_bytes,
        "oldest_time": reader.oldest_time,
        "oldest_age_s": reader.oldest_age_s,
    }
