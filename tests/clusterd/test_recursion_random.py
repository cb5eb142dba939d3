"""Random recursive dataflows against a naive fixed point at every time, as test_render_random has them.

The naive answer begins from nothing at each time and evaluates whole bindings; the product runs differences.
"""

from __future__ import annotations

import pytest

from controller_proto.plan import Plan
from controller_proto.schema import Schema
from tests.clusterd.recursive_plans import RecursivePlans
from tests.clusterd.test_render_random import Case, patiently


class RecursiveCase(Case):
    def plan(self, env: dict[str, Schema], depth: int) -> Plan:
        return RecursivePlans(self.rng, env, signed=self.signed).plan(min(depth, 2))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_no_recursive_answer_differs_from_a_naive_fixed_point(block: int) -> None:
    seeds = range(block * 100, block * 100 + 100)
    assert sum(bool(patiently(seed, RecursiveCase)) for seed in seeds) > len(seeds) // 2


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10, 30))
def test_no_recursive_answer_differs_from_a_naive_fixed_point_in_the_long_run(block: int) -> None:
    seeds = range(block * 100, block * 100 + 100)
    assert sum(bool(patiently(seed, RecursiveCase)) for seed in seeds) > len(seeds) // 2
