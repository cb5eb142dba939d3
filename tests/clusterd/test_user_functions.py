"""Functions of the user: what they are given and give, errors, retractions, and modules that are none."""

from __future__ import annotations

import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clusterd.functions import FunctionsError, aggregate, load_functions, scalar, unload
from clusterd.render.explain import explain
from clusterd.render.plan import plan_dataflow
from controller_proto.errors import Refusal
from controller_proto.parse_expr import parse_expr
from controller_proto.schema import Column, ColumnType
from controller_proto.typing_rules import plan_schema
from shm_arrangements.frontier import Frontier
from tests.clusterd.dataflow_text import dataflow, schema
from tests.clusterd.mini_replica import MemoryShard, MiniReplica
from tests.clusterd.test_function_rows import evaluate

T = ColumnType
EXAMPLE = Path(__file__).parents[2] / "docs" / "example_functions.py"
TIMES = 6


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    unload()


def values(call: str, type_: T, given: list[Any], **more: Any) -> list[Any]:
    """The values of a call on one column #0, an error as its text."""
    expr = parse_expr(call)
    return evaluate(expr, [Column("v", type_, True, **more)], [(value,) for value in given])


def test_the_functions_of_the_example() -> None:
    load_functions(str(EXAMPLE))
    load_functions(str(EXAMPLE))  # once more is nothing
    assert values("celsius(#0)", T.FLOAT64, [212.0, None, 32.0]) == [100.0, None, 0.0]
    assert values("celsius(#0)", T.INT64, [212]) == [100.0]
    assert values("slug(#0)", T.TEXT, ["A Title, too", None, ""]) == ["a-title-too", None, ""]
    assert values("or_zero(#0)", T.INT64, [5, None]) == [5, 0]


def test_an_error_is_that_of_its_row_alone() -> None:
    load_functions(str(EXAMPLE))
    wrong = "celsius: ValueError: colder than cold"
    given = [float(k) for k in range(300)]
    given[7] = given[250] = -1000.0
    found = values("celsius(#0)", T.FLOAT64, given)
    assert [str(found[k]) for k in (7, 250)] == [f"eval-error: {wrong}"] * 2
    assert [k for k, value in enumerate(found) if not isinstance(value, float)] == [7, 250]


def test_a_function_that_is_strict_sees_neither_nulls_nor_rows_in_error() -> None:
    seen: list[Any] = []

    @scalar("noted", "bigint -> bigint")
    def noted(column: Any) -> Any:
        seen.append(column.tolist())
        return column

    assert [str(v) for v in values("noted(10 / #0)", T.INT64, [5, None, 0, 2])] == [
        "2", "None", "eval-error: division by zero", "5",
    ]  # fmt: skip
    assert seen == [[2, 5]]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda v: v[:-1] if len(v) > 1 else v[:0], "another number of values than rows"),
        (lambda v: 5, "no values of its type"),
        (lambda v: v.astype(str), "no values of its type"),
        (lambda v: v + 2.0**63, "no values of its type"),
        (lambda v: np.full(len(v), 2**63, np.uint64), "no values of its type"),
        (lambda v: None, "no values of its type"),
        (lambda v: 1 // 0, "ZeroDivisionError: integer division or modulo by zero"),
        (lambda v: sys.exit(3), "SystemExit: 3"),
        (lambda v: raised(Wordless()), "Wordless"),
        (lambda v: raised(ValueError()), "ValueError"),
        (lambda v: raised(ValueError("\ud800")), "ValueError: ?"),
        (lambda v: Wordless(), "no values of its type"),
    ],
)
def test_what_is_no_column_of_its_type_and_length_is_an_error(made: Callable[[Any], Any], says: str) -> None:
    scalar("odd", "bigint -> bigint")(made)
    assert [str(each) for each in values("odd(#0)", T.INT64, [1, 2, None])] == [
        f"eval-error: odd: {says}", f"eval-error: odd: {says}", "None",
    ]  # fmt: skip


class Wordless(Exception):
    """Neither its text nor its values can be had."""

    def __str__(self) -> str:
        raise KeyError

    def __array__(self, *args: Any, **more: Any) -> Any:
        raise KeyError


def raised(error: Exception) -> Any:
    raise error


def test_what_a_function_does_to_its_arguments_stays_with_it() -> None:
    @scalar("erase", "text -> text")
    def erase(column: Any) -> Any:
        column[:] = "gone"
        if len(column) > 1:
            raise ValueError
        return column

    expr = parse_expr("erase(#0) || #0")
    assert evaluate(expr, [Column("v", T.TEXT, False)], [("a",), ("b",)]) == ["gonea", "goneb"]


