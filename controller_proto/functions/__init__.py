"""The one table of functions: what each takes, gives, and fails with."""

from controller_proto.functions.comparison import COMPARED
from controller_proto.functions.resolve import Mismatch, Resolved, common_type, resolve
from controller_proto.functions.signatures import Function, Signature
from controller_proto.functions.table import ERRORS, FAMILIES, FUNCTIONS

__all__ = [
    "COMPARED", "ERRORS", "FAMILIES", "FUNCTIONS", "Function", "Mismatch", "Resolved", "Signature",
    "common_type", "resolve",
]  # fmt: skip
