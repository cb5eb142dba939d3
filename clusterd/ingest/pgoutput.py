"""Messages of logical replication, from bytes: the frames of the stream, and what `pgoutput` puts into them.

A frame is XLogData, with one pgoutput message in it, or a keepalive; a status (`status_update`) answers.
Protocol version 1: transactions come whole, one after the other in the order of their commits, as Begin,
changes, Commit. Values are text as the server prints it; what they are, their column says (columns.py).

All lengths are checked against the bytes there are: broken bytes are an IngestError(`bad-stream`), never
another exception and never a value.

Does not: keep any state between messages (changes.py), speak to a server (connection.py).
Source: PostgreSQL 15, "Logical Replication Message Formats" and "Streaming Replication Protocol".
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from clusterd.ingest.errors import IngestError

__all__ = [
    "UNCHANGED", "Begin", "Commit", "Delete", "Ignored", "Insert", "Keepalive", "Message", "Relation",
    "RelationColumn", "Truncate", "Tuple", "Unchanged", "Update", "XLogData", "decode_frame",
    "decode_message", "status_update",
]  # fmt: skip


class Unchanged:
    """Stands for a large value that an update did not touch, and that was therefore not sent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Tuple = tuple[bytes | Unchanged | None, ...]  # None is NULL


class XLogData(msgspec.Struct, frozen=True):
    """One message of the output plugin."""

    payload: bytes


class Keepalive(msgspec.Struct, frozen=True):
    """Every commit that ends at or before `wal_end` was sent. reply: the server waits for a status."""

    wal_end: int
    reply: bool


class Begin(msgspec.Struct, frozen=True):
    """A transaction whose commit record begins at `final_lsn` follows."""

    final_lsn: int
    xid: int


class Commit(msgspec.Struct, frozen=True):
    """It is whole; its commit record lies at [commit_lsn, end_lsn)."""

    commit_lsn: int
    end_lsn: int


class RelationColumn(msgspec.Struct, frozen=True):
    """A published column as it is now; `modifier` holds the scale of a numeric."""

    name: str
    type: int
    modifier: int


class Relation(msgspec.Struct, frozen=True):
    """What the tuples of table `oid` consist of from here on. identity: `f` if old rows come whole."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Insert(msgspec.Struct, frozen=True):
    """A row of table `oid`."""

    oid: int
    new: Tuple


class Update(msgspec.Struct, frozen=True):
    """old: the whole old row; None if the server sent none, or only its key."""

    oid: int
    old: Tuple | None
    new: Tuple


class Delete(msgspec.Struct, frozen=True):
    """old: as of Update."""

    oid: int
    old: Tuple | None


class Truncate(msgspec.Struct, frozen=True):
    """All rows of these tables go."""

    oids: tuple[int, ...]


class Ignored(msgspec.Struct, frozen=True):
    """A message that changes nothing here: Type, Origin, a logical message. kind: its letter."""

    kind: str


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Ignored

_XLOG = struct.Struct(">cQQQ")
_KEEPALIVE = struct.Struct(">cQQB")
_STATUS = struct.Struct(">cQQQqB")
_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_COLUMN = struct.Struct(">Ii")
_TRUNCATE = struct.Struct(">cIB")


def decode_frame(data: bytes) -> XLogData | Keepalive:
    """The frame that one CopyData message holds. Raises IngestError(`bad-stream`)."""
    kind = data[:1]
    if kind == b"w" and len(data) >= _XLOG.size:
        return XLogData(data[_XLOG.size :])
    if kind == b"k" and len(data) == _KEEPALIVE.size:
        _, wal_end, _, reply = _KEEPALIVE.unpack(data)
        return Keepalive(wal_end, reply == 1)
    raise _broken(data, "is no frame of a replication stream")


def status_update(lsn: int, *, ask: bool = False) -> bytes:
    """The frame that says: everything up to `lsn` is safe with us and will not be asked for again.

    ask: the server shall answer, with a keepalive.
    """
    return _STATUS.pack(b"r", lsn, lsn, lsn, 0, ask)


def decode_message(data: bytes) -> Message:
    """The message that a frame carries. Raises IngestError(`bad-stream`)."""
    try:
        message, end = _decode(data)
    except (struct.error, IndexError, ValueError) as error:
        raise _broken(data, "is no message of pgoutput") from error
    if end != len(data):
        raise _broken(data, f"has {len(data) - end} bytes too many")
    return message


def _broken(data: bytes, problem: str) -> IngestError:
    shown = data[:16].hex(" ") + (" ..." if len(data) > 16 else "")
    return IngestError("bad-stream", f"a message of {len(data)} bytes ({shown}) {problem}")


def _decode(data: bytes) -> tuple[Message, int]:
    kind = data[:1]
    match kind:
        case b"I":
            new, end = _tuple(data, _marked(data, 5, b"N"))
            return Insert(_u32(data, 1), new), end
        case b"U":
            old, at = _old(data)
            new, end = _tuple(data, _marked(data, at, b"N"))
            return Update(_u32(data, 1), old, new), end
        case b"D":
            if data[5:6] not in (b"K", b"O"):
                raise ValueError("neither key nor old row")
            old, end = _old(data)
            return Delete(_u32(data, 1), old), end
        case b"B":
            _, final_lsn, _, xid = _BEGIN.unpack_from(data)
            return Begin(final_lsn, xid), _BEGIN.size
        case b"C":
            _, _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(data)
            return Commit(commit_lsn, end_lsn), _COMMIT.size
        case b"R":
            return _relation(data)
        case b"T":
            _, count, _ = _TRUNCATE.unpack_from(data)
            end = _TRUNCATE.size + 4 * count
            if end > len(data):  # before a count out of nowhere is believed
                raise ValueError("too short")
            return Truncate(struct.unpack_from(f">{count}I", data, _TRUNCATE.size)), end
        case b"Y" | b"O" | b"M":
            return Ignored(kind.decode()), len(data)
    raise ValueError("unknown kind")


def _old(data: bytes) -> tuple[Tuple | None, int]:
    """What stands before the new row: the whole old row, or None for a key or nothing; where it ends."""
    kind = data[5:6]
    if kind not in (b"K", b"O"):
        return None, 5
    old, end = _tuple(data, 6)
    return (old if kind == b"O" else None), end


def _marked(data: bytes, at: int, mark: bytes) -> int:
    if data[at : at + 1] != mark:
        raise ValueError("no new row")
    return at + 1


def _tuple(data: bytes, at: int) -> tuple[Tuple, int]:
    (count,) = _U16.unpack_from(data, at)
    at += 2
    values: list[bytes | Unchanged | None] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t: text
            start = at + 4
            at = start + _u32(data, at)
            if at > len(data):
                raise ValueError("too short")
            values.append(data[start:at])
        elif kind == 0x6E:  # n: NULL
            values.append(None)
        elif kind == 0x75:  # u: unchanged
            values.append(UNCHANGED)
        else:
            raise ValueError("unknown kind of value")
    return tuple(values), at


def _relation(data: bytes) -> tuple[Relation, int]:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = data[at : at + 1].decode("ascii")
    (count,) = _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        column, at = _text(data, at + 1)  # behind the flags
        type_, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, type_, modifier))
    # An empty name of a schema is pg_catalog's.
    return Relation(_u32(data, 1), schema or "pg_catalog", name, identity, tuple(columns)), at


def _u32(data: bytes, at: int) -> int:
    value: int = _U32.unpack_from(data, at)[0]
    return value


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
