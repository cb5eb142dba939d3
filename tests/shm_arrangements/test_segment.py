"""Segments: reserved, private to the user, read-only to readers, and never a dangling view."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shm_arrangements import failpoints, segment
from shm_arrangements.arena import SegmentAllocator, next_locator
from shm_arrangements.errors import InvariantViolation, RegistryFull, ShmExhausted
from shm_arrangements.instance import Instance
from shm_arrangements.names import Locator, PageName, collection_id, collection_text, parse_page

SLICE_BYTES = segment.SLICE_BYTES
SHM = Path("/dev/shm")


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a segment of a living instance: nobody's sweep takes it."""
    with Instance.create() as held:
        yield f"clusterd.{held.token}.b.0.1"
        failpoints.disarm_all()


def _run(code: str, *arguments: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def test_what_the_writer_sealed_is_what_a_reader_maps(name: str) -> None:
    written = segment.create(name, 1000)
    written.buf[:4] = b"abcd"
    sealed = written.seal()
    with segment.attach(name) as read:
        assert bytes(read.buf[:4]) == bytes(sealed.buf[:4]) == b"abcd"
        assert read.nbytes >= 1000
        assert not any(read.buf[4:])


def test_neither_a_sealed_nor_an_attached_segment_can_be_written(name: str) -> None:
    written = segment.create(name, 64)
    sealed = written.seal()
    with pytest.raises(InvariantViolation):
        _ = written.buf
    for one in (sealed, segment.attach(name)):
        view = np.frombuffer(one.buf, np.uint8)
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_a_segment_is_the_users_alone_and_closed_on_exec(name: str) -> None:
    written = segment.create(name, 64)
    mode = os.stat(SHM / name).st_mode
    assert stat.S_IMODE(mode) == 0o600
    for fd in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{fd}") and name in os.readlink(f"/proc/self/fd/{fd}"):
            assert fcntl.fcntl(int(fd), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    written.close()


def test_a_segment_takes_at_most_one_descriptor(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    written = segment.create(name, 64)
    assert len(os.listdir("/proc/self/fd")) - before <= 1
    written.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_space_is_reserved_at_creation(name: str) -> None:
    written = segment.create(name, 1 << 20)
    assert os.stat(SHM / name).st_blocks * 512 >= 1 << 20
    written.close()


def test_a_full_machine_is_a_typed_error_and_leaves_no_name(name: str) -> None:
    asked = segment.free_bytes() + (1 << 30)
    with pytest.raises(ShmExhausted) as caught:
        segment.create(name, asked)
    assert caught.value.facts["asked_bytes"] == asked
    assert 0 < caught.value.facts["free_bytes"] < asked  # type: ignore[operator]
    assert not (SHM / name).exists()


def test_bug09_a_failed_creation_can_be_repeated_under_the_same_name(name: str) -> None:
    failpoints.arm("segment.create", "error", times=1)
    with pytest.raises(ShmExhausted):
        segment.create(name, 64)
    assert not (SHM / name).exists()
    segment.create(name, 64).close()
    assert (SHM / name).exists()


def test_a_name_in_use_is_refused_and_kept(name: str) -> None:
    segment.create(name, 64).close()
    with pytest.raises(FileExistsError):
        segment.create(name, 64)
    assert (SHM / name).exists()


@pytest.mark.parametrize("nbytes", [0, 1, 24, 4095, 4096, 4097, 16385])
def test_bug08_any_length_can_be_asked_for(name: str, nbytes: int) -> None:
    segment.create(name, nbytes).close()
    with segment.attach(name) as read:
        assert read.nbytes >= max(nbytes, 1)


def test_what_has_no_name_or_no_space_yet_is_not_there(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        segment.attach(name)
    (SHM / name).touch()
    with pytest.raises(FileNotFoundError, match="not made yet"):
        segment.attach(name)


def test_descriptors_run_out_with_a_typed_error_before_they_are_gone(name: str) -> None:
    code = """
        import os, resource, sys
        from shm_arrangements import segment
        from shm_arrangements.errors import RegistryFull
        segment.create(sys.argv[1], 64).close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(33)]
        try:
            segment.attach(sys.argv[1])
        except RegistryFull as error:
            print(error.facts["used"] >= 36, error.facts["limit"])
        """
    done = _run(code, name)
    assert (done.stdout, done.stderr) == ("True 40\n", "")


def test_bug03_a_view_outlives_every_handle_and_the_name(name: str) -> None:
    written = segment.create(name, 8 * 1000)
    np.frombuffer(written.buf, np.int64)[:] = np.arange(1000)
    written.seal().close()
    read = segment.attach(name)
    column = np.frombuffer(read.buf, np.int64, 1000)[10:][:100]
    read.close()
    segment.unlink(name)
    del read, written
    gc.collect()
    assert column.sum() == sum(range(10, 110))
    assert column[::-1].copy()[0] == 109


def _maps() -> int:
    return sum("/dev/shm/clusterd" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_bug04_closing_while_views_live_is_silent_and_the_last_view_unmaps(name: str) -> None:
    segment.create(name, 4096).close()
    maps, fds = _maps(), len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        read = segment.attach(name)
        one, two = np.frombuffer(read.buf, np.uint8), np.frombuffer(read.buf, np.uint64)
        try:
            assert one[0] == 1
        except AssertionError as error:
            kept = error.__traceback__
        read.close()
        read.close()
        assert two[0] == 0
        del one, two, kept
    del read
    gc.collect()
    assert (_maps(), len(os.listdir("/proc/self/fd"))) == (maps, fds)


@pytest.mark.parametrize("ending", ["pass", "raise RuntimeError('on purpose')", "os.kill(os.getpid(), 9)"])
def test_bug01_a_reader_may_end_in_any_way_and_the_segment_stays(name: str, ending: str) -> None:
    written = segment.create(name, 64)
    written.buf[:2] = b"hi"
    code = f"""
        import os, sys
        import numpy as np
        from shm_arrangements import segment
        read = segment.attach(sys.argv[1])
        views = [np.frombuffer(read.buf, np.uint8) for _ in range(3)]
        print(bytes(views[0][:2]), flush=True)
        {ending}
        """
    done = _run(code, name)
    assert done.stdout == "b'hi'\n"
    assert done.returncode == {"pass": 0}.get(ending, -signal.SIGKILL if "kill" in ending else 1)
    noise = [line for line in done.stderr.splitlines() if "on purpose" not in line]
    assert not any(
        "tracker" in line or "BufferError" in line or "Exception ignored" in line for line in noise
    )
    assert ending.startswith("raise") or not noise
    assert (SHM / name).exists()
    with segment.attach(name) as read:
        assert bytes(read.buf[:2]) == b"hi"
    written.close()


def test_a_writer_that_ends_leaves_its_segment_and_starts_no_tracker(name: str) -> None:
    code = """
        import os, sys
        from multiprocessing import resource_tracker
        from shm_arrangements import segment
        written = segment.create(sys.argv[1], 64)
        written.buf[:2] = b"hi"
        segment.create(sys.argv[1] + "0", 64)
        segment.unlink(sys.argv[1] + "0")
        print(resource_tracker._resource_tracker._fd)
        """
    done = _run(code, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
    with segment.attach(name) as read:
        assert bytes(read.buf[:2]) == b"hi"


def test_the_block_is_a_shared_memory_and_is_never_pickled(name: str) -> None:
    from multiprocessing.shared_memory import SharedMemory

    written = segment.create(name, 64)
    block = written._block
    assert isinstance(block, SharedMemory)
    assert block.name == name
    with pytest.raises(TypeError, match="by name"):
        pickle.dumps(block)
    block.unlink()
    assert not (SHM / name).exists()
    block.close()
    block.close()


def test_a_linked_segment_goes_with_the_last_of_its_names(name: str) -> None:
    written = segment.create(name, 64)
    segment.link(name, name + "7")
    with pytest.raises(FileExistsError):
        segment.link(name, name + "7")
    assert segment.unlink(name)
    written.buf[:2] = b"hi"
    with segment.attach(name + "7") as read:
        assert bytes(read.buf[:2]) == b"hi"
    assert segment.unlink(name + "7")
    assert not segment.unlink(name + "7")


def test_a_batch_number_is_never_used_twice() -> None:
    places = [next_locator("0" * 12, writer) for writer in (0, 1, 0)]
    assert len({place.seq for place in places}) == 3
    assert places[0].name == f"clusterd.000000000000.b.0.{places[0].seq}"
    assert isinstance(places[0], Locator)


def test_names_of_pages_read_back() -> None:
    page = PageName("0123456789ab", collection_id("t7"), 3, "errs", 2)
    assert parse_page(page.name) == page
    for other in ("clusterd.0123456789ab.ctl", "clusterd.0123456789ab.b.0.1", "x", page.name + ".x"):
        assert parse_page(other) is None


def test_ids_are_text_or_u64() -> None:
    assert collection_id("u1001") == collection_id("1001") == collection_id(1001) == 1001
    assert collection_id("s1") == (1 << 62) + 1
    assert [collection_text(collection_id(text)) for text in ("u1", "s2", "t3")] == ["u1", "s2", "t3"]
    for wrong in ("", "u", "x1", "u-1", "u1.5", str(1 << 62), -1, 1 << 64):
        with pytest.raises(ValueError, match="id"):
            collection_id(wrong)


def test_failpoints_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="unknown failpoint"):
        failpoints.arm("nowhere", "error")
    with pytest.raises(ValueError, match="unknown action"):
        failpoints.arm("segment.create", "explode")
    failpoints.arm("batch.unlink", "error")
    assert failpoints.armed() == {"batch.unlink": "error"}
    failpoints.arm("batch.unlink", "off")
    failpoints.hit("batch.unlink")


def test_registry_full_is_not_an_os_error() -> None:
    assert not issubclass(RegistryFull, OSError)


def _blocks(name: str) -> int:
    return os.stat(SHM / name).st_blocks * 512


def test_a_deferred_segment_is_reserved_in_slices_and_cannot_be_written_before(name: str) -> None:
    nbytes = 2 * SLICE_BYTES + 5000
    written = segment.create(name, nbytes, deferred=True)
    assert (written.reserved, _blocks(name), os.stat(SHM / name).st_size) == (0, 0, nbytes)
    for upto, reserved in ((1, SLICE_BYTES), (SLICE_BYTES, SLICE_BYTES), (SLICE_BYTES + 1, 2 * SLICE_BYTES)):
        for use in (lambda: written.buf, written.seal):
            with pytest.raises(InvariantViolation):
                use()
        written.reserve(upto)
        assert written.reserved == reserved
        assert reserved <= _blocks(name) < reserved + 4096
    written.reserve(1 << 60)
    assert written.reserved == nbytes <= _blocks(name)
    fds = len(os.listdir("/proc/self/fd"))
    written.buf[nbytes - 1] = 1
    written.reserve(nbytes)
    sealed = written.seal()
    assert (sealed.buf[nbytes - 1], sealed.nbytes, len(os.listdir("/proc/self/fd"))) == (1, nbytes, fds)


def test_bug09_room_that_ends_in_a_later_slice_is_a_typed_error_that_leaves_no_name(name: str) -> None:
    nbytes = 2 * SLICE_BYTES
    written = segment.create(name, nbytes, deferred=True)
    written.reserve(1)
    maps = _maps()
    failpoints.arm("segment.reserve", "error", times=1)
    with pytest.raises(ShmExhausted) as caught:
        written.reserve(nbytes)
    assert caught.value.facts["asked_bytes"] == nbytes
    assert not (SHM / name).exists()
    assert _maps() == maps - 1, "what it had is given back"
    with pytest.raises(InvariantViolation):
        written.reserve(nbytes)
    written.close()
    again = segment.create(name, nbytes, deferred=True)
    again.reserve(nbytes)
    again.seal()


def test_a_deferred_segment_that_cannot_ever_be_had_is_refused_at_once(name: str) -> None:
    with pytest.raises(ShmExhausted):
        segment.create(name, segment.free_bytes() + (1 << 30), deferred=True)
    assert not (SHM / name).exists()


def test_what_is_reserved_is_filled_without_a_fault(name: str) -> None:
    """Where the kernel can populate (5.14): else this only shows that it does no harm."""
    written = segment.create(name, SLICE_BYTES)
    view = np.frombuffer(written.buf, np.uint8)
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (5, 14):
        pytest.skip("a kernel that cannot populate")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    view[:] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100


def test_a_kernel_that_cannot_populate_is_no_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_POPULATE_WRITE", 0x7FFF)  # EINVAL
    written = segment.create(name, 2 * SLICE_BYTES)
    written.buf[-1] = 1
    assert _blocks(name) >= 2 * SLICE_BYTES


def test_a_shared_mapping_is_one_and_goes_with_the_last_view(name: str) -> None:
    segment.create(name, 5000).close()
    maps = _maps()
    one, two = segment.attach_shared(name), segment.attach_shared(name)
    assert one.readonly
    assert one.obj is two.obj
    assert _maps() == maps + 1
    part = np.frombuffer(two, np.uint8)[10:20]
    del one, two
    gc.collect()
    assert (_maps(), part.sum()) == (maps + 1, 0)
    del part
    gc.collect()
    assert _maps() == maps


def test_allocations_that_are_deferred_or_given_up_keep_the_contract() -> None:
    with Instance.create() as held:
        allocator = SegmentAllocator(held.token, 0)
        for nbytes in (100, SLICE_BYTES + 1):
            allocation = allocator.allocate(nbytes, deferred=True)
            if nbytes > SLICE_BYTES:
                assert allocation.reserved == 0
                with pytest.raises(InvariantViolation):
                    _ = allocation.buffer
                allocation.reserve(1)
                assert allocation.reserved == SLICE_BYTES
            allocation.reserve(nbytes)
            assert allocation.reserved == nbytes
            allocation.buffer[:nbytes] = 1
            assert allocation.seal()[:nbytes].all()
            allocation.abandon()
            assert (SHM / allocation.locator.name).exists(), "sealed is not given up any more"
        assert allocator.allocate(SLICE_BYTES + 1).reserved == SLICE_BYTES + 1
        failpoints.arm("segment.reserve", "error", times=1)
        given_up = allocator.allocate(2 * SLICE_BYTES, deferred=True)
        with pytest.raises(ShmExhausted):
            given_up.reserve(1)
        given_up.abandon()
        given_up.abandon()
        assert not (SHM / given_up.locator.name).exists()
        for use in (given_up.seal, lambda: given_up.buffer, lambda: given_up.reserve(1)):
            with pytest.raises(InvariantViolation):
                use()
