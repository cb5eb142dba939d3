"""Positions: how far the rows of a file are in a shard, and whether it is still that file.

A position is kept in the shard's catalog and changes in the same transaction as the append of the rows before
it, so there is no moment at which rows are in and their position is not. It says where to read next. A file
that was replaced, cut or written over has other bytes before the position, and is taken as another one; a
file that got another name is found again by its number in the file system.

Does not: look at rows; notice a change in the middle of what was read (only its two ends are compared).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["Position", "find_position", "position_after"]

_END_BYTES = 4096


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """offset: where to read next, in units of the format: bytes, row groups or batches. rows: before it.

    span: bytes of the file that `digest` speaks of, all it had if `whole` (then it does not grow).
    """

    offset: int
    rows: int
    span: int
    digest: str
    inode: str
    whole: bool = False


def position_after(file: Path, offset: int, rows: int, *, grows: bool) -> Position:
    """The position of `rows` rows of `file` up to `offset`. grows: that is in bytes, and more may follow."""
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        span = offset if grows else status.st_size
        return Position(
            offset, rows, span, _digest(opened.fileno(), span), f"{status.st_dev}:{status.st_ino}", not grows
        )


def _digest(fd: int, span: int) -> str:
    ends = os.pread(fd, min(span, _END_BYTES), 0) + os.pread(
        fd, min(span, _END_BYTES), max(span - _END_BYTES, 0)
    )
    return hashlib.blake2b(ends, digest_size=16).hexdigest()


def _inode(name: str) -> str | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return f"{status.st_dev}:{status.st_ino}"


def find_position(known: Mapping[str, str], file: Path, *, renamed: bool) -> tuple[str, Position] | None:
    """The position of `file`, and the name it is `known` by; None if nothing of it was read.

    renamed: it may be known by another name, that it has no more.

    Raises OSError if the file cannot be read.
    """
    name = str(file)
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        inode = f"{status.st_dev}:{status.st_ino}"
        names = [name] if name in known else []
        if renamed:
            names += [other for other, text in known.items() if inode in text and other != name]
        for other in names:
            position = msgspec.json.decode(known[other], type=Position)
            if other != name and (position.inode != inode or not position.offset or _inode(other) == inode):
                continue
            same_size = status.st_size == position.span if position.whole else status.st_size >= position.span
            if same_size and _digest(opened.fileno(), position.span) == position.digest:
                return other, position
    return None
