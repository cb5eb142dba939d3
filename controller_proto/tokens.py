"""Tokens of expressions, plans and literals, and the cursor that parsers walk them with.

Text is in double quotes with JSON's escapes, so it survives being printed and read again. `//` begins a
comment, which is kept as a token: some carry types.

Does not: know any grammar.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from controller_proto.errors import LocalProtocolError

__all__ = ["Token", "Tokens", "quote", "syntax_error", "tokenize"]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<comment>//.*)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<column>\#\d+)
      | (?P<name>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<op>::|\|\||->>|->|\#>>|\#>|@>|<@|!~\*|!~|~\*|<<|>>|!=|<>|<=|>=|[=<>+\-*/%()\[\]{},?.&|^~\#])
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class Token(NamedTuple):
    """kind: comment, number, text, column, name, op, or end. value: as written; of text, unquoted."""

    kind: str
    value: str
    position: int


def syntax_error(message: str, text: str, position: int) -> LocalProtocolError:
    """An `invalid-plan` that shows where in `text`."""
    rest = text[position : position + 30]
    at = f"at {rest!r}" if rest.strip() else "at the end"
    return LocalProtocolError("invalid-plan", f"{message} {at} of {text.strip()!r}")


def quote(text: str) -> str:
    """`text` as it is written in scripts and answers."""
    return json.dumps(text, ensure_ascii=False)


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`, ended by one of kind `end`. Raises LocalProtocolError `invalid-plan`."""
    tokens = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            quoted = text[position:].lstrip().startswith("'")
            message = "texts stand in double quotes;" if quoted else "not understood"
            raise syntax_error(message, text, position)
        kind = match.lastgroup or ""
        value = match[kind]
        if kind == "text":
            try:
                value = json.loads(value, strict=False)
            except json.JSONDecodeError:
                raise syntax_error("an escape that JSON does not have", text, match.start(kind)) from None
        tokens.append(Token(kind, value, match.start(kind)))
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


class Tokens:
    """A position in the tokens of one text. Names are compared without case, as keywords are."""

    __slots__ = ("_at", "_text", "_tokens")

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._at = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    @property
    def after(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.next
        if token.kind != "end":
            self._at += 1
        return token

    def take_value(self) -> tuple[str, bool]:
        """A literal value, and whether it was in quotes: a number, word or text, or all of `{..}`, `(..)`.

        Raises LocalProtocolError `invalid-plan` if none stands here.
        """
        start = self.next.position
        if self.is_op("{", "("):
            self._take_group()
            before = self._tokens[self._at - 1]
            return self._text[start : before.position + 1], False
        sign = "-" if self.accept_op("-") else ""
        token = self.next
        if token.kind not in ("number", "name") and (token.kind != "text" or sign):
            raise self.error("expected a value")
        self.take()
        return sign + token.value, token.kind == "text"

    def _take_group(self) -> None:
        """From a bracket to the one that closes it."""
        expected: list[str] = []
        while True:
            token = self.take()
            if token.kind == "end":
                raise self.error(f"expected {expected[-1]}")
            if token.kind == "op" and token.value in _CLOSING:
                expected.append(_CLOSING[token.value])
            elif token.kind == "op" and token.value in _CLOSING.values():
                if token.value != expected.pop():
                    raise self.error("brackets that do not match")
                if not expected:
                    return

    def is_op(self, *values: str) -> bool:
        return self.next.kind == "op" and self.next.value in values

    def is_word(self, *words: str) -> bool:
        return self.next.kind == "name" and self.next.value.lower() in words

    def accept_op(self, value: str) -> bool:
        found = self.is_op(value)
        if found:
            self._at += 1
        return found

    def accept_word(self, word: str) -> bool:
        found = self.is_word(word)
        if found:
            self._at += 1
        return found

    def expect_op(self, value: str) -> None:
        if not self.accept_op(value):
            raise self.error(f"expected {value}")

    def expect_word(self, word: str) -> None:
        if not self.accept_word(word):
            raise self.error(f"expected {word.upper()}")

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.error("expected nothing more")

    def error(self, message: str) -> LocalProtocolError:
        return syntax_error(message, self._text, self.next.position)
