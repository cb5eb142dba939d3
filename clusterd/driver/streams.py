"""What subscriptions have told a connection, and the promises that every script checks of it.

Checked: batches tile time from the minimum on, none is empty of times; updates lie in the interval of their
batch and not before `as_of`; an interval is told whole before the next; nothing comes after an end.

Does not: wait, know directives.
"""

from __future__ import annotations

from collections.abc import Sequence

from controller_proto.dataflow import WireFrontier
from controller_proto.literals import format_scalar
from controller_proto.response import DroppedAt, SubscribeBatch, SubscribeError, SubscribeResponse
from controller_proto.schema import Column, Row

__all__ = ["Stream"]


class Stream:
    """One subscription. upper: up to where it was told, `()` when it was all. dropped: it ended before."""

    def __init__(self, id: str, as_of: int) -> None:
        self.id = id
        self.as_of = as_of
        self.upper: WireFrontier = (0,)
        self.dropped: DroppedAt | None = None
        self.updates: list[tuple[int, Row, int]] = []  # time, row, diff
        self.errors: list[tuple[int, WireFrontier, SubscribeError]] = []
        self._whole = True  # whether the last message ended its batch

    @property
    def is_over(self) -> bool:
        return not self.upper or self.dropped is not None

    def take(self, response: SubscribeResponse) -> list[str]:
        """Take in a message; what breaks a promise."""
        said = response.said
        name = f"subscription {self.id}"
        if self.is_over:
            return [f"{name}: a message after its end"]
        if isinstance(said, DroppedAt):
            self.dropped = said
            return (
                [] if said.upper == self.upper else [f"{name}: dropped at {said.upper}, after {self.upper}"]
            )
        wrong = []
        if (said.lower,) != self.upper:
            wrong.append(f"{name}: a batch from {said.lower}, after one up to {list(self.upper)}")
        if said.upper and said.upper[0] <= said.lower:
            wrong.append(f"{name}: an empty batch, from {said.lower} to {list(said.upper)}")
        if isinstance(said.contents, SubscribeError):
            if not self._whole:
                wrong.append(f"{name}: an error within a batch")
            self.errors.append((said.lower, said.upper, said.contents))
        else:
            wrong += self._take_updates(said)
            self._whole = not said.contents.more
        if self._whole:
            self.upper = said.upper
        return wrong

    def _take_updates(self, batch: SubscribeBatch) -> list[str]:
        contents, wrong = batch.contents, []
        assert not isinstance(contents, SubscribeError)
        rows = list(zip(*contents.columns, strict=True)) if contents.columns else [()] * len(contents.times)
        for time, row, diff in zip(contents.times, rows, contents.diffs, strict=True):
            if time < max(batch.lower, self.as_of) or (batch.upper and time >= batch.upper[0]) or not diff:
                upper = list(batch.upper)
                wrong.append(f"subscription {self.id}: {diff} {row} at {time} in [{batch.lower}, {upper})")
            self.updates.append((time, row, diff))
        return wrong

    def lines(self, up_to: WireFrontier, columns: Sequence[Column]) -> list[str]:
        """What was told of times before `up_to`: updates by time and row, errors, and how it ended."""
        found: list[tuple[int, int, str]] = []
        for time, row, diff in self.updates:
            if not up_to or time < up_to[0]:
                values = (format_scalar(value, column) for value, column in zip(row, columns, strict=True))
                found.append((time, 1, " ".join([f"{time} {diff:+d}", *values])))
        for lower, _, error in self.errors:
            if not up_to or lower < up_to[0]:
                found.append((lower, 0, f"{lower} error: {error.code}: {error.message}"))
        lines = [line for _, _, line in sorted(found)]
        if self.dropped is not None:
            lines.append(f"dropped-at {' '.join(map(str, self.dropped.upper))} {self.dropped.code}")
        return lines
