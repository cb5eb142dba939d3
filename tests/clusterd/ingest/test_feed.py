"""The feed against a real server. A database a test, so that slots and tables are its own."""

from __future__ import annotations

import datetime
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from clusterd.ingest import connection, feed
from clusterd.ingest.errors import IngestError
from clusterd.ingest.status import status_of
from clusterd.storage.store import Store
from controller_proto.schema import type_name
from shm_arrangements import failpoints
from shm_arrangements.frontier import Frontier
from shm_arrangements.updates import Updates
from tests.clusterd.ingest.feeding import (
    Feeding,
    between,
    contents,
    error_of,
    feeding,
    options_of,
    wait_sealed,
    wal_end,
)
from tests.e2e.support import wait_until
from tests.postgres import PostgresServer, servers

pytestmark = pytest.mark.slow
_names = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    yield from servers()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    name = f"d{next(_names)}"
    server.execute("postgres", f"CREATE DATABASE {name}")
    yield name
    drop_slots(server, name)
    server.execute("postgres", f"DROP DATABASE {name} (FORCE)")


def drop_slots(server: PostgresServer, database: str) -> None:
    """Once those who read from them have left, which the server notices a little later than we."""
    slots = f"FROM pg_replication_slots WHERE database = '{database}'"
    active = f"SELECT count(*) {slots} AND active"
    wait_until(lambda: server.execute(database, active) == [(0,)], 20, "slots are left")
    server.execute(database, f"SELECT pg_drop_replication_slot(slot_name) {slots}")


def prepare(server: PostgresServer, database: str, *tables: str) -> None:
    """tables: `name (columns)`, published as `p`."""
    names = [table.split(" ")[0] for table in tables]
    server.execute(
        database,
        *(f"CREATE TABLE {table}" for table in tables),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        f"CREATE PUBLICATION p FOR TABLE {', '.join(names)}",
    )


def code_of(error: BaseException) -> str:
    assert isinstance(error, IngestError), repr(error)
    return error.code


TYPES = """everything (
    b boolean, i2 smallint, i4 integer, i8 bigint, o oid, f4 real, f8 double precision, n numeric(12,2),
    t text, vc varchar(9), c char(4), q "char", na name, m mood, dom positive, by bytea, d date, ti time,
    ts timestamp, tz timestamptz, iv interval, u uuid, j json, jb jsonb, ia integer[], ta text[],
    la numeric(5,1)[]
)"""
TYPE_NAMES = [
    "boolean", "smallint", "integer", "bigint", "uint4", "real", "double precision", "numeric(38,2)",
    "text", "text", "text", "text", "text", "text", "integer", "bytea", "date", "time",
    "timestamp", "timestamptz", "interval", "uuid", "jsonb", "jsonb", "integer? list", "text? list",
    "numeric(38,1)? list",
]  # fmt: skip
ROW = (
    "true, -32768, 2147483647, -9223372036854775808, 4294967295, 1.5, 'NaN', -1234567890.12,"
    " E'tab\\t\"q\" \\\\N é', '', 'ab', 'x', 'na', 'happy', 5, '\\x00ff0a', '2013-02-28', '24:00:00',"
    " '0044-01-01 05:06:07.000008',"
    " '2013-01-01 05:00:00+02', '1 year 2 mons -3 days 04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',"
    ' \'{"b":1.50, "a":null}\', \'[1, "x"]\', \'{1,NULL,3}\', \'{"a,b",NULL,"NULL",""}\', \'{1.5,-2}\''
)
NO_TEXT = (
    "true, 0, 0, 0, 0, '-Infinity', 0, 0, 'null', '\\N', '', '', '', 'sad', 1, '', '0001-01-01', '00:00:00.5'"
)
REST = (
    "'9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.5+00', '-00:00:01', '{0}', '0', '\"\"',"
    " '{{}}', '{{}}', '{{}}'"
)
EPOCH = datetime.datetime(1970, 1, 1)


def _micros(moment: datetime.datetime) -> int:
    return (moment - EPOCH) // datetime.timedelta(microseconds=1)


