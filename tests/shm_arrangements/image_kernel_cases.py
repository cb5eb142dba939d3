"""How arguments are drawn of the kernels that make images of rows, and read them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shm_arrangements.nested import program_of
from shm_arrangements.rows import RowSpec, encode
from shm_arrangements.testing import reference, strategies
from shm_arrangements.testing.meaning import image_of
from shm_arrangements.testing.reference import Images
from shm_arrangements.types import VARIABLE, ColumnSpec, ListType
from tests.shm_arrangements.kernel_cases import (
    ALL_TYPES,
    Both,
    InOut,
    Out,
    Scratch,
    case,
    diff_values,
    draw_column,
    draw_pool,
    draw_specs,
    draw_texts,
    draw_type,
    drawn_table,
    i64,
    relation_of,
    u64,
    words,
)


def _image(draw: Any, specs: Any, rows: list[Any]) -> tuple[Any, Both]:
    columns = [draw_column(draw, spec, [row[at] for row in rows]) for at, spec in enumerate(specs)]
    image = encode(columns, RowSpec.of(specs), len(rows))
    parts = (image.lanes, image.spec.kinds, image.text_lo, image.text_hi, image.text)
    return image, Both(parts, (relation_of(specs, rows),), columns)


def _drawn_image(draw: Any, *, many: bool = False, nested: int = 1) -> tuple[Any, Any, Both]:
    """An image of a few distinct rows; with `many`, sometimes enough of them for the radix sort."""
    specs = draw_specs(draw, nested)
    pool = draw_pool(draw, specs)
    n = draw(st.sampled_from([0, 1, 5, 30, 400] if many else [0, 1, 5]))
    picks = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(pool), n)
    return specs, *_image(draw, specs, [pool[k] for k in picks])


@case("hashing.hash_rows")
def _hash_rows(draw: Any) -> list[Any]:
    _, image, both = _drawn_image(draw, nested=0)
    return [both, Out(len(image), np.uint64)]


@case("hashing.text_lanes")
def _text_lanes(draw: Any) -> list[Any]:
    (data, offsets), slots = draw_texts(draw), draw(st.integers(1, 2))
    n = len(offsets) - 1
    lo, hi = (np.repeat(ends, slots).reshape(n, slots) for ends in (offsets[:-1], offsets[1:]))
    slot, lane = draw(st.integers(0, slots - 1)), draw(st.integers(0, 1))
    return [data, lo, hi, slot, InOut(np.full((n, 2), 7, np.uint64)), lane]


def _levels(draw: Any, n: int) -> Any:
    """Codes or times of n rows: a few, or left out."""
    pool = u64(draw(st.lists(words, min_size=1, max_size=3)))
    if draw(st.booleans()):
        return u64([])
    return pool[np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(pool), n)]


@case("rows.sort_rows")
def _sort_rows(draw: Any) -> list[Any]:
    _, image, both = _drawn_image(draw, many=True)
    n = len(image)
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(n)
    return [
        _levels(draw, n), both, _levels(draw, n), InOut(order), Scratch(n, np.int64), Scratch(n, np.uint64),
        Scratch(n, np.uint64), Scratch(2048, np.int64), Scratch(3 * (n // 192 + 2), np.int64),
    ]  # fmt: skip


@case("rows.sort_ties")
def _sort_ties(draw: Any) -> list[Any]:
    _, image, both = _drawn_image(draw, many=True)
    n = len(image)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    keys = np.sort(rng.integers(0, draw(st.sampled_from([1, 3, 1000])), n).astype(np.uint64))
    return [keys, both, InOut(rng.permutation(n)), Scratch(n, np.int64)]


@case("rows.equal_rows")
def _equal_rows(draw: Any) -> list[Any]:
    specs = draw_specs(draw)
    pool = st.sampled_from(draw_pool(draw, specs))
    sides = []
    n = draw(st.integers(0, 8))
    for _ in range(2):
        rows = draw(st.lists(pool, min_size=1, max_size=5))
        image, both = _image(draw, specs, rows)
        kinds, lanes = both.kernel[1], both.kernel[:1]
        sides += [
            Both(lanes + both.kernel[2:], both.reference),
            i64(draw(st.lists(st.integers(0, len(image) - 1), min_size=n, max_size=n))),
        ]
    return [*sides, Both((kinds,), ()), Out(n, np.bool_)]


def _sorted(draw: Any, image: Any, times: Any) -> Any:
    return image.sort_order(None, times if len(times) else None)


@case("rows.run_starts")
def _run_starts(draw: Any) -> list[Any]:
    _, image, both = _drawn_image(draw, many=True)
    return [both, _sorted(draw, image, u64([])), Out(len(image), np.int64)]


@case("accumulate.consolidate")
def _consolidate(draw: Any) -> list[Any]:
    _, image, both = _drawn_image(draw)
    n = len(image)
    times = _levels(draw, n)
    diffs = i64([draw(diff_values) for _ in range(n)])
    order = _sorted(draw, image, times)
    return [both, times, diffs, order, Out(n, np.int64), Out(n, np.int64)]


# Images of lists and records


@case("nested.image_offsets")
def _image_offsets(draw: Any) -> list[Any]:
    specs, rows, table = drawn_table(draw, min_columns=1)
    return [table, draw(st.integers(0, len(specs) - 1)), Out(len(rows) + 1, np.int64)]


@case("nested.write_images")
def _write_images(draw: Any) -> list[Any]:
    _, _, table = drawn_table(draw, min_columns=1)
    offsets, total = reference.image_offsets(table.reference[0], 0)
    return [table, 0, offsets, Out(total, np.uint8)]


def _laid_images(draw: Any, type_: Any) -> tuple[Any, Images, Any]:
    """Bytes with images of a type's values among others, which they are, and whether each is valid."""
    values = tuple(draw(st.lists(strategies.values(type_, True), max_size=6)))
    data, starts = b"", []
    for value in values:
        data += draw(st.binary(max_size=2))
        starts.append(len(data))
        data += image_of(type_, value)
    images = Images(type_, values, tuple(starts))
    return np.frombuffer(data + b"\7", np.uint8).copy(), images, reference.read_nulls(images)[1]


