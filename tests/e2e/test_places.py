"""A replica, a client and loads over shards whose catalogs are in PostgreSQL, and whose parts elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterd.client import Client
from clusterd.launcher import launch
from clusterd.storage import cli
from clusterd.storage.store import Store
from shm_arrangements.frontier import Frontier
from tests import postgres

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[postgres.PostgresServer]:
    yield from postgres.servers()


def load(location: str, file: Path, *options: str) -> str:
    arguments = [str(file), "--shard", "fruit", "--data-dir", location, *options]
    done = CliRunner().invoke(cli.load, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("mode", ["solo", "two-runtime"])
def test_a_replica_follows_shards_in_a_database(
    server: postgres.PostgresServer, tmp_path: Path, mode: str
) -> None:
    location = f"{server.dsn('postgres')}&parts=file://{tmp_path}/parts"
    file = tmp_path / "fruit.jsonl"
    file.write_text('{"name":"apple","kilos":3}\n{"name":"pear","kilos":5}\n')
    assert f"data directory {location} (made now)" in load(location, file, "--upsert", "name")
    config = {"enable_two_runtime_compute": mode == "two-runtime"}
    with launch(config, location) as replica, Client.connect(replica) as client:
        fruit = client.create_index("fruit", key=["name"])
        assert sorted(fruit.peek(at=0).rows()) == [("apple", 3), ("pear", 5)]
        for round_ in range(1, 6):
            with file.open("a") as more:
                more.write(f'{{"name":"apple","kilos":{round_ * 10}}}\n')
            load(location, file, "--upsert", "name")
            assert fruit.peek(keys=["apple"], at=round_).rows() == [("apple", round_ * 10)]
        at = client.write("fruit", [("fig", 1)])
        assert sorted(fruit.peek(at=at).rows()) == [("apple", 50), ("fig", 1), ("pear", 5)]
        assert location in repr(client)
        server.stop("immediate")
        assert sorted(fruit.peek(at=at).rows()) == [("apple", 50), ("fig", 1), ("pear", 5)]
        server.start()
        with suppress(OSError):  # what its connection was, it learns at the next use
            client.store.has_shard("fruit")
        at = client.write("fruit", [("plum", 2)])
        assert fruit.peek(keys=["plum"], at=at).rows() == [("plum", 2)]
        assert replica.stderr().count('"event":"ShardOutOfReach"') == 1
    with Store.open(location) as store:
        shard = store.shard("fruit")
        assert shard.upper == Frontier.at(at + 1)
        assert shard.statistics().parts < 7
    done = CliRunner().invoke(cli.merge, ["--data-dir", location])
    assert "shard 'fruit':" in done.output
    assert "removed 0 files" in done.output
