"""Random lives of indexes under several ids, on real memory: each read is what a list of updates says.

A history creates indexes, aliases of them and of aliases, queries that re-export or count them, and writes,
compacts, drops, peeks and reconnects, while workers are held and turned at random. The judge knows the
updates and what was said, and nothing of arrangements.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller_proto.codec import encode_body
from controller_proto.command import AllowCompaction, CreateDataflow, InitializationComplete, Schedule
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport
from controller_proto.plan import Aggregate, Get, Reduce
from controller_proto.response import PeekError, PeekRows, Refused
from controller_proto.schema import SAMPLE_SCHEMA
from shm_arrangements.frontier import Frontier
from tests.clusterd.runtime.shell import COUNT_SCHEMA, Shell

FAR = 1000
STEPS = 40


@dataclass
class Said:
    """What the controller said of one id. kind: index, alias, frozen (a re-export by a query), count (by a
    query), tally (a maintained count). mates: the ids that its dataflow exports, in order.
    """

    kind: str
    original: str
    as_of: int
    floor: int
    dropped: bool = False
    scheduled: bool = False
    mates: tuple[str, ...] = ()

    @property
    def is_query(self) -> bool:
        return self.kind in ("frozen", "count")

    @property
    def is_count(self) -> bool:
        return self.kind in ("count", "tally")


@dataclass
class Asked:
    id: str
    time: int | None
    key: int | None
    must: str


class History:
    def __init__(self, seed: int, shell: Shell) -> None:
        self.random = random.Random(seed)
        self.shell = shell
        self.interactive = len(shell.loops) - 1
        self.updates: list[tuple[int, str, int, int]] = []
        self.upper = 0
        self.ids: dict[str, Said] = {}
        self.asked: dict[str, Asked] = {}
        self.number = 0
        self.write()
        shell.boot()

    # -- what is said

    def step(self) -> None:
        shell, choose = self.shell, self.random
        live = self.live()
        kind = choose.choice(["index", *["alias"] * 3, *["frozen"] * 2, "count", "schedule", *["write"] * 3,
                              *["compact"] * 3, "drop", *["peek"] * 6, "hold", "reconnect"])  # fmt: skip
        if kind == "index":
            self.create("index", "")
        elif kind in ("alias", "frozen", "count"):
            of_queries = kind != "alias" and self.interactive < 2  # else they may be on different workers
            if originals := [id for id in live if self.is_original(id, of_queries)]:
                self.create(kind, choose.choice(originals))
        elif kind == "write":
            self.write()
        elif kind == "hold" and self.interactive:
            shell.held ^= {choose.randrange(len(shell.loops))}
        elif kind == "reconnect":
            if choose.random() < 0.3:
                self.reconnect()
        elif live:
            self.on_one(kind, choose.choice(live if choose.random() < 0.9 else list(self.ids)))
        if choose.random() < 0.7:
            turns = choose.randrange(12)
            self.run(turns)

    def run(self, turns: int) -> None:
        """Let some of what can happen happen."""
        left = iter(range(turns))
        self.shell.settle(until=lambda: next(left, None) is None)

    def is_original(self, id: str, of_queries: bool) -> bool:
        """Whether a dataflow may import it."""
        said = self.ids[id]
        return not (said.is_query or said.is_count) or (
            of_queries and said.kind == "frozen" and not self.is_gone(id)
        )

    def create(self, kind: str, original: str) -> None:
        """One, or an alias with another or with what is computed of the same."""
        floor = self.ids[original].floor if original else 0
        as_of = floor + self.random.randrange(3)
        kinds = [kind]
        if kind in ("alias", "frozen") and self.random.random() < 0.4:
            kinds.append(self.random.choice(["alias", "tally"] if kind == "alias" else ["frozen", "count"]))
            self.random.shuffle(kinds)
        ids = tuple(
            f"{'t' if kind in ('frozen', 'count') else 'u'}{self.number + n + 1}" for n in range(len(kinds))
        )
        self.number += len(ids)
        for id, each in zip(ids, kinds, strict=True):
            self.ids[id] = Said(each, original, as_of, as_of, mates=ids)
        self.say_create(ids[0])
        for id in ids:
            if self.random.random() < 0.8:
                self.schedule(id)

    def say_create(self, id: str) -> None:
        """The dataflow of which `id` is the first export."""
        said, shell = self.ids[id], self.shell
        if said.kind == "index":
            shell.index(id, schedule=False, as_of=said.as_of)
            return
        until = said.as_of + 1 if said.is_query else None
        exports = tuple(
            Export(each, "index", "u5000", COUNT_SCHEMA, ()) if self.ids[each].is_count
            else Export(each, "index", said.original, SAMPLE_SCHEMA, (0,))
            for each in said.mates
        )  # fmt: skip
        builds = (Build("u5000", Reduce(Get(said.original), (), (Aggregate("count"),))),)
        header = DataflowHeader(id, said.as_of, until, (), (IndexImport(said.original),), exports)
        body = DataflowBody(builds if any(self.ids[each].is_count for each in said.mates) else ())
        shell.send(CreateDataflow(0, header, encode_body(body)))

    def schedule(self, id: str) -> None:
        if not self.ids[id].scheduled:
            self.ids[id].scheduled = True
            self.shell.send(Schedule(0, id))

    def write(self) -> None:
        rows = []
        for _ in range(self.random.randrange(4)):
            key = self.random.randrange(6)
            have = [row for row, count in self.rows_at(self.upper).items() if row[0] == key and count > 0]
            diff = -1 if have and self.random.random() < 0.4 else 1
            row = have[0] if diff < 0 else (key, self.random.choice("abc"))
            if row not in [each[0] for each in rows]:
                rows.append((row, diff))
        time = self.upper + self.random.randrange(2)
        self.updates += [(*row, time, diff) for row, diff in rows]
        self.upper = time + 1
        self.shell.write([row for row, _ in rows], time, [diff for _, diff in rows] or 1)

    def on_one(self, kind: str, id: str) -> None:
        said, shell = self.ids[id], self.shell
        if kind == "peek":
            time = self.random.choice([None, said.floor, said.floor + 1, self.upper, max(0, said.floor - 1)])
            key = self.random.randrange(6) if not said.is_count and self.random.random() < 0.4 else None
            uuid = f"p{len(self.asked)}"
            must = "dropped" if said.dropped else ""
            if not must and time is not None and time < said.floor:
                must = "below-since"
            self.asked[uuid] = Asked(id, time, key, must)
            shell.peek(uuid, id, time, None if key is None else [[key]])
        elif said.dropped:
            return
        elif kind == "schedule":
            self.schedule(id)
        elif kind == "compact":
            said.floor += self.random.randrange(3)
            shell.send(AllowCompaction(0, id, (said.floor,)))
        elif kind == "drop":
            said.dropped = True
            shell.drop(id)

    def reconnect(self) -> None:
        """A new controller says most of what goes on again, as a history does: at its least read time."""
        self.finish_session()
        self.shell.connect(complete=False)
        kept: dict[str, Said] = {}
        for id, said in self.ids.items():
            if id not in (said.mates or (id,))[:1]:
                continue  # said with the first
            mates = {each: self.ids[each] for each in said.mates or (id,)}
            lost = any(each.dropped for each in mates.values()) or said.is_query or self.random.random() < 0.2
            if lost or (said.original and said.original not in kept):
                continue
            as_of = max(
                *(each.floor for each in mates.values()), kept[said.original].floor if said.original else 0
            )
            for each, mate in mates.items():
                kept[each] = Said(mate.kind, mate.original, as_of, as_of, mates=mate.mates)
        scheduled = [id for id in kept if self.ids[id].scheduled]
        self.ids = kept
        for id in kept:
            if id in (kept[id].mates or (id,))[:1]:
                self.say_create(id)
        for id in scheduled:
            self.schedule(id)
        self.shell.send(InitializationComplete(0))

    # -- what is to be answered

    def rows_at(self, time: int) -> Counter[tuple[int, str]]:
        found: Counter[tuple[int, str]] = Counter()
        for key, text, at, diff in self.updates:
            if at <= time:
                found[key, text] += diff
        return +found

    def truth(self, id: str, time: int) -> Counter[Any]:
        said = self.ids[id]
        if said.is_query:
            time = min(time, said.as_of)
        if said.kind == "index":
            return Counter(self.rows_at(time))
        inside = self.truth(said.original, time)
        if not said.is_count:
            return inside
        return Counter({(inside.total(),): 1}) if inside else Counter()  # of nothing there is no row

    def judge(self) -> None:
        for uuid, asked in self.asked.items():
            response = self.shell.answer(uuid)
            if response is None:
                continue
            if isinstance(response.result, PeekError):
                code = response.result.code
                assert code == asked.must or (code == "dropped" and self.is_gone(asked.id)), (asked, response)
                continue
            assert isinstance(response.result, PeekRows)
            assert not asked.must, (asked, response)
            assert response.time is not None
            assert asked.time in (None, response.time)
            expected = self.truth(asked.id, response.time)
            if asked.key is not None:
                expected = Counter({row: n for row, n in expected.items() if row[0] == asked.key})
            assert Counter(self.shell.rows(uuid)) == expected, (asked, response)

    def is_gone(self, id: str) -> bool:
        """Whether it may be told so: what is maintained goes on without its original, a query may not."""
        said = self.ids[id]
        return said.dropped or (said.is_query and self.is_gone(said.original))

    def live(self) -> list[str]:
        return [id for id, said in self.ids.items() if not said.dropped]

    def finish_session(self) -> None:
        self.judge()
        self.asked.clear()
        self.shell.responses.clear()

    def finish(self) -> None:
        shell = self.shell
        shell.held.clear()
        for id in self.live():
            self.schedule(id)
        shell.write([(9, "last")], FAR)
        self.updates.append((9, "last", FAR, 1))
        shell.settle()
        self.judge()
        missing = [asked for uuid, asked in self.asked.items() if shell.answer(uuid) is None]
        assert not missing
        assert not [response for response in shell.responses if isinstance(response, Refused)]
        self.check_holds()
        for id in self.random.sample(self.live(), len(self.live())):
            shell.drop(id)
            self.run(self.random.randrange(8))
        shell.settle()
        assert not [name for name in shell.names() if name.split(".")[2] in ("p", "a", "b")], shell.names()
        for loop in shell.loops:
            assert loop.owned.count == loop.owned.statistics().publications == 0
            if loop.published is not None:
                assert not any(vars_of(loop.published.statistics()))

    def check_holds(self) -> None:
        """An arrangement keeps apart exactly what the least of its ids may still be read at."""
        for id, said in self.ids.items():
            if said.kind == "index" and (floors := [self.ids[i].floor for i in self.family(id)]):
                key = next(key for key in self.shell.loops[0].core.state.collections if key[0] == id)
                assert self.shell.loops[0].owned[key].since == Frontier.at(min(floors)), (id, floors)

    def family(self, id: str) -> list[str]:
        """The ids that share its arrangement and may be read."""
        found = [] if self.ids[id].dropped else [id]
        for other, said in self.ids.items():
            if said.kind == "alias" and said.original == id:
                found += self.family(other)
        return found


def vars_of(statistics: Any) -> list[int]:
    return [getattr(statistics, name) for name in statistics.__dataclass_fields__]


def walk(seed: int, interactive: int, tmp_path: Path) -> None:
    print(f"seed={seed} interactive={interactive}")
    with Shell(tmp_path / f"{interactive}-{seed}", interactive) as shell:
        history = History(seed, shell)
        for _ in range(STEPS):
            history.step()
            history.judge()
        history.finish()


@pytest.mark.slow
@pytest.mark.parametrize("interactive", [0, 1, 2])
def test_histories_of_aliases_read_what_the_updates_say(interactive: int, tmp_path: Path) -> None:
    for seed in range(8):
        walk(seed, interactive, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("interactive", [0, 1, 2])
def test_hundreds_of_histories_of_aliases(interactive: int, tmp_path: Path) -> None:
    for seed in range(1000, 1400):  # each waits for the disk, and a test may take three minutes
        walk(seed, interactive, tmp_path)
