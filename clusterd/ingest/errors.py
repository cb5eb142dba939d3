"""What ends an ingest process, each with a code that stays, what was found, and what to do about it.

| code               | means                                                                              |
|--------------------|------------------------------------------------------------------------------------|
| cannot-connect     | the server refuses us, or what was asked of it                                     |
| bad-setup          | the server, the publication or the slot is not set up for this                     |
| identity-not-full  | a table does not log whole old rows, so nobody could tell what to retract          |
| unmapped-type      | a column's type has no counterpart among ours                                      |
| invalid-data       | a value has no place in its column, such as a date of `infinity`                   |
| schema-changed     | a table is not the one its shard was made of any more                              |
| other-source       | the shards come from another server, or from a later state of this one             |
| slot-gone          | the slot no longer has all changes that the shards lack                            |
| slot-exists        | there is a slot of this name that no shard here has anything of                    |
| already-running    | another process feeds the shards from this slot                                    |
| shard-taken        | a shard has another writer                                                         |
| storage-failed     | the place of the shards cannot be reached, or has no room                          |
| bad-stream         | the server said what the protocol does not have                                    |

Does not: stand for a connection that was lost; that is tried again (connection.py).
"""

from __future__ import annotations

__all__ = ["CODES", "IngestError"]

CODES = frozenset({
    "cannot-connect", "bad-setup", "identity-not-full", "unmapped-type", "invalid-data", "schema-changed",
    "other-source", "slot-gone", "slot-exists", "already-running", "shard-taken",
    "storage-failed", "bad-stream",
})  # fmt: skip


class IngestError(Exception):
    """Ends the process; nothing was appended that is not whole. code: one of `CODES`."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}; {hint}" if hint else f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint
