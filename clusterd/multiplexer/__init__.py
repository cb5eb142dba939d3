"""The multiplexer: one protocol endpoint over several workers. Events in, effects out; no I/O, no clock.

Splitting a replica in two loses one invariant: that a read and the compaction of what it reads are seen in
the controller's order by whoever executes them. What restores it: all commands pass here in one order; a new
read is judged here, against the compactions before it (R5); AllowCompaction of whatever can have an
arrangement goes, unmodified, to all who may read it, and each reports what it has applied (R6). Nothing is
queued, capped or delayed here.

`machine.py` takes the events. Its parts, over one `State`, are `iterations.py` (how sessions begin and end),
`peeks.py`, `dataflows.py` (commands about them), and `reports.py` (what workers say of collections).

Does not: decode a dataflow's body or any row, touch a descriptor, know how far a worker is.
"""

from clusterd.multiplexer.machine import Multiplexer, MuxStatistics

__all__ = ["Multiplexer", "MuxStatistics"]
