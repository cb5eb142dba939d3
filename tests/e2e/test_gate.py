"""The gate: `enable_two_runtime_compute` is the launcher's, for replicas launched from then on.

With it off, said or unsaid, a replica is Solo: the same processes, the same answers, nobody interactive.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from clusterd.client import Client
from clusterd.launcher import Replica, launch
from controller_proto.command import ReadLimits
from tests.e2e.support import role

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

GATE = "enable_two_runtime_compute"
SHARED = {"supervisor", "mux", "reaper"}


def _flags(replica: Replica) -> list[str]:
    """What the launcher said, but for addresses and places."""
    return [word for word in replica.process.args if word.startswith("--")]  # type: ignore[union-attr]


def _answers(client: Client) -> list[tuple[object, ...]]:
    """Everything a controller hears of a history, but for which runtime it hears it from."""
    fruit = client.create_index("fruit", key=["name"], as_of=0)
    query = {"limit": 2, "order_by": ["size"]}
    heard: list[tuple[object, ...]] = []
    for options in (
        {},
        {"keys": ["pear"]},
        {"at": 0, **query},
        {"limits": ReadLimits(rows_read=1)},
        {"at": "strict"},
    ):
        try:
            answer = fruit.peek(**options)  # type: ignore[arg-type]
            heard.append((answer.rows(), answer.time, answer.served_by))
        except Exception as error:
            heard.append((type(error).__name__, str(error).replace(fruit.id, "fruit"), ""))
    fruit.wait(1)
    fruit.drop()
    return heard


def test_gate_off_is_solo_and_a_change_is_for_replicas_launched_from_then_on(tmp_path: Path) -> None:
    heard = {}
    flags = {}
    for gate in (False, True):
        with (
            launch({GATE: gate}, tmp_path / str(gate), interactive_workers=2, introspection=False) as replica,
            Client.connect(replica) as client,
        ):
            flags[gate] = _flags(replica)
            workers = {"maintenance/0", "interactive/0", "interactive/1"} if gate else {"solo/0"}
            assert set(replica.pids) == SHARED | workers
            assert replica.mode == ("two-runtime" if gate else "solo")
            client.create_shard("fruit", {"name": "text", "size": "bigint"})
            client.write("fruit", [("pear", 5), ("fig", 2), ("plum", 3)], at=0)
            client.write("fruit", [("kiwi", 4)], at=1)
            first = _answers(client)
            assert {served for *_, served in first} == {role(replica.mode), ""}
            before = {child.pid for child in psutil.Process(replica.process.pid).children(recursive=True)}
            client.update_configuration(**{GATE: not gate})  # taken, and of no effect here
            assert [heard[:-1] for heard in _answers(client)] == [heard[:-1] for heard in first]
            after = {child.pid for child in psutil.Process(replica.process.pid).children(recursive=True)}
            assert after == before
            heard[gate] = [told[:-1] for told in first]
    assert heard[True] == heard[False]
    assert "--interactive-workers" in flags[True]
    assert flags[False] == [flag for flag in flags[True] if flag != "--interactive-workers"]
