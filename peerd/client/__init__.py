"""The Python client of a peer: make streams, publish rows, read what others publish.

    async with Client() as client:
        await client.create_stream("flights", "id int, flight string, delay float null")
        await client.publish("flights", [{"id": 1, "flight": "LH400", "delay": 12.5}, (2, "OS87", None)])
        async with client.subscribe("flights", since="start") as flights:
            async for row in flights:
                print(row.flight, row.delay)
        async with client.query("SELECT flight FROM flights WHERE delay > 30") as late:
            async for row in late:
                print(row.flight)

Any peer of the network will do. When publish() returns, the rows are as safe as the stream promises (in memory, on
disk, on two disks). A subscription brings each row once, in the order in which each peer published, whatever breaks in
between: the client comes back to its peer by itself. docs/examples/delays.py is a whole program.
"""

from __future__ import annotations

from peerd.client.client import PATIENCE_S, Client
from peerd.client.options import QueryEngine, QueryOptions
from peerd.client.publisher import Publisher
from peerd.client.running_query import RunningQuery
from peerd.client.session import ConnectionLost, PeerRefused
from peerd.client.subscription import ReceivedBatch, Subscription
from peerd.errors import PeerError
from peerd.rows import Row

__all__ = [
    "PATIENCE_S",
    "Client",
    "ConnectionLost",
    "PeerError",
    "PeerRefused",
    "Publisher",
    "QueryEngine",
    "QueryOptions",
    "ReceivedBatch",
    "Row",
    "RunningQuery",
    "Subscription",
]
