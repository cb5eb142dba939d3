"""Discovery: what an instance publishes, found by listing its pages and reading what they say.

A page says by itself what it is, so there is no catalogue that could be wrong: what is listed was published
when its page was read, by a writer that may have gone since. Publications that come or go meanwhile are
listed or not.

Does not: map a batch, wait, or tell whether the instance lives (instance.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shm_arrangements.directory import list_names
from shm_arrangements.errors import AmbiguousName, FormatMismatch, PublicationClosed
from shm_arrangements.frontier import Frontier
from shm_arrangements.names import (
    HALVES,
    PageName,
    collection_id,
    collection_text,
    instance_prefix,
    parse_page,
)
from shm_arrangements.page_layout import PageState, PageStatus
from shm_arrangements.publication import PageReader
from shm_arrangements.schema import ArrangementSchema


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    """One incarnation of one id, all its shards together.

    name: what its writer calls it, or "". alias_of: the id under which it was made first, or "" if that is
    this one. status: CLOSED if any page is, FRESH if any is, else LIVE. since, upper: of
    oks, errs and shards: the latest and the earliest. updates, nbytes, batches: of all chains together, but
    for batches without updates; errors: updates among them that are of errs.
    """

    instance: str
    id: str
    incarnation: int
    name: str
    alias_of: str
    shards: int
    schema: ArrangementSchema
    status: PageStatus
    since: Frontier
    upper: Frontier
    updates: int
    errors: int
    nbytes: int
    batches: int

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(spec.name for spec in self.schema.key_specs)


def page_names(token: str, id: int | None = None) -> tuple[PageName, ...]:
    """Every page of an instance, or of one collection in it: by id, incarnation, newest first, and shard."""
    prefix = instance_prefix(token)
    parsed = [parse_page(name) for name in list_names(prefix)]
    found = [name for name in parsed if name is not None and id in (None, name.id)]
    return tuple(sorted(found, key=lambda name: (name.id, -name.incarnation, name.shard, name.half)))


def newest_first(names: Iterable[PageName]) -> tuple[PageName, ...]:
    """Of each publication among `names` the page that stands for it: oks of shard 0."""
    return tuple(name for name in names if name.half == HALVES[0] and name.shard == 0)


def list_publications(token: str) -> tuple[PublicationInfo, ...]:
    """What the instance publishes, by id, the newest incarnation first.

    What cannot be read (another version, damage, or gone meanwhile) is left out: `verify` says why.
    """
    names = page_names(token)
    found = []
    for name in newest_first(names):
        try:
            found.append(describe(name))
        except (PublicationClosed, FormatMismatch):
            continue
    return tuple(found)


def describe(name: PageName) -> PublicationInfo:
    """The publication that the page `name` (oks of shard 0) stands for.

    Raises: PublicationClosed if one of its pages is missing; FormatMismatch; RegistryFull.
    """
    first = PageReader(name)
    names = [name._replace(shard=shard) for shard in range(first.header.shards)]
    oks = [first.read(), *(PageReader(one).read() for one in names[1:])]
    errs = [PageReader(one._replace(half=HALVES[1])).read() for one in names]
    states = [*oks, *errs]
    header = first.header
    return PublicationInfo(
        instance=name.token,
        id=collection_text(name.id),
        incarnation=name.incarnation,
        name=header.name,
        alias_of="" if header.page.id == name.id else collection_text(header.page.id),
        shards=header.shards,
        schema=header.schema,
        status=_status(states),
        since=Frontier.join(*[state.since for state in states]),
        upper=Frontier.meet(*[state.upper for state in states]),
        updates=sum(entry.rows for state in states for entry in state.chain),
        errors=sum(entry.rows for state in errs for entry in state.chain),
        nbytes=sum(entry.nbytes for state in states for entry in state.chain),
        batches=sum(1 for state in states for entry in state.chain if entry.seq),
    )


def resolve(token: str, id: int | str) -> int:
    """The u64 of an id, or of what its writer calls so: text that is no id is a name.

    Raises: PublicationClosed and AmbiguousName as `id_of_name`; ValueError if it is no u64; TypeError.
    """
    if not isinstance(id, str):
        return collection_id(id)
    try:
        return collection_id(id)
    except ValueError:
        return collection_id(id_of_name(token, id))


def newest_page(token: str, id: int | str) -> PageName:
    """The page (oks of shard 0) of the newest incarnation of `id`, as `resolve` takes it, that is not closed.

    Raises: as `resolve`; PublicationClosed if there is none; FormatMismatch.
    """
    number = resolve(token, id)
    for name in newest_first(page_names(token, number)):
        with contextlib.suppress(PublicationClosed):
            if describe(name).status is not PageStatus.CLOSED:
                return name
    raise not_published(token, collection_text(number))


def not_published(token: str, id: str) -> PublicationClosed:
    """What to raise for an id or a name under which there is nothing."""
    hint = "`shm-arrangements ls` lists what is published"
    return PublicationClosed("not published", id=id, instance=token, hint=hint)


def id_of_name(token: str, name: str) -> str:
    """The id of the publication that its writer calls `name`; if it has aliases, the one it was made under.

    Raises: PublicationClosed if there is none; AmbiguousName (`ids`) if there are several.
    """
    found = [info for info in list_publications(token) if info.name == name]
    ids: dict[str, str] = {}  # the first id of each -> one that is still published
    for info in sorted(found, key=lambda info: info.alias_of):
        ids.setdefault(info.alias_of or info.id, info.id)
    if not ids:
        raise not_published(token, name)
    if len(ids) > 1:
        told = ", ".join(sorted(ids.values()))
        raise AmbiguousName("several publications have this name", name=name, ids=told, hint="use an id")
    (id,) = ids.values()
    return id


def _status(states: Sequence[PageState]) -> PageStatus:
    found = {state.status for state in states}
    if PageStatus.CLOSED in found:
        return PageStatus.CLOSED
    return PageStatus.FRESH if PageStatus.FRESH in found else PageStatus.LIVE
