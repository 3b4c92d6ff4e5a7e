"""A server leaves out what its reader does not need, and says where the rest stands."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final

import pytest

from protocols.delivery.cursor import Cursor, tail
from protocols.delivery.feed import BATCH_OVERHEAD_BYTES, Feed
from protocols.delivery.messages import Batch, BatchMessage, Heartbeat, Origin, Position, Silence, Subscribe, Subscribed
from protocols.delivery.needs import ALL_TUPLES, EARLIEST_US, Needs, Sieved
from protocols.delivery.sieving import SLOW_SPAN_MS, SPAN_MS
from protocols.effects import Effect, ReadLog, Send, SetTimer
from protocols.errors import RemoteProtocolError
from protocols.events import StoredBatch
from protocols.ids import PeerId
from protocols.limits import Limits
from protocols.part import PART_ROWS_MAX, parts_of
from protocols.sieve import selected
from queries.catalogue import Stream
from queries.compile import predicate_on_batch
from queries.expressions import EPOCH, MICROSECOND, conjunction
from queries.plan import sources
from queries.query import parse
from queries.schema import Field, Row, Schema

PUBLISHER, READER = PeerId(b"p" * 20), PeerId(b"r" * 20)
ORIGIN: Final = Origin(PUBLISHER, "s", 1)
SCHEMA: Final = Schema.parse("number int, part int, text string, at timestamp")
LIMITS: Final = Limits(resend_after_ms=100)


def parts(where: str) -> tuple:
    plan = parse(f"SELECT number FROM s WHERE {where}", {"s": Stream("s", SCHEMA, "at")}).plan
    return selected(plan, sources(plan)[0].alias)


def needs(*where: str, version: int = 1, columns: tuple[str, ...] | None = None) -> Needs:
    return Needs(version, SCHEMA, "at", columns, tuple(map(parts, where)) or ALL_TUPLES)


def row(number: int, second: float | None = None) -> Row:
    seconds = number if second is None else second
    return (number, number % 3, f"row {number}", EPOCH + timedelta(seconds=seconds))


def stored(first: int, *rows: Row) -> StoredBatch:
    return StoredBatch(first, len(rows), 100 + first, SCHEMA.encode(rows))


def asked(reader: str, what: Needs | None, credit: int = 1 << 20, **more: bool) -> Subscribe:
    return Subscribe(subscription=reader, stream="s", positions=(), since=0, credit=credit, needs=what, **more)


def feed_of(*batches: StoredBatch, limits: Limits = LIMITS) -> Feed:
    feed = Feed(ORIGIN, "log", limits)
    feed.wake = "sift"
    for batch in batches:
        feed.append(batch)
    return feed


def sent(effects: list[Effect]) -> list[tuple[str, Batch]]:
    messages = [each.message for each in effects if isinstance(each, Send)]
    return [
        (message.subscription, batch)
        for message in messages
        if isinstance(message, BatchMessage)
        for batch in message.batches
    ]


def sieved(first: int, count: int, rows: list[Row], said: Sieved, columns: tuple[str, ...] | None = None) -> Batch:
    names = [each.name for each in SCHEMA.fields]
    thin = [
        tuple(v if columns is None or n in columns else None for n, v in zip(names, row, strict=True)) for row in rows
    ]
    return Batch(ORIGIN, first, count, 100 + first, SCHEMA.encode(thin), said)


def test_a_reader_gets_the_rows_and_columns_that_it_needs_and_where_they_stand():
    feed = feed_of(stored(0, *map(row, range(5))))
    columns = ("number", "at")
    feed.accept(asked("q", needs("number = 1 OR number = 9", "number >= 3", columns=columns)), READER)
    said = Sieved(1, (1, 1, 0), 4_000_000)
    expected = sieved(0, 5, [row(1), row(3), row(4)], said, columns)
    assert feed.commit(5, 10) == [Send(READER, BatchMessage(subscription="q", batches=(expected,)))]
    expected.check()
    (part,) = parts_of(SCHEMA, "at", expected)
    assert (part.first, part.next, list(part.places), part.latest_us) == (0, 5, [1, 3, 4], 4_000_000)
    assert [each[:3] for each in part.rows] == [(1, None, None), (3, None, None), (4, None, None)]


def test_readers_of_the_same_stream_are_sieved_together_and_others_pay_nothing(monkeypatch: pytest.MonkeyPatch):
    feed = feed_of(stored(0, row(0), row(1)))
    decoded: list[int] = []
    decode = Schema.decode
    monkeypatch.setattr(Schema, "decode", lambda schema, rows: decoded.append(len(rows)) or decode(schema, rows))
    for number in range(5):
        feed.accept(asked(f"q{number}", needs(f"number = {number % 2}")), READER)
    feed.accept(asked("all", None), READER)
    feed.accept(asked("everything", needs()), READER)
    got = sent(feed.commit(2, 10))
    assert len(decoded) == 1
    assert [reader for reader, _ in got] == ["q0", "q1", "q2", "q3", "q4", "all", "everything"]
    assert got[5][1] == got[6][1] == Batch(ORIGIN, 0, 2, 100, SCHEMA.encode([row(0), row(1)]))


def test_what_nobody_needs_is_told_as_one_span_after_a_while():
    feed = feed_of(stored(0, row(0)), stored(1, row(7), row(1)), stored(3, row(3)))
    feed.accept(asked("q", needs("number > 50")), READER)
    assert feed.commit(3, 10) == [SetTimer("sift", SPAN_MS)]
    assert feed.woken(10 + SPAN_MS) == [SetTimer("sift", SPAN_MS)], "who does not go by time can wait longer"
    span = Batch(ORIGIN, 0, 3, 101, SCHEMA.encode([]), Sieved(1, (), 7_000_000))
    assert feed.woken(10 + SLOW_SPAN_MS) == [Send(READER, BatchMessage(subscription="q", batches=(span,)))]
    span.check()
    consumer = feed.consumers["q"]
    assert (consumer.sent, consumer.in_flight_bytes) == (3, BATCH_OVERHEAD_BYTES)


def test_a_span_goes_before_the_next_row_and_before_silence():
    feed = feed_of(stored(0, row(0)), stored(1, row(1)), stored(2, row(60)), stored(3, row(2)))
    feed.accept(asked("q", needs("number > 50"), heartbeats=True), READER)
    feed.commit(2, 10)
    span = Batch(ORIGIN, 0, 2, 101, SCHEMA.encode([]), Sieved(1, (), 1_000_000))
    (message,) = [each for each in feed.commit(3, 11) if isinstance(each, Send)]
    late = sieved(2, 1, [row(60)], Sieved(1, (0,), 60_000_000))
    assert message == Send(READER, BatchMessage(subscription="q", batches=(span, late)))
    feed.commit(4, 12)
    silence = Silence(ORIGIN, 4, 1 << 40)
    rest = Batch(ORIGIN, 3, 1, 103, SCHEMA.encode([]), Sieved(1, (), 2_000_000))
    assert feed.beat(silence, 13) == [
        Send(READER, BatchMessage(subscription="q", batches=(rest,))),
        Send(READER, Heartbeat(subscriptions=("q",), silence=silence)),
    ]


def test_wider_needs_hold_from_what_was_not_sent_yet_and_older_ones_are_ignored():
    feed = feed_of(stored(0, row(0), row(1)), stored(2, row(2), row(3)), stored(4, row(4)))
    feed.accept(asked("q", needs("number = 1")), READER)
    feed.commit(4, 10)
    _, heeded, _ = feed.serve(asked("q", needs("number < 4", version=2)), READER)
    assert heeded == (2, 2), "the first batch is on its way, the second was to be told as a span"
    feed.serve(asked("q", needs("number = 1")), READER)
    ((_, batch),) = sent(feed.pump(11))
    assert batch == sieved(2, 2, [row(2), row(3)], Sieved(2, (0, 0), 3_000_000))
    _, heeded, _ = feed.serve(asked("q", None, restart=True), READER)
    assert heeded == (0, 0), "a reader that begins anew states its needs anew"


def test_what_was_lost_is_sieved_again():
    feed = feed_of(stored(0, row(0), row(1)), stored(2, row(2)))
    feed.accept(asked("q", needs("number <> 1")), READER)
    first = sent(feed.commit(3, 10))
    assert sent(feed.resend(10 + LIMITS.resend_after_ms)) == first
    assert sent(feed.ack("q", READER, 3, 200)) == []
    feed.validate()


def test_rows_that_nobody_can_compute_with_are_left_out_and_named():
    schema = Schema.parse("price decimal, at timestamp")
    at = EPOCH + timedelta(seconds=1)
    rows = [("1.5", at), ("1E-50", at), ("2.5", at)]
    feed = feed_of(StoredBatch(0, 3, 100, schema.encode(rows)))
    feed.accept(asked("q", Needs(1, schema, "at", None, ALL_TUPLES)), READER)
    ((_, plain),) = sent(feed.commit(3, 10))
    assert plain.sieved is None, "all columns of all tuples are everything"
    stream = {"s": Stream("s", schema, "at")}
    plan = parse("SELECT price FROM s WHERE price > 2", stream).plan
    wanted = selected(plan, sources(plan)[0].alias)
    feed.accept(asked("r", Needs(1, schema, "at", None, (wanted,))), READER)
    ((_, batch),) = sent(feed.pump(11))
    assert batch.sieved == Sieved(1, (2,), 1_000_000, (1,))


def test_a_batch_that_does_not_decode_goes_out_as_it_is():
    feed = feed_of(StoredBatch(0, 1, 100, b"\x91\x91\xc3"))
    feed.accept(asked("q", needs("number = 1")), READER)
    assert sent(feed.commit(1, 10)) == [("q", Batch(ORIGIN, 0, 1, 100, b"\x91\x91\xc3"))]


def test_one_event_sieves_no_more_than_it_has_time_for():
    wide = (9, 0, "x" * 60_000, EPOCH)
    feed = feed_of(*(stored(number, wide) for number in range(12)))
    feed.accept(asked("q", needs("number = 1")), READER)
    assert feed.commit(12, 10) == [SetTimer("sift", 0)]
    assert feed.sieving.strainers["q"].at < 12
    for _ in range(3):
        feed.woken(10)
    feed.validate()
    assert feed.sieving.strainers["q"].at == 12


def test_what_is_read_from_the_log_is_sieved_too():
    limits = Limits(recent_bytes=100, message_bytes=200)
    batches = [stored(number, row(number)) for number in range(20)]
    feed = feed_of(*batches, limits=limits)
    feed.commit(20, 0)
    feed.append(stored(20, row(20)))  # What is safe and old has left the memory.
    feed.accept(asked("q", needs("number = 2")), READER)
    (read,) = [each for each in feed.pump(10) if isinstance(each, ReadLog)]
    assert read.first == 0
    got = sent(feed.read(0, tuple(batches[:5]), 11))
    assert [(each.first, each.next) for _, each in got] == [(0, 2), (2, 3)]


def random_needs(luck: random.Random, version: int) -> Needs:
    where = luck.sample(["number < 7", "part = 1", "part = 2 AND number > 5", "number > 3", "text = 'row 4'"], 2)
    columns = luck.choice([None, ("number", "part", "text", "at")[luck.randrange(2) :]])
    return needs(*where, version=version, columns=None if columns is None or "number" not in columns else columns)


@pytest.mark.parametrize("seed", range(30))
def test_a_sieved_stream_is_the_stream_without_what_is_not_needed(seed: int):
    """Whatever is lost, repeated or needed next, and wherever the reader cuts a batch."""
    luck = random.Random(seed)
    feed, rows = feed_of(limits=Limits(message_bytes=300, credit_bytes=600, resend_after_ms=100)), []
    version, now = 1, 0
    wanted = {version: random_needs(luck, version)}
    feed.accept(asked("q", wanted[version], credit=600), READER)
    at, got, latest = 0, [], EARLIEST_US
    for _ in range(300):
        now += luck.choice([1, 50, 300])
        effects: list[Effect] = []
        match luck.randrange(5):
            case 0:
                count = luck.choice([1, 1, 3, PART_ROWS_MAX + 3 if luck.random() < 0.02 else 2])
                more = [row(luck.randrange(10), luck.random() * 100) for _ in range(count)]
                feed.append(stored(len(rows), *more))
                rows += more
                effects = feed.commit(feed.next, now)
            case 1:
                effects = feed.ack("q", READER, at, now)
            case 2:
                effects = feed.woken(now)
            case 3:
                effects = feed.resend(now)
            case 4 if luck.random() < 0.2:
                version += 1
                wanted[version] = random_needs(luck, version)
                feed.accept(asked("q", wanted[version], credit=600), READER)
                effects = feed.pump(now)
        feed.validate()
        for _, batch in sent(effects):
            batch.check()
            if luck.random() < 0.2 or batch.first > at or batch.next <= at:
                continue
            batch = batch if batch.first == at else tail(batch, at)
            if batch.count > 1 and luck.random() < 0.3:  # A reader may also stop in the middle, and come back.
                cut = tail(batch, batch.first + 1)
                cut.check()
            assert batch.sieved is not None
            due = wanted[batch.sieved.by]
            (part,) = parts_of(SCHEMA, "at", batch)
            assert (part.first, part.next) == (at, batch.next)
            span = [(number, each) for number, each in enumerate(rows[at : batch.next], at)]
            keeps = [predicate_on_batch(conjunction(each), due.source.columns) for each in due.conjunctions]
            timed = [(number, (*each, each[3])) for number, each in span]
            meant = [number for number, each in timed if any(keep([each]) for keep in keeps)]
            assert list(part.places) == meant
            got += [each[:4] for each in part.rows]
            assert part.latest_us >= max((each[3] - EPOCH) // MICROSECOND for _, each in span)
            at, latest = batch.next, max(latest, part.latest_us)
    assert got or version > 1
    assert latest <= max(((each[3] - EPOCH) // MICROSECOND for each in rows), default=EARLIEST_US)


# The reader's side.


def cursor_of(what: Needs) -> Cursor:
    cursor = Cursor("q", "s", 0, keep=False)
    cursor.request, cursor.needs = 1, what
    cursor.asked[PUBLISHER, False] = None
    cursor.seen[ORIGIN] = cursor.taken[ORIGIN] = 5
    return cursor


def batch_by(version: int | None) -> Batch:
    return Batch(ORIGIN, 5, 1, 9, SCHEMA.encode([row(1)]), None if version is None else Sieved(version, (0,), 0))


def test_a_reader_takes_nothing_that_was_sieved_by_needs_of_before():
    cursor = cursor_of(needs("number = 1", version=3))
    assert cursor.accepts(batch_by(2))
    assert cursor.accepts(batch_by(3))
    assert not cursor.accepts(batch_by(2)), "late, or of a backup that has not heard"
    assert cursor.accepts(batch_by(None)), "nothing is left out"
    assert not cursor.accepts(batch_by(4)), "it never needed that"


def test_a_reader_states_its_needs_until_they_are_heeded():
    cursor = cursor_of(needs("number = 1", version=2))

    def said() -> Needs | None:
        return cursor.question(PUBLISHER, [ORIGIN], copies=False, credit=9, is_here=False).needs

    def hears(*heeded: tuple[int, int]) -> list[tuple[int, Origin]]:
        answer = Subscribed(subscription="q", stream="s", positions=(Position(ORIGIN, 5),), heeded=heeded)
        answer.check()
        return [(each.answer.version, each.answer.origin) for each in cursor.hear(PUBLISHER, answer)]  # type: ignore[attr-defined]

    assert said() == said() == cursor.needs
    assert hears((2, 9)) == [], "what is on its way may be of before"
    assert said() is None
    assert hears((2, 5)) == [(2, ORIGIN)]
    assert hears((2, 5)) == [], "it is told once"
    cursor.needs = needs("number < 9", version=3)
    assert said() == cursor.needs
    assert hears() == [(3, ORIGIN)], "an older peer leaves nothing out, whatever is needed"
    assert cursor.question(PUBLISHER, [ORIGIN], copies=False, credit=9, is_here=True).needs is None


@pytest.mark.parametrize(
    "message",
    [
        asked("q", Needs(1, SCHEMA, "at", ("nothing",))),
        asked("q", Needs(1, SCHEMA, "at", ("number",))),
        asked("q", Needs(1, Schema((Field("number", "string"),)), None, None, (parts("number = 1"),))),
        asked("q", Needs(1, SCHEMA, "at", None, tuple(parts(f"number = {n}") for n in range(65)))),
        BatchMessage(subscription="q", batches=(Batch(ORIGIN, 0, 2, 9, SCHEMA.encode([row(1)]), Sieved(1, (2,), 0)),)),
        BatchMessage(subscription="q", batches=(Batch(ORIGIN, 0, 2, 9, SCHEMA.encode([row(1)]), Sieved(1, (), 0)),)),
        BatchMessage(subscription="q", batches=(Batch(ORIGIN, 0, 2, 9, SCHEMA.encode([]), Sieved(1, (), 0, (2,))),)),
        BatchMessage(subscription="q", batches=(Batch(ORIGIN, 0, 2, 9, SCHEMA.encode([]), Sieved(1, (), 1 << 61)),)),
        Subscribed(subscription="q", stream="s", positions=(), heeded=((1, 1),)),
    ],
)
def test_needs_and_sieved_batches_that_make_no_sense_are_refused(message: Subscribe | BatchMessage | Subscribed):
    with pytest.raises(RemoteProtocolError):
        message.check()
