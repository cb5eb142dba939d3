"""Every kernel against its reference, on drawn arguments: edges of types, duplicates, no rows at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import config

from shm_arrangements.kernels import jit, warm
from shm_arrangements.testing.reference import REFERENCES
from tests.shm_arrangements import (
    batch_kernel_cases,
    chain_kernel_cases,
    clock_kernel_cases,
    column_kernel_cases,
    image_kernel_cases,
    merge_kernel_cases,
)
from tests.shm_arrangements.kernel_cases import CASES, TOGETHER, check

# Imported for what they add to CASES and TOGETHER.
DRAWN = (
    batch_kernel_cases,
    chain_kernel_cases,
    clock_kernel_cases,
    column_kernel_cases,
    image_kernel_cases,
    merge_kernel_cases,
)
EXAMPLES = 12 if config.DISABLE_JIT else 60


def _kernels() -> dict[str, jit.Kernel]:
    warm.declare()
    own = "shm_arrangements.kernels."
    return {kernel.name.removeprefix(own): kernel for kernel in jit.kernels() if kernel.name.startswith(own)}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_kernels()))
def test_a_kernel_and_its_reference_agree(name: str) -> None:
    assert name in REFERENCES, f"{name} has no reference: see shm_arrangements/testing/reference.py"
    assert name in CASES or name in TOGETHER, f"nothing draws arguments for {name}"

    def one(draw: Any) -> None:
        if name in TOGETHER:
            came, should = TOGETHER[name](draw)
            assert came == should
        else:
            check(_kernels()[name], REFERENCES[name], CASES[name](draw))

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def agree(data: Any) -> None:
        one(data.draw)

    with np.errstate(over="ignore"):  # words wrap, which compiled code does silently
        agree()


def test_there_is_no_reference_without_a_kernel() -> None:
    assert REFERENCES.keys() <= _kernels().keys()
    assert CASES.keys() | TOGETHER.keys() <= _kernels().keys()
