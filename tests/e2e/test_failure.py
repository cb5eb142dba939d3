"""Kills, bad neighbours and bad input against real processes: each has a known outcome (R1, R2; M1-M6)."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from clusterd import exit_codes
from clusterd.client import Client, PeekFailed
from clusterd.launcher import LaunchError, Replica, launch
from controller_proto.command import Hello, TestHook
from controller_proto.errors import Disconnected, Refusal
from shm_arrangements.instance import sweep
from tests.e2e.support import ENDS_WITHIN_S, MODES, alive, client_in, replica_in, role, segments, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TARGETS = [
    ("solo", "solo/0"), ("solo", "mux"), ("two-runtime", "maintenance/0"), ("two-runtime", "interactive/0"),
    ("two-runtime", "mux"),
]  # fmt: skip


def _filled(client: Client) -> str:
    client.create_shard("s", {"id": "bigint", "payload": "text"})
    client.write("s", [(1, "a"), (2, "b")])
    index = client.create_index("s", key=["id"])
    index.wait(0)
    return index.id


@pytest.mark.parametrize(("mode", "target"), TARGETS)
def test_m1_m2_a_killed_process_ends_the_daemon_which_says_who_died_of_what(
    mode: str, target: str, tmp_path: Path
) -> None:
    with client_in(mode, tmp_path) as (replica, client):
        _filled(client)
        index = client.index(next(iter(client.dataflows.standing)))
        parked = client.start_peek(index, at=9)
        assert segments(replica.instance)
        pids = list(replica.pids.values())
        start = time.monotonic()
        replica.kill(target)
        assert replica.wait(10) == exit_codes.PROCESS_DIED
        assert time.monotonic() - start < ENDS_WITHIN_S
        wait_until(lambda: not alive(pids), ENDS_WITHIN_S, "every process ended")
        assert segments(replica.instance) == []
        lines = [line for line in replica.stderr().splitlines() if target in line and "9" in line]
        assert len(lines) == 1, replica.stderr()
        assert "SIGKILL" in lines[0]
        with pytest.raises(Disconnected):
            client.await_peek(parked, 5)


@pytest.mark.parametrize("mode", MODES)
def test_m3_the_reaper_cleans_up_after_a_killed_supervisor_and_leaves_the_neighbour_alone(
    mode: str, tmp_path: Path
) -> None:
    with (
        client_in(mode, tmp_path / "a") as (victim, client),
        client_in(mode, tmp_path / "b") as (other, beside),
    ):
        _filled(client)
        kept = _filled(beside)
        before = segments(other.instance)
        pids = list(victim.pids.values())
        victim.kill("supervisor")
        wait_until(
            lambda: not alive(pids) and not segments(victim.instance), ENDS_WITHIN_S + 1, "all is gone"
        )
        assert segments(other.instance) == before
        assert beside.peek(beside.index(kept)).rows() == [(1, "a"), (2, "b")]


@pytest.mark.alone
def test_m3_the_next_start_sweeps_what_supervisor_and_reaper_left(tmp_path: Path) -> None:
    with client_in("two-runtime", tmp_path / "a") as (victim, client):
        _filled(client)
        pids = list(victim.pids.values())
        os.kill(victim.pids["reaper"], signal.SIGKILL)
        victim.kill("supervisor")
        wait_until(lambda: not alive(pids), ENDS_WITHIN_S, "every process ended")
        with replica_in("two-runtime", tmp_path / "b") as other:
            assert segments(victim.instance) == []
            assert segments(other.instance) != []


def test_sigterm_stops_cleanly_and_leaves_nothing(tmp_path: Path) -> None:
    with client_in("two-runtime", tmp_path) as (replica, client):
        _filled(client)
        pids = list(replica.pids.values())
        assert replica.stop() == exit_codes.STOPPED
        assert alive(pids) == []
        assert segments(replica.instance) == []
        assert not Path(replica.address.removeprefix("unix:")).exists()


@pytest.mark.parametrize("mode", MODES)
def test_m7_a_fresh_start_hydrates_from_the_shards(mode: str, tmp_path: Path) -> None:
    with client_in(mode, tmp_path) as (replica, client):
        _filled(client)
        replica.kill("supervisor")
        wait_until(lambda: not alive(list(replica.pids.values())), ENDS_WITHIN_S, "every process ended")
    with client_in(mode, tmp_path) as (_, client):
        index = client.create_index("s", key=["id"])
        index.wait(0)
        answer = index.peek(at=0)
        assert answer.rows() == [(1, "a"), (2, "b")]
        assert answer.served_by == role(mode)


@pytest.mark.parametrize("mode", MODES)
def test_m6_no_space_for_a_segment_is_a_typed_end_and_no_bus_error(mode: str, tmp_path: Path) -> None:
    with client_in(mode, tmp_path) as (replica, client):
        _filled(client)
        worker = "maintenance/0" if mode == "two-runtime" else "solo/0"
        hook = client.core.say(TestHook(0, worker, "failpoint:error", "arena.append"), judged=True)
        client.run(client.core.accepted([hook]))
        client.write("s", [(3, "c")])
        assert replica.wait(10) == exit_codes.SHM_EXHAUSTED
        assert segments(replica.instance) == []
        assert "SIGBUS" not in replica.stderr()
        assert any("bytes" in line and worker in line for line in replica.stderr().splitlines()), (
            replica.stderr()
        )


def test_a_socket_in_use_is_refused_and_a_stale_one_replaced(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with launch({}, tmp_path / "a", listen=address):
        with pytest.raises(LaunchError) as raised:
            launch({}, tmp_path / "b", listen=address)
        assert raised.value.exit_code == exit_codes.SOCKET_IN_USE
        assert str(tmp_path / "socket") in raised.value.stderr
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "socket"))
    stale.close()
    with launch({}, tmp_path / "a", listen=address) as replica:
        assert replica.address == address


def test_a_data_directory_of_another_format_is_refused_with_its_own_exit_code(tmp_path: Path) -> None:
    with launch({}, tmp_path):
        pass
    (tmp_path / "VERSION").write_text('{"format": 999}\n')
    with pytest.raises(LaunchError) as raised:
        launch({}, tmp_path)
    assert raised.value.exit_code == exit_codes.DATA_FORMAT
    assert "999" in raised.value.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_second_controller_fences_the_first_which_is_told_and_has_no_effect(
    mode: str, tmp_path: Path
) -> None:
    with client_in(mode, tmp_path) as (replica, first):
        _filled(first)
        with Client.connect(replica) as second:
            with pytest.raises(Disconnected) as raised:
                _pump_for_ever(first)
            assert "fenced" in str(raised.value)
            index = second.create_index("s", key=["id"])
            index.wait(0)
            assert index.count(0) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_goes_in_mid_peek_leaves_the_replica_serving(mode: str, tmp_path: Path) -> None:
    with client_in(mode, tmp_path) as (replica, client):
        _filled(client)
        index = client.index(next(iter(client.dataflows.standing)))
        for _ in range(20):
            with Client.connect(replica, reader=True) as reader:
                reader.start_peek(index, at=9)
                reader.start_peek(index, at=0)
        assert index.count(0) == 2
        client.advance("s", 20)
        index.wait(9)
        assert index.count(9) == 2


@pytest.mark.parametrize("mode", MODES)
def test_m5_garbage_frames_hurt_nobody_else(mode: str, tmp_path: Path) -> None:
    hello = msgspec.msgpack.encode(Hello(1, nonce="garbage", kind="reader"))
    framed = struct.pack(">I", len(hello)) + hello
    hostile = [
        b"\xff\xff\xff\xff", struct.pack(">I", 2 << 30), struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        framed + b"\x00\x00", framed + struct.pack(">I", 5) + b"\x93\x01", os.urandom(4096), b"",
        framed + struct.pack(">I", 1) + b"\x80", framed + struct.pack(">I", 0),
    ]  # fmt: skip
    with client_in(mode, tmp_path) as (replica, client):
        _filled(client)
        index = client.index(next(iter(client.dataflows.standing)))
        for data in hostile:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(5)
                peer.connect(replica.address.removeprefix("unix:"))
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass
        assert index.count(0) == 2


def test_test_hooks_are_refused_unless_the_daemon_was_started_for_them(tmp_path: Path) -> None:
    with launch({}, tmp_path) as replica, Client.connect(replica) as client:
        sent = client.core.say(TestHook(0, "solo/0", "failpoint:error", "segment.create"), judged=True)
        with pytest.raises(Refusal, match="unauthorized"):
            client.run(client.core.accepted([sent]))


def test_the_command_line_explains_itself(tmp_path: Path) -> None:
    import sys

    told = subprocess.run(
        [sys.executable, "-m", "clusterd", "serve", "--help"], capture_output=True, text=True, check=True
    )
    assert "--interactive-workers" in told.stdout
    assert "Exit" in told.stdout or "exit" in told.stdout


def test_sweeping_by_hand_touches_no_living_instance(tmp_path: Path) -> None:
    with client_in("two-runtime", tmp_path) as (replica, client):
        _filled(client)
        before = segments(replica.instance)
        sweep()
        assert segments(replica.instance) == before
        index = client.index(next(iter(client.dataflows.standing)))
        with pytest.raises(PeekFailed, match="dropped"):
            _drop_and_peek(client, replica)
        del index


def _pump_for_ever(client: Client) -> None:
    while True:
        assert client.pump(5), "nothing was said within 5 s"


def _drop_and_peek(client: Client, replica: Replica) -> None:
    index = client.index(next(iter(client.dataflows.standing)))
    index.drop()
    index.peek(at=0, timeout_s=10)
