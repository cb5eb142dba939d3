"""Copies by a real replica, in both modes, through the client: a whole file or none, also after kill -9."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet
import pytest

from clusterd.client import CopyFailed, PeekFailed, aio
from controller_proto.command import TestHook
from controller_proto.errors import Disconnected, Refusal
from tests.e2e.support import MODES, client_in, replica_in

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FRUIT = {"name": "text", "kilos": "bigint?"}
ROWS = [("apple", 3), ("pear", None), ("pear", None)]


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "data")


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_through_the_client_and_one_that_a_killed_replica_was_writing(
    mode: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with client_in(mode, data) as (_, client):
        client.create_shard("fruit", FRUIT)
        fruit = client.create_index("fruit", key=["name"])
        at = client.write("fruit", ROWS)
        client.write("fruit", [("late", 1)])
        assert client.copy_to(fruit, tmp_path / "fruit.parquet", as_of=at) == 3
        found = pyarrow.parquet.read_table(tmp_path / "fruit.parquet").to_pylist()
        assert sorted((row["name"], row["kilos"]) for row in found) == ROWS
        assert client.copy_to("fruit", f"file://{tmp_path}/fruit.csv") == 4
        assert (tmp_path / "fruit.csv").read_text().startswith('"name","kilos"\n')
        text = "Map (1 / (#1 - 3))\n  Get fruit"
        with pytest.raises(CopyFailed, match="eval-error: division by zero"):
            client.copy_to(text, tmp_path / "none.csv", as_of=at)
        with pytest.raises(Refusal, match="is no place for a file"):
            client.copy_to("fruit", "nowhere://fruit.csv")
        with pytest.raises(TimeoutError, match=r"none\.csv was not written after 0\.05 s"):
            client.copy_to("fruit", tmp_path / "none.csv", as_of=99, timeout_s=0.05)
        with pytest.raises(PeekFailed, match=r"wait-limit: u2 was not sealed at 99 within 0\.01 s"):
            fruit.peek(at=99, wait_s=0.01)
        with pytest.raises(ValueError, match="wait_s must be"):
            fruit.peek(wait_s=-1)
        assert _files(tmp_path) == ["fruit.csv", "fruit.parquet"]
        worker = f"{'maintenance' if mode == 'two-runtime' else 'solo'}/0"
        hook = client.core.say(TestHook(0, worker, "failpoint:exit", "copy.commit"), judged=True)
        client.run(client.core.accepted([hook]))
        with pytest.raises(Disconnected):
            client.copy_to("fruit", tmp_path / "none.csv")
        assert len(_files(tmp_path)) == 3
    with replica_in(mode, data) as replica:
        assert _files(tmp_path) == ["fruit.csv", "fruit.parquet"]

        async def awaited() -> int:
            async with aio.Client.connect(replica) as client:
                return await client.copy_to("fruit", tmp_path / "again.parquet")

        assert asyncio.run(awaited()) == 4
        assert pyarrow.parquet.read_metadata(tmp_path / "again.parquet").num_rows == 4
