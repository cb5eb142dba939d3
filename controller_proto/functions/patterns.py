"""Patterns. Regular expressions are RE2's: whatever the pattern, their time grows with the text alone."""

from __future__ import annotations

from functools import partial
from typing import Final

from controller_proto.functions.signatures import declared

_pattern = partial(declared, "patterns")
_INVALID = "invalid regular expression"
_RE2 = (
    "RE2 has no back references, no look-around, and none of PostgreSQL's escapes `\\m \\M \\y`; of "
    "alternatives the first that fits is taken, not the longest."
)
_FLAGS = "; flags are `i` (no matter which case), `n` (lines for themselves), `g` (all of them)"
_OF_REPLACE = (
    "With the first part that fits as the third text, in which `\\1` is what a group took and `\\&` all"
    f"{_FLAGS}."
)

FUNCTIONS: Final = (
    _pattern("like", "text, text -> boolean; text, text, text -> boolean",
             "`x LIKE pattern [ESCAPE e]`: `%` stands for any characters, `_` for one, what follows a "
             "backslash (or the one given) for itself.", '"abc" LIKE "a_c%"', "true",
             errors="LIKE pattern must not end with escape character; invalid escape string"),
    _pattern("ilike", "text, text -> boolean; text, text, text -> boolean",
             "As `like`, no matter which case.", '"ABC" ILIKE "a_c%"', "true",
             errors="LIKE pattern must not end with escape character; invalid escape string"),
    _pattern("~", "text, text -> boolean", "Whether a regular expression fits a part; `!~` whether not.",
             '"Thomas" ~ "t.*ma"', "false", errors=_INVALID, differs=_RE2),
    _pattern("~*", "text, text -> boolean", "As `~`, no matter which case.", '"Thomas" ~* "t.*ma"', "true",
             errors=_INVALID, differs=_RE2),
    _pattern("regexp_like", "text, text -> boolean; text, text, text -> boolean",
             "As `~`, with flags" + _FLAGS + ".", 'regexp_like("Hello", "l{2}")', "true", errors=_INVALID,
             differs=_RE2),
    _pattern("regexp_replace", "text, text, text -> text; text, text, text, text -> text", _OF_REPLACE,
             'regexp_replace("foobarbaz", "b(..)", "X\\\\1Y", "g")', '"fooXarYXazY"', errors=_INVALID,
             differs=_RE2),
    _pattern("regexp_match", "text, text -> text? list; text, text, text -> text? list",
             "What the groups of the first part that fits took, or all of it if there are none; NULL if "
             "nothing fits.", 'regexp_match("foobarbaz", "(b.)(r)")', '{"ba","r"}', nulls="always",
             errors=_INVALID, differs=_RE2 + " A group that took no part gives an empty text."),
    _pattern("regexp_substr", "text, text -> text", "The first part that fits; NULL if none does.",
             'regexp_substr("number of your street", "[^ ]+$")', '"street"', nulls="always", errors=_INVALID,
             differs=_RE2),
    _pattern("regexp_count", "text, text -> bigint", "How many parts fit.",
             'regexp_count("123456789", "...")', "3", errors=_INVALID, differs=_RE2),
    _pattern("regexp_split_to_array", "text, text -> text list", "The parts between those that fit.",
             'regexp_split_to_array("a, b,c", ", *")', '{"a","b","c"}', errors=_INVALID, differs=_RE2),
)  # fmt: skip
