"""What can go wrong in the daemon itself, as against in the conversation (controller_proto.errors).

A `DaemonError` carries the exit code it ends the process with. Our own bugs are
`shm_arrangements.errors.InvariantViolation`, here as there.

Does not: name errors of data or of the wire; those are answers, not exceptions.
"""

from __future__ import annotations

from clusterd import exit_codes

__all__ = ["DaemonError", "SocketInUse", "UsageError"]


class DaemonError(Exception):
    """Ends the daemon. `exit_code` says how, `hint` what to do about it."""

    exit_code = exit_codes.START_FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class SocketInUse(DaemonError):
    """A live daemon listens on the path."""

    exit_code = exit_codes.SOCKET_IN_USE


class UsageError(DaemonError):
    """What was asked for on the command line cannot be done."""

    exit_code = exit_codes.USAGE