def test_every_type_comes_alike_by_snapshot_and_by_stream(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    server.execute(
        database,
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN positive AS integer CHECK (value > 0)",
    )
    prepare(server, database, TYPES)
    values = (
        ROW,
        f"{NO_TEXT}, {REST.format('00000000-0000-0000-0000-000000000000')}",
        ", ".join(["NULL"] * 27),
    )
    inserts = [f"INSERT INTO everything VALUES ({row})" for row in values]
    server.execute(database, *inserts)
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["everything"], 0, running)
        at = wal_end(server, database)
        wait_sealed(tmp_path, ["everything"], at, running)
        copied = contents(tmp_path, "everything")
        server.execute(database, *inserts)
        wait_sealed(tmp_path, ["everything"], wal_end(server, database), running)
    doubled = contents(tmp_path, "everything")
    assert doubled == Counter({row: 2 for row in copied})
    with Store.open(tmp_path) as store:
        assert [type_name(column) for column in store.shard("everything").schema.columns] == TYPE_NAMES
    [found] = [row for row in copied if row[1] == -32768]
    assert found[:7] == (True, -32768, 2147483647, -(2**63), 2**32 - 1, 1.5, "NaN")
    assert found[7:16] == (-123456789012, 'tab\t"q" \\N é', "", "ab  ", "x", "na", "happy", 5, b"\x00\xff\n")
    day = (datetime.date(2013, 2, 28) - EPOCH.date()).days
    assert found[16:18] == (day, 86_400_000_000)
    assert found[18] == _micros(datetime.datetime(44, 1, 1, 5, 6, 7, 8))
    assert found[19] == _micros(datetime.datetime(2013, 1, 1, 3))
    assert found[22:26] == ('{"a":null,"b":1.5}', '[1,"x"]', (1, None, 3), ("a,b", None, "NULL", ""))
    assert found[26] == (15, -20)
    [other] = [row for row in copied if row[8] == "null"]
    assert (other[5], other[9], other[15], other[24]) == (float("-inf"), "\\N", b"", ())
    assert sum(1 for row in copied if set(row) == {None}) == 1


def test_bug72_changes_of_several_tables_come_at_one_time_and_large_values_stay(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(
        server, database, "d (id integer PRIMARY KEY, note text, n integer)", "log (id integer, what text)"
    )
    note = (
        "select string_agg(md5(i::text), '') from generate_series(1, 300) i"  # 9,600 characters, not packed
    )
    server.execute(
        database, "ALTER TABLE d ALTER note SET STORAGE EXTERNAL", f"INSERT INTO d VALUES (7, ({note}), 1)"
    )
    [(text,)] = server.execute(database, note)
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["d", "log"], 0, running)
        times = []
        for statement in (
            "UPDATE d SET n = 2",
            "UPDATE d SET id = 8",
            "UPDATE d SET n = 3, note = NULL",
            "INSERT INTO d SELECT 9, '', 9",
            "DELETE FROM d WHERE id = 8",
            "TRUNCATE d",
        ):
            server.execute(
                database, f"BEGIN; {statement}; INSERT INTO log VALUES (1, '{statement[0]}'); COMMIT"
            )
            times.append(wal_end(server, database))
        wait_sealed(tmp_path, ["d", "log"], times[-1], running)
    wanted = [
        {(7, text, 2): 1}, {(8, text, 2): 1}, {(8, None, 3): 1}, {(8, None, 3): 1, (9, "", 9): 1},
        {(9, "", 9): 1}, {},
    ]  # fmt: skip
    for count, (at, rows) in enumerate(zip(times, wanted, strict=True)):
        assert contents(tmp_path, "d", at) == Counter(rows)
        assert contents(tmp_path, "log", at).total() == count + 1
        assert contents(tmp_path, "log", at - 1).total() >= count  # the insert lies at or before `at`


