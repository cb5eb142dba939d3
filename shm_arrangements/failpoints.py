"""Failpoints: named stops that a test can arm, at the places where a fault must do no harm.

    segment.create            a segment has its name, and no space yet
    segment.reserve           before more space of a segment is reserved
    arena.create              before an arena is made
    arena.append              before a small batch gets its place in an arena
    arena.evacuate            survivors of an arena are copied, and not published yet
    arena.unlink              before the name of a wholly dead arena is removed
    clock.create              before a clock is made
    clock.advance             pages are turned, the cell is not yet set
    clock.unlink              all cells are given back, the clock still has its name
    publication.create        the page has its cell, and no segment yet
    publication.header        the page has its header, and no generation yet
    publication.before-flip   the stale slot is filled, the generation not yet stored
    publication.after-flip    the generation is stored, nobody is woken yet
    publication.close         before the page says CLOSED
    publication.unlink        the page says CLOSED, a name of it still stands
    spine.merge               inside a call that merges
    batch.unlink              before the place of a superseded batch is given back

`error` fails as a machine without space does, so that the code under test takes its real path. `pause`
stops the process as SIGSTOP does: who waits for it can see state T, and SIGCONT goes on.

Does not: cost more than one look into an empty dict where nothing is armed; read the environment.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Final

OURS: Final = frozenset({
    "segment.create", "segment.reserve", "arena.create", "arena.append", "arena.evacuate", "arena.unlink",
    "clock.create", "clock.advance", "clock.unlink", "publication.create", "publication.header",
    "publication.before-flip", "publication.after-flip", "publication.close", "publication.unlink",
    "spine.merge", "batch.unlink",
})  # fmt: skip
NAMES: Final = set(OURS)  # and those of the layers above, once they are declared
ACTIONS: Final = ("off", "error", "exit", "pause")
EXIT_STATUS: Final = 86

_armed: dict[str, tuple[str, int]] = {}


class FailpointError(OSError):
    """The fault of an armed `error`: errno is ENOSPC."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.ENOSPC, f"failpoint {name}")
        self.name = name


def declare(*names: str) -> None:
    """Make names of a layer above known; it hits them as ours are hit."""
    NAMES.update(names)


def arm(name: str, action: str, *, times: int = -1) -> None:
    """Make `hit(name)` do `action` the next `times` times; -1 is until it is `off`.

    Raises: ValueError naming an unknown name or action.
    """
    if name not in NAMES:
        raise ValueError(f"unknown failpoint {name!r}: one of {', '.join(sorted(NAMES))}")
    if action not in ACTIONS:
        raise ValueError(f"unknown action {action!r}: one of {', '.join(ACTIONS)}")
    if action == "off" or times == 0:
        _armed.pop(name, None)
    else:
        _armed[name] = (action, times)


def disarm_all() -> None:
    """Back to none armed."""
    _armed.clear()


def armed() -> dict[str, str]:
    """Return the armed names and what each will do."""
    return {name: action for name, (action, _) in _armed.items()}


def hit(name: str) -> None:
    """Do what `name` is armed for, if anything. Raises: FailpointError for `error`."""
    if not _armed or name not in _armed:
        return
    action, times = _armed[name]
    if times > 0:
        arm(name, action, times=times - 1)
    if action == "error":
        raise FailpointError(name)
    if action == "exit":
        os._exit(EXIT_STATUS)
    os.kill(os.getpid(), signal.SIGSTOP)
