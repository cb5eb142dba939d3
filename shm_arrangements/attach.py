"""Attach: reading an index from any process of the same user, without a word to the daemon.

    with attach("u1001") as index:
        view = index.snapshot()          # one exact time
        view.lookup(7).rows()
        view.scan().column("delay").sum()

    with snapshot([flights, planes]) as (f, p):    # two indexes, at the same time
        ...

The memory is mapped read-only and stays as long as anything looks at it. A snapshot is right for its time for
ever; only a new one can find the index dropped (`PublicationClosed`) or its writer gone (`WriterGone`).

Does not: speak to a socket, hold compaction back, or spin. What it holds is counted (readers.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from shm_arrangements import instance as instances
from shm_arrangements import readers
from shm_arrangements.batch import Batch
from shm_arrangements.discover import newest_first, not_published, page_names, resolve
from shm_arrangements.errors import (
    AmbiguousName,
    FormatMismatch,
    NoSuchInstance,
    NotReadable,
    NotSealed,
    PublicationClosed,
    WriterGone,
)
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.instance import LivenessProbe
from shm_arrangements.kernels.atomics import all_stand
from shm_arrangements.names import HALVES, PageName, collection_text
from shm_arrangements.page_layout import PageState, PageStatus
from shm_arrangements.result import Changes, Result
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.snapshot import PublishedTrace, Snapshot, require_readable, snapshot_together
from shm_arrangements.view import ReadView
from shm_arrangements.wait import Waited, wait_sealed

_NAME_IT = (
    "name one: attach(..., TOKEN), Client.connect(..., instance=TOKEN); a daemon says it in its READY line, "
    "`shm-arrangements ls` lists all"
)
_LIST_THEM = "`shm-arrangements ls` lists those there are"


def attach(id: int | str, instance: str | None = None) -> Attached:
    """Attach to an index: the newest incarnation of `id` that is not closed.

    id: "u1001" (bare digits mean the same), or its u64; any other text is the name that its writer gave it.
    instance: a token, all 12 digits of it; None for the only one alive.
    Raises: NoSuchInstance; WriterGone; PublicationClosed if that is not published; AmbiguousName if several
    are by that name; FormatMismatch; RegistryFull; ValueError if `id` is no u64; TypeError.
    """
    token = _only_instance(id) if instance is None else instance
    try:
        probe = LivenessProbe(token)
    except FileNotFoundError as error:
        raise NoSuchInstance("no such instance", instance=token, hint=_LIST_THEM) from error
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


class _Newest(NamedTuple):
    """The view of the newest time, and the words that would tell of a newer one: the same as long as all are.

    owners: of the memory that the words are in, so that a thread may close the index while another looks.
    """

    view: ReadView
    stands: Callable[[Any, Any], bool]
    places: Any
    words: Any
    owners: tuple[Any, ...]


class Attached:
    """An index of another process. Close it, or let it go; views and arrays taken from it stay."""

    __slots__ = (
        "__weakref__", "_errs", "_newest", "_oks", "_place", "_probe", "_reader", "id", "incarnation",
        "instance",
    )  # fmt: skip

    def __init__(self, name: PageName, probe: LivenessProbe) -> None:
        """name: of the oks page of shard 0. Raises: PublicationClosed if a page is closed or missing."""
        self.id = collection_text(name.id)
        self.incarnation = name.incarnation
        self.instance = name.token
        self._place = name.id, name.incarnation
        self._probe: LivenessProbe | None = probe  # which closes itself when no thread uses it
        first = PublishedTrace(name)
        names = [name._replace(shard=shard) for shard in range(first.page.header.shards)]
        self._oks = [first, *(PublishedTrace(one) for one in names[1:])]
        self._errs = [PublishedTrace(one._replace(half=HALVES[1])) for one in names]
        self._states()
        self._reader = readers.enter(self.instance, self)
        self._newest: _Newest | None = None

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
        """A view of the index at time `at`; None is the newest that is sealed. Does not wait: `wait` does.

        Raises: NotReadable (`at` before since), NotSealed (at or beyond upper), PublicationClosed (dropped),
        WriterGone; RegistryFull if this process has no descriptor or mapping left; TypeError.
        """
        if at is None:
            newest, probe = self._newest, self._probe  # of our own: another thread may close
            stands = newest is not None and newest.stands(newest.places, newest.words)
            if newest is not None and stands and probe is not None and probe.is_held():
                return newest.view
        else:
            _require_time(at)
        (parts,) = _parts_of([self])
        if at is not None:
            return self._view(parts, operator.index(at))
        view = self._view(parts, _newest(_since(parts), _upper(parts)))
        self._newest = _newest_of(view, [*self._oks, *self._errs], parts)
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

    def range(self, lower: Any = None, upper: Any = None, at: int | None = None, **options: bool) -> Result:
        """`snapshot(at).range(lower, upper, **options)`."""
        return self.snapshot(at).range(lower, upper, **options)

    def prefix(self, key: Any, at: int | None = None) -> Result:
        """`snapshot(at).prefix(key)`."""
        return self.snapshot(at).prefix(key)

    def changes(self, t1: int, t2: int | None = None) -> Changes:
        """What happened after `t1` and up to `t2` (None: the newest sealed time), rows and errors.

        Raises: as `snapshot`, of both times; ValueError if `t2` is before `t1`.
        """
        for time in (t1, t2):
            _require_time(time)
        return self.snapshot(t2).changes(operator.index(t1))

    def wait(self, time: SupportsIndex, timeout_s: float | None = None) -> Frontier:
        """Sleep until the index is sealed beyond `time`; return its upper. Releases the GIL.

        Raises: WaitTimeout, a TimeoutError; PublicationClosed if it is dropped; WriterGone; ValueError.
        """
        _require_time(time)
        return wait_all([self], time, timeout_s)[0]

    def close(self) -> None:
        """Let go. Views and arrays stay; a new snapshot is PublicationClosed. Idempotent."""
        for trace in (*self._oks, *self._errs):
            trace.close()
        self._probe = self._newest = None
        self._reader.leave(self)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        called = self._oks[0].page.header.name
        named = f" {called!r}" if called else ""
        return f"Attached({self.id}{named}, incarnation={self.incarnation}, instance={self.instance})"

    def _waited(self) -> Waited:
        probe = self._probe
        if probe is None:
            raise PublicationClosed("this process has closed it: attach anew", id=self.id)
        return Waited(self.id, [trace.page for trace in (*self._oks, *self._errs)], probe)

    def _view(self, parts: list[Snapshot], time: int) -> ReadView:
        since, upper = _since(parts), _upper(parts)
        require_readable(since, upper, time)
        shards = len(self._oks)
        oks, errs = _chains(parts[:shards]), _chains(parts[shards:])
        view = ReadView(self.id, self.schema, oks, errs, time, since=since, upper=upper)
        nbytes = sum(batch.nbytes for batch in oks) + sum(batch.nbytes for batch in errs)
        self._reader.took(view, time, self._place, nbytes)
        return view

    def _states(self) -> list[PageState]:
        states = [trace.read() for trace in (*self._oks, *self._errs)]
        if any(state.status is PageStatus.CLOSED for state in states):
            raise PublicationClosed("arrangement was dropped", id=self.id, incarnation=self.incarnation)
        return states


class Snapshots(tuple[ReadView, ...]):
    """Views of several indexes at one time, `at`, in the order asked for; a `with` statement takes it."""

    __slots__ = ()

    @property
    def at(self) -> int:
        """The time that all are of."""
        return self[0].at

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to do: views let go of memory when nobody holds them."""


