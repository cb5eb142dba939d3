"""Operation: what a client does, written once, for a shell that blocks and one that awaits.

An operation is a generator. It yields what it cannot do itself and goes on with what came of it, or with the
exception it ended in: `Wait` for the replica to have said something, `Work` that touches files. What it said
to the core before is written by the shell before it waits. A shell that gives up (its time is over, its task
was canceled) throws that in, so that cleaning up is written in one place as well.

Does not: know either shell.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

__all__ = ["DEADLINE_S", "Operation", "Topic", "Wait", "Work", "work"]

T = TypeVar("T")

DEADLINE_S = 60.0  # for answers; a peek of a time that nobody seals waits for ever otherwise

Topic: TypeAlias = tuple[str, str]
"""What a response is about: (`peek`, uuid), (`frontier`, id), (`status`, id), (`subscription`, id),
(`copy`, id), (`judged`, ``)."""


class Wait(NamedTuple):
    """Until `ready`, which can only become true by a response about `topic`.

    Ends in TimeoutError after `timeout_s` (None: never), in Disconnected.
    """

    topic: Topic
    ready: Callable[[], bool]
    timeout_s: float | None = DEADLINE_S


class Work(NamedTuple, Generic[T]):
    """A call that may block on files, and nothing else. stop: of a long one, has it end soon, from any
    thread; it goes on beside those of files.
    """

    do: Callable[[], T]
    stop: Callable[[], None] | None = None


Operation: TypeAlias = Generator[Wait | Work[Any], Any, T]


def work(do: Callable[[], T]) -> Operation[T]:
    """What `do` returns.

    >>> next(work(lambda: 3)).do()
    3
    """
    result: T = yield Work(do)
    return result