@pytest.mark.parametrize(
    ("signature", "made", "wanted"),
    [
        ("bigint -> timestamp", np.array([2**62], "datetime64[s]"), None),
        ("bigint -> timestamp", np.array([2020 - 1970], "datetime64[Y]"), 1_577_836_800_000_000),
        ("bigint -> timestamp", np.array([1999], "datetime64[ns]"), 1),
        ("bigint -> date", np.array([2**40], "datetime64[D]"), None),
        ("bigint -> time", np.array([24], "timedelta64[h]"), 86_400_000_000),
        ("bigint -> time", np.array([86_400_000_001], "timedelta64[us]"), None),
        ("bigint -> time", np.array([-1], "timedelta64[s]"), None),
        ("bigint -> time", np.array([2**62], "timedelta64[s]"), None),
    ],
)
def test_moments_and_times_of_other_units_are_kept_or_refused(signature: str, made: Any, wanted: Any) -> None:
    scalar("odd", signature)(lambda column: made)
    (found,) = values("odd(#0)", T.INT64, [1])
    assert str(found) == ("eval-error: odd: no values of its type" if wanted is None else str(wanted))


def test_columns_of_every_type_come_and_go() -> None:
    for signature, type_, given, more in (
        ("boolean -> boolean", T.BOOL, [True, None, False], {}),
        ("smallint -> smallint", T.INT16, [-5, None], {}),
        ("uint8 -> uint8", T.UINT64, [2**64 - 1, None], {}),
        ("real -> real", T.FLOAT32, [1.5, None], {}),
        ("text -> text", T.TEXT, ["é", "", None], {}),
        ("bytea -> bytea", T.BYTEA, [b"\xff", None], {}),
        ("jsonb -> jsonb", T.JSONB, ['{"a":1}', None], {}),
        ("time -> time", T.TIME, [0, None, 86_399_999_999], {}),
        ("date -> date", T.DATE, [15706, None], {}),
        ("timestamp -> timestamp", T.TIMESTAMP, [10**15, None], {}),
        ("timestamptz -> timestamptz", T.TIMESTAMPTZ, [10**15, None], {}),
        ("numeric(2) -> numeric(2)", T.NUMERIC, ["1.25", None], {"scale": 2}),
        ("bigint list -> bigint list", T.LIST, [(1, 2), (), None], {"fields": (Column("e", T.INT64),)}),
    ):
        for arrow in (False, True):
            for strict in (False, True):
                unload()
                scalar("same", signature, arrow=arrow, strict=strict)(lambda column: column)
                assert values("same(#0)", type_, given, **more) == given, (signature, arrow, strict)