def test_a_truncate_takes_what_is_there_and_what_came_in_the_same_transaction(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)", "b (id integer)")
    server.execute(database, "INSERT INTO a VALUES (1), (1), (2)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a", "b"], 0, running)
        server.execute(
            database,
            "INSERT INTO a VALUES (3)",
            "BEGIN; INSERT INTO a VALUES (4); DELETE FROM a WHERE id = 2; TRUNCATE a, b;"
            " INSERT INTO a VALUES (5); TRUNCATE a; INSERT INTO a VALUES (6), (6); COMMIT",
        )
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(6,): 2})


def test_bug68_a_feed_that_is_started_again_takes_what_came_meanwhile_once(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    for number in range(4):
        server.execute(database, f"INSERT INTO a VALUES ({number})")
        with feeding(tmp_path, options_of(server, database)) as running:
            server.execute(database, f"INSERT INTO a VALUES ({number + 10})")
            wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(i,): 1 for i in (0, 1, 2, 3, 10, 11, 12, 13)})


@pytest.mark.parametrize(
    "point",
    [
        "shard.part-written", "shard.catalog-committed", "ingest.table-copied", "ingest.slot-missing",
        "ingest.slot-made", "ingest.shard-appended",
    ],
)  # fmt: skip
def test_bug67_a_feed_that_fails_anywhere_twice_in_a_row_leaves_each_row_once_and_at_one_time(
    server: PostgresServer, database: str, tmp_path: Path, point: str
) -> None:
    prepare(server, database, "a (id integer)", "b (id integer)")
    server.execute(
        database, "INSERT INTO a SELECT generate_series(1, 3)", "INSERT INTO b SELECT generate_series(1, 4)"
    )
    options = options_of(server, database)
    both = "BEGIN; INSERT INTO a VALUES ({0}); INSERT INTO b VALUES ({0}); DELETE FROM b WHERE id = {0} - 1"
    try:
        for number in (10,) if point == "ingest.slot-made" else (10, 11):  # once made, the slot is there
            failpoints.arm(point, "error", times=1)
            running = Feeding(tmp_path, options)
            try:
                server.execute(database, both.format(number) + "; COMMIT")
                error = running.ended()
            finally:
                running.end()
            assert isinstance(error, failpoints.FailpointError), error
    finally:
        failpoints.disarm_all()
    with feeding(tmp_path, options) as running:
        server.execute(database, both.format(12) + "; COMMIT")
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database), running)
    with Store.open(tmp_path) as store:
        first = max(store.shard(name).since.time for name in ("a", "b"))
    counts = [contents(tmp_path, name, first).total() for name in ("a", "b")]
    assert counts in ([3 + k, 4 + min(k, 1)] for k in range(4))  # of one moment
    for name in ("a", "b"):
        assert contents(tmp_path, name) == Counter(server.execute(database, f"SELECT * FROM {name}"))


