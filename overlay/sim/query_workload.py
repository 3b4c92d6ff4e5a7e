"""Clients with continuous queries: they publish rows in the order of event time, and read the results.

The judge is the reference evaluator, given all rows that were accepted since a query was inserted. At the end each
query's stream must hold exactly those results: none missing, none twice, none invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

import msgspec

from overlay.sim import altering
from overlay.sim.altering import Altering
from overlay.sim.mapping import disagreements
from overlay.sim.oracle import Violation
from overlay.sim.peer import SimPeer
from overlay.sim.query_texts import (
    JOINS,
    JOINS_OF_SEVERAL,
    JOINS_OF_VALUES,
    PLAIN,
    QUERIES,
    SEVERAL,
    SHARED,
    STATEFUL,
    STREAMS,
    WINDOWED,
)
from overlay.sim.ranges import IntRange, draw
from overlay.sim.world import World
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import Stamp, wall_ms
from protocols.delivery.messages import OpenSubscription, Position, Publish, Published, Punctuate, Rows, Seen
from protocols.execution.cut import is_stateful
from protocols.execution.decision import BETTER_PLACED
from protocols.execution.messages import (
    ListQueries,
    PlacementName,
    QueriesListed,
    QueryAccepted,
    QueryStarting,
    ResultsDurability,
    StopQuery,
    SubmitQuery,
)
from protocols.ids import Millis
from protocols.messages import Answer, Done, Refused
from protocols.peer import Peer
from protocols.subgraphs import Algorithm
from queries.catalogue import Stream
from queries.expressions import EPOCH
from queries.plan import Operator, output_schema
from queries.query import parse
from queries.reference import Tuple, evaluate
from queries.schema import Row, Schema

STUCK: Final = "stuck"  # The name of a query whose engine takes rows and never answers.
FOR_EVER_MS: Final = 1 << 40
WINDOWS_TOGETHER: Final = 0.8  # Of the window aggregates, where queries are to share, are asked at one peer,
WINDOWS_WITHIN_MS: Final = 5000  # while rows are still published.
PAST_SHARE: Final = 0.3  # Of the queries begin with all that was published before them.
RETRY_MS: Final = 300
STEP_MS: Final = 700  # Of event time, from one row to the next.
IDLE_MS: Final = 600_000  # Longer than a run: only a publisher that says it has finished is not waited for.
LATENESS_MS: Final = 1 << 40  # To the judge nothing is late, in whichever order publishers come.


class QueriesWorkload(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="queries", tag_field="name"
):
    """How much clients do; ranges are drawn from the seed."""

    queries: IntRange = (2, 4)
    rows: IntRange = (10, 25)  # Of each stream.
    every_ms: IntRange = (200, 900)
    without_spark: float = 0.4  # Share of the peers without an engine, so that stateful operators run elsewhere.
    placements: tuple[PlacementName, ...] = ("auto",)
    only_stateful: bool = False  # Only queries for which another placement could be better.
    several: bool = False  # Only joins of three streams or more, whose joins are placed one by one.
    changes_pace: bool = False  # Half-way each source draws a new rate.
    publishers: IntRange = (1, 4)  # Of each stream, if different peers are drawn.
    join: Literal["", Algorithm] = ""  # Only joins, through the join index;
    windowed: bool = False  # only those with windows;
    splits: bool = False  # with heavy values spread over evaluators, however few tuples they have;
    replicas: IntRange | None = None  # with so many rewriters of each attribute, drawn for each query.
    asked_within_ms: Millis = 6000
    takeover_s: IntRange | None = None  # Queries are replicated, and taken over after so long (fault proxy-gone).
    alters: bool = False  # The streams are altered between two sets of queries (altering.py).
    crowded: bool = False  # Most peers have little room, some host nothing for others: queries may be refused.
    shares: bool = False  # Many queries read two streams; some are stopped, and others come in their place.

    @property
    def streams(self) -> dict[str, Stream]:
        if self.several:
            return SEVERAL
        if self.alters:
            return altering.STREAMS
        return PLAIN if self.join else STREAMS

    @property
    def texts(self) -> tuple[str, ...]:
        if self.several:
            return JOINS_OF_SEVERAL
        if self.alters:
            return altering.BEFORE
        if self.shares:
            return SHARED
        if not self.join:
            return tuple(text for text in QUERIES if not self.only_stateful or is_stateful(parse(text, STREAMS).plan))
        texts = WINDOWED if self.windowed else JOINS + JOINS_OF_VALUES if self.join == "dai-v" else JOINS
        return tuple(f"{text} WITH (skew = split)" for text in texts) if self.splits else texts


@dataclass(slots=True)
class _Accepted:
    row: Row
    stamp: Stamp
    schema: Schema  # By which it was written.


@dataclass(slots=True)
class QueryOracle:
    """The rows that were accepted, and the results that are due."""

    streams: dict[str, Stream]
    altering: Altering | None = None
    deliveries: int = 0
    accepted: dict[str, list[_Accepted]] = field(init=False)
    _plans: dict[str, Operator] = field(default_factory=dict)
    _results: dict[tuple[str, Stamp, int], Counter[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accepted = {name: [] for name in self.streams}

    @property
    def accepted_count(self) -> int:
        return sum(map(len, self.accepted.values()))

    def plan(self, text: str) -> Operator:
        if text not in self._plans:
            streams = altering.streams_for(text) if self.altering is not None else self.streams
            patient = {name: msgspec.structs.replace(each, lateness_ms=LATENESS_MS) for name, each in streams.items()}
            self._plans[text] = parse(text, patient).plan
        return self._plans[text]

    def results(self, text: str, inserted_at: Stamp) -> Counter[Row]:
        """The results of a query over the rows accepted so far; asked repeatedly until all of them have been read."""
        question = text, inserted_at, self.accepted_count
        if question not in self._results:
            self._results[question] = self._evaluate(text, inserted_at)
        return self._results[question]

    def _evaluate(self, text: str, inserted_at: Stamp) -> Counter[Row]:
        streams = {
            name: [
                Tuple(EPOCH + timedelta(milliseconds=wall_ms(each.stamp)), self._seen(text, name, each), place)
                for place, each in enumerate(sorted(rows, key=lambda each: each.stamp))
                if each.stamp >= inserted_at
            ]
            for name, rows in self.accepted.items()
        }
        return Counter(result.row for result in evaluate(self.plan(text), streams))

    def _seen(self, text: str, stream: str, accepted: _Accepted) -> Row:
        if self.altering is None:
            return accepted.row
        return self.altering.seen(text, stream, accepted.schema, accepted.row)

    def check_end(self) -> None:
        """Everything is checked as it is read."""


class _Source:
    """Publishes the rows of one stream at one peer, one after the other, each until it is accepted."""

    def __init__(self, workload: QueryWorkload, stream: str, peer: SimPeer, count: int, first: int = 0) -> None:
        self._workload, self.stream, self.peer = workload, stream, peer
        self._schema = workload.shape.streams[stream].schema
        self.left = count
        self._written: Schema | None = None  # By which the next row is written, in a run that alters.
        self.has_finished = workload.shape.streams[stream].event_time is None  # There is no time to be finished with.
        self._first = self._number = first
        self._every_ms = draw(workload.rng, workload.shape.every_ms)
        self._pace_lasts = count // 2 if workload.shape.changes_pace else 0

    def open(self, then: Callable[[], None]) -> None:
        """Have the catalogue list this publisher before there are queries: they will wait for its rows."""

        def answered(answer: Answer | None, last: bool) -> None:
            if isinstance(answer, Published):
                then()
            else:
                self._workload.later(RETRY_MS, lambda: self.open(then))

        if self.peer.is_up:
            self.peer.request(Publish(stream=self.stream, rows=self._schema.encode([]), count=0), answered)
        else:
            self._workload.later(RETRY_MS, lambda: self.open(then))

    def publish(self) -> None:
        if not self.peer.is_up:
            self._workload.later(RETRY_MS, self.publish)
        elif self.left:
            self._ask()
        elif not self.has_finished:
            self._finish()

    def _finish(self) -> None:
        """Nothing more will come from here, so the last windows can close."""

        def answered(answer: Answer | None, last: bool) -> None:
            self.has_finished = isinstance(answer, Done)
            if not self.has_finished:
                self._workload.later(RETRY_MS, self.publish)

        self.peer.request(Punctuate(stream=self.stream), answered)

    def _ask(self) -> None:
        number = self._number
        at = timedelta(milliseconds=1_700_000_000_000 + STEP_MS * number)
        schema, row = self._schema, (number, number % 3, EPOCH + at)
        if (alters := self._workload.oracle.altering) is not None:
            if self._written is None:  # A repetition is what it was.
                self._written = alters.schema(self.stream, self._first)
            schema, row = self._written, alters.row(self._written, number, at)
        command = Publish(
            stream=self.stream,
            rows=schema.encode([row]),
            count=1,
            version=schema.version,
            witness=self._workload.stamp,
            session=f"{self.stream} {self._first}".encode(),
            number=number - self._first,
        )

        def answered(answer: Answer | None, last: bool) -> None:
            if isinstance(answer, Published):
                self._workload.oracle.accepted[self.stream].append(_Accepted(row, answer.stamp, schema))
                self._written = None
                self._number += 1
                self.left -= 1
                if self.left == self._pace_lasts and self.left:
                    self._every_ms = draw(self._workload.rng, self._workload.shape.every_ms)
                self._workload.later(self._every_ms, self.publish)
            else:
                self._workload.later(RETRY_MS, self.publish)

        self.peer.request(command, answered)


class _Asker:
    """Submits a query at one peer until it is acknowledged; at the end reads its stream from the start."""

    def __init__(self, workload: QueryWorkload, name: str, text: str, peer: SimPeer) -> None:
        self._workload, self.name, self.text, self._peer = workload, name, text, peer
        self._placement = workload.placement_rng.choice(workload.shape.placements)
        self.reads_past = workload.past_rng.random() < PAST_SHARE
        self._durability: ResultsDurability = workload.durability_rng.choice(("disk", "replicated"))
        self._takeover_ms = 0
        if workload.shape.takeover_s is not None:
            self._durability = "replicated"
            self._takeover_ms = 1000 * draw(workload.durability_rng, workload.shape.takeover_s)
        # Windows run in the daemons, or on what stands for Spark.
        self.engine: Literal["auto", "spark"] = workload.engine_rng.choice(
            ("auto", "spark" if "count(" in text else "auto")
        )
        self.is_acknowledged = False
        self.is_refused = False  # For want of room; then nothing of it is looked at.
        self.stays_ms: Millis | None = None  # It is stopped so long after its acknowledgement, and not looked at.
        self.inserted_at: Stamp | None = None
        self._tried = False
        self._rows: list[Row] = []
        self._schema: Schema | None = None
        self._positions: dict[object, Position] = {}
        self._is_reading = False
        self._reader = peer
        self._readings = 0

    def submit(self) -> None:
        if not self._peer.is_up:
            self._workload.later(RETRY_MS, self.submit)
            return
        engine = self._workload.shape.join or self.engine
        since: Literal["start", "now"] = "start" if self.reads_past else "now"
        command = SubmitQuery(
            text=self.text,
            name=self.name,
            engine=engine,
            placement=self._placement,
            since=since,
            durability=self._durability,
            takeover_ms=self._takeover_ms,
        )
        self._peer.request(command, self._answered)

    def _answered(self, answer: Answer | None, last: bool) -> None:
        match answer:
            case QueryStarting():
                return
            case QueryAccepted(stamp=stamp):
                self._workload.witness(stamp)
                self._accept()
                if self.stays_ms is not None:
                    self._workload.later(self.stays_ms, self._stop)
            case Refused(code="full") if self._workload.shape.crowded:
                self.is_refused = True
            case Refused(code="exists") if self._tried:  # An earlier try took effect, or is about to.
                self._workload.later(RETRY_MS, self._look)
            case _:
                self._tried = True
                self._workload.later(RETRY_MS, self.submit)

    def _accept(self) -> None:
        self.is_acknowledged = True
        self._peer.is_proxy = bool(self._takeover_ms)
        self._workload.acknowledged()

    def _look(self) -> None:
        """An earlier try was not answered: find out whether it took effect."""
        if not self._peer.is_up:
            self._workload.later(RETRY_MS, self._look)
            return

        def answered(answer: Answer | None, last: bool) -> None:
            states = {each.query: each.state for each in answer.queries} if isinstance(answer, QueriesListed) else {}
            if states.get(self.name) == "running":
                self._accept()
            elif isinstance(answer, QueriesListed) and states.get(self.name, "ending") == "ending":
                self.submit()
            else:
                self._workload.later(RETRY_MS, self._look)

        self._peer.request(ListQueries(), answered)

    def _stop(self) -> None:
        if self._peer.is_up:
            self._peer.request(StopQuery(query=self.name), lambda answer, last: None)

    # At the end.

    def read(self) -> None:
        """Read all results, from the start: at the query's own peer, or at any if another may have taken it over."""
        reader = self._workload.some_peer() if self._takeover_ms and not self._is_reading else self._peer
        if self._is_reading or reader is None or not reader.is_up:
            return
        self._is_reading, self._reader = True, reader

        def listed(answer: Answer | None, last: bool) -> None:
            listing = answer.queries if isinstance(answer, QueriesListed) else ()  # The peer may be gone again.
            found = [each for each in listing if each.query == self.name]
            if len(found) != 1:
                self._is_reading = False
            else:
                self.inserted_at = 0 if self.reads_past else found[0].inserted_at
                self._open(found[0].stream)

        reader.request(ListQueries(everywhere=bool(self._takeover_ms)), listed)

    def _open(self, stream: str) -> None:
        self._schema = self._workload.schema_of(self.text)
        self._readings += 1  # Each reading has a new name: an old subscription would go on from its position.
        subscription = f"reader-{self.name}-{self._readings}"

        def heard(answer: Answer | None, last: bool) -> None:
            if isinstance(answer, Rows):
                assert self._schema is not None
                for batch in answer.batches:
                    self._rows += self._schema.decode(batch.rows)
                    self._positions[batch.origin] = Position(batch.origin, batch.next)
                seen = Seen(subscription=subscription, positions=tuple(self._positions.values()))
                self._reader.tell(seen)
            elif last:  # Refused, for now.
                self._is_reading = False
                self._rows.clear()
                self._positions.clear()

        command = OpenSubscription(stream=stream, subscription=subscription, since="start")
        self._reader.request(command, heard)

    def complaint(self) -> str | None:
        """What is missing; raises Violation for a result that should not be there."""
        if self.stays_ms is not None or self.is_refused:
            return None
        if not self.is_acknowledged:
            return f"query {self.name} at {self._peer!r} is not acknowledged"
        self.read()
        if self.inserted_at is None:
            return f"query {self.name} is not listed at {self._peer!r}"
        expected = self._workload.oracle.results(self.text, self.inserted_at)
        read = Counter(self._rows)
        self._workload.oracle.deliveries = max(self._workload.oracle.deliveries, len(self._rows))
        if extra := read - expected:
            raise Violation(f"query {self.name} told what is false or known: {dict(extra)} ({self.text})")
        if missing := expected - read:
            return f"query {self.name} at {self._peer!r} has not told {dict(missing)} ({self.text})"
        return None