def test_names_and_signatures_are_checked() -> None:
    for name, signature, says in (
        ("abs", "bigint -> bigint", "function abs is built in"),
        ("sum", "bigint -> bigint", "function sum is built in"),
        ("unnest", "bigint -> bigint", "function unnest is built in"),
        ("No", "bigint -> bigint", "'No' is no name of a function"),
        ("f", "bigbig -> bigint", "f: 'bigbig' is no type"),
        ("f", "T -> T", "is no signature of one function with types alone"),
        ("f", "bigint... -> bigint", "is no signature of one function"),
    ):
        with pytest.raises(FunctionsError, match=says):
            scalar(name, signature)(lambda column: column)
    scalar("f", "bigint -> bigint")(lambda column: column)
    with pytest.raises(FunctionsError, match="f is declared twice"):
        aggregate("f", "bigint -> bigint")(lambda values, starts: values)
    with pytest.raises(FunctionsError, match="g: a sum is bigint, double precision or numeric"):
        aggregate("g", "bigint -> bigint", state=["text"])(lambda: None)
    with pytest.raises(FunctionsError, match="h: a class with add and finish is wanted"):
        aggregate("h", "bigint -> bigint", state=["bigint"])(lambda: None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "FileNotFoundError"),
        ("1 +", "SyntaxError"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        (
            "from clusterd.functions import scalar\nscalar('abs', 'bigint -> bigint')(abs)",
            "function abs is built in",
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(FunctionsError, match=f"functions of {file}: .*{says}"):
        load_functions(str(file))
    with pytest.raises(FunctionsError, match=r"functions of no\.such\.module: ModuleNotFoundError"):
        load_functions("no.such.module")


def test_a_call_that_does_not_fit_is_refused() -> None:
    load_functions(str(EXAMPLE))
    for aggregates, says in (
        ("nothing_such(#1)", "nothing_such is not known"),
        ("median(#3)", "median of text"),
        ("median(#1, #1)", "median takes 1 argument, 2 given"),
        ("weighted_mean(distinct #1, #2)", "weighted_mean takes no distinct: it is made of sums"),
    ):
        with pytest.raises(Refusal, match=says):
            plan_schema(_dataflow(aggregates)[1].builds[0].plan, {"u1": ROW})


ROW = schema("k bigint", "x double precision?", "w bigint?", "t text")
AGGREGATES = (
    "median(#1), count(*), weighted_mean(#1, #2), median(distinct #1), median(#2), median(celsius(#1))"
)


def _dataflow(aggregates: str) -> Any:
    return dataflow(
        f"""
        import source=1 shard=rows upper=0
        build id=2
          Reduce group_by=[#0] aggregates=[{aggregates}]
            Get u1
        export index=3 on=2 key=[#0]
        """,
        {"rows": ROW},
    )


def wanted(rows: Counter[tuple[Any, ...]]) -> tuple[Counter[Any], set[str]]:
    """The groups by the definition of each aggregate, and what fails."""
    groups: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    errors: set[str] = set()
    for row, count in rows.items():
        if count and row[1] is not None and row[1] < -459.67:
            errors.add("eval-error: celsius: ValueError: colder than cold")  # and it is of no group
        elif count:
            groups[row[0]] += [row] * count
    found: Counter[Any] = Counter()
    for key, members in groups.items():
        xs = [row[1] for row in members if row[1] is not None]
        ws = [float(row[2]) for row in members if row[2] is not None]
        pairs = [row[1:3] for row in members if None not in row[1:3]]
        weights = sum(w for _, w in pairs)
        if pairs and not weights:
            errors.add("eval-error: weighted_mean: ZeroDivisionError: no weight")
            continue
        found[
            key,
            statistics.median(xs) if xs else None,
            len(members),
            sum(x * w for x, w in pairs) / weights if pairs else None,
            statistics.median(set(xs)) if xs else None,
            statistics.median(ws) if ws else None,
            statistics.median([(x - 32) / 1.8 for x in xs]) if xs else None,
        ] += 1
    return found, errors


def rounded(rows: Any) -> Counter[Any]:
    return Counter({
        tuple(round(v, 9) if isinstance(v, float) else v for v in row): n for row, n in rows.items()
    })  # fmt: skip


@pytest.mark.slow
def test_aggregates_follow_insertions_and_retractions_at_every_time() -> None:
    load_functions(str(EXAMPLE))
    for seed in range(12):
        print(f"seed {seed}")
        rng = random.Random(seed)
        live: list[tuple[Any, ...]] = []
        history: list[tuple[tuple[Any, ...], int, int]] = []
        for time in sorted(rng.randrange(TIMES) for _ in range(40)):
            if live and rng.random() < 0.45:
                history.append((live.pop(rng.randrange(len(live))), time, -1))
                continue
            x = rng.choice([None, 0.5, 1.0, 2.0, 8.0, -1000.0 if rng.random() < 0.3 else 4.0])
            row = (rng.randrange(3), x, rng.choice([None, 1, 2, -1, 0]), "a")
            live.append(row)
            history.append((row, time, 1))
        with MiniReplica() as replica:
            replica.shards["rows"] = MemoryShard(ROW)
            header, body = _dataflow(AGGREGATES)
            replica.create(header, body)
            upper = 0
            while upper < TIMES:
                to = rng.randint(upper + 1, TIMES)
                ready = [change for change in history if upper <= change[1] < to]
                replica.shards["rows"].append(ready, Frontier.at(to))
                replica.drain()
                upper = to
            for at in range(TIMES):
                rows: Counter[tuple[Any, ...]] = Counter()
                for row, time, diff in history:
                    rows[row] += diff * (time <= at)
                groups, errors = wanted(rows)
                got = replica.read("u3", at)
                assert set(got.errs) == errors
                if not errors:
                    assert rounded(got.rows) == rounded(groups)


def test_what_an_aggregate_stands_for_is_explained() -> None:
    load_functions(str(EXAMPLE))
    header, body = _dataflow("weighted_mean(#1, #2)")
    text = explain(plan_dataflow(header, body, {}))
    assert "sum(" in text
    assert "weighted_mean finish(" in text


def test_an_aggregate_of_values_may_take_arrow_and_an_order() -> None:
    @aggregate("first_text", "text -> text", arrow=True)
    def first_text(column: Any, starts: Any) -> Any:
        return column.take(pa.array(starts[:-1]))

    header, body = _dataflow("first_text(#3 order by #2 desc)")
    with MiniReplica() as replica:
        replica.shards["rows"] = MemoryShard(ROW)
        replica.create(header, body)
        rows = [((1, None, 5, "b"), 0, 1), ((1, None, 7, "z"), 0, 1), ((2, None, 1, "c"), 0, 2)]
        replica.shards["rows"].append([*rows, ((1, None, 7, "z"), 1, -1)], Frontier.at(2))
        replica.drain()
        assert replica.read("u3", 0).rows == {(1, "z"): 1, (2, "c"): 1}
        assert replica.read("u3", 1).rows == {(1, "b"): 1, (2, "c"): 1}
