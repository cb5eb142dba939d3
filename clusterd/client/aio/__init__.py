"""The user's client for asyncio: the same calls as `clusterd.client`, awaited, over the same core.

    async with Client.connect(replica) as client:
        await client.create_shard("fruit", {"name": "text", "kilos": "bigint"})
        fruit = await client.create_index("fruit", key=["name"])
        await client.write("fruit", [("apple", 3), ("pear", 5)])
        (await fruit.peek(keys=["pear"])).dicts()
        async with client.subscribe(fruit) as changes:
            async for batch in changes:
                ...

Any number of tasks may use one client at once: each waits for its own answer. A wait ends by its `timeout_s`,
by `asyncio.timeout` around it, or with its task; a peek that nobody waits for any more is canceled. Nothing
polls. Who does not take the batches of a subscription is bounded: with nobody waiting for anything the
client stops reading, and beyond a limit the subscription ends (`limit`).

Does not: run threads, but for one of each client that touches its shards' files; reconnect by itself; decode
large answers beside the loop: an answer of a million rows holds it up for about as long as it takes to read.
"""

from clusterd.client.aio.index import Index
from clusterd.client.aio.session import Client
from clusterd.client.aio.subscription import Subscription
from clusterd.client.aio.view import View

__all__ = ["Client", "Index", "Subscription", "View"]
