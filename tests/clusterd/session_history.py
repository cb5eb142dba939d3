"""Random histories of sessions: controllers that come, lose their connection anywhere and come back, readers.

A history plays against a daemon, in one process (`LocalDaemon`) or a real one, by its seed alone. Shards are
appended to in random cuts. The controller makes indexes over shards and over each other, queries,
subscriptions, copies, and views, which others read from their shards; it lets them compact, drops them, has a
dropped view written on by another, and peeks; some commands are illegal. Its connection
is closed between commands, within a frame, within a replay, or taken over; then it comes back and says again
what its reduced history has, or another one comes that says something else under the same ids. Readers peek
and subscribe beside it. Every connection has a judge (session_judge.py); in the end everything is read at
every time and dropped.
"""

from __future__ import annotations

import random
import socket
import tempfile
from collections.abc import Callable
from typing import Protocol

import msgspec

from clusterd.convert import updates_from_rows
from clusterd.storage.copy_out import check_copy
from clusterd.storage.store import Store
from controller_proto import command as say
from controller_proto.codec import encode_body
from controller_proto.connection import NEED_DATA, Broken, Connection, Ended, Rejected, Role
from controller_proto.dataflow import Build, DataflowBody, DataflowHeader, Export, IndexImport, SourceImport
from controller_proto.errors import Refusal
from controller_proto.history import History as Reduced
from controller_proto.ids import GlobalId
from controller_proto.plan import Get, OrderBy, Plan, free_ids
from controller_proto.schema import Schema
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive, random_plans
from tests.clusterd.naive_answers import wire_keys
from tests.clusterd.recursive_plans import RecursivePlans
from tests.clusterd.session_judge import TIMES, Book, Definition, Judge, Said

__all__ = ["Daemon", "Sessions"]

READ_BYTES = 1 << 16
_KINDS = ("index", "view", "query", "subscribe", "copy-to")


class Daemon(Protocol):
    """What a history plays against."""

    address: str
    store: Store
    comes_to_rest: bool  # whether nothing is under way after `settle`

    def step(self, rng: random.Random, count: int = 1) -> None:
        """Let some of what can happen happen."""

    def settle(self, meanwhile: Callable[[], bool], done: Callable[[], bool] | None) -> None:
        """Let everything happen, `meanwhile` too, until nothing is left to; at least until `done`."""


class Link:
    """One client connection, with the judge of what it hears."""

    def __init__(self, address: str, judge: Judge) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(address.removeprefix("unix:"))
        self.socket.setblocking(False)
        self.judge = judge
        self.is_open = True
        self._connection = Connection(Role.CONTROLLER)
        self._out = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def say(self, command: say.Command) -> say.Command:
        """Queue it, numbered; its effects are judged from here on."""
        command = msgspec.structs.replace(command, seq=self._connection.last_seq + 1)
        self._connection.send_into(self._out, command)
        self.judge.sent(command)
        return command

    def flush(self, count: int | None = None) -> bool:
        """Write what goes; `count` bytes at most. Whether something was written."""
        data = self._out if count is None else self._out[:count]
        if not data or not self.is_open:
            return False
        try:
            written = self.socket.send(data)
        except BlockingIOError:
            return False
        except OSError:
            self._out.clear()
            return False  # it closed us; what it said is still to be read
        del self._out[:written]
        return True

    @property
    def unsent(self) -> int:
        return len(self._out)

    def pull(self, heard: Callable[[object], None]) -> bool:
        """Take in what arrived. Whether there was something."""
        if not self.is_open:
            return False
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        self._connection.receive_bytes(data)
        while (event := self._connection.next_event()) is not NEED_DATA:
            if isinstance(event, Ended):
                assert event.cut_bytes == 0, event
                assert self.judge.superseded, "closed without a reason"
                self.close()
                break
            assert not isinstance(event, Rejected | Broken), event
            self.judge.heard(event)  # type: ignore[arg-type]
            heard(event)
        return True

    def close(self) -> None:
        self.is_open = False
        self.socket.close()


