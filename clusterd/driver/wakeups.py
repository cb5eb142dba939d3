"""Signals at a terminal: none is kept back until the next key.

readline, as Python uses it, looks for signals when one interrupts its wait for a key. One that comes right
before it waits is seen at the next key, which may never come: then a kill would not end the shell. So a
thread hears of every signal, and interrupts that wait once more, by a signal that means nothing; and again,
since a busy machine may be slow to begin it.

Does not: handle signals, or know whether they were (an interruption of anything else is not noticed).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupt_waits"]

_MEANS_NOTHING = signal.SIGURG  # ignored by default, and nobody else sends it
_AGAIN_S = (0.05, 0.2, 1.0, 5.0)


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """In the main thread: a signal that comes within interrupts a wait for a key, whenever that begins."""
    heard, hears = os.pipe()
    os.set_blocking(hears, False)
    main = threading.get_ident()
    over = threading.Event()

    def interrupt() -> None:
        while numbers := os.read(heard, 64):
            if any(number != _MEANS_NOTHING for number in numbers):
                for pause_s in _AGAIN_S:
                    if over.wait(pause_s):
                        return
                    signal.pthread_kill(main, _MEANS_NOTHING)

    handler = signal.signal(_MEANS_NOTHING, lambda number, frame: None)
    before = signal.set_wakeup_fd(hears, warn_on_full_buffer=False)
    thread = threading.Thread(target=interrupt, name="interrupts")
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        os.close(hears)
        thread.join()
        os.close(heard)
        signal.signal(_MEANS_NOTHING, handler)
