"""What a program may get wrong is refused by a typed error that says the value, and what to do instead."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shm_arrangements import instance as instances
from shm_arrangements.arena import SegmentAllocator
from shm_arrangements.attach import attach
from shm_arrangements.discover import list_publications
from shm_arrangements.errors import AlreadyPublished, AmbiguousName, NoSuchInstance, RegistryFull
from shm_arrangements.frontier import Frontier
from shm_arrangements.index_writer import IndexWriter
from shm_arrangements.instance import Instance, list_instances, sweep
from shm_arrangements.names import collection_id
from shm_arrangements.readers import list_readers
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import ColumnSpec, ColumnType
from shm_arrangements.updates import Updates

I64 = ColumnType.INT64
SCHEMA = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("v", I64, False)), (0,))
TWINS = ArrangementSchema((ColumnSpec("k", I64, False), ColumnSpec("k", I64, False)), (0,))
NO_ERRORS = Updates.empty((ColumnType.TEXT,))
U1 = collection_id("u1")


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance


def _index(held: Instance, id: Any = U1, schema: ArrangementSchema = SCHEMA, **more: Any) -> IndexWriter:
    given: dict[str, Any] = {"incarnation": 1, "as_of": 0, **more}
    allocator = SegmentAllocator(held.token, 0)
    return IndexWriter(allocator, id, given.pop("incarnation"), schema, given.pop("as_of"), **given)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"id": "u1"}, TypeError, "id is a u64, not 'u1'; collection_id"),
        ({"id": -1}, ValueError, "id is not a u64: -1"),
        ({"id": 1 << 64}, ValueError, "id is not a u64: 18446744073709551616"),
        ({"incarnation": "1"}, TypeError, "incarnation is a u64, not '1'"),
        ({"incarnation": -1}, ValueError, "incarnation is not a u64: -1"),
        ({"as_of": Frontier.at(3)}, TypeError, "as_of is a u64, not"),
        ({"as_of": -1}, ValueError, "as_of is not a u64: -1"),
        ({"shard": 2, "shards": 2}, ValueError, "no shard 2 of 2"),
        ({"shard": -1, "shards": 2}, ValueError, "no shard -1 of 2"),
        ({"name": 5}, TypeError, "a name is text, not 5"),
        ({"name": "x" * 256}, ValueError, "at most 255 bytes"),
    ],
)
def test_an_index_that_cannot_be_is_refused_and_leaves_nothing(
    held: Instance, given: dict[str, Any], error: type[Exception], told: str
) -> None:
    _index(held, 7).close()  # the clock of the writer stays
    before = instances.names_of(held.token)
    with pytest.raises(error, match=told):
        _index(held, **given)
    assert instances.names_of(held.token) == before


def test_an_id_in_use_is_refused_with_what_to_do_and_its_index_lives_on(held: Instance) -> None:
    first, second = _index(held), _index(held, 2)
    names = instances.names_of(held.token)
    for again in (lambda: _index(held), lambda: second.publish_as(U1, 1)):
        with pytest.raises(
            AlreadyPublished, match=r"id=u1, incarnation=1.*take the next incarnation"
        ) as caught:
            again()
        assert isinstance(caught.value, FileExistsError)
    assert instances.names_of(held.token) == names
    with pytest.raises(TypeError, match="'u9'"):
        second.publish_as("u9", 1)  # type: ignore[arg-type]
    for index in (first, second, _index(held, incarnation=2)):
        index.advance(Frontier.at(1))
        index.close()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (lambda: ColumnSpec("n", ColumnType.NUMERIC, False, scale=39), "'n': scale 39 is not in 0 to 38"),
        (lambda: ColumnSpec("n", ColumnType.NUMERIC, False, scale=-1), "'n': scale -1 is not in 0 to 38"),
        (lambda: SegmentAllocator("0" * 12, 1 << 32), "not 4294967296"),
        (lambda: SegmentAllocator("0" * 12, -1), "not -1"),
        (lambda: SegmentAllocator("zero", 0), "'zero'"),
        (lambda: Frontier.at(-1), "-1"),
        (lambda: Frontier.at(1 << 64), "18446744073709551616"),
        (lambda: collection_id("x1"), "'x1'"),
    ],
)
def test_a_value_out_of_range_is_named(what: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        what()


@pytest.mark.parametrize("given", ["1", 1.5, Frontier.at(1)])
def test_what_is_no_time_is_no_frontier(given: Any) -> None:
    with pytest.raises(TypeError, match="a time is a u64, not"):
        Frontier.at(given)


def test_a_time_that_cannot_be_is_an_error_of_the_caller_and_not_of_the_index(held: Instance) -> None:
    index = _index(held)
    index.advance(Frontier.at(3))
    with attach(U1, held.token) as read:
        for time in (-1, 1 << 64):
            for ask in (
                read.snapshot,
                read.wait,
                lambda at: read.lookup(1, at=at),
                lambda at: read.changes(at, 1),
            ):
                with pytest.raises(ValueError, match=f"not a u64 time: {time}; times count up from 0"):
                    ask(time)
        for wrong in ("1", 1.0, True):
            for ask in (read.snapshot, read.wait):
                with pytest.raises(TypeError, match=f"not {wrong!r}"):
                    ask(wrong)  # type: ignore[arg-type]
    for wrong in (1.5, None, True):
        with pytest.raises(TypeError, match=f"an id is a u64, or text as 'u1001', not {wrong}"):
            attach(wrong, held.token)  # type: ignore[arg-type]
    index.close()


def test_of_two_columns_with_one_name_none_is_taken_for_the_other(held: Instance) -> None:
    index = _index(held, schema=TWINS)
    index.insert(Updates.from_rows(TWINS.columns, [((1, 2), 0, 1)]), NO_ERRORS, Frontier.at(1))
    with attach(U1, held.token) as read:
        found = read.scan()
        assert (found[0].tolist(), found[1].tolist()) == ([1], [2])
        for ask in (lambda: found["k"], lambda: found.columns, lambda: read.changes(0)["k"]):
            with pytest.raises(AmbiguousName, match=r"name=k, positions=\[0, 1\].*by position"):
                ask()
        with pytest.raises(KeyError, match="no column 2; there are: k, k"):
            found[2]
    index.close()


def test_of_several_instances_attach_says_which_publishes_what_was_asked_for() -> None:
    """Two instances of one process, each with a reaper of its own."""
    with Instance.open() as one, Instance.open() as other:
        assert one.token != other.token
        index = _index(other, name="flights of the other")
        for id in ("flights of the other", "u1"):
            with pytest.raises(NoSuchInstance, match="more than one instance lives") as caught:
                attach(id)
            assert {one.token, other.token} <= set(caught.value.facts["instances"])  # type: ignore[call-overload]
            publishing = caught.value.facts["publishing"]
            assert isinstance(publishing, tuple)
            assert other.token in publishing
            assert one.token not in publishing
        assert caught.value.hint.startswith(("take attach('u1', ", "name one"))
        with attach("u1", other.token) as read:
            one.release()
            assert not instances.is_alive(one.token)
            assert instances.names_of(one.token) == ()
            index.advance(Frontier.at(1))
            assert read.wait(0, timeout_s=30) == Frontier.at(1)
        index.close()
        assert instances.is_alive(other.token)
    assert instances.names_of(other.token) == ()


@contextmanager
def _no_descriptor_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, limits[1]))
    try:
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_a_descriptor_left_every_door_says_so_and_opens_again(held: Instance) -> None:
    index = _index(held)
    rows = Updates.from_rows(SCHEMA.columns, [((k, k), 0, 1) for k in range(9000)])
    index.insert(rows, NO_ERRORS, Frontier.at(1))
    more = Updates.from_rows(SCHEMA.columns, [((k, k), 1, 1) for k in range(9000)])
    doors: list[Callable[[], object]] = [
        lambda: attach("u1", held.token), lambda: attach("u1"), list_instances,
        lambda: list_publications(held.token), lambda: list_readers(held.token), sweep, Instance.open,
        Instance.create, lambda: _index(held, 2), lambda: index.insert(more, NO_ERRORS, Frontier.at(2)),
    ]  # fmt: skip
    with _no_descriptor_left():
        for door in doors:
            with pytest.raises(RegistryFull, match="ulimit -n"):
                door()
    index.insert(more, NO_ERRORS, Frontier.at(2))
    with attach("u1", held.token) as read:
        assert read.lookup(7).counts.tolist() == [2]
    index.close()
