from __future__ import annotations

import random
from collections import Counter

import pytest

from clusterd.ingest.changes import Transactions
from clusterd.ingest.errors import IngestError
from clusterd.ingest.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Ignored,
    Insert,
    Message,
    Relation,
    RelationColumn,
    Truncate,
    Update,
)

A, B = 101, 102


def transactions(*, sealed: int = 10, a_upper: int = 11, b_upper: int = 11) -> Transactions:
    return Transactions({A: ("public.a", 2, a_upper), B: ("public.b", 1, b_upper)}, sealed)


def feed(into: Transactions, *messages: Message) -> None:
    for message in messages:
        into.feed(message, 10)


def test_a_transaction_counts_as_a_whole_and_at_the_place_where_its_commit_ends() -> None:
    found = transactions()
    feed(found, Begin(20, 1), Insert(A, (b"1", b"x")), Insert(B, (b"7",)))
    assert found.in_transaction
    assert not found.has_changes
    feed(found, Commit(20, 25))
    assert (found.sealed, found.rows, found.in_transaction) == (25, 2, False)
    taken = found.take()
    assert (taken[A].rows, taken[A].times, taken[A].diffs) == ([(b"1", b"x")], [25], [1])
    assert (taken[B].rows, taken[B].times) == ([(b"7",)], [25])
    assert (found.has_changes, found.rows, found.nbytes) == (False, 0, 0)


def test_bug72_an_update_retracts_the_old_row_and_keeps_a_large_value_that_was_not_sent() -> None:
    found = transactions()
    large = b"x" * 9000
    feed(found, Begin(20, 1), Update(A, (b"7", large), (b"8", UNCHANGED)), Commit(20, 25))
    changes = found.take()[A]
    assert changes.rows == [(b"7", large), (b"8", large)]
    assert changes.diffs == [-1, 1]


@pytest.mark.parametrize(
    "message",
    [
        Update(A, None, (b"7", b"y")),
        Update(A, None, (b"7", UNCHANGED)),
        Delete(A, None),
        Insert(A, (b"7", UNCHANGED)),
        Update(A, (b"7", UNCHANGED), (b"7", b"x")),
        Relation(A, "public", "a", "d", (RelationColumn("id", 23, -1),)),
    ],
)
def test_bug72_without_the_whole_old_row_there_is_an_error_and_never_a_null(message: Message) -> None:
    found = transactions()
    feed(found, Begin(20, 1))
    with pytest.raises(IngestError, match="REPLICA IDENTITY FULL") as caught:
        feed(found, message)
    assert caught.value.code == "identity-not-full"


def test_what_a_shard_has_already_is_left_out_of_it_and_of_no_other() -> None:
    found = transactions(a_upper=26)
    for at in (20, 30):
        feed(
            found,
            Begin(at, 1),
            Truncate((A,)),
            Insert(A, (b"1", None)),
            Insert(B, (b"7",)),
            Commit(at, at + 5),
        )
    taken = found.take()
    assert taken[A].times == [35]
    assert taken[A].cleared == [(0, 35)]
    assert taken[B].times == [25, 35]


def test_a_truncate_stands_between_the_rows_before_and_behind_it() -> None:
    found = transactions()
    feed(found, Begin(20, 1), Insert(A, (b"1", None)), Commit(20, 25))
    feed(
        found,
        Begin(30, 1),
        Insert(A, (b"2", None)),
        Truncate((A, 999)),
        Insert(A, (b"3", None)),
        Commit(30, 35),
    )
    changes = found.take()[A]
    assert changes.cleared == [(2, 35)]
    assert changes.times == [25, 35, 35]


def test_columns_that_were_added_behind_are_left_out() -> None:
    found = transactions()
    feed(found, Begin(20, 1), Insert(B, (b"7", b"new")), Commit(20, 25))
    assert found.take()[B].rows == [(b"7",)]


@pytest.mark.parametrize(
    "messages",
    [
        (Insert(A, (b"1", b"x")),),
        (Commit(20, 25),),
        (Begin(20, 1), Begin(30, 2)),
        (Begin(20, 1), Commit(21, 25)),
        (Begin(20, 1), Insert(999, ())),
        (Begin(20, 1), Insert(A, (b"1",))),
        (Begin(20, 1), Commit(20, 10)),
        (Begin(20, 1), Commit(20, 25), Begin(21, 2), Commit(21, 25)),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(messages: tuple[Message, ...]) -> None:
    with pytest.raises(IngestError) as caught:
        feed(transactions(), *messages)
    assert caught.value.code == "bad-stream"


def test_a_table_that_nobody_knows_is_told_as_new() -> None:
    found = transactions()
    feed(found, Begin(20, 1), Relation(999, "public", "c", "f", ()))  # so are partitions of what we know
    with pytest.raises(IngestError, match=r"public\.c .*--resnapshot") as caught:
        feed(found, Insert(999, ()))
    assert caught.value.code == "schema-changed"


def test_messages_without_meaning_here_change_nothing() -> None:
    found = transactions()
    feed(found, Ignored("Y"), Begin(20, 1), Ignored("O"), Commit(20, 25))
    assert (found.sealed, found.has_changes) == (25, False)


@pytest.mark.parametrize("seed", range(20))
def test_changes_add_up_to_the_table_whenever_they_are_taken(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    found = transactions()
    table: list[tuple[bytes, bytes]] = []
    shard: Counter[tuple[bytes | None, ...]] = Counter()

    def take() -> None:
        changes = found.take().get(A)
        if changes is None:
            return
        cleared = [at for at, _ in changes.cleared]
        for at, (row, diff) in enumerate(zip(changes.rows, changes.diffs, strict=True)):
            if at in cleared:
                shard.clear()
            shard[row] += diff
        if len(changes.rows) in cleared:
            shard.clear()

    for number in range(30):
        at = 20 + 10 * number
        feed(found, Begin(at, number))
        for _ in range(rng.randrange(6)):
            row = (b"%d" % rng.randrange(5), b"%d" % rng.randrange(3))
            action = rng.choice("iiiudt" if rng.random() < 0.2 else "iiud")
            if action == "t":
                table.clear()
                feed(found, Truncate((A,)))
            elif action == "i" or not table:
                table.append(row)
                feed(found, Insert(A, row))
            else:
                old = table.pop(rng.randrange(len(table)))
                if action == "u":
                    new = (row[0], old[1])
                    table.append(new)
                    feed(found, Update(A, old, (row[0], UNCHANGED)))
                else:
                    feed(found, Delete(A, old))
        feed(found, Commit(at, at + 5))
        if rng.random() < 0.3:
            take()
    take()
    assert +shard == Counter(table)
    assert min(shard.values(), default=0) >= 0
