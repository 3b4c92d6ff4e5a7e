"""What publishers say of themselves: that they are silent, idle or finished, and that they are there at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocols.catalogue.events import PublisherEntry, StreamFound, SubscriberEntry
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import wall_ms
from protocols.delivery.feed import Feed
from protocols.delivery.messages import (
    FINISHED_US,
    Heartbeat,
    OpenSubscription,
    Origin,
    Position,
    Publish,
    Published,
    Publishers,
    Punctuate,
    Silence,
    Silent,
    Subscribe,
    Subscribed,
)
from protocols.delivery.outbox import QUIET_MS, RETURN_MS, Greeting
from protocols.effects import Effect, Reply, Send
from protocols.events import PeerDown, Received, Requested, StoredBatch
from protocols.ids import PeerId
from protocols.limits import Limits
from protocols.messages import Answer, Done, Refused
from queries.schema import Schema
from tests.protocols.lone import ALONE, Lone

SCHEMA = Schema.parse("id int, at timestamp")
OTHER, BACKUP = PeerId(b"o" * 20), PeerId(b"b" * 20)
LIMITS = Limits()
STREAM = StreamDefinition(name="flights", schema=SCHEMA, event_time="at")


class Timed(Lone):
    """A peer alone, with a stream in event time and a reader that goes by the time of publishers."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        definition = msgspec.structs.replace(STREAM, **changes)
        assert isinstance(self.answer(CreateStream(definition=definition)), Done)
        self.reader = self.ask(
            OpenSubscription(stream="flights", subscription="q", since="start", heartbeats=True), within_ms=3000
        )

    def send(self, count: int = 1) -> Answer:
        rows = SCHEMA.encode([(number, _TIME) for number in range(count)])
        return self.answer(Publish(stream="flights", rows=rows, count=count))

    def said(self) -> list[Silence]:
        return [each.silence for each in self.answers[self.reader] if isinstance(each, Silent)]

    def met(self) -> list[tuple[Origin, ...]]:
        return [each.origins for each in self.answers[self.reader] if isinstance(each, Publishers)]


_TIME = SCHEMA.decode(SCHEMA.encode([SCHEMA.row({"id": 1, "at": "2026-05-01T12:00:00Z"})]))[0][1]


def test_a_reader_hears_of_silence_behind_the_last_tuple_and_of_idleness_after_a_while() -> None:
    lone = Timed()
    lone.send(2)
    lone.wait(LIMITS.heartbeat_ms)
    assert (lone.said()[-1].next, lone.said()[-1].is_idle) == (2, False)
    lone.wait(QUIET_MS)
    last = lone.said()[-1]
    assert (last.next, last.is_idle, last.before_us) == (2, True, None)
    assert lone.now - wall_ms(last.at) <= LIMITS.heartbeat_ms
    published = lone.send()
    assert isinstance(published, Published)
    assert published.stamp > last.at, "what comes later has a later stamp"


def test_a_reader_is_told_of_the_publishers_once() -> None:
    lone = Timed()
    assert lone.met() == [()]
    lone.send()
    lone.wait(10_000)
    (origin,) = lone.met()[-1]
    assert (len(lone.met()), origin.publisher) == (2, ALONE)


def test_silence_is_told_to_readers_that_have_everything_alone() -> None:
    origin = Origin(ALONE, "flights", 1)
    feed = Feed(origin, "log", LIMITS)
    feed.append(StoredBatch(0, 1, 5, b"rows"))
    for name, peer, heartbeats in (("q", OTHER, True), ("r", OTHER, True), ("s", BACKUP, False)):
        feed.accept(
            Subscribe(subscription=name, stream="flights", positions=(), since=0, credit=9, heartbeats=heartbeats), peer
        )
    said = Silence(origin, 1, 7)
    assert feed.beat(said, 10) == [], "the tuple is not on disk"
    feed.commit(1, now=0)
    assert feed.beat(said, 10) == [Send(OTHER, Heartbeat(subscriptions=("q", "r"), silence=said))]
    assert feed.beat(said, 10, only="r") == [Send(OTHER, Heartbeat(subscriptions=("r",), silence=said))]
    feed.unreachable(OTHER)
    assert feed.beat(said, 10) == [], "it may not have got the tuple"


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_publisher_that_has_finished_says_so_until_its_next_tuple_and_after_a_restart(snapshot: bool) -> None:
    lone = Timed()
    lone.send()
    assert isinstance(lone.answer(Punctuate(stream="flights", before_us=9)), Done)
    lone.wait(LIMITS.heartbeat_ms)
    assert lone.said()[-1].before_us == 9
    assert isinstance(lone.answer(Punctuate(stream="flights")), Done)
    lone.restart(snapshot=snapshot)
    lone.reader = lone.ask(
        OpenSubscription(stream="flights", subscription="r", since="start", heartbeats=True), within_ms=90_000
    )
    assert lone.said()[-1].before_us == FINISHED_US
    lone.send()
    lone.wait(LIMITS.heartbeat_ms)
    assert lone.said()[-1].before_us == 9


