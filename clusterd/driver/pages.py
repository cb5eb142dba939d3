"""What an instance shows in shared memory, from outside: which pages a collection has, and what they say.

Does not: read any row (shm_arrangements.attach does).
"""

from __future__ import annotations

import os

import msgspec

from clusterd.convert import wire_schema
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.ids import GlobalId
from shm_arrangements.attach import attach
from shm_arrangements.errors import ArrangementError
from shm_arrangements.names import SHM_DIRECTORY, PageName, collection_id, page_prefix, parse_page
from shm_arrangements.publication import PageReader

__all__ = ["Published", "export_of", "page_names", "published"]


class Published(msgspec.Struct, frozen=True):
    """since: the latest of oks and errs; upper: the earliest; batches: in the chain of oks."""

    since: WireFrontier
    upper: WireFrontier
    batches: int


def page_names(token: str, id: GlobalId) -> list[PageName]:
    """Names of all pages of `id`, of any incarnation, closed ones that are not unlinked yet too."""
    prefix = page_prefix(token, collection_id(id))
    found = (parse_page(name) for name in os.listdir(SHM_DIRECTORY) if name.startswith(prefix))
    return sorted(name for name in found if name is not None)


def published(token: str, id: GlobalId) -> Published | None:
    """What the pages of the newest incarnation of `id` say; None if there are none, or they are closed."""
    try:
        with attach(id, token) as index:
            chain = PageReader(PageName(token, collection_id(id), index.incarnation, "oks")).read().chain
            return Published(index.since.to_wire(), index.upper.to_wire(), len(chain))
    except ArrangementError:
        return None


def export_of(token: str, id: GlobalId) -> Export | None:
    """What the pages of `id` tell of it: its columns and key; None as of `published`."""
    try:
        with attach(id, token) as index:
            return Export(id, "index", id, wire_schema(index.schema.columns), index.schema.key)
    except ArrangementError:
        return None