def test_an_idle_feed_is_sealed_as_far_as_the_server_is_and_lets_its_wal_go(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a"], 0, running)
        for _ in range(3):  # of a table that is not published
            server.execute(
                database, "CREATE TABLE IF NOT EXISTS other (id integer)", "INSERT INTO other VALUES (1)"
            )
            at = wal_end(server, database)
            wait_sealed(tmp_path, ["a"], at, running)
        with Store.open(tmp_path) as store:
            deadline = time.monotonic() + 20
            while (status := status_of(store, server.dsn(database), f"slot_{database}")).confirmed < at:
                assert time.monotonic() < deadline, status  # the status follows the seal
    assert status.active_pid is not None
    assert [(shard.name, shard.table) for shard in status.shards] == [("a", "public.a")]
    assert status.behind_bytes < 10_000


def test_rows_and_columns_that_are_not_published_do_not_come(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    server.execute(
        database,
        "CREATE SCHEMA s",
        'CREATE TABLE s."T x" (id int, secret money, v text, twice int GENERATED ALWAYS AS (id * 2) STORED)',
        'ALTER TABLE s."T x" REPLICA IDENTITY FULL',
        "CREATE TABLE parts (id integer, v text) PARTITION BY LIST (id)",
        "CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1)",
        "ALTER TABLE parts REPLICA IDENTITY FULL",
        "ALTER TABLE parts1 REPLICA IDENTITY FULL",
        "INSERT INTO parts VALUES (1, 'x')",
        """INSERT INTO s."T x" VALUES (1, 1, 'a'), (-1, 1, 'b')""",
        'CREATE PUBLICATION p FOR TABLE s."T x" WHERE (id > 0), parts WITH (publish_via_partition_root)',
    )
    options = options_of(server, database, shards={"s.T x": "tx"})
    assert "column secret is of type money" in str(error_of(tmp_path, options))
    server.execute(
        database,
        "DROP PUBLICATION p",
        'ALTER TABLE s."T x" REPLICA IDENTITY DEFAULT',
        'CREATE PUBLICATION p FOR TABLE parts, s."T x" (id, v) WITH (publish_via_partition_root)',
    )
    assert code_of(error_of(tmp_path, options)) == "identity-not-full"
    server.execute(
        database,
        'ALTER TABLE s."T x" DROP secret',
        'ALTER TABLE s."T x" REPLICA IDENTITY FULL',
        "DROP PUBLICATION p",
        'CREATE PUBLICATION p FOR TABLE parts, s."T x" WHERE (id > 0) WITH (publish_via_partition_root)',
    )
    with feeding(tmp_path, options) as running:
        wait_sealed(tmp_path, ["tx", "parts"], 0, running)
        server.execute(
            database,
            """INSERT INTO s."T x" VALUES (2, 'c'), (-2, 'd')""",
            """UPDATE s."T x" SET id = -id, v = v || '!' WHERE id IN (1, -2)""",
            "UPDATE parts SET v = 'y'",
        )
        wait_sealed(tmp_path, ["tx", "parts"], wal_end(server, database), running)
    assert contents(tmp_path, "tx") == Counter({(2, "c"): 1, (2, "d!"): 1})
    assert contents(tmp_path, "parts") == Counter({(1, "y"): 1})


def test_a_role_with_replication_and_select_is_enough_unless_a_policy_hides_rows_from_it(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    role = f"feed_{database}"
    server.execute(
        database,
        f"CREATE ROLE {role} LOGIN REPLICATION",
        "INSERT INTO a VALUES (1)",
        "ALTER ROLE ALL SET datestyle = german",
    )
    options = msgspec.structs.replace(
        options_of(server, database), dsn=server.dsn(database).replace("user=postgres", f"user={role}")
    )
    error = error_of(tmp_path, options)
    assert code_of(error) == "cannot-connect"
    assert "42501" in str(error)
    server.execute(database, f"GRANT SELECT ON a TO {role}", "ALTER TABLE a ENABLE ROW LEVEL SECURITY")
    assert "row-level security" in str(error_of(tmp_path, options))
    server.execute(database, "ALTER TABLE a DISABLE ROW LEVEL SECURITY")
    with feeding(tmp_path, options) as running:
        wait_sealed(tmp_path, ["a"], 0, running)
        server.execute(database, "INSERT INTO a VALUES (2)")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(1,): 1, (2,): 1})
    server.execute(database, "ALTER ROLE ALL RESET datestyle", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_what_is_not_set_up_is_told_with_what_to_do(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    options = options_of(server, database)
    cases = [
        ([], "bad-setup", "CREATE PUBLICATION p"),
        (["CREATE PUBLICATION p"], "bad-setup", "ADD TABLE"),
        (
            ["CREATE TABLE a (n numeric)", "ALTER PUBLICATION p ADD TABLE a"],
            "identity-not-full", "ALTER TABLE public.a",
        ),
        (["ALTER TABLE a REPLICA IDENTITY FULL"], "unmapped-type", "--numeric-scale"),
        (["ALTER TABLE a ALTER n TYPE inet USING NULL"], "unmapped-type", "type inet"),
        (
            ["ALTER TABLE a ALTER n TYPE int[] USING NULL", "INSERT INTO a VALUES ('{{1}}')"],
            "invalid-data", "'{{1}}'",
        ),
        (["ALTER PUBLICATION p SET (publish = 'insert')"], "bad-setup", "'insert, update, delete, truncate'"),
    ]  # fmt: skip
    for statements, code, text in cases:
        server.execute(database, "SELECT 1", *statements)
        error = error_of(tmp_path, options)
        assert code_of(error) == code
        assert text in str(error)
    server.execute(database, "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
    error = error_of(tmp_path, options_of(server, database, shards={"public.aa": "x"}))
    assert code_of(error) == "bad-setup"
    assert "table 'public.aa', which is not in the publication; did you mean public.a?" in str(error)
    slots = server.execute(database, f"SELECT * FROM pg_replication_slots WHERE database = '{database}'")
    assert not slots, "a slot would keep WAL for nobody"


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (["ALTER TABLE a DROP v", "ALTER TABLE a ADD v text"], "schema-changed"),
        (["ALTER TABLE a RENAME v TO w"], "schema-changed"),
        (["ALTER TABLE a ALTER id TYPE bigint"], "schema-changed"),
        (["ALTER TABLE a REPLICA IDENTITY DEFAULT"], "identity-not-full"),
        (["ALTER TABLE a ALTER id DROP NOT NULL", "INSERT INTO a VALUES (NULL, 'x', 'x')"], "schema-changed"),
    ],
)
def test_bug74_a_table_that_is_altered_ends_the_feed_and_older_times_stay_right(
    server: PostgresServer, database: str, tmp_path: Path, statements: list[str], code: str
) -> None:
    prepare(server, database, "a (id integer NOT NULL, v text, z text)")
    server.execute(database, "INSERT INTO a VALUES (1, 'x', 'y')")
    options = options_of(server, database)
    running = Feeding(tmp_path, options)
    try:
        wait_sealed(tmp_path, ["a"], 0, running)
        server.execute(database, "INSERT INTO a VALUES (2, 'x', 'y')")
        before = wal_end(server, database)
        wait_sealed(tmp_path, ["a"], before, running)
        server.execute(database, *statements, "INSERT INTO a (id, z) VALUES (3, 'p')")
        error = running.ended()
    finally:
        running.end()
    assert error is not None
    assert code_of(error) == code
    assert contents(tmp_path, "a", before) == Counter({(1, "x", "y"): 1, (2, "x", "y"): 1})
    assert code_of(error_of(tmp_path, options)) == code  # nor does it go on when started again


def test_bug74_after_a_change_a_new_snapshot_writes_the_difference(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer, v text)", "b (id integer)")
    server.execute(database, "INSERT INTO a VALUES (1, 'x')", "INSERT INTO b VALUES (1)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a", "b"], 0, running)
        server.execute(database, "INSERT INTO a VALUES (2, NULL)")
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database), running)
    before = wal_end(server, database)
    server.execute(
        database,
        "ALTER TABLE a DROP v",
        "ALTER TABLE a ADD v text",
        "ALTER TABLE a ADD extra xml",  # no type of ours: it is left out, being behind what the shard has
        "INSERT INTO a VALUES (3, 'p')",
        "INSERT INTO b VALUES (2)",
    )
    assert code_of(error_of(tmp_path, options_of(server, database))) == "schema-changed"
    with feeding(tmp_path, options_of(server, database, resnapshot=True)) as running:
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database), running)
        server.execute(database, "INSERT INTO a VALUES (4, NULL)")
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(1, None): 1, (2, None): 1, (3, "p"): 1, (4, None): 1})
    assert contents(tmp_path, "b") == Counter({(1,): 1, (2,): 1})
    with Store.open(tmp_path) as store:
        assert store.shard("a").since.time <= before
        updates = list(store.shard("a").read(before + 1, store.shard("a").upper, block_rows=100))
    assert sum(map(len, updates)) == 4  # -(1, x), +(1, NULL), +(3, p), +(4, NULL)


