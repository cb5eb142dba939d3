"""The indexes that a process writes: memory that none of them needs goes, whoever is idle."""

from __future__ import annotations

from clusterd.runtime.owned import OwnedIndexes
from controller_proto.dataflow import Export
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier
from shm_arrangements.instance import Instance, names_of
from shm_arrangements.reclaim import GRACE_S
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates

TYPES = (ColumnType.INT64, ColumnType.TEXT)
NO_ERRS = Updates.empty((ColumnType.TEXT,))


def _arenas(held: Instance) -> set[str]:
    return {name for name in names_of(held.token) if name.split(".")[2] == "a"}


def test_an_arena_does_not_stay_for_an_index_that_is_idle() -> None:
    with Instance.create() as held:
        owned = OwnedIndexes(held.token, 0)
        keys = [(id, 1) for id in ("u1", "u2")]
        idle, busy = (
            owned.create(key, Export(key[0], "index", "u9", SAMPLE_SCHEMA, (0,)), 0) for key in keys
        )
        idle.insert(Updates.from_rows(TYPES, [((1, "idle"), 0, 1)]), NO_ERRS, Frontier.at(1))
        (first,) = _arenas(held)
        now_s = 0.0
        for time in range(2000):
            rows = Updates.from_rows(TYPES, [((k, "x" * 40), time, 1 - 2 * (time % 2)) for k in range(100)])
            busy.set_compaction(Frontier.at(time))
            busy.insert(rows, NO_ERRS, Frontier.at(time + 1))
            owned.moved(keys[1])
            now_s += GRACE_S
            due_s = owned.reclaim(now_s)
            if first not in _arenas(held):
                break
        while due_s is not None:
            now_s = max(now_s, due_s)
            due_s = owned.reclaim(now_s)
        assert first not in _arenas(held)
        assert len(_arenas(held)) <= 2
        (batch,) = owned.readable(keys[0]).oks
        assert batch.row_columns()[1].to_pylist() == ["idle"]
        owned.close_all()
        assert not _arenas(held)
