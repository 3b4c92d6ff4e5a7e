"""One host with window aggregates that come, go and begin again at any moment, over two publishers of one stream.

At the end each query must have told what the reference evaluator says of the rows since its insertion, and each of its
attempts must have made what it makes alone of the same inputs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import msgspec

from protocols.clock import COUNT_BITS
from protocols.delivery.messages import (
    FINISHED_US,
    Batch,
    Heeded,
    Opened,
    OpenSubscription,
    Origin,
    Placed,
    Position,
    Publishers,
    Rows,
    Silent,
)
from protocols.effects import Effect, SetTimer, Tell
from protocols.events import Abandoned, Answered, Event, Received, Requested, TimerFired
from protocols.execution.aggregation import Aggregations, View, WindowRun
from protocols.execution.cut import cut, introduced
from protocols.execution.executor import MORE, WORK
from protocols.ids import RequestId
from protocols.subgraphs import (
    PATIENCE_MS,
    DeployRefused,
    Lease,
    ResultsReady,
    ResultsSafe,
    Sharing,
    SubgraphStatus,
    Undeploy,
)
from queries.catalogue import Stream
from queries.expressions import EPOCH, MICROSECOND
from queries.plan import Operator, last_result_us
from queries.query import parse
from queries.reference import Tuple, evaluate
from queries.schema import Row
from tests.protocols.execution.parts import LEFT, PROXY, SOUTH, WEIGHED, Host, Results, at, deploy_of, silence

ORIGINS: Final = (LEFT, Origin(SOUTH, "left", 1))
BEGIN_MS: Final = 1_700_000_000_000
JITTER_S: Final = 15
AGGREGATES: Final = (
    "count(*)",
    "sum(weight)",
    "avg(number)",
    "min(number)",
    "max(weight)",
    "stddev(number)",
    "count(DISTINCT number)",
)
EVERY_VERSION: Final = 1 << 30  # Of what the host needs of a stream.
WHERE: Final = ("", "WHERE number <> 2", "WHERE weight > 0 AND number < 4")
KEYS: Final = ("part", "part, number")


def a_text(luck: random.Random) -> str:
    keys, size, slide = luck.choice(KEYS), luck.randrange(1, 13), luck.randrange(10)
    wanted = ", ".join(f"{each} AS a{n}" for n, each in enumerate(luck.sample(AGGREGATES, luck.randrange(1, 4))))
    window = f"[RANGE {size} SECONDS{f' SLIDE {slide} SECONDS' if slide else ''}]"
    having = luck.choice(("", "", "HAVING count(*) > 1"))
    return f"SELECT {keys}, {wanted} FROM left {window} {luck.choice(WHERE)} GROUP BY {keys} {having}"


@dataclass
class Query:
    """One query at the host."""

    name: str
    text: str
    since: int
    sharing: Sharing
    attempt: int = 1
    results: Results = field(default_factory=Results)
    windows_with: int | None = None  # As its host has said last.


@dataclass
class Subscription:
    """One subscription, as publishers serve it."""

    command: OpenSubscription
    is_open: bool = False
    sent: dict[Origin, int] = field(default_factory=dict)


@dataclass
class Attempt:
    """All inputs of one run, and what it made of each."""

    plan: Operator
    closed_until_us: int | None
    fed: list[tuple[int, str, Sequence[Row], bool, int | None, bool]] = field(default_factory=list)
    made: dict[int, list[Row]] = field(default_factory=dict)

    def alone(self) -> dict[int, list[Row]]:
        """What it makes of the same inputs by itself; without rows that are in none of its open windows."""
        run = Aggregations().enter("alone", self.plan, self.closed_until_us)
        closed_us = self.closed_until_us
        made: dict[int, list[Row]] = {}
        for number, alias, rows, is_new, watermark_us, _ in self.fed:
            run.feed(
                number, alias, [row for row in rows if not self._is_late(row, alias, closed_us)], is_new, watermark_us
            )
            if watermark_us is not None:
                closed_us = watermark_us if closed_us is None else max(closed_us, watermark_us)
            while run.aggregation.has_work:
                run.aggregation.work()
                note(run, made)
        return made

    def _is_late(self, row: Row, alias: str, closed_us: int | None) -> bool:
        time_us = (row[-1] - EPOCH) // MICROSECOND
        last_us = last_result_us(self.plan, alias, time_us)
        return closed_us is not None and last_us is not None and time_us < last_us <= closed_us


def note(run: WindowRun, made: dict[int, list[Row]]) -> None:
    begun: list[Row] = []
    for each in run.taken():
        begun += each.rows
        if each.number is not None:
            made[each.number] = begun
            begun = []


class World:
    """One host, its publishers and its queries."""

    def __init__(self, luck: random.Random, *, lateness_ms: int = JITTER_S * 1000 + 5000) -> None:
        self.luck = luck
        self.stream = Stream("left", WEIGHED, "at", lateness_ms)
        self.host = Host(peer=PROXY)
        self.host.now = BEGIN_MS
        self.stamp = BEGIN_MS << COUNT_BITS
        self.logs: dict[Origin, list[Batch]] = {origin: [] for origin in ORIGINS}
        self.rows: dict[Origin, list[tuple[int, Row]]] = {origin: [] for origin in ORIGINS}  # With their stamps.
        self.subscriptions: dict[RequestId, Subscription] = {}
        self.queries: dict[str, Query] = {}
        self.timers: dict[str, None] = {}
        self.attempts: dict[str, Attempt] = {}
        self.counted = 0

    # What happens.

    def publish(self, origin: Origin, count: int) -> None:
        first = len(self.rows[origin])
        rows: list[Row] = [
            (self.luck.randrange(5), self.luck.randrange(3), self.luck.choice((0.1, 0.2, 1e17, -1e17, 3.5)),
             at((first + place) * 0.7 - self.luck.randrange(JITTER_S)))
            for place in range(count)
        ]  # fmt: skip
        self.host.now += self.luck.randrange(20)
        self.stamp = max(self.stamp + 1, self.host.now << COUNT_BITS)
        self.logs[origin].append(Batch(origin, first, count, self.stamp, WEIGHED.encode(rows)))
        self.rows[origin] += [(self.stamp, row) for row in rows]

    def serve(self, request: RequestId) -> bool:
        """One thing that a subscription gets next; whether there was one."""
        subscription = self.subscriptions[request]
        if not subscription.is_open:
            self._open(request, subscription)
            return True
        for origin in self.luck.sample(ORIGINS, len(ORIGINS)):
            behind = [each for each in self.logs[origin] if each.next > subscription.sent[origin]]
            if behind:
                some = behind[: self.luck.randrange(1, 4)]
                subscription.sent[origin] = some[-1].next
                self.answer(request, Rows(batches=tuple(some)))
                return True
        return False

    def _open(self, request: RequestId, subscription: Subscription) -> None:
        subscription.is_open = True
        since = subscription.command.since
        assert isinstance(since, int)
        places = {each.origin: each.next for each in subscription.command.positions}
        for origin in ORIGINS:
            begin = next((each.first for each in self.logs[origin] if each.published_at >= since), None)
            begin = len(self.rows[origin]) if begin is None else begin
            # Batches come whole: what lies before the place is cut off by the host.
            place = places.get(origin, begin)
            subscription.sent[origin] = place
        self.answer(request, Opened(subscription="s", stamp=self.stamp))
        self.answer(request, Publishers(origins=ORIGINS))
        if request in self.subscriptions:
            positions = tuple(Position(origin, upto) for origin, upto in subscription.sent.items())
            self.answer(request, Placed(positions=positions))
            for origin in ORIGINS:  # Nothing is ever left out.
                self.answer(request, Heeded(origin=origin, version=EVERY_VERSION))

    def answer(self, request: RequestId, answer: Any) -> None:
        if request in self.subscriptions:
            self.happen(Answered(request, answer, last=False))

    def ask(self, text: str, sharing: Sharing = "auto") -> Query:
        self.counted += 1
        self.stamp += 1
        name = f"q{self.counted}.1"
        query = self.queries[name] = Query(name, text, self.stamp, sharing)
        self.deploy(query)
        return query

    def deploy(self, query: Query) -> None:
        plan = parse(query.text, {"left": self.stream}).plan
        made = introduced(cut(query.name, plan, query.since, {}, PROXY, PROXY, "auto"), {}, PATIENCE_MS, query.sharing)
        deploy = deploy_of(made.subgraphs[0], attempt=query.attempt, resume=query.results.note)
        self.happen(Received(PROXY, msgspec.structs.replace(deploy, query=query.name)))

    def restart(self, query: Query) -> None:
        """The attempt of one query is lost; the next one begins at once."""
        query.results.lose(self.luck)
        query.results.begin()
        query.attempt += 1
        self.deploy(query)

    def stop(self, query: Query) -> None:
        del self.queries[query.name]
        self.happen(Received(PROXY, Undeploy(query=query.name, attempt=query.attempt)))

    def fire(self, name: str) -> None:
        del self.timers[name]
        self.happen(TimerFired(name))

    def tick(self) -> None:
        self.host.now += 100
        self.happen(TimerFired("executor/tick"))
        for query in list(self.queries.values()):
            self.happen(Received(PROXY, Lease(query=query.name, attempt=query.attempt)))

    # What comes of it.

    def happen(self, event: Event) -> None:
        pending: list[Event] = [event]
        while pending:
            for effect in self.host.happen(pending.pop(0)):
                pending += self.perform(effect)

    def perform(self, effect: Effect) -> list[Event]:
        match effect:
            case Tell(event=Requested(request=request, command=OpenSubscription() as command)):
                self.subscriptions[request] = Subscription(command)
            case Tell(event=Abandoned(request=request)):
                del self.subscriptions[request]
            case Tell(event=ResultsReady() as ready):
                query = self.queries.get(ready.query)
                if query is not None and query.attempt == ready.attempt:
                    query.results.hear(ready.rows, ready.progress)
                return [ResultsSafe(ready.query, ready.attempt)]
            case Tell(event=Received(message=DeployRefused() as refused)):
                raise AssertionError(refused)
            case Tell(event=Received(message=SubgraphStatus() as status)) if status.query in self.queries:
                self.queries[status.query].windows_with = status.windows_with
            case SetTimer(name=name) if name in (MORE, WORK):
                self.timers[name] = None
        return []

    def step(self) -> None:
        luck, queries = self.luck, list(self.queries.values())
        kinds = ["publish", "serve", "fire", "tick", "ask", "restart", "stop"]
        match luck.choices(kinds, [5.0, 8, 8, 2, 1.2, 0.7, 0.5])[0]:
            case "publish":
                self.publish(luck.choice(ORIGINS), luck.randrange(1, 7))
            case "serve" if self.subscriptions:
                self.serve(luck.choice(list(self.subscriptions)))
            case "fire" if self.timers:
                self.fire(luck.choice(list(self.timers)))
            case "tick":
                self.tick()
            case "ask" if len(queries) < 8:
                self.ask(a_text(luck))
            case "restart" if queries:
                self.restart(luck.choice(queries))
            case "stop" if queries:
                self.stop(luck.choice(queries))

    def settle(self) -> None:
        """All that was published is read; then both publishers say that there is no more."""
        while any(self.serve(request) for request in list(self.subscriptions) if request in self.subscriptions):
            self.drain()
        for _ in range(30):
            self.tick()
            self.drain()
            for request in list(self.subscriptions):
                if request in self.subscriptions:
                    self.serve(request)
                for origin in ORIGINS:
                    silence = self.silence(origin)
                    if request in self.subscriptions and self.subscriptions[request].sent.get(origin) == silence.next:
                        self.answer(request, Silent(silence=silence))
            self.drain()

    def silence(self, origin: Origin) -> Any:
        upto = len(self.rows[origin])
        return silence(origin, upto, at_ms=self.host.now, is_idle=False, before_us=FINISHED_US)

    def drain(self) -> None:
        while self.timers:
            self.fire(next(iter(self.timers)))

    # What is true at the end.

    def expected(self, query: Query) -> Counter[Row]:
        patient = parse(query.text, {"left": Stream("left", WEIGHED, "at", 1 << 40)}).plan
        tuples = [
            Tuple(at(0), row, f"{origin.publisher.short}/{place}")
            for origin in ORIGINS
            for place, (stamp, row) in enumerate(self.rows[origin])
            if stamp >= query.since
        ]
        return Counter(each.row for each in evaluate(patient, {"left": tuples}))

    def check_results(self) -> None:
        for query in self.queries.values():
            assert query.results.all == self.expected(query), query

    def check_attempts(self) -> None:
        """Each attempt has made of its inputs what it makes of them alone."""
        for name, attempt in self.attempts.items():
            alone = attempt.alone()
            for number, rows in attempt.made.items():
                assert Counter(rows) == Counter(alone[number]), f"{name}: input {number}"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what every attempt gets and makes."""
        enter, feed, taken = Aggregations.enter, WindowRun.feed, WindowRun.taken
        attempts = self.attempts

        def entering(
            each: Aggregations, name: str, plan: Operator, closed: int | None, views: dict[str, View] | None
        ) -> WindowRun:
            attempts[name] = Attempt(plan, closed)
            return enter(each, name, plan, closed, views)

        def feeding(
            run: WindowRun, number: int, alias: str, rows: Any, is_new: bool, watermark: Any, *, is_common: bool
        ) -> None:
            attempts[run.name].fed.append((number, alias, rows, is_new, watermark, is_common))
            feed(run, number, alias, rows, is_new, watermark, is_common=is_common)

        def taking(run: WindowRun) -> Any:
            made = taken(run)
            for each in made:
                found = attempts[run.name].made
                number = each.number if each.number is not None else max(found, default=0) + 1
                found.setdefault(number, []).extend(each.rows)
            return made

        with (
            patch.object(Aggregations, "enter", entering),
            patch.object(WindowRun, "feed", feeding),
            patch.object(WindowRun, "taken", taking),
        ):
            yield


def play(luck: random.Random, steps: int = 150, *, lateness_ms: int | None = None) -> World:
    world = World(luck) if lateness_ms is None else World(luck, lateness_ms=lateness_ms)
    with world.watched():
        for _ in range(steps):
            world.step()
        world.settle()
    if lateness_ms is None:
        world.check_results()
    world.check_attempts()
    return world
