"""Publishes a few flights and watches for delays: a whole program with the Python client.

Start a network first (`peer up --peers 5 --detach`), then run this file. It talks to the peer of the default data
directory; PEER_DATA_DIR names another one.
"""

import asyncio

from peerd.client import Client, PeerRefused

SCHEMA = "id int, flight string, delay_min float null"


async def publish(client: Client) -> None:
    """Rows may be tuples in the order of the schema, or dictionaries. Each publish() is acknowledged as a whole."""
    await client.publish("flights", [(1, "LH400", 12.5), (2, "OS87", None)])
    await client.publish("flights", [{"id": 3, "flight": "BA702", "delay_min": 45.0}])
    async with client.publisher("flights") as flights:  # For rows that come one by one: they travel in batches.
        for number in range(4, 100):
            await flights.send((number, f"KL{number}", None))
        await flights.send((100, "AF1", 31.0))


async def watch(client: Client) -> None:
    """Read from the start until the last flight has come. Under a name the network would remember how far we are."""
    async with client.subscribe("flights", since="start") as flights:
        async for row in flights:
            if row.delay_min is not None and row.delay_min > 30:
                print(f"{row.flight} is {row.delay_min:.0f} minutes late")
            if row.id == 100:
                break


async def main() -> None:
    async with Client() as client:
        try:
            await client.create_stream("flights", SCHEMA)
        except PeerRefused as refused:
            if refused.code != "exists":  # From the last time this was run.
                raise
        await asyncio.gather(watch(client), publish(client))


if __name__ == "__main__":
    asyncio.run(main())
