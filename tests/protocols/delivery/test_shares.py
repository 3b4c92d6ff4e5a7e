"""Several readers of one stream: each publisher has one of them, whatever becomes of it, and waits for no other."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocols.catalogue.events import PublisherEntry, StreamFound
from protocols.catalogue.shares import WHOLE, PublisherShare
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import Opened, OpenSubscription, Origin, Position, Seen, Subscribe, Subscribed
from protocols.effects import Effect, Send
from protocols.events import PeerDown, Received, Requested
from protocols.ids import ID_BYTES, PeerId
from protocols.messages import Refused
from tests.protocols.lone import ALONE, SCHEMA, Lone

MINE, OTHERS = (PublisherShare(number, 2) for number in (ALONE.number % 2, 1 - ALONE.number % 2))
SECOND, THIRD, COPY = (PeerId(bytes([1] * 19 + [last])) for last in (2, 3, 9))  # Of shares 0 and 1, and their backup.
STREAM = StreamDefinition(name="flights", schema=SCHEMA)


def test_each_publisher_is_in_one_share_of_those_there_are() -> None:
    rng = random.Random(5)
    for of in range(1, 9):
        shares = [PublisherShare(number, of) for number in range(of)]
        found = Counter[PublisherShare]()
        for _ in range(800):
            publisher = PeerId(rng.randbytes(ID_BYTES))
            (its,) = [share for share in shares if share.has(publisher)]
            found[its] += 1
        assert min(found[share] for share in shares) > 800 / of / 2, "about as many in each"


@pytest.mark.parametrize("share", [PublisherShare(0, 0), PublisherShare(2, 2), PublisherShare(-1, 2)])
def test_a_share_that_cannot_be_has_nobody(share: PublisherShare) -> None:
    assert not share.is_sound
    assert not share.has(ALONE)
    refused = Lone().answer(OpenSubscription(stream="flights", subscription="s", share=share))
    assert isinstance(refused, Refused)
    assert refused.code == "invalid"


def test_a_publisher_waits_for_the_reader_that_has_it_and_for_no_other() -> None:
    lone = Lone()
    lone.create()
    mine = lone.ask(OpenSubscription(stream="flights", subscription="mine", share=MINE), within_ms=3000)
    others = lone.ask(OpenSubscription(stream="flights", subscription="others", share=OTHERS), within_ms=3000)
    assert isinstance(lone.answers[others][0], Opened), "it may have publishers later"
    lone.publish(1, 2)
    lone.wait(15_000)
    assert (lone.read(mine), lone.read(others)) == ([1, 2], [])
    lone.ask(Seen(subscription="mine", positions=lone.positions(mine)), within_ms=15_000)
    feed = lone.peer.publisher.outboxes["flights"].feed
    assert list(feed.consumers) == ["mine"]
    assert feed.processed == 2


def opened(share: PublisherShare) -> Lone:
    lone = Lone()
    lone.create()
    lone.ask(OpenSubscription(stream="flights", subscription="s", since="start", share=share), within_ms=3000)
    return lone


def asked(effects: list[Effect]) -> list[tuple[PeerId, tuple[Origin, ...]]]:
    return [
        (each.peer, each.message.copies_of)
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, Subscribe)
    ]


@pytest.mark.parametrize(("number", "publisher"), [(0, SECOND), (1, THIRD)])
def test_a_reader_asks_the_publishers_of_its_share_in_all_their_lives_and_whoever_has_a_copy(
    number: int, publisher: PeerId
) -> None:
    lone = opened(PublisherShare(number, 2))
    entries = tuple(
        PublisherEntry(peer=peer, epoch=epoch, backup=COPY) for peer in (SECOND, THIRD) for epoch in (10, 20)
    )
    found = StreamFound(("subscriber", "poll", "s"), "flights", STREAM, entries)
    subscriber = lone.peer.subscriber
    assert asked(subscriber.handle(found, lone.now)) == [(publisher, ())]
    before, after = (Origin(publisher, "flights", epoch) for epoch in (10, 20))
    serving = Subscribed(subscription="s", stream="flights", positions=(Position(after, 0),))
    assert asked(subscriber.handle(Received(publisher, serving), lone.now)) == [(COPY, (before,))]
    assert asked(subscriber.handle(PeerDown(publisher), lone.now)) == [(COPY, (after,))]
    other = THIRD if publisher == SECOND else SECOND
    assert asked(subscriber.handle(PeerDown(other), lone.now)) == []


def test_origins_that_are_told_beforehand_are_shared_as_well() -> None:
    lone = Lone()
    lone.create()
    known = tuple(Origin(peer, "flights", 10) for peer in (SECOND, THIRD))
    command = OpenSubscription(stream="flights", subscription="s", known=known, share=PublisherShare(1, 2))
    assert asked(lone.peer.subscriber.handle(Requested(7, command), lone.now)) == [(THIRD, ())]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_kept_share_is_the_same_after_a_restart_and_cannot_become_another(snapshot: bool) -> None:
    lone = Lone()
    lone.create()
    command = OpenSubscription(stream="flights", subscription="s", since="start", keep=True, share=OTHERS)
    lone.ask(command, within_ms=5000)
    lone.publish(1)
    lone.restart(snapshot=snapshot)
    assert lone.peer.subscriber.subscriptions["s"].share == OTHERS
    refused = lone.answer(OpenSubscription(stream="flights", subscription="s", share=WHOLE))
    assert isinstance(refused, Refused)
    assert refused.code == "exists"
    again = lone.ask(command, within_ms=90_000)
    assert lone.read(again) == []
