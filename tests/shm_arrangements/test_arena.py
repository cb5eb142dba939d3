"""Arenas: small batches share memory that is appended to, never rewritten, and left when worth little."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shm_arrangements import failpoints, segment
from shm_arrangements.arena import (
    HEADER_BYTES,
    LEAST_ARENA_BYTES,
    MOST_ARENA_BYTES,
    SegmentAllocator,
    arena_bytes,
    map_segment,
    small_bytes,
)
from shm_arrangements.errors import FormatMismatch, InvariantViolation, ShmExhausted
from shm_arrangements.instance import Instance, names_of, sweep
from shm_arrangements.names import Locator

SHM = Path("/dev/shm")
SMALL_BYTES = small_bytes(0)  # of a writer of little, as most are here
FULL = LEAST_ARENA_BYTES // SMALL_BYTES - 1  # so many of these fill an arena but for its header


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance
    failpoints.disarm_all()


def _write(allocator: SegmentAllocator, nbytes: int, value: int) -> Locator:
    allocation = allocator.allocate(nbytes)
    allocation.buffer[:nbytes] = value
    assert allocation.seal()[:nbytes].tobytes() == bytes([value]) * nbytes
    assert isinstance(allocation.locator, Locator)
    return allocation.locator


def _read(locator: Locator, nbytes: int) -> bytes:
    return bytes(map_segment(locator)[locator.offset : locator.offset + nbytes])


def _arena_names(held: Instance) -> list[str]:
    found = [name for name in names_of(held.token) if name.split(".")[2] == "a"]
    return sorted(found, key=lambda name: int(name.rsplit(".", 1)[1]))


def test_small_batches_share_an_arena_and_large_ones_have_a_segment_of_their_own(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 3)
    first, second = _write(allocator, 100, 1), _write(allocator, SMALL_BYTES, 2)
    large = _write(allocator, SMALL_BYTES + 1, 3)
    assert first.name == second.name == f"clusterd.{held.token}.a.3.{first.seq}"
    assert (first.offset, second.offset) == (HEADER_BYTES, HEADER_BYTES + 128)
    assert large.name == f"clusterd.{held.token}.b.3.{large.seq}"
    assert (first.in_arena, large.in_arena, large.offset) == (True, False, 0)
    assert _read(first, 101) == bytes([1]) * 100 + b"\0"
    assert _read(second, SMALL_BYTES) == bytes([2]) * SMALL_BYTES
    assert _read(large, SMALL_BYTES + 1) == bytes([3]) * (SMALL_BYTES + 1)


@pytest.mark.parametrize("nbytes", [0, 1, 24, 63, 64, 65, 4095, 4096, 4097, SMALL_BYTES - 1, SMALL_BYTES])
def test_bug08_any_length_begins_aligned_and_ends_where_it_was_asked_to(held: Instance, nbytes: int) -> None:
    allocator = SegmentAllocator(held.token, 0)
    for value in (1, 2, 3):
        allocation = allocator.allocate(nbytes)
        assert len(allocation.buffer) == allocation.reserved == nbytes
        assert allocation.buffer.ctypes.data % 64 == 0
        allocation.buffer[:] = value
        assert len(allocation.seal()) == nbytes
        assert _read(allocation.locator, nbytes) == bytes([value]) * nbytes


def test_the_space_of_an_arena_is_reserved_at_creation(held: Instance) -> None:
    name = _write(SegmentAllocator(held.token, 0), 10, 1).name
    assert os.stat(SHM / name).st_size == LEAST_ARENA_BYTES
    assert os.stat(SHM / name).st_blocks * 512 >= LEAST_ARENA_BYTES


def test_what_is_sealed_and_what_is_mapped_cannot_be_written(held: Instance) -> None:
    allocation = SegmentAllocator(held.token, 0).allocate(64)
    sealed = allocation.seal()
    assert not sealed.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        sealed.flags.writeable = True
    assert map_segment(allocation.locator).readonly
    with pytest.raises(InvariantViolation):
        allocation.seal()


def test_a_reader_maps_an_arena_once_and_sees_what_is_appended_later(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 0)
    first = _write(allocator, 500, 1)
    fds, maps = len(os.listdir("/proc/self/fd")), _mappings(first.name)
    mapped = map_segment(first)
    views = [np.frombuffer(mapped, np.uint8, 500, first.offset)]
    for value in range(2, 100):
        later = _write(allocator, 500, value)
        again = map_segment(later)
        assert again.obj is mapped.obj
        views.append(np.frombuffer(mapped, np.uint8, 500, later.offset))
    assert [int(view[-1]) for view in views] == list(range(1, 100))
    assert _mappings(first.name) == maps + 1
    assert len(os.listdir("/proc/self/fd")) <= fds + 1, "before Python 3.13 a mapping keeps one"
    segment.unlink(first.name)
    assert map_segment(later).obj is mapped.obj, "a name never returns: what was mapped under it is right"
    del mapped, again
    gc.collect()
    assert _mappings(first.name) == maps + 1
    del views
    gc.collect()
    assert _mappings(first.name) == maps
    with pytest.raises(FileNotFoundError):
        map_segment(later)


def _mappings(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def test_what_is_no_arena_and_where_no_batch_begins_is_refused(held: Instance) -> None:
    place = _write(SegmentAllocator(held.token, 0), 100, 1)
    for offset in (HEADER_BYTES + 8, LEAST_ARENA_BYTES, LEAST_ARENA_BYTES + 64):
        with pytest.raises(FormatMismatch):
            map_segment(place._replace(offset=offset))
    strange = place._replace(seq=place.seq + 1_000_000)
    for content in (b"x", b"x" * 4096):
        (SHM / strange.name).write_bytes(content)
        with pytest.raises(FormatMismatch):
            map_segment(strange)


def test_a_sealed_arena_goes_with_the_last_of_its_batches_and_the_one_in_use_when_it_is_trimmed(
    held: Instance,
) -> None:
    allocator = SegmentAllocator(held.token, 0)
    places = [_write(allocator, SMALL_BYTES, 1) for _ in range(FULL + 1)]
    full, rest = places[:FULL], places[FULL:]
    assert [name.rsplit(".", 1)[1] for name in _arena_names(held)] == [str(full[0].seq), str(rest[0].seq)]
    view = map_segment(full[0])
    for place in full:
        assert (SHM / place.name).exists()
        allocator.free(place)
    assert not (SHM / full[0].name).exists()
    assert bytes(view[full[3].offset :][:2]) == b"\1\1", "memory outlives its name"
    with pytest.raises(InvariantViolation):
        allocator.free(full[0])
    allocator.trim()
    assert _arena_names(held) == [rest[0].name]
    allocator.free(rest[0])
    assert _arena_names(held) == [rest[0].name], "the arena in use stays for the next batch"
    with pytest.raises(InvariantViolation):
        allocator.free(rest[0])
    allocator.trim()
    allocator.trim()
    assert _arena_names(held) == []
    assert _write(allocator, 10, 1).seq != rest[0].seq


def test_arenas_are_as_long_as_what_their_writer_has_is_much(held: Instance) -> None:
    sizes = [arena_bytes(live) for live in (0, 2 << 20, (4 << 20) - 1, 4 << 20, 16 << 20, 1 << 40)]
    assert sizes == [64 << 10, 64 << 10, 64 << 10, 128 << 10, 512 << 10, 512 << 10]
    allocator = SegmentAllocator(held.token, 0)
    assert not _write(allocator, 2 * SMALL_BYTES, 1).in_arena
    much = [_write(allocator, 1 << 20, 1) for _ in range(4)]
    assert allocator.live_bytes == (4 << 20) + 2 * SMALL_BYTES
    assert _write(allocator, 2 * SMALL_BYTES, 1).in_arena
    assert allocator.arenas[-1].nbytes == 2 * LEAST_ARENA_BYTES
    for place in much:
        allocator.free(place)
        with pytest.raises(InvariantViolation):
            allocator.free(place)
    assert not _write(allocator, 2 * SMALL_BYTES, 1).in_arena
    merge = allocator.allocate(32 << 20, deferred=True)
    assert allocator.live_bytes == 6 * SMALL_BYTES, "what is being written counts when it is sealed"
    merge.abandon()


def test_an_abandoned_piece_is_dead_bytes_and_never_used_again(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 0)
    given_up = allocator.allocate(1000)
    assert allocator.live_bytes == 1024
    given_up.buffer[:] = 7
    given_up.abandon()
    given_up.abandon()
    (arena,) = allocator.arenas
    assert (allocator.live_bytes, arena.live_bytes, arena.survivors()) == (0, 0, ())
    kept = _write(allocator, 1000, 8)
    assert kept.offset == given_up.locator.offset + 1024
    assert arena.survivors() == (kept,)
    with pytest.raises(InvariantViolation):
        given_up.seal()
    late = allocator.allocate(SMALL_BYTES)
    while len(allocator.arenas) == 1:
        allocator.free(_write(allocator, SMALL_BYTES, 1))
    allocator.free(kept)
    assert arena.survivors() == (late.locator,)
    late.abandon()
    assert len(allocator.arenas) == 1


def test_an_arena_below_a_quarter_live_names_its_survivors(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 0)
    places = [_write(allocator, SMALL_BYTES, 1) for _ in range(FULL + 1)]
    arena = allocator.arenas[0]
    for n, place in enumerate(places[: FULL - 1], 1):
        assert not any(map(allocator.must_move, places))
        assert allocator.sparse_count == 0
        allocator.free(place)
        assert arena.live_bytes == (FULL - n) * SMALL_BYTES
        assert allocator.live_bytes == arena.live_bytes + SMALL_BYTES
    assert arena.survivors() == (places[FULL - 1],)
    assert [allocator.must_move(place) for place in places] == [True] * FULL + [False]
    assert allocator.sparse_count == 1
    allocator.free(places[FULL - 1])
    assert (allocator.sparse_count, len(allocator.arenas)) == (1, 1)


def test_bug09_a_machine_without_room_is_a_typed_error_and_the_call_can_be_repeated(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 0)
    names = names_of(held.token)
    for failpoint in ("arena.create", "segment.create", "arena.append"):
        failpoints.arm(failpoint, "error", times=1)
        with pytest.raises(ShmExhausted) as caught:
            allocator.allocate(100)
        assert caught.value.facts["asked_bytes"] in (100, LEAST_ARENA_BYTES)
        assert names_of(held.token) == names
    first = _write(allocator, 100, 1)
    failpoints.arm("arena.append", "error", times=1)
    with pytest.raises(ShmExhausted):
        allocator.allocate(100)
    assert _write(allocator, 100, 1) == first._replace(offset=first.offset + 128), "it took nothing"
    while allocator.arenas[0].room >= SMALL_BYTES:
        _write(allocator, SMALL_BYTES, 1)
    failpoints.arm("segment.create", "error")
    with pytest.raises(ShmExhausted):
        allocator.allocate(SMALL_BYTES)
    assert _write(allocator, 100, 1).seq == first.seq, "what fits in the arena in use is served"
    failpoints.disarm_all()
    assert _write(allocator, SMALL_BYTES, 1).seq != first.seq


def test_a_name_that_cannot_be_removed_is_removed_by_the_next_attempt(held: Instance) -> None:
    allocator = SegmentAllocator(held.token, 0)
    places = [_write(allocator, SMALL_BYTES, 1) for _ in range(FULL + 1)]
    for place in places[: FULL - 1]:
        allocator.free(place)
    for failpoint in ("arena.unlink", "batch.unlink"):
        failpoints.arm(failpoint, "error", times=1)
        with pytest.raises(OSError, match=failpoint):
            allocator.free(places[FULL - 1])
        assert allocator.arenas[0].survivors() == (places[FULL - 1],)
    allocator.free(places[FULL - 1])
    assert _arena_names(held) == [places[FULL].name]


class Model:
    """What the arenas of a writer ought to hold: contents by place. A grace ends when `settle` is called."""

    def __init__(self, held: Instance) -> None:
        self.held = held
        self.allocator = SegmentAllocator(held.token, 0)
        self.live: dict[Locator, tuple[int, int]] = {}
        self.superseded: list[Locator] = []
        self.ever: set[Locator] = set()
        self.value = 0

    def insert(self, nbytes: int) -> None:
        self.value = self.value % 255 + 1
        place = _write(self.allocator, nbytes, self.value)
        assert place not in self.ever
        self.ever.add(place)
        self.live[place] = (nbytes, self.value)

    def merge(self, at: int) -> None:
        """Two become one of about their length, as a spine does."""
        if len(self.live) >= 2:
            one, other = [list(self.live)[(at + i) % len(self.live)] for i in (0, 1)]
            self.insert(self.live[one][0] + self.live[other][0])
            self.superseded += (one, other)
            del self.live[one], self.live[other]

    def drop(self, at: int) -> None:
        if self.live:
            place = list(self.live)[at % len(self.live)]
            del self.live[place]
            self.superseded.append(place)

    def abandon(self, nbytes: int) -> None:
        self.allocator.allocate(nbytes).abandon()

    def settle(self) -> None:
        """All graces end, and who owns survivors copies them out, until nothing is to be done."""
        while True:
            for place in self.superseded:
                self.allocator.free(place)
            moving = [place for place in self.live if self.allocator.must_move(place)]
            self.superseded = moving
            if not moving:
                return
            for place in moving:
                nbytes, value = self.live.pop(place)
                copy = _write(self.allocator, nbytes, value)
                self.live[copy] = (nbytes, value)

    def check(self) -> None:
        for place, (nbytes, value) in self.live.items():
            assert _read(place, nbytes) == bytes([value]) * nbytes
        arenas = self.allocator.arenas
        small = [place for place in (*self.live, *self.superseded) if place.in_arena]
        assert sorted(place for arena in arenas for place in arena.survivors()) == sorted(small)
        assert _arena_names(self.held) == sorted(arena.name for arena in arenas)

        padded = sum((nbytes + 63) & -64 for place, (nbytes, _) in self.live.items() if place.in_arena)
        own = sum(nbytes for place, (nbytes, _) in self.live.items() if not place.in_arena)
        if not self.superseded:
            assert self.allocator.live_bytes == padded + own

    def check_bound(self) -> None:
        live_bytes = sum(nbytes + 64 for place, (nbytes, _) in self.live.items() if place.in_arena)
        *sealed, current = [0, *(arena.nbytes for arena in self.allocator.arenas)]
        assert sum(sealed) <= 4 * live_bytes
        assert current <= MOST_ARENA_BYTES


lengths = st.one_of(st.integers(1, 3000), st.integers(1, SMALL_BYTES), st.just(SMALL_BYTES), st.just(1 << 20))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), lengths),
        st.tuples(st.just("merge"), st.integers(0, 50)),
        st.tuples(st.just("drop"), st.integers(0, 50)),
        st.tuples(st.just("abandon"), lengths),
        st.tuples(st.just("settle"), st.none()),
    ),
    max_size=150,
)


@pytest.mark.slow
@given(steps)
@settings(max_examples=60, deadline=None)
def test_arenas_hold_what_a_model_holds_in_at_most_four_times_its_bytes(
    history: list[tuple[str, int | None]],
) -> None:
    with Instance.create() as held:
        model = Model(held)
        for step, argument in history:
            if step == "settle":
                model.settle()
                model.check_bound()
            else:
                getattr(model, step)(argument)
        model.check()
        model.settle()
        model.check()
        model.check_bound()
        for _ in range(len(model.live)):
            model.drop(0)
        model.settle()
        model.allocator.trim()
        assert model.allocator.arenas == ()


@pytest.mark.slow
def test_many_ticks_that_supersede_each_other_stay_within_two_arenas(held: Instance) -> None:
    model = Model(held)
    rng = np.random.default_rng(7)
    for tick in range(20_000):
        model.insert(int(rng.integers(500, 4000)))
        while len(model.live) > 8:
            model.drop(int(rng.integers(0, 9)))
        if tick % 50 == 49:
            model.settle()
            assert len(model.allocator.arenas) <= 2
    model.check()


@pytest.mark.parametrize("failpoint", ["arena.create", "segment.create", "arena.append", "arena.unlink"])
def test_a_writer_that_dies_anywhere_leaves_nothing_that_the_sweep_does_not_remove(failpoint: str) -> None:
    code = """
        import sys
        from shm_arrangements import failpoints
        from shm_arrangements.arena import SegmentAllocator, small_bytes
        from shm_arrangements.instance import Instance
        held = Instance.create()
        print(held.token, flush=True)
        allocator = SegmentAllocator(held.token, 0)
        failpoints.arm(sys.argv[1], "exit")
        places = []
        for _ in range(20):
            allocation = allocator.allocate(small_bytes(0))
            allocation.seal()
            places.append(allocation.locator)
        for place in places:
            allocator.free(place)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), failpoint],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == failpoints.EXIT_STATUS, done.stderr
    token = done.stdout.strip()
    assert names_of(token)
    assert token in sweep()
    assert names_of(token) == ()


