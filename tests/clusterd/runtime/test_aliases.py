"""Re-exports (L6, L7, L9, L10) on real memory: one arrangement under several ids, each with its own life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller_proto.codec import encode_body
from controller_proto.command import AllowCompaction, CreateDataflow, InitializationComplete, Schedule
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport
from controller_proto.expr import ColumnRef
from controller_proto.plan import Get, Join, Mfp, Negate, Union
from controller_proto.response import Frontiers
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.attach import attach
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.shell import Shell

ROWS = [(1, "alpha"), (2, "beta"), (3, "gamma")]


@pytest.fixture(params=[0, 1], ids=["solo", "two-runtime"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path, request.param) as running:
        running.boot()
        running.write(ROWS, 0)
        yield running


def alias(shell: Shell, id: str, original: str, *, as_of: int = 0, query: bool = False) -> None:
    export = Export(id, "index", "u1000", SAMPLE_SCHEMA, (0,))
    header = DataflowHeader(id, as_of, as_of + 1 if query else None, (), (IndexImport(original),), (export,))
    shell.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, id))


def read(shell: Shell, id: str, time: int | None, keys: Any = None) -> list[tuple[Any, ...]]:
    uuid = f"read{shell.seq}"
    shell.peek(uuid, id, time, keys)
    shell.settle()
    return sorted(shell.rows(uuid))


def pages(shell: Shell) -> set[str]:
    """Ids that have a page, each half once."""
    return {name for name in shell.names() if ".p." in name}


def memory(shell: Shell) -> int:
    """Files of the instance that are not pages or clocks: arenas and batches of their own."""
    return len([name for name in shell.names() if name.split(".")[2] in ("a", "b")])


def write_frontiers(shell: Shell, id: str) -> list[tuple[int, ...]]:
    return [
        r.write for r in shell.responses if isinstance(r, Frontiers) and r.id == id and r.write is not None
    ]


def test_l6_a_re_export_is_read_and_imported_as_its_original_with_its_own_frontiers(
    shell: Shell,
) -> None:
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    alias(shell, "u2003", "u2002")
    shell.settle()
    before = memory(shell)
    for id in ("u2001", "u2002", "u2003"):
        assert read(shell, id, 0) == ROWS
        assert read(shell, id, 0, [[2]]) == [(2, "beta")]
        assert write_frontiers(shell, id) == [(1,)]
        shell.over(f"t{id[1:]}", id)
        assert read(shell, f"t{id[1:]}", 0) == [(3,)]
    owned = shell.loops[0].owned.statistics()
    assert owned.publications == (1 if len(shell.loops) > 1 else 4)  # in Solo the counts too
    assert memory(shell) - before <= 1  # the counts, in an arena
    seen = shell.reader.published
    if seen is not None:
        found = seen.statistics()
        assert (found.published, found.publications) == (3, 1)


def test_l9_every_alias_is_woken_by_the_seal_of_its_original(shell: Shell) -> None:
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    alias(shell, "u2003", "u2002")
    for number in (1, 2, 3):
        shell.peek(f"p{number}", f"u200{number}", 5)
    shell.settle()
    assert [shell.answer(f"p{number}") for number in (1, 2, 3)] == [None] * 3
    shell.write([(4, "delta")], 5)
    shell.settle()
    for number in (1, 2, 3):
        assert sorted(shell.rows(f"p{number}")) == [*ROWS, (4, "delta")]


def test_an_alias_bound_before_its_original_begins_waits_for_it(
    shell: Shell,
) -> None:
    shell.index("u2001", schedule=False)
    alias(shell, "u2002", "u2001")
    shell.peek("a", "u2002", 0)
    shell.settle()
    assert shell.answer("a") is None
    shell.send(Schedule(0, "u2001"))
    shell.settle()
    assert sorted(shell.rows("a")) == ROWS


@pytest.mark.parametrize("first", ["u2001", "u2002"])
def test_l10_the_memory_returns_with_the_last_of_both(shell: Shell, first: str) -> None:
    last = "u2002" if first == "u2001" else "u2001"
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    shell.settle()
    shell.peek("a", last, 1)
    shell.settle()
    shell.drop(first)
    shell.settle()
    assert shell.answer("a") is None
    shell.write([(4, "delta")], 1)
    shell.settle()
    assert sorted(shell.rows("a")) == [*ROWS, (4, "delta")]
    shell.peek("b", first, 1)
    shell.settle()
    assert shell.error("b").code == "dropped"
    with attach(last, shell.instance.token) as attached:
        assert len(attached.snapshot(at=1).scan()) == 4
    assert memory(shell)
    shell.drop(last)
    shell.settle()
    assert not pages(shell)
    assert not memory(shell)
    assert write_frontiers(shell, "u2001")[-1] == write_frontiers(shell, "u2002")[-1] == ()


def test_what_an_alias_may_still_be_read_at_its_original_keeps_apart(shell: Shell) -> None:
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    for time in range(1, 10):
        shell.write([(10 + time, "x")], time)
    shell.settle()
    index = shell.loops[0].owned["u2001", 1]
    shell.send(AllowCompaction(0, "u2001", (8,)), AllowCompaction(0, "u2002", (3,)))
    shell.settle()
    assert index.since == Frontier.at(3)
    assert len(read(shell, "u2002", 4)) == 7
    shell.peek("below", "u2001", 4)
    shell.peek("parked", "u2002", 11)
    shell.settle()
    assert shell.error("below").code == "below-since"
    shell.send(AllowCompaction(0, "u2002", (20,)))
    shell.settle()
    assert index.since == Frontier.at(8)  # the peek that is parked at 11 is later than that
    shell.send(AllowCompaction(0, "u2001", (20,)))
    shell.settle()
    assert index.since == Frontier.at(11)
    shell.write([(99, "y")], 11)
    shell.settle()
    assert len(shell.rows("parked")) == 13
    assert index.since == Frontier.at(20)


def test_l7_a_query_that_re_exports_is_read_from_its_snapshot_and_copies_nothing(shell: Shell) -> None:
    shell.index("u2001")
    shell.write([(4, "delta")], 1)
    shell.write([(5, "eps")], 2)
    shell.settle()
    before, first = memory(shell), pages(shell)
    alias(shell, "t1", "u2001", as_of=1, query=True)
    for time in (1, 2, 7, None):
        assert read(shell, "t1", time) == [*ROWS, (4, "delta")]
    assert read(shell, "t1", 9, [[4]]) == [(4, "delta")]
    assert read(shell, "t1", 9, [[5]]) == []
    assert (memory(shell), pages(shell)) == (before, first)
    assert write_frontiers(shell, "t1")[-1] == ()
    shell.send(AllowCompaction(0, "u2001", (3,)))
    shell.write([(6, "zeta")], 3)
    shell.settle()
    assert read(shell, "t1", 1) == [*ROWS, (4, "delta")]  # what was rounded since is another's
    alias(shell, "t2", "t1", as_of=1, query=True)
    shell.over("t3", "t1", as_of=6)
    assert read(shell, "t2", 1) == [*ROWS, (4, "delta")]
    assert read(shell, "t3", 6) == [(4,)]
    for id in ("t1", "t2", "t3"):
        shell.drop(id)
    shell.settle()
    assert len(read(shell, "u2001", 3)) == 6
    assert pages(shell) == first


def test_a_query_that_re_exports_waits_for_the_seal_of_its_original(shell: Shell) -> None:
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    alias(shell, "t1", "u2002", as_of=4, query=True)
    shell.peek("a", "t1", 4)
    shell.settle()
    assert shell.answer("a") is None
    shell.write([(4, "delta")], 4)
    shell.settle()
    assert sorted(shell.rows("a")) == [*ROWS, (4, "delta")]


def test_an_alias_goes_on_in_a_new_session_and_tells_its_frontiers_anew(shell: Shell) -> None:
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    shell.settle()
    shell.responses.clear()
    shell.connect(complete=False)
    shell.index("u2001")
    alias(shell, "u2002", "u2001")
    shell.send(InitializationComplete(0))
    shell.settle()
    assert shell.mux.statistics().reconciled == {"reused": 2}
    assert write_frontiers(shell, "u2002") == [(1,)]
    assert read(shell, "u2002", 0) == ROWS
    assert shell.loops[0].owned.statistics().publications == 1
    shell.connect(complete=False)
    shell.index("u2001")
    shell.send(InitializationComplete(0))
    shell.settle()
    assert shell.loops[0].owned.count == 1
    assert read(shell, "u2001", 0) == ROWS


def test_a_re_export_by_another_key_or_with_an_end_is_an_index_of_its_own(shell: Shell) -> None:
    shell.index("u2001")
    shell.over("u2002", "u2001", Get("u1000"), SAMPLE_SCHEMA, query=False, key=(1,))
    shell.over("u2003", "u2001", Get("u2001"), SAMPLE_SCHEMA, query=True, key=(0,))  # until 1, maintained
    shell.write([(4, "delta")], 1)
    shell.settle()
    assert shell.loops[0].owned.statistics().publications == 3
    assert read(shell, "u2002", 0, [["beta"]]) == [(2, "beta")]
    assert read(shell, "u2003", 1) == ROWS


def test_indexes_of_one_collection_that_end_at_different_times_are_not_joined_as_one(shell: Shell) -> None:
    shell.index("u1")
    for id, until, key in (("u2", 2, ()), ("u3", 3, (0,))):
        export = Export(id, "index", "u1", SAMPLE_SCHEMA, key)
        header = DataflowHeader(id, 0, until, (), (IndexImport("u1"),), (export,))
        shell.send(CreateDataflow(0, header, encode_body(DataflowBody(()))), Schedule(0, id))
    shell.write([(4, "delta")], 1)
    shell.write([(5, "echo")], 2)
    inputs, equal = (Get("u3"), Get("u2")), ((ColumnRef(0), ColumnRef(2)),)
    plan = Union((Get("u3"), Negate(Mfp(Join(inputs, equal), projection=(0, 1)))))
    export = Export("t4", "index", "u4", SAMPLE_SCHEMA, ())
    header = DataflowHeader("t4", 2, 3, (), (IndexImport("u2"), IndexImport("u3")), (export,))
    shell.send(CreateDataflow(0, header, encode_body(DataflowBody((Build("u4", plan),)))), Schedule(0, "t4"))
    shell.peek("new", "t4", 2)
    shell.settle()
    assert shell.rows("new") == [(5, "echo")]
