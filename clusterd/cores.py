"""Cores: which processes may run where, if whoever launches keeps some cores for reads.

By default the kernel places all processes, and maintenance gives way to reads (process.py), which is best
where cores are scarce or idle. Kept cores are for who wants reads to be the same whatever maintenance does:
the multiplexer and the interactive workers run on these alone, maintenance and whatever else works on all
others. So neither takes a core from the other, nor what is in its cache; and neither can borrow one.

Does not: start threads or processes, keep others' processes away (cpusets of the machine's owner do that).
"""

from __future__ import annotations

import re

__all__ = ["parse_cores", "plan_cores"]

_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_MOST = 1 << 16


def parse_cores(text: str, allowed: frozenset[int]) -> tuple[int, ...]:
    """The cores that `text` lists, as taskset does: `1`, `2,3`, `4-7`; ascending, each once.

    allowed: those that this process may use. Raises: ValueError if some are not among them, or no other is.

    >>> parse_cores("3,1-2", frozenset(range(8)))
    (1, 2, 3)
    """
    found: set[int] = set()
    for part in text.split(","):
        matched = _PART.fullmatch(part.strip())
        if matched is None or int(matched[1]) > int(matched[2] or matched[1]) or int(matched[2] or 0) > _MOST:
            raise ValueError(f"{text!r} lists no cores; write 1, or 2,3, or 4-7")
        found.update(range(int(matched[1]), int(matched[2] or matched[1]) + 1))
    shown = ",".join(map(str, sorted(allowed)))
    if not found <= allowed:
        raise ValueError(f"core {min(found - allowed)} is not there to be used; there are {shown}")
    if found == allowed:
        raise ValueError(f"no core is left for maintenance; there are {shown}, so keep fewer")
    return tuple(sorted(found))


def plan_cores(kept: tuple[int, ...], allowed: frozenset[int], *, reads: bool) -> frozenset[int]:
    """Where a process may run of which `reads` says that it serves reads. kept: none leaves it as it is."""
    if not kept:
        return allowed
    return allowed & frozenset(kept) if reads else allowed - frozenset(kept)
