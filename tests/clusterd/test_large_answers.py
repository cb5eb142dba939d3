"""Large answers through the whole daemon in one process, over real sockets: interleavings, slow readers."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from clusterd.config import DEFAULTS
from clusterd.convert import updates_from_rows
from clusterd.runtime import evaluate
from controller_proto.client import WireClient
from controller_proto.codec import encode_body
from controller_proto.command import (
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Peek,
    Schedule,
)
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, SourceImport
from controller_proto.errors import Disconnected
from controller_proto.response import PeekCanceled, PeekResponse, PeekRows
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier
from tests.clusterd.local_daemon import LocalDaemon
from tests.clusterd.session_history import Sessions

pytestmark = pytest.mark.slow

WORKERS = pytest.mark.parametrize("workers", [0, 1])
ROWS = [(k, f"{k:05d}" + "x" * 995) for k in range(6000)]


@pytest.fixture
def tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is large, every row a part."""
    monkeypatch.setitem(cast("dict[str, int]", DEFAULTS), "stash_result_bytes", 0)
    monkeypatch.setattr(evaluate, "_PART_BYTES", 1)


@pytest.mark.usefixtures("tiny_parts")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_no_history_of_sessions_is_answered_wrongly_in_parts(workers: int) -> None:
    made = 0
    for seed in range(7000 + 100 * workers, 7000 + 100 * workers + 8):
        with (
            tempfile.TemporaryDirectory(prefix="histories-", dir="/dev/shm") as data_dir,
            LocalDaemon(Path(data_dir), workers, frames=1 + seed % 5) as daemon,
        ):
            Sessions(seed, daemon).play()
            daemon.require_nothing_held()
            stashes = [loop._stashes.statistics() for loop in daemon.loops]
            assert all(each.answers == 0 for each in stashes), f"seed {seed}"
            made += sum(each.made for each in stashes)
    assert made > 20


@contextmanager
def _daemon(tmp_path: Path, workers: int) -> Iterator[tuple[LocalDaemon, WireClient]]:
    """With an index u1 of 6 MB, and its controller."""
    with LocalDaemon(tmp_path, workers) as daemon:
        shard = daemon.store.create_shard("s", SAMPLE_SCHEMA)
        shard.append(updates_from_rows(SAMPLE_SCHEMA, ROWS, 0), shard.upper, Frontier.at(1))
        client = WireClient.connect(daemon.address)
        client.hello("controller", epoch=1)
        source = SourceImport("u1000", "s", SAMPLE_SCHEMA)
        export = Export("u1", "index", "u1000", SAMPLE_SCHEMA, (0,))
        header = DataflowHeader("u1", 0, None, (source,), (), (export,))
        client.send(CreateInstance(0))
        client.send(CreateDataflow(0, header, encode_body(DataflowBody(()))))
        client.send(Schedule(0, "u1"))
        client.send(InitializationComplete(0))
        _settle(daemon, client)
        try:
            yield daemon, client
        finally:
            client.close()


def _settle(daemon: LocalDaemon, *clients: WireClient) -> list[PeekResponse]:
    """Turn the daemon until it rests, these clients reading meanwhile; the peeks that were answered."""
    found: list[PeekResponse] = []

    def read() -> bool:
        got = False
        for client in clients:
            while (said := client.recv(0.0)) is not None:
                got = True
                if isinstance(said, PeekResponse):
                    found.append(said)
        return got

    daemon.settle(read, lambda: True)
    return found


def _queued(daemon: LocalDaemon) -> int:
    """Bytes that the daemon holds for others to take."""
    endpoint = daemon.endpoint
    return sum(client.link.out_bytes for client in endpoint._clients.by_session.values()) + sum(
        loop._link.out_bytes for loop in daemon.loops
    )


@WORKERS
def test_who_does_not_read_a_large_answer_holds_a_file_and_delays_nobody(
    tmp_path: Path, workers: int
) -> None:
    with _daemon(tmp_path, workers) as (daemon, client):
        slow = WireClient.connect(daemon.address)
        slow.hello("slow", kind="reader")
        for number in range(3):
            slow.send(Peek(0, f"large {number}", "u1", 0))
        _settle(daemon, client)
        assert sum(loop._stashes.statistics().answers for loop in daemon.loops) == 3
        assert _queued(daemon) < 2 << 20  # of 18 MB
        assert daemon.endpoint._mux.statistics().answers_stashed == 3
        client.send(Peek(0, "key", "u1", 0, ((7,),)))
        (answer,) = _settle(daemon, client)
        assert isinstance(answer.result, PeekRows)
        assert answer.result.columns[1] == (ROWS[7][1],)
        slow.send(Peek(0, "small", "u1", 0, ((8,),)))
        answers = _settle(daemon, client, slow)
        assert [each.uuid for each in answers if not each.uuid.startswith("large")] == ["small"]
        for each in answers:
            if each.uuid != "small":
                assert isinstance(each.result, PeekRows)
                assert each.result.parts > 10
                assert list(zip(*each.result.columns, strict=True)) == ROWS
        assert len(answers) == 4
        assert answers[0].uuid == "small"  # it waited for no more than the part that was under way
        assert _queued(daemon) == 0
        assert daemon.endpoint._mux.statistics().answers_stashed == 0
        slow.close()


@WORKERS
def test_a_client_that_goes_or_cancels_in_the_middle_of_its_answer_leaves_nothing(
    tmp_path: Path, workers: int
) -> None:
    with _daemon(tmp_path, workers) as (daemon, client):
        for seed in range(12):
            rng = random.Random(seed)
            reader = WireClient.connect(daemon.address)
            reader.hello(f"reader {seed}", kind="reader")
            reader.send(Peek(0, "a", "u1", 0))
            daemon.step(rng, rng.randrange(120))
            if seed % 2:
                reader.close()
                with pytest.raises(Disconnected):
                    reader.recv(0.0)
                _settle(daemon, client)
            else:
                reader.send(CancelPeek(0, "a"))
                (answer,) = _settle(daemon, client, reader)
                assert isinstance(answer.result, PeekCanceled | PeekRows), f"seed {seed}"
                reader.close()
                _settle(daemon, client)
            for loop in daemon.loops:
                assert loop._stashes.statistics().answers == 0, f"seed {seed}"
                assert len(loop._scans) == 0, f"seed {seed}"
            assert daemon.endpoint._mux.statistics().peeks_in_flight == 0
