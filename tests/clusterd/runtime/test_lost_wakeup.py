"""L12: all interleavings of {write page, notify} and {drain inbox, re-read page, park}.

The reader is the interactive core; its shell is taken apart into the three steps. In the right order every
interleaving ends with the peek handed out; with drain and re-read swapped some do not, which shows that the
test can see the fault.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import msgspec
import pytest

from clusterd import internal
from clusterd.runtime import effects as fx
from clusterd.runtime.core import RuntimeCore
from clusterd.runtime.interactive import Interactive
from clusterd.runtime.peeks import Key
from controller_proto.command import InitializationComplete, Peek
from controller_proto.dataflow import Export
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.world import FakePorts

U1: Key = ("u1", 1)
RIGHT = ("drain", "read", "park")
SWAPPED = ("read", "drain", "park")


class Reader:
    """The interactive core and a shell whose steps are taken one by one."""

    def __init__(self) -> None:
        self.core = RuntimeCore(Interactive(), FakePorts({}))
        self.inbox: deque[internal.ToWorker] = deque()
        self.upper = 1  # what the page says
        self.served: list[int] = []
        self._seen: fx.PageSeen | None = None
        self._asked = False
        export = Export("u1", "index", "u9001", SAMPLE_SCHEMA, (0,))
        for message in (
            internal.SessionStart(1),
            internal.Declare(1, export, 1, 0),
            internal.Run(1, InitializationComplete(1)),
        ):
            self.feed(message)

    def feed(self, event: fx.Event) -> None:
        for effect in self.core.handle(event):
            if isinstance(effect, fx.ReadPage):
                self._asked = True
            elif isinstance(effect, fx.Evaluate):
                self.served.append(effect.time)
                self.feed(
                    fx.Evaluated(effect.pending.session, effect.pending.uuid, msgspec.msgpack.encode(1))
                )

    def step(self, name: str) -> None:
        if name == "drain":
            while self.inbox:
                self.feed(self.inbox.popleft())
        elif name == "read":
            self.feed(internal.Run(1, Peek(2, "a", "u1", 1), {"u1": 1}))
            self._seen = self.page()
        else:
            assert self._seen is not None
            self._asked = False
            self.feed(self._seen)

    def page(self) -> fx.PageSeen:
        return fx.PageSeen(U1, "open", Frontier.at(0), Frontier.at(self.upper))

    def loop(self) -> None:
        """The shell goes on: whatever is in the inbox is taken, each effect performed before the next."""
        while self.inbox:
            self.feed(self.inbox.popleft())
            while self._asked:
                self._asked = False
                self.feed(self.page())


def writes(n: int) -> list[tuple[str, int]]:
    """n turns of the page, each followed by its notice; the last seals time 1."""
    return [step for turn in range(n) for step in (("write", turn + 3 - n), ("notify", 0))]


def merges(left: list[tuple[str, int]], right: tuple[str, ...]) -> Iterator[list[tuple[str, int]]]:
    total = len(left) + len(right)
    for places in itertools.combinations(range(total), len(left)):
        writer, reader = iter(left), iter(right)
        yield [next(writer) if i in places else (next(reader), 0) for i in range(total)]


def run(schedule: list[tuple[str, int]]) -> bool:
    """Whether the peek is served in the end."""
    reader = Reader()
    for name, upper in schedule:
        if name == "write":
            reader.upper = upper
        elif name == "notify":
            reader.inbox.append(internal.Look(*U1))
        else:
            reader.step(name)
    reader.loop()
    reader.core.validate_state()
    assert len(reader.served) <= 1
    return bool(reader.served)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_no_interleaving_loses_the_wake_up(turns: int) -> None:
    schedules = list(merges(writes(turns), RIGHT))
    assert len(schedules) == {1: 10, 2: 35, 3: 84}[turns]
    assert [s for s in schedules if not run(s)] == []


def test_with_drain_and_read_swapped_the_wake_up_is_lost() -> None:
    lost = [s for s in merges(writes(1), SWAPPED) if not run(s)]
    assert [name for name, _ in lost[0]] == ["read", "write", "notify", "drain", "park"]
