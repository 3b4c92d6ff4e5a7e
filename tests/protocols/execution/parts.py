"""What the tests of execution are made of: a stream, peers, plans of its queries, and a peer alone with an engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from overlay.sim.engine import ReferenceEngine
from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.statistics import FieldStatistics, StreamStatistics
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import COUNT_BITS
from protocols.delivery.messages import (
    Batch,
    Heeded,
    Opened,
    OpenSubscription,
    Origin,
    Placed,
    Position,
    Publishers,
    Rows,
    Silence,
)
from protocols.effects import Effect, Tell
from protocols.events import Answered, Event, Received, Requested, TimerFired
from protocols.execution.cut import Cut, cut
from protocols.execution.engine import FeedRun, RunResults, RunStarted, StartRun, StopRun
from protocols.execution.executor import TICK, TICK_MS, Executor
from protocols.execution.run import SubgraphRun
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.messages import Message
from protocols.sight import NetworkSeen
from protocols.subgraphs import Deploy, Flow, Progress, Reach, StreamInput, Subgraph, merged
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.plan import sources
from queries.query import parse
from queries.schema import Row, Schema
from tests.protocols.lone import Lone

PROXY, NORTH, SOUTH, WORKER = (PeerId(letter * 20) for letter in (b"p", b"n", b"s", b"w"))
SCHEMA = Schema.parse("number int, part int, at timestamp")
WEIGHED = Schema.parse("number int, part int, weight float, at timestamp")
STREAMS = {name: Stream(name, SCHEMA, "at") for name in ("left", "right")}
LEFT, RIGHT = Origin(NORTH, "left", 1), Origin(SOUTH, "right", 1)
PUBLISHERS = {"left": NORTH, "right": SOUTH}
SELECT = "SELECT number FROM left WHERE part = 1"
JOIN = (
    "SELECT l.number, r.number AS other FROM left l [RANGE 3 SECONDS], right r [RANGE 3 SECONDS] WHERE l.part = r.part"
)
NARROW = "SELECT l.number FROM left l [RANGE 1 SECOND], right r [RANGE 1 SECOND] WHERE l.part = r.part AND l.number < 3"
WINDOWS = "SELECT count(*) AS n FROM left [RANGE 2 SECONDS]"
ON_SPARK = f"{WINDOWS} WITH (engine = spark)"


def at(second: float) -> object:
    return EPOCH + timedelta(seconds=second)


def batch(origin: Origin, first: int, *rows: Row) -> Batch:
    return Batch(origin, first, len(rows), 1000 << COUNT_BITS, SCHEMA.encode(rows))


def numbered(origin: Origin, first: int, count: int, part: int = 1) -> Batch:
    """Rows whose number, sequence and second are one."""
    return batch(origin, first, *((number, part, at(number)) for number in range(first, first + count)))


def cut_of(
    text: str, *, worker: PeerId = PROXY, publishers: dict[str, PeerId] | None = None, engine: str = "auto"
) -> Cut:
    plan = parse(text, STREAMS).plan
    found = publishers or {}
    chains = {each.alias: found[each.stream] for each in sources(plan) if each.stream in found}
    return cut("q.1", plan, 7, chains, PROXY, worker, engine)


def stream(name: str, *publishers: tuple[PeerId, float]) -> StreamShown:
    fields = (FieldStatistics(name="part", distinct=100_000.0, frequent=()),)
    return StreamShown(
        definition=StreamDefinition(name=name, schema=SCHEMA, event_time="at"),
        publishers=tuple(
            PublisherShown(
                peer=peer,
                epoch=1,
                backup=None,
                accepted=10,
                processed=0,
                pending=10,
                dead_lettered=0,
                expired=0,
                statistics=StreamStatistics(rate_per_s=rate, row_bytes=100.0, fields=fields) if rate else None,
            )
            for peer, rate in publishers
        ),
        subscriptions=0,
    )


def on_a_line(*peers: PeerId, step_ms: float = 50.0) -> NetworkSeen:
    numbers = range(len(peers))
    return NetworkSeen("q.1", peers, tuple(tuple(step_ms * abs(a - b) for b in numbers) for a in numbers), peers)


LINE = on_a_line(PROXY, WORKER, NORTH, SOUTH)


def deploy_of(subgraph: Subgraph, *, attempt: int = 1, resume: Progress | None = None) -> Deploy:
    host = None if subgraph.consumer is None else PROXY
    return Deploy(query="q.1", attempt=attempt, subgraph=subgraph, consumer_host=host, resume=resume or Progress())


def run_of(text: str, *, number: int = 0, resume: Progress | None = None, **where: object) -> SubgraphRun:
    """One subgraph of a query, as its host would run it."""
    subgraphs = {each.number: each for each in cut_of(text, **where).subgraphs}  # type: ignore[arg-type]
    run = SubgraphRun(deploy_of(subgraphs[number], resume=resume), f"q.1.{number}~1", now=0)
    meet_publishers(run)
    return run


def meet_publishers(run: SubgraphRun) -> None:
    """Let it know who publishes: LEFT, and RIGHT, each to its stream."""
    for each in run.deploy.subgraph.inputs:
        if isinstance(each, StreamInput):
            origins = tuple(origin for origin in (LEFT, RIGHT) if origin.stream == each.stream)
            run.meet(each.alias, Publishers(origins=origins), now=0)


def silence(origin: Origin, upto: int, at_ms: Millis = 100_000, **said: object) -> Silence:
    """What a publisher says of itself; by default that it is idle."""
    return Silence(origin, upto, at_ms << COUNT_BITS, **({"is_idle": True} | said))  # type: ignore[arg-type]


def reach(alias: str, origin: Origin, upto: int) -> Reach:
    return Reach(alias, origin, upto)


def rows_of(effects: list[Effect]) -> list[Row]:
    return [row for effect in effects if isinstance(effect, FeedRun) for row in effect.rows]


def flow(rows: bytes, count: int, progress: Progress, *, sequence: int = 0, **changes: object) -> Flow:
    fields: dict[str, object] = {"is_new": True, "is_whole": True, "life": 1, "subgraph": 1, "attempt": 1, **changes}
    return Flow(query="q.1", sequence=sequence, rows=rows, count=count, progress=progress, **fields)  # type: ignore[arg-type]


class Results:
    """What a query has told, as its proxy keeps it from one attempt to the next."""

    def __init__(self) -> None:
        self.sure: list[Row] = []  # Results whose note is safe,
        self.note = Progress()
        self.told: list[Row] = []  # and those since.
        self.beyond: Counter[Row] = Counter()  # Results without what they cover that are in the query's stream.
        self.begin()

    def begin(self) -> None:
        """An attempt begins."""
        self.known = Counter(self.beyond)  # Those that this attempt has not made again yet.

    def hear(self, rows: Sequence[Row], reached: Progress | None) -> None:
        for row in rows:
            if self.known[row]:
                self.known[row] -= 1
            else:
                self.told.append(row)
        if reached is not None:
            self.sure, self.told, self.note = self.sure + self.told, [], merged(self.note, reached)
            self.beyond = +self.known

    def lose(self, rng: random.Random) -> None:
        """The attempt ends. Of its last results some are in the stream; the others are lost, and made again."""
        kept = self.told[: rng.randrange(len(self.told) + 1)]
        self.sure, self.told, self.beyond = self.sure + kept, [], self.beyond + Counter(kept)

    @property
    def all(self) -> Counter[Row]:
        return Counter(self.sure + self.told)


class Engined(Lone):
    """A peer alone with an engine, which can die of what it runs."""

    def start(self) -> None:
        self.engine = ReferenceEngine()
        self.runs: dict[str, None] = {}
        super().start()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartRun(run=run):
                    self.engine.start(effect)
                    self.runs[run] = None
                    self.perform(self.peer.handle(RunStarted(run), self.now))
                case FeedRun(run=run, number=number):
                    rows = self.engine.feed(effect)
                    self.perform(self.peer.handle(RunResults(run, number, rows), self.now))
                case StopRun(run=run):
                    self.engine.stop(run)
                    del self.runs[run]
                case _:
                    super().perform([effect])

    def rows(self, request: int, schema: Schema) -> list[Row]:
        heard = [answer for answer in self.answers.get(request, []) if isinstance(answer, Rows)]
        return [row for rows in heard for batch in rows.batches for row in schema.decode(batch.rows)]


class Host:
    """An executor, and what it has done."""

    def __init__(self, *, peer: object = NORTH) -> None:
        self.inside = Inside()
        self.executor = Executor(peer, self.inside)  # type: ignore[arg-type]
        self.now = 1000

    def happen(self, event: Event) -> list[Effect]:
        effects = self.executor.handle(event, self.now)
        self.executor.validate()
        return effects

    def hear(self, message: Message) -> list[Effect]:
        return self.happen(Received(PROXY, message))

    def tick(self, after_ms: int = TICK_MS) -> list[Effect]:
        self.now += after_ms
        return self.happen(TimerFired(TICK))

    def open(self, deploy: Deploy) -> list[RequestId]:
        """Deploy, and let all subscriptions be opened and served."""
        asked = [
            each.event for each in self.hear(deploy) if isinstance(each, Tell) and isinstance(each.event, Requested)
        ]
        for each in asked:
            assert isinstance(each.command, OpenSubscription)
            self.serve(each.request, Origin(PUBLISHERS[each.command.stream], each.command.stream, 1))
        return [each.request for each in asked]

    def serve(self, request: RequestId, *origins: Origin) -> list[Effect]:
        """A subscription is open, and these origins are served, from their beginning on."""
        effects = self.happen(Answered(request, Opened(subscription="s", stamp=9), last=False))
        placed = Placed(positions=tuple(Position(origin, 0) for origin in origins))
        effects += self.happen(Answered(request, placed, last=False))
        for origin in origins:
            effects += self.happen(Answered(request, Heeded(origin=origin, version=1), last=False))
        return effects
