"""Rendering, the first of two steps: a dataflow's description to the plan of what would run.

In two steps, because a query is judged when it arrives but built only when its imports can be read (R7):
`plan_dataflow` is pure and refuses whatever can be refused, before any effect; `build_graph` (build.py) takes
imports and exports from an environment and decides nothing.

Does not: build, run, hold imports.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterd.render.lower import lower
from clusterd.render.physical import PhysicalPlan
from controller_proto.dataflow import DataflowBody, DataflowHeader, Export
from controller_proto.ids import GlobalId
from controller_proto.validate import validate

__all__ = ["plan_dataflow"]


def plan_dataflow(
    header: DataflowHeader, body: DataflowBody, indexes: Mapping[GlobalId, Export]
) -> PhysicalPlan:
    """What would run. indexes: the exports, by id, of the indexes that may be imported.

    Raises Refusal `unknown-id` or `invalid-plan`, naming the node, the column or the types that do not fit,
    or what this version does not render.
    """
    validate(header, body, indexes)
    return lower(header, body, indexes)
