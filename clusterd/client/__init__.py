"""The user's client: shards, indexes, peeks, and reads of shared memory, in a few lines of Python.

    with Client.connect(replica) as client:
        client.create_shard("fruit", {"name": "text", "kilos": "bigint"})
        fruit = client.create_index("fruit", key=["name"])
        client.write("fruit", [("apple", 3), ("pear", 5)])
        fruit.peek(keys=["pear"]).dicts()         # through the daemon
        fruit.attach().lookup("pear")["kilos"]    # from shared memory, with no hop

It is a controller on top of the wire client: it numbers what it creates, imports what a plan mentions, asks
after each creation whether it was accepted, and remembers the frontiers it is told. A refusal is raised, as
the `Refusal` that the replica gave. Data goes straight to the shards; the replica follows them by itself.

A client that lost its connection says all that stands again with `reconnect`, and what can go on does.

Does not: run threads, reconnect by itself. Two controllers fence each other; who only reads connects with
`reader=True`.
"""

from clusterd.client.answer import Answer, PeekCanceled, PeekFailed, schema_of
from clusterd.client.copies import CopyFailed
from clusterd.client.feed import Batch, SubscriptionEnded
from clusterd.client.index import Index
from clusterd.client.modes import TooStale
from clusterd.client.peeks import Bounded
from clusterd.client.place import instance_at
from clusterd.client.session import Client
from clusterd.client.sql_result import SqlFailed
from clusterd.client.subscription import Subscription
from clusterd.client.view import View

__all__ = [
    "Answer", "Batch", "Bounded", "Client", "CopyFailed", "Index", "PeekCanceled", "PeekFailed",
    "SqlFailed", "Subscription", "SubscriptionEnded", "TooStale", "View", "instance_at", "schema_of",
]  # fmt: skip
