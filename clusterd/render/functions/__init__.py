"""The scalar functions on columns: what evaluation gives, and who implements what."""

from clusterd.render.functions.evaluated import (
    MESSAGES,
    Codes,
    Evaluated,
    either,
    error_texts,
    filled,
    told,
    with_nulls,
)
from clusterd.render.functions.registry import CallSite, Implementation, implementation, implemented

__all__ = [
    "MESSAGES", "CallSite", "Codes", "Evaluated", "Implementation", "either", "error_texts", "filled",
    "implementation", "implemented", "told", "with_nulls",
]  # fmt: skip
