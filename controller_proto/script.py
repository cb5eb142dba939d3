"""The script language: a file as stanzas, and back again, byte for byte.

A stanza is a directive line, an optional body indented below it, a line `----`, and the expected output
up to the next blank line; an output that holds blank lines is enclosed in `----`/`----` on both ends. `#`
in column 0 begins a comment. Everything between stanzas is kept as it stands, so a rewrite changes
outputs and nothing else.

Does not: know any directive, run anything, touch a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller_proto.errors import LocalProtocolError
from controller_proto.suggest import did_you_mean, nearest
from controller_proto.tokens import tokenize

__all__ = [
    "Script", "ScriptError", "Stanza", "Words", "parse_script", "render_script", "split_line", "split_words",
]  # fmt: skip

_RULE = "----"
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_ARGUMENT = re.compile(r"([a-z][a-z0-9_-]*)=(.*)", re.DOTALL)


class ScriptError(Exception):
    """A file that is no script. `line_number` counts from 1."""

    def __init__(self, message: str, line_number: int) -> None:
        super().__init__(f"line {line_number}: {message}")
        self.line_number = line_number


@dataclass(frozen=True, slots=True)
class Stanza:
    """One directive. head: its lines as they stand, with comments among them; line_number of the first.

    enclosed: whether its output stands between two rules, which it may without need.
    """

    line_number: int
    head: tuple[str, ...]
    expected: tuple[str, ...]
    enclosed: bool = False

    @property
    def directive(self) -> str:
        return self.head[0]

    @property
    def expected_line_number(self) -> int:
        """Of the first line of the output."""
        return self.line_number + len(self.head) + 1 + self.enclosed

    @property
    def body(self) -> tuple[str, ...]:
        """The lines below the directive, without comments and without the indentation they share."""
        lines = [line for line in self.head[1:] if not line.startswith("#")]
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        return tuple(line[indent:] for line in lines)


@dataclass(frozen=True, slots=True)
class Script:
    """Stanzas and, between them, runs of lines that are comments or blank."""

    items: tuple[Stanza | tuple[str, ...], ...]

    @property
    def stanzas(self) -> tuple[Stanza, ...]:
        return tuple(item for item in self.items if isinstance(item, Stanza))


def parse_script(text: str) -> Script:
    """Read a file. Raises ScriptError."""
    lines = text.split("\n")
    items: list[Stanza | tuple[str, ...]] = []
    between: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.startswith("#"):
            between.append(line)
            at += 1
            continue
        if between:
            items.append(tuple(between))
            between = []
        stanza, at = _stanza(lines, at)
        items.append(stanza)
    if between:
        items.append(tuple(between))
    return Script(tuple(items))


def _stanza(lines: Sequence[str], start: int) -> tuple[Stanza, int]:
    if lines[start][0].isspace():
        raise ScriptError("a directive is not indented", start + 1)
    if lines[start] == _RULE:
        raise ScriptError(f"{_RULE} without a directive above it", start + 1)
    at = start + 1
    while at < len(lines) and lines[at] != _RULE:
        line = lines[at]
        if not line.strip() or not (line[0].isspace() or line.startswith("#")):
            raise ScriptError(f"expected {_RULE}, or an indented body and then {_RULE}", at + 1)
        at += 1
    if at == len(lines):
        raise ScriptError(f"a directive without {_RULE}", start + 1)
    head = tuple(lines[start:at])
    at += 1
    if lines[at : at + 1] == [_RULE]:
        first = at + 1
        at = first
        while lines[at : at + 2] != [_RULE, _RULE]:
            if at >= len(lines):
                raise ScriptError(f"no second {_RULE} {_RULE} ends this output", first)
            at += 1
        return Stanza(start + 1, head, tuple(lines[first:at]), enclosed=True), at + 2
    first = at
    while at < len(lines) and lines[at].strip():
        at += 1
    return Stanza(start + 1, head, tuple(lines[first:at])), at


def render_script(script: Script, outputs: Mapping[int, Sequence[str]] | None = None) -> str:
    """The text of `script`; `outputs`, by line number of a stanza, replace what was expected of it.

    Without any, or with those that were expected, it is the text that was read.
    """
    outputs = outputs or {}
    lines: list[str] = []
    for item in script.items:
        if not isinstance(item, Stanza):
            lines += item
            continue
        lines += [*item.head, _RULE]
        output = list(outputs.get(item.line_number, item.expected))
        kept = item.enclosed and output == list(item.expected)
        if kept or any(not line.strip() for line in output) or output[:1] == [_RULE]:
            lines += [_RULE, *output, _RULE, _RULE]
        else:
            lines += output
    return "\n".join(lines)


@dataclass(slots=True)
class Words:
    """A directive line taken apart: its name, `key=value` arguments, and flags. Each is asked for once."""

    name: str
    arguments: dict[str, str]
    flags: list[str]
    _asked: list[str] = field(default_factory=list, repr=False, compare=False)

    def get(self, key: str) -> str | None:
        """The argument, or None."""
        self._asked.append(f"{key}=")
        return self.arguments.pop(key, None)

    def one(self, key: str) -> str:
        """The argument. Raises LocalProtocolError `bad-message` if it is missing."""
        self._asked.append(f"{key}=")
        if key not in self.arguments:
            raise LocalProtocolError("bad-message", f"{self.name} needs {key}={self._meant(key)}")
        return self.arguments.pop(key)

    def flag(self, word: str) -> bool:
        self._asked.append(word)
        if word not in self.flags:
            return False
        self.flags.remove(word)
        return True

    def expect_all_used(self) -> None:
        """Raise LocalProtocolError `bad-message` if something was given that nobody asked for."""
        left = [f"{key}=" for key in self.arguments] + self.flags
        if left:
            end = f"; {did_you_mean(left[0], self._asked)}" if self._asked else ""
            raise LocalProtocolError("bad-message", f"{self.name} does not take {' '.join(left)}{end}")

    def _meant(self, key: str) -> str:
        """What was given that is nearly `key`, as the end of a sentence."""
        found = nearest(key, self.arguments)
        return f", not {found}=" if found is not None else ""


def split_words(line: str) -> Words:
    """Take a line apart at white space, but not inside `"..."`, `[...]`, `(...)` or `{...}`.

    >>> split_words('peek id=7 keys=[(1, "a b")] x')
    Words(name='peek', arguments={'id': '7', 'keys': '[(1, "a b")]'}, flags=['x'])
    """
    words = [_unquoted(word) for word in split_line(line)]
    arguments: dict[str, str] = {}
    flags: list[str] = []
    for word in words[1:]:
        match = _ARGUMENT.fullmatch(word)
        if match is None:
            flags.append(word)
        elif match[1] in arguments:
            raise LocalProtocolError("bad-message", f"{match[1]}= is given twice")
        else:
            arguments[match[1]] = _unquoted(match[2])
    return Words(words[0] if words else "", arguments, flags)


def split_line(line: str) -> list[str]:
    """The words of `line`, quotes and brackets kept. Raises LocalProtocolError `bad-message`."""
    words: list[str] = []
    word = ""
    expected: list[str] = []
    quoted = escaped = False
    for char in line:
        if quoted:
            word += char
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
            continue
        if char.isspace() and not expected:
            if word:
                words.append(word)
            word = ""
            continue
        word += char
        if char == '"':
            quoted = True
        elif char in _BRACKETS:
            expected.append(_BRACKETS[char])
        elif char in _BRACKETS.values():
            if not expected or expected[-1] != char:
                raise LocalProtocolError("bad-message", f"{char} closes nothing in {line.strip()!r}")
            expected.pop()
    if quoted or expected:
        raise LocalProtocolError(
            "bad-message", f"{'quote' if quoted else expected[-1]} is missing in {line.strip()!r}"
        )
    return [*words, word] if word else words


def _unquoted(word: str) -> str:
    if not word.startswith('"'):
        return word
    tokens = tokenize(word)
    return tokens[0].value if len(tokens) == 2 else word
