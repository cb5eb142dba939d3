"""Connections that are not let in, given up waiting, or not there: what the driver says of them."""

from __future__ import annotations

import select
from pathlib import Path

from clusterd.driver.driver import carry_out
from clusterd.driver.state import Run
from controller_proto.command import Command, CreateInstance, Hello, Schedule, Sync
from controller_proto.response import Closing, Refused, Response
from tests.clusterd.driver.fake import fake_replica


def test_of_a_connection_that_was_not_let_in_the_first_command_says_why(tmp_path: Path) -> None:
    def react(command: Command) -> list[Response]:
        if isinstance(command, Hello):
            return [Refused(command.seq, "fenced", "epoch 1 is below 2"), Closing("fenced", "epoch 1")]
        return []

    with fake_replica(tmp_path / "socket", react) as replica:
        run = Run(replica.address, timeout_s=10.0)
        assert carry_out(run, "create-instance") == ["error: fenced: epoch 1 is below 2"]
        assert carry_out(run, "initialization-complete") == ["error: disconnected"]
        assert run.hint.startswith("fenced: epoch 1")
        run.close()


def test_a_refusal_of_what_was_given_up_is_no_violation(tmp_path: Path) -> None:
    late: list[Response] = []

    def react(command: Command) -> list[Response]:
        """The first Schedule is refused only with the second; its Sync is answered by something else."""
        if isinstance(command, Schedule):
            late.append(Refused(command.seq, "unknown-id", "u1 is not known"))
            return [] if len(late) == 1 else late[:1]
        unasked = isinstance(command, Sync) and len(late) == 1
        return [Refused(0, "limit", "nobody asked")] if unasked else []

    with fake_replica(tmp_path / "socket", react) as replica:
        run = Run(replica.address, timeout_s=10.0)
        for line in ("create-instance", "initialization-complete"):
            assert carry_out(run, line) == ["ok"]
        run.timeout_s = 0.05
        assert carry_out(run, "schedule id=1") == [
            "error: timeout",
            "violation: refused without a question: limit: nobody asked",
        ]
        run.timeout_s = 10.0
        assert carry_out(run, "schedule id=2") == ["ok"]
        run.close()


def test_what_needs_no_connection_opens_none(tmp_path: Path) -> None:
    with fake_replica(tmp_path / "socket", lambda command: []) as replica:
        run = Run(replica.address)
        assert carry_out(run, "sleep ms=0") == ["ok"]
        assert carry_out(run, "await-peek name=a") == ["error: bad-message: no peek is called 'a'"]
        assert replica.heard == []
        assert carry_out(run, "create-instance") == ["ok"]
        assert [type(command) for command in replica.heard] == [Hello, CreateInstance, Sync]
        run.close()


def test_what_arrived_before_the_end_of_a_connection_is_heard_when_the_end_shows_at_a_send(
    tmp_path: Path,
) -> None:
    def react(command: Command) -> list[Response]:
        return [Refused(command.seq, "fenced", "epoch 1 is below 2"), Closing("fenced", "epoch 1")]

    with fake_replica(tmp_path / "socket", react) as replica:
        run = Run(replica.address, timeout_s=10.0)
        assert carry_out(run, "connect as=late") == ["ok"]
        gone = select.poll()
        gone.register(run.session.wire.fileno(), select.POLLHUP)
        assert gone.poll(10_000), "it was not closed within 10 s"
        assert carry_out(run, "create-instance") == ["error: fenced: epoch 1 is below 2"]
        run.close()
