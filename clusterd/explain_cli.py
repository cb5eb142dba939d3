"""`clusterd explain` and `clusterd introspection`: read the flags, ask the replica, print.

Does not: lay out a plan (introspection/analyzed.py does).
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import click

from clusterd.client import Client
from clusterd.client.answer import PeekFailed
from clusterd.introspection.analyzed import NEEDED, analyzed, plan_text
from clusterd.introspection.relations import IDS, RELATIONS
from controller_proto.errors import Disconnected, LocalProtocolError, Refusal
from controller_proto.suggest import not_called

__all__ = ["explain", "introspection"]

_HELP = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_HELP)
@click.argument("id")
@click.option("--analyze", is_flag=True, help="With rows, time, memory and hydration of each line.")
@click.option(
    "--connect", "address", default="unix:clusterd.sock", show_default=True, metavar="ADDRESS",
    help="The replica: unix:PATH or tcp:HOST:PORT.",
)  # fmt: skip
def explain(id: str, analyze: bool, address: str) -> None:
    """Print the plan of the dataflow that makes ID.

    Times are of an operator alone, since it was built; `longest` is its longest piece of work, in which
    nobody else had a turn. Memory in shared memory stands with the operator that writes it. A recursion has
    the time of all that is in it.

    \b
    Examples:
      clusterd explain u1
      clusterd explain --analyze u1 --connect unix:/tmp/clusterd.sock

    \b
    Exit status:
      0  done      1  there is no such collection, or no replica      2  wrong usage
    """
    try:
        with Client.connect(address, reader=True) as client:
            said = _said(client, id)
    except (PeekFailed, Refusal, LocalProtocolError, Disconnected, TimeoutError, ValueError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{address}: {error.strerror or error}")
    for line in analyzed(said) if analyze else plan_text(said):
        click.echo(line)


def _said(client: Client, id: str) -> dict[str, list[dict[str, Any]]]:
    """What the relations say of the dataflow that makes `id`, all at one time."""
    made = client.relation("exports").peek(keys=[id])
    exports = made.dicts()
    if not exports:
        _fail(f"no dataflow makes {id}; `clusterd sql 'FROM exports'` lists what is made")
    latest = max(exports, key=lambda row: row["incarnation"])
    name = latest["worker"], latest["dataflow"]
    said: dict[str, list[dict[str, Any]]] = {}
    for relation in NEEDED:
        keys = [id] if relation == "hydration" else [name]
        said[relation] = client.relation(relation).peek(keys=keys, at=made.time).dicts()
    if not said["dataflows"]:
        _fail(f"{id} was dropped")
    said["hydration"] = [row for row in said["hydration"] if (row["worker"], row["dataflow"]) == name]
    return said


@click.command(context_settings=_HELP)
@click.argument("relation", required=False)
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
def introspection(relation: str | None, as_json: bool) -> None:
    """List the relations that say what a replica does.

    With RELATION, its columns. Read them with `clusterd sql`, or from a program:
    `client.relation("hydration").peek()`.

    \b
    Examples:
      clusterd introspection
      clusterd introspection peeks_active
      clusterd sql 'SELECT id, status, progress FROM hydration'
    """
    if relation is not None and relation not in IDS:
        raise click.BadParameter(not_called("relation", relation, IDS), param_hint="RELATION")
    chosen = [each for each in RELATIONS if relation in (None, each.name)]
    if as_json:
        for each in chosen:
            columns = [
                {"name": field.name, "type": field.type, "meaning": field.meaning} for field in each.fields
            ]
            key = [each.fields[at].name for at in each.key]
            told = {"name": each.name, "id": IDS[each.name], "meaning": each.meaning, "key": key}
            click.echo(json.dumps({**told, "columns": columns}))
        return
    if relation is None:
        _table([(each.name, IDS[each.name], each.meaning) for each in chosen])
        return
    click.echo(f"{relation} ({IDS[relation]}): {chosen[0].meaning}\n")
    _table([(field.name, field.type, field.meaning) for field in chosen[0].fields])


def _table(rows: list[tuple[str, str, str]]) -> None:
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    for row in rows:
        click.echo(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}")


def _fail(message: str) -> NoReturn:
    click.echo(f"clusterd: {message}", err=True)
    sys.exit(1)
