"""The table of functions is what there is: implemented, true in its examples, and on its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterd.convert import scalars_from_column
from clusterd.operators.kernels import scalar
from clusterd.render.expr import compile_expr
from clusterd.render.functions import MESSAGES, implemented, implemented_tables
from controller_proto.expr import Call
from controller_proto.functions import ERRORS, FUNCTIONS, TABLE_FUNCTIONS
from controller_proto.functions.page import page
from controller_proto.literals import format_scalar
from controller_proto.parse_expr import parse_expr
from controller_proto.plan import Constant, FlatMap
from controller_proto.print_plan import format_expr
from controller_proto.schema import Schema
from controller_proto.typing_rules import expr_type
from tests.clusterd.tables import expanded

ROWS = Path(__file__).parent / "test_function_rows.py"
DOCS = Path(__file__).parents[2] / "docs" / "functions.md"
SCALARS = [function for function in FUNCTIONS.values() if function.name != "now_ts"]


def test_every_signature_of_the_table_is_implemented_and_no_other() -> None:
    declared = {(f.name, signature.text) for f in SCALARS for signature in f.signatures}
    assert implemented() == declared
    tables = {(f.name, signature.text) for f in TABLE_FUNCTIONS.values() for signature in f.signatures}
    assert implemented_tables() == tables


@pytest.mark.parametrize("name", [function.name for function in SCALARS])
def test_an_example_of_the_table_gives_what_it_says(name: str) -> None:
    function = FUNCTIONS[name]
    expr = parse_expr(function.example)
    assert parse_expr(format_expr(expr)) == expr
    compiled = compile_expr(expr, ())
    assert compiled.wire.type is expr_type(expr, Schema(())).type
    out = compiled((), 1)
    if out.errors is not None:
        found = MESSAGES[out.errors[0] - 1].replace("eval-error", "error")
    else:
        found = format_scalar(scalars_from_column(compiled.spec, out.column)[0], compiled.wire)
    assert found == function.result


@pytest.mark.parametrize("name", sorted(TABLE_FUNCTIONS))
def test_an_example_of_a_table_function_gives_what_it_says(name: str) -> None:
    function = TABLE_FUNCTIONS[name]
    call = parse_expr(function.example)
    assert isinstance(call, Call)
    oks, errs, columns = expanded(FlatMap(Constant((((), 1),), Schema(())), call.function, call.args))
    assert not errs
    shown = (" ".join(map(format_scalar, row, columns)) for row, _ in oks)
    assert "; ".join(shown) == function.result


def test_errors_of_functions_are_known_and_those_of_kernels_have_their_codes() -> None:
    named = {error for f in (*FUNCTIONS.values(), *TABLE_FUNCTIONS.values()) for error in f.errors}
    assert named - {"its text"} == set(ERRORS)
    codes = scalar.DIVISION_BY_ZERO, scalar.BIGINT_RANGE, scalar.NUMERIC_RANGE
    wanted = ["division by zero", "bigint out of range", "numeric out of range"]
    assert [ERRORS[code - 1] for code in codes] == wanted


def test_the_page_of_functions_is_current() -> None:
    assert DOCS.read_text() == page(), "run `make docs`"


@pytest.mark.soak
def test_kernels_of_functions_mean_the_same_without_being_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(ROWS)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=ROWS.parents[2],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
