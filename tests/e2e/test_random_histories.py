"""Random histories through a real daemon, in every mode, against a naive fold at every time.

One daemon serves many histories. Each has its own shards, appended to in random cuts (many times in one
append, none, empty ones), with values that are hard: NULL, NaN, -0.0, the ends of ranges, duplicates. Views
over them, and over each other's indexes, are made, compacted and dropped at random moments; peeks (by key, by
scan, with finishing, some canceled) and one-shot queries are sent at random times, past and future, and
awaited when their time has come. In the end every view is read at every time, by the daemon and attached.
"""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clusterd.client import Client, Index, PeekCanceled, PeekFailed
from clusterd.convert import updates_from_rows
from clusterd.launcher import Replica
from controller_proto.ids import GlobalId
from controller_proto.plan import OrderBy, Plan, free_ids
from controller_proto.print_plan import print_plan
from controller_proto.schema import Column, Schema
from controller_proto.schema import ColumnType as T
from controller_proto.typing_rules import plan_schema
from shm_arrangements.attach import Attached
from shm_arrangements.errors import DataError
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive, random_plans
from tests.clusterd.naive_answers import Question, counts_of, may_fail_with, wire_keys
from tests.e2e.support import replica_in, role, segments, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TIMES = 8
PAIRS = 5_000  # of rows a naive join may look at, a plan and time
DEADLINE_S = 30.0

DOMAIN: dict[T, list[Any]] = {
    T.BOOL: [True, False],
    T.INT64: [0, 0, 0, 1, 1, 2, 3, -1, naive.I64_MAX, naive.I64_MIN],
    T.FLOAT64: [0.0, -0.0, 1.0, 0.1, -2.5, naive.NAN, -naive.NAN, float("inf"), float("-inf"),
                1.7976931348623157e308, 5e-324],
    T.TEXT: ["", "a", "b", "abcdefgh", "abcdefghi", "é", "\0", "\U0001f980", "x" * 300],
    T.TIMESTAMP: [0, 1, -5, naive.I64_MAX, naive.I64_MIN],
}  # fmt: skip

Update = tuple[random_plans.Row, int, int]

# Values that no row has, of types that DOMAIN has none of.
ABSENT: dict[T, list[Any]] = defaultdict(list, {T.NUMERIC: [10**30], T.JSONB: ['"nowhere"']})


@dataclass
class View:
    """An index beside the naive answer to it, by time."""

    index: Index
    answers: list[naive.Collection]
    since: int
    until: int | None = None
    dropped: bool = False

    def at(self, time: int) -> naive.Collection:
        return self.answers[min(time, len(self.answers) - 1 if self.until is None else self.until - 1)]


@dataclass
class Asked(Question):
    """A peek under way, and what its answer may be."""

    uuid: str = ""
    view: View = field(kw_only=True)
    at: int = field(kw_only=True)
    below_since: bool = False
    may_be_canceled: bool = False

    def __str__(self) -> str:
        return f"{self.view.index.id} at {self.at} keys={self.keys} {self.where} {self.order}"


