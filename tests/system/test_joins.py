"""Joins through the DHT over real daemons: exact by each algorithm, whoever is killed, and nothing left at the end."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter

import pytest

from peerd.client import PeerRefused, QueryEngine
from peerd.cluster import Cluster
from tests.seeds import draw_seed
from tests.system.clients import DEADLINE_S, client, peer, until
from tests.system.publishing import PATIENCE_S, met_once, nothing_left, publish_for

T2 = "SELECT R.A, S.D FROM R, S WHERE 4 * R.B + R.C + 8 = 5 * S.E + S.D * S.F"


@pytest.mark.parametrize("engine", ["sai", "dai-q", "dai-t", "dai-v", "auto"])
async def test_tuples_of_two_peers_meet_at_a_third(network: Cluster, engine: QueryEngine):
    async with client(network, 1) as one, client(network, 2) as two, client(network, 3) as three:
        papers, authors = (f"{name}_{engine.replace('-', '_')}" for name in ("papers", "authors"))
        await one.create_stream(papers, "id int, conference string, author int")
        await one.create_stream(authors, "id float, surname string null")
        text = f"SELECT p.id, a.surname FROM {papers} p, {authors} a WHERE p.author = a.id AND p.conference <> 'X'"
        async with three.query(text, engine=engine) as found:
            await one.publish(papers, [(1, "ICDE", 7), (2, "X", 7), (3, "VLDB", 8)])
            await two.publish(authors, [(7.0, "Smith"), (9.0, None)])
            await one.publish(authors, [(8.0, "Jones")])
            await two.publish(papers, [(4, "ICDE", 7)])
            rows = aiter(found)
            async with asyncio.timeout(DEADLINE_S):
                got = [tuple(await anext(rows)) for _ in range(3)]
            assert Counter(got) == Counter([(1, "Smith"), (3, "Jones"), (4, "Smith")])
        await nothing_left(three, papers, authors)


async def test_a_join_on_expressions_of_several_columns(network: Cluster):
    async with client(network, 1) as one, client(network, 2) as two:
        await one.create_stream("R", "A int, B int, C int")
        await one.create_stream("S", "D int, E int, F int")
        left = [(n, n % 7, n % 5) for n in range(60)]
        right = [(n % 4, n % 9, n % 6) for n in range(60)]
        due = Counter((a, d) for a, b, c in left for d, e, f in right if 4 * b + c + 8 == 5 * e + d * f)
        assert len(due) > 20
        async with two.query(T2, engine="dai-v") as found:
            await one.publish("R", left)
            await two.publish("S", right)
            rows, got = aiter(found), Counter[tuple[int, int]]()
            async with asyncio.timeout(DEADLINE_S):
                while got.total() < due.total():
                    got[tuple(await anext(rows))] += 1
            assert got == due
        for text, engine in ((T2, "sai"), (f"{T2} WITH (join = dai-q)", "auto")):
            with pytest.raises(PeerRefused, match="one attribute of each side decides"):
                await two.submit(text, engine=engine)
        await nothing_left(two, "R", "S")


def test_the_commands_say_where_a_join_is_and_refuse_what_cannot_be_one(network: Cluster):
    peer(network, "stream", "create", "orders", "id int, amount float")
    peer(network, "stream", "create", "payments", "of int, paid float")
    text = "SELECT o.id, p.paid FROM orders o, payments p WHERE o.id = p.of"
    assert peer(network, "subscribe", text, "--name", "paid", "--detach", "--join", "dai-t").stdout == "paid\n"
    peer(network, "publish", "orders", '{"id": 1, "amount": 5}', "-p", "2")
    peer(network, "publish", "payments", '{"of": 1, "paid": 5}', "-p", "3")
    assert json.loads(peer(network, "query", "attach", "paid", "-n", "1").stdout) == {"id": 1, "paid": 5.0}
    shown = json.loads(peer(network, "query", "show", "paid").stdout)
    (subgraph,) = shown["subgraphs"]
    assert subgraph["engine"] == "dai-t"
    assert [each["attribute"] for each in subgraph["index"]["rewriters"]] == ["orders.id", "payments.of"]
    assert 1 <= len(subgraph["index"]["evaluators"]) <= 3
    assert "orders.id rewritten at peer" in peer(network, "query", "show", "paid", "-o", "table").stdout
    explained = peer(network, "explain", "paid").stdout
    assert "dai-t" in explained
    assert "evaluators in use" in explained
    assert "messages per tuple to evaluators: sai 1 (auto)" in peer(network, "explain", text).stdout
    peer(network, "query", "stop", "paid")
    refused = (
        ("SELECT o.id FROM orders o, payments p WHERE o.id < p.of", "there is none"),
        ("SELECT o.id FROM orders o WHERE o.id = 1", "only a join of two streams"),
        ("SELECT o.id FROM orders o [ROWS 5], payments p WHERE o.id = p.of", "needs the stream in one place"),
        ("SELECT o.id FROM orders o, payments p WHERE o.id = p.nothing", '"p" has no column "nothing"'),
        ("SELECT o.id FROM orders o, payments p WHERE o.id = 'x'", "line 1, column"),
    )
    for bad, reason in refused:
        assert reason in peer(network, "subscribe", bad, "--join", "sai", code=2).stderr
    assert "do not go together" in peer(network, "subscribe", text, "--join", "sai", "--engine", "spark", code=2).stderr
    assert peer(network, "query", "ls").stdout == ""


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_join_is_watched_while_it_runs(network: Cluster, is_running: bool):
    """By its name or by its text: how many tuples came, and what each of them cost in the index."""
    names = [f"{name}_{is_running}" for name in ("asked", "given")]
    stop = asyncio.Event()
    async with client(network, 1) as one, client(network, 2) as two:
        for name in names:
            await one.create_stream(name, "n int")
        text = f"SELECT a.n FROM {names[0]} a, {names[1]} g WHERE a.n = g.n"
        if is_running:
            await one.submit(text, name="watched", engine="dai-q")

        async def publish() -> None:
            for n in itertools.count():
                if stop.is_set():
                    return
                await one.publish(names[0], [(n,)])
                await two.publish(names[1], [(n,)])
                await asyncio.sleep(0.05)

        publishing = asyncio.create_task(publish())
        what = ["watched"] if is_running else [text, "--join", "dai-q"]
        asked = ["explain", *what, "--analyze", "6s", "--format", "json"]
        record = json.loads((await asyncio.to_thread(peer, network, *asked)).stdout)
        stop.set()
        await publishing
        (subgraph,) = record["subgraphs"]
        assert record["results"] > 0
        assert subgraph["engine"] == "dai-q"
        assert subgraph["rows_in"] == sum(each["tuples"] for each in subgraph["index"]["rewriters"]) > 0
        assert [each["attribute"] for each in subgraph["index"]["rewriters"]] == [f"{name}.n" for name in names]
        assert subgraph["index"]["messages_per_tuple"] == {"expected": 2, "seen": 2.0}
        assert 1 <= subgraph["index"]["evaluators_used"] <= len(subgraph["index"]["evaluators"])
        said = (await asyncio.to_thread(peer, network, "explain", "unknown", "--analyze", "1s", code=4)).stderr
        assert '"unknown"' in said
        if is_running:
            await one.stop_query("watched")
        await nothing_left(one, *names)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sai", "dai-q", "dai-v"])
async def test_a_join_is_exact_whoever_is_killed(fragile: Cluster, engine: QueryEngine):
    """Two publishers of two streams that meet tuple by tuple; a rewriter, an evaluator and the proxy die in turn."""
    seed = draw_seed()
    rng = random.Random(seed)
    left, right = (f"{name}_{engine.replace('-', '_')}" for name in ("lefts", "rights"))
    stop, got = asyncio.Event(), Counter[tuple[int, int]]()
    lefts, rights = dict[int, bool](), dict[int, bool]()
    peers: dict[str, int] = {fragile.client(n).get("/status")["peer_id"]: n for n in range(1, 6)}
    async with client(fragile, 1) as one, client(fragile, 5, patience_s=PATIENCE_S) as five:
        await one.create_stream(left, "n int, k int")
        await one.create_stream(right, "n int, k int")
        text = f"SELECT l.n AS l, r.n AS r FROM {left} l, {right} r WHERE l.k = r.k"
        async with five.query(text, name="pairs", engine=engine) as pairs:
            publishing = [
                asyncio.create_task(publish_for(fragile, 2, left, stop, lefts, met_once)),
                asyncio.create_task(publish_for(fragile, 3, right, stop, rights, met_once)),
            ]

            async def read() -> None:
                async for row in pairs:
                    got[row.l, row.r] += 1

            reading = asyncio.create_task(read())
            for victim in ("rewriter", "evaluator", "proxy"):
                enough = got.total() + 20
                await until(lambda enough=enough: got.total() > enough, "results come", PATIENCE_S)
                (subgraph,) = (await five.show_query("pairs")).subgraphs or (None,)
                index = subgraph.status.index if subgraph is not None and subgraph.status is not None else None
                rewriters = [peers[each.peer.hex()] for each in index.rewriters] if index is not None else [4]
                others = [n for n in range(1, 5) if n not in rewriters]
                dies = {"rewriter": rewriters[0], "evaluator": rng.choice(others), "proxy": 5}[victim]
                await asyncio.sleep(rng.uniform(0, 0.5))
                fragile.kill(dies)
                await asyncio.sleep(rng.uniform(0.1, 1.0))
                await asyncio.to_thread(fragile.restart, dies)
            stop.set()
            await asyncio.gather(*publishing)
            acked = [{n % 1_000_000: n for n, is_acked in each.items() if is_acked} for each in (lefts, rights)]
            due = {(acked[0][k], acked[1][k]) for k in acked[0].keys() & acked[1].keys()}
            await until(lambda: due <= got.keys() or reading.done(), "everything due has come", PATIENCE_S)
            shown = await five.show_query("pairs")
            print(f"{engine}: {len(due)} due, {len(got)} came; {shown.reason}")
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert not due - got.keys()
        assert not [pair for pair, times in got.items() if times > 1]
        assert not [(a, b) for a, b in got if a % 1_000_000 != b % 1_000_000 or a not in lefts or b not in rights]