def _reader(draw: Any, type_: Any, *, moves: bool = True) -> tuple[list[Any], Images]:
    """The arguments that say where images are: bytes, positions behind the bytes of NULL, validity."""
    data, images, valid = _laid_images(draw, type_)
    at = images.behind_nulls
    return [Both((data,), (images,)), InOut(at, shown=False) if moves else at, valid], images


def _alone(arguments: list[Any]) -> list[Any]:
    """The same for the kernel; for the reference the images say all of it."""
    return [
        argument if isinstance(argument, Both | Out | InOut) else Both((argument,), ())
        for argument in arguments
    ]


NUMBERS = st.sampled_from([type_ for type_ in ALL_TYPES if type_ not in VARIABLE])
TEXTS = st.sampled_from(sorted(VARIABLE))


@case("nested.read_nulls")
def _read_nulls(draw: Any) -> list[Any]:
    data, images, _ = _laid_images(draw, draw_type(draw, 1))
    at = i64(list(images.starts))
    return [Both((data,), (images,)), InOut(at, shown=False), Out(len(at), np.bool_)]


@case("nested.read_words")
def _read_words(draw: Any) -> list[Any]:
    arguments, images = _reader(draw, draw(NUMBERS))
    return _alone([*arguments, Out(len(images.values), np.uint64)])


@case("nested.text_sizes")
def _text_sizes(draw: Any) -> list[Any]:
    arguments, images = _reader(draw, draw(TEXTS), moves=False)
    return _alone([*arguments, Out(len(images.values) + 1, np.int64)])


@case("nested.read_texts")
def _read_texts(draw: Any) -> list[Any]:
    arguments, images = _reader(draw, draw(TEXTS))
    offsets, total = reference.text_sizes(images)
    return _alone([*arguments, offsets, Out(total, np.uint8)])


def _list_type(draw: Any) -> ListType:
    return ListType(ColumnSpec("e", draw_type(draw, 2), True))


@case("nested.list_sizes")
def _list_sizes(draw: Any) -> list[Any]:
    type_ = _list_type(draw)
    arguments, images = _reader(draw, type_, moves=False)
    return _alone([program_of(type_), 0, *arguments, Out(len(images.values) + 1, np.int64)])


@case("nested.list_starts")
def _list_starts(draw: Any) -> list[Any]:
    type_ = _list_type(draw)
    arguments, images = _reader(draw, type_)
    total = reference.list_sizes(images)[1]
    return _alone([program_of(type_), 0, *arguments, Out(total, np.int64)])