NEVER_TO_BE_TAKEN = (
    (
        "identity-not-full", "its replica identity was changed",
        ("ALTER TABLE a REPLICA IDENTITY DEFAULT", "UPDATE a SET i = i + 1",
         "ALTER TABLE a REPLICA IDENTITY FULL"),
    ),
    (
        "invalid-data", "'infinity' is no date",
        ("INSERT INTO a VALUES (20, 'infinity')", "UPDATE a SET d = '2020-01-02' WHERE i = 20"),
    ),
    (
        "schema-changed", "its columns are (j, d)",
        ("ALTER TABLE a RENAME i TO j", "INSERT INTO a VALUES (30)", "ALTER TABLE a RENAME j TO i"),
    ),
    (
        "schema-changed", "came into the publication",
        ("CREATE TABLE b (i int)", "ALTER PUBLICATION p ADD TABLE b", "INSERT INTO b VALUES (1)",
         "ALTER PUBLICATION p DROP TABLE b", "DROP TABLE b"),
    ),
    (
        "schema-changed", "publication 'p' was dropped",
        ("DROP PUBLICATION p", "INSERT INTO a VALUES (60)", "CREATE PUBLICATION p FOR TABLE a"),
    ),
    (
        "schema-changed", "of table public.a other rows are published: all before, those with (i > 3) now",
        ("INSERT INTO a VALUES (1), (40)", "ALTER PUBLICATION p SET TABLE a WHERE (i > 3)",
         "DELETE FROM a WHERE i < 40"),
    ),
)  # fmt: skip


