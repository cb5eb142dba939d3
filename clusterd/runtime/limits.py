"""Limits of a read: what it may take, by the settings in force and by what it says itself, and whose name to
give when one is hit.

Every limit counts what the collection holds at the time of the read, not how it is cut into batches; so both
runtimes refuse the same reads with the same words. A limit on what is read ends a read where it is, and wins
over whatever else it would have found; one on the answer is judged when the answer is whole.

Does not: measure time (deadlines.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from controller_proto.command import NO_LIMITS, ReadLimits
from controller_proto.errors import Refusal

__all__ = ["Limits"]

_FIELDS = ("result_bytes", "result_rows", "rows_read")


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit. own: which are said by the read itself."""

    result_bytes: int
    result_rows: int | None = None
    rows_read: int | None = None
    own: frozenset[str] = frozenset()

    @property
    def counts_rows(self) -> bool:
        """Whether rows are limited, be it only one row."""
        return self.result_rows is not None or self.rows_read is not None

    def of(self, said: ReadLimits) -> Limits:
        """The lesser of these, the settings', and those that a read says."""
        if said == NO_LIMITS:
            return self
        least, own = {name: getattr(self, name) for name in _FIELDS}, set()
        for name in _FIELDS:
            mine = getattr(said, name)
            if mine is not None and (least[name] is None or mine < least[name]):
                least[name] = mine
                own.add(name)
        return Limits(**least, own=frozenset(own))

    def require_read(self, rows: int, of: str, time: int) -> None:
        """Raises Refusal(`limit`) if `rows` are more than a read of `of` may go through."""
        most = self.rows_read
        if most is not None and rows > most:
            raise Refusal(
                "limit",
                f"{of} has more rows to read at {time} than {self._name('rows_read')}, which is {most}",
                "read by key, or raise the limit",
            )

    def require_rows(self, rows: int) -> None:
        """Raises Refusal(`result-too-large`) if an answer has too many rows."""
        most = self.result_rows
        if most is not None and rows > most:
            raise Refusal(
                "result-too-large",
                f"the answer has {rows} rows, {self._name('result_rows')} is {most}",
                "read fewer rows, as with a limit, or raise the limit",
            )

    def require_bytes(self, nbytes: int) -> None:
        """Raises Refusal(`result-too-large`) if an answer is too large."""
        if nbytes > self.result_bytes:
            name = self._name("result_bytes")
            raise Refusal(
                "result-too-large",
                f"the answer has {nbytes} bytes, {name} is {self.result_bytes}",
                f"read fewer rows or columns, or raise {name}",
            )

    def _name(self, field: str) -> str:
        return f"limits.{field}" if field in self.own else f"max_{field}"
