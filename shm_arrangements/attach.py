"""Attach: reading an index from any process of the same user, without a word to the daemon.

    with attach("u1001") as index:
        view = index.snapshot()          # one exact time
        view.lookup(7).rows()
        view.scan().column("delay").sum()

The memory is mapped read-only and stays as long as anything looks at it. A snapshot is right for its time for
ever; only a new one can find the index dropped (`PublicationClosed`) or its writer gone (`WriterGone`).

Does not: speak to a socket, hold compaction back, or spin. What it holds is counted (readers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from shm_arrangements import instance as instances
from shm_arrangements import readers
from shm_arrangements.batch import Batch
from shm_arrangements.discover import newest_first, not_published, page_names, resolve
from shm_arrangements.errors import NoSuchInstance, NotSealed, PublicationClosed, WriterGone
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.instance import LivenessProbe
from shm_arrangements.names import HALVES, PageName, collection_text
from shm_arrangements.page_layout import PageState, PageStatus
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace, Snapshot, require_readable, snapshot_together
from shm_arrangements.view import ReadView, Result
from shm_arrangements.wait import Waited, wait_sealed

_NAME_IT = "name one: Client.connect(..., instance=TOKEN), attach(..., TOKEN); TOKEN is in the READY line"


def attach(id: int | str, instance: str | None = None) -> Attached:
    """Attach to an index: the newest incarnation of `id` that is not closed.

    id: "u1001" (bare digits mean the same), or its u64; any other text is the name that its writer gave it.
    instance: a token; None for the only one alive.
    Raises: NoSuchInstance; WriterGone; PublicationClosed if that is not published; AmbiguousName if several
    are by that name; FormatMismatch; ValueError if `id` is no u64.
    """
    token = _only_instance() if instance is None else instance
    try:
        probe = LivenessProbe(token)
    except FileNotFoundError as error:
        raise NoSuchInstance("no such instance", instance=token) from error
    if not probe.is_alive():
        probe.close()
        raise WriterGone("the instance has ended", instance=token)
    number = resolve(token, id)
    for name in newest_first(page_names(token, number)):
        try:
            return Attached(name, probe)
        except PublicationClosed:
            continue  # closed, or closing just now: an older incarnation may still be read
    probe.close()
    raise not_published(token, collection_text(number))


class Attached:
    """An index of another process. Close it, or let it go; views and arrays taken from it stay."""

    __slots__ = (
        "__weakref__", "_errs", "_newest", "_oks", "_probe", "_reader", "id", "incarnation", "instance",
    )  # fmt: skip

    def __init__(self, name: PageName, probe: LivenessProbe) -> None:
        """name: of the oks page of shard 0. Raises: PublicationClosed if a page is closed or missing."""
        self.id = collection_text(name.id)
        self.incarnation = name.incarnation
        self.instance = name.token
        self._probe = probe
        first = PublishedTrace(name)
        names = [name._replace(shard=shard) for shard in range(first.page.header.shards)]
        self._oks = [first, *(PublishedTrace(one) for one in names[1:])]
        self._errs = [PublishedTrace(one._replace(half=HALVES[1])) for one in names]
        self._states()
        self._reader = readers.enter(self.instance, self)
        # The view of the newest time, and what it was taken from: as long as no page turns it is the same.
        self._newest: tuple[list[Snapshot], ReadView] | None = None

    @property
    def schema(self) -> ArrangementSchema:
        return self._oks[0].schema

    @property
    def since(self) -> Frontier:
        """The earliest time that can be read: the latest since of oks, errs and shards."""
        return _since(self._states())

    @property
    def upper(self) -> Frontier:
        """The first time that cannot be read yet: the earliest upper of oks, errs and shards."""
        return _upper(self._states())

    def snapshot(self, at: int | None = None) -> ReadView:
        """A view of the index at time `at`; None is the newest that is sealed.

        Raises: NotReadable (`at` before since), NotSealed (at or beyond upper), PublicationClosed (dropped),
        WriterGone; RegistryFull if this process has no descriptor or mapping left; TypeError.
        """
        if (
            at is not None
            and type(at) is not int
            and (isinstance(at, bool) or not isinstance(at, SupportsIndex))
        ):
            raise TypeError(f"at must be an int time, not {at!r}; a key of several columns is one tuple")
        parts = snapshot_together([*self._oks, *self._errs])
        if not self._probe.is_alive():
            raise WriterGone("the instance has ended", instance=self.instance)
        if at is None and self._newest is not None and self._newest[0] == parts:
            return self._newest[1]
        since, upper = _since(parts), _upper(parts)
        time = _newest(since, upper) if at is None else at
        require_readable(since, upper, time)
        shards = len(self._oks)
        view = ReadView(self.id, self.schema, _chains(parts[:shards]), _chains(parts[shards:]), time)
        self._reader.took(view, time)
        if at is None:
            self._newest = parts, view
        return view

    def lookup(self, key: Any, at: int | None = None) -> Result:
        """`snapshot(at).lookup(key)`."""
        return self.snapshot(at).lookup(key)

    def lookup_many(self, keys: Any, at: int | None = None) -> Result:
        """`snapshot(at).lookup_many(keys)`."""
        return self.snapshot(at).lookup_many(keys)

    def scan(self, at: int | None = None) -> Result:
        """`snapshot(at).scan()`."""
        return self.snapshot(at).scan()

    def wait(self, time: SupportsIndex, timeout_s: float | None = None) -> Frontier:
        """Sleep until the index is sealed beyond `time`; return its upper. Releases the GIL.

        Raises: WaitTimeout, a TimeoutError; PublicationClosed if it is dropped; WriterGone; ValueError.
        """
        return wait_all([self], time, timeout_s)[0]

    def close(self) -> None:
        """Let go. Views and arrays stay; a new snapshot is PublicationClosed. Idempotent."""
        for trace in (*self._oks, *self._errs):
            trace.close()
        self._probe.close()
        self._newest = None
        self._reader.leave(self)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Attached({self.id}, incarnation={self.incarnation}, instance={self.instance})"

    def _waited(self) -> Waited:
        return Waited(self.id, [trace.page for trace in (*self._oks, *self._errs)], self._probe)

    def _states(self) -> list[PageState]:
        states = [trace.read() for trace in (*self._oks, *self._errs)]
        if any(state.status is PageStatus.CLOSED for state in states):
            raise PublicationClosed("arrangement was dropped", id=self.id, incarnation=self.incarnation)
        return states


def wait_all(
    indexes: Sequence[Attached], time: SupportsIndex, timeout_s: float | None = None
) -> list[Frontier]:
    """`Attached.wait` for all of several indexes, of any instances, once or more often each (BUG10)."""
    return wait_sealed([index._waited() for index in indexes], time, timeout_s)


def _since(parts: Sequence[PageState | Snapshot]) -> Frontier:
    since = Frontier.minimum()
    for part in parts:
        since = Frontier.join(since, part.since)
    return since


def _upper(parts: Sequence[PageState | Snapshot]) -> Frontier:
    upper = Frontier.empty()
    for part in parts:
        upper = Frontier.meet(upper, part.upper)
    return upper


def _newest(since: Frontier, upper: Frontier) -> int:
    """The newest readable time. Raises: NotSealed if there is none yet."""
    if upper.is_empty:
        return MAX_TIME
    if since.is_empty or upper.time == 0 or upper.time <= since.time:
        raise NotSealed("no time is sealed yet", since=since, upper=upper)
    return upper.time - 1


def _chains(snapshots: Sequence[Snapshot]) -> list[Batch]:
    return [batch for snapshot in snapshots for batch in snapshot.batches()]


def _only_instance() -> str:
    tokens = instances.live_tokens()
    if len(tokens) != 1:
        raise NoSuchInstance(
            "no instance lives" if not tokens else "more than one instance lives",
            instances=tokens,
            hint="start a daemon" if not tokens else _NAME_IT,
        )
    return tokens[0]
