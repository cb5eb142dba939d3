"""The one table of functions: what each takes, gives, and fails with."""

from controller_proto.functions.comparison import COMPARED
from controller_proto.functions.groups import scan_groups
from controller_proto.functions.resolve import (
    Mismatch,
    Resolved,
    ResolvedTable,
    common_type,
    resolve,
    resolve_table,
)
from controller_proto.functions.signatures import Function, Signature
from controller_proto.functions.table import (
    ERRORS,
    FAMILIES,
    FUNCTIONS,
    TABLE_FUNCTIONS,
    USER_FUNCTIONS,
)
from controller_proto.functions.user import (
    USER_AGGREGATES,
    UserAggregate,
    add_aggregate,
    add_function,
    forget_functions,
    user_aggregate,
)

__all__ = [
    "COMPARED", "ERRORS", "FAMILIES", "FUNCTIONS", "TABLE_FUNCTIONS", "USER_AGGREGATES",
    "USER_FUNCTIONS", "Function", "Mismatch", "Resolved", "ResolvedTable", "Signature", "UserAggregate",
    "add_aggregate", "add_function", "common_type", "forget_functions", "resolve", "resolve_table",
    "scan_groups", "user_aggregate",
]  # fmt: skip
