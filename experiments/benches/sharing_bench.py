"""What a row costs at the host of many selections, or window aggregates, over one stream, as their number grows.

    python -m experiments.benches.sharing_bench

The machines of one peer that hosts the selections, without sockets and disk: batches of 500 rows come in, flows go out
through the codec and are acknowledged. Figures are processor time of the executor for one row: with the stream shared,
and with a reading for each selection (WITH (sharing = off)). Of a thousand selections that are installed, fifty have
rows in the second curve, whatever the number of the others.

Window aggregates have any size and slide of 5 to 120 s by 5 s and one to three aggregates, over one selection and
grouping; half of them have HAVING. A batch is a second of the stream. Additions are rows put into slices.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from experiments.benches.figures import GOAL_MISSED, note
from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Batch, Opened, OpenSubscription, Origin, Placed, Position, Publishers, Rows
from protocols.effects import Effect, Send, SetTimer, Tell
from protocols.events import Answered, Event, Received, Requested, TimerFired
from protocols.execution.cut import cut, introduced
from protocols.execution.executor import MORE, WORK, Executor
from protocols.ids import PeerId, RequestId
from protocols.inside import Inside
from protocols.subgraphs import PATIENCE_MS, Deploy, Flow, Flowed, Progress, ResultsReady, ResultsSafe, Sharing
from protocols.wire import MESSAGES
from queries.catalogue import Stream
from queries.query import parse
from queries.schema import Row, Schema
from queries.slices import Slices

SEED: Final = 7
HOST, PROXY = PeerId(b"h" * 20), PeerId(b"p" * 20)
SCHEMA: Final = Schema.parse("ra float, dec float, dx int, dy int, phc int, en float, det_time float")
STREAM: Final = Stream("photons", SCHEMA)
ORIGIN: Final = Origin(HOST, "photons", 1)
NOW_MS: Final = 1_700_000_000_000
BATCH_ROWS: Final = 500
BATCHES: Final = 20
COUNTS: Final = (1, 10, 50, 100, 300, 1000)
ALONE_MAX: Final = 100  # More readings for each selection take too long.
MATCHING: Final = 50
WINDOWS: Final = (1, 10, 50)
SECONDS: Final = 150
AGGREGATES: Final = ("count(*)", "sum(en)", "avg(ra)", "min(dec)", "max(en)", "stddev(en)")
GOAL_US: Final = 10.0  # For a row read by 50 selections.


def photon(luck: random.Random) -> Row:
    return (luck.random() * 360, luck.random() * 90, 1, 2, 3, luck.random() * 10, luck.random())


TEXT: Final = "SELECT ra, dec, en FROM photons WHERE ra >= ? AND ra <= ? AND dec >= ? AND dec <= ?"
Box = tuple[float, float, float, float]


def box(luck: random.Random, *, matches: bool = True) -> Box:
    """A box in the sky that has one photon in fifty, or none."""
    ra, dec = luck.random() * 330 + (0 if matches else 400), luck.random() * 60
    return ra, ra + 30, dec, dec + 22


class Posed(NamedTuple):
    """One query, and who wants its results."""

    text: str
    constants: Box | tuple[()]
    proxy: PeerId


class Host:
    """One peer with queries, and who answers it."""

    def __init__(self, queries: list[Posed], sharing: Sharing) -> None:
        self.executor = Executor(HOST, Inside())
        self.now = NOW_MS
        self.requests: dict[RequestId, OpenSubscription] = {}
        self.flows = self.results = 0
        for number, (text, constants, proxy) in enumerate(queries):
            plan = parse(text, {"photons": STREAM}, constants).plan
            made = cut(f"q{number}.1", plan, NOW_MS << COUNT_BITS, {"photons": HOST}, proxy, proxy, "auto")
            subgraph = introduced(made, {}, PATIENCE_MS, sharing).subgraphs[0]
            consumer = PROXY if subgraph.consumer is not None else None
            deploy = Deploy(
                query=f"q{number}.1", attempt=1, subgraph=subgraph, consumer_host=consumer, resume=Progress()
            )
            self.happen(Received(proxy, deploy))
        for request in list(self.requests):
            self.happen(Answered(request, Opened(subscription="", stamp=9), last=False))
            self.happen(Answered(request, Publishers(origins=(ORIGIN,)), last=False))
            self.happen(Answered(request, Placed(positions=(Position(ORIGIN, 0),)), last=False))

    def happen(self, event: Event) -> None:
        pending = [event]
        while pending:
            for effect in self.executor.handle(pending.pop(0), self.now):
                pending += self.perform(effect)

    def perform(self, effect: Effect) -> list[Event]:
        match effect:
            case Tell(event=Requested(request=request, command=OpenSubscription() as command)):
                self.requests[request] = command
            case Send(peer=peer, message=Flow() as flow):
                MESSAGES.encode(flow)
                self.flows += 1
                done = Flowed(
                    query=flow.query, attempt=flow.attempt, subgraph=flow.subgraph, sequence=flow.sequence + 1
                )
                return [Received(peer, done)]
            case Tell(event=ResultsReady() as ready):
                self.results += len(ready.rows)
                return [ResultsSafe(ready.query, ready.attempt)]
            case SetTimer(name=name) if name in (MORE, WORK):
                return [TimerFired(name)]
        return []

    def read(self, batch: Batch) -> None:
        self.now += 10
        for request in self.requests:
            self.happen(Answered(request, Rows(batches=(batch,)), last=False))


def batches() -> list[Batch]:
    luck = random.Random(SEED)
    stamp = NOW_MS << COUNT_BITS
    return [
        Batch(ORIGIN, n * BATCH_ROWS, BATCH_ROWS, stamp + n, SCHEMA.encode([photon(luck) for _ in range(BATCH_ROWS)]))
        for n in range(BATCHES)
    ]


def selections(boxes: list[Box]) -> list[Posed]:
    return [Posed(TEXT, each, PROXY) for each in boxes]


def windows(luck: random.Random, count: int) -> list[Posed]:
    """Window aggregates whose results are wanted at their host."""
    found: list[Posed] = []
    for number in range(count):
        size, slide = (5 * luck.randrange(1, 25) for _ in range(2))
        wanted = ", ".join(f"{each} AS a{n}" for n, each in enumerate(luck.sample(AGGREGATES, luck.randrange(1, 4))))
        window = f"[RANGE {size} SECONDS SLIDE {slide} SECONDS]"
        having = " HAVING count(*) > 9" if number % 2 else ""
        text = f"SELECT phc, {wanted} FROM photons {window} WHERE en > 1 GROUP BY phc{having}"  # noqa: S608
        found.append(Posed(text, (), HOST))
    return found


def seconds() -> list[Batch]:
    """Batches of a second each."""
    luck = random.Random(SEED)
    rows = [
        [(*photon(luck)[:4], luck.randrange(8), *photon(luck)[5:]) for _ in range(BATCH_ROWS)] for _ in range(SECONDS)
    ]
    return [
        Batch(ORIGIN, n * BATCH_ROWS, BATCH_ROWS, (NOW_MS + 1000 * n) << COUNT_BITS, SCHEMA.encode(some))
        for n, some in enumerate(rows)
    ]


def additions(queries: list[Posed], sharing: Sharing, tuples: list[Batch]) -> float:
    """How often a row is put into slices."""
    added = 0
    add = Slices.add

    def counting(slices: Slices, rows: Any, *readers: Any) -> None:
        nonlocal added
        added += len(rows)
        add(slices, rows, *readers)

    with patch.object(Slices, "add", counting):
        host = Host(queries, sharing)
        for batch in tuples:
            host.read(batch)
    return added / len(tuples) / BATCH_ROWS


def row_us(queries: list[Posed], sharing: Sharing, tuples: list[Batch]) -> float:
    """Processor time for one row, in microseconds: the best of two runs."""
    best = float("inf")
    for _ in range(2):
        host = Host(queries, sharing)
        host.read(tuples[0])
        begin = time.process_time()
        for batch in tuples[1:]:
            host.read(batch)
        best = min(best, (time.process_time() - begin) / (len(tuples) - 1) / BATCH_ROWS * 1e6)
    return best


def main() -> int:
    tuples = batches()
    print(f"selections over one stream, µs of processor time a row, seed={SEED}")
    print(f"  {'installed':>9} {'shared':>8} {'alone':>8}   {'shared, of which 50 match':>26}")
    fifty = float("inf")
    for count in COUNTS:
        luck = random.Random(SEED)
        boxes = [box(luck) for _ in range(count)]
        shared = row_us(selections(boxes), "auto", tuples)
        alone = row_us(selections(boxes), "off", tuples[:5]) if count <= ALONE_MAX else None
        few = row_us(selections([box(luck, matches=n < MATCHING) for n in range(count)]), "auto", tuples)
        print(f"  {count:9,} {shared:8.2f} {'-' if alone is None else f'{alone:8.2f}':>8}   {few:26.2f}")
        if count == MATCHING:
            fifty = shared
            assert alone is not None
            note("a row read by 50 selections", 1e6 / shared, "rows/s", "each alone", 1e6 / alone)
    show_windows()
    return 0 if fifty <= GOAL_US else GOAL_MISSED


def show_windows() -> None:
    tuples = seconds()
    print("window aggregates over one stream: µs of processor time a row, and how often it is added")
    print(f"  {'installed':>9} {'shared':>8} {'added':>6} {'alone':>8} {'added':>6}")
    for count in WINDOWS:
        queries = windows(random.Random(SEED), count)
        shared, alone = row_us(queries, "auto", tuples), row_us(queries, "off", tuples)
        few = tuples[:20]
        added = [additions(queries, each, few) for each in ("auto", "off")]
        print(f"  {count:9,} {shared:8.2f} {added[0]:6.2f} {alone:8.2f} {added[1]:6.2f}")
        if count == WINDOWS[-1]:
            note(f"a row in {count} window aggregates", 1e6 / shared, "rows/s", "each alone", 1e6 / alone)


if __name__ == "__main__":
    sys.exit(main())
