"""The feed of one origin: in order, within credit, again when lost, and honest about what is gone."""

from __future__ import annotations

import random

import pytest

from protocols.delivery.feed import BATCH_OVERHEAD_BYTES, Feed
from protocols.delivery.messages import Batch, BatchMessage, Gap, Origin, Subscribe
from protocols.effects import Effect, ReadLog, ReleaseLog, Send
from protocols.events import LogBounds, StoredBatch
from protocols.ids import PeerId
from protocols.limits import Limits

PUBLISHER, READER = PeerId(b"p" * 20), PeerId(b"r" * 20)
ORIGIN = Origin(PUBLISHER, "flights", 1)
BATCH = 20 + BATCH_OVERHEAD_BYTES  # What one tuple below counts for on its way.
SMALL = Limits(recent_bytes=100, message_bytes=3 * BATCH, credit_bytes=6 * BATCH, resend_after_ms=100)


def stored(first: int, count: int = 1, stamp: int = 0) -> StoredBatch:
    return StoredBatch(first, count, stamp or first + 1, b"x" * 20 * count)


def feed_with(count: int, limits: Limits = SMALL) -> Feed:
    feed = Feed(ORIGIN, "out/flights/1", limits)
    for number in range(count):
        feed.append(stored(number))
    return feed


def batches_in(effects: list[Effect]) -> list[Batch]:
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [batch for message in messages if isinstance(message, BatchMessage) for batch in message.batches]


def test_nothing_is_served_before_it_is_safe() -> None:
    feed = feed_with(3)
    assert feed.subscribe("q", READER, 0, 0, 1000, restart=False) == 0
    assert feed.pump(0) == []
    assert [batch.first for batch in batches_in(feed.commit(2, 0))] == [0, 1]
    assert batches_in(feed.commit(2, 0)) == []


def test_a_reader_gets_no_more_than_its_credit_until_it_acknowledges() -> None:
    feed = feed_with(20)
    feed.subscribe("q", READER, 14, 0, 3 * BATCH, restart=False)
    assert [batch.first for batch in batches_in(feed.commit(20, 0))] == [14, 15, 16]
    assert feed.pump(1) == []
    assert [batch.first for batch in batches_in(feed.ack("q", READER, 17, 2))] == [17, 18, 19]


@pytest.mark.parametrize(("is_altered", "any_version", "got"), [(False, False, 3), (True, False, 0), (True, True, 3)])
def test_readers_of_older_releases_get_no_rows_that_they_could_not_read(
    is_altered: bool, any_version: bool, got: int
) -> None:
    feed = feed_with(3)
    feed.is_altered = is_altered
    asked = Subscribe(
        subscription="q", stream="flights", positions=(), since=0, credit=1 << 20, any_version=any_version
    )
    assert feed.accept(asked, READER) == 0
    assert len(batches_in(feed.commit(3, 0))) == got


def test_a_reader_that_is_behind_is_served_from_the_log() -> None:
    feed = feed_with(20)
    feed.commit(20, 0)
    feed.append(stored(20))  # What is safe and old has left the memory.
    feed.subscribe("q", READER, 0, 0, 40, restart=False)
    assert feed.pump(0) == [ReadLog("out/flights/1", 0, 3 * BATCH)]
    assert feed.pump(0) == [], "asked once"
    served = feed.read(0, (stored(0), stored(1), stored(2)), 0)
    assert [batch.first for batch in batches_in(served)] == [0, 1, 2]


def test_what_is_read_for_one_reader_does_not_make_another_ask_again() -> None:
    """Else two readers at different places would ask twice as often with every answer."""
    feed = feed_with(20)
    feed.commit(20, 0)
    feed.append(stored(20))
    for name, place in (("q", 0), ("r", 5)):
        feed.subscribe(name, READER, place, 0, 6 * BATCH, restart=False)
    assert feed.pump(0) == [ReadLog("out/flights/1", 0, 3 * BATCH), ReadLog("out/flights/1", 5, 3 * BATCH)]
    served = feed.read(0, (stored(0), stored(1), stored(2)), 0)
    assert [batch.first for batch in batches_in(served)] == [0, 1, 2]
    assert [effect for effect in served if isinstance(effect, ReadLog)] == [ReadLog("out/flights/1", 3, 3 * BATCH)]
    assert [batch.first for batch in batches_in(feed.read(5, (stored(5), stored(6), stored(7)), 0))] == [5, 6, 7]


