"""Names: of segments, and of collections as shared memory knows them.

Every name of an instance is `clusterd.<token>.<rest>`, so that one listing and one prefix find all of them.
A token is drawn at random for each instance and a batch's number is never used twice by its writer, so names
never repeat: a reader that finds a name gone knows that its page has turned since, and nothing else.

Does not: touch a file, import numpy (the reaper and the sweep start with this module).
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

SHM_DIRECTORY: Final = "/dev/shm"
PREFIX: Final = "clusterd."
TOKEN_DIGITS: Final = 12
HALVES: Final = ("oks", "errs")

_KINDS: Final = "ust"
_KIND_SHIFT: Final = 62
_MAX_NUMBER: Final = (1 << _KIND_SHIFT) - 1
_HEX: Final = frozenset("0123456789abcdef")


class Locator(NamedTuple):
    """Where a batch is: in the `seq`-th segment of writer `writer` in instance `token`, `offset` bytes in.

    A batch with a segment of its own begins at 0. In an arena, which begins with a header, none does.
    """

    token: str
    writer: int
    seq: int
    offset: int = 0

    @property
    def in_arena(self) -> bool:
        """Whether the segment is an arena, shared with other batches."""
        return self.offset > 0

    @property
    def name(self) -> str:
        """Of the segment."""
        return segment_name(self.token, self.writer, self.seq, arena=self.offset > 0)


class PageName(NamedTuple):
    """Which publication page: one half of one shard of one incarnation of a collection (R9)."""

    token: str
    id: int
    incarnation: int
    half: str
    shard: int = 0

    @property
    def name(self) -> str:
        return f"{page_prefix(self.token, self.id)}{self.incarnation}.{self.shard}.{self.half}"


def new_token() -> str:
    """A token that no other instance has, at random."""
    return secrets.token_hex(TOKEN_DIGITS // 2)


def is_token(text: str) -> bool:
    """Whether `text` has the form of a token."""
    return len(text) == TOKEN_DIGITS and _HEX.issuperset(text)


def control_name(token: str) -> str:
    """The file whose lock says that the instance lives."""
    return f"{PREFIX}{token}.ctl"


def segment_name(token: str, writer: int, seq: int, *, arena: bool) -> str:
    """The `seq`-th segment of a writer: an arena, or one batch."""
    return f"{PREFIX}{token}.{'a' if arena else 'b'}.{writer}.{seq}"


def clock_prefix(token: str) -> str:
    """What the names of all clocks of an instance begin with."""
    return f"{PREFIX}{token}.c."


def progress_name(token: str, process: str) -> str:
    """The progress page of a process, by its name, as `interactive/1`."""
    return f"{PREFIX}{token}.i.{process.replace('/', '-')}"


def clock_name(token: str, writer: int, seq: int) -> str:
    """The `seq`-th clock of a writer."""
    return f"{clock_prefix(token)}{writer}.{seq}"


def token_of(name: str) -> str | None:
    """Return the token in a segment's name, or None if it is none of ours.

    >>> token_of("clusterd.0123456789ab.ctl"), token_of("psm_1234")
    ('0123456789ab', None)
    """
    if not name.startswith(PREFIX):
        return None
    token, dot, _ = name[len(PREFIX) :].partition(".")
    return token if dot and is_token(token) else None


def instance_prefix(token: str) -> str:
    """What all names of an instance begin with."""
    return f"{PREFIX}{token}."


def page_prefix(token: str, id: int) -> str:
    """What the names of all pages of one collection begin with."""
    return f"{PREFIX}{token}.p.{id:016x}."


def parse_page(name: str) -> PageName | None:
    """Inverse of `PageName.name`; None if `name` is no page's."""
    parts = name.split(".")
    token = token_of(name)
    if token is None or len(parts) != 7 or parts[2] != "p" or parts[6] not in HALVES:
        return None
    try:
        return PageName(token, int(parts[3], 16), int(parts[4]), parts[6], int(parts[5]))
    except ValueError:
        return None


def collection_id(id: int | str) -> int:
    """Return the u64 of a collection's id: `u1`, `s1`, `t1`, bare digits (a `u`), or the u64 itself.

    The kind is in the top two bits.
    Raises: ValueError if it is none of these; TypeError if it is no int and no text.
    """
    if isinstance(id, bool) or not isinstance(id, int | str):
        raise TypeError(f"an id is a u64, or text as 'u1001', not {id!r}")
    if isinstance(id, int):
        if not 0 <= id < 1 << 64:
            raise ValueError(f"not a u64 id: {id}")
        return id
    text = id if id[:1] in tuple(_KINDS) else "u" + id
    digits = text[1:]
    if not (digits.isascii() and digits.isdigit()) or int(digits) > _MAX_NUMBER:
        raise ValueError(f"{id!r} is not an id: write u1001, s1 or t7")
    return (_KINDS.index(text[0]) << _KIND_SHIFT) | int(digits)


def collection_text(id: int) -> str:
    """Return the text form of a u64 id: `u1`."""
    kind = id >> _KIND_SHIFT
    return f"{_KINDS[kind]}{id & _MAX_NUMBER}" if kind < len(_KINDS) else f"{id:#x}"
