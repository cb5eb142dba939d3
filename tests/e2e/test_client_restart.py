"""A client whose replica ended: it goes on with another one at the same address, over the same shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterd.client import Client, PeekFailed, SubscriptionEnded
from clusterd.launcher import launch
from controller_proto.errors import Disconnected, Refusal

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_views_are_built_anew_by_a_replica_that_took_the_place_of_another(tmp_path: Path) -> None:
    data, listen = tmp_path / "data", f"unix:{tmp_path / 'socket'}"
    with launch({}, data, listen=listen) as replica:
        client = Client.connect(replica)
        client.create_shard("fruit", {"name": "text", "kilos": "bigint"})
        fruit = client.create_index("fruit", key=["name"])
        t = client.write("fruit", [("apple", 3)])
        changes = client.subscribe(fruit, as_of=t)
        assert changes.next() is not None
    with pytest.raises(Disconnected):
        fruit.peek(at=t)
    with pytest.raises(FileNotFoundError, match="is `clusterd serve` running there"):
        client.reconnect()
    with launch({}, data, listen=listen) as replica, client:
        client.reconnect()
        assert fruit.peek(at=t).rows() == [("apple", 3)]
        with fruit.attach() as attached:
            assert attached.lookup("apple", at=t)["kilos"].tolist() == [3]
        with pytest.raises(SubscriptionEnded, match="disconnected"):
            changes.next()
        later = client.write("fruit", [("pear", 5)])
        assert changes.upper is not None
        with client.subscribe(fruit, as_of=changes.upper - 1, snapshot=False) as again:
            told = []
            while again.upper != later + 1:
                batch = again.next()
                assert batch is not None
                told += batch.changes.rows()
        assert told == [(("pear", 5), later, 1)]


def test_a_query_is_written_as_text_too_and_who_was_fenced_is_told_once(tmp_path: Path) -> None:
    with launch({}, tmp_path / "data") as replica, Client.connect(replica) as client:
        client.create_shard("fruit", {"name": "text", "kilos": "bigint"})
        fruit = client.create_index("fruit", key=["name"], as_of=0)
        t = client.write("fruit", [("apple", 3), ("pear", 5)])
        assert client.query(f"Filter #1 > 3\n  Get {fruit.id}", at=t).rows() == [("pear", 5)]
        assert client.query(fruit, at=t).rows() == fruit.peek(at=t).rows()
        with Client.connect(replica), pytest.raises(Refusal, match=r"^fenced: epoch"):
            client.reconnect()


def test_what_was_refused_is_neither_waited_for_nor_said_again(tmp_path: Path) -> None:
    with launch({}, tmp_path / "data") as replica, Client.connect(replica) as client:
        client.create_shard("fruit", {"name": "text", "kilos": "bigint"})
        fruit = client.create_index("fruit", key=["name"], as_of=0)
        t = client.write("fruit", [("apple", 3)])
        with pytest.raises(PeekFailed, match="bad-message"):
            fruit.peek(at=t, limit=-1)
        with pytest.raises(Refusal, match="unknown-setting"):
            client.update_configuration(bogus=1)
        open_peek = client.start_peek(fruit, limit=-1)
        client.reconnect()
        assert fruit.peek(at=t).rows() == [("apple", 3)]
        with pytest.raises(PeekFailed, match="bad-message"):
            client.await_peek(open_peek)
        for wrong in (-1, 1 << 64):
            with pytest.raises(ValueError, match="as_of must not be"):
                client.create_index("fruit", as_of=wrong)
            with pytest.raises(ValueError, match="since must not be"):
                fruit.allow_compaction(wrong)