NO_ROOM = """
    import os
    from shm_arrangements import segment
    from shm_arrangements.arena import LEAST_ARENA_BYTES, SegmentAllocator, small_bytes
    from shm_arrangements.errors import ShmExhausted
    from shm_arrangements.instance import Instance, names_of

    def fails(what):
        names = names_of(held.token)
        try:
            what()
        except ShmExhausted as error:
            assert 0 <= error.facts["free_bytes"] < error.facts["asked_bytes"], error
            assert set(names_of(held.token)) <= set(names)
            return True
        return False

    held = Instance.create()
    allocator = SegmentAllocator(held.token, 0)
    places = []

    def insert():
        allocation = allocator.allocate(small_bytes(0))
        allocation.buffer[:] = 1  # a bus error, if it were not reserved
        allocation.seal()
        places.append(allocation.locator)

    while not fails(insert):
        pass
    assert len(allocator.arenas) == room_bytes // LEAST_ARENA_BYTES
    assert fails(insert) and fails(lambda: allocator.allocate(2 * LEAST_ARENA_BYTES))
    for place in places[:7]:
        allocator.free(place)
    insert()
    assert places[-1].seq != places[7].seq

    for place in places[7:]:
        allocator.free(place)
    allocator.trim()
    assert allocator.arenas == ()

    merge = allocator.allocate(room_bytes, deferred=True)
    merge.reserve(1)
    insert()  # takes what the merge was about to reserve
    assert fails(lambda: merge.reserve(room_bytes))
    merge.abandon()
    assert not os.path.exists("/dev/shm/" + merge.locator.name)
    merge = allocator.allocate(room_bytes - LEAST_ARENA_BYTES, deferred=True)
    merge.reserve(room_bytes)
    merge.buffer[:] = 1
    merge.seal()
    held.release()
    assert os.listdir("/dev/shm") == []
    print("served", flush=True)
    """


@pytest.mark.slow
def test_bug09_a_shared_memory_that_is_full_in_earnest_fails_typed_and_serves_again() -> None:
    """In a mount namespace of its own, with 1 MiB and a page of /dev/shm."""
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1028k tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True, timeout=30, check=False).returncode:
        pytest.skip("no mount namespace to be had")
    code = f"room_bytes = {16 * LEAST_ARENA_BYTES}\n" + textwrap.dedent(NO_ROOM)
    done = subprocess.run(
        [*mount, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
