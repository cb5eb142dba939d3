"""The groups of a regular expression: how many columns regexp_extract has depends on them.

Does not: check the pattern (RE2 does, where it is used).
"""

from __future__ import annotations

import functools
import re
from typing import Final

__all__ = ["scan_groups"]

_NAMED: Final = re.compile(r"\?P?<([A-Za-z_]\w*)>")
_POSIX: Final = re.compile(r"\[:\^?\w+:\]")


@functools.lru_cache(1024)
def scan_groups(pattern: str) -> tuple[str, tuple[str, ...]]:
    """The pattern with its groups named g1, g2, ...; and the names they had, empty of those without one.

    >>> scan_groups("(a)(?:b)(?P<x>c)")
    ('(?P<g1>a)(?:b)(?P<g2>c)', ('', 'x'))
    """
    out: list[str] = []
    names: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        if pattern.startswith("\\Q", at):
            end = pattern.find("\\E", at)
            size = len(pattern) - at if end < 0 else end + 2 - at
        elif pattern[at] == "\\":
            size = 2
        elif in_class:
            posix = _POSIX.match(pattern, at)
            size = len(posix[0]) if posix else 1
            in_class = pattern[at] != "]"
        elif pattern[at] == "[":
            in_class = True
            size = 2 if pattern.startswith("[^", at) else 1
            size += pattern.startswith("]", at + size)  # a bracket that comes first is one of the class
        elif pattern[at] == "(":
            named = _NAMED.match(pattern, at + 1)
            if named or not pattern.startswith("?", at + 1):
                names.append(named[1] if named else "")
                out.append(f"(?P<g{len(names)}>")
                at += 1 + (len(named[0]) if named else 0)
                continue
            size = 1
        else:
            size = 1
        out.append(pattern[at : at + size])
        at += size
    return "".join(out), tuple(names)
