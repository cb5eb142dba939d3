"""One directive: a line and a body in, output lines out.

An error is output like any other: `error: CODE: MESSAGE`; `error: timeout`, with the reason behind it as far
as the driver knows one; `error: disconnected`. What broke a promise of the protocol meanwhile (session.py)
is added to the output, so that no script passes over it.

Does not: read files, start replicas, compare outputs (run.py does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterd.driver import dataflows, faults, instance, observe, peeks, shards
from clusterd.driver.directive import Directive
from clusterd.driver.reads import error_line
from clusterd.driver.reasons import reasons
from clusterd.driver.state import Run
from controller_proto.errors import Disconnected, LocalProtocolError, ProtocolError
from controller_proto.script import split_words
from controller_proto.suggest import not_called

__all__ = ["DIRECTIVES", "VIOLATION", "carry_out"]

VIOLATION = "violation: "  # begins a line of output that no file may expect

DIRECTIVES: Mapping[str, Directive] = {
    **instance.DIRECTIVES,
    **shards.DIRECTIVES,
    **dataflows.DIRECTIVES,
    **observe.DIRECTIVES,
    **peeks.DIRECTIVES,
    **faults.DIRECTIVES,
}


def carry_out(run: Run, line: str, body: Sequence[str] = ()) -> list[str]:
    """Carry out one directive, and return its output; `run.hint` is the hint of its error. Raises Skip."""
    run.hint = ""
    try:
        output = _carry_out(run, line, body)
    except ProtocolError as error:
        output = [error_line(error)]
        run.hint = error.message if isinstance(error, Disconnected) else error.hint
    except TimeoutError:
        output = [": ".join(["error: timeout", *reasons(run, line)])]
    except OSError as error:
        output = [f"error: {error}"]
    violations = [each for session in run.sessions.values() for each in session.take_violations()]
    return [*output, *(VIOLATION + each for each in violations)]


def _carry_out(run: Run, line: str, body: Sequence[str]) -> list[str]:
    words = split_words(line)
    directive = DIRECTIVES.get(words.name)
    if directive is None:
        raise LocalProtocolError("bad-message", not_called("directive", words.name, DIRECTIVES))
    directive.check(words, body)
    output = directive.act(run, words, body)
    words.expect_all_used()
    return output
