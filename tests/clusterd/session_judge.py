"""What a session must hear, judged from what it has said and from what the collections are.

A `Judge` follows one connection: every command that goes out and every response that comes in. It holds the
session to the protocol: a peek is answered once, with the rows of a naive interpreter or an error that has a
reason; a status goes on from created to hydrated; frontiers begin at `as_of`, never go back and end empty;
batches of a subscription tile time and sum to the collection; what is legal is not refused, and what is not
is. The `Book` knows the collections: a definition is a plan over definitions, so an id may mean another thing
in another session.

A reader shares ids with a controller whose commands it does not see. Its rows are judged all the same; which
errors it may get depends on whether a controller touched the id meanwhile (`Book.touched`).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clusterd.client.answer import Answer
from clusterd.convert import column_from_scalars, column_specs
from controller_proto import command as say
from controller_proto import response as hear
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export, is_one_shot
from controller_proto.ids import GlobalId
from controller_proto.schema import Schema
from shm_arrangements.frontier import Frontier
from tests.clusterd import naive
from tests.clusterd.naive_answers import Question, hashable, may_fail_with

__all__ = ["PAIRS", "TIMES", "Book", "Definition", "Judge", "Stream"]

TIMES = 8  # at which anything happens
PAIRS = 5_000  # of rows a naive join may look at, a plan and time

_body = msgspec.msgpack.Decoder(DataflowBody).decode


@dataclass(frozen=True, eq=False)
class Definition:
    """A collection: what it is at each time."""

    schema: Schema
    answers: list[naive.Collection]

    def at(self, time: int) -> naive.Collection:
        return self.answers[time]


class Book:
    """All definitions, and what sessions did to an id."""

    def __init__(self) -> None:
        self.sources: dict[GlobalId, Definition] = {}
        self.of_id: dict[GlobalId, list[tuple[Definition, tuple[int, ...]]]] = {}  # with the index's key
        self.floors: dict[GlobalId, int] = {}  # the greatest any session said
        self.begun: dict[str, int] = {}  # by shard of views: the greatest as_of; before it there may be a gap
        self.made_of: dict[str, set[str]] = {}  # by id, or shard of views: such shards below it
        self.ends: dict[str, int] = {}  # likewise: the least until of it or what it is made of
        self.events: dict[GlobalId, int] = {}
        self.controllers = 0  # sessions begun or ended
        self.standing: set[GlobalId] = (
            set()
        )  # known to stand by everybody: all was settled, nothing said since
        self.bad_plans: set[GlobalId] = set()  # what only the owner refuses
        self.scheduled: set[GlobalId] = set()  # by any session: what goes on stays so
        self._known: dict[Any, Definition] = {}

    def define(self, create: say.CreateDataflow, imports: dict[GlobalId, Definition]) -> Definition:
        """What the first export is. Raises naive.TooLarge."""
        export = create.header.exports[0]
        name = (bytes(create.body), export.on, tuple((i, id(d)) for i, d in sorted(imports.items())))
        if name not in self._known:
            inputs = {**self.sources, **imports}
            builds = _body(create.body).builds
            if not builds:
                self._known[name] = inputs[export.on]
            else:
                answers = [
                    naive.Interpreter({i: d.at(t) for i, d in inputs.items()}, PAIRS, t).plan(builds[0].plan)
                    for t in range(TIMES)
                ]
                self._known[name] = Definition(export.schema, answers)
        return self._known[name]

    def ended(self, definition: Definition, header: DataflowHeader) -> Definition:
        """The same, as it stays from the `until` of a dataflow on that is no query."""
        until = header.until
        if until is None or is_one_shot(header):
            return definition
        name = ("until", id(definition), until)
        if name not in self._known:
            answers = [definition.at(min(t, until - 1)) for t in range(TIMES)]
            self._known[name] = Definition(definition.schema, answers)
        return self._known[name]

    def declare(self, export: Export, definition: Definition) -> None:
        known = self.of_id.setdefault(export.id, [])
        if (definition, export.key) not in known:
            known.append((definition, export.key))

    def begin(self, create: say.CreateDataflow, definition: Definition) -> None:
        """A dataflow is accepted: note which shards of views it is made of."""
        header, export = create.header, create.header.exports[0]
        below = self.made_of.setdefault(export.id, set())
        ends = self.ends.get(export.id, TIMES) if header.until is None else header.until
        for name in (*(i.id for i in header.index_imports), *(s.shard for s in header.source_imports)):
            below |= self.made_of.get(name, set())
            ends = min(ends, self.ends.get(name, TIMES))
        self.ends[export.id] = self.ends[export.shard] = min(ends, self.ends.get(export.id, TIMES))
        if export.kind == "materialized-view":
            self.sources[export.id] = definition
            self.begun[export.shard] = max(self.begun.get(export.shard, 0), header.as_of)
            below.add(export.shard)
            self.made_of.setdefault(export.shard, set()).update(below)

    def may_be_unknown(self, id: GlobalId, time: int | None) -> bool:
        """Whether `id` may be the error below-since at `time`, for a view below it was begun anew later."""
        if time is None:
            return False
        time = min(time, self.ends.get(id, TIMES) - 1)  # from its end on it stays what it was
        return any(self.begun[s] > time for s in self.made_of.get(id, ()))

    def touch(self, id: GlobalId) -> None:
        self.events[id] = self.events.get(id, 0) + 1

    def touched(self, id: GlobalId) -> tuple[int, int]:
        """Changes when a controller says something of `id`, comes or goes."""
        return self.controllers, self.events.get(id, 0)

    def seen(self, id: GlobalId) -> tuple[int, int]:
        """What `touched` stays at as long as `id` stands; nothing that it ever is, if it may not stand."""
        return self.touched(id) if id in self.standing else (-1, -1)


@dataclass
class Said:
    """What a session said of one id that it created."""

    export: Export
    definition: Definition
    as_of: int
    floor: int
    imports: tuple[GlobalId, ...]
    one_shot: bool
    create: say.CreateDataflow
    scheduled: bool = False
    dropped: bool = False

    def reads(self, shard: str) -> bool:
        return any(source.shard == shard for source in self.create.header.source_imports)


@dataclass
class Asked:
    """A peek, and what it may get besides rows."""

    question: Question
    id: GlobalId
    definitions: list[Definition]
    floor: int
    must: tuple[str, ...] = ()
    may_be_late: bool = False  # it has a limit to its wait
    limits: say.ReadLimits = say.NO_LIMITS
    canceled: bool = False
    touched: tuple[int, int] = (0, 0)


@dataclass
class Stream:
    """A subscription: what was told, and which definitions it can be of."""

    export: Export
    as_of: int
    candidates: list[Definition]
    touched: tuple[int, int] = (0, 0)
    upper: int | None = 0
    ended: bool = False  # by dropped-at
    sum: Counter[Any] = field(default_factory=Counter)
    parts: list[hear.SubscribeUpdates] = field(default_factory=list)
    under_way: tuple[int, Any] | None = None
    unknown: Callable[[int], bool] = lambda time: False  # whether it may be the error below-since
    # What a definition had at as_of, which was told to be that error: learnt from what follows.
    before: dict[int, Counter[Any]] | None = None

    def take(self, batch: hear.SubscribeBatch) -> None:
        assert not self.ended, f"{self.export.id}: told {batch} after its end"
        assert self.upper is not None, f"{self.export.id}: told {batch} after an empty upper"
        where = f"{self.export.id} as_of={self.as_of}: [{batch.lower}, {batch.upper})"
        assert batch.lower == self.upper, f"{where} after {self.upper}"
        assert self.under_way in (None, (batch.lower, batch.upper)), f"{where} within {self.under_way}"
        assert batch.upper == () or batch.upper[0] > batch.lower, where
        contents = batch.contents
        if isinstance(contents, hear.SubscribeUpdates):
            self.parts.append(contents)
            self.under_way = (batch.lower, batch.upper) if contents.more else None
            if contents.more:
                return
        assert self.under_way is None, where
        upper = batch.upper[0] if batch.upper else None
        assert batch.lower > 0 or upper is None or upper >= self.as_of, where
        until = min(TIMES, *(TIMES if t is None else t for t in (upper, self.export.up_to)))
        times = range(max(batch.lower, self.as_of), until)
        if isinstance(contents, hear.SubscribeError):
            self._take_error(f"{contents.code}: {contents.message}", times, where)
        else:
            self._take_updates(batch.lower, upper, times, where)
        self.upper = upper

    def _take_error(self, text: str, times: range, where: str) -> None:
        if text.startswith("below-since") and all(map(self.unknown, times)):
            if self.as_of in times and not self.export.snapshot:
                self.before = {}
            return
        self.candidates = [
            each
            for each in self.candidates
            if all(any(text.startswith(k) for k in may_fail_with(each.at(t))) for t in times)
        ]
        assert self.candidates, f"{where}: told {text}"

    def _take_updates(self, lower: int, upper: int | None, times: range, where: str) -> None:
        specs = column_specs(self.export.schema)
        by_time: dict[int, Counter[Any]] = {}
        last = 0
        for part in self.parts:
            columns = [
                map(hashable, column_from_scalars(spec, values).to_pylist())
                for spec, values in zip(specs, part.columns, strict=True)
            ]
            rows = zip(*columns, strict=True) if columns else iter([()] * len(part.times))
            for row, time, diff in zip(rows, part.times, part.diffs, strict=True):
                assert time >= max(lower, last, self.as_of), f"{where}: {row} at {time}"
                assert upper is None or time < upper, f"{where}: {row} at {time}"
                assert self.export.up_to is None or time < self.export.up_to, f"{where}: {row} at {time}"
                at = by_time.setdefault(time, Counter())
                assert diff != 0, f"{where}: {row} at {time}"
                assert row not in at, f"{where}: {row} at {time} twice"
                at[row], last = diff, time
        self.parts = []
        totals = []
        for time in range(times.start, times.stop):
            for row, diff in by_time.pop(time, Counter()).items():
                self.sum[row] += diff
                if not self.sum[row]:
                    del self.sum[row]
            totals.append((time, dict(self.sum)))
        told = list(totals)
        self.candidates = [d for d in self.candidates if all(self._agrees(d, t, rows) for t, rows in told)]
        assert self.candidates, f"{where}: it adds up to {told}"

    def _agrees(self, definition: Definition, time: int, rows: dict[Any, int]) -> bool:
        whole = definition.at(time)
        wanted = Counter(whole.rows)
        if self.before is not None:
            if id(definition) not in self.before:
                self.before[id(definition)] = Counter(whole.rows)
                self.before[id(definition)].subtract(rows)
            wanted.subtract(self.before[id(definition)])
        elif not self.export.snapshot:
            wanted.subtract(definition.at(self.as_of).rows)
        return not may_fail_with(whole) and {r: n for r, n in wanted.items() if n} == rows

    def end(self, dropped: hear.DroppedAt) -> None:
        assert not self.ended, self.export.id
        assert self.upper is not None, self.export.id
        assert dropped.upper == (self.upper,), (dropped, self.upper)
        self.ended = True


class Judge:
    """One session of kind `controller` or `reader`."""

    def __init__(self, book: Book, kind: str) -> None:
        self.book = book
        self.is_reader = kind == "reader"
        self.superseded = False  # another controller came: the end may come at any point
        self.complete = False
        self.ids: dict[GlobalId, Said] = {}
        self.peeks: dict[str, Asked] = {}
        self.streams: dict[GlobalId, Stream] = {}
        self.copies: dict[GlobalId, Said] = {}  # not answered
        self.refusals: dict[int, tuple[str, ...]] = {}  # expected: of a seq, the codes it may have
        self._of_reader: dict[
            int, GlobalId
        ] = {}  # subscriptions of a reader, by seq: a controller may be first
        self._named: dict[int, GlobalId] = {}  # by a reader's commands after that
        self._turned_away: set[GlobalId] = set()
        self.syncs: list[int] = []
        self.closing: hear.Closing | None = None
        self._answered: set[str] = set()
        self._frontiers: dict[GlobalId, list[Any]] = {}
        self._statuses: dict[GlobalId, hear.Status] = {}
        self._hello = 0

    # -- what is said ---------------------------------------------------------------------------------------

    def sent(self, command: say.Command) -> None:
        codes: tuple[str, ...] = ()
        match command:
            case say.Hello():
                self._hello = command.seq
            case say.InitializationComplete():
                self.complete = True
            case say.CreateDataflow():
                codes = self._creates(command)
            case say.Schedule(id=id) | say.AllowWrites(id=id) | say.AllowCompaction(id=id):
                codes = self._names(command, id)
            case say.Peek():
                self._asks(command)
            case say.CancelPeek(uuid=uuid) if uuid in self.peeks:
                self.peeks[uuid].canceled = True
            case say.Sync():
                self.syncs.append(command.seq)
            case _:
                pass
        if codes:
            self.refusals[command.seq] = codes

    def _creates(self, create: say.CreateDataflow) -> tuple[str, ...]:
        header, export = create.header, create.header.exports[0]
        codes = {"invalid-plan"} if export.id in self.book.bad_plans else set()
        if export.id in self.ids:
            codes.add("duplicate-id")
        imports = tuple(item.id for item in header.index_imports)
        if self.is_reader:
            self._of_reader[create.seq] = export.id
            known = self.book.of_id[imports[0]]
            self.streams[export.id] = Stream(
                export, header.as_of, [d for d, _ in known if d.schema == export.schema],
                self.book.seen(imports[0]), unknown=lambda time: self.book.may_be_unknown(imports[0], time),
            )  # fmt: skip
            self.ids[export.id] = Said(
                export, known[0][0], header.as_of, header.as_of, imports, False, create
            )
            return ()
        for id in imports:
            said = self.ids.get(id)
            if said is None:
                codes.add("unknown-id")
            elif said.dropped:
                codes.add("dropped")
            elif said.floor > header.as_of:
                codes.add("below-since")
        if codes:
            return tuple(codes)
        definition = self.book.define(create, {i: self.ids[i].definition for i in imports})
        definition = self.book.ended(definition, header)
        self.book.begin(create, definition)
        one_shot = is_one_shot(header)
        self.ids[export.id] = Said(export, definition, header.as_of, header.as_of, imports, one_shot, create)
        if export.kind == "subscribe":
            self.streams[export.id] = Stream(
                export,
                header.as_of,
                [definition],
                unknown=lambda time: self.book.may_be_unknown(export.id, time),
            )
        elif export.kind == "copy-to":
            self.copies[export.id] = self.ids[export.id]
        else:
            if not one_shot:  # a query is read at its own time alone
                self.book.declare(export, definition)
            self._raise_floor(export.id)
        return ()

    def _names(
        self, command: say.Schedule | say.AllowWrites | say.AllowCompaction, id: GlobalId
    ) -> tuple[str, ...]:
        if self.is_reader:
            self._named[command.seq] = id
        said = self.ids.get(id)
        if said is None:
            return ("unknown-id",)
        if said.dropped:
            return ("dropped",)
        if isinstance(command, say.Schedule):
            said.scheduled = True
            self.book.scheduled.add(id)
        elif isinstance(command, say.AllowCompaction):
            if command.frontier:
                said.floor = max(said.floor, command.frontier[0])
            else:
                said.dropped = True
            if not self.is_reader:
                self._raise_floor(id)
        return ()

    def _raise_floor(self, id: GlobalId) -> None:
        self.book.floors[id] = max(self.book.floors.get(id, 0), self.ids[id].floor)
        self.book.touch(id)

    def _asks(self, peek: say.Peek) -> None:
        said, finishing = self.ids.get(peek.id), peek.finishing
        key: tuple[int, ...] = ()
        keys: list[Any] | None = None
        if said is not None and peek.keys is not None:
            key, specs = said.export.key, column_specs(said.export.schema)
            columns = [
                column_from_scalars(specs[at], [row[i] for row in peek.keys]).to_pylist()
                for i, at in enumerate(key)
            ]
            keys = [tuple(hashable(column[row]) for column in columns) for row in range(len(peek.keys))]
        question = Question(
            peek.time, key, keys, finishing.predicates, finishing.order_by or None, finishing.limit,
            finishing.offset,
        )  # fmt: skip
        asked = Asked(question, peek.id, [], 0, touched=self.book.seen(peek.id))
        asked.may_be_late, asked.limits = peek.wait_s is not None, peek.limits
        if self.is_reader:
            asked.definitions = [definition for definition, _ in self.book.of_id.get(peek.id, [])]
        elif said is None:
            asked.must = ("unknown-id",)
        else:
            asked.definitions, asked.floor = [said.definition], said.floor
            if said.dropped:
                asked.must = ("dropped",)
            elif peek.time is not None and peek.time < said.floor:
                asked.must = ("below-since",)
        self.peeks[peek.uuid] = asked
        self._answered.discard(peek.uuid)  # a uuid that was answered may be used again

    # -- what is heard --------------------------------------------------------------------------------------

    def heard(self, response: hear.Response) -> None:
        assert self.closing is None, f"{response} after {self.closing}"
        match response:
            case hear.Refused():
                self._refused(response)
            case hear.Synced(seq=seq):
                assert self.syncs, response
                assert seq == self.syncs.pop(0), response
                late = [each for each in self.refusals if each < seq]
                assert not late, f"synced {seq}, but never refused: {late} {self.refusals}"
            case hear.Closing():
                self.closing = response
                assert self.superseded, response
                assert response.code == "fenced", response
            case hear.Frontiers():
                self._moved(response)
            case hear.Status():
                self._status(response)
            case hear.PeekResponse():
                self._answer(response)
            case hear.SubscribeResponse():
                self._told(response)
            case hear.CopyToResponse():
                self._copied(response)
            case _:
                raise AssertionError(response)

    def _refused(self, refused: hear.Refused) -> None:
        if self.superseded and refused.seq == self._hello:
            assert refused.code == "fenced", refused
            return
        id = self._of_reader.pop(refused.seq, None)
        if id is not None:
            assert refused.code in ("unknown-id", "dropped", "below-since", "invalid-plan"), refused
            stream, of = self.streams.pop(id), self.ids.pop(id).imports[0]
            self._turned_away.add(id)
            assert stream.upper == 0, refused
            if self.book.touched(of) == stream.touched:
                assert refused.code == "below-since", refused
                assert stream.as_of < self.book.floors[of], refused
            return
        if self._named.get(refused.seq) in self._turned_away:
            assert refused.code == "unknown-id", refused
            return
        assert refused.code in self.refusals.pop(refused.seq, ()), refused

    def _moved(self, report: hear.Frontiers) -> None:
        said = self.ids.get(report.id)
        assert said is not None, f"of an id that was not created: {report}"
        assert said.export.kind in ("index", "materialized-view"), report
        known = self._frontiers.setdefault(report.id, [None, None, None])
        for kind, frontier in enumerate((report.write, report.input, report.output)):
            if frontier is None:
                continue
            before = known[kind]
            if before is None:
                assert frontier == () or frontier[0] >= said.as_of, (report, said.as_of)
            else:
                assert Frontier.from_wire(before).precedes(Frontier.from_wire(frontier)), (report, known)
            known[kind] = frontier

    def _status(self, status: hear.Status) -> None:
        said, before = self.ids.get(status.id), self._statuses.get(status.id)
        assert said is not None, f"of an id that was not created: {status}"
        assert status.id in self.book.scheduled or status.status in ("created", "stalled", "errored"), status
        assert bool(status.code) == (status.status in ("stalled", "errored")), status
        if before is not None:
            assert before.status != "errored", (before, status)
            # Until the shard of a view is made, who reads it in another process may be stalled.
            ranks = [hear.STATES.index(each.status) for each in (before, status)]
            assert before.status == "stalled" or ranks[0] <= ranks[1], (before, status)
            same = msgspec.structs.replace(before, since=status.since)
            assert same != status, f"said twice: {status}"
            assert before.since <= status.since, (before, status)
        if status.status == "errored":
            assert self._may_be_gone(status.id) or self._is_gone(status.id), status
        self._statuses[status.id] = status

    def _answer(self, response: hear.PeekResponse) -> None:
        asked = self.peeks.get(response.uuid)
        assert asked is not None, f"never asked: {response}"
        assert response.uuid not in self._answered, f"answered twice: {response}"
        self._answered.add(response.uuid)
        where = f"peek of {asked.id}: {asked.question}"
        result = response.result
        if isinstance(result, hear.PeekCanceled):
            assert asked.canceled, where
        elif isinstance(result, hear.PeekRows):
            self._rows(asked, result, response, where)
        else:
            assert isinstance(result, hear.PeekError)
            self._error(asked, result, response, where)

    def _rows(self, asked: Asked, rows: hear.PeekRows, response: hear.PeekResponse, where: str) -> None:
        assert not asked.must, f"{where}: rows, not {asked.must}"
        most = asked.limits.result_rows
        assert most is None or sum(rows.counts) <= most, f"{where}: {sum(rows.counts)} rows, limit {most}"
        time = response.time
        assert time is not None, where
        if asked.question.at is None:
            assert time >= asked.floor, f"{where}: at {time}"
        else:
            assert time == asked.question.at, f"{where}: at {time}"
        if time >= TIMES:
            return  # beyond what happens; a temporal filter may say anything there
        self._any(
            asked,
            lambda d: asked.question.require(Answer(d.schema, rows, time, ""), d.at(time), where),
        )

    def _error(self, asked: Asked, error: hear.PeekError, response: hear.PeekResponse, where: str) -> None:
        where = f"{where}: {error}"
        if error.code == "wait-limit":
            assert asked.may_be_late, where
            assert not asked.must, where
            return
        if error.code == "below-since" and not asked.must:
            at = response.time if asked.question.at is None else asked.question.at
            if self.book.may_be_unknown(asked.id, at):
                return
        if error.code in ("dropped", "unknown-id", "below-since"):
            if self.is_reader:
                # A controller did something to it meanwhile; or did long ago.
                at = asked.question.at
                below = at is not None and at < self.book.floors.get(asked.id, 0)
                assert self.book.touched(asked.id) != asked.touched or below or error.code != "below-since", (
                    where
                )
            elif error.code == "dropped":
                assert "dropped" in asked.must or self._may_be_gone(asked.id), where
            else:
                assert error.code in asked.must, where
            return
        assert not asked.must, where
        if asked.limits != say.NO_LIMITS and error.code in ("limit", "result-too-large"):
            self._require_over(asked, error, where)
            return
        time = response.time
        assert time is not None, where
        if time < TIMES:
            text = f"{error.code}: {error.message}"
            self._any(asked, lambda d: asked.question.require_failure(text, d.at(time), where))

    @staticmethod
    def _require_over(asked: Asked, error: hear.PeekError, where: str) -> None:
        """There may be more rows than it allows, at the time it asks for, or at some time."""
        times = range(TIMES) if asked.question.at is None else range(asked.question.at, asked.question.at + 1)
        sums = []
        for whole in (definition.at(time) for definition in asked.definitions for time in times):
            read = asked.question.selected(naive.Collection(whole.types, whole.rows, {}))
            sums.append(len(whole.rows) if error.code == "limit" else sum(map(abs, read.rows.values())))
        name = "rows_read" if error.code == "limit" else "result_rows"
        most = getattr(asked.limits, name)
        assert f"limits.{name}" in error.message, where
        assert most is not None, where
        assert any(total > most for total in sums), f"{where}: naive {sums}"

    @staticmethod
    def _any(asked: Asked, check: Any) -> None:
        """One of the definitions passes: for a controller there is one."""
        problem: AssertionError | None = None
        for definition in asked.definitions:
            try:
                check(definition)
            except AssertionError as error:
                problem = error
            else:
                return
        raise problem or AssertionError("no definition")

    def _may_be_gone(self, id: GlobalId) -> bool:
        """Whether it was dropped after the question; of a query, or what it reads."""
        said = self.ids[id]
        return said.dropped or (said.one_shot and any(self._may_be_gone(i) for i in said.imports))

    def _told(self, response: hear.SubscribeResponse) -> None:
        stream = self.streams.get(response.id)
        assert stream is not None, f"never subscribed: {response}"
        if isinstance(response.said, hear.SubscribeBatch):
            stream.take(response.said)
            return
        stream.end(response.said)
        touched = self.is_reader and self.book.touched(self.ids[response.id].imports[0]) != stream.touched
        assert touched or self._is_gone(response.id), response

    def _copied(self, response: hear.CopyToResponse) -> None:
        copy = self.copies.pop(response.id, None)
        assert copy is not None, f"no copy, or answered twice: {response}"
        whole = copy.definition.at(copy.as_of)
        result = response.result
        if isinstance(result, hear.CopyError):
            if result.code == "dropped":
                assert self._is_gone(response.id), response
                return
            text = f"{result.code}: {result.message}"
            if result.code == "below-since" and self.book.may_be_unknown(response.id, copy.as_of):
                return
            assert any(text.startswith(each) for each in may_fail_with(whole)), response
            return
        assert not may_fail_with(whole), response
        assert result.rows == sum(whole.rows.values()), response
        with open(copy.export.uri, newline="") as file:
            assert sum(1 for _ in csv.reader(file)) == 1 + result.rows, response

    def _is_gone(self, id: GlobalId) -> bool:
        """Whether a subscription or copy was dropped, or an index of it."""
        said = self.ids[id]
        return said.dropped or any(self.ids[i].dropped for i in said.imports if i in self.ids)

    # -- what must have come --------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[str]:
        """Peeks by uuid."""
        return [uuid for uuid in self.peeks if uuid not in self._answered]

    @property
    def owed(self) -> list[str]:
        """What is still to come, when all that was read is sealed."""
        found = [f"an answer: {self.peeks[uuid]}" for uuid in self.unanswered]
        found += [f"a refusal: {each}" for each in self.refusals.items()]
        found += [f"synced {seq}" for seq in self.syncs]
        found += [f"an answer: {copy}" for copy in self.copies.values()]
        for id, said in self.ids.items():
            status = self._statuses.get(id)
            is_hydrated = status is not None and status.status == "hydrated"
            is_free = said.one_shot or self.is_reader or self._is_gone(id) or not said.scheduled
            if not (is_hydrated or is_free):
                found.append(f"hydrated {id}: {status}")
        for id, stream in self.streams.items():
            if not stream.ended and stream.upper is not None and (self._is_gone(id) or stream.upper < TIMES):
                found.append(f"of {id}: told up to {stream.upper}")
        return found

    @property
    def owed_frontiers(self) -> list[str]:
        """What is still to come when all was dropped."""
        return [
            f"frontiers of {id}: {self._frontiers.get(id)}"
            for id, said in self.ids.items()
            if said.export.kind in ("index", "materialized-view") and self._frontiers.get(id) != [(), (), ()]
        ]
