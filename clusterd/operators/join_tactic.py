"""The pairs of two batches whose keys are equal: found by codes, verified by keys, cut into pieces.

The seam between the driver (join.py), which knows rounds and which parts of the sides meet, and the finding.
The contract of a tactic: every pair of updates, one of each part, whose keys are equal and whose times lie in
their parts' spans and stand in the wanted order, exactly once, in pieces of at most `room` rows; time is the
greater of the two, diff the product.

The codes of both sides are of one kind (schema.py), and two keys may share one. Rows of a key stand together
in a batch, so a run of equal codes is one key on each side if its first and last rows say so; where they do
not, the run is split and the keys are paired singly.

Does not: know what is new or old, gather columns, or give products of 48 bits and more (`wide` pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clusterd.operators.kernels import join as kernels
from shm_arrangements.batch import Batch
from shm_arrangements.columns import Column
from shm_arrangements.errors import InvariantViolation
from shm_arrangements.kernels.hashing import NULL_FLAG
from shm_arrangements.rows import RowImage, RowSpec, encode

__all__ = ["PIECE_STEPS", "JoinTactic", "KernelTactic", "Pairs", "Part"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

PIECE_STEPS = 500_000  # of one piece of work: pairs looked at, a few ms
_RUNS = 8192  # verified at once
_SEARCH_STEPS = 100_000  # of one piece: each may miss the caches
_WIDE = 1024


@dataclass(frozen=True, slots=True)
class Part:
    """The updates of a batch with times in [first, last], after rounding up to as_of."""

    batch: Batch
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """left, right: (n,) rows of the two batches, valid until the next piece is asked for; times, diffs (n,).

    wide: rows of left and of right of the pairs whose product has 48 bits or more; they are not among the
    others. steps: what the piece cost, at most about `PIECE_STEPS`.
    """

    left: Ints
    right: Ints
    times: Words
    diffs: Ints
    wide: tuple[Ints, Ints]
    steps: int


class JoinTactic(Protocol):
    """Finds pairs; the contract is in the head."""

    def pairs(
        self,
        left: Part,
        right: Part,
        as_of: int,
        null_safe: bool,
        room: Callable[[], int],
        order: int = kernels.ANY,
    ) -> Iterator[Pairs]:
        """All pairs, in pieces of at most room() rows; a piece may be empty, and is a few ms of work.

        order: ANY, NOT_LATER or EARLIER (kernels/join.py): what right's time has to be beside left's.
        """


class KernelTactic:
    """Galloping search and expansion in compiled code; keys verified a few thousand at a time."""

    def __init__(self, most_rows: int) -> None:
        """most_rows: the greatest room there will be."""
        self._left = np.empty(most_rows, np.int64)
        self._right = np.empty(most_rows, np.int64)

    def pairs(
        self,
        left: Part,
        right: Part,
        as_of: int,
        null_safe: bool,
        room: Callable[[], int],
        order: int = kernels.ANY,
    ) -> Iterator[Pairs]:
        a, b = left.batch, right.batch
        if a.schema.code is not b.schema.code:
            raise InvariantViolation("joined by codes of two kinds", left=a.schema, right=b.schema)
        place = np.zeros(3, np.int64)
        found = np.empty((min(_RUNS, len(a), len(b)), 4), np.int64)
        while place[0] < len(a) and place[1] < len(b):
            count = kernels.match_runs(a.codes, b.codes, _SEARCH_STEPS, place, found)
            runs = _verified(a, b, found[:count], null_safe)
            state = np.array([0, -1, 0, 0, 0], np.int64)
            sought = 4 * int(place[kernels.SOUGHT])
            while state[kernels.RUN] < len(runs):
                yield self._expand(runs, left, right, as_of, order, room(), state, sought)
                sought = 0
            if len(runs) == 0:
                yield self._expand(runs, left, right, as_of, order, 0, state, sought)

    def _expand(
        self,
        runs: Ints,
        left: Part,
        right: Part,
        as_of: int,
        order: int,
        room: int,
        state: Ints,
        sought: int,
    ) -> Pairs:
        a, b = left.batch, right.batch
        times, diffs = np.empty(room, np.uint64), np.empty(room, np.int64)
        wide = np.empty((2, _WIDE), np.int64)
        n = kernels.expand_runs(
            runs, a.time_cells, a.diff_cells, np.uint64(left.first), np.uint64(left.last),
            b.time_cells, b.diff_cells, np.uint64(right.first), np.uint64(right.last), np.uint64(as_of),
            order, PIECE_STEPS, state, self._left[:room], self._right[:room], times, diffs, wide[0], wide[1],
        )  # fmt: skip
        w = int(state[kernels.WIDE])
        steps = sought + int(state[kernels.STEPS])
        return Pairs(self._left[:n], self._right[:n], times[:n], diffs[:n], (wide[0, :w], wide[1, :w]), steps)


def _verified(a: Batch, b: Batch, runs: Ints, null_safe: bool) -> Ints:
    """(k, 4) the runs of equal keys within `runs` of equal codes; without NULL keys unless `null_safe`."""
    left, right = a.key_columns(), b.key_columns()
    if not left or len(runs) == 0:
        return runs
    spec = RowSpec(
        tuple((x.type, x.has_validity or y.has_validity) for x, y in zip(left, right, strict=True))
    )
    heads = _image(left, runs[:, 0], spec)
    same = heads.equal(_every(len(runs)), _image(right, runs[:, 2], spec), _every(len(runs)))
    for columns, at in ((left, 0), (right, 2)):
        long = np.flatnonzero(runs[:, at + 1] - runs[:, at] > 1)
        if len(long):
            tails = _image(columns, runs[long, at + 1] - 1, spec)
            first = heads if at == 0 else _image(right, runs[long, 2], spec)
            same[long] &= first.equal(long if at == 0 else _every(len(long)), tails, _every(len(long)))
    good = runs
    if not same.all():
        split = [_split(left, right, run, spec) for run in runs[~same].tolist()]
        good = np.concatenate([runs[same], *split])
        heads = _image(left, good[:, 0], spec)
    if not null_safe and any(nullable for _, nullable in spec.types):
        known = ~heads.lanes[:, spec.kinds == NULL_FLAG].any(axis=1)
        good = good if known.all() else good[known]
    return np.ascontiguousarray(good)


def _split(left: Sequence[Column], right: Sequence[Column], run: Sequence[int], spec: RowSpec) -> Ints:
    """The pairs of equal keys in one run of equal codes: keys share a code, so each is compared with each."""
    keys = []
    for columns, lo, hi in ((left, run[0], run[1]), (right, run[2], run[3])):
        image = encode([c.slice(lo, hi) for c in columns], spec, hi - lo)
        starts = image.run_starts(_every(hi - lo))
        keys.append((image, starts, np.append(starts[1:], hi - lo)))
    (x, x_starts, x_ends), (y, y_starts, y_ends) = keys
    out = []
    for start, end in zip(x_starts.tolist(), x_ends.tolist(), strict=True):
        at = np.flatnonzero(x.equal(np.full(len(y_starts), start, np.int64), y, y_starts))
        out += [(run[0] + start, run[0] + end, run[2] + y_starts[k], run[2] + y_ends[k]) for k in at.tolist()]
    return np.array(out, np.int64).reshape(len(out), 4)


def _image(columns: Sequence[Column], rows: Ints, spec: RowSpec) -> RowImage:
    rows = np.ascontiguousarray(rows)
    return encode([c.take(rows) for c in columns], spec, len(rows))


def _every(n: int) -> Ints:
    return np.arange(n, dtype=np.int64)
