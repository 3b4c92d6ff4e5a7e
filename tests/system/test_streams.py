"""Streams over real daemons: what one peer takes arrives at another, once, whoever is killed in between."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from peerd.admission import store_token, stored_token
from peerd.client import ConnectionLost, PeerError, PeerRefused
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from peerd.errors import Exit
from protocols.catalogue.streams import Durability
from tests.seeds import draw_seed
from tests.soaking import many
from tests.system.clients import DEADLINE_S, client, peer, until
from tests.system.ports import PORTS


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three peers for the tests that leave them alive."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("network")))
    cluster.start(3, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Cluster]:
    """Five peers for the tests that kill some."""
    cluster = Cluster(DataDir(tmp_path))
    cluster.start(5, first_port=next(PORTS))
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


# The client.


@pytest.mark.parametrize("durability", ["memory", "disk", "replicated"])
async def test_tuples_published_at_one_peer_arrive_at_the_others_in_order(network: Cluster, durability: Durability):
    name = f"order-{durability}"
    async with client(network, 1) as one, client(network, 2) as two, client(network, 3) as three:
        done = await one.create_stream(name, "n int, word string null", durability=durability)
        assert done.replicas >= 2
        readers = [each.subscribe(name) for each in (two, three)]
        for reader in readers:
            await reader.open()
        for first in range(0, 1000, 100):
            await one.publish(name, [(n, None) for n in range(first, first + 100)])
        await two.publish(name, [{"n": -1, "word": "two"}])
        for reader in readers:
            rows = aiter(reader)
            async with asyncio.timeout(DEADLINE_S):
                got = [await anext(rows) for _ in range(1001)]
            assert [row.n for row in got if row.n >= 0] == list(range(1000))
            assert [row.word for row in got if row.n < 0] == ["two"]
            reader.close()


async def test_the_past_can_be_read_from_the_start_or_from_a_time(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("past", "n int")
        await one.publish("past", [(1,), (2,)])
        between = await one.publish("past", [(3,)])
        await one.publish("past", [(4,)])
        assert await _take(two.subscribe("past", since="start"), 4) == [1, 2, 3, 4]
        assert await _take(two.subscribe("past", since=between.stamp), 2) == [3, 4]


async def test_a_named_subscription_goes_on_where_it_was_left(network: Cluster):
    async with client(network, 1) as one:
        await one.create_stream("named", "n int")
        async with client(network, 2) as two, two.subscribe("named", name="reader"):
            await one.publish("named", [(n,) for n in range(10)])
        async with client(network, 2) as two:
            assert await _take(two.subscribe("named", name="reader"), 3) == [0, 1, 2]
        await one.publish("named", [(10,)])
        async with client(network, 2) as two:
            assert await _take(two.subscribe("named", name="reader"), 8) == list(range(3, 11))
            await two.unsubscribe("reader")


async def test_a_row_that_its_reader_cannot_bear_is_tried_three_times_and_put_aside(network: Cluster):
    tried: Counter[int] = Counter()
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("poisoned", "n int")
        subscription = two.subscribe("poisoned", name="careful")
        await subscription.open()
        await one.publish("poisoned", [(n,) for n in range(10)])
        processed = []
        async with subscription, asyncio.timeout(DEADLINE_S):
            async for row in subscription:
                tried[row.n] += 1
                if row.n == 4:
                    subscription.refuse("I do not like fours")
                else:
                    processed.append(row.n)
                if row.n == 9:
                    break
        assert processed == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert tried == Counter({**dict.fromkeys(range(10), 1), 4: 3})
        assert subscription.dead_lettered == 1
        shown = peer(network, "stream", "dead", "poisoned", "--name", "careful", "-p", "2")
        (letter,) = [json.loads(line) for line in shown.stdout.splitlines()]
        assert (letter["subscription"], letter["sequence"], letter["row"]) == ("careful", 4, {"n": 4})
        assert letter["reason"] == "I do not like fours"
        assert "1 dead letter at this peer" in shown.stderr


async def test_a_publisher_sends_rows_one_by_one_and_batches_them(network: Cluster):
    async with client(network, 1) as one, client(network, 3) as three:
        await one.create_stream("singles", "n int, text string")
        reader = three.subscribe("singles")
        await reader.open()
        async with one.publisher("singles") as publisher:
            for n in range(2500):
                await publisher.send((n, "x" * 1000))
        assert publisher.accepted == 2500
        assert await _take(reader, 2500) == list(range(2500))


@pytest.mark.slow
async def test_many_tiny_batches_and_a_few_huge_ones_are_read_from_the_past(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("sizes", "n int, text string")
        await asyncio.gather(*(one.publish("sizes", [(n, "")]) for n in range(16_000)))
        for n in range(16_000, 16_006):
            await one.publish("sizes", [(n, "x" * (200_000 if n % 2 else 1_048_500))])
        assert await _take(two.subscribe("sizes", since="start"), 16_006) == list(range(16_006))


async def test_a_bad_row_is_refused_with_its_place_and_nothing_of_it_is_published(network: Cluster):
    async with client(network, 1) as one:
        await one.create_stream("strict", "id int, delay float null")
        with pytest.raises(PeerError, match=r'row 1, field "delay": expected float or null, got string "late"'):
            await one.publish("strict", [(1, None), (2, "late")])
        with pytest.raises(PeerError, match='row 0, field "id"'):
            await one.publish("strict", [{"delay": 1.5}])
        reader = one.subscribe("strict", since="start")
        await one.publish("strict", [(3, 1.5)])
        assert await _take(reader, 1) == [3]


async def test_an_unknown_stream_is_refused_with_the_nearest_name(network: Cluster):
    async with client(network, 1) as one, client(network, 3) as three:
        await one.create_stream("departures", "id int")
        with pytest.raises(PeerRefused, match='"departure"') as caught:
            await three.publish("departure", [(1,)])
        assert caught.value.exit_code == Exit.NOT_FOUND
        assert '"departures"' in str(caught.value)


def test_the_example_of_the_documentation_runs(network: Cluster):
    example = Path(__file__).parents[2] / "docs" / "examples" / "delays.py"
    environ = {**os.environ, "PEER_DATA_DIR": str(network.base.path)}
    for _ in range(2):  # The second time the stream is there, with the flights of the first.
        done = subprocess.run(
            [sys.executable, str(example)], env=environ, capture_output=True, text=True, timeout=300, check=True
        )
        assert done.stdout.splitlines()[:2] == ["BA702 is 45 minutes late", "AF1 is 31 minutes late"]


async def _take(subscription: Any, count: int) -> list[int]:
    async with subscription, asyncio.timeout(DEADLINE_S):
        rows = aiter(subscription)
        return [(await anext(rows))[0] for _ in range(count)]


# The commands.


def test_streams_are_created_listed_shown_and_removed(network: Cluster):
    peer(network, "stream", "create", "made", "id int, at timestamp", "--durability", "replicated", "--retention", "1h")
    rows = [json.loads(line) for line in peer(network, "stream", "ls", "-p", "2").stdout.splitlines()]
    made = next(row for row in rows if row["name"] == "made")
    assert (made["schema"], made["durability"], made["retention_s"]) == ("id int, at timestamp", "replicated", 3600)
    peer(network, "publish", "made", '[1, "2026-01-02T03:04:05Z"]', "-p", "3")
    shown = json.loads(peer(network, "stream", "show", "made").stdout)
    assert len(shown["publishers"]) == 1
    again = peer(network, "stream", "create", "made", "id int", code=1)
    assert '"made"' in again.stderr
    peer(network, "stream", "rm", "made", "-p", "2")
    assert '"made"' in peer(network, "stream", "show", "made", code=4).stderr


def test_a_stream_is_created_by_a_statement(network: Cluster):
    text = "CREATE STREAM stated-1 (id int, at timestamp) WITH (event_time = at, retention = 1h, durability = memory)"
    peer(network, "stream", "create", text)
    shown = json.loads(peer(network, "stream", "show", "stated-1", "-o", "json").stdout)
    said = (shown["schema"], shown["event_time"], shown["retention_s"], shown["durability"])
    assert said == ("id int, at timestamp", "at", 3600, "memory")


def test_json_csv_and_stdin_are_published_and_read_back(network: Cluster, tmp_path: Path):
    peer(network, "stream", "create", "mixed", "id int, name string, price decimal null")
    table = tmp_path / "table.csv"
    table.write_text('id,name,price\n2,"two, with ""quotes""\nand a line break",2.50\n3,three,\n')
    peer(network, "publish", "mixed", '{"id": 1, "name": "one", "price": "1.10"}')
    assert "published 2 tuples" in peer(network, "publish", "mixed", "-f", str(table), "-p", "1").stderr
    peer(network, "publish", "mixed", "-", typed='[4, "four", null]\n\n{"id": 5, "name": "five"}\n')
    read = peer(network, "subscribe", "mixed", "--since", "start", "-n", "5", "-p", "2")
    assert [json.loads(line) for line in read.stdout.splitlines()] == [
        {"id": 1, "name": "one", "price": "1.10"},
        {"id": 2, "name": 'two, with "quotes"\nand a line break', "price": "2.50"},
        {"id": 3, "name": "three", "price": None},
        {"id": 4, "name": "four", "price": None},
        {"id": 5, "name": "five", "price": None},
    ]
    last = peer(network, "subscribe", "mixed", "--last", "2", "-n", "2", "-p", "1", "-o", "csv")
    assert last.stdout == "id,name,price\n4,four,\n5,five,\n"
    enough = peer(network, "subscribe", "mixed", "--last", "4", "-n", "2", "-p", "1", "-o", "csv")
    assert enough.stderr == "", "nobody waits for the batch after that"


def test_a_publisher_says_that_it_has_finished(network: Cluster):
    peer(network, "stream", "create", "CREATE STREAM ended (id int, at timestamp) WITH (event_time = at, idle = 30 s)")
    row = '{"id": 1, "at": "2026-05-01T12:00:00Z"}'
    done = peer(network, "publish", "ended", row, "--done")
    assert 'no more tuples of stream "ended" come from this peer' in done.stderr
    before = peer(network, "publish", "ended", "--done-before", "2026-05-01T13:00:00Z", "-p", "2")
    assert "before 2026-05-01T13:00:00+00:00 come from this peer" in before.stderr
    assert json.loads(peer(network, "stream", "show", "ended", "-o", "json").stdout)["idle_s"] == 30
    peer(network, "stream", "create", "endless", "id int")
    assert "event time" in peer(network, "publish", "endless", "--done", code=2).stderr


def test_count_repeats_the_input_and_rate_slows_it_down(network: Cluster):
    peer(network, "stream", "create", "slow", "id int")
    started_at = time.monotonic()
    done = peer(network, "publish", "slow", "[7]", "--count", "40", "--rate", "100")
    assert "published 40 tuples" in done.stderr
    assert time.monotonic() - started_at >= 0.39
    peer(network, "publish", "slow", "[8]", "--no-ack")
    read = peer(network, "subscribe", "slow", "--since", "start", "-n", "41", "-o", "json")
    assert [row["id"] for row in json.loads(read.stdout)] == [7] * 40 + [8]


def test_a_bad_line_stops_with_its_number_or_is_skipped(network: Cluster):
    peer(network, "stream", "create", "lines", "id int, delay float null")
    lines = '{"id": 1}\n{"id": 2}\n{"id": oops}\n{"id": 4, "delay": "late"}\n{"id": 5}\n'
    stopped = peer(network, "publish", "lines", "-", typed=lines, code=2)
    assert "error: line 3 of stdin: not valid JSON" in stopped.stderr
    assert "2 tuples before that are published. Nothing from that line on is." in stopped.stderr
    skipped = peer(network, "publish", "lines", "-", "--skip-bad", typed=lines)
    assert "skipped line 3 of stdin: not valid JSON" in skipped.stderr
    assert 'skipped line 4 of stdin: field "delay": expected float or null, got string "late"' in skipped.stderr
    assert "published 3 tuples; skipped 2 bad lines" in skipped.stderr
    read = peer(network, "subscribe", "lines", "--since", "start", "-n", "5")
    assert [json.loads(line)["id"] for line in read.stdout.splitlines()] == [1, 2, 1, 2, 5]


def test_text_that_is_not_utf_8_is_refused_with_its_place_and_a_byte_order_mark_is_not(
    network: Cluster, tmp_path: Path
):
    peer(network, "stream", "create", "texts", "id int, word string")
    good, bad = tmp_path / "good.csv", tmp_path / "bad.jsonl"
    good.write_bytes(b"\xef\xbb\xbfid,word\n1,caf\xc3\xa9\n")
    assert "published 1 tuple" in peer(network, "publish", "texts", "-f", str(good)).stderr
    bad.write_bytes(b'\xef\xbb\xbf{"id": 2, "word": "a"}\n{"id": 3, "word": "caf\xe9"}\n{"id": 4, "word": "b"}\n')
    refused = peer(network, "publish", "texts", "-f", str(bad), code=2).stderr
    assert f"line 2 of {bad}: byte 23 (0xe9) is not valid UTF-8" in refused
    assert "1 tuple before that is published" in refused
    assert "skipped 1 bad line" in peer(network, "publish", "texts", "-f", str(bad), "--skip-bad").stderr
    bad.write_bytes(b"id,word\n5,x\n6,\xff\n7,y\n")
    assert (
        "skipped 1 bad line"
        in peer(network, "publish", "texts", "-f", str(bad), "--format", "csv", "--skip-bad").stderr
    )
    read = peer(network, "subscribe", "texts", "--since", "start", "-n", "6", "-o", "jsonl").stdout
    words = {json.loads(line)["word"] for line in read.splitlines()}
    assert words == {"café", "a", "b", "x", "y"}


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["publish", "nowhere", "[1]"], 4, '"nowhere"'),
        (["subscribe", "nowhere"], 4, '"nowhere"'),
        (["publish", "nowhere"], 2, "nothing to publish"),
        (["publish", "nowhere", "[1]", "-f", "x"], 2, "not both"),
        (["subscribe", "nowhere", "--since", "teatime"], 2, '"teatime" is not a time'),
        (["stream", "create", "odd", "id integer"], 2, "integer"),
        (["unsubscribe", "nobody"], 4, '"nobody"'),
    ],
)
def test_misuse_is_told_what_to_do(network: Cluster, arguments: list[str], code: int, expected: str):
    told = peer(network, *arguments, code=code).stderr
    assert told.startswith("error: ")
    assert expected in told


def test_a_detached_subscription_waits_for_its_reader(network: Cluster):
    peer(network, "stream", "create", "later", "id int")
    assert peer(network, "subscribe", "later", "--name", "tomorrow", "--detach", "-p", "2").stdout == "tomorrow\n"
    peer(network, "publish", "later", "[[1], [2], [3]]", "-p", "3")
    first = peer(network, "subscribe", "later", "--name", "tomorrow", "-n", "2", "-p", "2")
    second = peer(network, "subscribe", "later", "--name", "tomorrow", "-n", "1", "-p", "2")
    assert [json.loads(line)["id"] for line in (first.stdout + second.stdout).splitlines()] == [1, 2, 3]
    peer(network, "unsubscribe", "tomorrow", "-p", "2")


# Crashes.

CRASH_S = 180.0  # Patience with what a crash delays.
KILL_S = float(os.environ.get("PEER_KILL_TEST_S", many(30, 120)))
READERS = (4, 5)
LOSER = 2  # Loses its disk once, so nothing that is promised to survive on its disk alone is published there.
INGRESS: dict[Durability, tuple[int, int]] = {"disk": (1, 3), "replicated": (LOSER, 3)}
PUBLISHER_NUMBERS = 10_000_000  # The publisher at peer p numbers its tuples from p times this.


@dataclass(slots=True)
class Ledger:
    """What the publishers of one stream were promised, and what each reader got, how often, in order of arrival."""

    acked: dict[int, None] = field(default_factory=dict)
    uncertain: dict[int, None] = field(default_factory=dict)  # Published once or not at all; nobody was told.
    arrived: dict[int, Counter[int]] = field(default_factory=lambda: {reader: Counter() for reader in READERS})

    def lost(self, reader: int) -> list[int]:
        return [number for number in self.acked if number not in self.arrived[reader]]

    def duplicate(self, reader: int) -> list[int]:
        return [number for number, times in self.arrived[reader].items() if times > 1]

    def false(self, reader: int) -> list[int]:
        return [number for number in self.arrived[reader] if number not in self.acked and number not in self.uncertain]

    def complete(self) -> bool:
        return all(len(got) >= len(self.acked) and not self.lost(reader) for reader, got in self.arrived.items())

    def disordered(self, reader: int, publisher: int) -> bool:
        mine = [number for number in self.arrived[reader] if number // PUBLISHER_NUMBERS == publisher]
        return mine != sorted(mine)


async def publish_until(cluster: Cluster, stream: str, number: int, stop: asyncio.Event, ledger: Ledger) -> None:
    """Publish small batches one after the other, the last in peace; a number is used once, acknowledged or not."""
    numbers = itertools.count(number * PUBLISHER_NUMBERS)
    async with client(cluster, number, patience_s=CRASH_S) as publisher:
        last = False
        while not last:
            last = stop.is_set()
            batch = dict.fromkeys(itertools.islice(numbers, 20))
            try:
                await publisher.publish(stream, [(n,) for n in batch])
            except PeerError as error:
                if isinstance(error, ConnectionLost) or error.exit_code == Exit.TIMEOUT:
                    ledger.uncertain |= batch
            else:
                ledger.acked |= batch
            await asyncio.sleep(0.01)


async def read_all(cluster: Cluster, stream: str, number: int, opened: asyncio.Event, ledger: Ledger) -> None:
    async with client(cluster, number, patience_s=CRASH_S) as reader, reader.subscribe(stream) as subscription:
        opened.set()
        async for batch in subscription.batches():
            ledger.arrived[number].update(row.n for row in batch.rows)


async def disturb(cluster: Cluster, rng: random.Random, for_s: float) -> int:
    """Kill a peer every few seconds and start it again; half-way, one loses its disk too. Returns how many died."""
    started_at, kills, disk_lost = time.monotonic(), 0, False
    while (elapsed_s := time.monotonic() - started_at) < for_s or not disk_lost:
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        if elapsed_s >= for_s / 2 and not disk_lost:
            victim, disk_lost = LOSER, True
            lose_disk(cluster, victim)
        else:
            victim = rng.randint(1, 5)
            cluster.kill(victim)
        kills += 1
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        await asyncio.to_thread(cluster.restart, victim)
    return kills


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_or_repeated_when_peers_are_killed(fragile: Cluster):
    """Two publishers and two readers of each kind of stream, while peers are killed; then peace, and all that is due.

    PEER_KILL_TEST_S says for how long, PEER_SEED who is killed when.
    """
    seed = draw_seed()
    print(f"PEER_KILL_TEST_S={KILL_S:g}")
    ledgers = {durability: Ledger() for durability in INGRESS}
    async with client(fragile, 1) as one:
        for durability in INGRESS:
            await one.create_stream(durability, "n int", durability=durability)
    stop = asyncio.Event()
    reading, opened = [], []
    for stream, ledger in ledgers.items():
        for number in READERS:
            opened.append(asyncio.Event())
            reading.append(asyncio.create_task(read_all(fragile, stream, number, opened[-1], ledger)))
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(event.wait() for event in opened))
    publishing = [
        asyncio.create_task(publish_until(fragile, stream, number, stop, ledger))
        for stream, ledger in ledgers.items()
        for number in INGRESS[stream]
    ]
    try:
        kills = await disturb(fragile, random.Random(seed), KILL_S)
        stop.set()
        await asyncio.gather(*publishing)
        await until(
            lambda: all(ledger.complete() for ledger in ledgers.values()) or any(task.done() for task in reading),
            "everything acknowledged has arrived",
            CRASH_S,
        )
        print(f"{kills} kills, one disk lost")
    finally:
        for task in publishing + reading:
            task.cancel()
        ends = await asyncio.gather(*reading, return_exceptions=True)
        for stream, ledger in ledgers.items():
            for reader in READERS:
                print(
                    f"{stream} at {reader}: acked {len(ledger.acked)}, lost {len(ledger.lost(reader))},"
                    f" duplicate {len(ledger.duplicate(reader))}, false {len(ledger.false(reader))};"
                    f" uncertain {len(ledger.uncertain)}"
                )
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    for stream, ledger in ledgers.items():
        assert {n // PUBLISHER_NUMBERS for n in ledger.acked} == set(INGRESS[stream])
        for reader in READERS:
            assert not ledger.lost(reader), f"reader {reader} of {stream} lacks {ledger.lost(reader)[:10]}"
            assert not ledger.duplicate(reader), (
                f"reader {reader} of {stream} got twice {ledger.duplicate(reader)[:10]}"
            )
            assert not ledger.false(reader), f"reader {reader} of {stream} got false {ledger.false(reader)[:10]}"
            for publisher in INGRESS[stream]:
                # What replaces a lost peer is another peer, and order is kept within what one peer took.
                assert publisher == LOSER or not ledger.disordered(reader, publisher), (stream, reader, publisher)


def lose_disk(cluster: Cluster, number: int) -> None:
    """Kill a peer and take its disk; what replaces it knows the network and nothing else."""
    data = cluster.peers[number - 1].data
    token, settings = stored_token(data), data.config_file.read_text()
    assert token is not None
    cluster.kill(number)
    shutil.rmtree(data.path)
    data.prepare()
    store_token(data, token)
    data.config_file.write_text(settings)
