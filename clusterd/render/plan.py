"""Rendering: a dataflow's description to a graph that runs.

In two steps, because a query is judged when it arrives but built only when its imports can be read (R7):
`plan_dataflow` is pure and refuses whatever can be refused, before any effect; `build_graph` (build.py) takes
imports and exports from an environment and decides nothing. `render` is both at once.

Does not: run, hold imports, publish.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterd.dataflow.exchange import ExchangeFactory, identity_exchange
from clusterd.dataflow.graph import Clock, Graph
from clusterd.render.build import Environment, build_graph
from clusterd.render.lower import lower
from clusterd.render.physical import PhysicalPlan
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export
from controller_proto.ids import GlobalId
from controller_proto.validate import validate

__all__ = ["plan_dataflow", "render"]


def plan_dataflow(
    header: DataflowHeader, body: DataflowBody, indexes: Mapping[GlobalId, Export]
) -> PhysicalPlan:
    """What would run. indexes: the exports, by id, of the indexes that may be imported.

    Raises Refusal `unknown-id` or `invalid-plan`, naming the node, the column or the types that do not fit,
    or what this version does not render.
    """
    validate(header, body, indexes)
    return lower(header, body, indexes)


def render(
    header: DataflowHeader,
    body: DataflowBody,
    indexes: Mapping[GlobalId, Export],
    environment: Environment,
    *,
    clock: Clock,
    exchange: ExchangeFactory = identity_exchange,
) -> Graph:
    """Plan and build. Raises as `plan_dataflow`, before any effect, and what the environment raises."""
    plan = plan_dataflow(header, body, indexes)
    return build_graph(plan, environment, clock=clock, exchange=exchange)