def snapshot(indexes: Sequence[Attached], at: int | None = None) -> Snapshots:
    """Views of several indexes at the same time; None is the newest at which all of them can be read.

    The time exists if no index has compacted beyond what another has sealed. The indexes may be of different
    instances, and one may come twice.
    Raises: NotReadable naming an index that has compacted beyond the time, NotSealed one that is behind it;
    otherwise as `Attached.snapshot`; ValueError without an index.
    """
    _require_time(at)
    if not indexes:
        raise ValueError("no index to take a snapshot of")
    parts = _parts_of(indexes)
    if at is None:
        uppers = [_upper(mine) for mine in parts]
        slowest = min(range(len(parts)), key=lambda i: (uppers[i].is_empty, _time_of(uppers[i])))
        time = _newest(_since(parts[slowest]), uppers[slowest])
    else:
        time = operator.index(at)
    views = []
    for index, mine in zip(indexes, parts, strict=True):
        try:
            views.append(index._view(mine, time))
        except NotReadable as error:
            raise NotReadable(
                "an index has compacted beyond the time", id=index.id, **error.facts,
                hint="hold its compaction back, or ask again when the others have caught up",
            ) from error  # fmt: skip
        except NotSealed as error:
            raise NotSealed(
                "an index is not sealed at the time", id=index.id, **error.facts, hint="wait for it: wait_all"
            ) from error
    return Snapshots(views)


