"""Queries across containers: each loses the container that runs it to `docker kill` and is compared with the reference.

Three containers publish. What they published, all of it acknowledged, goes to queries/reference.py on this machine; the
results that the query brought must be the same rows, each as often.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Final

from deploy.containers import CLUSTER, PEERS, Containers, Failed, everyone_but, say, wait, wait_until_seen
from queries.plan import Operator, output_schema
from queries.query import parse
from queries.reference import Tuple, evaluate, same_rows
from queries.schema import Row
from queries.sql_streams import CreateStream, read

PROXY: Final = "seed"
RATED: Final = "peer2"  # It was away before all others: for 30 s no query chooses a peer that was lost.
PUBLISHERS: Final = 3
ROWS: Final = 30  # Of one publisher in one part, for each stream.
PART: Final = timedelta(minutes=1)  # Of event time. As late may a row be, so parts may come in any order.
BEGIN: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEYS: Final = 5
TIME: Final = 3  # The place of the event time in a row.
SURPLUS_S: Final = 1.0  # How long to look for results too many.
RATE, RATED_S = 4, 6  # Tuples a second, and for how long, until the catalogue knows of them.
INDEX: Final = ("sai", "dai-q", "dai-t", "dai-v")
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
MASTER: Final = "spark://spark-master:7077"


@dataclass(frozen=True, slots=True)
class Case:
    """One query: its streams, its text, and what should run it."""

    name: str
    streams: tuple[str, ...]
    text: str
    engines: tuple[str, ...]
    options: tuple[str, ...] = ()


def _stream(name: str, time: str = "at") -> str:
    timed = f" WITH (event_time = {time}, lateness = 1 min)" if time else ""
    return f"CREATE STREAM {name} (n int, k int, price decimal, at timestamp){timed}"


CASES: Final = (
    Case(
        "selection",
        (_stream("offers", time=""),),
        "SELECT n, price * 2 AS twice FROM offers WHERE k = 1 WITH (sharing = off)",  # Else nothing of it is placed.
        ("inline",),
        ("--placement", "edge"),
    ),
    Case(
        "dht-join",
        (_stream("orders", time=""), _stream("payments", time="")),
        "SELECT o.n AS ordered, p.n AS paid FROM orders o, payments p WHERE o.k = p.k AND p.price > 9",
        INDEX,
    ),
    Case(
        "aggregate",
        (_stream("ticks"),),
        "SELECT k, count(*) AS times, sum(price) AS total, window_end() AS until "
        "FROM ticks [RANGE 10 SECONDS SLIDE 10 SECONDS] GROUP BY k",
        ("spark",),
        ("--engine", "spark"),  # Inline it would run at the proxy, as nothing is known of the rates.
    ),
    Case(
        "windowed-join",
        (_stream("bids"), _stream("asks")),
        "SELECT b.n AS bid, a.n AS ask FROM bids [RANGE 5 SECONDS] b, asks [RANGE 5 SECONDS] a WHERE b.k = a.k",
        ("spark",),
        ("--engine", "spark"),
    ),
    Case(
        "wxquery",
        (_stream("photons"),),
        '<totals> { for $w in stream("photons")/photons/photon[price >= 0.5] |at diff 10 step 10| '
        "let $s := sum($w/price) where $s >= 50 return <total> { $s } </total> } </totals>",
        ("spark",),
        ("--engine", "spark"),
    ),
)
ON_CLUSTER: Final = Case(
    "on-cluster",
    (_stream("quotes"),),
    "SELECT k, count(*) AS times, min(n) AS first, window_end() AS until "
    "FROM quotes [RANGE 10 SECONDS SLIDE 10 SECONDS] GROUP BY k",
    ("spark",),
    ("--engine", "spark"),
)


@dataclass
class Watched:
    """A query that runs: what was published for it, and what it brought."""

    run: Containers
    case: Case
    published: dict[str, list[Row]] = field(default_factory=dict)
    got: list[Row] = field(default_factory=list)
    parts: int = 0
    publishers: list[str] = field(default_factory=list)

    @cached_property
    def streams(self) -> dict[str, CreateStream]:
        made = (read(text) for text in self.case.streams)
        return {each.name: each for each in made if isinstance(each, CreateStream)}

    @cached_property
    def plan(self) -> Operator:
        return parse(self.case.text, {name: each.stream for name, each in self.streams.items()}).plan

    def publish(self, publishers: Sequence[str]) -> None:
        """The next part of every stream, from several containers at the same time; each has rows of its own."""
        orders = []
        for number, (name, made) in enumerate(self.streams.items()):
            for publisher in publishers:
                rows = list(_rows(self.parts, PEERS.index(publisher), number))
                typed = "".join(f"{json.dumps(list(made.schema.to_json(row).values()))}\n" for row in rows)
                orders.append((publisher, name, typed))
                self.published.setdefault(name, []).extend(rows)
        self.parts += 1
        with ThreadPoolExecutor(len(orders)) as pool:
            list(pool.map(lambda order: self.run.peer(order[0], "publish", order[1], "-", typed=order[2]), orders))

    def finish(self, publishers: Sequence[str]) -> None:
        """Every publisher says that no more comes, so the last windows close."""
        timed = [name for name, made in self.streams.items() if made.event_time]
        for publisher in publishers:
            for name in timed:
                self.run.peer(publisher, "publish", name, "--done")

    def hosts(self) -> list[str]:
        """The containers other than the proxy's in which the engine that should run the query runs a part of it."""
        shown = self.run.ask(PROXY, "query", "show", self.case.name) or {"subgraphs": []}
        places: list[str] = []
        for each in shown["subgraphs"]:
            if each["engine"] in self.case.engines:
                index = each["index"] or {"rewriters": [], "evaluators": []}
                places += [*(rewriter["peer"] for rewriter in index["rewriters"]), *index["evaluators"], each["host"]]
        names = {peer_id: name for name, peer_id in self.run.peer_ids.items()}
        return [names[place] for place in dict.fromkeys(places) if names.get(place, PROXY) != PROXY]

    def lose_host(self) -> str:
        """Kill the container that runs the query; its name."""
        hosts = self.hosts()
        if not hosts:
            raise Failed(f"{self.case.name} does not run by {' or '.join(self.case.engines)} away from {PROXY}")
        self.run.docker("kill", self.run.ids[hosts[0]])
        say(f"{self.case.name}: {hosts[0]} killed, which ran it")
        return hosts[0]

    def wait_for_more(self, before: int, how: str) -> None:
        """Wait for more results than there were, for instance before something was killed."""
        wait(f"{self.case.name}: more results {how}", lambda: len(self.got) > before)

    def expected(self) -> list[Row]:
        """The results by the reference, of tuples in the order of their time: so none of them is late."""
        tuples = {
            name: [Tuple(row[TIME], row, place) for place, row in enumerate(rows)]
            for name, rows in self.published.items()
        }
        in_order = {name: sorted(each, key=lambda one: one.time) for name, each in tuples.items()}
        return [result.row for result in evaluate(self.plan, in_order)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Collect the results while the block lasts."""
        schema = output_schema(self.plan)
        process = self.run.reading(PROXY, "query", "attach", self.case.name, "-o", "jsonl")
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            for line in lines:
                self.got.append(schema.row(json.loads(line)))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            process.kill()
            process.wait()
            thread.join()

    def compare(self) -> None:
        expected = self.expected()
        if not expected:
            raise Failed(f"{self.case.name}: the reference has no results, so there is nothing to compare")
        wait(f"{self.case.name}: {len(expected)} results", lambda: len(self.got) >= len(expected))
        time.sleep(SURPLUS_S)
        if not same_rows(self.got, expected):
            raise Failed(f"{self.case.name}: got {sorted(map(str, self.got))}, not {sorted(map(str, expected))}")
        say(f"{self.case.name}: the same as the reference")


def _rows(part: int, place: int, stream: int) -> Iterator[Row]:
    """The rows of one publisher in one part of a stream: the same in every run."""
    rng = random.Random(f"{part} {place} {stream}")
    for number in range(ROWS):
        at = BEGIN + part * PART + timedelta(seconds=2 * number, milliseconds=500 * place + rng.randrange(500))
        price = Decimal(rng.randrange(1000)).scaleb(-2)
        yield (part * 10_000 + place * 1000 + number, rng.randrange(KEYS), price, at)


def check_queries(run: Containers) -> None:
    for case in CASES:
        check_query(run, case)


def check_query(run: Containers, case: Case, before_loss: Callable[[Watched], None] = lambda watched: None) -> None:
    """Parts before the kill of the host, while it is away, and when it is back; then all is compared."""
    watched = Watched(run, case)
    for text in case.streams:
        run.peer(PROXY, "stream", "create", text)
    is_at_publisher = "--placement" in case.options
    if is_at_publisher:  # Its rate has to be known by then, or the selection may run anywhere.
        (stream,) = watched.streams
        row = json.dumps([0, 0, "0", "2026-05-01T11:00:00Z"])  # Without a result.
        run.peer(RATED, "publish", stream, "-", "--rate", str(RATE), typed=f"{row}\n" * RATE * RATED_S)
    run.peer(PROXY, "subscribe", case.text, "--name", case.name, "--detach", *case.options, timeout_s=300.0)
    wait(f"{case.name} runs", lambda: bool(watched.hosts()))
    host = watched.hosts()[0]
    # Of stateful queries not the host: for a publisher that is away, windows wait.
    publishers = [*([host] if is_at_publisher else []), *everyone_but(PROXY, host)][:PUBLISHERS]
    watched.publishers = publishers
    with watched.reading():
        watched.publish(publishers)
        watched.publish(publishers)
        wait(f"{case.name}: first results", lambda: bool(watched.got))
        before_loss(watched)
        before = len(watched.got)
        victim = watched.lose_host()
        watched.publish([name for name in publishers if name != victim])
        if victim not in publishers:
            watched.wait_for_more(before, f"without {victim}")
        run.start_again(victim)
        watched.publish(publishers)
        watched.finish(publishers)
        watched.compare()
    run.peer(PROXY, "query", "stop", case.name)


def check_cluster(run: Containers) -> None:
    """The peers name a Spark cluster of two workers; the one with the executor is killed, then the query's host."""
    run.environ["PEER_SPARK_MASTER"] = MASTER
    run.up(*CLUSTER)
    say("peers started again, and a Spark cluster beside them")
    wait_until_seen(run, "alive", everyone_but(), everyone_but())
    wait("every peer but the proxy's has Spark", lambda: _with_spark(run) == set(everyone_but(PROXY)))
    workers = run.replicas("spark-worker", *CLUSTER)

    def lose_executor(watched: Watched) -> None:
        wait("a worker of the Spark cluster has an executor", lambda: bool(_with_executor(run, workers)))
        holder = _with_executor(run, workers)[0]
        before = len(watched.got)
        run.docker("kill", workers[holder])
        say(f"{watched.case.name}: {holder} killed, which had the executor")
        watched.publish(watched.publishers)
        watched.wait_for_more(before, f"without {holder}")

    check_query(run, ON_CLUSTER, lose_executor)


def _with_spark(run: Containers) -> set[str]:
    names = {peer_id: name for name, peer_id in run.peer_ids.items()}
    return {names[each["peer_id"]] for each in run.ask(PROXY, "members") or () if each["has_engine"]}


def _with_executor(run: Containers, workers: Mapping[str, str]) -> list[str]:
    return [name for name, each in workers.items() if EXECUTOR in run.docker("top", each, "-efww")]
