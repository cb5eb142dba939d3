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
from clusterd.render.functions.expanding import TableCall, implemented_tables, table_function
from clusterd.render.functions.registry import CallSite, Implementation, implementation, implemented

__all__ = [
    "MESSAGES", "CallSite", "Codes", "Evaluated", "Implementation", "TableCall", "either", "error_texts",
    "filled", "implementation", "implemented", "implemented_tables", "table_function", "told", "with_nulls",
]  # fmt: skip