def wait_all(
    indexes: Sequence[Attached], time: SupportsIndex, timeout_s: float | None = None
) -> list[Frontier]:
    """`Attached.wait` for all of several indexes; their uppers, in the order asked for.

    The indexes may be of different instances, and one may come twice.
    """
    return wait_sealed([index._waited() for index in indexes], time, timeout_s)


def _parts_of(indexes: Sequence[Attached]) -> list[list[Snapshot]]:
    """What the pages of each index show, all of one moment: oks, then errs, of each shard."""
    probes = [index._probe for index in indexes]  # before pages: of a closed index it is these that tell
    traces = [[*index._oks, *index._errs] for index in indexes]
    taken = iter(snapshot_together([trace for mine in traces for trace in mine]))
    parts = [[next(taken) for _ in mine] for mine in traces]
    for index, probe in zip(indexes, probes, strict=True):
        if probe is not None and not probe.is_alive():
            raise WriterGone("the instance has ended", instance=index.instance)
    return parts


def _require_time(at: SupportsIndex | None) -> None:
    if at is not None and (isinstance(at, bool) or not isinstance(at, SupportsIndex)):
        raise TypeError(f"at must be an int time, not {at!r}; a key of several columns is one tuple")
    if at is not None and not 0 <= operator.index(at) <= MAX_TIME:
        raise ValueError(
            f"not a u64 time: {at}; times count up from 0, and None is the newest that is sealed"
        )


def _newest_of(view: ReadView, traces: Sequence[PublishedTrace], parts: Sequence[Snapshot]) -> _Newest | None:
    """None if a page has been seen to move since `parts` were taken, by another thread."""
    found = [trace.page.places() for trace in traces]
    told = [each for each in found if each is not None]
    for each, part in zip(found, parts, strict=True):
        if each is None or (each.state.generation, each.state.upper) != (part.generation, part.upper):
            return None
    places = np.array([each.addresses for each in told], np.int64).reshape(-1)
    words = np.array([each.words for each in told], np.uint64).reshape(-1)
    return _Newest(view, all_stand.direct(), places, words, tuple(each.owners for each in told))


def _time_of(frontier: Frontier) -> int:
    return 0 if frontier.is_empty else frontier.time


def _since(parts: Sequence[PageState | Snapshot]) -> Frontier:
    return Frontier.join(*[part.since for part in parts])


def _upper(parts: Sequence[PageState | Snapshot]) -> Frontier:
    return Frontier.meet(*[part.upper for part in parts])


def _newest(since: Frontier, upper: Frontier) -> int:
    """The newest readable time. Raises: NotSealed if there is none yet."""
    if upper.is_empty:
        return MAX_TIME
    if since.is_empty or upper.time == 0 or upper.time <= since.time:
        hint = "a time is readable from since on and before upper; wait for the first: index.wait(time)"
        raise NotSealed("no time is sealed yet", since=since, upper=upper, hint=hint)
    return upper.time - 1


def _chains(snapshots: Sequence[Snapshot]) -> list[Batch]:
    return [batch for snapshot in snapshots for batch in snapshot.batches()]


def _only_instance(id: int | str) -> str:
    """The instance that lives. Raises: NoSuchInstance; of several it says which of them publish `id`."""
    tokens = instances.live_tokens()
    if not tokens:
        raise NoSuchInstance("no instance lives", hint="start a daemon, or a program that writes")
    if len(tokens) > 1:
        publishing = tuple(token for token in tokens if _publishes(token, id))
        raise NoSuchInstance(
            "more than one instance lives", id=id, instances=tokens, publishing=publishing,
            hint=f"take attach({id!r}, {publishing[0]!r})" if len(publishing) == 1 else _NAME_IT,
        )  # fmt: skip
    return tokens[0]


def _publishes(token: str, id: int | str) -> bool:
    try:
        return bool(page_names(token, resolve(token, id)))
    except AmbiguousName:
        return True
    except (PublicationClosed, FormatMismatch):
        return False
