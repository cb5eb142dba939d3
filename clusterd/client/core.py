"""Core: the state of one client's session, without sockets, clocks or files.

Right in what a session must know. A command's success is silent, so who wants to know says Sync behind it,
and the first refusal among the commands before it is raised. Everything that is heard is noted under what it
is about, whoever waits, so that waiting for one thing never loses another; answers and refusals that nobody
waits for are not kept. What was said is kept as a reduced history (controller_proto.history), so that `begin`
can say it again on a new connection.

Does not: write what is said (the shells do, from `end.outgoing`), make commands (dataflows.py, peeks.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from clusterd.client.feed import Feed, SubscriptionEnded
from clusterd.client.handle import Standing
from clusterd.client.operation import DEADLINE_S, Operation, Topic, Wait
from controller_proto import command, response
from controller_proto.client_end import ClientEnd
from controller_proto.dataflow import Export, WireFrontier
from controller_proto.errors import Disconnected, Refusal
from controller_proto.history import History
from controller_proto.ids import GlobalId
from controller_proto.schema import Schema

__all__ = ["Asked", "Core"]

_JUDGED: Topic = ("judged", "")


class Asked(NamedTuple):
    """A peek that was said: `schema` is that of the rows it brings."""

    of: Standing
    at: int | None
    schema: Schema
    seq: int = 0


class Core:
    """One session. epoch: of a controller; None for a reader. A shell hands it each response, in order."""

    def __init__(self, end: ClientEnd, epoch: int | None = None) -> None:
        self.end = end
        self.epoch = epoch
        self.asked: dict[str, Asked] = {}  # peeks not awaited to their end, by uuid
        self._history = History()
        self._frontiers: dict[GlobalId, response.Frontiers] = {}
        self.statuses: dict[GlobalId, response.Status] = {}  # as last heard
        self._answers: dict[str, response.PeekResponse] = {}
        self._judging: dict[int, response.Refused | None] = {}  # by seq; commands whose refusal is awaited
        self._synced = 0
        self._feeds: dict[GlobalId, Feed] = {}
        self.copied: dict[GlobalId, response.Copied | response.CopyError] = {}  # of those that are waited for
        self._copying: set[GlobalId] = set()

    # -- saying

    def say(self, said: command.Command, *, judged: bool = False) -> int:
        """Say `said`; with `judged` its refusal is kept for `accepted`. Returns its seq. Raises Disconnected,
        LocalProtocolError.
        """
        seq = self.end.say(said)
        if isinstance(said, command.AllowCompaction) and not said.frontier:
            self.statuses.pop(said.id, None)
        self._history.sent(msgspec.structs.replace(said, seq=seq))
        if judged:
            self._judging[seq] = None
        return seq

    def accepted(self, sent: Iterable[int], timeout_s: float = DEADLINE_S) -> Operation[None]:
        """Wait until these commands, which were said `judged`, were validated; raise the first refusal."""
        sent = list(sent)
        try:
            sync = self.say(command.Sync(0), judged=True)
            sent.append(sync)
            try:
                yield Wait(_JUDGED, lambda: self._synced >= sync or bool(self._judging.get(sync)), timeout_s)
            except TimeoutError:
                raise TimeoutError(
                    f"no answer of the replica within {timeout_s:g} s: it is starting (READY is printed "
                    "when it has), stopped, or busy"
                ) from None
            for seq in sent:
                refused = self._judging.get(seq)
                if refused is not None:
                    raise Refusal(refused.code, refused.message, refused.hint)
        finally:
            for seq in sent:
                self._judging.pop(seq, None)

    def ask(self, peek: command.Peek, asked: Asked) -> None:
        """Say a peek, which is answered under its uuid."""
        self.asked[peek.uuid] = asked
        try:
            self.asked[peek.uuid] = asked._replace(seq=self.say(peek))
        except BaseException:
            del self.asked[peek.uuid]
            raise

    def is_answered(self, uuid: str) -> bool:
        return uuid in self._answers

    def take_answer(self, uuid: str) -> response.PeekResponse:
        """The answer of a peek that is answered, which is over with that."""
        del self.asked[uuid]
        return self._answers.pop(uuid)

    def forget_peek(self, uuid: str) -> None:
        """Nobody wants this answer any more; a peek whose answer is still owed is canceled."""
        asked = self.asked.pop(uuid, None)
        if self._answers.pop(uuid, None) is None and asked is not None:
            self.give_up(command.CancelPeek(0, uuid=uuid))

    def open_feed(self, export: Export) -> Feed:
        """Listen for a subscription, before it is said."""
        feed = self._feeds[export.id] = Feed(export)
        return feed

    def discard_feed(self, feed: Feed) -> None:
        """Listen no more for one that was refused."""
        self._feeds.pop(feed.export.id, None)

    def close_feed(self, feed: Feed) -> None:
        """End a subscription. What was told and not taken is forgotten."""
        feed.close()
        if feed.export.id in self._feeds:
            self._drop_feed(feed.export.id)

    def _drop_feed(self, id: GlobalId) -> None:
        del self._feeds[id]
        self.give_up(command.AllowCompaction(0, id, ()))

    def expect_copy(self, id: GlobalId) -> None:
        """Keep the answer of copy `id`, in `copied`, until `forget_copy`."""
        self._copying.add(id)

    def forget_copy(self, id: GlobalId) -> None:
        self._copying.discard(id)
        self.copied.pop(id, None)

    def give_up(self, said: command.CancelPeek | command.AllowCompaction) -> None:
        """Say it, or where nobody hears it any more, see to it that `begin` does not ask again."""
        if self.end.over is None:
            self.say(said)
        else:
            self._history.sent(said)

    @property
    def untaken_bytes(self) -> int:
        """Of batches of subscriptions that nobody has taken."""
        return sum(feed.nbytes for feed in self._feeds.values())

    def frontier(self, id: GlobalId) -> WireFrontier | None:
        """The write frontier last reported: `(t,)`, `()` when closed, None before the first report."""
        known = self._frontiers.get(id)
        return None if known is None else known.write

    # -- hearing

    def hear(self, said: response.Response) -> Topic | None:
        """Take in what was heard. Returns what it is about, for who waits for that."""
        self._history.heard(said)
        match said:
            case response.Frontiers():
                self._note(said)
                return "frontier", said.id
            case response.Status():
                self.statuses[said.id] = said
                return "status", said.id
            case response.PeekResponse():
                return self._answered(said)
            case response.SubscribeResponse():
                if said.id in self._feeds and not self._feeds[said.id].hear(said):
                    self._drop_feed(said.id)
                return "subscription", said.id
            case response.CopyToResponse(id, result):
                if id in self._copying:
                    self.copied[id] = result
                return "copy", id
            case response.Synced():
                self._synced = max(self._synced, said.seq)
                return _JUDGED
            case response.Refused():
                return self._refused(said)
            case _:
                return None

    def _note(self, said: response.Frontiers) -> None:
        known = self._frontiers.get(said.id)
        if known is not None:
            said = response.Frontiers(
                said.id,
                known.write if said.write is None else said.write,
                known.input if said.input is None else said.input,
                known.output if said.output is None else said.output,
            )
        self._frontiers[said.id] = said

    def _answered(self, said: response.PeekResponse) -> Topic:
        if said.uuid in self.asked:
            self._answers[said.uuid] = said
        return "peek", said.uuid

    def _refused(self, said: response.Refused) -> Topic:
        if said.seq in self._judging:
            self._judging[said.seq] = said
        for uuid, asked in self.asked.items():
            if asked.seq == said.seq:
                error = response.PeekError(said.code, said.message, said.hint)
                return self._answered(response.PeekResponse(uuid, error))
        return _JUDGED

    # -- beginning, and beginning again

    def create_instance(self, config: dict[str, bool | int | float | str]) -> None:
        """Note, for `begin` to say, with which settings this session begins."""
        self._history.sent(command.CreateInstance(0, config=config))

    def lose(self) -> None:
        """The connection is lost: subscriptions end, what was reported counts no more."""
        for feed in self._feeds.values():
            feed.end(SubscriptionEnded("disconnected", "the connection was lost", feed.upper))
            self._history.sent(command.AllowCompaction(0, feed.export.id, ()))
        self._feeds.clear()
        self._frontiers.clear()
        self.statuses.clear()
        self._judging.clear()
        if self.epoch is not None:
            self.epoch += 1

    def begin(self, end: ClientEnd, nonce: str, timeout_s: float) -> Operation[None]:
        """Say hello on `end`, and what the history has. Raises Refusal as the replica says, Disconnected."""
        self.end = end
        self._synced = 0
        history, self._history = self._history, History()
        for uuid in self.asked.keys() - history.open_peeks - self._answers.keys():
            self._answers[uuid] = response.PeekResponse(uuid, response.PeekCanceled())  # as was asked
        said = history.commands()
        try:
            if self.epoch is None:
                hello = command.Hello(0, nonce=nonce, kind="reader")
                said = [each for each in said if isinstance(each, command.Peek)]
            else:
                hello = command.Hello(0, nonce=nonce, epoch=self.epoch)
            sent = [self.say(hello, judged=True)]
            for each in said:
                if isinstance(each, command.Peek):  # one that is refused is answered so, as always
                    self.asked[each.uuid] = self.asked[each.uuid]._replace(seq=self.say(each))
                else:
                    sent.append(self.say(each, judged=True))
            yield from self.accepted(sent, timeout_s)
        except BaseException as error:
            self._history = history
            if isinstance(error, Disconnected) and error.reason == "fenced":
                message = error.message.removeprefix(f"{error.reason}: ")
                raise Refusal(error.reason, message, error.hint) from error  # the close came first
            raise
