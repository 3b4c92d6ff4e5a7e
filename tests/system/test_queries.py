"""Continuous queries over real daemons: each result once, whoever is killed on the way, and nothing left at the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from peerd.client import PeerRefused
from peerd.cluster import Cluster
from tests.seeds import draw_seed
from tests.system.clients import DEADLINE_S, client, peer, until
from tests.system.publishing import PATIENCE_S, nothing_left, publish_for

FIRST_RESULT_S = 0.1
FLIGHTS = "id int, flight string, delay float null"


# The client.


async def test_results_of_a_query_arrive_while_the_block_lasts_and_nothing_is_left_after_it(network: Cluster):
    async with client(network, 1) as one, client(network, 3) as three:
        await one.create_stream("flights", FLIGHTS)
        await one.publish("flights", [(0, "before", 90.0)])
        async with three.query("SELECT flight, delay / 60 AS hours FROM flights WHERE delay >= 60") as late:
            assert str(late.schema) == "flight string, hours float null"
            await one.publish("flights", [(n, f"F{n}", float(n)) for n in range(200)])
            await three.publish("flights", [(1000, "own", 120.0), (1001, "null", None)])
            rows = aiter(late)
            async with asyncio.timeout(DEADLINE_S):
                got = [await anext(rows) for _ in range(141)]
            assert [row.flight for row in got if row.flight != "own"] == [f"F{n}" for n in range(60, 200)]
            assert [row.hours for row in got if row.flight == "own"] == [2.0]
            assert [each.state for each in await three.queries()] == ["running"]
        await nothing_left(three, "flights")


async def test_the_first_result_of_a_stateless_query_comes_at_once(network: Cluster):
    """It does not wait for Spark, which may take seconds to start: subscribe, publish, and read the result."""
    took_ms = []
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("quick", "n int, word string")
        await one.publish("quick", [(0, "")])
        while len(took_ms) < 7 or (min(took_ms) > 1000 * FIRST_RESULT_S and len(took_ms) < 50):
            n = len(took_ms) + 1
            started_at = time.perf_counter()
            async with two.query("SELECT n FROM quick WHERE n > 0") as results:
                await one.publish("quick", [(n, "word")])
                assert (await anext(aiter(results))).n == n
                took_ms.append((time.perf_counter() - started_at) * 1000)
    print(f"first result after subscribe: {', '.join(f'{each:.0f}' for each in took_ms)} ms, goal {FIRST_RESULT_S} s")
    assert min(took_ms) <= 10 * FIRST_RESULT_S * 1000  # Others use this machine, too; Spark would take seconds.


async def test_a_query_that_begins_in_the_past_goes_on_without_a_gap_or_a_repeat(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two, client(network, 3) as three:
        for stream in ("orders", "customers"):
            await one.create_stream(stream, "id int, name string")
        number = 0
        for _ in range(3):
            for each in (one, two):
                await each.publish("orders", [(number + n, "order") for n in range(20)])
                number += 20
        last = await two.publish("customers", [(n, "customer") for n in range(0, 240, 3)])
        texts = {
            "SELECT id FROM orders WHERE id % 2 = 0": set(range(0, 240, 2)),
            "SELECT o.id FROM orders o, customers c WHERE o.id = c.id": set(range(0, 240, 3)),
        }
        for text, due in texts.items():
            got: list[int] = []
            async with three.query(text, since="start") as results:
                if number < 240:
                    await asyncio.gather(
                        *(
                            each.publish("orders", [(n, "order") for n in range(first, 240, 2)])
                            for each, first in ((one, 120), (two, 121))
                        )
                    )
                    number = 240
                async with asyncio.timeout(DEADLINE_S):
                    async for row in results:
                        got.append(row.id)
                        if len(got) >= len(due):
                            break
            assert sorted(got) == sorted(due)
        async with three.query("SELECT id FROM customers", since=last.stamp + 1) as results:
            await one.publish("customers", [(1000, "new")])
            async with asyncio.timeout(DEADLINE_S):
                assert (await anext(aiter(results))).id == 1000


async def test_a_detached_query_goes_on_and_is_read_later(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("kept", "n int")
        accepted = await two.submit("SELECT n FROM kept WHERE n % ? = 0", [2], name="even")
        assert accepted.query == "even"
        await one.publish("kept", [(n,) for n in range(10)])
        for place, expected in ((None, [0, 2, 4]), ("mine", [0, 2, 4]), ("mine", [6, 8])):
            async with two.attach("even", name=place) as results:
                rows = aiter(results)
                async with asyncio.timeout(DEADLINE_S):
                    assert [(await anext(rows)).n for _ in expected] == expected
        await two.unsubscribe("mine")
        with pytest.raises(PeerRefused, match="exists already"):
            await two.submit("SELECT n FROM kept", name="even")
        await two.stop_query("even")
        with pytest.raises(PeerRefused, match="is not known"):
            await two.show_query("even")
        await nothing_left(two, "kept")


async def test_a_reader_is_told_that_its_query_was_stopped(network: Cluster):
    async with client(network, 1) as one, client(network, 1) as other:
        await one.create_stream("ended", "n int")
        async with other.query("SELECT n FROM ended", name="ending") as results:
            await one.publish("ended", [(1,)])
            rows = aiter(results)
            assert (await anext(rows)).n == 1
            await one.stop_query("ending")
            with pytest.raises(PeerRefused, match='query "ending" was stopped'):
                async with asyncio.timeout(DEADLINE_S):
                    await anext(rows)
        await nothing_left(one, "ended")


def test_windows_of_time_need_no_spark(network: Cluster):
    """Late rows and groups, and results that another peer reads."""
    assert network.client(1).get("/status")["spark"] == {"state": "none"}
    peer(network, "stream", "create", "sums", "n int, k string, at timestamp", "--event-time", "at", "--lateness", "2s")
    text = "SELECT k, count(*) AS times, sum(n) AS total FROM sums [RANGE 4 SECONDS SLIDE 2 SECONDS] GROUP BY k"
    peer(network, "subscribe", text, "--name", "totals", "--detach")
    shown = json.loads(peer(network, "query", "show", "totals", "-o", "json").stdout)
    assert {each["engine"] for each in shown["subgraphs"]} == {"inline"}
    seconds = (1, 3, 2, 5, 0, 9)  # Seconds 0 and 2 come late; no window that they are in is closed by then.
    rows = [{"n": n, "k": "ab"[n % 2], "at": f"2026-05-01T12:00:0{n}Z"} for n in seconds]
    peer(network, "publish", "sums", "-", "-p", "2", typed="\n".join(map(json.dumps, rows)))
    told = peer(network, "query", "attach", "totals", "-n", "6", "-o", "jsonl").stdout.splitlines()
    assert sorted(tuple(json.loads(each).values()) for each in told) == [
        ("a", 1, 0), ("a", 1, 2), ("a", 2, 2), ("b", 1, 1), ("b", 2, 4), ("b", 2, 8)
    ]  # fmt: skip
    peer(network, "query", "stop", "totals")


async def test_a_query_with_state_is_refused_where_nobody_runs_spark(network: Cluster):
    async with client(network, 1) as one:
        await one.create_stream("counted", "n int")
        with pytest.raises(PeerRefused, match="no peer here has it"):
            await one.submit("SELECT count(*) AS c FROM counted [ROWS 10]")
        await nothing_left(one, "counted")


# The commands.


async def test_the_commands_run_look_at_read_and_stop_a_query(network: Cluster):
    peer(network, "stream", "create", "arrivals", FLIGHTS)
    text = "SELECT flight FROM arrivals WHERE delay > 30"
    assert peer(network, "subscribe", text, "--name", "late", "--detach", "-p", "2").stdout == "late\n"
    peer(network, "publish", "arrivals", '{"id": 1, "flight": "LH400", "delay": 35.5}', "-p", "3")
    peer(network, "publish", "arrivals", '{"id": 2, "flight": "LH401", "delay": 5}', "-p", "3")
    attached = peer(network, "query", "attach", "late", "-n", "1", "-p", "2")
    assert json.loads(attached.stdout) == {"flight": "LH400"}
    (listed,) = map(json.loads, peer(network, "query", "ls", "-p", "2").stdout.splitlines())
    assert (listed["query"], listed["state"], listed["results"], listed["text"]) == ("late", "running", 1, text)
    assert peer(network, "query", "ls", "-p", "1").stdout == ""
    shown = json.loads(peer(network, "query", "show", "late", "-p", "2").stdout)
    assert {each["engine"] for each in shown["subgraphs"]} == {"inline"}
    assert shown["last_failure"] is None
    assert "Project < Select < Source" in peer(network, "query", "show", "late", "-p", "2", "-o", "table").stdout
    assert "results wait for nothing" in peer(network, "query", "show", "late", "-p", "2", "-o", "table").stdout
    derived = [json.loads(line) for line in peer(network, "stream", "ls", "--derived").stdout.splitlines()]
    made = [each for each in derived if each["query"] == shown["stream"]]
    assert [(each["host"], each["schema"]) for each in made] == [
        (each["host"], "flight string") for each in shown["subgraphs"] if each["number"]
    ]
    explained = peer(network, "explain", text, "-p", "2").stdout
    assert explained.splitlines()[:2] == ["class    select: one stream, nothing to remember", "columns  flight string"]
    (source,) = [line for line in explained.splitlines() if "Source arrivals" in line]
    assert re.search(r"peer [0-9a-f]{8} +inline +[\d.]+ rows/s +[\d.]+ bytes +[\d.]+ bytes/s", source)
    running = json.loads(peer(network, "explain", "late", "-p", "2", "--format", "json").stdout)
    assert (running["class"], running["subgraphs"][-1]["read_by"]) == ("select", None)
    assert [each["host"] for each in running["subgraphs"]] == [each["host"] for each in reversed(shown["subgraphs"])]
    assert 'query "later" is not known' in peer(network, "explain", "later", "-p", "2", code=4).stderr
    peer(network, "query", "stop", "late", "-p", "2")
    assert 'query "late" is not known' in peer(network, "query", "stop", "late", "-p", "2", code=4).stderr
    assert "late." not in peer(network, "stream", "ls").stdout


async def test_every_peer_lists_shows_reads_and_stops_a_query_of_another(network: Cluster):
    text = "SELECT flight FROM gates WHERE delay > 30"
    async with client(network, 1) as one, client(network, 2) as two, client(network, 3) as three:
        await one.create_stream("gates", FLIGHTS)
        for each, name in ((two, "busy"), (three, "busy"), (two, "alone")):
            await each.submit(text, name=name)
        await three.publish("gates", [(1, "LH400", 35.5)])
        async with asyncio.timeout(DEADLINE_S):
            while len(listed := await one.queries(everywhere=True)) < 3 or {each.state for each in listed} != {
                "running"
            }:
                await asyncio.sleep(0.1)  # It is listed half a second after its acknowledgement.
            async with one.attach("alone") as results:
                assert (await anext(aiter(results))).flight == "LH400"
        assert [(each.query, each.text) for each in listed] == [("busy", text), ("busy", text), ("alone", text)]
        proxies = [each.proxy.hex() for each in listed if each.proxy is not None]
        assert (proxies[0], proxies[0] != proxies[1]) == (proxies[2], True)
        table = peer(network, "query", "ls", "--all", "-p", "1", "-o", "table").stdout.splitlines()
        assert table[0].split() == ["query", "proxy", "state", "results", "submitted", "text"]
        assert table[3].split()[:3] == ["alone", proxies[2][:8], "running"]
        shown = {
            tuple(line.split()) for line in peer(network, "query", "show", "alone", "-o", "table").stdout.splitlines()
        }
        assert {("proxy", proxies[2][:8]), ("durability", "disk"), ("results", "1")} < shown
        said = peer(network, "query", "stop", "busy", "-p", "1", code=2).stderr
        assert 'error: 2 peers have a query "busy"' in said
        assert f"busy@{proxies[0][:8]}" in said
        refused = peer(network, "stream", "rm", "gates", "-p", "1", code=1).stderr
        assert 'error: stream "gates" is still read' in refused
        assert f'query "alone" of peer {proxies[2][:8]}' in refused
        named = [f"busy@{proxy[:8]}" for proxy in proxies[:2]]
        peer(network, "query", "stop", *named, "alone", "-p", "1")
        assert await three.queries(everywhere=True) == []
        await one.drop_stream("gates")


async def test_a_stream_that_somebody_keeps_a_place_in_is_removed_only_by_force(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("read", "n int")
        async with two.subscribe("read", name="dashboard"), two.subscribe("read"):
            pass
        with pytest.raises(PeerRefused, match="is still read") as refused:
            await one.drop_stream("read")
        assert re.fullmatch(r'By subscription "dashboard" at peer [0-9a-f]{8}\.', refused.value.detail or "")
        await two.unsubscribe("dashboard")
        await one.drop_stream("read")
        await one.create_stream("read", "n int")
        await two.submit("SELECT n FROM read", name="loses")
        async with asyncio.timeout(DEADLINE_S):
            while "loses" not in {each.query for each in await one.queries(everywhere=True)}:
                await asyncio.sleep(0.1)
        with pytest.raises(PeerRefused, match="is still read"):
            await one.drop_stream("read")
        await one.drop_stream("read", force=True)
        async with asyncio.timeout(DEADLINE_S):
            while "unknown stream" not in (shown := await one.show_query("loses")).reason:
                await asyncio.sleep(0.1)
        assert shown.state == "waiting"
        await one.stop_query("loses")


def test_a_bad_query_is_shown_with_its_place(network: Cluster, tmp_path: Path):
    peer(network, "stream", "create", "typed", FLIGHTS)
    said = peer(network, "subscribe", "SELECT flght FROM typed", code=2).stderr
    assert 'error: line 1, column 8: unknown column "flght"\n  SELECT flght FROM typed\n         ^^^^^\n' in said
    assert 'hint: did you mean "flight"?' in said
    bad = tmp_path / "bad.sql"
    bad.write_text("SELECT flight\nFROM typed\nWHERE delay = 'x'")
    assert "line 3, column" in peer(network, "subscribe", "-f", str(bad), code=2).stderr
    assert "line 1, column" in peer(network, "subscribe", "-", typed="SELECT\n", code=2).stderr
    assert 'stream "untyped" is not known' in peer(network, "subscribe", "untyped", code=4).stderr
    assert "goes with a stream" in peer(network, "subscribe", "SELECT 1", "--last", "3", code=2).stderr
    parameters = ("--parameter", "N", "--parameter", "2")
    said = peer(network, "subscribe", "SELECT flight FROM typed WHERE flight = ?", *parameters, code=2).stderr
    assert "the query has 1 question marks and 2 parameters" in said
    assert "name a stream, or write a query" in peer(network, "subscribe", code=2).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_ends_with_the_command_that_began_it_and_its_document_is_closed(
    network: Cluster, number: signal.Signals
):
    stream = f"photons-{number.name.lower()}"
    peer(network, "stream", "create", stream, "en decimal, ra decimal")
    text = (
        f'<hits>{{ for $p in stream("{stream}")/photons/photon where $p/en > 1.3 return <hit>{{$p/en}}</hit> }}</hits>'
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "peerd.cli", "subscribe", text, "-p", "1"],
        env={**os.environ, "PEER_DATA_DIR": str(network.base.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "<hits>\n"
    peer(
        network,
        "publish",
        stream,
        "-",
        "-p",
        "2",
        typed='{"en": 1.5, "ra": 1}\n{"en": 0.5, "ra": 1}\n{"en": 2, "ra": 1}\n',
    )
    assert [running.stdout.readline() for _ in range(2)] == ["<hit><en>1.5</en></hit>\n", "<hit><en>2</en></hit>\n"]
    running.send_signal(number)
    rest, said = running.communicate(timeout=DEADLINE_S)
    assert rest == "</hits>\n"
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert peer(network, "query", "ls", "-p", "1").stdout == ""
    assert peer(network, "stream", "ls").stdout.count('"xml string"') == 0


# Faults.


def wordy(number: int) -> tuple[int, str]:
    return number, "some words that nobody asks for"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["host", "proxy"])
async def test_a_query_is_exact_whoever_is_killed(fragile: Cluster, victim: str):
    """Two publishers, a selection at the one that publishes most, a reader at a third; one of them dies, twice."""
    seed = draw_seed()
    rng = random.Random(seed)
    stop, sent, got = asyncio.Event(), dict[int, bool](), Counter[int]()
    hosts: dict[str, int] = {fragile.client(n).get("/status")["peer_id"]: n for n in range(1, 6)}
    async with client(fragile, 1) as one, client(fragile, 5, patience_s=PATIENCE_S) as five:
        numbers = f"numbers_{victim}"
        await one.create_stream(numbers, "n int, words string")
        publishing = [asyncio.create_task(publish_for(fragile, n, numbers, stop, sent, wordy)) for n in (2, 3)]
        await until(lambda: len(sent) > 100, "both publish")
        async with five.query(f"SELECT n FROM {numbers} WHERE n % 3 = 0", name="thirds") as thirds:
            before = dict(sent)

            async def read() -> None:
                async for row in thirds:
                    got[row.n] += 1

            reading = asyncio.create_task(read())
            for _ in range(2):
                await until(lambda: sum(got.values()) > 50, "results come")
                shown = await five.show_query("thirds")
                remote = [hosts[each.host.hex()] for each in shown.subgraphs if hosts[each.host.hex()] != 5]
                dies = remote[0] if victim == "host" and remote else 5
                await asyncio.sleep(rng.uniform(0, 0.3))
                fragile.kill(dies)
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                await asyncio.to_thread(fragile.restart, dies)
                enough = sum(got.values()) + 20
                await until(lambda enough=enough: sum(got.values()) > enough, "results come again", PATIENCE_S)
            stop.set()
            await asyncio.gather(*publishing)
            due = {n for n, is_acked in sent.items() if is_acked and n not in before and n % 3 == 0}
            await until(lambda: due <= got.keys() or reading.done(), "everything due has come", PATIENCE_S)
            shown = await five.show_query("thirds")
            print(f"killed the {victim} twice: {len(due)} due, {len(got)} came; {shown.reason}")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert not due - got.keys()
        assert not [n for n, times in got.items() if times > 1]
        assert not [n for n in got if n % 3 or n not in sent]


@pytest.mark.slow
async def test_replicated_results_are_read_after_the_disk_of_their_proxy_is_lost(fragile: Cluster):
    async with client(fragile, 1) as one, client(fragile, 2) as two:
        await one.create_stream("lasting", "n int")
        await one.publish("lasting", [(n,) for n in range(50)])
        async with client(fragile, 4) as four:
            text = "SELECT n FROM lasting WHERE n % 2 = 0"
            accepted = await four.submit(text, name="lasting", since="start", durability="replicated")
            async with asyncio.timeout(DEADLINE_S):
                while (shown := await four.show_query("lasting")).results < 25:
                    await asyncio.sleep(0.1)
                while not await two.queries(everywhere=True):
                    await asyncio.sleep(0.1)
                async with two.attach("lasting") as results:  # What it reads is on two disks.
                    rows = aiter(results)
                    assert [(await anext(rows)).n for _ in range(25)] == list(range(0, 50, 2))
        assert (shown.durability, shown.state) == ("replicated", "running")
        fragile.kill(4)
        shutil.rmtree(fragile.base.embedded(4).journal_dir)
        async with asyncio.timeout(DEADLINE_S):
            while [each.state for each in await two.queries(everywhere=True)] != ["proxy is down"]:
                await asyncio.sleep(0.1)
        with pytest.raises(PeerRefused, match="does not answer") as refused:
            await two.show_query("lasting")
        assert f'peer subscribe "{accepted.stream}" --since start' in str(refused.value)
        read = peer(fragile, "subscribe", accepted.stream, "--since", "start", "-n", "25", "-p", "3")
        assert [json.loads(line)["n"] for line in read.stdout.splitlines()] == list(range(0, 50, 2))
        await asyncio.to_thread(fragile.restart, 4)
        with pytest.raises(PeerRefused, match="is not known at its proxy"):
            await two.show_query("lasting")
