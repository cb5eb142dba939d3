"""docs/introspection.md, made of the relations: `python -m clusterd.introspection.document` writes it.

Does not: say anything of a relation that relations.py does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from clusterd.introspection.relations import IDS, RELATIONS

__all__ = ["document"]

_HEAD = """# Introspection

Made by `make docs` from `clusterd/introspection/`: change it there.

What a replica does, how far it is, what waits for what, and who uses which memory are relations like any
other: indexes with system ids, which a process of the replica's own, the observer, has. So they answer at
once, whatever the others are at; `served_by` is `introspection`.

    clusterd sql 'SELECT id, status, progress FROM hydration'
    clusterd introspection hydration

A client has them as `client.relation("hydration")`, to peek and to subscribe to; a script by id, `s7`; and
`clusterd explain --analyze u1` prints a plan with what each line of it has cost.

## What to know

- **Time** of these relations is milliseconds since 1970. All are sealed together, so a join of them is of one
  moment. Read them at the newest time; history is 10 s.
- **Age.** Each process writes down what it does at most ten times a second, between two pieces of work, also
  within a round of many seconds; whoever has read within 10 s, or subscribes, sees that within a tenth of a
  second. `processes.sampled_at_ms` says how old what a process says of itself is. Who reads shared memory
  without asking sees figures that are up to a second older.
- **Frontiers** are in the times of the collection; NULL is the empty one: nothing can come any more.
- **Rows that go.** A dataflow, collection or peek that is gone has no rows. Counts of metrics never fall:
  what was counted of collections that are gone stays counted, in `peek_durations_histogram` under no `id`.
- **Time inside a recursion** is that of the recursion's own operator; `rows_in`, `rows_out` and state are
  told of each operator within it.
- **Cost.** A process gives a hundredth of its time at most to saying how it is; an idle replica does nothing.
  Counting costs a read by key 1 us.

## Questions

Which input holds a frontier back, and which holds that one back:

    WITH RECURSIVE edges AS (
      SELECT e.id, i.id AS input, i.upper, i.holds_back
      FROM exports e JOIN import_frontiers i USING (worker, dataflow)),
    back AS (
      SELECT * FROM edges WHERE id = 'u4' AND holds_back
      UNION ALL
      SELECT e.* FROM back b JOIN edges e ON e.id = b.input WHERE e.holds_back)
    SELECT id, input, upper FROM back

Who pins the memory of an index that was dropped:

    SELECT id, reader, pinned_bytes FROM arrangement_sharing
    WHERE id NOT IN (SELECT id FROM frontiers WHERE since IS NOT NULL)

Which operators use the memory, and whose they are:

    SELECT d.name AS dataflow, a.operator, a.name, a.records, a.bytes
    FROM arrangement_sizes a JOIN dataflows d USING (worker, dataflow) ORDER BY a.bytes DESC LIMIT 10

Why an index is not compacted: `held_by` in `publications`. What a peek waits for: `waits_for` in
`peeks_active`.

## Advice on sizes of groups

There are no hints to give here: a top-k, a minimum or a maximum keeps the rows of a group in one ordered
tree, and a change costs the depth of that, whatever was expected; `expected_group_size` is taken and changes
nothing. What can be too large is a group itself. `group_size_advice` has a row for each such operator: how
many groups there are, how large the largest is, and, if that is 10 times the average and a thousand rows,
what to do.
"""


def document() -> str:
    """The text of docs/introspection.md."""
    lines = [_HEAD, "## Relations\n"]
    lines.append("`?` behind a type: NULL may stand there. The key is what reads look up by.\n")
    for relation in RELATIONS:
        key = ", ".join(relation.fields[at].name for at in relation.key)
        lines += [f"### {relation.name}\n", f"{relation.meaning} `{IDS[relation.name]}`, key `({key})`.\n"]
        lines += ["| column | type | |", "|---|---|---|"]
        lines += [f"| {field.name} | {field.type} | {field.meaning} |" for field in relation.fields]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/introspection.md").write_text(document())
