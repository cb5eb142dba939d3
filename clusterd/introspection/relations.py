"""The relations of introspection: their names, columns and what a row of each says. One table, `RELATIONS`.

The i-th, from 1, is the index `s<i>` of the observer (observer.py). A new one goes to the end: ids stay.

Every time of day is in milliseconds since 1970; NULL in a column of a frontier is the empty frontier, closed
for ever.

Does not: make rows (rows_*.py), keep them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clusterd.introspection import rows_dataflows, rows_frontiers, rows_memory, rows_metrics, rows_processes
from clusterd.introspection.relation import Relation, relation
from controller_proto.ids import GlobalId

__all__ = ["IDS", "RELATIONS"]

_WORKER = ("worker", "text", "the process that says so: `maintenance/0`, `interactive/1`, `solo/0`")
_DATAFLOW = ("dataflow", "bigint", "its number; each worker counts its own")
_OPERATOR = ("operator", "text", "its address within the dataflow: `3`; in the recursion `3` it is `3.2`")
_NAME = ("name", "text", "what kind of operator it is, and of what")
_ID = ("id", "text", "of the collection")
_LIFE = ("incarnation", "bigint", "which life of the id")
_BELOW = ("below_ns", "bigint?", "those counted are below it, and not below the half of it; NULL: longer")
_COUNT = ("count", "bigint", "how many")

RELATIONS: Final[tuple[Relation, ...]] = (
    relation(
        "dataflows", "A dataflow that a worker runs.", rows_dataflows.dataflows, key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW,
            ("name", "text", "as its creator called it"),
            ("state", "text", "`created`, `scheduled`, `hydrating`, `hydrated`, `stalled` or `errored`"),
            ("as_of", "uint8", "the time it begins at"),
            ("until", "uint8?", "the first time that it does not compute; NULL: it goes on"),
            ("upper", "uint8?", "it is computed up to here"),
            ("is_running", "boolean", "whether it is at work on a round"),
            ("working", "text?", "the operator whose turn it is in that round"),
            ("rounds", "bigint", "rounds that are over"),
            ("elapsed_ns", "bigint", "time that all its operators took"),
            ("created_ms", "bigint", "when it was built"),
        ),
    ),
    relation(
        "dataflow_operators", "An operator of a dataflow.", rows_dataflows.operators,
        key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW, _OPERATOR,
            ("parent", "text?", "the recursion that it is in; NULL: it is not in one"),
            ("address", "text", "dataflow and operator: `7/3.2`"),
            _NAME,
        ),
    ),
    relation(
        "dataflow_channels", "An edge of a dataflow's graph.", rows_dataflows.channels,
        key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW,
            ("source", "text", "the operator that rows come from; into a recursion, that itself"),
            ("target", "text", "the operator that they go to"),
            ("port", "bigint?", "which of its inputs that is, from 0; NULL: it reads an index in place"),
        ),
    ),
    relation(
        "exports", "What a dataflow makes.", rows_dataflows.exports, key=("id",),
        fields=(
            _WORKER, _DATAFLOW, _ID, _LIFE,
            ("kind", "text", "`index`, `materialized-view`, `subscribe` or `copy-to`"),
        ),
    ),
    relation(
        "frontiers", "How far a collection is, and from when on it can be read.", rows_frontiers.frontiers,
        key=("id",),
        fields=(
            _WORKER, _ID, _LIFE,
            ("kind", "text", "as of `exports`"),
            ("since", "uint8?", "it can be read from here on"),
            ("upper", "uint8?", "it is sealed up to here"),
            ("computed", "uint8?", "it is computed up to here; `upper` of a view waits for its writing"),
        ),
    ),
    relation(
        "import_frontiers", "An input of a dataflow, and whether the dataflow waits for it.",
        rows_frontiers.import_frontiers, key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW,
            ("id", "text", "of the index, or the name of the shard"),
            ("incarnation", "bigint", "which life of the index; 0 for a shard"),
            ("kind", "text", "`index` or `shard`"),
            ("upper", "uint8?", "the input can be read up to here"),
            ("dataflow_upper", "uint8?", "the dataflow is computed up to here"),
            ("holds_back", "boolean", "whether the next round cannot begin before this input goes on"),
        ),
    ),
    relation(
        "hydration", "How far a collection is on its way to its `as_of`.", rows_dataflows.hydration,
        key=("id",),
        fields=(
            _WORKER, _ID, _LIFE, _DATAFLOW,
            ("status", "text", "as the state of `dataflows`"),
            ("progress", "double?", "how much of its sources was read; 1: hydrated; NULL: not known"),
            ("rows_done", "bigint", "updates of its inputs that its first round has read"),
            ("rows_expected", "bigint?", "how many there are, about; NULL: not known"),
            ("created_ms", "bigint", "when it was built"),
            ("began_ms", "bigint?", "when its first round began"),
            ("hydrated_ms", "bigint?", "when that was over"),
            ("code", "text?", "what is in its way, as a code"),
            ("message", "text?", "and in words"),
        ),
    ),
    relation(
        "hydration_operators", "How far an operator is with the first round of its dataflow.",
        rows_dataflows.hydration_operators, key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW, _OPERATOR, _NAME,
            ("status", "text", "`waiting`, `hydrating` or `hydrated`"),
            ("rows_in", "bigint", "updates that came to it"),
            ("rows_out", "bigint", "updates that it gave"),
        ),
    ),
    relation(
        "arrangement_sizes",
        "Memory of an operator, or of the index it writes; what is shared is counted where it is made.",
        rows_memory.arrangement_sizes, key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW, _OPERATOR, _NAME,
            ("part", "text", "`state`: private; `oks`, `errs`: of an index in shared memory"),
            ("id", "text?", "of the index; NULL for private state"),
            ("records", "bigint", "rows of state, or updates of the index"),
            ("batches", "bigint?", "of the index; NULL for private state"),
            ("bytes", "bigint", "what that takes"),
        ),
    ),
    relation(
        "arrangement_sharing", "A process that has memory of an index mapped.",
        rows_memory.arrangement_sharing, key=("id",),
        fields=(
            _ID, _LIFE,
            ("reader", "text", "a worker, or another process: its command and pid"),
            ("pid", "bigint", "of the reader"),
            ("pinned_bytes", "bigint", "that it has mapped, live or superseded"),
            ("oldest_time", "uint8?", "of another process: the time of the view that it has held longest"),
            ("oldest_ms", "bigint?", "since when it holds that; of a worker, when it last read it"),
        ),
    ),
    relation(
        "operator_elapsed", "What an operator has done since it was built.", rows_dataflows.operator_elapsed,
        key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW, _OPERATOR, _NAME,
            ("elapsed_ns", "bigint", "its own time, without that of operators it feeds"),
            ("longest_ns", "bigint", "the longest piece of it, in which nobody else had a turn"),
            ("rows_in", "bigint", "updates that came to it"),
            ("rows_out", "bigint", "updates that it gave"),
            ("errs_in", "bigint", "errors in data that came to it"),
            ("errs_out", "bigint", "errors in data that it gave"),
            ("touched_rows", "bigint", "rows of state that it looked at"),
        ),
    ),
    relation(
        "step_durations_histogram", "How long a worker was at pieces of one kind of work.",
        rows_processes.step_durations, key=("worker",),
        fields=(
            _WORKER,
            ("step", "text", "`round`, `scan`, `merge`, `view`, `read` or `tell`"),
            _BELOW, _COUNT,
        ),
    ),
    relation(
        "peeks_active", "A peek that is owed an answer.", rows_processes.peeks_active, key=("uuid",),
        fields=(
            _WORKER,
            ("role", "text", "of the worker"),
            ("session", "bigint", "of the connection it came from"),
            ("uuid", "text", "as it was named"),
            ("id", "text", "what is read"),
            ("lane", "text", "`point` or `heavy`"),
            ("path", "text", "`key`, `scan` or `shard`"),
            ("state", "text", "`parked`, `queued`, `running` or `sending`"),
            ("time", "uint8?", "that it reads; NULL: the newest"),
            ("waits_for", "text?", "of a parked one: what has to happen"),
            ("upper", "uint8?", "up to where the collection is sealed"),
            ("rows_visited", "bigint", "rows looked at so far, about"),
            ("began_ms", "bigint", "when it came to the worker"),
        ),
    ),
    relation(
        "peek_durations_histogram", "How long peeks of one collection were in one phase.",
        rows_processes.peek_durations, key=("id",),
        fields=(
            _WORKER,
            ("id", "text", "what was read"),
            ("phase", "text", "`parked`, `queued`, `running`, `sending` or `total`"),
            _BELOW, _COUNT,
        ),
    ),
    relation(
        "errors", "Errors in data that stand in an index.", rows_frontiers.errors, key=("id",),
        fields=(
            _WORKER, _ID, _LIFE,
            ("count", "bigint", "how many there are"),
            ("sample", "text", "one of them"),
            ("first", "uint8", "the time from which on the first of them stands, rounded as the index is"),
            ("last", "uint8", "the time of the last change of them"),
        ),
    ),
    relation(
        "publications", "An index in shared memory.", rows_frontiers.publications, key=("id",),
        fields=(
            _WORKER, _ID, _LIFE,
            ("state", "text", "`fresh`: sealed up to nothing; `live`; `closed`: dropped, and still held"),
            ("since", "uint8?", "it can be read from here on"),
            ("upper", "uint8?", "it is sealed up to here"),
            ("allowed", "uint8?", "the controller has allowed compaction up to here"),
            ("writer_applied", "uint8?", "the worker that writes it has carried that out up to here"),
            ("readers_applied", "uint8?", "the least that an interactive worker has; NULL without any"),
            ("held_by", "text?", "who keeps `since` back: a peek, a dataflow, a worker; NULL: nobody"),
            ("batches", "bigint", "of both halves"),
            ("bytes", "bigint", "of both halves"),
            ("superseded", "bigint", "segments that were replaced and wait for their grace"),
            ("waiting_reads", "bigint", "peeks that wait for it, in all workers"),
            ("alias_of", "text?", "the id whose memory it shows"),
        ),
    ),
    relation(
        "staleness", "How far a collection is behind what it is made of.", rows_frontiers.staleness,
        key=("id",),
        fields=(
            _WORKER, _ID, _LIFE,
            ("upper", "uint8?", "it is computed up to here"),
            ("inputs_upper", "uint8?", "all its inputs can be read up to here"),
            ("lag", "uint8", "times between the two"),
            ("moved_ms", "bigint?", "when `upper` was last seen to move"),
            ("behind_ms", "bigint", "for how long it has been behind; 0: it is not"),
        ),
    ),
    relation(
        "processes", "A process of the daemon, as the system sees it, and how old its own figures are.",
        rows_processes.processes, key=("process",),
        fields=(
            ("process", "text", "its name, as `worker` elsewhere"),
            ("role", "text", "`solo`, `maintenance`, `interactive`, `introspection`, `mux` or `supervisor`"),
            ("pid", "bigint", "of the system"),
            ("cpu_seconds", "double", "processor time used"),
            ("rss_bytes", "bigint", "resident memory, shared memory included"),
            ("shared_bytes", "bigint", "of it what is shared with others"),
            ("minor_faults", "bigint", "pages that were there"),
            ("major_faults", "bigint", "pages that came from a disk"),
            ("threads", "bigint", "how many"),
            ("sampled_at_ms", "bigint?", "when it last said how it is; NULL: not yet"),
        ),
    ),
    relation(
        "config", "A setting in force.", rows_processes.config, key=("name",),
        fields=(
            ("name", "text", "as `clusterd config` lists it, or a knob of the start"),
            ("value", "text", "as JSON"),
            ("kind", "text", "`setting`: a controller's; `start`: fixed by whoever started the daemon"),
        ),
    ),
    relation(
        "plan_mapping", "A line of a dataflow's plan, and an operator that carries it out.",
        rows_dataflows.plan_mapping, key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW,
            ("line", "bigint", "its place in the plan, from 0"),
            ("depth", "bigint", "how far it is indented"),
            ("text", "text", "what it says"),
            ("operator", "text?", "one that carries it out; NULL: none does"),
        ),
    ),
    relation(
        "group_size_advice", "An operator that keeps groups in order, how large they are, and what to do.",
        rows_dataflows.group_sizes, key=("worker", "dataflow"),
        fields=(
            _WORKER, _DATAFLOW, _OPERATOR, _NAME,
            ("groups", "bigint", "how many"),
            ("records", "bigint", "rows that it keeps"),
            ("largest", "bigint", "rows in the largest"),
            ("skew", "double", "how many times the largest is what they are on average"),
            ("advice", "text?", "what to do; NULL: nothing"),
        ),
    ),
    relation(
        "metrics", "A series of metrics.", rows_metrics.metrics, key=("name",),
        fields=(
            ("name", "text", "of the series: of a histogram its `_bucket`, `_sum` or `_count`"),
            ("family", "text", "the metric it belongs to"),
            ("kind", "text", "of the metric: `counter`, `gauge` or `histogram`"),
            ("labels", "text", "as Prometheus writes them, without the braces"),
            ("value", "double", "in the unit of the name"),
        ),
    ),
)  # fmt: skip

IDS: Final[Mapping[str, GlobalId]] = {each.name: f"s{number}" for number, each in enumerate(RELATIONS, 1)}
