"""Text. Lengths and positions count characters (code points), from 1."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_text = partial(declared, "text")

FUNCTIONS: Final = (
    _text("||", "text, text -> text; bytea, bytea -> bytea", "One after the other.", '"a" || "b"', '"ab"'),
)  # fmt: skip
