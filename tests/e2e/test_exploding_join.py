"""BUG55: a join of 9 * 10^8 pairs that give two rows. Others are served meanwhile, it takes no memory, and a
drop ends it.
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

ROWS = 30_000
LOOKUPS = 40
ENDS_WITHIN_S = 1.0
MEASURED_S = 1.0
MOST_BYTES = 256 << 20  # a relation of 9 * 10^8 rows would be 21 GB; 64 MB are sorted at once
BODY = """
    {imports}
    build id={id}0
      Project (#2)
        Map ((#0 + #1) % 2)
          CrossJoin
            Get u1001
            Get u1001
    export index={id}1 on={id}0 key=[0]
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["query", "view"])
def test_bug55_a_join_that_explodes_makes_nobody_wait_and_ends_when_it_is_dropped(
    mode: str, kind: str
) -> None:
    with launched(Target(mode=mode, timeout_s=30.0)) as run:

        def do(line: str, *body: str) -> list[str]:
            return carry_out(run, line, body)

        assert do("create-instance") == do("initialization-complete") == ["ok"]
        assert do("define-schema name=one", "n bigint") == ["ok"]
        assert do("write-rows shard=s ts=0 schema=one", *map(str, range(ROWS))) == [f"wrote {ROWS}"]
        define = "define-index source=1001 index=2001 shard=s key=[0] as-of=0 upper=1 schema=one"
        assert do(define) == do("schedule id=2001") == do("await-frontier id=2001 ts=1") == ["ok"]
        assert run.replica is not None
        query = kind == "query"
        worker = "solo/0" if mode == "solo" else "interactive/0" if query else "maintenance/0"
        process = psutil.Process(run.replica.pids[worker])
        before = process.memory_full_info().uss

        imports = "import index=2001" if query else "import source=1001 shard=s schema=one upper=1"
        body = dedent(BODY.format(imports=imports, id="t" if query else "300"))
        create = "create-dataflow as-of=0 until=1" if query else "create-dataflow as-of=0"
        made = "t1" if query else "3001"
        used = process.cpu_times().user
        assert do(create, *body.strip("\n").splitlines()) == do(f"schedule id={made}") == ["ok"]
        wait_until(lambda: process.cpu_times().user > used + 0.2, 30, "it computes")
        # Also for the worker that computes, between two of its chunks.
        for n in range(LOOKUPS):
            assert do(f"peek id=2001 ts=0 keys=[({n})]") == [str(n)]
        assert do(f"await-frontier id={made} ts=1 timeout-secs=0.01 allow-timeout") == ["timeout"], (
            "it was over before it was dropped: nothing was tested"
        )
        grown = process.memory_full_info().uss - before
        assert grown < MOST_BYTES, f"{grown} bytes more than before"

        start = time.monotonic()
        assert do(f"allow-compaction id={made} frontier=[]") == do(f"await-gone id={made}") == ["ok"]
        assert time.monotonic() - start < ENDS_WITHIN_S
        used = process.cpu_times().user
        time.sleep(MEASURED_S)  # the measurement itself
        assert process.cpu_times().user - used < 0.1 * MEASURED_S
        assert do("peek id=2001 ts=0 keys=[(7)]") == ["7"]