class Sessions:
    """One history, by its seed. number: makes names of shards unique within a daemon."""

    def __init__(self, seed: int, daemon: Daemon, *, number: int = 0, epoch: int = 1) -> None:
        self.rng = random.Random(seed)  # what is said
        self.pace = random.Random(seed + 1)  # what happens when
        self.daemon = daemon
        self.book = Book()
        self.log: list[str] = []
        self.shards: dict[GlobalId, tuple[str, Schema]] = {}
        self.late: dict[str, list[tuple[random_plans.Row, int, int]]] = {}
        self.uppers: dict[str, int | None] = {}
        self.epoch = epoch
        self.controller: Link | None = None
        self.reduced = Reduced()
        self.readers: list[Link] = []
        self.others: list[Link] = []  # controllers that were taken over
        self.creates: list[say.CreateDataflow] = []  # of all sessions: what another controller may say
        self.directory = tempfile.TemporaryDirectory(prefix="copies-", ignore_cleanup_errors=True)
        self._count = 0
        self._number = number
        self._seed = seed
        weights: dict[Callable[[], None], float] = {
            self.append: 4, self.create_index: 4, self.create_view: 1.5, self.allow: 1, self.query: 2,
            self.subscribe: 3, self.peek: 6, self.copy: 1,
            self.cancel: 1, self.compact: 2, self.drop: 1, self.schedule: 2, self.configure: 0.5,
            self.sync: 0.5, self.illegal: 0.7, self.read_beside: 2, self.lose: 1.2, self.take_over: 0.6,
            self.intrude: 0.3, self.settle: 0.7,
        }  # fmt: skip
        self._actions = {action: w * self.rng.choice([0.2, 1, 1, 3]) for action, w in weights.items()}
        for position in range(self.rng.choice([1, 2, 2])):
            self._make_shard(f"x{number}.{position}", f"u{9000 + position}")

    def _make_shard(self, name: str, id: GlobalId) -> None:
        schema = random_plans.schema(self.rng)
        self.daemon.store.create_shard(name, schema)
        self.shards[id] = (name, schema)
        self.late[name] = random_plans.history(self.rng, schema, self.rng.choice([0, 6, 15, 25]), TIMES)
        self.uppers[name] = 0
        collections = [naive.at(schema.types, self.late[name], t) for t in range(TIMES)]
        self.book.sources[id] = Definition(schema, collections)

    # -- the play -------------------------------------------------------------------------------------------

    def play(self, steps: int = 40) -> None:
        """Everything, to the end. Raises AssertionError with the log of what was said."""
        try:
            self.connect()
            for _ in range(steps):
                self.act()
                self.daemon.step(self.pace, self.pace.choice([0, 0, 1, 3, 10]))
                self._pump(lazy=True)
            self._finish()
        except BaseException:
            print(f"seed {self._seed}", *self.log, sep="\n")
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Leave, as all clients of a daemon that is gone do."""
        for link in self._links():
            link.close()
        self.controller = None
        self.readers.clear()
        self.others.clear()
        self.directory.cleanup()

    def go_on(self, daemon: Daemon) -> None:
        """The same history with a daemon that was started anew over the same shards: to the end."""
        self.note("go on")
        self.daemon = daemon
        try:
            self.connect(whole=True)
            self._finish()
        except BaseException:
            print(f"seed {self._seed}", *self.log, sep="\n")
            raise
        finally:
            self.close()

    def act(self) -> None:
        """Something; what is likely differs from history to history."""
        (action,) = self.rng.choices(list(self._actions), list(self._actions.values()))
        if self.controller is None and action not in (self.append, self.read_beside, self.settle):
            self.connect() if self.rng.random() < 0.8 else self.take_over()
            return
        action()

    def note(self, *what: object) -> None:
        self.log.append(" ".join(map(str, what)))

    # -- sessions -------------------------------------------------------------------------------------------

    def _links(self) -> list[Link]:
        here = [] if self.controller is None else [self.controller]
        return [*here, *self.readers, *self.others]

    def connect(self, *, whole: bool = False) -> None:
        """Come (back) as the controller and say the reduced history. whole: do not lose it again."""
        before = self.reduced
        self.reduced = Reduced()
        said = before.commands() if len(before) or before._config else []
        if not said:
            said = [say.CreateInstance(0, self._setting()), say.InitializationComplete(0)]
        self.note("connect", "whole" if whole else "", *(type(each).__name__ for each in said))
        if not self._begin(said, whole=whole):
            self.reduced = before

    def take_over(self) -> None:
        """Another controller: while the one before is still there or after it, with some of what was said."""
        if self.controller is not None:
            self.controller.judge.superseded = True
            self.others.append(self.controller)
            self.controller = None
        self.reduced = Reduced()
        said: list[say.Command] = [say.CreateInstance(0, self._setting())]
        names: dict[GlobalId, say.CreateDataflow] = {}
        for create in self.creates:
            names[create.header.exports[0].id] = create
        written: set[str] = set()
        has_views = False
        for id, create in names.items():
            header, export = create.header, create.header.exports[0]
            imports = [item.id for item in header.index_imports]
            sources = {item.shard for item in header.source_imports if item.shard.startswith("m")}
            if self.rng.random() < 0.5 or any(i not in names for i in imports):
                continue
            if not sources <= written or export.shard in written:
                continue
            if all(any(_makes(each, i) for each in said) for i in imports):
                # What a view is over is not refused, so that who reads its shard is told all of it.
                if export.kind == "materialized-view" and not _is_readable(create, said):
                    continue
                has_views |= export.kind == "materialized-view"
                said.append(create if has_views or self.rng.random() < 0.7 else self._changed(create))
                said.append(say.Schedule(0, id))
                if export.kind == "materialized-view":
                    written.add(export.shard)
                    said.append(say.AllowWrites(0, id))
        self.note("take over", *(each.header.name for each in said if isinstance(each, say.CreateDataflow)))
        self._begin([*said, say.InitializationComplete(0)])

    def _changed(self, create: say.CreateDataflow) -> say.CreateDataflow:
        """The same id with a later as_of, or as another collection, if nothing imports it by its schema."""
        header = create.header
        as_of = self.rng.randint(header.as_of, TIMES - 1)
        if header.until is None and header.exports[0].up_to is None:
            header = msgspec.structs.replace(header, as_of=as_of)
        return msgspec.structs.replace(create, header=header)

    def _begin(self, said: list[say.Command], *, whole: bool = False) -> bool:
        """Say hello and all of it; False if the connection was lost meanwhile."""
        self.epoch += 1
        self.book.standing.clear()
        self.book.controllers += 1
        judge = Judge(self.book, "controller")
        self.controller = link = Link(self.daemon.address, judge)
        link.say(say.Hello(0, nonce=f"{self._seed}.{self._number}.{self.epoch}", epoch=self.epoch))
        lost_at = self.rng.randrange(len(said)) if not whole and self.rng.random() < 0.2 else -1
        for position, command in enumerate(said):
            if position == lost_at:
                self.lose()
                return False
            if isinstance(command, say.InitializationComplete) and not whole:
                for _ in range(self.rng.choice([0, 0, 0, 1, 3])):
                    action = self.rng.choice(
                        [
                            self.create_index,
                            self.create_view,
                            self.subscribe,
                            self.peek,
                            self.append,
                            self.compact,
                        ]
                    )
                    action()
            self.tell(command)
            if self.pace.random() < 0.3:
                link.flush()
                self.daemon.step(self.pace, self.pace.choice([0, 1, 4]))
                self._pump(lazy=True)
        return True

    def tell(self, command: say.Command) -> None:
        """The controller says it."""
        assert self.controller is not None
        self.book.standing.clear()
        said = self.controller.say(command)
        self.reduced.sent(said)

    def lose(self) -> None:
        """The connection ends: after what was said, or anywhere within it."""
        link = self.controller
        assert link is not None
        how = self.rng.choice(["said", "within", "unsaid"])
        self.note("lose", how, link.unsent)
        if how == "said":
            link.flush()
        elif how == "within" and link.unsent:
            link.flush(self.pace.randrange(link.unsent) + 1)
        if self.pace.random() < 0.3:
            self.daemon.step(self.pace, 3)
            link.pull(self._hear_controller)
        link.close()
        self.controller = None
        self.book.standing.clear()
        self.book.controllers += 1

    def intrude(self) -> None:
        """A controller with an epoch that is too low, which is turned away; or half a frame and an end."""
        judge = Judge(self.book, "controller")
        judge.superseded = True
        link = Link(self.daemon.address, judge)
        hello = link.say(say.Hello(0, nonce=f"low.{self._number}.{self.epoch}.{self._count}", epoch=0))
        self._count += 1
        if self.rng.random() < 0.3:
            link.flush(self.pace.randrange(link.unsent))
            link.close()
            return
        self.note("intrude", hello)
        link.flush()
        self.others.append(link)

    def _hear_controller(self, response: object) -> None:
        self.reduced.heard(response)  # type: ignore[arg-type]

    def _pump(self, *, lazy: bool = False) -> bool:
        """Write and read what goes. lazy: some only."""
        busy = False
        for link in self._links():
            if lazy and self.pace.random() < 0.4:
                continue
            busy |= link.flush()
            heard = self._hear_controller if link is self.controller else _ignore
            busy |= link.pull(heard)
        self.readers = [link for link in self.readers if link.is_open]
        self.others = [link for link in self.others if link.is_open]
        return busy

    # -- shards ---------------------------------------------------------------------------------------------

    def append(self) -> None:
        open_ = [name for name, upper in self.uppers.items() if upper is not None and upper < TIMES]
        if open_:
            name = self.rng.choice(open_)
            upper = self.uppers[name]
            assert upper is not None
            self._append(name, self.rng.randint(upper, min(TIMES, upper + 3)))

    def _append(self, name: str, to: int) -> None:
        upper = self.uppers[name]
        assert upper is not None
        ready = [u for u in self.late[name] if upper <= u[1] < to]
        self.rng.shuffle(ready)
        shard = self.daemon.store.shard(name)
        schema = shard.schema
        rows = wire_keys([u[0] for u in ready], schema.types)
        assert rows is not None
        ends = to >= TIMES and self.rng.random() < 0.2
        shard.append(
            updates_from_rows(schema, rows, [u[1] for u in ready], [u[2] for u in ready]),
            Frontier.at(upper),
            Frontier.empty() if ends else Frontier.at(to),
        )
        self.uppers[name] = None if ends else to
        self.note("append", name, to, "and end" if ends else "")

    # -- what a controller says -----------------------------------------------------------------------------

    def _said(self, *kinds: str) -> dict[GlobalId, Said]:
        """What stands, of these kinds: `index`, `view`, `query`, `subscribe`, `copy-to`."""
        assert self.controller is not None
        return {id: s for id, s in self.controller.judge.ids.items() if not s.dropped and _kind(s) in kinds}

    def _fresh(self, kind: str) -> GlobalId:
        self._count += 1
        return f"{kind}{self._count}"

    def _plan(self, env: dict[GlobalId, Schema]) -> Plan:
        kinds = RecursivePlans if self.rng.random() < 0.2 else random_plans.Plans
        return kinds(self.rng, env).plan(self.rng.choice([0, 1, 1, 2]))

    def _create(
        self, env: dict[GlobalId, Schema], export: Callable[[GlobalId, Schema, int], Export],
        times: Callable[[int], tuple[int, int | None]],
    ) -> say.CreateDataflow | None:  # fmt: skip
        """A dataflow over some of `env`; times: as_of and until, from the least as_of. None: none found."""
        assert self.controller is not None
        judge = self.controller.judge
        for _ in range(5):
            plan = self._plan(env)
            used = sorted(free_ids(plan))
            shards = {id: self._shard_of(id) for id in used}
            imports = [id for id in used if shards[id] is None]
            on = self._fresh("u")
            builds: tuple[Build, ...] = (Build(on, plan),)
            if isinstance(plan, Get) and plan.id in imports:
                on, builds = plan.id, ()
            floors = [judge.ids[id].floor for id in imports]
            as_of, until = times(max(floors, default=0))
            sources = tuple(SourceImport(id, *found) for id, found in shards.items() if found is not None)
            made = export(on, plan_schema(plan, env), as_of)
            if made.kind == "copy-to" and not _has_a_form(made):
                continue
            header = DataflowHeader(made.id, as_of, until, sources, tuple(map(IndexImport, imports)), (made,))
            create = say.CreateDataflow(0, header, encode_body(DataflowBody(builds)))
            try:
                self.book.define(create, {id: judge.ids[id].definition for id in imports})
            except naive.TooLarge:
                continue
            self._say_create(create)
            self.note("create", made.kind, made.id, "as_of", as_of, until or "", "over", *used)
            return create
        return None

    def _say_create(self, create: say.CreateDataflow) -> None:
        export = create.header.exports[0]
        self.tell(create)
        self.creates.append(create)
        if self.rng.random() < 0.8:
            self.tell(say.Schedule(0, export.id))
        if export.kind == "materialized-view" and self.rng.random() < 0.7:
            self.tell(say.AllowWrites(0, export.id))

    def _shard_of(self, id: GlobalId) -> tuple[str, Schema] | None:
        """Where a plan reads `id`: in a shard, a view's too; None of an index."""
        assert self.controller is not None
        said = self.controller.judge.ids.get(id)
        if said is None or _kind(said) != "view":
            return self.shards.get(id)
        return said.export.shard, said.export.schema

    def _read_from(self, shard: str) -> bool:
        """Whether something that stands reads the shard, or that a copy may be of which was not answered."""
        assert self.controller is not None
        judge = self.controller.judge
        return any(said.reads(shard) for said in judge.ids.values() if judge.copies or not said.dropped)

    def _env(self, *, sources: bool) -> dict[GlobalId, Schema]:
        kinds = ("index", "view") if sources else ("index",)
        env = {id: said.export.schema for id, said in self._said(*kinds).items()}
        return {**env, **{id: schema for id, (_, schema) in self.shards.items()}} if sources else env

    def create_index(self) -> None:
        if len(self._said("index")) >= 6:
            return
        id = self._fresh("u")
        self._create(
            self._env(sources=True),
            lambda on, schema, as_of: Export(id, "index", on, schema, self._key(schema)),
            self._times_of_index,
        )

    def _times_of_index(self, least: int) -> tuple[int, int | None]:
        as_of = self.rng.randint(least, min(least + self.rng.choice([0, 0, 3]), TIMES - 1))
        return as_of, self.rng.randint(as_of + 2, TIMES + 2) if self.rng.random() < 0.15 else None

    def create_view(self) -> None:
        """A view with a shard of its own, or one that goes on with the shard of another that was dropped."""
        assert self.controller is not None
        if len(self._said("view")) >= 3:
            return
        gone = [s for s in self.controller.judge.ids.values() if s.dropped and _kind(s) == "view"]
        if gone and self.rng.random() < 0.5:
            self._write_on(self.rng.choice(gone))
            return
        id = self._fresh("u")
        self._create(
            self._env(sources=True),
            lambda on, schema, as_of: Export(
                id, "materialized-view", on, _named(schema), self._key(schema), shard=f"m{self._number}.{id}"
            ),
            lambda least: (self.rng.randint(least, min(least + self.rng.choice([0, 0, 3]), TIMES - 1)), None),
        )

    def _write_on(self, gone: Said) -> None:
        """Another view that is the same, if what it reads is there still and nobody else writes the shard."""
        ids = self._said("index")
        shard, header = gone.export.shard, gone.create.header
        imports = [item.id for item in header.index_imports]
        written = {said.export.shard for said in self._said("view").values()}
        sources = {item.shard for item in header.source_imports}
        bases = {name for name, _ in self.shards.values()}
        if shard in written or any(i not in ids for i in imports) or not sources <= bases | written:
            return
        least = max([header.as_of, *(ids[i].floor for i in imports)])
        export = msgspec.structs.replace(gone.export, id=self._fresh("u"))
        as_of = self.rng.randint(least, TIMES - 1)
        header = msgspec.structs.replace(header, name=export.id, as_of=as_of, exports=(export,))
        self._say_create(msgspec.structs.replace(gone.create, header=header))
        self.note("write on", shard, "as", export.id, "as_of", as_of)

    def allow(self) -> None:
        if views := list(self._said("view")):
            self.tell(say.AllowWrites(0, self.rng.choice(views)))

    def _key(self, schema: Schema) -> tuple[int, ...]:
        return tuple(self.rng.sample(range(schema.arity), self.rng.randint(0, min(2, schema.arity))))

    def query(self) -> None:
        """A one-shot dataflow, and its peek."""
        env = self._env(sources=self.rng.random() < 0.2)
        if not env:
            return
        id = self._fresh("t")

        def times(least: int) -> tuple[int, int]:
            at = self.rng.randint(least, TIMES - 1)
            return at, at + 1

        create = self._create(env, lambda on, schema, as_of: Export(id, "index", on, schema, ()), times)
        if create is not None:
            self.tell(say.Peek(0, self._fresh("p"), id, create.header.as_of))

    def subscribe(self) -> None:
        env = self._env(sources=self.rng.random() < 0.5)
        if not env:
            return
        id = self._fresh("t")
        length = self.rng.randint(1, TIMES) if self.rng.random() < 0.3 else None
        snapshot = self.rng.random() < 0.8
        self._create(
            env,
            lambda on, schema, as_of: Export(
                id, "subscribe", on, schema, (), snapshot, None if length is None else as_of + length
            ),
            lambda least: (self.rng.randint(least, max(least, TIMES - 3)), None),
        )

    def copy(self) -> None:
        """To a file, if what is asked for is ever there."""
        env = self._env(sources=self.rng.random() < 0.5)
        if not env:
            return
        id = self._fresh("t")
        uri = f"{self.directory.name}/{id}.csv"
        self._create(
            env,
            lambda on, schema, as_of: Export(id, "copy-to", on, schema, uri=uri),
            lambda least: (self.rng.randint(least, TIMES - 1), None),
        )

    def peek(self, link: Link | None = None) -> None:
        rng = self.rng
        views = self._said("index", "view")
        if not views:
            return
        id = rng.choice(list(views))
        said = views[id]
        schema, key = said.export.schema, said.export.key
        time = rng.choice([None, *range(said.floor, TIMES), rng.randrange(TIMES)])
        keys, finishing = None, say.Finishing()
        if key and rng.random() < 0.4:
            rows = [row for t in range(TIMES) for row in said.definition.at(t).rows]
            found = [tuple(row[i] for i in key) for row in rng.sample(rows, min(len(rows), 2))]
            keys = wire_keys(found, [schema.types[i] for i in key])
        elif rng.random() < 0.5:
            order = tuple(
                OrderBy(i, rng.random() < 0.5, rng.random() < 0.3)
                for i in rng.sample(range(schema.arity), rng.randint(0, schema.arity))
            )
            where = (
                (random_plans.Plans(rng, {}).predicate(schema),)
                if schema.arity and rng.random() < 0.4
                else ()
            )
            some = rng.choice([None, 0, 1, 3]) if order else None
            finishing = say.Finishing((), where, order, some, rng.choice([0, 1]) if order else 0)
        wait_s = rng.choice([None, None, None, 0.0])
        wire = None if keys is None else tuple(keys)
        runtime = rng.choice(["any", "interactive", "maintenance"])
        limits = say.NO_LIMITS
        if rng.random() < 0.15:
            limits = say.ReadLimits(rng.choice([None, 0, 1, 3]), rng.choice([None, 0, 1, 3]))
        self.tell(say.Peek(0, self._uuid(), id, time, wire, finishing, wait_s, runtime, limits))
        self.note("peek", id, "at", time)

    def _uuid(self) -> str:
        """Of a new peek: one that was answered is used again now and then."""
        assert self.controller is not None
        judge = self.controller.judge
        over = judge.peeks.keys() - judge.unanswered
        return self.rng.choice(sorted(over)) if over and self.rng.random() < 0.3 else self._fresh("p")

    def cancel(self) -> None:
        assert self.controller is not None
        peeks = list(self.controller.judge.peeks)
        if peeks:
            self.tell(say.CancelPeek(0, self.rng.choice(peeks[-4:])))

    def compact(self) -> None:
        if ids := list(self._said("index", "view", "query")):
            id, time = self.rng.choice(ids), self.rng.randrange(TIMES)
            self.tell(say.AllowCompaction(0, id, (time,)))
            self.note("compact", id, time)

    def drop(self) -> None:
        if ids := list(self._said(*_KINDS)):
            id = self.rng.choice(ids)
            if not self._read_from(self._said(*_KINDS)[id].export.shard):
                self.tell(say.AllowCompaction(0, id, ()))
                self.note("drop", id)

    def schedule(self) -> None:
        for id, said in self._said(*_KINDS).items():
            if not said.scheduled or self.rng.random() < 0.1:
                self.tell(say.Schedule(0, id))

    def configure(self) -> None:
        self.tell(say.UpdateConfiguration(0, self._setting()))

    def _setting(self) -> dict[str, int | str]:
        """One that changes who answers, or how, and no answer."""
        choices: dict[str, list[int | str]] = {
            "max_peek_keys": [1_000, 10_000], "stash_result_bytes": [0, 40, 256 << 10],
            "read_routing": ["interactive", "hinted", "maintenance"],
        }  # fmt: skip
        name = self.rng.choice(list(choices))
        return {name: self.rng.choice(choices[name])}

    def sync(self) -> None:
        self.tell(say.Sync(0))

    def illegal(self) -> None:
        """Something that is refused and changes nothing."""
        rng, views = self.rng, self._said("index")
        kind = rng.choice(["unknown", "again", "below", "plan", "dropped"])
        if kind == "unknown":
            self.tell(
                say.Schedule(0, "u7777") if rng.random() < 0.5 else say.AllowCompaction(0, "u7777", (3,))
            )
        elif kind == "dropped":
            assert self.controller is not None
            gone = [id for id, said in self.controller.judge.ids.items() if said.dropped]
            if gone:
                id = rng.choice(gone)
                self.tell(say.Schedule(0, id) if rng.random() < 0.5 else say.AllowCompaction(0, id, (3,)))
        elif kind == "plan" and self.shards:
            source, (name, schema) = next(iter(self.shards.items()))
            wrong = Schema((*schema.columns, *schema.columns))
            export = Export(self._fresh("u"), "index", "u8000", wrong, ())
            header = DataflowHeader(export.id, 0, None, (SourceImport(source, name, schema),), (), (export,))
            body = encode_body(DataflowBody((Build("u8000", Get(source)),)))
            self.book.bad_plans.add(export.id)
            self.tell(say.CreateDataflow(0, header, body))
        elif views:
            id = rng.choice(list(views))
            said = views[id]
            name = id if kind == "again" else self._fresh("u")
            as_of = said.floor if kind == "again" else said.floor - 1
            if as_of < 0:
                return
            export = Export(name, "index", id, said.export.schema, ())
            header = DataflowHeader(name, as_of, None, (), (IndexImport(id),), (export,))
            self.tell(say.CreateDataflow(0, header, encode_body(DataflowBody(()))))
        self.note("illegal", kind)

    # -- readers --------------------------------------------------------------------------------------------

    def read_beside(self) -> None:
        """A reader comes, asks something, or goes."""
        rng = self.rng
        if not self.readers or (len(self.readers) < 3 and rng.random() < 0.3):
            link = Link(self.daemon.address, Judge(self.book, "reader"))
            link.say(say.Hello(0, nonce="", kind="reader"))
            self.readers.append(link)
            return
        link = rng.choice(self.readers)
        known = list(self.book.of_id)
        if rng.random() < 0.1:
            link.flush(self.pace.choice([None, self.pace.randrange(link.unsent + 1)]))
            link.close()
            self.readers.remove(link)
        elif known and rng.random() < 0.6:
            time = rng.choice([None, rng.randrange(TIMES)])
            link.say(say.Peek(0, self._fresh("p"), rng.choice(known), time))
        elif indexes := [id for id in known if id not in self.book.sources]:
            on = rng.choice(indexes)
            if rng.random() < 0.2 and link.judge.streams:
                id = rng.choice(list(link.judge.streams))
                if not link.judge.ids[id].dropped:
                    link.say(say.AllowCompaction(0, id, ()))
                return
            definition, _ = rng.choice(self.book.of_id[on])
            id = self._fresh("t")
            export = Export(id, "subscribe", on, definition.schema)
            as_of = min(TIMES - 1, self.book.floors.get(on, 0) + rng.choice([0, 0, 1]))
            header = DataflowHeader(id, as_of, None, (), (IndexImport(on),), (export,))
            link.say(say.CreateDataflow(0, header, encode_body(DataflowBody(()))))
            link.say(say.Schedule(0, id))

    # -- the end --------------------------------------------------------------------------------------------

    def settle(self, owed: Callable[[], list[str]] | None = None) -> None:
        """Until nothing is left to happen, as far as the daemon can tell; and nothing is `owed`."""
        self.daemon.settle(self._pump, None if owed is None else lambda: not owed())
        if owed is not None:
            assert not owed(), owed()
        controller = self.controller
        if controller is not None and controller.judge.complete and self.daemon.comes_to_rest:
            self.book.standing.update([] if self.others else self._said("index", "view"))

    def _finish(self) -> None:
        if self.controller is None or self.rng.random() < 0.3:
            if self.controller is not None:
                self.lose()
            self.connect(whole=True)
        assert self.controller is not None
        self.note("finish")
        for id, said in self._said(*_KINDS).items():
            if not said.scheduled:
                self.tell(say.Schedule(0, id))
            if _kind(said) == "view":
                self.tell(say.AllowWrites(0, id))
        for name, upper in self.uppers.items():
            if upper is not None and upper < TIMES:
                self._append(name, TIMES)
        self.tell(say.Sync(0))
        judges = [link.judge for link in (self.controller, *self.readers)]
        self.settle(lambda: [each for judge in judges for each in judge.owed])
        for id, said in self._said("index", "view").items():
            for time in range(said.floor, TIMES):
                self.tell(say.Peek(0, self._fresh("p"), id, time))
        self.settle(lambda: [each for judge in judges for each in judge.owed])
        ids = list(self._said(*_KINDS))
        self.rng.shuffle(ids)
        for id in ids:
            self.tell(say.AllowCompaction(0, id, ()))
        self.tell(say.Sync(0))
        judge = self.controller.judge
        self.settle(lambda: [*judge.owed_frontiers, *(each for judge in judges for each in judge.owed)])
        assert not self.others, "who was taken over was not closed"
        for link in self._links():
            link.close()
        self.settle()


def _has_a_form(copy: Export) -> bool:
    """Whether rows of its types can be in a file."""
    try:
        check_copy(copy)
    except Refusal:
        return False
    return bool(copy.schema.columns)


def _named(schema: Schema) -> Schema:
    """With a name of its own for each column, as a shard has them."""
    names = (msgspec.structs.replace(c, name=f"c{n}") for n, c in enumerate(schema.columns))
    return Schema(tuple(names))


def _kind(said: Said) -> str:
    if said.export.kind == "materialized-view":
        return "view"
    return "query" if said.one_shot else said.export.kind


def _makes(command: say.Command, id: GlobalId) -> bool:
    return isinstance(command, say.CreateDataflow) and command.header.exports[0].id == id


def _is_readable(create: say.CreateDataflow, said: list[say.Command]) -> bool:
    """Whether all that it imports, and what that imports, can be read at its as_of."""
    made = [each for each in said if any(_makes(each, item.id) for item in create.header.index_imports)]
    creates = [each for each in made if isinstance(each, say.CreateDataflow)]
    return all(each.header.as_of <= create.header.as_of and _is_readable(each, said) for each in creates)


def _ignore(response: object) -> None:
    return
