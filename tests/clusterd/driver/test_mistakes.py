"""Lines made of pieces that do not belong together: each is answered by output, none ends the driver."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clusterd.driver.driver import DIRECTIVES, carry_out
from clusterd.driver.state import Run, Skip
from clusterd.storage.store import Store
from controller_proto.errors import CODES
from tests.clusterd.driver.fake import fake_replica

SEED = 20_261
LINES = 3_000
# Who waits whatever else is said, and by which argument.
WAIT = {name: "timeout-secs" for name in DIRECTIVES if "timeout-secs" in DIRECTIVES[name].arguments}
WAIT |= {"sleep": "ms", "quiet": "ms", "send-raw": "ms"}
NAMES = sorted(DIRECTIVES)
VALUES = (
    "1", "0", "-1", "u1", "t7", "s1", "x", '""', '"a b"', "[]", "[0]", "[(1)]", '[(1, "a"), (null)]', "()",
    "(#0)", "(#0 + 1, foo(#1))", "(#0 > 1 AND #1)", "[#0 desc]", "[#9]", "1.5", "nan", "-inf", "1e999",
    "18446744073709551615", "18446744073709551616", "9223372036854775808", "s", "latest", "00ff", "zz",
    "KILL", "mux", "\u00e9", "\x00", "\ud800", "{1}", "#0", "main",
)  # fmt: skip
BODIES = (
    (), ("",), ("x",), ("1 a",), ("a bigint", "b text nullable"), ("max_result_bytes u64 5",), ("{", "}"),
    ("[]",), ('{"t": "peek"}',), ("import source=1 shard=s upper=1", "export index=1 on=1 key=[0]"),
    ("import index=1",), ("build id=1", "  Get u1"), ("export kind=subscribe sink=t1 on=1 up-to=[]",),
    ("build id=1", "  Reduce aggregates=[count(*)]", "    Get u7", "export index=2 on=1"), ("Filter",),
    ('"',), ("(",), ("\ud800",), ("a list",), ("export kind=nothing sink=t1 on=1",),
    ("a numeric(38,99)",), ("a record(a bigint",),
)  # fmt: skip


@pytest.mark.slow
def test_no_line_ends_the_driver_and_every_error_has_a_code_of_the_list(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    choose = random.Random(SEED)
    with fake_replica(tmp_path / "socket", lambda command: []) as replica:
        run = Run(replica.address, store=Store.open(tmp_path / "data"), timeout_s=0.0)
        try:
            for _ in range(LINES):
                line, body = _line(choose)
                _answered(run, line, body)
        finally:
            run.close()


def _line(choose: random.Random) -> tuple[str, tuple[str, ...]]:
    name = choose.choice(NAMES)
    directive = DIRECTIVES[name]
    words = [name]
    for argument in directive.arguments.values():
        if argument.name == WAIT.get(name):
            words.append(f"{argument.name}=0")
        elif choose.random() < (0.95 if argument.required else 0.2):
            value = choose.choice(argument.choices or VALUES)
            words.append(argument.name if argument.flag else f"{argument.name}={value}")
    if choose.random() < 0.05:
        words.append(choose.choice(VALUES))
    body = choose.choice(BODIES) if choose.random() < (0.9 if directive.body else 0.02) else ()
    return " ".join(words), body


def _answered(run: Run, line: str, body: tuple[str, ...]) -> None:
    try:
        output = carry_out(run, line, body)
    except Skip:
        return
    except Exception as error:
        raise AssertionError(f"{line!r} {body!r}: {error!r}") from error
    for each in output:
        if each.startswith("error: ") and each != "error: disconnected":
            code = each.split(": ")[1]
            assert code in CODES, f"{line!r} {body!r}: {each}"