class QueryWorkload:
    """The clients of one run."""

    def __init__(self, world: World, shape: QueriesWorkload) -> None:
        self.world, self.shape = world, shape
        self.rng = world.rng("workload")
        self.placement_rng = world.rng("placement")
        self.past_rng = world.rng("past")
        self.durability_rng = world.rng("durability")
        self.engine_rng = world.rng("engine")
        self.oracle = QueryOracle(shape.streams)
        if shape.alters:
            self.oracle.altering = Altering(world.rng("altering"), self.some_peer, self.later, self._ask_more)
        self.stamp: Stamp = 0
        self._uncreated = dict.fromkeys(shape.streams)
        self._sources: list[_Source] = []
        self._askers: list[_Asker] = []
        self._is_altered = False

    def begin(self) -> None:
        for name in self.shape.streams:
            self._create(name)

    def later(self, after_ms: Millis, action: Callable[[], None]) -> None:
        self.world.agenda.after(after_ms, action)

    def witness(self, stamp: Stamp) -> None:
        self.stamp = max(self.stamp, stamp)

    def schema_of(self, text: str) -> Schema:
        return output_schema(self.oracle.plan(text))

    def _create(self, name: str) -> None:
        up = [peer for peer in self.world.peers if peer.is_up]
        if not up:
            self.later(RETRY_MS, lambda: self._create(name))
            return

        def answered(answer: Answer | None, last: bool) -> None:
            if isinstance(answer, Done) or (isinstance(answer, Refused) and answer.code == "exists"):
                if isinstance(answer, Done):
                    self.witness(answer.stamp)
                self._uncreated.pop(name, None)
                if not self._uncreated and not self._sources:
                    self._go()
            else:
                self.later(RETRY_MS, lambda: self._create(name))

        stream = self.shape.streams[name]
        idle_ms = IDLE_MS if stream.event_time is not None else 0
        definition = StreamDefinition(name=name, schema=stream.schema, event_time=stream.event_time, idle_ms=idle_ms)
        self.rng.choice(up).request(CreateStream(definition=definition), answered)

    def _go(self) -> None:
        for name in self.shape.streams:
            self._sources += self._sources_of(name)
        # The index does not go by watermarks, and of a single publisher nobody is ahead.
        names = [source.stream for source in self._sources]
        unopened = {each: None for each in self._sources if names.count(each.stream) > 1 and not self.shape.join}

        def open_next() -> None:
            if not unopened:
                self._ask()
                return
            source = next(iter(unopened))
            del unopened[source]
            source.open(open_next)

        open_next()

    def _sources_of(self, stream: str) -> list[_Source]:
        count, publishers = draw(self.rng, self.shape.rows), draw(self.rng, self.shape.publishers)
        made: list[tuple[SimPeer, _Source]] = []
        first = 0
        for place in range(publishers):
            peer = self.rng.choice(self.world.peers)
            if self.shape.join:
                size = count if place == 0 else count // 2
            elif any(peer is other for other, _ in made):
                continue
            else:
                size = -(-count // publishers)
            made.append((peer, _Source(self, stream, peer, size, first)))
            if self.shape.streams[stream].event_time is not None:
                peer.may_leave = False  # No window waits for a publisher that has left: its later rows may be late.
            first += size
        return [source for _, source in made]

    def _ask(self) -> None:
        peers = self.world.peers
        if self.shape.takeover_s is not None:  # The rows of a publisher would be lost with its disk.
            peers = [peer for peer in peers if not any(source.peer is peer for source in self._sources)] or peers
        texts = self.rng.sample(self.shape.texts, draw(self.rng, self.shape.queries))
        if self.shape.alters:
            texts = [altering.BEFORE[0], *(text for text in texts if text != altering.BEFORE[0])]
        if self.shape.replicas is not None:
            texts = [f"{text} WITH (replicas = {draw(self.rng, self.shape.replicas)})" for text in texts]
        for number, text in enumerate(texts):
            self._askers.append(_Asker(self, f"query-{number}", text, self._asked_at(text, self.rng.choice(peers))))
        if self.shape.shares:
            self._let_some_pass(texts)
        for asker in self._askers:
            within_ms = WINDOWS_WITHIN_MS if self._is_together(asker.text) else self.shape.asked_within_ms
            self.later(self.rng.randrange(within_ms), asker.submit)
        for source in self._sources:
            self.later(self.rng.randrange(4000), source.publish)

    def _let_some_pass(self, texts: list[str]) -> None:
        """Others ask the same, and soon want it no more. The engine of one of them never answers."""
        luck = self.world.rng("passing")
        stuck = _Asker(self, STUCK, STATEFUL, luck.choice(self.world.peers))
        stuck.stays_ms, stuck.engine = FOR_EVER_MS, "spark"
        self._askers.append(stuck)
        self.world.let_engines_stick(lambda run: run.startswith(f"{STUCK}."))
        for number, text in enumerate(luck.sample(texts, len(texts) // 2)):
            asker = _Asker(self, f"passing-{number}", text, self._asked_at(text, luck.choice(self.world.peers)))
            asker.stays_ms = luck.randrange(6000)
            self._askers.append(asker)

    def _asked_at(self, text: str, peer: SimPeer) -> SimPeer:
        """At a publisher of its stream if it is to share slices; they would not be of one stream elsewhere."""
        sources = [source for source in self._sources if f"FROM {source.stream}" in text and self._is_together(text)]
        return sources[0].peer if sources else peer

    def _is_together(self, text: str) -> bool:
        """Whether it is one of the window aggregates that are asked at one peer, soon: they share slices there."""
        if not self.shape.shares or "GROUP BY" not in text:
            return False
        return self.world.rng(f"windows {text}").random() < WINDOWS_TOGETHER

    def some_peer(self) -> SimPeer | None:
        up = [peer for peer in self.world.peers if peer.is_up]
        return self.rng.choice(up) if up else None

    def acknowledged(self) -> None:
        """Once all queries of before run, their streams are altered."""
        alters = self.oracle.altering
        if alters is not None and not self._is_altered and all(asker.is_acknowledged for asker in self._askers):
            self._is_altered = True
            alters.begin()

    def _ask_more(self) -> None:
        for text in self.rng.sample(altering.AFTER, draw(self.rng, self.shape.queries)):
            asker = _Asker(self, f"query-{len(self._askers)}", text, self.rng.choice(self.world.peers))
            asker.reads_past = self.past_rng.random() < 1 - PAST_SHARE  # Most of them see rows of all versions.
            self._askers.append(asker)
            asker.submit()

    def calm(self) -> None:
        """Faults are over."""

    @property
    def moves(self) -> int:
        """How often a query moved to a better placement although it could have stayed."""
        machines = [peer.machine for peer in self.world.peers]
        queries = [each for peer in machines if isinstance(peer, Peer) for each in peer.proxy.queries.values()]
        return sum(move.why.startswith(BETTER_PLACED) for each in queries for move in each.planning.placing.moves)

    @property
    def refused(self) -> int:
        return sum(asker.is_refused for asker in self._askers)

    @property
    def joins_apart(self) -> int:
        """How many joins run at another peer than the join that reads them."""
        machines = [peer.machine for peer in self.world.peers]
        queries = [each for peer in machines if isinstance(peer, Peer) for each in peer.proxy.queries.values()]
        choices = [each.planning.placing.choice for each in queries]
        return sum(len(choice.joins) for choice in choices if choice is not None)

    def due(self) -> list[str]:
        """What has not happened yet."""
        if not self._sources:
            return ["the streams have not been created"]
        left = sum(source.left for source in self._sources)
        if left:
            return [f"{left} rows have not been accepted"]
        if not all(source.has_finished for source in self._sources):
            return ["not every publisher has finished"]
        if not self._askers:
            return ["no query has been asked"]
        if self.oracle.altering is not None and not self.oracle.altering.is_over:
            return [f"the streams have not been altered: {self.oracle.altering.done}"]
        complaints = [complaint for asker in self._askers if (complaint := asker.complaint())]
        return complaints or disagreements(self.world.peers)
