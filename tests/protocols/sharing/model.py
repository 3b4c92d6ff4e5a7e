"""A host that reads streams for many readers, over publishers that send within a credit and forget what was seen.

Random orders of everything that can happen. At the end every reader must have got each tuple that is due to it once
and in order, whoever came, went or slept meanwhile.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from protocols.catalogue.streams import READS_ALL
from protocols.clock import COUNT_BITS
from protocols.delivery.messages import (
    Batch,
    Heeded,
    Missed,
    NeedsChanged,
    Opened,
    OpenSubscription,
    Origin,
    Placed,
    Position,
    Publishers,
    ReadsChanged,
    Rows,
    Seen,
    Silence,
    Silent,
)
from protocols.delivery.needs import EVERYBODY, Needs, Sieved, skipped
from protocols.effects import Effect, Tell
from protocols.events import Abandoned, Requested
from protocols.ids import PeerId, RequestId
from protocols.inside import Inside
from protocols.limits import Limits
from protocols.messages import Refused
from protocols.part import Part, parts_of, timed_rows
from protocols.sharing.host import Outcome, StreamHost
from protocols.sharing.tap import Due, NoRows, Some, Tap, TapOpened
from protocols.sieve import selected
from queries.catalogue import Stream
from queries.compile import predicate_on_batch
from queries.expressions import EPOCH, MICROSECOND, columns_of, conjunction
from queries.plan import Source, sources
from queries.query import parse
from queries.schema import Row, Schema

SCHEMA: Final = Schema.parse("number int, part int, at timestamp")
STREAM: Final = "s"
SOURCE: Final = Source(STREAM, EVERYBODY, SCHEMA, None, "at")
WHERE: Final = (
    "",
    "part = 1",
    "part = 2 AND number > 5",
    "number > 3 AND number <= 40",
    "part = 1 OR number < 9",
    "part < 2",
)
STARVED: Final = 400  # So many steps without progress of a reader that does not sleep.


def parts_of_text(where: str) -> tuple:
    plan = parse(
        f"SELECT number FROM s{' WHERE ' + where if where else ''}", {STREAM: Stream(STREAM, SCHEMA, "at")}
    ).plan
    return selected(plan, sources(plan)[0].alias)


SELECTIONS: Final = tuple(parts_of_text(where) for where in WHERE)


@dataclass
class Log:
    """What one origin has published and not forgotten."""

    origin: Origin
    batches: list[Batch] = field(default_factory=list)
    kept_from: int = 0

    @property
    def next(self) -> int:
        return self.batches[-1].next if self.batches else 0

    def start(self, since: int) -> int:
        return next((each.first for each in self.batches if each.published_at >= since), self.next)


@dataclass
class Subscription:
    """One subscription, as publishers serve it."""

    command: OpenSubscription
    request: RequestId
    opened_at: int
    is_open: bool = False
    needs: Needs | None = None  # As the host stated them last,
    heeded: dict[Origin, Needs] = field(default_factory=dict)  # and as each publisher goes by them.
    sent: dict[Origin, int] = field(default_factory=dict)
    seen: dict[Origin, int] = field(default_factory=dict)
    unseen: deque[tuple[Origin, int, int]] = field(default_factory=deque)  # What the host holds, as it came.

    @property
    def unseen_bytes(self) -> int:
        while self.unseen and self.unseen[0][1] <= self.seen[self.unseen[0][0]]:
            self.unseen.popleft()
        return sum(size for _, _, size in self.unseen)


@dataclass(eq=False)
class Reader:
    """One reader of a tap: what it got, and how far it has said so."""

    tap: Tap
    wants: tuple
    starts: dict[Origin, int]
    since: int
    begun: dict[Origin, int] = field(default_factory=dict)
    at: dict[Origin, int] = field(default_factory=dict)
    rows: dict[Origin, list[Row]] = field(default_factory=dict)
    latest_us: dict[Origin, int] = field(default_factory=dict)
    unacked: deque[tuple[Position, ...]] = field(default_factory=deque)
    sleeps: bool = False
    is_open: bool = False
    silences: int = 0

    def keep(self, rows: list[Row] | tuple) -> list[Row]:
        return list(predicate_on_batch(conjunction(self.wants), SOURCE.columns)(rows))

    def shown(self, row: Row) -> Row:
        """A row in the columns that this reader reads."""
        columns = self.tap.columns
        names = [each.name for each in SCHEMA.fields]
        return tuple(row[at] if columns is None or name in columns else None for at, name in enumerate(names))


class World:
    """One run."""

    def __init__(self, seed: int, *, forgets: bool = False, limits: Limits | None = None) -> None:
        self.luck = random.Random(seed)
        self.seed = seed
        self.forgets = forgets  # Publishers keep only what is not acknowledged, as of a stream in memory.
        self.limits = limits or Limits(shared_bytes=100, credit_bytes=self.luck.choice([200, 800]), client_bytes_max=90)
        self.now = 1_700_000_000_000
        self.stamp = self.now << COUNT_BITS
        self.logs: dict[Origin, Log] = {}
        self.readers: list[Reader] = []
        self.gone: list[Reader] = []
        self.refused = 0
        self.numbers = 0
        self.shared_rows = self.joins = self.leaves = 0
        self.begin_host()

    def begin_host(self) -> None:
        self.host = StreamHost(PeerId(b"h" * 20), Inside(), "executor", self.limits)
        self.subscriptions: dict[RequestId, Subscription] = {}

    # Publishing.

    def tick(self, after_ms: int = 1) -> int:
        self.now += after_ms
        self.stamp = max(self.stamp + 1, self.now << COUNT_BITS)
        return self.stamp

    def new_origin(self) -> None:
        number = len(self.logs)
        origin = Origin(PeerId(bytes([number + 1]) * 20), STREAM, 1)
        self.logs[origin] = Log(origin)

    def publish(self) -> None:
        log = self.luck.choice(list(self.logs.values()))
        count = self.luck.randint(1, 3)
        rows = []
        for _ in range(count):
            self.numbers += 1
            late = timedelta(milliseconds=self.luck.randrange(2000))
            rows.append((self.numbers % 50, self.luck.randrange(3), EPOCH + timedelta(milliseconds=self.now) - late))
        log.batches.append(Batch(log.origin, log.next, count, self.tick(self.luck.randint(1, 20)), SCHEMA.encode(rows)))

    def forget(self) -> None:
        """Drop what every subscription has seen."""
        for log in self.logs.values():
            if self.subscriptions:
                places = [
                    each.seen.get(log.origin, log.start(each.command.since)) for each in self.subscriptions.values()
                ]  # type: ignore[arg-type]
                log.kept_from = max(log.kept_from, min(places))

    # Readers.

    def join(self, resume: Reader | None = None) -> Reader:
        """A new query, or the next attempt of one."""
        luck = self.luck
        if resume is None:
            since = (
                self.tick() if luck.random() < 0.7 or self.forgets else luck.choice([0, self.stamp - (5 << COUNT_BITS)])
            )
            wants = luck.choice(SELECTIONS)
            starts: dict[Origin, int] = {}
        else:
            since, wants, starts = resume.since, resume.wants, dict(resume.tap.acked)
        read = [each.path[0] for part in wants for each in columns_of(part)]
        columns = tuple(
            each.name for each in SCHEMA.fields if each.name in ("at", *read, luck.choice(["number", "part"]))
        )
        tap = Tap(
            name=f"q{len(self.readers) + len(self.gone)}",
            stream=STREAM,
            since=since,
            source=SOURCE,
            parts=wants if luck.random() < 0.8 else None,
            needed=wants,
            columns=columns if luck.random() < 0.7 else None,
            reads=READS_ALL,
            is_timed=luck.random() < 0.5,
            known=tuple(self.logs) if luck.random() < 0.5 else (),
            is_private=luck.random() < 0.1,
            places=dict(starts),
        )
        reader = Reader(tap, wants, starts, since)
        reader.sleeps = luck.random() < 0.15
        self.readers.append(reader)
        self.perform(self.host.attach(tap, self.now))
        return reader

    def leave(self, reader: Reader) -> None:
        self.readers.remove(reader)
        self.gone.append(reader)
        self.perform((self.host.detach(reader.tap), []))

    def restart(self) -> None:
        """The host crashes. Its readers go on behind what they had processed."""
        before, self.readers = self.readers, []
        self.gone += before
        self.begin_host()
        for each in before:
            if not self.forgets:  # Else the tuples would be gone: that is what such a stream promises.
                self.join(each)

    # Effects.

    def perform(self, outcome: Outcome) -> None:
        effects, due = outcome
        for effect in effects:
            self.do(effect)
        for each in due:
            if not each.tap.is_over:
                self.take(each)
        for effect in self.host.settled():
            self.do(effect)
        self.host.validate()

    def do(self, effect: Effect) -> None:
        assert isinstance(effect, Tell)
        match effect.event:
            case Requested(request=request, command=OpenSubscription() as command):
                self.subscriptions[request] = Subscription(command, request, self.stamp, needs=command.needs)
            case NeedsChanged():
                for each in self.subscriptions.values():
                    if each.command.subscription == effect.event.subscription:
                        assert each.needs is not None
                        assert effect.event.needs.version > each.needs.version
                        each.needs = effect.event.needs
                        each.needs.check()
            case Requested(command=Seen() as command):
                for each in self.subscriptions.values():
                    if each.command.subscription == command.subscription:
                        for position in command.positions:
                            upto = min(position.next, each.sent.get(position.origin, 0))
                            each.seen[position.origin] = max(each.seen.get(position.origin, 0), upto)
            case Abandoned(request=request):
                del self.subscriptions[request]
            case ReadsChanged():
                return
            case other:
                raise AssertionError(other)

    def take(self, due: Due) -> None:
        reader = next(each for each in self.readers if each.tap is due.tap)
        what = due.what
        match what:
            case TapOpened():
                reader.is_open = True
            case Part():
                self.check_places(reader, what)
                self.got(reader, what.origin, what.first, what.next, list(what.rows), what.published_at)
                self.note(reader, what.origin, what.latest_us)
            case Some(part=part, rows=rows):
                assert reader.tap.parts is not None
                assert what.first <= part.first, f"seed={self.seed}"
                self.got(reader, part.origin, what.first, part.next, list(rows), part.published_at, is_sieved=True)
                self.note(reader, part.origin, what.latest_us)
            case Batch():
                for part in parts_of(SCHEMA, "at", what):
                    self.check_places(reader, part)
                    self.got(reader, part.origin, part.first, part.next, list(part.rows), part.published_at)
                    self.note(reader, part.origin, part.latest_us)
            case Publishers() | Silence():
                if isinstance(what, Silence):
                    reader.silences += 1
                    at = reader.at.get(what.origin)
                    assert at in (what.next, None), f"seed={self.seed}: silent behind {what.next}, but it is at {at}"
            case NoRows():
                for each in what.passed:
                    self.got(reader, each.origin, each.first, each.next, [], each.stamp, is_sieved=True)
                    self.note(reader, each.origin, each.latest_us)
            case Missed() | Refused():
                raise AssertionError(f"seed={self.seed}: {what} for {reader.tap.name}")
            case other:
                raise AssertionError(other)

    def check_places(self, reader: Reader, part: Part) -> None:
        log = self.logs[part.origin]
        for place, row in zip(part.places, part.rows, strict=True):
            batch = next(each for each in log.batches if each.next > place)
            published = SCHEMA.decode(batch.rows)[place - batch.first]
            assert reader.shown(row) == reader.shown(published), f"seed={self.seed}: another tuple stands at {place}"

    def note(self, reader: Reader, origin: Origin, latest_us: int) -> None:
        reader.latest_us[origin] = max(latest_us, reader.latest_us.get(origin, latest_us))

    def got(
        self,
        reader: Reader,
        origin: Origin,
        first: int,
        upto: int,
        rows: list[Row],
        stamp: int,
        *,
        is_sieved: bool = False,
    ) -> None:
        at = reader.at.get(origin, reader.starts.get(origin))
        message = (
            f"seed={self.seed}: {reader.tap.name} is at {at} of {origin.publisher.short} and gets {first} to {upto}"
        )
        assert stamp >= reader.since, message
        assert at is None or at == first, message
        reader.at[origin] = upto
        reader.begun.setdefault(origin, first)
        kept = rows if is_sieved else reader.keep(rows)
        reader.rows.setdefault(origin, []).extend(map(reader.shown, kept))
        reader.unacked.append((Position(origin, upto),))

    def acknowledge(self, reader: Reader) -> None:
        for _ in range(self.luck.randint(1, len(reader.unacked))):
            self.perform((self.host.acknowledge(reader.tap, reader.unacked.popleft()), []))

    # What publishers do.

    def serve(self, subscription: Subscription) -> None:
        """One thing that a subscription gets next."""
        luck, request, command = self.luck, subscription.request, subscription.command
        if not subscription.is_open and (command.known or luck.random() < 0.5):
            subscription.is_open = True
            self.answer(request, Opened(subscription=command.subscription, stamp=self.stamp))
            return
        positions = {each.origin: each.next for each in command.positions}
        unplaced = [log for log in self.logs.values() if log.origin not in subscription.sent]
        if unplaced and luck.random() < 0.5:
            log = luck.choice(unplaced)
            assert isinstance(command.since, int)
            place = min(positions.get(log.origin, log.start(command.since)), log.next)
            if log.origin not in positions and command.since < subscription.opened_at:
                place = max(place, log.kept_from)  # What was forgotten before it began is due to nobody.
            subscription.sent[log.origin] = subscription.seen[log.origin] = place
            if command.places:
                self.answer(request, Placed(positions=(Position(log.origin, place),)))
            return
        ready = [self.logs[origin] for origin, upto in subscription.sent.items() if upto < self.logs[origin].next]
        if not ready:
            self.hush(subscription)
            return
        log = luck.choice(ready)
        at, seen = subscription.sent[log.origin], subscription.seen[log.origin]
        if at < log.kept_from:  # No reader may hear of it: what is gone, it has processed.
            subscription.sent[log.origin] = log.kept_from
            self.answer(request, Missed(origin=log.origin, first=at, next=log.kept_from))
            return
        in_flight = sum(len(each.rows) + 128 for each in log.batches if seen < each.next <= at)
        if in_flight >= self.limits.credit_bytes or subscription.unseen_bytes >= self.limits.client_bytes_max:
            return
        place = next(number for number, each in enumerate(log.batches) if each.next > at)
        batches = log.batches[place : place + luck.randint(1, 3)]
        first = batches[0]
        if first.first < at:
            rows = SCHEMA.decode(first.rows)[at - first.first :]
            batches[0] = Batch(log.origin, at, len(rows), first.published_at, SCHEMA.encode(rows))
        batches = self.sieved(batches, subscription.heeded.get(log.origin))
        subscription.sent[log.origin] = batches[-1].next
        subscription.unseen += [(each.origin, each.next, len(each.rows)) for each in batches]
        self.answer(request, Rows(batches=tuple(batches)))

    def sieved(self, batches: list[Batch], needs: Needs | None) -> list[Batch]:
        """Row by row, without what the reader does not need; empty batches may become one span."""
        if needs is None or needs.is_everything:
            return batches
        found: list[Batch] = []
        for batch in batches:
            rows = timed_rows(SCHEMA, "at", batch)
            keeps = [predicate_on_batch(conjunction(parts), needs.source.columns) for parts in needs.conjunctions]
            numbers = [number for number, row in enumerate(rows) if any(keep([row]) for keep in keeps)]
            names = [each.name for each in SCHEMA.fields]
            thin = [
                tuple(
                    rows[number][at] if needs.columns is None or name in needs.columns else None
                    for at, name in enumerate(names)
                )
                for number in numbers
            ]
            latest_us = max((row[3] - EPOCH) // MICROSECOND for row in rows)
            sieved = Sieved(needs.version, skipped(numbers), latest_us)
            first = batch.first
            last = found[-1] if found else None
            if last is not None and last.sieved is not None and not last.sieved.skipped and not numbers:
                found.pop()
                first, sieved = last.first, Sieved(needs.version, (), max(latest_us, last.sieved.latest_us))
            count = batch.next - first
            found.append(Batch(batch.origin, first, count, batch.published_at, SCHEMA.encode(thin), sieved))
            found[-1].check()
        return found

    def heed(self, subscription: Subscription) -> None:
        """A publisher hears what is needed; or it says by which needs it goes. One of an older release never does."""
        if subscription.needs is None or not subscription.sent:
            return
        origin = self.luck.choice(list(subscription.sent))
        is_old = origin.publisher == PeerId(bytes([2]) * 20)
        if not is_old and self.luck.random() < 0.5:
            subscription.heeded[origin] = subscription.needs
        elif is_old or origin in subscription.heeded:
            version = subscription.needs.version if is_old else subscription.heeded[origin].version
            self.answer(subscription.request, Heeded(origin=origin, version=version))

    def hush(self, subscription: Subscription) -> None:
        if subscription.sent and subscription.command.heartbeats:
            origin = self.luck.choice(list(subscription.sent))
            silence = Silence(origin, self.logs[origin].next, self.tick())
            if subscription.sent[origin] == silence.next:
                self.answer(subscription.request, Silent(silence=silence))

    def answer(self, request: RequestId, answer: object) -> None:
        self.perform(self.host.answered(request, answer, self.now))  # type: ignore[arg-type]

    # A run.

    def step(self) -> None:  # noqa: C901 - one branch for each thing that happens
        luck = self.luck
        awake = [each for each in self.readers if each.unacked and not each.sleeps]
        kinds = ["publish", "serve", "ack", "catch up", "tick", "join", "leave", "origin", "wake", "restart", "heed"]
        weights = [6.0, 14, 8, 3, 1, 0.8, 0.5, 0.05, 0.3, 0.05, 3]
        match luck.choices(kinds, weights)[0]:
            case "publish" if self.logs:
                self.publish()
            case "serve" if self.subscriptions:
                self.serve(luck.choice(list(self.subscriptions.values())))
            case "heed" if self.subscriptions:
                self.heed(luck.choice(list(self.subscriptions.values())))
            case "ack" if awake:
                self.acknowledge(luck.choice(awake))
            case "catch up" if self.readers:
                self.catch_up(luck.choice(self.readers))
            case "tick":
                self.now += luck.choice([100, 1000, 11_000])
                self.perform(self.host.tick(self.now))
            case "join" if len(self.readers) < 12:
                self.join()
            case "leave" if self.readers:
                self.leave(luck.choice(self.readers))
            case "origin" if len(self.logs) < 4:
                self.new_origin()
            case "wake" if self.readers:
                reader = luck.choice(self.readers)
                reader.sleeps = not reader.sleeps
            case "restart":
                self.restart()
        if self.forgets:
            self.forget()

    def catch_up(self, reader: Reader) -> None:
        self.perform(([], self.host.catch_up(reader.tap)))

    def settle(self) -> None:
        """Nothing new comes; everything that is under way arrives. Who sleeps sleeps on."""
        for _ in range(STARVED):
            self.now += 200
            self.perform(self.host.tick(self.now))
            for each in list(self.subscriptions.values()):
                if each.request in self.subscriptions:
                    self.heed(each)
                if each.request in self.subscriptions:
                    self.serve(each)
            for reader in list(self.readers):
                if reader.unacked and not reader.sleeps:
                    self.acknowledge(reader)
                self.catch_up(reader)

    def due(self, reader: Reader, log: Log) -> list[Row]:
        start = reader.starts.get(log.origin, log.start(reader.since))
        rows = [row for each in log.batches for row in SCHEMA.decode(each.rows)][start:]
        return [reader.shown(row) for row in reader.keep([(*row, row[2]) for row in rows])]

    def check_time(self, reader: Reader, log: Log) -> None:
        """A reader knows the latest time of all tuples that it has passed, needed or not."""
        rows = [row for each in log.batches for row in SCHEMA.decode(each.rows)]
        times = [(row[2] - EPOCH) // MICROSECOND for row in rows]
        if log.origin in reader.begun:
            begun, at, known = reader.begun[log.origin], reader.at[log.origin], reader.latest_us[log.origin]
            assert max(times[begun:at]) <= known <= max(times[:at]), f"seed={self.seed}: {reader.tap.name}"

    def check(self) -> None:
        """Every reader that does not sleep has all that is due to it; nobody has anything else."""
        for reader in self.readers:
            assert reader.is_open, f"seed={self.seed}: {reader.tap.name} was never told that it is open"
            for log in self.logs.values():
                self.check_time(reader, log)
                expected, rows = self.due(reader, log), reader.rows.get(log.origin, [])
                where = f"seed={self.seed}: {reader.tap.name} of {log.origin.publisher.short}"
                if reader.sleeps:
                    assert rows == expected[: len(rows)], where
                else:
                    assert rows == expected, f"{where}: {len(rows)} of {len(expected)} rows, {reader.tap}"


def play(seed: int, steps: int = 600, *, forgets: bool = False) -> World:
    world = World(seed, forgets=forgets)
    world.new_origin()
    for _ in range(steps):
        world.step()
    world.settle()
    world.check()
    return world
