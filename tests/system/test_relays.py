"""A host reads a stream from a near one that has it already, and nobody misses that one when it is killed.

Five peers of the network that `peer up --topology transit-stub` draws: those that publish are 58 ms and more away from
the readers, two of which are 2 ms apart.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from peerd.client import Client
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.seeds import draw_seed
from tests.system.clients import client, until
from tests.system.ports import PORTS
from tests.system.publishing import PATIENCE_S, publish_for

pytestmark = [pytest.mark.system, pytest.mark.slow]

PUBLISHERS, RELAY, READERS = (1, 2), 3, (4, 5)
PARTS = 3  # Queries at each reader.
SCOUTED_S = 8.0


@pytest.fixture
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("spread")))
    cluster.start(5, first_port=next(PORTS), settings={"spark": "off"}, topology="transit-stub")
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def wordy(number: int) -> tuple[int, str]:
    return number, "some words that nobody asks for"


async def sources(one: Client) -> list[str]:
    """From whom a peer reads the stream, but for its publishers."""
    return [peer.hex() for each in await one.shared_streams() if each.stream == "far" for peer, _ in each.relays]


async def test_readers_are_exact_though_their_relay_and_a_publisher_are_killed(spread: Cluster):
    seed = draw_seed()
    rng = random.Random(seed)
    stop, sent = asyncio.Event(), dict[int, bool]()
    got = {(number, part): Counter[int]() for number in (RELAY, *READERS) for part in range(PARTS)}
    async with client(spread, 1) as one:
        await one.create_stream("far", "n int, words string")
    publishing = [asyncio.create_task(publish_for(spread, n, "far", stop, sent, wordy)) for n in PUBLISHERS]
    await until(lambda: len(sent) > 50, "both publish")
    reading: list[asyncio.Task[None]] = []
    clients = {number: client(spread, number, patience_s=PATIENCE_S) for number in (RELAY, *READERS)}
    async with clients[RELAY] as relay, clients[4] as four, clients[5] as five:
        opened = {RELAY: relay, 4: four, 5: five}

        async def begin(number: int) -> None:
            for part in range(PARTS):
                await opened[number].submit(
                    f"SELECT n FROM far WHERE n % {PARTS} = {part}", name=f"far-{number}-{part}"
                )
                reading.append(asyncio.create_task(_read(opened[number], number, part, got[number, part])))

        async def is_relayed() -> bool:
            return bool(await sources(four))

        await begin(RELAY)
        await _until(lambda: _has_depth(relay), "the relay knows its depth")
        await _scout(four)
        for number in READERS:
            await begin(number)
        await four.stop_query("scout")
        before = dict(sent)
        await _until(is_relayed, "the near reader reads from the relay")
        for victim in (RELAY, PUBLISHERS[1]):
            await asyncio.sleep(rng.uniform(0, 0.5))
            spread.kill(victim)
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            least = {each: sum(rows.values()) + 10 for each, rows in got.items() if each[0] != victim}
            await until(
                lambda least=least: all(sum(got[each].values()) >= most for each, most in least.items()),
                f"results come while peer {victim} is down",
                PATIENCE_S,
            )
            await asyncio.to_thread(spread.restart, victim)
        stop.set()
        await asyncio.gather(*publishing)
        due = {n for n, is_acked in sent.items() if is_acked and n not in before}
        await until(
            lambda: all({n for n in due if n % PARTS == part} <= rows.keys() for (_, part), rows in got.items()),
            "all",
            PATIENCE_S,
        )
        print(f"seed={seed}: {len(due)} due to {len(got)} queries, {sum(map(len, got.values()))} came")
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    for (_, part), rows in got.items():
        assert not [n for n, times in rows.items() if times > 1]
        assert not [n for n in rows if n % PARTS != part or n not in sent]


async def _has_depth(one: Client) -> bool:
    return any(each.stream == "far" and each.depth for each in await one.shared_streams())


async def _scout(one: Client) -> None:
    """Read the stream at a peer again and again until that is from a relay.

    A reading that begins before the relay is listed, or before distances are known, stays with the publishers.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await one.submit("SELECT n FROM far WHERE n < 0", name="scout")
            with suppress(TimeoutError):
                async with asyncio.timeout(SCOUTED_S):
                    while not await sources(one):
                        await asyncio.sleep(0.2)
                    return
            await one.stop_query("scout")
            while any(each.stream == "far" for each in await one.shared_streams()):
                await asyncio.sleep(0.2)


async def _read(one: Client, number: int, part: int, got: Counter[int]) -> None:
    async with one.attach(f"far-{number}-{part}", name=f"reader-{number}-{part}") as results:
        async for row in results:
            got[row.n] += 1


async def _until(is_so: object, what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # type: ignore[operator]
            await asyncio.sleep(0.2)
    print(what)
