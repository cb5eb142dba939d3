"""Addresses of replicas, and what a socket tells of the one it is connected to.

Does not: connect.
"""

from __future__ import annotations

import socket
import struct
from typing import Protocol

from controller_proto.errors import LocalProtocolError

__all__ = ["BACKLOG_RETRY_S", "cannot_connect", "parse_address", "peer_pid"]

# A unix listener whose backlog is full turns a connect that may not block away (EAGAIN), and nothing tells
# when there is room: only trying again does.
BACKLOG_RETRY_S = 0.01
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class _Socket(Protocol):
    @property
    def family(self) -> int: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def parse_address(text: str) -> tuple[int, str | tuple[str, int]]:
    """`unix:/PATH` or `tcp:HOST:PORT` -> (address family, address). Raises LocalProtocolError `bad-message`.

    >>> parse_address("tcp:[::1]:6875")[1]
    ('::1', 6875)
    """
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return socket.AF_UNIX, rest
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isascii() and port.isdigit() and int(port) < 1 << 16:
        host = host.removeprefix("[").removesuffix("]")
        return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))
    raise LocalProtocolError("bad-message", f"{text!r} is no address: write unix:PATH or tcp:HOST:PORT")


def cannot_connect(address: str, error: OSError) -> OSError:
    """The same error, of the same type, saying where to and what to do."""
    why = error.strerror or str(error) or "timed out"
    told = f"cannot connect to {address}: {why}; is `clusterd serve` running there?"
    return type(error)(*([told] if error.errno is None else [error.errno, told]))


def peer_pid(connected: _Socket) -> int | None:
    """The process that listens at the other end of a unix socket; None if that cannot be told."""
    if connected.family != socket.AF_UNIX:
        return None
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(told)[0]) or None
