"""Scenarios that are too long, or too random, for a script; in both modes, the answering role asserted."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clusterd.client import Client, Index, PeekFailed
from clusterd.client.answer import Answer
from clusterd.client.joins import Side, anti_join, except_all, intersect_all, outer_join, semi_join
from clusterd.convert import updates_from_rows
from clusterd.driver.driver import carry_out
from clusterd.driver.run import Target, launched
from controller_proto.plan import Plan
from controller_proto.response import PeekRows
from shm_arrangements.frontier import Frontier
from tests.e2e.support import MODES, client_in, role

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.parametrize("mode", MODES)]

Row = tuple[Any, ...]
History = list[tuple[Row, int, int]]


def append(client: Client, name: str, history: History, lower: int, upper: int) -> None:
    """The updates with times in [lower, upper), as one append."""
    ready = [u for u in history if lower <= u[1] < upper]
    shard = client.store.shard(name)
    updates = updates_from_rows(
        shard.schema, [u[0] for u in ready], [u[1] for u in ready], [u[2] for u in ready]
    )
    shard.append(updates, Frontier.at(lower), Frontier.at(upper))


def counted(answer: Answer, mode: str) -> Counter[Row]:
    assert answer.served_by == role(mode)
    return Counter(map(tuple, answer.rows()))


def at(history: History, time: int) -> Counter[Row]:
    counts: Counter[Row] = Counter()
    for row, when, diff in history:
        counts[row] += diff if when <= time else 0
    return Counter({row: count for row, count in counts.items() if count})


def test_b8_point_reads_are_answered_before_the_last_of_the_scans_sent_before_them(mode: str) -> None:
    rows, scans, reads = 1_500_000, 8, 20
    with launched(Target(mode=mode, timeout_s=60.0)) as run:

        def do(line: str) -> list[str]:
            return carry_out(run, line, ())

        assert do("create-instance") == do("initialization-complete") == ["ok"]
        do(f"write-single-ts shard=s ts=0 count={rows} row-bytes=8")
        assert do("define-index source=1000 index=1 shard=s key=[0] as-of=0 upper=1") == ["ok"]
        assert do("schedule id=1") == do("await-frontier id=1 ts=1") == ["ok"]
        for number in range(scans):
            wanted = f"filter=(#0 % 100000 = {number})"
            assert do(f"start-peek name=scan{number} id=1 ts=0 {wanted} project=(#0) no-sync") == ["ok"]
        for number in range(reads):
            assert do(f"start-peek name=read{number} id=1 ts=0 keys=[({number})] project=(#0) no-sync") == [
                "ok"
            ]
        for number in range(scans):
            found = [str(n) for n in range(number, rows, 100_000)]
            assert do(f"await-peek name=scan{number}") == found
        for number in range(reads):
            assert do(f"await-peek name=read{number}") == [str(number)]
        order = list(run.session.answers)
        names = {peek.peek.uuid: name for name, peek in run.started.items()}
        arrived = [names[uuid] for uuid in order if uuid in names]
        assert sorted(arrived) == sorted(names.values())
        assert arrived[-1].startswith("scan"), arrived
        assert all(isinstance(answer.result, PeekRows) for answer in run.session.answers.values())


def test_b21_five_hundred_peeks_in_flight_get_one_right_answer_each(mode: str, tmp_path: Path) -> None:
    seed = 21
    print(f"seed {seed}")
    rng = random.Random(seed)
    live: list[Row] = []
    history: History = []
    for time in range(20):
        for _ in range(30):
            if live and rng.random() < 0.4:
                history.append((live.pop(rng.randrange(len(live))), time, -1))
            else:
                live.append((rng.randrange(40), rng.choice("abc")))
                history.append((live[-1], time, 1))
    with client_in(mode, tmp_path / "data") as (_, client):
        client.create_shard("s", {"k": "bigint", "v": "text"})
        append(client, "s", history, 0, 10)
        index = client.create_index("s", key=["k"], as_of=0)
        asked = []
        for _ in range(500):
            keys = rng.choice([None, *([rng.sample(range(45), rng.randint(1, 4))] * 4)])
            time = rng.randrange(20)
            asked.append((client.start_peek(index, at=time, keys=keys), time, keys))
        for lower in range(10, 20, 2):
            append(client, "s", history, lower, lower + 2)
        rng.shuffle(asked)
        for uuid, time, keys in asked:
            wanted = at(history, time)
            if keys is not None:
                wanted = Counter({row: count for row, count in wanted.items() if row[0] in keys})
            answer = client.await_peek(uuid)
            assert answer.time == time
            assert counted(answer, mode) == wanted, (time, keys)
        assert len({uuid for uuid, _, _ in asked}) == 500


def test_b19_a_deep_history_read_from_its_middle_keeps_what_went_and_came_again(
    mode: str, tmp_path: Path
) -> None:
    history: History = [((n, 0), n % 32, 1) for n in range(5_000)]
    for n in range(50):
        key = (100_000 + n, 1)
        history += [(key, 3, 1), (key, 9, -1), (key, 20, 1)]
    with client_in(mode, tmp_path / "data") as (_, client):
        client.create_shard("s", {"k": "bigint", "v": "bigint"})
        append(client, "s", history, 0, 32)
        index = client.create_index("s", key=["k"], as_of=10)
        view = client.create_index("Reduce aggregates=[count(*), sum(#1)]\n  Get s", as_of=10)
        keys = [100_000 + n for n in range(50)]
        for time in range(10, 32):
            wanted = at(history, time)
            assert counted(index.peek(at=time), mode) == wanted
            assert sum(counted(index.peek(at=time, keys=keys), mode).values()) == (50 if time >= 20 else 0)
            total = sum(count for (_, v), count in wanted.items() if v)
            assert [tuple(map(int, row)) for row in view.peek(at=time).rows()] == [
                (sum(wanted.values()), total)
            ]
        for below in (index, view):
            with pytest.raises(PeekFailed, match="cannot be read at 9: its since is 10"):
                below.peek(at=9)


def check_at_every_time(
    client: Client, mode: str, plans: dict[str, tuple[Plan, Plan, list[dict[Row, int]]]]
) -> None:
    """Of each: a plan over shards to maintain, one over indexes to query, and what they are at each time."""
    views: dict[str, Index] = {
        name: client.create_index(plan, as_of=0) for name, (plan, _, _) in plans.items()
    }
    for name, (_, over_indexes, wanted) in plans.items():
        for time, rows in enumerate(wanted):
            assert counted(views[name].peek(at=time), mode) == Counter(rows), (name, time)
            assert counted(client.query(over_indexes, at=time), mode) == Counter(rows), (name, time)


def test_bug35_an_outer_join_sees_a_key_that_lost_its_partner_as_unmatched(mode: str, tmp_path: Path) -> None:
    """In ticks as they come, and in one round of all of them."""
    left: History = [((3,), 3, 1), ((3,), 4, 1), ((3,), 6, -2)]
    right: History = [((3,), 1, 1), ((3,), 2, -1), ((3,), 5, 1)]
    wanted: list[dict[Row, int]] = [
        {}, {(None, 3): 1}, {}, {(3, None): 1}, {(3, None): 2}, {(3, 3): 2}, {(None, 3): 1},
    ]  # fmt: skip
    with client_in(mode, tmp_path / "data") as (_, client):
        for name in ("l", "r"):
            client.create_shard(name, {"k": "bigint"})
        of = client.store.shard("l").schema
        plan = outer_join(Side(client.source("l"), of), Side(client.source("r"), of), [(0, 0)], kind="full")
        indexes = [client.create_index(name, key=["k"], as_of=0).get for name in ("l", "r")]
        query = outer_join(Side(indexes[0], of), Side(indexes[1], of), [(0, 0)], kind="full")
        view = client.create_index(plan, as_of=0)
        for time in range(7):
            append(client, "l", left, time, time + 1)
            append(client, "r", right, time, time + 1)
            view.wait(time)
        for time, rows in enumerate(wanted):
            assert counted(view.peek(at=time), mode) == Counter(rows), time
        check_at_every_time(client, mode, {"full": (plan, query, wanted)})


def test_bug36_joins_of_a_table_with_itself_over_a_null_key(mode: str, tmp_path: Path) -> None:
    history: History = [((1, None), 1, 1), ((2, 8), 1, 1), ((1, None), 2, -1)]
    with client_in(mode, tmp_path / "data") as (_, client):
        client.create_shard("t", {"id": "bigint", "a": "bigint?"})
        append(client, "t", history, 0, 3)
        of = client.store.shard("t").schema
        index = client.create_index("t", key=["a"], as_of=0)
        alone: dict[Row, int] = {(1, None, None, None): 1}
        other: dict[Row, int] = {(None, None, 1, None): 1}
        both: dict[Row, int] = {(2, 8, 2, 8): 1}
        at_1: dict[str, dict[Row, int]] = {
            "full": alone | other | both, "left": alone | both, "right": other | both,
            "semi": {(2, 8): 1}, "anti": {(1, None): 1},
        }  # fmt: skip

        def made(kind: str, get: Plan) -> Plan:
            me = Side(get, of)
            match kind:
                case "semi":
                    return semi_join(me, me, [(1, 1)])
                case "anti":
                    return anti_join(me, me, [(1, 1)])
                case "full" | "left" | "right":
                    return outer_join(me, me, [(1, 1)], kind=kind)
            raise AssertionError(kind)

        check_at_every_time(client, mode, {
            kind: (
                made(kind, client.source("t")),
                made(kind, index.get),
                [{}, rows, {row: n for row, n in rows.items() if 8 in row}],
            )
            for kind, rows in at_1.items()
        })  # fmt: skip


def test_bug38_except_all_and_intersect_all_are_of_the_total(mode: str, tmp_path: Path) -> None:
    a: History = [((7,), 1, 3)]
    b: History = [((7,), 1, 1), ((7,), 2, 3), ((7,), 3, -2), ((7,), 4, -2)]
    with client_in(mode, tmp_path / "data") as (_, client):
        for name, history in (("a", a), ("b", b)):
            client.create_shard(name, {"x": "bigint"})
            append(client, name, history, 0, 5)
        x, y = (client.create_index(name, as_of=0).get for name in ("a", "b"))
        sources = client.source("a"), client.source("b")
        counts = {"except": [0, 2, 0, 1, 3], "intersect": [0, 1, 3, 2, 0]}
        wanted: dict[str, list[dict[Row, int]]] = {
            name: [{(7,): n} if n else {} for n in found] for name, found in counts.items()
        }
        check_at_every_time(client, mode, {
            "except": (except_all(*sources), except_all(x, y), wanted["except"]),
            "intersect": (intersect_all(*sources), intersect_all(x, y), wanted["intersect"]),
        })  # fmt: skip
