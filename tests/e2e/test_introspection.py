"""What is wrong with a replica is found from its introspection relations alone, by the document's queries."""

from __future__ import annotations

import os
import re
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from clusterd.__main__ import main
from clusterd.client import Client
from clusterd.introspection.document import document
from tests.e2e.support import MODES, client_in, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DEADLINE_S = 30.0
EDGES = {"a": "bigint", "b": "bigint"}
ROWS = 20_000


def _asked(question: str) -> str:
    """The query that docs/introspection.md answers a question with."""
    found = re.search(rf"{re.escape(question)}.*?:\n\n((?:    .*\n)+)", document())
    assert found is not None, question
    return dedent(found[1])


def _stuck(client: Client, id: str) -> list[tuple[object, ...]]:
    query = _asked("Which input holds a frontier back").replace("'u4'", f"'{id}'")
    return client.sql(query).rows()


@pytest.mark.parametrize("mode", MODES)
def test_a_stuck_input_a_pinned_index_and_a_skewed_join_are_found(mode: str, tmp_path: Path) -> None:
    with client_in(mode, tmp_path, introspection=True) as (replica, client):
        for shard in ("fast", "slow", "big", "small"):
            client.create_shard(shard, EDGES)
        client.write("fast", [(1, 2)])
        client.write("slow", [(2, 3)])
        client.write("small", [(7, 1)])
        client.write("big", [(7, n) for n in range(ROWS)] + [(n, 0) for n in range(100)])
        fast = client.create_index("fast", key=["a"], as_of=0)
        slow = client.create_index("slow", key=["a"], as_of=0)
        both = client.create_index(
            f"Join on=(#1 = #2)\n  Get {fast.id}\n  Get {slow.id}", names=["a", "b", "c", "d"], as_of=0
        )
        over = client.create_index(both, key=["a"], as_of=0)
        skewed = client.create_index(
            "Join on=(#0 = #2)\n  Filter #1 >= 0\n    Get big\n  Filter #1 >= 0\n    Get small",
            names=["a", "b", "c", "d"], as_of=0,
        )  # fmt: skip
        for made in (over, skewed):
            client.wait_hydrated(made.id, DEADLINE_S)

        # Which input holds a stuck frontier back.
        client.advance("fast", 1_000)
        path = [(over.id, both.id), (both.id, slow.id), (slow.id, "slow")]
        wait_until(
            lambda: [row[:2] for row in _stuck(client, over.id)] == path, DEADLINE_S, "the path is told"
        )

        # Which operator uses the memory of the skewed join: what keeps the large side.
        largest = client.sql(_asked("Which operators use the memory")).rows()[0]
        lines = client.sql(
            "SELECT p.text, a.bytes FROM arrangement_sizes a"
            " JOIN plan_mapping p USING (worker, dataflow, operator)"
            f" JOIN exports e USING (worker, dataflow) WHERE e.id = '{skewed.id}' AND a.bytes = {largest[4]}"
        ).rows()
        assert largest[3] >= ROWS
        assert {str(text).split()[0] for text, _ in lines} <= {"Arrange", "Export"}

        # Which reader pins an index that was dropped.
        before = client.sql(_asked("Who pins the memory")).rows()
        assert before == []
        attached = over.attach()
        view = attached.snapshot()
        client.drop(over)
        pinned: list[tuple[object, ...]] = []

        def told() -> bool:
            pinned[:] = client.sql(_asked("Who pins the memory")).rows()
            return bool(pinned)

        wait_until(told, DEADLINE_S, "the reader of what was dropped is told")
        ((id, reader, nbytes),) = pinned
        assert (id, str(reader).rpartition("[")[2]) == (over.id, f"{os.getpid()}]")
        assert int(str(nbytes)) > 0
        del view
        attached.close()
        wait_until(lambda: not told(), DEADLINE_S, "it lets go")

        # The plan of the skewed join, with what each line of it has cost.
        arguments = ["explain", "--analyze", skewed.id, "--connect", replica.address]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        lines_of = done.output.splitlines()
        assert "hydrated in" in lines_of[0]
        (source,) = [line for line in lines_of if "Source" in line and f"{ROWS + 100:,}" in line]
        (join,) = [line for line in lines_of if " Join " in line]
        assert f"{ROWS:,}" in join
        assert source
        plain = CliRunner().invoke(main, ["explain", skewed.id, "--connect", replica.address])
        assert plain.output.startswith("Export index")
        absent = CliRunner().invoke(main, ["explain", "u999999", "--connect", replica.address])
        assert (absent.exit_code, "no dataflow makes u999999" in absent.output) == (1, True)
