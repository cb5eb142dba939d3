"""Every scenario script, in both modes, against a replica of its own.

The driver itself checks the promises that no script repeats: one answer a peek, frontiers that never go
back, and that two-runtime answers come from interactive, Solo's from Solo.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterd.driver.driver import carry_out
from clusterd.driver.run import Outcome, Target, launched, run_file
from clusterd.storage.store import Store
from controller_proto.response import PeekCanceled, PeekRows
from controller_proto.script import parse_script
from shm_arrangements.frontier import Frontier
from shm_arrangements.types import ColumnType
from shm_arrangements.updates import Updates
from tests.e2e.support import MODES, role

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.spec"))

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, mode: str) -> None:
    outcome: Outcome = run_file(script, Target(mode=mode, timeout_s=30.0))
    if outcome.status == "skip":
        pytest.skip(outcome.details)
    assert outcome.status == "pass", outcome.details
    _require_served(script, mode, outcome.served)


# What makes no sense in Solo: each is about two runtimes at once.
TWO_RUNTIME_ONLY = {
    "l13_wake_ups_coalesce_and_are_aimed", "l17_compaction_race",
    "l18_the_slower_runtime_holds_compaction_back", "m2_an_interactive_worker_dies", "read_routing_hinted",
}  # fmt: skip
_READS = {"peek", "count", "await-peek"}


def _require_served(script: Path, mode: str, served: Mapping[str, int]) -> None:
    """A script whose peeks bring rows had them from the runtime that reads are for, and from no other."""
    text = script.read_text()
    others = set(served) - {role(mode)}
    allowed = {"maintenance"} if "read_routing" in text else set()
    allowed |= {"introspection"}
    assert others <= allowed, served
    stanzas = parse_script(text).stanzas
    brings_rows = any(
        stanza.directive.split()[0] in _READS
        and not any(line.startswith(("error:", "canceled", "timeout")) for line in stanza.expected)
        for stanza in stanzas
    )
    assert served.get(role(mode), 0) or not brings_rows, "no peek was answered by the runtime it is about"


def test_every_script_runs_in_both_modes_but_for_those_about_two_runtimes() -> None:
    required = {
        script.stem: words
        for script in SCRIPTS
        for stanza in parse_script(script.read_text()).stanzas
        if (words := stanza.directive.split())[0] == "require" and any("mode=" in word for word in words)
    }
    assert set(required) == TWO_RUNTIME_ONLY
    assert all("mode=two-runtime" in words for words in required.values())


def test_a_script_that_was_answered_by_the_wrong_runtime_or_by_none_does_not_pass(tmp_path: Path) -> None:
    script = tmp_path / "a.spec"
    script.write_text("peek id=1 ts=0\n----\n1\n")
    _require_served(script, "two-runtime", {"interactive": 1})
    for served in ({}, {"maintenance": 1}, {"interactive": 1, "solo": 1}):
        with pytest.raises(AssertionError):
            _require_served(script, "two-runtime", served)
    script.write_text("peek id=1 ts=0\n----\nerror: unknown-id: u1 was not created in this session\n")
    _require_served(script, "two-runtime", {})


def test_no_script_expects_what_is_not_filled_in() -> None:
    unfilled = [script.name for script in SCRIPTS if "@" in script.read_text()]
    assert not unfilled


@pytest.mark.parametrize("mode", MODES)
def test_h3_a_cancel_that_races_the_seal_gets_rows_or_canceled_and_never_both(mode: str) -> None:
    races = 500
    with launched(Target(mode=mode, timeout_s=30.0)) as run:

        def do(line: str, *body: str) -> list[str]:
            return carry_out(run, line, body)

        assert do("create-instance") == do("initialization-complete") == ["ok"]
        assert do("write-rows shard=s ts=0", "1 a") == ["wrote 1"]
        assert do("define-index source=1000 index=1 shard=s key=[0] as-of=0 upper=1") == ["ok"]
        assert do("schedule id=1") == do("await-frontier id=1 ts=1") == ["ok"]
        outcomes = {PeekRows: 0, PeekCanceled: 0}
        together = threading.Barrier(2)
        problems: list[str] = []
        head_start_s = 0.005

        assert run.store is not None
        data_dir = run.store.data_dir

        def seal() -> None:
            nothing = Updates.empty((ColumnType.INT64, ColumnType.TEXT))
            try:
                with Store.open(data_dir) as store:
                    shard = store.shard("s")
                    for upper in range(1, races + 1):
                        together.wait(30)
                        shard.append(nothing, Frontier.at(upper), Frontier.at(upper + 1))
            except Exception as error:
                problems.append(repr(error))
                together.abort()

        sealer = threading.Thread(target=seal)
        sealer.start()
        try:
            for number in range(races):
                assert do(f"start-peek name=p{number} id=1 ts={number + 1}") == ["ok"]
                together.wait(30)
                time.sleep(head_start_s)
                assert do(f"cancel-peek name=p{number}") == ["ok"]
                answered = do(f"await-peek name=p{number}")
                assert answered in (['1 "a"'], ["canceled"]), (number, answered)
                result = run.session.answers[run.started[f"p{number}"].peek.uuid].result
                outcomes[type(result)] += 1  # type: ignore[index]
                # A seal is an fsync away, a cancel is not: close in on the moment where either may win.
                head_start_s *= 0.9 if isinstance(result, PeekRows) else 1.1
        finally:
            together.abort()
            sealer.join(30)
        assert problems == []
        # A second answer would be a violation of this, or of a later, directive.
        assert do("quiet ms=50 kind=peek") == ["ok"]
        assert sum(outcomes.values()) == races
        assert min(outcomes.values()) > 0
        print(f"h3 {mode}: {outcomes[PeekRows]} rows, {outcomes[PeekCanceled]} canceled")


@pytest.mark.parametrize("mode", MODES)
def test_c16_the_extreme_of_a_group_of_10000_is_removed_100_times_in_a_row(mode: str) -> None:
    rows, ticks = 10_000, 100
    with launched(Target(mode=mode, timeout_s=30.0)) as run:

        def do(line: str, *body: str) -> list[str]:
            return carry_out(run, line, body)

        assert do("create-instance") == do("initialization-complete") == ["ok"]
        assert do("define-schema name=kv", "k bigint", "v bigint") == ["ok"]
        first = [f"{key} {value}" for key in (1, 2) for value in range(rows)]
        assert do("write-rows shard=s ts=0 schema=kv", *first) == [f"wrote {2 * rows}"]
        dataflow = [
            "import source=1000 shard=s upper=1",
            "build id=3000",
            "  Reduce group_by=[#0] aggregates=[min(#1), max(#1)]",
            "    Get u1000",
            "export index=1 on=3000 key=[0]",
        ]
        assert do("create-dataflow as-of=0", *dataflow) == do("schedule id=1") == ["ok"]
        assert do("await-frontier id=1 ts=1") == ["ok"]
        for tick in range(1, ticks + 1):
            gone = [f"1 {rows - tick} x -1", f"2 {tick - 1} x -1"]
            assert do(f"write-rows shard=s ts={tick}", *gone) == ["wrote 2"]
        for tick in range(ticks + 1):
            expected = [f"1 0 {rows - 1 - tick}", f"2 {tick} {rows - 1}"]
            assert do(f"peek id=1 ts={tick}") == expected, tick
