"""What a peek must answer, by what a naive interpreter holds; and answers in a form that compares with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller_proto.expr import Expr
from controller_proto.plan import OrderBy
from controller_proto.schema import ColumnType
from shm_arrangements.result import Result
from tests.clusterd import naive

Row = tuple[Any, ...]


@dataclass
class Question:
    """What is read of a collection: keys of its index's key `key`; or what is left of a scan, in order."""

    at: int | None
    key: tuple[int, ...] = ()
    keys: list[Row] | None = None
    where: tuple[Expr, ...] = ()
    order: tuple[OrderBy, ...] | None = None
    limit: int | None = None
    offset: int = 0

    def selected(self, whole: naive.Collection) -> naive.Collection:
        """What keys and predicates leave; errors in it, if any, are the answer."""
        if self.keys is not None:
            wanted = {tuple(map(key_of, key)) for key in self.keys}
            rows = {
                row: n for row, n in whole.rows.items() if tuple(key_of(row[i]) for i in self.key) in wanted
            }  # fmt: skip
            return naive.Collection(whole.types, rows, whole.errs)
        if whole.errs or min(whole.rows.values(), default=1) < 0:
            return whole
        return naive.mfp(whole, (), self.where, None)

    def require(self, answer: Result, whole: naive.Collection, where: str) -> None:
        """`answer` is what `whole` has for this question."""
        wanted = self.selected(whole)
        assert not may_fail_with(wanted), f"{where}: rows, naive has {wanted.errs or wanted.rows}"
        if self.order is None:
            assert counts_of(answer) == wanted.rows, f"{where}: {counts_of(answer)}, naive {wanted.rows}"
        else:
            found, naively = listed(answer), in_order(wanted, self)
            assert found == naively, f"{where}: {found}, naive {naively}"

    def require_failure(self, text: str, whole: naive.Collection, where: str) -> None:
        """The error `text`, of data, is one that `whole` has."""
        kinds = may_fail_with(self.selected(whole))
        assert any(text.startswith(kind) for kind in kinds), f"{where}: {text}, naive {kinds}"


def wire_keys(keys: Sequence[Row] | None, types: Sequence[ColumnType]) -> list[Row] | None:
    """Keys as a peek says them: numerics and uuids are text."""
    if keys is None:
        return None
    texts = (ColumnType.NUMERIC, ColumnType.UUID)
    return [
        tuple(str(v) if t in texts and v is not None else v for v, t in zip(k, types, strict=True))
        for k in keys
    ]


def key_of(value: Any) -> Any:
    """A value as part of a key of a dict: booleans apart from numbers, NaN as one."""
    return (type(value) is bool, naive.canonical(value))


def may_fail_with(wanted: naive.Collection) -> list[str]:
    """The beginnings of messages that are a right answer; none if rows are.

    What else is there beside a multiplicity that went wrong is nobody's business, so then any error is right.
    """
    if any(error.startswith("invalid-data") for error in wanted.errs):
        return [""]
    kinds = {":".join(error.split(":")[:2]) for error, count in wanted.errs.items() if count > 0}
    if any(count < 0 for count in (*wanted.errs.values(), *wanted.rows.values())) and not kinds:
        kinds.add("invalid-data")
    return sorted(kinds)


def hashable(value: Any) -> Any:
    """A value as the naive interpreter has it: floats canonical, lists and records as tuples."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else naive.canonical(value)


def raw_rows(answer: Result) -> list[Row]:
    columns = [column.to_pylist() for column in answer.raw_columns()]
    if not columns:
        return [()] * len(answer.counts)
    return [tuple(map(hashable, row)) for row in zip(*columns, strict=True)]


def counts_of(answer: Result) -> dict[Row, int]:
    rows = raw_rows(answer)
    assert len(set(map(repr, rows))) == len(rows), f"a row came twice: {rows}"
    return dict(zip(rows, answer.counts.tolist(), strict=True))


def listed(answer: Result) -> list[Row]:
    pairs = zip(raw_rows(answer), answer.counts.tolist(), strict=True)
    return [row for row, count in pairs for _ in range(count)]


def in_order(wanted: naive.Collection, asked: Question) -> list[Row]:
    assert asked.order is not None
    rows = sorted(wanted.rows, key=naive.ordering(asked.order, len(wanted.types)))
    whole = [row for row in rows for _ in range(wanted.rows[row])]
    return whole[asked.offset :][: asked.limit]
