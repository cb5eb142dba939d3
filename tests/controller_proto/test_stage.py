from __future__ import annotations

import itertools

import pytest

from controller_proto.command import (
    AllowWrites,
    CancelPeek,
    Command,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Sync,
    UpdateConfiguration,
)
from controller_proto.response import Closing, Frontiers, PeekCanceled, PeekResponse, Refused, Synced
from controller_proto.stage import COMMANDS, RESPONSES, Stage, StageMachine


def _after(*commands: Command) -> StageMachine:
    machine = StageMachine()
    for command in commands:
        assert machine.command(command) is None
    return machine


HELLO, CREATE, DONE = Hello(1, "n"), CreateInstance(2), InitializationComplete(3)


def test_a_controller_walks_the_three_stages_in_order() -> None:
    machine = StageMachine()
    walked = [machine.stage]
    for command in (HELLO, CREATE, DONE):
        assert machine.command(command) is None
        walked.append(machine.stage)
    assert walked == [Stage.CONNECTED, Stage.CREATION, Stage.INITIALISATION, Stage.COMPUTATION]


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ((), Sync(9)),
        ((), CREATE),
        ((HELLO,), Sync(9)),
        ((HELLO,), Hello(9, "m")),
        ((HELLO,), InitializationComplete(9)),
        ((HELLO, CREATE), CreateInstance(9)),
        ((HELLO, CREATE, DONE), InitializationComplete(9)),
        ((HELLO, CREATE, DONE), Hello(9, "m")),
        ((Hello(1, "n", kind="reader"),), AllowWrites(9, "u1")),
        ((Hello(1, "n", kind="reader"),), UpdateConfiguration(9)),
        ((Hello(1, "n", kind="reader"),), CreateInstance(9)),
    ],
)
def test_what_is_not_legal_in_a_stage_changes_nothing(said: tuple[Command, ...], then: Command) -> None:
    machine = _after(*said)
    before = machine.stage
    problem = machine.command(then)
    assert problem is not None
    assert problem[0] == "invalid-stage"
    assert before.value in problem[1]
    assert machine.stage is before


def test_a_reader_peeks_cancels_and_syncs() -> None:
    machine = _after(Hello(1, "n", kind="reader"), Peek(2, "a", "u1", 0), CancelPeek(3, "a"), Sync(4))
    assert machine.stage is Stage.READER
    assert machine.response(PeekResponse("a", PeekCanceled())) is None
    assert machine.response(Frontiers("u1", (1,))) is not None


def test_a_hello_of_another_kind_is_a_bad_message() -> None:
    problem = StageMachine().command(Hello(1, "n", kind="writer"))
    assert problem == ("bad-message", "hello of kind 'writer': it is controller or reader")


@pytest.mark.parametrize("seq", [0, 1, 2, 3])
def test_sequence_numbers_rise(seq: int) -> None:
    machine = _after(HELLO, CREATE, DONE)
    problem = machine.command(Sync(seq))
    assert problem is not None
    assert problem[0] == "bad-message"
    assert machine.command(Sync(4)) is None


def test_the_replica_says_nothing_but_refusals_in_creation() -> None:
    machine = _after(HELLO)
    for response in (Synced(1), Frontiers("u1"), PeekResponse("a", PeekCanceled())):
        problem = machine.response(response)
        assert problem is not None
        assert problem[0] == "invalid-stage"
    assert machine.response(Refused(7, "invalid-stage", "")) is None


def test_nothing_follows_a_closing() -> None:
    machine = _after(HELLO, CREATE)
    assert machine.response(Closing("fenced", "")) is None
    assert machine.stage is Stage.CLOSED
    assert machine.response(Closing("fenced", "")) is not None
    assert machine.command(Sync(9)) is not None


def test_a_refused_command_takes_its_move_and_all_later_ones_back() -> None:
    machine = _after(HELLO, CREATE, DONE)
    assert machine.response(Refused(99, "unknown-id", "")) is None
    assert machine.stage is Stage.COMPUTATION
    assert machine.response(Refused(2, "unknown-setting", "")) is None
    assert machine.stage is Stage.CREATION
    assert machine.command(CreateInstance(4)) is None
    assert machine.response(Refused(3, "invalid-stage", "")) is None
    assert machine.stage is Stage.INITIALISATION


def test_each_stage_of_a_controller_allows_the_answers_of_the_one_before() -> None:
    order = [Stage.CONNECTED, Stage.CREATION, Stage.INITIALISATION, Stage.COMPUTATION]
    for earlier, later in itertools.pairwise(order):
        assert RESPONSES[earlier] <= RESPONSES[later]


def test_every_stage_stands_in_both_tables() -> None:
    assert set(COMMANDS) == set(RESPONSES) == set(Stage)
