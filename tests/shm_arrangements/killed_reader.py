"""A reader of an index that is killed in the midst of a call, and what has to be so afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from shm_arrangements.attach import Attached, attach
from shm_arrangements.readers import list_readers

__all__ = ["killed_in"]


def killed_in(call: Callable[[Attached], Any], token: str, after: int) -> None:
    """A process that does nothing else is killed once it has done so `after` times, whatever it is in.

    u1 is sealed to 2. Afterwards it pins nothing, and its row is gone.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            with attach("u1", token) as read:
                view = read.snapshot()
                while True:
                    call(read)
                    assert view.at == 1
                    os.write(theirs, b".")
        finally:
            os._exit(1)
    os.close(theirs)
    done = 0
    while done < after:
        told = os.read(ours, 64)
        assert told, "the reader failed"
        done += len(told)
    (row,) = list_readers(token)
    assert (row.pid, row.snapshots > 0, row.pinned_bytes > 0) == (child, True, True)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    os.close(ours)
    assert list_readers(token) == ()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"clusterd.{token}.r.")]