def test_since_finds_the_first_tuple_published_then_or_later() -> None:
    feed = Feed.restored(ORIGIN, "log", SMALL, LogBounds(5, 20, stamps=((5, 100), (10, 200), (15, 300))))
    starts = [feed.subscribe(f"q{since}", READER, None, since, 0, restart=False) for since in (0, 100, 101, 300, 301)]
    assert starts == [5, 5, 10, 15, 20]


def test_what_has_expired_is_reported_as_a_gap_and_counted() -> None:
    feed = feed_with(10)
    feed.commit(10, 0)
    feed.subscribe("q", READER, 2, 0, 1000, restart=False)
    assert feed.expire(before=6) == [ReleaseLog("out/flights/1", 5)]
    effects = feed.pump(0)
    assert effects[0] == Send(READER, Gap(subscription="q", origin=ORIGIN, first=2, next=5))
    assert batches_in(effects)[0].first == 5
    assert (feed.processed, feed.expired, feed.next - feed.settled) == (2, 3, 5)
    feed.validate()


def test_a_repeated_subscribe_changes_nothing_and_a_restart_sends_again() -> None:
    feed = feed_with(3)
    feed.commit(3, 0)
    feed.subscribe("q", READER, 0, 0, 1000, restart=False)
    assert len(batches_in(feed.pump(0))) == 3
    feed.subscribe("q", READER, 0, 0, 1000, restart=False)
    assert feed.pump(0) == []
    feed.subscribe("q", READER, 1, 0, 1000, restart=True)
    assert [batch.first for batch in batches_in(feed.pump(0))] == [1, 2]


@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_lost_doubled_or_reordered_a_careful_reader_gets_everything_once(seed: int) -> None:
    luck = random.Random(seed)
    total = luck.randint(1, 60)
    feed = Feed(ORIGIN, "log", SMALL)
    log: list[StoredBatch] = []
    on_the_way: list[BatchMessage] = []
    taken: list[int] = []
    now = 0
    feed.subscribe("q", READER, 0, 0, 6 * BATCH, restart=False)

    def perform(effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(message=BatchMessage() as message):
                    on_the_way.extend([message] * luck.choice([0, 1, 1, 1, 2]))
                case ReadLog(first=first):
                    reading = [batch for batch in log if batch.next > first][:2]
                    perform(feed.read(first, tuple(reading), now))

    while len(taken) < total:
        now += 30
        assert now < 1_000_000
        if len(log) < total and luck.random() < 0.6:
            log.append(stored(len(log)))
            feed.append(log[-1])
        perform(feed.commit(luck.randint(feed.committed, feed.next), now))
        if on_the_way and luck.random() < 0.7:
            message = on_the_way.pop(luck.randrange(len(on_the_way)))
            for batch in message.batches:
                if batch.first == len(taken):
                    taken.append(batch.first)
            if luck.random() < 0.8:
                perform(feed.ack("q", READER, len(taken), now))
        perform(feed.resend(now))
        feed.validate()
    assert taken == list(range(total))


def test_a_reader_for_whom_due_tuples_were_let_go_hears_of_the_gap_and_one_from_the_start_does_not() -> None:
    feed = feed_with(10)
    feed.commit(10, 0)
    feed.drop(5)
    assert feed.subscribe("late", READER, None, 3, 1000, restart=True) == 2, "the tuple stamped 3 has sequence 2"
    gap = Gap(subscription="late", origin=ORIGIN, first=2, next=5)
    assert feed.pump(0)[0] == Send(READER, gap)
    assert feed.subscribe("start", READER, None, 0, 1000, restart=True) == 5


def test_what_one_of_the_readers_has_put_aside_is_counted_once_all_have_read_it() -> None:
    feed = feed_with(10)
    feed.commit(10, 0)
    for name in ("q", "r"):
        feed.subscribe(name, READER, 0, 0, 1 << 20, restart=False)
    feed.ack("q", READER, 6, 1, dead=(2, 5))
    assert (feed.processed, feed.dead_lettered) == (0, 0)
    feed.ack("r", READER, 4, 2, dead=(2,))
    assert (feed.processed, feed.dead_lettered) == (3, 1)
    feed.ack("r", READER, 10, 3, dead=(2,))
    feed.ack("q", READER, 6, 4, dead=(2, 5))  # Said again.
    assert (feed.processed, feed.dead_lettered, feed.settled) == (4, 2, 6)
    feed.validate()
