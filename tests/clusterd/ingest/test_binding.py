from __future__ import annotations

from pathlib import Path

import pytest

from clusterd.ingest.binding import Binding, Found, Resume, Snapshot, check_relation, plan_start
from clusterd.ingest.errors import IngestError
from clusterd.ingest.pgoutput import Relation, RelationColumn
from clusterd.ingest.shards import find_shard
from clusterd.ingest.source import PublishedTable, Server, SlotState, SourceColumn
from clusterd.storage.store import Store
from controller_proto.schema import Column, ColumnType, Schema
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType as Type
from shm_arrangements.updates import Updates

SERVER = Server("77", "shop", 900)
ID, NOTE = SourceColumn("id", 1, 23, -1), SourceColumn("note", 2, 25, -1)


def table(name: str = "a", oid: int = 1, columns: tuple[SourceColumn, ...] = (ID, NOTE)) -> PublishedTable:
    return PublishedTable(oid, "public", name, columns, (False,) * len(columns), None, True, True)


def binding(
    oid: int = 1,
    *,
    slot: str = "s",
    system: str = "77",
    snapshot: int = 100,
    columns: tuple[SourceColumn, ...] = (ID, NOTE),
) -> Binding:
    return Binding(system, "shop", slot, "public.a", oid, columns, snapshot)


def slot(confirmed: int = 100, *, status: str = "reserved", plugin: str = "pgoutput") -> SlotState:
    return SlotState(plugin, "shop", None, confirmed, status, 900, 0)


def plan(found: list[Found], state: SlotState | None, *, resnapshot: bool = False) -> Resume | Snapshot:
    return plan_start(found, SERVER, "s", state, resnapshot=resnapshot)


NOTHING = Found(table(), "a", 0, None)
OTHER = Found(table("b", 2), "b", 0, None)
COPIED = Found(table(), "a", 101, binding())
AHEAD = Found(table("b", 2), "b", 301, binding(2))
BEHIND = Found(table(), "a", 201, binding())


def test_shards_without_anything_begin_with_a_snapshot() -> None:
    assert plan([NOTHING, OTHER], None) == Snapshot(False, "the first one")


def test_bug67_a_first_snapshot_that_was_not_ended_is_taken_again() -> None:
    both = Found(table("b", 2), "b", 101, binding(2))
    for found in ([COPIED, OTHER], [COPIED, both]):  # killed between two shards; before the slot was there
        assert plan(found, None) == Snapshot(False, "the first one was not ended")


def test_the_stream_goes_on_behind_the_least_of_the_shards() -> None:
    assert plan([BEHIND, AHEAD], slot(200)) == Resume(200)
    assert plan([BEHIND, AHEAD], slot(150)) == Resume(200)
    assert plan([COPIED], slot(100)) == Resume(100)


@pytest.mark.parametrize("state", [None, slot(201), slot(100, status="lost")])
def test_a_slot_that_lacks_changes_ends_the_feed_unless_a_new_snapshot_is_allowed(
    state: SlotState | None,
) -> None:
    with pytest.raises(IngestError, match="--resnapshot") as caught:
        plan([BEHIND, AHEAD], state)
    assert caught.value.code == "slot-gone"
    allowed = plan([BEHIND, AHEAD], state, resnapshot=True)
    assert isinstance(allowed, Snapshot)
    assert allowed.drop_slot == (state is not None)


def test_bug74_a_table_that_was_altered_or_made_anew_is_not_gone_on_with() -> None:
    again = SourceColumn("note", 3, 25, -1)  # dropped and added: another number
    for now in (
        table(oid=9),
        table(columns=(ID, again)),
        table(columns=(ID,)),
        table(columns=(ID, SourceColumn("text", 2, 25, -1))),
        table(columns=(ID, SourceColumn("note", 2, 20, -1))),
    ):
        found = [Found(now, "a", 201, binding())]
        with pytest.raises(IngestError) as caught:
            plan(found, slot())
        assert caught.value.code == "schema-changed"
        assert isinstance(plan(found, slot(), resnapshot=True), Snapshot)


def test_a_table_that_came_into_the_publication_needs_a_new_snapshot() -> None:
    with pytest.raises(IngestError, match=r"public\.b came into") as caught:
        plan([BEHIND, OTHER], slot())
    assert caught.value.code == "schema-changed"
    assert isinstance(plan([BEHIND, OTHER], slot(), resnapshot=True), Snapshot)


def test_a_column_added_behind_the_others_changes_nothing() -> None:
    wider = table(columns=(ID, NOTE, SourceColumn("new", 3, 25, -1)))
    assert plan([Found(wider, "a", 201, binding())], slot()) == Resume(200)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Found(table(), "a", 5, None), "shard-taken"),
        (Found(table(), "a", None, binding()), "shard-taken"),
        (Found(table(), "a", 201, binding(slot="other")), "shard-taken"),
        (Found(table(), "a", 201, binding(system="78")), "other-source"),
        (Found(table(), "a", 902, binding()), "other-source"),  # the server was set back
    ],
)
def test_shards_of_others_are_left_alone_whatever_is_allowed(found: Found, code: str) -> None:
    for resnapshot in (False, True):
        with pytest.raises(IngestError) as caught:
            plan([found, OTHER], slot(), resnapshot=resnapshot)
        assert caught.value.code == code


def test_a_slot_that_is_of_no_shard_here_is_never_dropped() -> None:
    for found, state in (([NOTHING], slot()), ([BEHIND], slot(plugin="wal2json"))):
        with pytest.raises(IngestError) as caught:
            plan(found, state, resnapshot=True)
        assert caught.value.code == "slot-exists"


def test_bug74_rows_of_an_altered_table_are_refused_when_they_come() -> None:
    told = (RelationColumn("id", 23, -1), RelationColumn("note", 25, -1))
    relation = Relation(1, "public", "a", "f", told)
    check_relation(relation, binding(), table())
    wider = Relation(1, "public", "a", "f", (*told, RelationColumn("new", 25, -1)))
    check_relation(wider, binding(), table(columns=(ID, NOTE, SourceColumn("new", 3, 25, -1))))
    renamed = Relation(1, "public", "a", "f", (told[0], RelationColumn("text", 25, -1)))
    for message, now in (
        (renamed, table()),
        (relation, None),
        (relation, table(columns=(ID, SourceColumn("note", 3, 25, -1)))),  # only the catalog can tell
    ):
        with pytest.raises(IngestError) as caught:
            check_relation(message, binding(), now)
        assert caught.value.code == "schema-changed"


def test_a_binding_that_somebody_wrote_over_is_told(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        shard = store.create_shard("a", Schema((Column("id", ColumnType.INT32, False),)))
        empty = Updates.empty((Type.INT32,))
        shard.append(empty, Frontier.at(0), Frontier.at(1), positions={"postgres": '{"x": 1}'})
        with pytest.raises(IngestError, match="bad-setup: what shard 'a' says it is fed from cannot be read"):
            find_shard(store, table(), "a")
