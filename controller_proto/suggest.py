"""What to say of a name that is not there: the one that was probably meant, else all there are.

Does not: raise; the caller knows the code and the place.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest", "not_called"]

_CUTOFF = 0.6  # of difflib's ratio: a letter too many, too few, wrong or swapped in a word of four


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about `word`.

    >>> did_you_mean("peekk", ["peek", "quiet"])
    'did you mean peek?'
    >>> did_you_mean("zzz", ["peek", "quiet"])
    'there are peek, quiet'
    """
    names = list(known)
    found = nearest(word, names)
    return f"there are {', '.join(names)}" if found is None else f"did you mean {found}?"


def not_called(kind: str, name: str, known: Iterable[str]) -> str:
    """That no `kind` has this name.

    >>> not_called("peek", "b", ["a"])
    "no peek is called 'b'; there are a"
    """
    names = list(known)
    return f"no {kind} is called {name!r}" + (f"; {did_you_mean(name, names)}" if names else "")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name that `word` most resembles, without regard to case; None if it resembles none."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=_CUTOFF)
    return lowered[near[0]] if near else None
