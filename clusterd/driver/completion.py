"""What may be typed next: directives, their arguments, the ids and names that this run knows.

Does not: touch a terminal (shell.py does), ask the replica, complete expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clusterd.config import SETTINGS
from clusterd.driver.driver import DIRECTIVES
from clusterd.driver.state import Run
from controller_proto.parse_plan import OPERATORS
from controller_proto.schema import ColumnType

__all__ = ["DELIMITERS", "SHELL_WORDS", "complete"]

DELIMITERS = " \t=,(["  # a word that is completed begins behind one of these
SHELL_WORDS = ("help", "exit")

_WORD = re.compile(f"[^{re.escape(DELIMITERS)}]*$")
_VALUE = re.compile(r"(?:^|\s)([a-z-]+)=[^\s=]*$")
_GIVEN = re.compile(r"\s([a-z-]+)(?==|\s)")
_MADE = re.compile(r"^\s*(?:import (?:source|index)|build id)=(\S+)")
_OF_PEEKS = ("await-peek", "answered", "cancel-peek", "served-by")
_SETTERS = ("create-instance", "update-configuration")
# What a line of a dataflow takes; which of these go together the parser says.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "import": ("source", "shard", "upper", "schema", "index"),
    "build": ("id",),
    "export": ("kind", "index", "sink", "on", "key", "up-to", "snapshot", "shard", "schema", "uri", "format"),
}
_KINDS = ("index", "subscribe", "materialized-view", "copy-to")


def complete(run: Run, above: Sequence[str], line: str) -> list[str]:
    """What may stand in place of the last word of `line`, and behind it a blank or `=` where one follows.

    above: the lines of the stanza before this one. line: up to the cursor.
    """
    match = _WORD.search(line)
    word = match[0] if match is not None else ""
    candidates = _of_directive(run, line) if not above else _of_body(run, above, line)
    return [candidate for candidate in candidates if candidate.startswith(word)]


def _of_directive(run: Run, line: str) -> Iterable[str]:
    name, blank, _ = line.lstrip().partition(" ")
    if not blank:
        return _spaced([*DIRECTIVES, *SHELL_WORDS])
    if name == "help":
        return DIRECTIVES
    directive = DIRECTIVES.get(name)
    if directive is None:
        return ()
    value = _VALUE.search(line)
    if value is not None:
        argument = directive.arguments.get(value[1])
        if argument is not None and argument.choices:
            return _spaced(argument.choices)
        return _spaced(_values(run, name, value[1]))
    given = set(_GIVEN.findall(line))
    left = [argument for argument in directive.arguments.values() if argument.name not in given]
    return [f"{argument} " if argument.flag else str(argument) for argument in left]


def _values(run: Run, directive: str, argument: str) -> Iterable[str]:
    """What is known for `argument` in this run."""
    match argument:
        case "id":
            return run.indexes
        case "ts" if directive in ("peek", "count", "start-peek"):
            return ("latest",)
        case "shard" if run.store is not None:
            return run.store.list()
        case "schema":
            return run.schemas
        case "conn":
            return run.sessions
        case "ref":
            return run.dataflows
        case "name" if directive in _OF_PEEKS:
            return run.started
        case "process" if run.replica is not None:
            return run.replica.pids
    return ()


def _of_body(run: Run, above: Sequence[str], line: str) -> Iterable[str]:
    directive = above[0].split()[0]
    words = line.split()
    position = len(words) - (line[-1:] not in ("", " "))  # of the word that is typed
    if directive in _SETTERS:
        setting = SETTINGS.get(words[0]) if words else None
        if position == 0 or setting is None:
            return _spaced(SETTINGS)
        return _spaced((setting.type,)) if position == 1 else setting.choices
    if directive == "define-schema":
        return (
            () if position == 0 else [type_.value for type_ in ColumnType] if position == 1 else ("nullable",)
        )
    if directive in ("create-dataflow", "explain"):
        return _of_dataflow(run, above, line, words, position)
    return ()


def _of_dataflow(
    run: Run, above: Sequence[str], line: str, words: Sequence[str], position: int
) -> Iterable[str]:
    if position == 0:
        return _spaced([*_PARTS, *OPERATORS, "cte"])
    made = [match[1] for each in above[1:] if (match := _MADE.match(each))]
    if words[0] == "Get":
        return made
    if words[0] not in _PARTS:
        return ()
    value = _VALUE.search(line)
    if value is None:
        given = set(_GIVEN.findall(line))
        return [f"{part}=" for part in _PARTS[words[0]] if part not in given]
    match words[0], value[1]:
        case "import", "index":
            return _spaced(run.indexes)
        case "export", "on":
            return _spaced(made)
        case "export", "kind":
            return _spaced(_KINDS)
        case "export", "snapshot":
            return _spaced(("true", "false"))
    return _spaced(_values(run, "", value[1])) if value[1] in ("shard", "schema") else ()


def _spaced(names: Iterable[str]) -> list[str]:
    return [f"{name} " for name in names]
