"""What the shell tells of the language: a line a directive, and all of one.

Does not: print, tell of plans and expressions (docs/script.md does).
"""

from __future__ import annotations

from clusterd.driver.driver import DIRECTIVES
from controller_proto.suggest import not_called

__all__ = ["help_lines"]

_KEYS = """\
A stanza is a directive, and below it a body if it has one, which ends with an empty line.
TAB completes directives, arguments, ids and names. ^C cancels the stanza that is typed or waits.
exit, or ^D, ends the shell, and the replica that it launched. help NAME tells of one directive.
Plans, expressions and values: docs/script.md in the source."""


def help_lines(name: str = "") -> list[str]:
    """All directives; with `name` what that one takes, does, and has below it."""
    if not name:
        width = max(map(len, DIRECTIVES))
        listed = [f"{each:{width}}  {directive.does}" for each, directive in DIRECTIVES.items()]
        return [*listed, "", *_KEYS.splitlines()]
    directive = DIRECTIVES.get(name)
    if directive is None:
        return [not_called("directive", name, DIRECTIVES)]
    lines = [f"{name} {directive.usage}".rstrip(), f"  {directive.does}"]
    if directive.body:
        instead = f", unless {directive.instead}= is given" if directive.instead else ""
        lines.append(f"  Below it, a line each{instead}: {directive.body}.")
    if "timeout-secs" in directive.arguments:
        lines.append("  timeout-secs= is how long it may wait, instead of --timeout.")
    if "no-sync" in directive.arguments:
        lines.append("  no-sync leaves out waiting for whether the command was refused.")
    return lines
