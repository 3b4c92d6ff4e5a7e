"""Expelling with real daemons: a query goes on under the new key, the expelled is out, and who was down comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay.identity import JoinToken
from peerd.client.running_query import RunningQuery
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from peerd.errors import Exit
from tests.system.clients import client, peer, until
from tests.system.ports import PORTS
from tests.system.publishing import publish_for


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(5, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


def status(cluster: Cluster, number: int) -> dict[str, Any]:
    found: dict[str, Any] = cluster.client(number).get("/status")
    return found


async def read(query: RunningQuery, got: list[int]) -> None:
    async for row in query:
        got.append(row.n)  # noqa: PERF401 - Others look at it meanwhile.


async def test_a_query_goes_on_while_a_member_is_expelled_and_another_is_down(network: Cluster):
    victim_id, token = status(network, 5)["peer_id"], peer(network, "token", "-p", "1").stdout.strip()
    sent: dict[int, bool] = {}
    got: list[int] = []
    stop = asyncio.Event()
    async with client(network, 1) as one:
        await one.create_stream("numbers", "n int")
        async with one.query("SELECT n FROM numbers WHERE n >= 0") as query:
            reading = asyncio.ensure_future(read(query, got))
            row = lambda n: (n,)  # noqa: E731
            publishing = [
                asyncio.ensure_future(publish_for(network, number, "numbers", stop, sent, row)) for number in (1, 2)
            ]
            await until(lambda: len(got) > 50, "results come")
            attempt = (await one.show_query(query.query)).attempt
            network.kill(4)
            refusal = await asyncio.to_thread(peer, network, "expel", victim_id[:10], "-p", "5", code=Exit.MISUSE)
            assert "cannot expel itself" in refusal.stderr
            done = await asyncio.to_thread(peer, network, "expel", victim_id[:10], "-p", "1")
            assert "members have the new key" in done.stderr
            assert json.loads(done.stdout)["generation"] == 2
            await until(lambda: status(network, 5)["state"] == "expelled", "it knows that it is out")
            assert status(network, 1)["peer_id"] in status(network, 5)["trouble"]
            before = len(got)
            await until(lambda: len(got) > before + 50, "results go on")
            await asyncio.to_thread(network.restart, 4)
            await until(lambda: status(network, 4)["generation"] == 2, "who was down has the new key")
            stop.set()
            await asyncio.gather(*publishing)
            await until(lambda: len(got) >= len(sent), "every row has come")
            assert sorted(got) == sorted(sent)
            assert all(sent.values())
            shown = await one.show_query(query.query)
            assert (shown.attempt, shown.reason) == (attempt, ""), "no attempt ended"
            reading.cancel()

    def as_second_sees() -> dict[str, str]:
        return {row["peer_id"]: row["status"] for row in network.client(2).get("/members")}

    await until(lambda: sorted(as_second_sees().values()) == [*["alive"] * 4, "expelled"], "all others are there")
    assert as_second_sees()[victim_id] == "expelled"
    new = JoinToken.parse(peer(network, "token", "-p", "2").stdout.strip())
    assert new.network.generation == 2
    assert new.network.key != JoinToken.parse(token).network.key
    assert "void" in peer(network, "join", token, "-p", "2", code=Exit.MISUSE).stderr
    network.peers[4].daemon.stop()
    assert network.peers[4].daemon.ended()
    assert "this peer was expelled" in peer(network, "join", str(new), "-p", "5", code=Exit.FAILED).stderr
