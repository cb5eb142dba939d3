"""The sockets a daemon listens on. Of the unix socket the file is taken only if nobody live has it, and
given back at the end.

Two daemons that start at once must not each take the other's fresh file for a stale one, so looking and
binding happen under a lock on the directory; it leaves no file behind. A file whose owner died answers a
connect with ECONNREFUSED, and a daemon listens from the moment it binds, so the two cannot be confused.

Does not: accept (endpoint.py), remove a file that is not the socket it bound.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterd.errors import SocketInUse, UsageError
from clusterd.events import StaleSocketReplaced, emit

__all__ = ["ListeningSocket", "http_address", "listen_tcp"]

_PATH_BYTES = 107  # sun_path, without its NUL
_BACKLOG = 128
_RETRY_S = 0.02


class ListeningSocket:
    """A bound and listening unix socket, mode 0600."""

    def __init__(self, path: Path, *, lock_deadline_s: float) -> None:
        """Raises SocketInUse; UsageError if `path` cannot be a socket."""
        self.path = path
        if len(os.fsencode(path)) > _PATH_BYTES:
            raise UsageError(
                f"socket path {path} is longer than {_PATH_BYTES} bytes", hint="use a shorter one"
            )
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no directory")
        with _locked(path.parent, lock_deadline_s):
            _clear(path)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                before = os.umask(0o177)
                try:
                    self.socket.bind(os.fspath(path))
                finally:
                    os.umask(before)
                self.socket.listen(_BACKLOG)
            except OSError as error:
                self.socket.close()
                raise UsageError(f"cannot listen on {path}: {error.strerror}") from error
            bound = path.stat()
        self._identity = (bound.st_dev, bound.st_ino)

    def close(self) -> None:
        """Close this process's copy; the file stays."""
        self.socket.close()

    def unlink(self) -> None:
        """Remove the file, if it still is the one that was bound."""
        try:
            found = self.path.stat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()
        except OSError:
            return


def listen_tcp(host: str, port: int) -> socket.socket:
    """A TCP socket that listens; port 0: any that is free. Raises UsageError."""
    try:
        (family, _, _, _, where), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server((where[0], port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def http_address(listener: socket.socket) -> str:
    """Where a browser finds it: `http://127.0.0.1:6875`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _clear(path: Path) -> None:
    """Make room at `path`. Raises SocketInUse, UsageError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{path} exists and is no socket", hint="choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(os.fspath(path))
    if code != errno.ECONNREFUSED:
        raise SocketInUse(
            f"a daemon is listening on {path}", hint="stop it, or listen elsewhere with --listen"
        )
    path.unlink()
    emit(StaleSocketReplaced(path=os.fspath(path)))


@contextmanager
def _locked(directory: Path, deadline_s: float) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + deadline_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    why = f"{directory} is locked by another process"
                    raise UsageError(why, hint="listen in a directory of your own") from error
                time.sleep(_RETRY_S)  # flock has no deadline; held for as long as another daemon binds
        yield
    finally:
        os.close(fd)
