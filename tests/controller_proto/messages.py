"""Hypothesis strategies for every message of the wire; used by several tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from controller_proto import command as c
from controller_proto import plan as p
from controller_proto import response as r
from controller_proto.codec import encode_body
from controller_proto.dataflow import (
    Build,
    DataflowBody,
    DataflowHeader,
    Export,
    IndexImport,
    SourceImport,
)
from controller_proto.expr import Call, Case, ColumnRef, Expr, Literal
from controller_proto.functions import FUNCTIONS
from controller_proto.plan import Plan
from controller_proto.schema import Schema
from tests.controller_proto.values import columns

u64 = st.integers(0, (1 << 64) - 1) | st.integers(0, 10)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
text = st.text(max_size=8)
ids = st.builds(lambda kind, n: f"{kind}{n}", st.sampled_from("ust"), st.integers(0, 99))
frontiers = st.just(()) | st.tuples(u64)
schemas = st.builds(Schema, st.lists(columns, max_size=3).map(tuple))
numbers = st.booleans() | i64 | u64 | st.floats(allow_nan=False)
plain_scalars = st.none() | numbers | text | st.binary(max_size=8)
scalars = st.recursive(plain_scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
rows = st.lists(scalars, max_size=3).map(tuple)
index = st.integers(0, 9)


def _tuples(of: st.SearchStrategy[Any], max_size: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=max_size).map(tuple)


exprs: st.SearchStrategy[Expr] = st.recursive(
    st.builds(ColumnRef, index)
    | st.builds(
        lambda column, value: Literal(column.type, value, column.scale, column.fields), columns, scalars
    ),
    lambda e: (
        st.builds(Call, st.sampled_from(sorted(FUNCTIONS)) | text, _tuples(e, 3)) | st.builds(Case, e, e, e)
    ),
    max_leaves=4,
)
orders = st.builds(p.OrderBy, index, st.booleans(), st.booleans())
aggregates = st.builds(p.Aggregate, text, st.none() | exprs, st.booleans(), _tuples(exprs), _tuples(orders))

plans: st.SearchStrategy[Plan] = st.recursive(
    st.builds(p.Get, ids) | st.builds(p.Constant, _tuples(st.tuples(rows, i64)), schemas, text),
    lambda inner: st.one_of(
        st.builds(p.Mfp, inner, _tuples(exprs), _tuples(exprs), st.none() | _tuples(index, 4)),
        st.builds(p.FlatMap, inner, text, _tuples(exprs)),
        st.builds(p.Join, _tuples(inner), _tuples(_tuples(exprs)), st.booleans(), text),
        st.builds(p.Reduce, inner, _tuples(exprs), _tuples(aggregates), st.booleans(), st.none() | u64),
        st.builds(p.TopK, inner, _tuples(index), _tuples(orders), st.none() | exprs, u64, st.booleans()),
        st.builds(p.Negate, inner),
        st.builds(p.Threshold, inner),
        st.builds(p.Union, _tuples(inner)),
        st.builds(p.ArrangeBy, inner, _tuples(_tuples(exprs))),
        st.builds(p.Let, ids, inner, inner),
        st.builds(p.LetRec, _tuples(st.tuples(ids, schemas, inner)), inner, st.none() | u64, st.booleans()),
    ),
    max_leaves=3,
)

bodies = st.builds(DataflowBody, _tuples(st.builds(Build, ids, plans)))
headers = st.builds(
    DataflowHeader,
    text,
    u64,
    st.none() | u64,
    _tuples(st.builds(SourceImport, ids, text, schemas, frontiers)),
    _tuples(st.builds(IndexImport, ids)),
    _tuples(st.builds(Export, ids, text, ids, schemas, _tuples(index))),
)
configs = st.dictionaries(text, st.booleans() | i64 | st.floats(allow_nan=False) | text, max_size=3)
finishings = st.builds(
    c.Finishing,
    _tuples(exprs),
    _tuples(exprs),
    _tuples(orders),
    st.none() | u64,
    u64,
    st.none() | _tuples(index),
)

commands: st.SearchStrategy[c.Command] = st.one_of(
    st.builds(c.Hello, u64, text, u64, u64, st.sampled_from(["controller", "reader"]), text),
    st.builds(c.CreateInstance, u64, configs),
    st.builds(c.UpdateConfiguration, u64, configs),
    st.builds(c.InitializationComplete, u64),
    st.builds(c.CreateDataflow, u64, headers, bodies.map(encode_body)),
    st.builds(c.Schedule, u64, ids),
    st.builds(c.AllowWrites, u64, ids),
    st.builds(c.AllowCompaction, u64, ids, frontiers),
    st.builds(
        c.Peek,
        u64,
        text,
        ids,
        st.none() | u64,
        st.none() | _tuples(rows),
        finishings,
        st.none() | st.floats(0, 1e9),
    ),
    st.builds(c.CancelPeek, u64, text, u64),
    st.builds(c.Sync, u64),
    st.builds(c.TestHook, u64, text, text, text),
)
results = st.one_of(
    st.builds(r.PeekRows, _tuples(_tuples(scalars)), _tuples(i64), u64),
    st.builds(r.PeekError, text, text, text),
    st.just(r.PeekCanceled()),
)
tellings = st.one_of(
    st.builds(
        r.SubscribeBatch,
        u64,
        frontiers,
        st.one_of(
            st.builds(
                r.SubscribeUpdates, _tuples(_tuples(scalars)), _tuples(u64), _tuples(i64), st.booleans()
            ),
            st.builds(r.SubscribeError, text, text, text),
        ),
    ),
    st.builds(r.DroppedAt, frontiers, text, text, text),
)
responses: st.SearchStrategy[r.Response] = st.one_of(
    st.builds(r.Refused, u64, text, text, text),
    st.builds(r.Synced, u64),
    st.builds(r.Closing, text, text, text),
    st.builds(r.Frontiers, ids, *[st.none() | frontiers] * 3),
    st.builds(r.Status, ids, st.sampled_from(r.STATES), text, u64, u64, u64, text, text, text),
    st.builds(r.PeekPart, text, _tuples(_tuples(scalars)), _tuples(i64)),
    st.builds(r.CopyToResponse, ids, st.builds(r.Copied, u64) | st.builds(r.CopyError, text, text, text)),
    st.builds(r.PeekResponse, text, results, st.none() | u64, text),
    st.builds(r.SubscribeResponse, ids, tellings),
)
