"""Directives of the instance and of connections."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from clusterd.driver.directive import Directive
from clusterd.driver.reads import parse_u64, placed
from clusterd.driver.session import Session
from clusterd.driver.state import OK, Run, Skip
from controller_proto import command as c
from controller_proto.errors import LocalProtocolError
from controller_proto.script import Words, split_line
from controller_proto.suggest import did_you_mean, not_called

__all__ = ["DIRECTIVES"]

_DURATION = re.compile(r"(\d+\.?\d*)(us|ms|s|min|h)")
_TYPES = ("bool", "u64", "f64", "duration", "string")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def create_instance(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    launched = {} if run.replica is None else dict(run.replica.config)
    config = {**launched, **_settings(body)}
    run.session.do(c.CreateInstance(0, config=config), run.timeout_s)
    run.config = config
    _note_routing(run, config)
    return OK


def update_configuration(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    config = _settings(body)
    run.session.do(c.UpdateConfiguration(0, config=config), run.timeout_s)
    _note_routing(run, config)
    return OK


def _note_routing(run: Run, config: dict[str, Any]) -> None:
    """Who is to answer the peeks that are sent from now on."""
    run.routing = config.get("read_routing", run.routing)
    for session in run.sessions.values():
        session.routing = run.routing


def initialization_complete(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    return run.command(words, c.InitializationComplete(0))


def require(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    mode, workers = words.get("mode"), words.get("workers")
    if mode is not None and mode != run.mode:
        raise Skip(f"requires mode={mode}")
    if workers is not None and parse_u64(workers, "workers") != run.workers:
        raise Skip(f"requires workers={workers}")
    return OK


def connect(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    name, epoch = words.get("as") or run.on, words.get("epoch")
    run.connect(
        name,
        kind=words.get("kind") or "controller",
        nonce=words.get("nonce"),
        epoch=None if epoch is None else parse_u64(epoch, "epoch"),
    )
    run.on = name
    return OK


def disconnect(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    _named(run, run.on).close()
    del run.sessions[run.on]
    return OK


def on(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    name = words.one("conn")
    _named(run, name)
    run.on = name
    return OK


def _named(run: Run, name: str) -> Session:
    if name not in run.sessions:
        raise LocalProtocolError("bad-message", not_called("connection", name, run.sessions))
    return run.sessions[name]


def reconnect(run: Run, words: Words, body: Sequence[str]) -> list[str]:
    if run.on in run.sessions:
        run.sessions.pop(run.on).close()
    run.connect(run.on)
    run.session.do(c.CreateInstance(0, config=run.config), run.timeout_s)
    return OK


def _settings(body: Sequence[str]) -> dict[str, Any]:
    """`name type value` a line."""
    config: dict[str, Any] = {}
    for number, line in enumerate(body, 1):
        with placed(f"line {number}"):
            parts = split_line(line)
            if len(parts) != 3:
                raise LocalProtocolError("bad-message", f"expected `name type value`, not {line.strip()!r}")
            name, type_, text = parts
            if type_ not in _TYPES:
                raise LocalProtocolError("bad-message", f"type {type_}: {did_you_mean(type_, _TYPES)}")
            value = _setting(type_, text.strip('"'))
            if value is None:
                raise LocalProtocolError("bad-message", f"{text} is no {type_}")
            config[name] = value
    return config


def _setting(type_: str, text: str) -> Any:
    match type_:
        case "bool":
            return {"true": True, "false": False}.get(text)
        case "u64":
            return int(text) if text.isascii() and text.isdigit() else None
        case "f64":
            try:
                return float(text)
            except ValueError:
                return None
        case "duration":
            match = _DURATION.fullmatch(text)
            return float(match[1]) * _SECONDS[match[2]] if match else None
        case "string":
            return text
        case _:
            return None


# The settings of an instance, a line each.
_SETTING = "name type value, the type one of bool, u64, f64, duration, string"

DIRECTIVES: Mapping[str, Directive] = {
    "create-instance": Directive(
        create_instance, "", "Says create-instance: the first command of a session.", _SETTING
    ),
    "update-configuration": Directive(update_configuration, "", "Changes settings.", _SETTING),
    "initialization-complete": Directive(
        initialization_complete,
        "[no-sync]",
        "Ends the first phase of a session: what was said is what is wanted.",
    ),
    "require": Directive(
        require, "[mode=solo|two-runtime] [workers=]", "Skips the file where it is run otherwise."
    ),
    "connect": Directive(
        connect, "[as=] [kind=controller|reader] [nonce=] [epoch=]", "Opens a connection, and uses it."
    ),
    "disconnect": Directive(disconnect, "", "Closes the connection in use."),
    "reconnect": Directive(
        reconnect, "", "Closes the connection, opens it with the next epoch, and says create-instance again."
    ),
    "on": Directive(on, "conn=", "What follows uses this connection; the first is main."),
}
