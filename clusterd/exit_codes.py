"""How `clusterd serve` ends, as a number: what a launcher or a service manager may act on.

A child that ends with one of `PASSED_ON` has its own reason passed on by the supervisor; every other
unexpected end of a child is `PROCESS_DIED`, or `START_FAILED` if it failed before READY.
"""

from __future__ import annotations

__all__ = [
    "DATA_FORMAT",
    "PASSED_ON",
    "PROCESS_DIED",
    "SHM_EXHAUSTED",
    "SOCKET_IN_USE",
    "START_FAILED",
    "STOPPED",
    "USAGE",
]

STOPPED = 0  # by SIGTERM or SIGINT, in order
USAGE = 2  # click's own number
SOCKET_IN_USE = 10  # another daemon listens there
DATA_FORMAT = 11  # the data directory is of another format version
SHM_EXHAUSTED = 12  # shared memory has no room; the log line says how much was asked and free
PROCESS_DIED = 13  # R1: one process ended, so all did
START_FAILED = 14  # a child failed before READY, for a reason that has no number of its own

PASSED_ON = frozenset({DATA_FORMAT, SHM_EXHAUSTED})
