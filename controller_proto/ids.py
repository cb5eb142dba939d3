"""Names of collections: `u1` user, `s1` system, `t1` transient.

On the wire and in code an id is its text form (a `str`); shared memory knows ids as plain u64, the kind in
the top two bits. `u` ids are durable, `t` ids may be owned by the interactive runtime.
"""

from __future__ import annotations

from controller_proto.errors import LocalProtocolError

__all__ = ["GlobalId", "id_to_u64", "is_transient", "parse_id"]

GlobalId = str

_KINDS = "ust"
_SHIFT = 62
_MAX = (1 << _SHIFT) - 1


def parse_id(text: str) -> GlobalId:
    """Return the canonical form of `text`; bare digits mean a user id (`1001` is `u1001`).

    Raises LocalProtocolError(`unknown-id`) if it is no id.
    """
    body = text if text[:1] in tuple(_KINDS) else "u" + text
    digits = body[1:]
    if not (digits.isascii() and digits.isdigit()) or int(digits) > _MAX:
        raise LocalProtocolError("unknown-id", f"{text!r} is not an id", "write u1001, s1 or t7")
    return body[0] + str(int(digits))


def is_transient(id: GlobalId) -> bool:
    """Whether it may be owned by the interactive runtime."""
    return id.startswith("t")


def id_to_u64(id: GlobalId) -> int:
    """As shared memory knows it; ids of a kind keep their order."""
    return (_KINDS.index(id[0]) << _SHIFT) | int(id[1:])
