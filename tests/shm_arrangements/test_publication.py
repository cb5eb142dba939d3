"""Pages: what readers see is always some whole turn, whatever becomes of the writer."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies

from shm_arrangements import failpoints, segment
from shm_arrangements.errors import FormatMismatch, InvariantViolation, PublicationClosed
from shm_arrangements.frontier import MAX_TIME, Frontier
from shm_arrangements.instance import Instance
from shm_arrangements.kernels import atomics
from shm_arrangements.names import PageName
from shm_arrangements.page_layout import (
    CAPACITY,
    SLOT_BYTES,
    BatchEntry,
    PageState,
    PageStatus,
    decode_header,
    decode_slot,
    encode_header,
    encode_slot,
)  # fmt: skip
from shm_arrangements.publication import PageReader, PublicationPage
from shm_arrangements.schema import ArrangementSchema
from shm_arrangements.types import AnyType, ColumnSpec, ColumnType, ListType, RecordType

DEADLINE_S = 20
SCHEMA = ArrangementSchema(
    (ColumnSpec("v", ColumnType.TEXT, True), ColumnSpec("größe", ColumnType.INT64, False)), (1,)
)
MINIMUM = Frontier.minimum()


@pytest.fixture
def held() -> Iterator[Instance]:
    with Instance.create() as instance:
        yield instance
    failpoints.disarm_all()


def _page(held: Instance, as_of: int = 0, half: str = "oks") -> PublicationPage:
    return PublicationPage.create(PageName(held.token, 7, 1, half), SCHEMA, as_of=as_of, writer=3)


def _chain(uppers: list[int], seq: int = 1) -> tuple[BatchEntry, ...]:
    lowers = [0, *uppers]
    return tuple(
        BatchEntry(3, seq + i, 10, Frontier.at(lowers[i]), Frontier.at(upper), MINIMUM, 80)
        for i, upper in enumerate(uppers)
    )


def test_atomic_words_hold_all_64_bits_and_refuse_to_write_a_readers_map() -> None:
    words = np.zeros(4, np.uint64)
    atomics.store_release(words, 2, MAX_TIME)
    atomics.fence()
    read = words.view()
    read.flags.writeable = False
    assert atomics.load_acquire(read, 2) == atomics.fence_then_load(words, 2) == MAX_TIME
    assert words.tolist() == [0, 0, MAX_TIME, 0]
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        with pytest.raises(TypeError):
            atomics.store_release(read, 2, 1)


def test_a_fresh_page_promises_nothing_and_knows_its_schema(held: Instance) -> None:
    page = _page(held, as_of=5)
    read = PageReader(page.header.page)
    state = read.read()
    assert (state.status, state.since, state.upper, state.chain) == (
        PageStatus.FRESH, Frontier.at(5), MINIMUM, (),
    )  # fmt: skip
    assert not state.upper.is_empty
    assert read.header.schema == SCHEMA
    assert (read.header.page, read.header.writer, read.header.shards) == (
        PageName(held.token, 7, 1, "oks"),
        3,
        1,
    )
    page.close()


def test_a_turn_is_seen_and_an_unturned_page_reads_as_the_same_object(held: Instance) -> None:
    page = _page(held)
    read = PageReader(page.header.page)
    page.turn(MINIMUM, Frontier.at(4), _chain([2, 4]))
    first = read.read()
    assert first.chain == _chain([2, 4])
    assert (first.status, first.upper) == (PageStatus.LIVE, Frontier.at(4))
    assert read.read() is first
    page.turn(
        Frontier.at(3),
        Frontier.empty(),
        (*_chain([4]), BatchEntry(3, 0, 0, Frontier.at(4), Frontier.empty(), MINIMUM)),
    )
    last = read.read()
    assert last.upper.is_empty
    assert last.chain[-1].locator(held.token) is None
    assert last.chain[0].locator(held.token) is not None
    assert first.chain == _chain([2, 4])
    page.close()


def test_a_page_that_closes_keeps_its_upper_and_loses_its_names(held: Instance) -> None:
    page = _page(held)
    read = PageReader(page.header.page)
    page.turn(MINIMUM, Frontier.at(4), _chain([4]))
    page.close()
    page.close()
    state = read.read()
    assert (state.status, state.upper, state.chain) == (PageStatus.CLOSED, Frontier.at(4), ())
    with pytest.raises(PublicationClosed):
        PageReader(page.header.page)
    with pytest.raises(InvariantViolation):
        page.turn(MINIMUM, Frontier.at(5), _chain([5]))
    read.close()
    with pytest.raises(PublicationClosed):
        read.read()


@pytest.mark.parametrize(
    ("since", "upper", "chain"),
    [
        (1, 4, _chain([4])),  # since regresses
        (2, 3, _chain([3])),  # upper regresses
        (2, 6, _chain([5])),  # chain does not reach upper
        (2, 5, (_chain([3])[0], *_chain([4, 5])[1:])),  # gap
        (2, 6, _chain([5, 6])[1:]),  # does not begin at the minimum
    ],
)
def test_a_turn_that_lies_is_refused_and_changes_nothing(
    held: Instance, since: int, upper: int, chain: tuple[BatchEntry, ...]
) -> None:
    page = _page(held)
    page.turn(Frontier.at(2), Frontier.at(4), _chain([4]))
    before = page.state
    with pytest.raises(InvariantViolation):
        page.turn(Frontier.at(since), Frontier.at(upper), chain)
    assert PageReader(page.header.page).read() == before == page.state
    page.close()


def test_a_page_holds_fifty_six_batches_and_no_more(held: Instance) -> None:
    page = _page(held)
    full = _chain(list(range(1, CAPACITY + 1)))
    page.turn(MINIMUM, Frontier.at(CAPACITY), full)
    assert PageReader(page.header.page).read().chain == full
    with pytest.raises(InvariantViolation, match="too long"):
        page.turn(MINIMUM, Frontier.at(CAPACITY + 1), _chain(list(range(1, CAPACITY + 2))))
    assert PageReader(page.header.page).read().chain == full
    page.close()


def test_an_alias_is_the_same_page_and_outlives_the_first_name(held: Instance) -> None:
    page = _page(held)
    alias = PageName(held.token, 8, 1, "oks")
    page.link(alias)
    with pytest.raises(FileExistsError):
        page.link(alias)
    through_alias = PageReader(alias)
    page.turn(MINIMUM, Frontier.at(4), _chain([4]))
    assert through_alias.read().upper == Frontier.at(4)
    assert not page.withdraw(page.header.page)
    page.turn(MINIMUM, Frontier.at(5), _chain([5]))
    assert PageReader(alias).read().upper == Frontier.at(5)
    with pytest.raises(InvariantViolation):
        page.withdraw(page.header.page)
    assert page.withdraw(alias)
    assert through_alias.read().status is PageStatus.CLOSED


def test_a_page_half_made_reads_as_absent(held: Instance) -> None:
    name = PageName(held.token, 7, 1, "oks")
    (Path("/dev/shm") / name.name).touch()  # its name is there before its space
    with pytest.raises(PublicationClosed):
        PageReader(name)
    segment.unlink(name.name)
    made = segment.create(name.name, 4096)
    image = encode_header(name, 1, 3, SCHEMA, name="", clock=1, cell=1)
    for upto in (0, 8, len(image)):
        made.buf[:upto] = image[:upto]
        with pytest.raises(PublicationClosed):
            PageReader(name)
    segment.unlink(name.name)


def test_bytes_that_are_no_page_are_told_by_what_is_wrong_with_them() -> None:
    image = encode_header(PageName("0" * 12, 7, 1, "oks"), 1, 3, SCHEMA, name="", clock=1, cell=1) + bytes(
        2 * SLOT_BYTES
    )
    assert decode_header(memoryview(image)).schema == SCHEMA
    wrongs = {
        "not a publication page": b"X" + image[1:],
        "another version": image[:8] + b"\x09" + image[9:],
        "damaged": image[:140] + b"\xff" + image[141:],
        "too short": image[:100],
    }
    for message, wrong in wrongs.items():
        with pytest.raises(FormatMismatch, match=message):
            decode_header(memoryview(wrong))


def _summed(image: bytes, changed: dict[int, bytes]) -> bytes:
    """The header with other bytes, and a checksum that fits them."""
    wrong = bytearray(image)
    for at, part in changed.items():
        wrong[at : at + len(part)] = part
    (length,) = struct.unpack_from("<I", wrong, 12)
    wrong[16:20] = zlib.crc32(wrong[128:length]).to_bytes(4, "little")
    return bytes(wrong)


def test_a_page_that_says_what_cannot_be_is_refused_though_its_checksum_fits() -> None:
    """A number of shards was believed, and a name made for each of four thousand million."""
    image = encode_header(PageName("0" * 12, 7, 1, "oks"), 1, 3, SCHEMA, name="x", clock=1, cell=1) + bytes(
        2 * SLOT_BYTES
    )
    at = 208
    name_at = image.index(b"x", at + struct.unpack_from("<I", image, 184)[0])
    lists = struct.pack("<BBHH", 20, 1, 0, 0) * 200_000
    deep = image[:184] + struct.pack("<II", 12 + len(lists), 0) + image[192:at] + image[at : at + 12] + lists
    deep = deep[:12] + struct.pack("<I", len(deep)) + deep[16:] + bytes(2 * SLOT_BYTES)
    for wrong in (
        _summed(image, {128: b"\xff"}),
        _summed(image, {name_at: b"\xff"}),
        _summed(image, {164: b"\xff\xff\xff\xff"}),
        _summed(image, {164: bytes(4)}),
        _summed(image, {at: b"\xff\xff\xff\xff"}),
        _summed(deep, {}),
    ):
        with pytest.raises(FormatMismatch):
            decode_header(memoryview(wrong))
    state = PageState(3, PageStatus.LIVE, MINIMUM, Frontier.at(4), tuple(_chain([4])))
    for changed in ({16: b"\x09"}, {40 + 40: b"\x05"}):
        slot = bytearray(encode_slot(state).ljust(SLOT_BYTES, b"\0"))
        for place, part in changed.items():
            slot[place : place + 1] = part
        slot[:4] = zlib.crc32(slot[4 : 40 + 64]).to_bytes(4, "little")
        assert decode_slot(bytes(slot)) is None


def test_a_damaged_slot_is_an_error_and_not_an_answer(held: Instance) -> None:
    page = _page(held)
    page.turn(MINIMUM, Frontier.at(4), _chain([4]))
    generation = page.state.generation
    at = page.header.slots_at + (generation & 1) * SLOT_BYTES
    page._segment.buf[at + 50] ^= 1
    with pytest.raises(FormatMismatch) as caught:
        PageReader(page.header.page).read()
    assert caught.value.facts["damaged"]
    page.close()


names = strategies.text(max_size=8)


def columns(types: strategies.SearchStrategy[AnyType]) -> strategies.SearchStrategy[ColumnSpec]:
    def spec(name: str, type: AnyType, nullable: bool, scale: int) -> ColumnSpec:
        return ColumnSpec(name, type, nullable, scale if type is ColumnType.NUMERIC else 0)

    return strategies.builds(spec, names, types, strategies.booleans(), strategies.integers(0, 38))


any_type: strategies.SearchStrategy[AnyType] = strategies.recursive(
    strategies.sampled_from(ColumnType),
    lambda inner: (
        strategies.builds(ListType, columns(inner))
        | strategies.builds(RecordType, strategies.lists(columns(inner), max_size=3).map(tuple))
    ),
    max_leaves=6,
)


@given(strategies.lists(columns(any_type), max_size=5), strategies.data(), strategies.text(max_size=60))
def test_a_header_says_the_schema_of_any_types_and_the_name(
    specs: list[ColumnSpec], data: strategies.DataObject, called: str
) -> None:
    places = strategies.permutations(range(len(specs)))
    key = data.draw(places)[: data.draw(strategies.integers(0, len(specs)))] if specs else ()
    schema = ArrangementSchema(tuple(specs), tuple(key), ordered=data.draw(strategies.booleans()))
    page = PageName("0" * 12, 7, 1, "errs", 2)
    image = encode_header(page, 4, 3, schema, name=called, clock=9, cell=8) + bytes(2 * SLOT_BYTES)
    header = decode_header(memoryview(image))
    assert (header.page, header.schema, header.name) == (page, schema, called)
    assert (header.shards, header.writer, header.clock, header.cell) == (4, 3, 9, 8)


def test_a_name_is_at_most_255_bytes(held: Instance) -> None:
    place = PageName(held.token, 7, 1, "oks")
    for called in ("x" * 256, "ö" * 128):
        with pytest.raises(ValueError, match="255 bytes"):
            PublicationPage.create(place, SCHEMA, as_of=0, writer=3, name=called)
    page = PublicationPage.create(place, SCHEMA, as_of=0, writer=3, name="ö" * 127)
    assert PageReader(place).header.name == "ö" * 127
    page.close()
    assert not [name for name in os.listdir("/dev/shm") if f"{held.token}.c." in name]


def _in_order(entry: BatchEntry) -> BatchEntry:
    lower, upper = entry.lower, entry.upper
    return entry._replace(lower=Frontier.meet(lower, upper), upper=Frontier.join(lower, upper))


frontiers = strategies.one_of(
    strategies.just(Frontier.empty()), strategies.integers(0, MAX_TIME).map(Frontier.at)
)
u64s = strategies.integers(0, MAX_TIME)
entries = strategies.builds(
    BatchEntry, strategies.integers(0, (1 << 32) - 1), u64s, u64s, frontiers, frontiers, frontiers, u64s, u64s
).map(_in_order)


@given(
    u64s,
    strategies.sampled_from(PageStatus),
    frontiers,
    frontiers,
    strategies.lists(entries, max_size=CAPACITY),
)
def test_a_slot_reads_back_as_it_was_written_and_never_when_a_bit_flipped(
    generation: int, status: PageStatus, since: Frontier, upper: Frontier, chain: list[BatchEntry]
) -> None:
    state = PageState(generation, status, since, upper, tuple(chain))
    image = encode_slot(state)
    padded = image.ljust(SLOT_BYTES, b"\xff")
    assert decode_slot(padded) == state
    flip = generation % len(image)
    assert decode_slot(padded[:flip] + bytes([padded[flip] ^ 4]) + padded[flip + 1 :]) is None


WRITER = """
    import signal, sys
    from shm_arrangements import failpoints
    from shm_arrangements.frontier import Frontier
    from shm_arrangements.names import PageName
    from shm_arrangements.page_layout import BatchEntry
    from shm_arrangements.publication import PublicationPage
    from shm_arrangements.types import ColumnSpec, ColumnType
    from shm_arrangements.schema import ArrangementSchema

    token, turns, action = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    schema = ArrangementSchema((ColumnSpec("k", ColumnType.INT64, False),), (0,))
    page = PublicationPage.create(PageName(token, 7, 1, "oks"), schema, as_of=0, writer=3)

    def turn(g):
        # Every number of turn g is made from g, so that a mixture of two turns shows.
        n = 1 + g % 50
        ends = [*range(n), 1000 + g]
        chain = [
            BatchEntry(3, g, g, Frontier.at(lower), Frontier.at(upper), Frontier.at(g), g)
            for lower, upper in zip(ends, ends[1:])
        ]
        page.turn(Frontier.at(g), Frontier.at(1000 + g), tuple(chain))

    for g in range(2, 2 + turns):
        turn(g)
        if g == 2:
            print("up", flush=True)
    if action != "none":
        failpoints.arm("publication.before-flip", action)
        turn(2 + turns)
    print("done", flush=True)
    sys.stdin.read()
    """


def _writer(held: Instance, turns: int, action: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), held.token, str(turns), action],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n", process.communicate()
    return process


def _is_whole(state: PageState) -> bool:
    g = state.generation
    return (
        state.since == Frontier.at(g)
        and state.upper == Frontier.at(1000 + g)
        and len(state.chain) == 1 + g % 50
        and all(
            entry[1] == entry[2] == entry[6] == g and entry.since == Frontier.at(g) for entry in state.chain
        )
    )


@pytest.mark.slow
def test_every_copy_of_a_page_that_turns_all_the_time_is_one_whole_turn(held: Instance) -> None:
    turns = 10_000
    process = _writer(held, turns, "none")
    read = PageReader(PageName(held.token, 7, 1, "oks"))
    copies = last = 0
    deadline = time.monotonic() + DEADLINE_S
    while last < turns + 1 and time.monotonic() < deadline:
        state = read.read()
        assert _is_whole(state), state
        assert state.generation >= last
        copies += state.generation != last
        last = state.generation
    assert last == turns + 1
    assert read.damaged == 0
    print(f"turns {turns}, copies {copies}, moved {read.moved}")
    process.communicate(timeout=DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["exit", "pause"])
@pytest.mark.parametrize("turns", [1, 2])
def test_bug13_a_writer_killed_between_slot_and_flip_leaves_readers_the_turn_before(
    held: Instance, action: str, turns: int
) -> None:
    process = _writer(held, turns, action)
    if action == "pause":
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.kill()
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err) == ("", "")
    assert process.returncode == (failpoints.EXIT_STATUS if action == "exit" else -signal.SIGKILL)
    read = PageReader(PageName(held.token, 7, 1, "oks"))
    for _ in range(3):
        state = read.read()
        assert state.generation == turns + 1
        assert _is_whole(state)
    assert (read.moved, read.damaged) == (0, 0)


def test_a_turn_that_fails_before_the_flip_can_be_made_again(held: Instance) -> None:
    page = _page(held)
    page.turn(MINIMUM, Frontier.at(4), _chain([4]))
    failpoints.arm("publication.before-flip", "error", times=1)
    with pytest.raises(OSError, match="failpoint"):
        page.turn(MINIMUM, Frontier.at(5), _chain([4, 5]))
    read = PageReader(page.header.page)
    assert read.read().upper == Frontier.at(4)
    page.turn(MINIMUM, Frontier.at(6), _chain([4, 6]))
    assert read.read().upper == Frontier.at(6)
    page.close()