class History:
    """One seed's shards, views and questions."""

    def __init__(self, seed: int, number: int, client: Client, mode: str) -> None:
        self.rng = rng = random.Random(seed)
        self.client = client
        self.role = role(mode)
        self.signed = rng.random() < 0.2
        self.late: dict[str, list[Update]] = {}
        self.uppers: dict[str, int | None] = {}
        self.env: dict[GlobalId, Schema] = {}
        self.at_time: dict[GlobalId, list[naive.Collection]] = {}
        self.views: list[View] = []
        self.asked: list[Asked] = []
        for shard in range(rng.choice([1, 2, 2])):
            self._shard(f"h{number}.{shard}")

    # What there is.

    def _shard(self, name: str) -> None:
        rng = self.rng
        columns = []
        for position in range(rng.choice([1, 2, 2, 3, 4])):
            type_ = T.INT64 if position == 0 and rng.random() < 0.8 else rng.choice(list(DOMAIN))
            columns.append(Column(f"c{position}", type_, rng.random() < 0.4))
        schema = Schema(tuple(columns))
        self.client.create_shard(name, schema)
        self.late[name] = self._updates(schema)
        self.uppers[name] = 0
        source = self.client.source(name).id
        self.env[source] = schema
        self.at_time[source] = [naive.at(schema.types, self.late[name], t) for t in range(TIMES)]

    def _updates(self, schema: Schema) -> list[Update]:
        rng = self.rng
        live: list[random_plans.Row] = []
        out: list[Update] = []
        valid = not self.signed or rng.random() < 0.5
        for time in sorted(rng.randrange(TIMES) for _ in range(rng.choice([0, 6, 15, 25]))):
            if live and rng.random() < 0.45:
                out.append((live.pop(rng.randrange(len(live))), time, -1))
                continue
            row = tuple(self._value(column) for column in schema.columns)
            copies = rng.choice([1, 1, 1, 2])
            live += [row] * copies
            out.append((row, time, copies if valid or rng.random() < 0.8 else -copies))
        return out

    def _value(self, column: Column) -> Any:
        if column.nullable and self.rng.random() < 0.25:
            return None
        return self.rng.choice(DOMAIN[column.type])

    # What happens.

    def append(self, name: str, to: int) -> None:
        """Seal a shard up to `to`, in one append."""
        upper = self.uppers[name]
        assert upper is not None
        ready = [u for u in self.late[name] if upper <= u[1] < to]
        self.rng.shuffle(ready)
        shard = self.client.store.shard(name)
        updates = updates_from_rows(
            shard.schema, [u[0] for u in ready], [u[1] for u in ready], [u[2] for u in ready]
        )
        ends = to >= TIMES and self.rng.random() < 0.2
        shard.append(updates, Frontier.at(upper), Frontier.empty() if ends else Frontier.at(to))
        self.uppers[name] = None if ends else to

    def advance(self) -> bool:
        """Append to some shards; whether some are not at the end."""
        for name, upper in self.uppers.items():
            if upper is not None and upper < TIMES and self.rng.random() < 0.6:
                self.append(name, self.rng.randint(upper, TIMES))
        return any(upper is not None and upper < TIMES for upper in self.uppers.values())

    def _answers(self, plan: Plan) -> list[naive.Collection]:
        inputs = free_ids(plan)
        return [
            naive.Interpreter({i: self.at_time[i][t] for i in inputs}, PAIRS, t).plan(plan)
            for t in range(TIMES)
        ]

    def _plan(self, env: Mapping[GlobalId, Schema], depth: int) -> tuple[Plan, list[naive.Collection]]:
        while True:
            plan = random_plans.Plans(self.rng, env, signed=self.signed).plan(depth)
            try:
                return plan, self._answers(plan)
            except naive.TooLarge:
                continue

    def _key(self, schema: Schema) -> tuple[int, ...]:
        positions = list(range(schema.arity))
        self.rng.shuffle(positions)
        return tuple(positions[: self.rng.randint(0, min(2, len(positions)))])

    def _create(self, plan: Plan, key: tuple[int, ...], kind: str, as_of: int, until: int | None) -> Index:
        made = self.client.dataflows
        create = made.create(plan, key, None, made.fresh(kind), as_of, until=until, schedule=True)
        return Index(self.client, self.client.run(create))

    def create_view(self) -> None:
        """A maintained view over shards and indexes that stand."""
        rng = self.rng
        env = {id: schema for id, schema in self.env.items() if id in self.client.dataflows.schemas}
        standing = [v for v in self.views if not v.dropped and v.until is None]
        env.update({v.index.id: v.index.schema for v in standing})
        plan, answers = self._plan(env, rng.choice([0, 1, 2, 2, 3]))
        used = free_ids(plan)
        floor = max([v.since for v in standing if v.index.id in used], default=0)
        as_of = rng.randint(floor, min(floor + rng.choice([0, 0, 2, 5]), TIMES - 1))
        until = rng.randint(as_of + 1, TIMES) if rng.random() < 0.15 else None
        index = self._create(plan, self._key(plan_schema(plan, env)), "u", as_of, until)
        print(f"view {index.id} as_of={as_of} until={until}", *print_plan(plan), sep="\n")
        self.env[index.id] = index.schema
        self.at_time[index.id] = answers
        self.views.append(View(index, answers, as_of, until))

    def query(self) -> None:
        """A one-shot dataflow over indexes, at a time that may not be sealed yet; asked at once."""
        standing = [v for v in self.views if not v.dropped]
        if not standing:
            return
        chosen = self.rng.sample(standing, min(len(standing), 2))
        plan, answers = self._plan({v.index.id: v.index.schema for v in chosen}, self.rng.choice([0, 1, 2]))
        used = [v for v in chosen if v.index.id in free_ids(plan)]
        at = self.rng.randint(max([v.since for v in used], default=0), TIMES - 1)
        if any(v.until is not None and v.until <= at for v in used):
            return  # what is read then is the view's last state, which `answers` is not
        index = self._create(plan, (), "t", at, at + 1)
        print(f"query {index.id} at={at}", *print_plan(plan), sep="\n")
        view = View(index, answers, at)
        self.asked.append(Asked(uuid=self.client.start_peek(index, at=at), view=view, at=at))
        self.views.append(view)
        view.dropped = True  # not imported by others; dropped at the end

    def ask(self) -> None:
        """A peek of some view at some time."""
        rng = self.rng
        standing = [v for v in self.views if not v.dropped]
        if not standing:
            return
        view = rng.choice(standing)
        asked = Asked(view=view, at=rng.randrange(TIMES), key=view.index.key)
        schema, key = view.index.schema, view.index.key
        types = schema.types
        if key and rng.random() < 0.5:
            rows = [row for t in range(TIMES) for row in view.at(t).rows]
            asked.keys = [tuple(row[i] for i in key) for row in rng.sample(rows, min(len(rows), 3))]
            asked.keys.append(tuple(rng.choice([*DOMAIN.get(types[i], ABSENT[types[i]]), None]) for i in key))
        elif rng.random() < 0.5:
            plans = random_plans.Plans(rng, {})
            asked.where = tuple(plans.predicate(schema) for _ in range(rng.choice([0, 1])) if schema.arity)
            asked.order = tuple(
                OrderBy(i, rng.random() < 0.5, rng.random() < 0.3)
                for i in range(schema.arity) if rng.random() < 0.5
            )  # fmt: skip
            asked.limit, asked.offset = rng.choice([None, 0, 1, 3]), rng.choice([0, 0, 1, 2])
        asked.below_since = asked.at < view.since
        asked.uuid = self.client.start_peek(
            view.index,
            at=asked.at,
            keys=wire_keys(asked.keys, [types[i] for i in key]),
            where=asked.where,
            order_by=asked.order or (),
            limit=asked.limit,
            offset=asked.offset,
        )
        self.asked.append(asked)
        if rng.random() < 0.1:
            asked.may_be_canceled = True
            self.client.cancel_peek(asked.uuid)

    def compact(self) -> None:
        standing = [v for v in self.views if not v.dropped]
        if standing:
            view = self.rng.choice(standing)
            view.since = max(view.since, self.rng.randint(0, TIMES - 1))
            self.client.allow_compaction(view.index, view.since)

    def drop(self) -> None:
        """Drop a view; what is parked on it has to be awaited first, or it may be answered `dropped`."""
        standing = [v for v in self.views if not v.dropped]
        if len(standing) > 1:
            view = self.rng.choice(standing)
            view.dropped = True
            self.client.drop(view.index)

    # What must be.

    def check(self, asked: Asked) -> None:
        where = str(asked)
        try:
            answer = self.client.await_peek(asked.uuid, DEADLINE_S)
        except PeekCanceled:
            assert asked.may_be_canceled, where
            return
        except PeekFailed as failed:
            self._check_failure(asked, failed, where)
            return
        assert not asked.below_since, where
        assert (answer.time, answer.served_by) == (asked.at, self.role), where
        asked.require(answer, asked.view.at(asked.at), where)

    def _check_failure(self, asked: Asked, failed: PeekFailed, where: str) -> None:
        if asked.below_since:
            assert failed.code == "below-since", f"{where}: {failed}"
        elif failed.code == "dropped":
            assert asked.view.dropped, where
        else:
            asked.require_failure(str(failed), asked.view.at(asked.at), where)

    def play(self) -> None:
        rng = self.rng
        steps = [self.create_view, self.create_view, self.ask, self.ask, self.ask, self.query, self.compact]
        more, turn = True, 0
        self.create_view()
        while more or turn < 12:
            if rng.random() < 0.4:
                more = self.advance()
            step = rng.choice([*steps, self.drop] if rng.random() < 0.3 else steps)
            if step != self.create_view or len(self.views) < 6:
                step()
            turn += 1
        for asked in self.asked:
            self.check(asked)
        self.read_everything()
        for view in self.views:
            self.client.drop(view.index)

    def read_everything(self) -> None:
        """Every standing view at every time, through the daemon and from shared memory."""
        standing = [v for v in self.views if not v.dropped]
        asked = [
            Asked(uuid=self.client.start_peek(view.index, at=time), view=view, at=time)
            for view in standing
            for time in range(view.since, TIMES)
        ]
        for each in asked:
            self.check(each)
        for view in standing:
            with view.index.attach() as attached:
                assert attached.since.less_equal(view.since), view.index.id
                for time in range(view.since, TIMES):
                    self._check_attached(view, attached, time)

    def _check_attached(self, view: View, attached: Attached, time: int) -> None:
        where, wanted = f"{view.index.id} at {time}, attached", view.at(time)
        kinds = may_fail_with(wanted)
        if kinds:
            with pytest.raises(DataError) as failed:
                attached.scan(at=time)
            assert any(str(failed.value).startswith(kind) for kind in kinds), f"{where}: {failed.value}"
        else:
            assert counts_of(attached.scan(at=time)) == wanted.rows, where


def play(replica: Replica, client: Client, seeds: range) -> None:
    for number, seed in enumerate(seeds):
        print(f"seed {seed}")
        History(seed, number, client, replica.mode).play()
    gc.collect()  # errors of attached reads hold what they read, and so this process's row of readers
    wait_until(lambda: len(segments(replica.instance)) == 1, DEADLINE_S, "no segment but the control file")


CASES = [("solo", 0), ("two-runtime", 1), ("two-runtime", 2)]


@pytest.mark.parametrize(("mode", "workers"), CASES)
def test_no_answer_of_a_daemon_differs_from_a_naive_fold(mode: str, workers: int, tmp_path: Path) -> None:
    count = 15 if workers == 2 else 40
    with replica_in(mode, tmp_path, workers=workers) as replica, Client.connect(replica) as client:
        play(replica, client, range(1000 * workers, 1000 * workers + count))


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "workers"), CASES)
def test_a_thousand_histories_of_a_daemon(mode: str, workers: int, tmp_path: Path) -> None:
    with replica_in(mode, tmp_path, workers=workers) as replica, Client.connect(replica) as client:
        play(replica, client, range(10_000 * (workers + 1), 10_000 * (workers + 1) + 1000))
