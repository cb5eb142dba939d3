"""What a directive is: what it does, and what may stand on its line and below it.

The line is declared as it is documented, `id= ts= [kind=a|b] [allow-timeout]`: one text serves the check
before anything is done, the help, the completion of the shell, and docs/script.md, which is held against it.

Does not: do anything, know values beyond a closed choice of words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from clusterd.driver.state import Run
from controller_proto.errors import LocalProtocolError
from controller_proto.script import Words
from controller_proto.suggest import did_you_mean

__all__ = ["Action", "Argument", "Directive"]

Action = Callable[[Run, Words, Sequence[str]], list[str]]

_ITEM = re.compile(r"(\[?)([a-z][a-z0-9-]*)(?:(=)([a-z0-9|-]*))?(\]?)")


@dataclass(frozen=True, slots=True)
class Argument:
    """`name=VALUE`, or a flag. choices: the only values there are, if it is a closed list."""

    name: str
    required: bool
    flag: bool
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name if self.flag else f"{self.name}="


@dataclass(frozen=True)
class Directive:
    """act: carries it out. usage: its arguments. does: what it does, in a line. body: what the lines below
    it are, "" if there are none. instead: the argument that takes the place of the body.
    """

    act: Action
    usage: str
    does: str
    body: str = ""
    instead: str = ""

    @cached_property
    def arguments(self) -> dict[str, Argument]:
        """By name, in the order of `usage`."""
        found = {}
        for item in self.usage.split():
            match = _ITEM.fullmatch(item)
            assert match is not None, item
            choices = tuple(match[4].split("|")) if match[4] else ()
            found[match[2]] = Argument(match[2], not match[1], match[3] is None, choices)
        return found

    def takes_body(self, words: Words) -> bool:
        """Whether lines below this one belong to it."""
        return bool(self.body) and self.instead not in words.arguments

    def check(self, words: Words, body: Sequence[str]) -> None:
        """Raise LocalProtocolError `bad-message` for what it does not take, before anything is done."""
        if body and not self.takes_body(words):
            why = f" beside {self.instead}=" if self.body else ""
            raise LocalProtocolError("bad-message", f"{words.name} has no body{why}")
        for name, value in words.arguments.items():
            argument = self.arguments.get(name)
            if argument is None or argument.flag:
                self._refuse(words.name, f"{name}=")
            elif argument.choices and value not in argument.choices:
                end = did_you_mean(value, argument.choices)
                raise LocalProtocolError("bad-message", f"{name}={value}: {end}")
        for word in words.flags:
            argument = self.arguments.get(word)
            if argument is None or not argument.flag:
                self._refuse(words.name, word)

    def _refuse(self, name: str, word: str) -> None:
        known = [str(argument) for argument in self.arguments.values()]
        end = f"; {did_you_mean(word, known)}" if known else ""
        raise LocalProtocolError("bad-message", f"{name} does not take {word}{end}")
