"""Queries whose joins run apart, attempt after attempt, with an engine and no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Protocol

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Batch, Origin, Publishers
from protocols.effects import Effect
from protocols.execution.cut import Cut, cut
from protocols.execution.engine import FeedRun, RunId, StartRun
from protocols.execution.flow_rows import encode_rows
from protocols.execution.run import RunOutput, SubgraphRun
from protocols.ids import PeerId
from protocols.subgraphs import Deploy, FlowInput, Progress
from queries.catalogue import Stream
from queries.plan import sources
from queries.query import parse
from queries.reference import Tuple, evaluate
from queries.schema import Row, Schema
from tests.protocols.execution.parts import NORTH, PROXY, SOUTH, WORKER, at, flow

SCHEMA = Schema.parse("number int, is_new int, at timestamp")
ROWS = 9  # Of each stream.
NAMES = ("left", "right", "far", "near")
STREAMS = {name: Stream(name, SCHEMA, "at") for name in NAMES}
ORIGINS = {name: Origin(PROXY, name, 1) for name in NAMES}
THREE = (
    "SELECT l.number, r.is_new, f.at AS far FROM left l, right r, far f "
    "WHERE l.number = r.number AND r.is_new = f.is_new AND l.number <> 3"
)
FOUR = (
    "SELECT l.number, n.number AS other FROM left l, right r, far f, near n "
    "WHERE l.is_new = r.is_new AND f.number = r.number AND n.is_new = l.is_new AND n.number > f.number"
)
WINDOWED = (
    "SELECT l.number, f.number AS far, n.at FROM left l [RANGE 3 SECONDS], right r [RANGE 2 SECONDS], far f, "
    "near n [RANGE 1 SECOND] WHERE l.is_new = r.is_new AND f.is_new = r.is_new AND n.is_new = f.is_new"
)
SHORT = (
    "SELECT l.number, r.number AS other FROM left l [RANGE 1 SECOND], right r [RANGE 3 SECONDS], "
    "far f [RANGE 2 SECONDS] WHERE l.is_new = r.is_new AND l.is_new <> f.number"
)
TWICE = "SELECT a.is_new FROM left a, left b, right c WHERE a.is_new = b.is_new AND b.number = c.number"


PLACES: tuple[dict[tuple[str, ...], PeerId], ...] = (
    {("l", "r"): NORTH, ("a", "b"): NORTH},
    {("l", "r"): NORTH, ("l", "r", "f"): SOUTH, ("a", "b"): PROXY},
    {("l", "r", "f"): NORTH},
)


class Engine(Protocol):
    """What runs joins."""

    def start(self, effect: StartRun) -> None: ...

    def feed(self, effect: FeedRun) -> tuple[Row, ...]: ...

    def stop(self, run: RunId) -> None: ...


def apart(text: str, joins: dict[tuple[str, ...], PeerId], worker: PeerId = WORKER, **chains: PeerId) -> Cut:
    return cut("q.1", parse(text, STREAMS).plan, 7, chains, PROXY, worker, "auto", joins)


class Runs:
    """All subgraphs of one attempt, with an engine and no network between them."""

    def __init__(self, found: Cut, resume: Progress, engine: Engine, attempt: int = 1) -> None:
        self.engine, self.results, self.said = engine, list[Row](), resume
        self.runs: dict[int, SubgraphRun] = {}
        self.unread = 0  # Rows that no state needs.
        self._sequences: Counter[int] = Counter()
        for each in found.subgraphs:
            host = None if each.consumer is None else PROXY
            share = found.share_of(each, resume)
            deploy = Deploy(query="q.1", attempt=1, subgraph=each, consumer_host=host, resume=share)
            run = self.runs[each.number] = SubgraphRun(deploy, f"q.1.{each.number}~{attempt}", now=0)
            self._perform(run, (run.start(), []))
            for item in each.inputs:
                if not isinstance(item, FlowInput):
                    run.meet(item.alias, Publishers(origins=(ORIGINS[item.stream],)), now=0)

    def stop(self) -> None:
        for run in self.runs.values():
            self.engine.stop(run.run_id)

    def publish(self, stream: str, first: int, rows: list[Row]) -> None:
        """Rows, to whoever reads the stream so far back."""
        for run in self.runs.values():
            for each in run.deploy.subgraph.inputs:
                if isinstance(each, FlowInput) or each.stream != stream:
                    continue
                since = max([first, *(position.next for position in run.start_positions(each.alias))])
                self.unread += min(since - first, len(rows))
                if since < first + len(rows):
                    left = rows[since - first :]
                    batch = Batch(ORIGINS[stream], since, len(left), 1000 << COUNT_BITS, SCHEMA.encode(left))
                    self._perform(run, run.take_batch(each.alias, batch, now=0))

    def _perform(self, run: SubgraphRun, outcome: tuple[list[Effect], list[RunOutput]]) -> None:
        effects, results = outcome
        for effect in effects:
            match effect:
                case StartRun():
                    self.engine.start(effect)
                case FeedRun(number=number):
                    self._hand_on(run, run.finished(number, self.engine.feed(effect)))
        self._hand_on(run, results)

    def _hand_on(self, run: SubgraphRun, results: list[RunOutput]) -> None:
        subgraph = run.deploy.subgraph
        for each in results:
            if subgraph.consumer is None:
                self.results += each.rows
                self.said = each.reached or self.said
                continue
            message = flow(
                encode_rows(run.plan.columns, each.rows),
                len(each.rows),
                each.progress,
                sequence=self._sequences[subgraph.number],
                subgraph=subgraph.number,
                is_new=each.is_new,
                is_whole=each.reached is not None,
            )
            self._sequences[subgraph.number] += 1
            reader = self.runs[subgraph.consumer]
            self._perform(reader, reader.take_flow(subgraph.consumer_alias, message, now=0))


def published(rng: Random, count: int) -> dict[str, list[Row]]:
    return {name: [(rng.randrange(5), rng.randrange(3), at(place)) for place in range(count)] for name in NAMES}


def batches(rng: Random, rows: dict[str, list[Row]]) -> Iterator[tuple[str, int, list[Row]]]:
    """All rows, those of each stream in order, in batches of any size, streams one after the other as it comes."""
    reached = dict.fromkeys(rows, 0)
    while left := [name for name in rows if reached[name] < len(rows[name])]:
        name = rng.choice(left)
        first = reached[name]
        count = min(rng.randint(1, 4), len(rows[name]) - first)
        reached[name] += count
        yield name, first, rows[name][first : first + count]


def attempts(
    text: str, rng: Random, engine: Engine, ends: Sequence[int] = (2, 5, 8, ROWS)
) -> tuple[tuple[Counter[Row], Counter[Row]], int]:
    """What several attempts of a query told, beside what they should have; and how many rows the last did not read.

    Each goes on after one that ended where it could say how far it was, with its joins at other places.
    """
    plan = parse(text, STREAMS).plan
    rows, told, resume = published(rng, ROWS), list[Row](), Progress()
    for attempt, upto in enumerate(ends):
        joins = rng.choice(PLACES)
        chains = {alias: rng.choice([NORTH, SOUTH, WORKER]) for alias in "lrfnabc" if rng.random() < 0.5}
        runs = Runs(apart(text, joins, rng.choice([PROXY, WORKER]), **chains), resume, engine, attempt)
        there = {name: rows[name][: upto if upto == ROWS else upto - rng.randint(0, 1)] for name in rows}
        for name, first, some in batches(rng, there):
            runs.publish(name, first, some)
        runs.stop()
        told += runs.results
        resume = runs.said
        assert len(resume.covers) == len(sources(plan)), "it can be said, once all is back"
    streams = {name: [Tuple(row[2], row, place) for place, row in enumerate(rows[name])] for name in rows}
    return (Counter(told), Counter(each.row for each in evaluate(plan, streams))), runs.unread
