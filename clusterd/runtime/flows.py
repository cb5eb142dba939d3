"""Flows: the lives of dataflows and collections, from creation to close, and the hold.

A collection is closed when nothing holds it: not the controller, no interactive worker, no parked peek, no
importer (R8). A dataflow runs the round that all its imports allow, as long as somebody wants what it makes.
A query is deferred until its imports can be read at its `as_of` (R7), and given up if one of them goes first.
An alias is a dataflow like any other, whose rounds do nothing: so it has frontiers, wakes and reports of its
own, and what it holds its import holds for it (Z13; docs/models/shared_reads.pml).

Does not: judge commands (core.py), answer peeks (reads.py does, when a collection moves or goes), keep what
is followed (followed.py), reported (reports.py) or told (receivers.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterd import internal
from clusterd.runtime import effects as fx
from clusterd.runtime.collection import Collection, Dataflow, meet_all
from clusterd.runtime.company import Company
from clusterd.runtime.followed import Followed
from clusterd.runtime.hydration import COMPUTED, WRITTEN
from clusterd.runtime.peeks import Key
from clusterd.runtime.reads import Reads
from clusterd.runtime.receivers import Receivers
from clusterd.runtime.reports import Reports
from clusterd.runtime.state import RuntimeState, dropped, unknown
from clusterd.runtime.statuses import Statuses
from controller_proto.errors import Refusal
from controller_proto.response import State
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.frontier import Frontier

__all__ = ["Flows"]


class Flows:
    """The dataflows' side of a core."""

    def __init__(self, state: RuntimeState, reads: Reads) -> None:
        self._state = state
        self._reads = reads
        self._collections = state.collections
        self._dataflows = state.dataflows
        self._reports = Reports(state)
        self._statuses = Statuses(state)
        self._followed = Followed(state)
        self._receivers = Receivers(state)
        self._company = Company()

    # -- commands carried out ------------------------------------------------------------------------------

    def create(self, dataflow: Dataflow) -> None:
        """Put an announced dataflow in force."""
        dataflow.standing = True
        dataflow.expires_at = self._state.expires_at
        for key in dataflow.exports:
            self._collections[key].standing = True
            self._reports.expect(key, dataflow.header.as_of)
        self._statuses.mark(dataflow)
        imports = [self._collections.get(key) for key in dataflow.imports]
        for imported in imports:
            if (
                imported is None
                or imported.ended is not None
                or imported.gone == "unknown-id"
                or ((dataflow.one_shot or dataflow.is_subscription) and imported.applied.is_empty)
            ):
                self._give_up(dataflow)  # L16: what it waits for is gone
                return
            imported.needs[dataflow.number] = self._need(dataflow, imported.key)
        if self._state.policy.builds_at_once:
            self._build(dataflow)
        for name in dataflow.shards:
            self._followed.follow(name, dataflow.number)
        for key in dataflow.exports:
            collection = self._collections[key]
            if collection.export is not None and collection.is_view:
                self._stored(collection, self._followed.follow(collection.export.shard, key))

    def go_on(self, proposed: Collection) -> None:
        """A collection that stands is one of the new session: as if made anew at its as_of (P12)."""
        collection = self._collections[proposed.key]
        collection.session, collection.as_of = proposed.session, proposed.as_of
        collection.announced, collection.gone = proposed.announced, proposed.gone
        collection.applied = Frontier.join(collection.applied, Frontier.at(proposed.as_of))
        self._state.touch(collection.key)
        if collection.is_owned:
            dataflow = self.dataflow_of(collection)
            dataflow.goal = max(dataflow.goal, collection.as_of)
            self._statuses.mark(dataflow)
            self._reports.restart(collection.key, collection.as_of)
            if collection.is_view:
                computed = self.dataflow_of(collection).upper
                self._reports.advance(collection.key, computed, COMPUTED)
                self._reports.advance(collection.key, collection.upper, WRITTEN)
            else:
                self._reports.advance(collection.key, collection.upper)

    def _build(self, dataflow: Dataflow) -> None:
        dataflow.built = dataflow.computing = True
        dataflow.expires_at = self._state.expires_at
        exports = tuple(key for key in dataflow.exports if key in dataflow.live)
        self._state.emit(fx.Build(dataflow.number, dataflow.header, dataflow.plan, exports, dataflow.imports))
        for key in exports:
            collection = self._collections[key]
            if collection.is_told:
                continue
            is_compacted = not collection.hold.is_empty and collection.hold.time > collection.as_of
            if is_compacted and not collection.is_view and key not in dataflow.aliases:
                self._state.emit(fx.SetCompaction(key, collection.hold))
            self._state.policy.moved(self._state, collection)

    def schedule(self, collection: Collection) -> None:
        dataflow = self.dataflow_of(collection)
        dataflow.waiting.discard(collection.key)
        self._start(dataflow)

    def _start(self, dataflow: Dataflow) -> None:
        """An export waits no more: if it was the last, find out how far the imports are and begin."""
        if dataflow.waiting or not dataflow.is_deferred:
            return
        self._statuses.mark(dataflow)
        for key in dataflow.imports:
            imported = self._collections.get(key)
            if imported is None:
                continue  # nothing of it is needed any more
            # What a stale page moved to was said already: no further notice need come of it.
            behind = dataflow.is_subscription and imported.stale
            if not imported.is_owned and (behind or imported.upper.less_equal(dataflow.header.as_of)):
                self._state.policy.look(self._state, imported)
        self.advance(dataflow)

    def compact(self, collection: Collection, frontier: Frontier) -> None:
        """Carry out an AllowCompaction; the empty frontier is a drop."""
        if frontier.is_empty:
            self.drop(collection)
        else:
            collection.applied = Frontier.join(collection.applied, frontier)
            self._state.touch(collection.key)

    def drop(self, collection: Collection, code: str = "dropped") -> None:
        """R8, as far as this runtime goes: answer what is parked, end what is deferred, let the hold go."""
        why = dropped(collection.id) if code == "dropped" else unknown(collection.id)
        collection.gone = collection.gone or code
        collection.announced = collection.applied = Frontier.empty()
        self._reads.turn_away(collection.key, why)
        for number in sorted(collection.needs):
            reader = self._dataflows[number]
            if reader.is_subscription or (reader.one_shot and reader.is_deferred):
                self._give_up(reader)
        if collection.dataflow is not None:
            dataflow = self.dataflow_of(collection)
            if collection.key in dataflow.waiting:
                dataflow.waiting.discard(collection.key)
                self._start(dataflow)
        self._state.touch(collection.key)

    def withdraw(self, collection: Collection) -> None:
        """Take back a collection that was announced and never stood."""
        del self._collections[collection.key]
        self._reads.turn_away(collection.key, unknown(collection.id))

    def _give_up(self, dataflow: Dataflow, why: Refusal | None = None) -> None:
        """End what can go on no more: answer its peeks, hold nothing; report the frontiers of a query empty.

        why: what failed of it; else an import was dropped. Of what is maintained and fails frontiers stay,
        for nothing is sealed by that; they end with its drop.
        """
        dataflow.ended = True
        self._statuses.mark(dataflow)
        self._stop(dataflow)
        for key in dataflow.live:
            collection = self._collections.get(key)
            if collection is None or collection.ended is not None:
                continue
            collection.ended = why or Refusal(
                "dropped", f"{key[0]} was given up: an import of it was dropped"
            )
            self._reads.turn_away(key, collection.ended)
            if collection.is_told:
                self._receivers.tell_end(collection, collection.ended)
            if dataflow.built:
                self._release(collection)
            if why is None or dataflow.one_shot:
                self._reports.close(key)
            self._give_up_importers(collection, why)

    def cut(self, cut: internal.Cut) -> None:
        """Nobody takes what the subscription tells: end it, and no other. The multiplexer has said so."""
        collection = self._collections.get((cut.id, cut.incarnation))
        if collection is None or collection.ended is not None:
            return
        collection.ended = Refusal("limit", "what it told was not read")
        dataflow = self.dataflow_of(collection)
        self._statuses.mark(dataflow)
        self._let_go(dataflow)

    def _let_go(self, dataflow: Dataflow) -> None:
        """Give it up if all that is left of it was cut off."""
        if not dataflow.ended and all(self._collections[key].ended is not None for key in dataflow.live):
            self._give_up(dataflow)

    def told(self, event: fx.Tell) -> None:
        """Pass on what a subscription or a copy tells, to the sessions of those that go on as it."""
        dataflow = self._dataflows.get(event.number)
        if dataflow is None:
            return
        dataflow.is_telling = True
        self._company.leave(dataflow)
        to = [each for key in dataflow.live if (each := self._collections[key]).ended is None]
        self._receivers.tell(to, event.said, event.lower, event.upper, ends=event.ends)

    def end(self, key: Key, why: Refusal) -> None:
        """Another process gave up its collection: answer what waits for it, give up what imports it."""
        collection = self._collections.get(key)
        if collection is None or collection.ended is not None:
            return
        collection.ended = why
        self._reads.turn_away(key, why)
        self._give_up_importers(collection, why)

    def _give_up_importers(self, collection: Collection, why: Refusal | None) -> None:
        if why is not None:
            why = Refusal(why.code, f"import {collection.id} ended: {why.message}", why.hint)
        for number in sorted(collection.needs):
            if number in self._dataflows:
                self._give_up(self._dataflows[number], why)

    def unwritable(self, event: fx.Unwritable) -> None:
        """The view cannot be gone on with: what it is made of ends with it."""
        collection = self._collections.get(event.key)
        if collection is not None and collection.ended is None:
            why = Refusal(event.code, event.message, event.hint)
            self._give_up(self.dataflow_of(collection), why)

    def failed(self, event: fx.Failed) -> None:
        dataflow = self._dataflows.get(event.number)
        if dataflow is not None:
            dataflow.running = None
            self._give_up(dataflow, Refusal(event.code, event.message, event.hint))

    # -- the hold ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take the holds of all touched collections anew, and act on those that rose."""
        touched = self._state.touched
        while touched:
            collection = self._collections.get(touched.popitem()[0])
            if collection is not None:
                self._settle(collection)

    def _settle(self, collection: Collection) -> None:
        key = collection.key
        if collection.is_placeholder:
            if not self._state.peeks.waits_for(key):
                del self._collections[key]
                self._state.emit(fx.Forget(key))
            return
        if not collection.standing or not collection.raise_hold(self._state.peeks.hold(key)):
            return
        if collection.is_owned:
            if collection.hold.is_empty:
                self._close(collection)
            elif collection.is_told or collection.is_view:
                return  # nothing of it is kept here
            elif key in self.dataflow_of(collection).aliases:
                self._renew(self.dataflow_of(collection))
            elif collection.ended is None and self.dataflow_of(collection).built:
                self._state.emit(fx.SetCompaction(key, collection.hold))
            return
        if not collection.is_view:  # the shard's since is its own
            self._state.emit(fx.Send(internal.Applied(*key, collection.hold.to_wire())))
        if collection.hold.is_empty:
            del self._collections[key]
            self._state.emit(fx.Forget(key))

    def _close(self, collection: Collection) -> None:
        """Everybody has let go: inputs first, then the memory, then the report (P10)."""
        key = collection.key
        dataflow = self.dataflow_of(collection)
        dataflow.live.pop(key, None)
        if not dataflow.live:
            self._stop(dataflow)
            del self._dataflows[dataflow.number]
        else:
            self._renew(dataflow)
            self._let_go(dataflow)
        if dataflow.built and collection.ended is None:
            self._release(collection)
        if collection.is_told and collection.ended is None:
            self._receivers.tell_end(collection, dropped(collection.id))
        self._reports.close(key)
        self._reports.forget(key)
        self._statuses.forget(key)
        del self._collections[key]

    def _need(self, dataflow: Dataflow, key: Key) -> Frontier:
        """Where it still reads its import `key`, or shows it by another id; empty if it does neither."""
        if dataflow.ended or not dataflow.live:
            return Frontier.empty()
        shown = [export for export, original in dataflow.aliases.items() if original == key]
        holds = [self._collections[export].hold for export in shown if export in dataflow.live]
        return meet_all(holds if shown and not dataflow.computes else [dataflow.need, *holds])

    def _renew(self, dataflow: Dataflow) -> None:
        """Its needs have risen; one that is over is gone."""
        for key in dataflow.imports:
            imported = self._collections.get(key)
            if imported is None or dataflow.number not in imported.needs:
                continue
            need = self._need(dataflow, key)
            if need.is_empty:
                del imported.needs[dataflow.number]
            else:
                imported.needs[dataflow.number] = need
            self._state.touch(key)

    def _stop(self, dataflow: Dataflow) -> None:
        """The dataflow computes and reads nothing any more; its aliases stay. Idempotent."""
        self._company.leave(dataflow)
        if dataflow.computing:
            dataflow.computing = False
            self._state.emit(fx.CloseGraph(dataflow.number))
        self._renew(dataflow)
        for name in dataflow.shards:
            self._leave(name, dataflow.number)

    def _release(self, collection: Collection) -> None:
        """Let go of what a built collection is here: an index, or the right to write a shard."""
        if collection.is_told:
            return  # nothing of it is kept here
        if collection.is_view and collection.export is not None:
            self._state.emit(fx.CloseView(collection.key))
            self._leave(collection.export.shard, collection.key)
        else:
            self._state.emit(fx.CloseIndex(collection.key))

    def _leave(self, name: str, follower: int | Key) -> None:
        if self._followed.leave(name, follower):
            self._statuses.passable(name)

    # -- progress ------------------------------------------------------------------------------------------

    def advance(self, dataflow: Dataflow) -> None:
        """Begin the round that the imports allow, if any, and if anybody wants it."""
        if not any(self._collections[key].is_wanted for key in dataflow.live):
            return
        other = self._company.arrive(dataflow)
        if other is not None:
            dataflow = self._unite(dataflow, other)
        uppers = self._followed.uppers
        inputs = meet_all(
            [uppers[name] for name in dataflow.shards if name in uppers]
            + [self._collections[key].upper for key in dataflow.imports if key in self._collections]
        )
        target = dataflow.next_round(inputs)
        if target is None:
            return
        lower = dataflow.upper.time
        dataflow.running = target
        if lower <= dataflow.goal:
            self._statuses.mark(dataflow)
        if not dataflow.built:
            self._build(dataflow)
            for key in dataflow.imports if dataflow.one_shot else ():
                # R7: its snapshots are taken; it counts no more.
                self._collections[key].needs.pop(dataflow.number, None)
                self._state.touch(key)
        self._state.emit(fx.StartRound(dataflow.number, lower, target))

    def _unite(self, one: Dataflow, other: Dataflow) -> Dataflow:
        """Of two subscriptions that are where they can go on as one, give up that with fewer receivers: what
        the other tells goes to all from here on. Returns the other.
        """
        guest, host = (one, other) if len(one.live) <= len(other.live) else (other, one)
        guest.ended = True
        self._stop(guest)
        del self._dataflows[guest.number]
        for key in guest.live:
            self._collections[key].dataflow = host.number
        host.live |= guest.live
        self._company.arrive(host)
        return host

    def sealed(self, collection: Collection, upper: Frontier) -> None:
        """The collection is known to be sealed up to `upper`: wake what waited for that."""
        if upper.precedes(collection.upper):
            raise InvariantViolation(
                "an upper regresses", key=collection.key, upper=collection.upper, to=upper
            )
        collection.upper = upper
        self._reads.wake(collection)
        for number in sorted(collection.needs):
            if number in self._dataflows:  # it has not gone on as another just now
                self.advance(self._dataflows[number])

    def round_done(self, done: fx.RoundDone) -> None:
        dataflow = self._dataflows.get(done.number)
        if dataflow is None:
            return
        if dataflow.running != done.upper:
            raise InvariantViolation("a round ends elsewhere", number=done.number, upper=done.upper)
        dataflow.running = None
        if dataflow.upper.less_equal(dataflow.goal):
            self._statuses.mark(dataflow)
        dataflow.upper = done.upper
        dataflow.is_telling, dataflow.owes = False, done.owes
        self._company.leave(dataflow)
        if done.upper.is_empty:
            self._stop(dataflow)
        else:
            self._renew(dataflow)
        for key in dataflow.exports:
            if key in dataflow.live:
                collection = self._collections[key]
                if collection.is_told:
                    continue  # nobody can import it, and it reports no frontiers
                if collection.is_view:  # sealed when it is written
                    self._reports.advance(key, done.upper, COMPUTED)
                    continue
                self._reports.advance(key, done.upper)
                self._state.policy.moved(self._state, collection)
                self.sealed(collection, done.upper)
        self.advance(dataflow)

    def progressed(self, progressed: fx.Progressed) -> None:
        dataflow = self._dataflows.get(progressed.number)
        if dataflow is not None:
            dataflow.rows_done, dataflow.rows_expected = progressed.rows_done, progressed.rows_expected
            self._statuses.mark(dataflow)

    def stalled(self, stalled: fx.Stalled) -> None:
        where = stalled.where
        if isinstance(where, str):
            if where not in self._followed.uppers:
                return
        elif where not in self._collections:
            return
        self._statuses.stalled(stalled)
        self._mark_stalled(where)

    def _mark_stalled(self, where: str | Key) -> None:
        if not isinstance(where, str):
            self._statuses.mark(self.dataflow_of(self._collections[where]))
            return
        for number in self._followed.dataflows(where):
            self._statuses.mark(self._dataflows[number])

    def shard_moved(self, moved: fx.ShardMoved) -> None:
        if moved.name not in self._followed.uppers:
            return
        if self._statuses.passable(moved.name):
            self._mark_stalled(moved.name)
        upper = self._followed.seal(moved.name, moved.upper)
        views = self._followed.views(moved.name)
        for number in self._followed.dataflows(moved.name):
            if number in self._dataflows:
                self.advance(self._dataflows[number])
        for key in views:
            self._stored(self._collections[key], upper)

    def _stored(self, collection: Collection, upper: Frontier) -> None:
        """The shard of a view is sealed up to `upper`, by whomever."""
        if not collection.upper.precedes(upper):
            return
        self._reports.advance(collection.key, upper, WRITTEN)
        self._state.policy.moved(self._state, collection)
        self.sealed(collection, upper)

    @property
    def has_reports(self) -> bool:
        return self._reports.has_news or self._statuses.has_news

    def forget_reports(self) -> None:
        """Of a session that is over: nobody listens (P13)."""
        self._reports.clear()

    def send_reports(self, now_us: int) -> None:
        """The newest statuses and frontiers that were not sent yet."""
        for status in self._statuses.take(now_us):
            self._state.emit(fx.Send(status))
        self._reports.send()

    # -- small parts ---------------------------------------------------------------------------------------

    @property
    def shards(self) -> int:
        return len(self._followed.uppers)

    @property
    def shard_uppers(self) -> Mapping[str, Frontier]:
        """Of the shards that are followed, as last heard."""
        return self._followed.uppers

    def judge(self, collection: Collection) -> tuple[State, tuple[str, str, str]]:
        """The state of an own collection; code, message and hint of what is in its way."""
        return self._statuses.judge(collection, self.dataflow_of(collection))

    def dataflow_of(self, collection: Collection) -> Dataflow:
        """The dataflow here that exports the collection."""
        if collection.dataflow is None:
            raise InvariantViolation("not exported by a dataflow here", key=collection.key)
        return self._dataflows[collection.dataflow]
