"""Arrays as PostgreSQL prints them: `{1,NULL,"a \\"b\\" c"}`, with bounds in front if they are unusual.

An element is in quotes if it is empty, the word NULL, or has blanks, braces, commas, quotes or backslashes;
what follows a backslash in quotes is meant as it stands. All types that we map have the comma between.

Does not: convert elements (columns.py), read arrays in arrays.
Source: PostgreSQL 15, 8.15.6 "Array Input and Output Syntax".
"""

from __future__ import annotations

import re

__all__ = ["parse_array"]

_BOUNDS = re.compile(r"\[[+-]?\d+:[+-]?\d+\]=", re.ASCII)
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{}",\\\s][^{}",\\]*)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def parse_array(text: str) -> list[str | None] | None:
    """The elements' texts, None for NULL; None if it is no array, or one of several dimensions.

    >>> parse_array('{1,NULL,"a,b"}')
    ['1', None, 'a,b']
    """
    bounds = _BOUNDS.match(text)
    at = 0 if bounds is None else bounds.end()
    if text[at : at + 1] != "{" or text[-1] != "}":
        return None
    if at + 2 == len(text):
        return []
    elements: list[str | None] = []
    at += 1
    while True:
        match = _ELEMENT.match(text, at)
        if match is None:
            return None
        quoted, plain = match.groups()
        if plain is None:
            elements.append(_ESCAPED.sub(r"\1", quoted))
        else:
            elements.append(None if plain == "NULL" else plain)
        at = match.end()
        if at == len(text) - 1:
            return elements
        if text[at] != ",":
            return None
        at += 1
