"""Turns: one epoll, who handles what it tells, and the links that were queued on since the last turn.

A link is written once a turn, however much was queued on it; then `settle` says what to wait for next.

Does not: know what a link is for.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from clusterd.link import FrameLink

__all__ = ["GONE", "IN", "OUT", "Turns"]

IN, OUT = select.EPOLLIN, select.EPOLLOUT
GONE = select.EPOLLHUP | select.EPOLLERR


class Turns:
    """Handlers by descriptor; each is called with the mask of its events."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._touched: dict[FrameLink, Callable[[], None]] = {}

    def watch(self, fd: int, handler: Callable[[int], None]) -> None:
        """Wait for what `fd` has to read."""
        self._handlers[fd] = handler
        self._epoll.register(fd, IN)

    def wait_for(self, fd: int, mask: int) -> bool:
        """Wait for `mask` of one that is watched. Returns whether it is."""
        if fd not in self._handlers:
            return False
        self._epoll.modify(fd, mask)
        return True

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def take(self, timeout_s: float | None) -> bool:
        """Wait for something, up to `timeout_s`, and have it handled. Returns whether there was anything."""
        ready = self._epoll.poll(timeout_s)
        for fd, mask in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(mask)
        return bool(ready)

    def is_idle(self) -> bool:
        """Whether nothing has happened that is not handled."""
        return not self._epoll.poll(0)

    def touch(self, link: FrameLink, settle: Callable[[], None]) -> None:
        """Write `link` at the end of the turn, then `settle`."""
        if link not in self._touched:
            self._touched[link] = settle

    def forget(self, link: FrameLink) -> None:
        """What was queued on it does not matter any more."""
        self._touched.pop(link, None)

    def flush(self) -> None:
        """Write what was queued on, until nothing is left that has room."""
        while self._touched:
            link, settle = self._touched.popitem()
            link.flush()
            settle()

    def close(self) -> None:
        self._epoll.close()