def test_what_no_feed_can_take_is_passed_by_a_new_snapshot_stopped_or_running(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (i int primary key, d date)")
    server.execute(database, "INSERT INTO a VALUES (10)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    allowed = options_of(server, database, resnapshot=True)

    def brought_up_to_date(running: Feeding) -> None:
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
        rows = server.execute(database, "SELECT i, d - date '1970-01-01' FROM a")
        assert contents(tmp_path, "a") == Counter(rows)

    for code, text, statements in NEVER_TO_BE_TAKEN:
        server.execute(database, *statements)
        for _ in range(2):  # it is in the stream for ever, though the table is as before
            error = error_of(tmp_path, options_of(server, database))
            assert code_of(error) == code
            assert text in str(error)
        with feeding(tmp_path, allowed) as running:
            brought_up_to_date(running)
            server.execute(database, "ALTER PUBLICATION p SET TABLE a", "DELETE FROM a WHERE i <> 10")
            brought_up_to_date(running)
            server.execute(database, *statements, "INSERT INTO a VALUES (50)")
            brought_up_to_date(running)
            server.execute(database, "ALTER PUBLICATION p SET TABLE a", "DELETE FROM a WHERE i <> 10")
            server.execute(database, "INSERT INTO a VALUES (10) ON CONFLICT DO NOTHING")
            brought_up_to_date(running)


def test_a_server_that_falls_silent_is_left_and_asked_anew(
    server: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_STATUS_INTERVAL_S", 0.1)
    monkeypatch.setattr(feed, "_LAG_INTERVAL_S", 3600.0)
    prepare(server, database, "a (i int)")
    options = options_of(server, database)
    with between(server) as proxy:
        dsn = f"{options.dsn}&host={proxy.directory}".replace(f"host={server.directory}&", "")
        through = msgspec.structs.replace(options, dsn=dsn)
        with feeding(tmp_path, through) as running:
            wait_sealed(tmp_path, ["a"], 0, running)
            server.execute(database, "INSERT INTO a VALUES (0)")
            wait_sealed(tmp_path, ["a"], wal_end(server, database), running)  # it is by the stream
            monkeypatch.setattr(feed, "ANSWER_TIMEOUT_S", 0.5)
            proxy.freeze()
            server.execute(database, "INSERT INTO a VALUES (1)")
            wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
            assert contents(tmp_path, "a") == Counter([(0,), (1,)])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_server_that_is_slow_to_begin_is_waited_for_and_one_that_falls_silent_is_not(
    server: PostgresServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.3)
    asked: list[bool] = []
    is_working = feed._Session._is_working

    def ask(session: feed._Session, pid: int) -> bool:
        asked.append(is_working(session, pid))
        return asked[-1]

    monkeypatch.setattr(feed._Session, "_is_working", ask)
    prepare(server, database, "a (i int)")
    server.execute(database, "INSERT INTO a VALUES (1)")
    options = options_of(server, database)
    with between(server) as proxy, server.connect(database) as other:
        dsn = f"{options.dsn}&host={proxy.directory}".replace(f"host={server.directory}&", "")
        running = Feeding(tmp_path, msgspec.structs.replace(options, dsn=dsn))
        try:
            with other.transaction():
                other.execute("INSERT INTO a VALUES (2)")  # the slot waits for its end
                wait_until(lambda: len(asked) >= 2, 20, "the server is asked what it does")
                assert all(asked)
                if frozen:
                    proxy.freeze()
            if frozen:
                error = running.ended()
                assert error is not None
                assert code_of(error) == "cannot-connect"
                assert "did not answer within 0.3 s" in str(error)
                assert not asked[-1]
            else:
                wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
                assert contents(tmp_path, "a") == Counter([(1,), (2,)])
        finally:
            running.end()


def test_a_column_added_behind_is_left_out(server: PostgresServer, database: str, tmp_path: Path) -> None:
    prepare(server, database, "a (id integer)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a"], 0, running)
        server.execute(database, "ALTER TABLE a ADD v text", "INSERT INTO a VALUES (1, 'x')")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    with feeding(tmp_path, options_of(server, database)) as running:
        server.execute(database, "UPDATE a SET v = 'y'", "INSERT INTO a VALUES (2, 'x')")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(1,): 1, (2,): 1})


