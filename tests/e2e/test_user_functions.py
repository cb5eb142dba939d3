"""Functions of the user through the daemon, in both modes; a module that is none is told at launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterd import exit_codes
from clusterd.driver.driver import carry_out
from clusterd.driver.run import Target, launched
from clusterd.functions import unload
from clusterd.launcher import LaunchError, launch
from tests.e2e.support import MODES

EXAMPLE = Path(__file__).parents[2] / "docs" / "example_functions.py"

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("mode", MODES)
def test_functions_are_maintained_queried_and_checked(mode: str) -> None:
    target = Target(mode=mode, timeout_s=30.0, functions=str(EXAMPLE))
    try:
        with launched(target) as run:

            def do(line: str, *body: str) -> list[str]:
                return carry_out(run, line, body)

            do("create-instance")
            do("initialization-complete")
            do("define-schema name=s", "k bigint", "f double precision")
            do("write-rows shard=w ts=0 schema=s", "1 212", "1 32", "1 50", "2 -4")
            reduce = [
                "  Reduce group_by=[#0] aggregates=[median(celsius(#1)), weighted_mean(#1, #0)]",
                "    Get u1",
            ]
            made = do(
                "create-dataflow as-of=0", "import source=1 shard=w schema=s upper=1", "build id=2", *reduce,
                "export index=3 on=2 key=[0]",
            )  # fmt: skip
            assert made == ["ok"]
            do("schedule id=3")
            assert do("peek id=3 ts=0") == ["1 10.0 98.0", "2 -20.0 -4.0"]
            do("write-rows shard=w ts=1 schema=s", "1 212 x -1", "2 -500")
            assert do("peek id=3 ts=1") == ["error: eval-error: celsius: ValueError: colder than cold"]
            do("write-rows shard=w ts=2 schema=s", "2 -500 x -1")
            assert do("peek id=3 ts=2 map=(celsius(#2)) project=(#0, #1, #3)") == [
                "1 5.0 5.0",
                "2 -20.0 -20.0",
            ]
            refused = do("peek id=3 ts=2 map=(fahrenheit(#2))")
            assert refused[0].startswith("error: ")
            assert "fahrenheit" in refused[0]
    finally:
        unload()


@pytest.mark.parametrize("mode", MODES)
def test_what_functions_print_or_exit_with_hurts_nobody(mode: str, tmp_path: Path) -> None:
    """Nobody reads a replica's stdout after READY: what is printed there would stop the worker."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import sys\nfrom clusterd.functions import scalar\nprint('hello')\n"
        "@scalar('loud', 'bigint -> bigint')\n"
        "def loud(x):\n    print('x' * 300_000, flush=True)\n    return x\n"
        "@scalar('leave', 'bigint -> bigint')\n"
        "def leave(x):\n    sys.exit(3)\n"
    )
    try:
        with launched(Target(mode=mode, timeout_s=30.0, functions=str(file))) as run:

            def do(line: str, *body: str) -> list[str]:
                return carry_out(run, line, body)

            do("create-instance")
            do("initialization-complete")
            do("write-rows shard=w ts=0", "1 a")
            made = do(
                "create-dataflow as-of=0", "import source=1 shard=w upper=1",
                "build id=2", "  Map (loud(#0))", "    Get u1", "export index=3 on=2 key=[0]",
            )  # fmt: skip
            assert made == ["ok"]
            do("schedule id=3")
            assert do("peek id=3 ts=0") == ['1 "a" 1']
            assert do("peek id=3 ts=0 map=(loud(#0)) project=(#3)") == ["1"]
            assert do("peek id=3 ts=0 map=(leave(#0))") == ["error: eval-error: leave: SystemExit: 3"]
    finally:
        unload()


def test_a_module_that_cannot_be_used_is_told_at_launch(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from clusterd.functions import scalar\nscalar('abs', 'bigint -> bigint')(abs)\n")
    with pytest.raises(LaunchError, match=f"functions of {file}: function abs is built in") as caught:
        launch(functions=file)
    assert caught.value.exit_code == exit_codes.START_FAILED


def test_a_plan_with_a_function_that_the_replica_does_not_have_is_refused() -> None:
    from clusterd.functions import load_functions

    try:
        load_functions(str(EXAMPLE))  # here, not there
        with launched(Target(timeout_s=30.0)) as run:
            carry_out(run, "create-instance", ())
            carry_out(run, "initialization-complete", ())
            carry_out(run, "write-rows shard=w ts=0", ("1 a",))
            body = (
                "import source=1 shard=w upper=1", "build id=2", "  Map (slug(#1))", "    Get u1",
                "export index=3 on=2 key=[0]",
            )  # fmt: skip
            (said,) = carry_out(run, "create-dataflow as-of=0", body)
            assert said.startswith("error: invalid-plan: ")
            assert "function 'slug' is not known" in said
    finally:
        unload()
