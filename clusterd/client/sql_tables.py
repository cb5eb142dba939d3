"""Which tables a query names, from DuckDB's own parse of it (`json_serialize_sql`).

A name that a WITH makes is no table within its scope: the query below it, what comes after it in the same
WITH, and itself if it is recursive. Names with a schema or catalog are DuckDB's own.

Does not: parse, or know what is published.
"""

from __future__ import annotations

from typing import Any

__all__ = ["tables_of"]

Node = dict[str, Any]

_RECURSIVE = "RECURSIVE_CTE_NODE"


def tables_of(statement: Node) -> list[str]:
    """The names of the tables, each once, sorted.

    >>> tables_of({"type": "BASE_TABLE", "table_name": "u1", "schema_name": ""})
    ['u1']
    """
    found: set[str] = set()
    stack: list[tuple[Any, frozenset[str]]] = [(statement, frozenset())]
    while stack:
        node, made = stack.pop()
        if isinstance(node, list):
            stack += [(each, made) for each in node]
        elif isinstance(node, dict):
            if node.get("type") == "BASE_TABLE" and not (node.get("schema_name") or node.get("catalog_name")):
                name = node["table_name"]
                if name.lower() not in made:
                    found.add(name)
            for each in node.get("cte_map", {}).get("map", ()):
                own = made | {each["key"].lower()}
                stack.append((each["value"], own if _is_recursive(each["value"]) else made))
                made = own
            stack += [(value, made) for key, value in node.items() if key != "cte_map"]
    return sorted(found)


def _is_recursive(value: Node) -> bool:
    nodes = [each for each in value.values() if isinstance(each, dict)]
    return any(_RECURSIVE in (node.get("type"), node.get("node", {}).get("type")) for node in nodes)