def test_a_value_that_no_column_holds_ends_the_feed_before_it(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (d date)", "b (n numeric)")
    running = Feeding(tmp_path, options_of(server, database, numeric_scale=2))
    try:
        wait_sealed(tmp_path, ["a", "b"], 0, running)
        server.execute(database, "INSERT INTO b VALUES (1.5)", "INSERT INTO a VALUES ('infinity')")
        error = running.ended()
    finally:
        running.end()
    assert error is not None
    assert code_of(error) == "invalid-data"
    assert "'infinity'" in str(error)
    assert "public.a, column d" in str(error)
    server.execute(database, "INSERT INTO b VALUES (1.555)")
    assert not contents(tmp_path, "a")


def test_a_slot_that_is_gone_is_told_and_its_shards_are_mended_when_allowed(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    server.execute(database, "INSERT INTO a VALUES (1)")
    options = options_of(server, database)
    with feeding(tmp_path, options) as running:
        wait_sealed(tmp_path, ["a"], 0, running)
        server.execute(database, "INSERT INTO a VALUES (2)")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    drop_slots(server, database)
    server.execute(
        database,
        "DELETE FROM a WHERE id = 1",
        "INSERT INTO a VALUES (3)",
    )
    assert code_of(error_of(tmp_path, options)) == "slot-gone"
    with feeding(tmp_path, options_of(server, database, resnapshot=True)) as running:
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(2,): 1, (3,): 1})
    # Somebody else reads from the slot: it no longer has what the shard lacks.
    idle = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{options.slot}' AND NOT active"
    wait_until(lambda: server.execute(database, idle) == [(1,)], 20, "the slot is left")
    server.execute(
        database,
        "SET synchronous_commit = on",
        "INSERT INTO a VALUES (4)",
        f"SELECT pg_replication_slot_advance('{options.slot}', pg_current_wal_lsn())",
    )
    assert code_of(error_of(tmp_path, options)) == "slot-gone"


def test_the_feed_goes_on_when_the_server_was_restarted(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a"], 0, running)
        for number, mode in enumerate(("fast", "immediate")):
            server.execute(database, "SET synchronous_commit = on", f"INSERT INTO a VALUES ({number})")
            server.stop(mode)
            server.start()
            server.execute(database, f"INSERT INTO a VALUES ({number + 10})")
            wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(i,): 1 for i in (0, 1, 10, 11)})


