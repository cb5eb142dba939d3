"""A recursion that never ends, ended (BUG80, E8): the workers are then as they were before, idle and small.

What it answers, and what others are served meanwhile, is in scripts/bug80_a_recursion_that_never_ends.spec.
"""

from __future__ import annotations

import time
from textwrap import dedent

import psutil
import pytest

from clusterd.driver.driver import carry_out
from clusterd.driver.run import Target, launched
from tests.e2e.support import MODES, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENDS_WITHIN_S = 1.0
MEASURED_S = 1.0
BODY = """
    {imports}
    build id={id}0
      With Mutually Recursive
        cte l0 = // {{ types: "(bigint, bigint)" }}
          Union
            Get u1001
            Project (#2, #1)
              Map (#0 + 1)
                Get l0
      Return
        Get l0
    export index={id}1 on={id}0 key=[0]
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["query", "view"])
def test_bug80_an_endless_recursion_leaves_an_idle_and_small_worker_behind(mode: str, kind: str) -> None:
    with launched(Target(mode=mode, timeout_s=30.0)) as run:

        def do(line: str, *body: str) -> list[str]:
            return carry_out(run, line, body)

        assert do("create-instance") == do("initialization-complete") == ["ok"]
        assert do("define-schema name=pair", "a bigint", "b bigint") == ["ok"]
        assert do("write-rows shard=s ts=0 schema=pair", "1 0") == ["wrote 1"]
        define = "define-index source=1001 index=2001 shard=s key=[0] as-of=0 upper=1 schema=pair"
        assert do(define) == do("schedule id=2001") == do("await-frontier id=2001 ts=1") == ["ok"]
        assert run.replica is not None
        worker = "solo/0" if mode == "solo" else "interactive/0" if kind == "query" else "maintenance/0"
        pids = run.replica.pids
        process = psutil.Process(pids[worker])
        before = process.memory_full_info().uss

        query = kind == "query"
        imports = "import index=2001" if query else "import source=1001 shard=s schema=pair upper=1"
        body = dedent(BODY.format(imports=imports, id="t" if query else "300"))
        create = "create-dataflow as-of=0 until=1" if query else "create-dataflow as-of=0"
        made = "t1" if query else "3001"
        assert do(create, *body.strip("\n").splitlines()) == do(f"schedule id={made}") == ["ok"]
        assert do(f"start-peek name=endless id={made} ts=0") == ["ok"]
        used = process.cpu_times().user
        wait_until(lambda: process.cpu_times().user > used + 0.3, 30, "it computes")
        assert do("peek id=2001 ts=0") == ["1 0"]

        assert do("cancel-peek name=endless") == ["ok"]
        assert do("await-peek name=endless timeout-secs=1") == ["canceled"]
        start = time.monotonic()
        assert do(f"allow-compaction id={made} frontier=[]") == do(f"await-gone id={made}") == ["ok"]
        assert time.monotonic() - start < ENDS_WITHIN_S
        used = process.cpu_times().user
        time.sleep(MEASURED_S)  # the measurement itself
        assert process.cpu_times().user - used < 0.1 * MEASURED_S
        grown = process.memory_full_info().uss - before
        assert grown < 32 << 20, f"{grown} bytes more than before"
        assert do("peek id=2001 ts=0") == ["1 0"]
