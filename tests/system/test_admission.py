"""Daemons with little room: what they refuse, what they say of it, and that their links keep what was configured."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator

import pytest

from peerd.client import Client, PeerRefused
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from peerd.errors import Exit
from tests.system.clients import client, peer, until
from tests.system.ports import PORTS

LIMITED = {1: {"cpu_share": "0.0001"}, 2: {"uplink": "1mbit"}, 3: {"host_nothing": "true"}}
ROWS = 2000
WORDS = "some words that make a row long enough to count " * 4


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A peer with hardly any CPU, one with a thin uplink, one that hosts nothing, and one without limits."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("crowded")))
    cluster.start(4, first_port=next(PORTS), settings={"spark": "off"}, settings_of=LIMITED)
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


async def test_a_peer_without_cpu_refuses_a_query_and_says_what_it_lacks(network: Cluster):
    async with client(network, 1) as one:
        await one.create_stream("busy", "n int")
        await one.publish("busy", [(n,) for n in range(10)])
    refused = peer(network, "subscribe", "SELECT n FROM busy", "--name", "starved", "-p", "1", code=Exit.FAILED)
    assert 'error: query "starved" refused: every plan would overload something\n' in refused.stderr
    assert "CPU has " in refused.stderr
    assert " of 0.01 % left, it needs " in refused.stderr
    assert "hint: A narrower selection, or another peer to subscribe at, needs less." in refused.stderr
    async with client(network, 4) as four:
        await four.submit("SELECT n FROM busy", name="fed")  # It reads the stream whole: its publisher has no CPU.
        shown = await four.show_query("fed")
        assert len({each.host for each in shown.subgraphs}) == 1
        await four.stop_query("fed")


async def test_a_thin_uplink_refuses_what_it_cannot_carry_and_carries_no_more_than_it_may(network: Cluster):
    async with client(network, 2) as two, client(network, 4) as four:
        await two.create_stream("wide", "n int, words string")
        publishing = asyncio.create_task(_publish(two))
        refusal: list[PeerRefused] = []
        for number in range(100):  # Until it is known how fast the stream is.
            try:
                await four.submit("SELECT n, words FROM wide WHERE n >= 0 WITH (sharing = off)", name=f"wide-{number}")
            except PeerRefused as error:
                refusal.append(error)
                break
            await four.stop_query(f"wide-{number}")
        publishing.cancel()
        assert refusal[0].code == "full"
        assert "uplink has " in str(refusal[0].detail)
        assert " of 1,000 kbit/s left, it needs " in str(refusal[0].detail)
        began_at, read = time.monotonic(), 0
        async with four.subscribe("wide", since="start") as subscription:
            async for batch in subscription.batches():
                read += len(batch.rows)
                if read >= ROWS:
                    break
        took_s = time.monotonic() - began_at
        # 50 ms may be used at once, and the last batch is paid for afterwards; three quarters leave room for both.
        assert took_s > 0.75 * ROWS * len(WORDS) / 125_000


async def _publish(client: Client) -> None:
    """Four times as much as the uplink may carry."""
    for first in itertools.count(0, 250):
        await client.publish("wide", [(n, WORDS) for n in range(first, first + 250)])
        await asyncio.sleep(0.1)


async def test_a_peer_that_hosts_nothing_publishes_asks_and_narrows_its_own_streams(network: Cluster):
    async with client(network, 3) as three, client(network, 4) as four:
        await three.create_stream("own", "n int, more string")
        await three.publish("own", [(n, "x") for n in range(5)])
        await four.submit("SELECT n FROM own WHERE n > 2 WITH (sharing = off)", name="narrowed")
        hosts = {each.host for each in (await four.show_query("narrowed")).subgraphs}
        assert len(hosts) == 2, "the stream is narrowed where it is published"
        await three.submit("SELECT count(*) AS all_of_them FROM own [RANGE 1 SECOND]", name="counting")
        await four.stop_query("narrowed")
        await three.stop_query("counting")


async def test_people_see_what_there_is_room_for(network: Cluster):
    def status(number: int) -> dict[str, object]:
        return json.loads(peer(network, "status", "-p", str(number), "-o", "json").stdout)["capacity"]  # type: ignore[no-any-return]

    assert "hosts     nothing for other peers" in peer(network, "status", "-p", "3", "-o", "table").stdout
    assert (status(1)["cpu"]["limit"], status(2)["uplink"]["limit"]) == (0.0001, 125_000.0)  # type: ignore[index]
    assert status(4)["hosts_others"] is True

    def why() -> bool:
        return "hosts nothing for others" in peer(network, "explain", "--why", "SELECT n FROM own", "-p", "4").stdout

    await until(why, "the others know who hosts nothing")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--cpu-share", "0"),
        ("--uplink", "abc"),
    ],
)
def test_a_capacity_of_nothing_or_nonsense_is_a_clear_error(network: Cluster, flag: str, value: str):
    refused = peer(network, "up", "-p", "9", f"{flag}={value}", code=Exit.MISUSE)
    assert refused.stderr.startswith(f"error: {flag}: it must be ")
    assert f'not "{value}"' in refused.stderr
