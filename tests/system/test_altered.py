"""Streams that get and lose columns over real daemons, while three peers publish and queries run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from peerd.client import Client, PeerRefused, RunningQuery, Subscription
from peerd.cluster import Cluster
from peerd.errors import Exit
from tests.system.clients import DEADLINE_S, client, peer
from tests.system.publishing import nothing_left


async def taken(rows: RunningQuery | Subscription, count: int) -> list[Any]:
    several = aiter(rows)
    async with asyncio.timeout(DEADLINE_S):
        return [await anext(several) for _ in range(count)]


async def dropped(one: Client, stream: str, column: str) -> None:
    """Drop a column once nobody is listed as its reader any more."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await one.alter_stream(stream, drop=column)
            except PeerRefused as error:
                if error.error != f'column "{column}" of stream "{stream}" is read':
                    raise
                await asyncio.sleep(0.1)
            else:
                return


async def test_a_stream_is_altered_while_three_peers_publish_and_queries_run(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two, client(network, 3) as three:
        publishers = (one, two, three)
        await one.create_stream("flights", "num int, gate string", durability="replicated")
        async with three.query("SELECT * FROM flights") as running, two.subscribe("flights", since="start") as raw:
            for place, each in enumerate(publishers):
                await each.publish("flights", [(place, "A1")])
            await two.alter_stream("flights", add="delay float null")
            assert str(await two.schema("flights")) == "num int, gate string, delay float null"
            for place, each in enumerate(publishers):  # Who knows the old columns goes on with them,
                await each.publish("flights", [{"num": 10 + place, "gate": "B2"}])
            for place, each in enumerate(publishers):  # and who names the new one is not refused.
                await each.publish("flights", [{"num": 20 + place, "gate": "C3", "delay": place / 2}])
            rows = await taken(running, 9)
            assert {row._fields for row in rows} == {("num", "gate")}, "a running query keeps its columns"
            numbers = sorted(place + tens for place in range(3) for tens in (0, 10, 20))
            assert sorted(row.num for row in rows) == sorted(row.num for row in await taken(raw, 9)) == numbers
            async with one.query("SELECT num, delay FROM flights", since="start") as later:
                found = {row.num: row.delay for row in await taken(later, 9)}
                assert found == {n: (n - 20) / 2 if n >= 20 else None for n in numbers}
            with pytest.raises(PeerRefused) as refused:
                await one.alter_stream("flights", drop="gate")
            assert f'query "{running.query}"' in (refused.value.detail or "")
        await dropped(one, "flights", "gate")
        await one.alter_stream("flights", add="gate int null")
        await three.publish("flights", [{"num": 30, "gate": 7}])
        async with two.query("SELECT * FROM flights WHERE num IN (0, 20, 30)", since="start") as last:
            assert sorted(map(tuple, await taken(last, 3))) == [(0, None, None), (20, 0.0, None), (30, None, 7)]
            assert str(last.schema) == "num int, delay float null, gate int null"
        await nothing_left(two, "flights")
        await one.drop_stream("flights")


def test_the_commands_alter_a_stream_and_show_it(network: Cluster):
    peer(network, "stream", "create", "moves", "flight int, gate string, at timestamp", "--event-time", "at")
    peer(network, "publish", "moves", '{"flight": 1, "gate": "A1", "at": "2026-01-31T12:00:00Z"}')
    said = peer(network, "stream", "alter", "moves", "ADD COLUMN delay float NULL").stderr
    assert said == 'stream "moves" altered: its columns have version 2\n'
    peer(network, "stream", "alter", "ALTER STREAM moves DROP COLUMN gate")
    shown = peer(network, "stream", "show", "moves").stdout
    assert "flight int, at timestamp, delay float null" in shown
    assert json.loads(peer(network, "stream", "show", "moves", "-o", "json").stdout)["version"] == 3
    peer(network, "publish", "moves", '{"flight": 2, "at": "2026-01-31T12:01:00Z", "delay": 1.5}')
    rows = peer(network, "subscribe", "moves", "--since", "start", "-n", "2", "-o", "jsonl").stdout.splitlines()
    assert [(row["flight"], row["delay"], "gate" in row) for row in map(json.loads, rows)] == [
        (1, None, False),
        (2, 1.5, False),
    ]
    wrong = peer(network, "stream", "alter", "moves", "ADD COLUMN crew flot NULL", code=2).stderr
    assert wrong == (
        'error: line 1, column 17: "flot" is not a type\n  ADD COLUMN crew flot NULL\n                  ^^^^\n'
        'hint: did you mean "float"?\n'
    )
    assert "its event time" in peer(network, "stream", "alter", "moves", "DROP COLUMN at", code=Exit.MISUSE).stderr
    assert (
        "ALTER STREAM does not create"
        in peer(network, "stream", "create", "ALTER STREAM moves DROP COLUMN flight", code=2).stderr
    )
    peer(network, "stream", "rm", "moves")