def test_a_publisher_that_restarts_is_not_idle_before_its_clients_are_back() -> None:
    lone = Timed()
    lone.send()
    lone.wait(60_000)
    lone.restart()
    outbox = lone.peer.publisher.outboxes["flights"]
    idle = [outbox.silence(lone.now + after_ms << 16).is_idle for after_ms in (RETURN_MS, RETURN_MS + QUIET_MS)]
    assert idle == [False, True]


def test_a_stream_can_say_how_long_a_silent_publisher_is_waited_for() -> None:
    lone = Timed(idle_ms=30_000)
    lone.send()
    lone.wait(29_000)
    assert (lone.said()[-1].is_idle, lone.said()[-1].before_us) == (False, None)
    lone.wait(2000)
    assert (lone.said()[-1].is_idle, lone.said()[-1].before_us) == (True, FINISHED_US)


def test_without_an_event_time_there_is_nothing_to_be_finished_with() -> None:
    lone = Lone()
    lone.create()
    lone.publish(1)
    refused = lone.answer(Punctuate(stream="flights"))
    assert isinstance(refused, Refused)
    assert "has no event time" in refused.error


def test_a_new_publisher_waits_until_readers_know_it_but_not_for_ever() -> None:
    lone = Lone()
    lone.answer(CreateStream(definition=STREAM))
    publisher = lone.peer.publisher
    lone.happen(Requested(70, Publish(stream="flights", rows=SCHEMA.encode([]), count=0)))
    outbox = publisher.outboxes["flights"]
    assert outbox.greeting is None, "nobody reads"
    assert lone.answers[70] == [Published(first=0, count=0, stamp=lone.peer.clock.latest)]

    def greeted(least_ms: int = 0) -> list[Effect]:
        """As a new publisher, when the catalogue lists a reader elsewhere."""
        outbox.greeting = Greeting(lone.now + LIMITS.greet_ms, lone.now + least_ms)
        row = SCHEMA.encode([(1, _TIME)])
        assert publisher.handle(Requested(71, Publish(stream="flights", rows=row, count=1)), lone.now) == []
        readers = (SubscriberEntry(subscription="q", peer=OTHER, heartbeats=True),)
        found = StreamFound(("publisher", "greet", "flights"), "flights", outbox.definition, (), readers)
        return publisher.handle(found, lone.now)

    lone.perform(greeted())
    before = outbox.feed.next
    subscribe = Subscribe(
        subscription="q", stream="flights", positions=(), since=0, credit=9, witness=lone.now + 9 << 16
    )
    lone.happen(Received(OTHER, subscribe))
    assert (outbox.feed.next, outbox.greeting) == (before + 1, None)
    assert outbox.feed.latest > subscribe.witness, "its tuples are later than all that the reader has heard of"
    outbox.feed.unsubscribe("q", OTHER)
    lone.perform(greeted())
    lone.wait(2 * LIMITS.greet_ms)
    assert (outbox.feed.next, outbox.greeting) == (before + 2, None), "the reader stayed away"
    lone.perform(greeted(LIMITS.greet_least_ms))
    lone.happen(Received(OTHER, subscribe))
    assert outbox.feed.next == before + 2, "others may begin with it"
    lone.wait(LIMITS.greet_least_ms)
    assert (outbox.feed.next, outbox.greeting) == (before + 3, None)


def test_a_backup_speaks_for_a_publisher_that_no_longer_keeps_an_origin() -> None:
    lone = Timed()
    subscriber, origin, now = lone.peer.subscriber, Origin(OTHER, "flights", 10), lone.now
    entry = PublisherEntry(peer=OTHER, epoch=10, backup=BACKUP)
    found = StreamFound(("subscriber", "poll", "q"), "flights", STREAM, (entry,))
    subscriber.handle(found, now)
    subscriber.handle(PeerDown(OTHER), now)  # So its backup is asked.
    serving = Subscribed(subscription="q", stream="flights", positions=(Position(origin, 0),))
    subscriber.handle(Received(BACKUP, serving), now)
    said = Heartbeat(subscriptions=("q",), silence=Silence(origin, 0, now << 16, is_idle=True))
    assert subscriber.handle(Received(BACKUP, said), now) == [], "the publisher may have more"
    denied = Subscribed(subscription="q", stream="flights", positions=())
    effects = subscriber.handle(Received(OTHER, denied), now)
    told = [each.answer for each in effects if isinstance(each, Reply)]
    assert told == [Publishers(origins=(origin,), over=(origin,))]
    assert subscriber.handle(Received(BACKUP, said), now) == [
        Reply(lone.reader, Silent(silence=said.silence), last=False)
    ]