def test_a_server_that_holds_the_last_connection_for_alive_is_waited_for(
    server: PostgresServer, database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare(server, database, "a (id integer)")
    options = options_of(server, database)
    key = f"hashtextextended('clusterd-ingest {options.slot}', 0)"
    ours = f"datname = '{database}' AND application_name = 'clusterd-ingest'"
    with feeding(tmp_path, options) as running:
        server.execute(database, "INSERT INTO a VALUES (1)")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
        with server.connect(database) as ghost, ThreadPoolExecutor(1) as pool:
            locked = pool.submit(ghost.execute, f"SELECT pg_advisory_lock({key})".encode())
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_until(lambda: server.execute(database, waiting) == [(1,)], 20, "the lock is waited for")
            server.execute(database, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
            locked.result(20)
            told = ""
            deadline = time.monotonic() + 20
            while "has not noticed" not in told:
                assert time.monotonic() < deadline, told
                assert running.error is None
                time.sleep(0.05)
                told += capfd.readouterr().err
        server.execute(database, "INSERT INTO a VALUES (2)")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(1,): 1, (2,): 1})


def test_of_two_feeds_of_a_slot_one_goes_on_and_the_other_learns_how_far_it_is(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    with feeding(tmp_path, options_of(server, database)) as running:
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
        error = error_of(tmp_path, options_of(server, database))
        assert code_of(error) == "already-running"
        with Store.open(tmp_path) as store:
            upper = store.shard("a").upper.time
        assert "'a' has upper" in str(error)
        told = int(str(error).split("has upper ")[1].split(";")[0])
        assert 0 < told <= upper
        other = error_of(tmp_path, options_of(server, database, slot="other"))  # over the same shard
        assert code_of(other) == "shard-taken"
        server.execute(database, "INSERT INTO a VALUES (1)")
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
    assert contents(tmp_path, "a") == Counter({(1,): 1})


def test_a_feed_whose_shard_another_wrote_to_stops_and_tells_the_upper(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)")
    running = Feeding(tmp_path, options_of(server, database))
    try:
        wait_sealed(tmp_path, ["a"], wal_end(server, database), running)
        with Store.open(tmp_path) as store:
            shard = store.shard("a")
            upper = shard.upper
            beyond = Frontier.at(upper.time + (1 << 40))
            shard.append(Updates.empty(tuple(spec.type for spec in shard.specs)), upper, beyond)
        server.execute(database, "INSERT INTO a VALUES (1)")
        error = running.ended()
    finally:
        running.end()
    assert error is not None
    assert code_of(error) == "shard-taken"
    assert str(beyond.time) in str(error)
    assert code_of(error_of(tmp_path, options_of(server, database))) == "other-source"


def test_two_feeds_that_begin_at_once_over_the_same_shards_leave_each_row_there_once(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    prepare(server, database, "a (id integer)", "b (id integer)")
    server.execute(database, "INSERT INTO a SELECT generate_series(1, 2000)", "INSERT INTO b VALUES (1)")
    both = [Feeding(tmp_path, options_of(server, database, slot=slot)) for slot in ("one", "two")]
    try:
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database))
        server.execute(database, "INSERT INTO a VALUES (0)", "INSERT INTO b VALUES (2)")
        wait_sealed(tmp_path, ["a", "b"], wal_end(server, database))
    finally:
        for each in both:
            each.end()
    errors = [each.error for each in both if each.error is not None]
    assert [code_of(error) for error in errors] in ([], ["shard-taken"])
    assert len(errors) == 1
    assert contents(tmp_path, "a") == Counter({(i,): 1 for i in range(2001)})
    assert contents(tmp_path, "b") == Counter({(1,): 1, (2,): 1})
    query = f"SELECT slot_name FROM pg_replication_slots WHERE database = '{database}'"
    assert len(server.execute(database, query)) == 1  # the loser left none
