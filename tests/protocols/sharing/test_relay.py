"""A host passes on what it reads: to readers farther from the publisher, what they need, from where they are."""

from __future__ import annotations

from typing import Final

from protocols.catalogue.events import PublisherEntry, SubscriberEntry
from protocols.catalogue.streams import READS_ALL
from protocols.delivery.cursor import Cursor
from protocols.delivery.messages import (
    Ack,
    Batch,
    BatchMessage,
    Depth,
    GuestsChanged,
    Heartbeat,
    NeedsChanged,
    OpenSubscription,
    Origin,
    Position,
    Silence,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from protocols.delivery.needs import Needs, Sieved, skipped
from protocols.delivery.relay_reader import RelayReader
from protocols.delivery.relaying import LATE_MS
from protocols.delivery.search import Server, nearest
from protocols.effects import Effect, Reply, Send, Tell
from protocols.ids import PeerId
from protocols.limits import Limits
from protocols.sharing.needs import Need, together
from protocols.sharing.relay import Relay
from protocols.sharing.shared import SharedStream
from protocols.sharing.tap import Tap
from protocols.sight import NetworkSeen
from tests.protocols.sharing.model import SCHEMA, SOURCE, STREAM, parts_of_text

HERE, GUEST, PUBLISHER, FAR = (PeerId(bytes([each]) * 20) for each in (1, 2, 3, 4))
ORIGIN: Final = Origin(PUBLISHER, STREAM, 1)
NARROW, OTHER = parts_of_text("number > 3 AND number <= 40"), parts_of_text("part = 1")
CREDIT: Final = 1 << 20


def batch(first: int, *numbers: int, by: int = 1) -> Batch:
    """Tuples from a place on, of which those with number 0 were left out."""
    rows = [(number, 0, None) for number in numbers if number]
    left = skipped([place for place, number in enumerate(numbers) if number])
    return Batch(ORIGIN, first, len(numbers), 100 + first, SCHEMA.encode(rows), Sieved(by, left, 7))


def relay_of(depth: int = 1, limits: Limits | None = None) -> Relay:
    limits = limits or Limits()
    need = Need(SOURCE, NARROW, ("number", "at"))
    stream = SharedStream(STREAM, "shared", 0, 1, READS_ALL, False, limits, together(1, [need]))
    stream.add(Tap("t", STREAM, 0, SOURCE, NARROW, READS_ALL, False, (), needed=NARROW, columns=("number", "at")))
    stream.depth = depth
    stream.place(Position(ORIGIN, 0))
    stream.heed(ORIGIN, 1)
    return Relay(stream, limits)


def read(relay: Relay, some: Batch) -> list[Effect]:
    relay.stream.take(some)
    effects = relay.took(some, 10)
    relay.validate()
    return effects


def asked(needs: Needs | None, place: int = 0, depth: int = 2, **more: bool) -> Subscribe:
    return Subscribe(
        subscription="g",
        stream=STREAM,
        positions=(Position(ORIGIN, place),),
        since=0,
        credit=CREDIT,
        copies_of=(ORIGIN,),
        any_version=True,
        needs=needs,
        depth=depth,
        **more,
    )


def needs_of(*parts: tuple, version: int = 1) -> Needs:
    return together(version, [Need(SOURCE, each, ("number", "at")) for each in parts])


def served(place: int, heeded: tuple[int, int], end: int) -> Send:
    answer = Subscribed(
        subscription="g",
        stream=STREAM,
        positions=(Position(ORIGIN, place),),
        heeded=(heeded,),
        ends=(end,),
        depth=1,
    )
    return Send(GUEST, answer)


REFUSED: Final = Send(GUEST, Subscribed(subscription="g", stream=STREAM, positions=(), depth=1))


def test_a_guest_gets_what_it_needs_from_its_place_on():
    relay = relay_of()
    read(relay, batch(0, 5, 0, 6))
    higher = parts_of_text("number > 5 AND number <= 40")
    sent = Batch(ORIGIN, 0, 3, 100, SCHEMA.encode([(6, None, None)]), Sieved(4, (2,), 7))
    assert relay.welcome(GUEST, asked(needs_of(higher, version=4)), 10) == [
        served(0, (4, 0), 3),
        Tell(GuestsChanged("shared", 1)),
        Send(GUEST, BatchMessage(subscription="g", batches=(sent,))),
    ]
    more = Batch(ORIGIN, 3, 2, 103, SCHEMA.encode([(9, None, None)]), Sieved(4, (1,), 7))
    assert read(relay, batch(3, 5, 9)) == [Send(GUEST, BatchMessage(subscription="g", batches=(more,)))]
    assert relay.acked(GUEST, Ack(subscription="g", positions=(Position(ORIGIN, 5),)), 11) == []
    silence = Silence(ORIGIN, 5, 1 << 40)
    assert relay.hush(silence, 12) == [], "it does not go by time"
    relay.welcome(GUEST, asked(None, 5, heartbeats=True), 13)
    assert relay.hush(silence, 14) == [Send(GUEST, Heartbeat(subscriptions=("g",), silence=silence))]


def test_nobody_is_served_who_is_no_farther_from_the_publisher():
    relay = relay_of(depth=2)
    answer = Send(GUEST, Subscribed(subscription="g", stream=STREAM, positions=(), depth=2))
    assert relay.welcome(GUEST, asked(needs_of(NARROW), depth=2), 10) == [answer]
    assert relay.welcome(GUEST, asked(needs_of(NARROW), depth=1), 10) == [answer]
    assert relay_of(depth=0).welcome(GUEST, asked(needs_of(NARROW), depth=9), 10) == [REFUSED], "its own is not known"


def test_a_guest_that_needs_more_is_served_once_the_stream_has_it():
    relay = relay_of()
    wider = needs_of(NARROW, OTHER)
    answer, counted, widened = relay.welcome(GUEST, asked(wider), 10)
    assert (answer, counted) == (REFUSED, Tell(GuestsChanged("shared", 1)))
    assert widened == Tell(NeedsChanged("shared", relay.stream.needs))
    assert relay.stream.needs.conjunctions == (NARROW, OTHER)
    relay.stream.heed(ORIGIN, relay.stream.needs.version)
    assert relay.welcome(GUEST, asked(wider), 11) == [served(0, (1, 0), 0)]
    assert relay.leave(FAR, Unsubscribe(subscription="g", stream=STREAM)) == [], "it is not the reader's to end"
    assert relay.leave(GUEST, Unsubscribe(subscription="g", stream=STREAM)) == [Tell(GuestsChanged("shared", 0))]
    assert not relay.feeds


def test_wider_needs_of_a_guest_wait_for_the_stream_and_the_narrower_ones_hold_meanwhile():
    relay = relay_of()
    relay.welcome(GUEST, asked(needs_of(NARROW)), 10)
    wider = needs_of(NARROW, OTHER, version=2)
    answer, widened = relay.welcome(GUEST, asked(wider), 11)
    assert answer == served(0, (1, 0), 0)
    assert isinstance(widened, Tell)
    ((message,),) = [[each.message for each in read(relay, batch(0, 7, 0)) if isinstance(each, Send)]]
    assert message.batches[0].sieved == Sieved(1, (0,), 7)
    version = relay.stream.needs.version
    relay.stream.heed(ORIGIN, version)
    assert relay.welcome(GUEST, asked(wider, 0), 12)[0] == served(0, (1, 2), 2), "what may be sent again is of before"
    assert relay.welcome(GUEST, asked(wider, 2), 13)[0] == served(2, (2, 2), 2)


def test_a_guest_that_memory_does_not_reach_is_let_go():
    relay = relay_of(limits=Limits(shared_bytes=20))
    read(relay, batch(0, 5))
    relay.welcome(GUEST, asked(needs_of(NARROW)), 10)
    effects: list[Effect] = []
    for place in range(1, 9):
        effects += read(relay, batch(place, 5))
    assert [each for each in effects if isinstance(each, Send) and isinstance(each.message, Subscribed)] == [REFUSED]
    assert relay.welcome(GUEST, asked(needs_of(NARROW), 0), 11)[0] == REFUSED, "it asks again, from too far back"


def test_guests_hear_when_the_publisher_or_the_stream_is_gone():
    for end in (lambda relay: relay.lost(PUBLISHER), Relay.close, lambda relay: relay.let_go(ORIGIN)):
        relay = relay_of()
        relay.welcome(GUEST, asked(needs_of(NARROW)), 10)
        assert end(relay) == [REFUSED]


# The reader's end.


def reader(needs: Needs) -> tuple[RelayReader, Cursor]:
    cursor = Cursor("g", STREAM, 0, keep=False)
    command = OpenSubscription(stream=STREAM, subscription="g", needs=needs, relays=True)
    cursor.attach(9, command)
    cursor.publishers[ORIGIN] = PublisherEntry(peer=PUBLISHER, epoch=1)
    cursor.seen[ORIGIN] = cursor.taken[ORIGIN] = 4
    cursor.question(PUBLISHER, [ORIGIN], copies=False, credit=CREDIT, is_here=False)
    entry = SubscriberEntry(subscription="shared", peer=HERE, depth=1)
    cursor.relaying.found([entry], GUEST, 1000, 0)  # type: ignore[union-attr]
    return RelayReader(GUEST, Limits(), "subscriber"), cursor


FAR_PUBLISHER: Final = NetworkSeen("subscriber/g", (GUEST, HERE, PUBLISHER), ((0, 5, 50), (5, 0, 45), (50, 45, 0)), ())


def test_a_reader_moves_to_a_relay_and_the_publisher_keeps_its_place():
    relays, cursor = reader(needs_of(NARROW))
    (question,) = [each for each in relays.weigh(cursor, FAR_PUBLISHER, 10) if isinstance(each, Send)]
    assert question == Send(HERE, asked(needs_of(NARROW), 4, restart=True))
    assert not cursor.is_served(FAR, [ORIGIN]), "nobody else was asked"
    assert cursor.is_served(HERE, [ORIGIN])
    answer = Subscribed(subscription="g", stream=STREAM, positions=(Position(ORIGIN, 4),), ends=(4,), depth=1)
    keep, told = relays.heard(cursor, HERE, answer, 20)
    assert isinstance(keep, Send)
    assert (keep.peer, keep.message.credit, keep.message.positions) == (PUBLISHER, 0, (Position(ORIGIN, 4),))
    assert told == Reply(9, Depth(depth=2, relays=((ORIGIN, HERE),)), last=False)
    assert [each.peer for each in cursor.acks([Position(ORIGIN, 5)]) if isinstance(each, Send)] == [HERE]


def moved() -> tuple[RelayReader, Cursor]:
    relays, cursor = reader(needs_of(NARROW))
    relays.weigh(cursor, FAR_PUBLISHER, 10)
    answer = Subscribed(subscription="g", stream=STREAM, positions=(Position(ORIGIN, 4),), ends=(4,), depth=1)
    relays.heard(cursor, HERE, answer, 20)
    return relays, cursor


def went_back(effects: list[Effect], cursor: Cursor) -> None:
    leave, question, told = effects
    assert leave == Send(HERE, Unsubscribe(subscription="g", stream=STREAM))
    assert isinstance(question, Send)
    assert (question.peer, question.message.credit, question.message.restart) == (PUBLISHER, CREDIT, True)
    assert question.message.positions == (Position(ORIGIN, 4),)
    assert told == Reply(9, Depth(depth=2), last=False), "its depth stays"
    assert not cursor.is_served(HERE, [ORIGIN])


def test_a_reader_goes_back_to_the_publisher_from_its_own_place():
    relays, cursor = moved()
    went_back(relays.lost(cursor, HERE, 30), cursor)
    relays, cursor = moved()
    gone = Subscribed(subscription="g", stream=STREAM, positions=(), depth=1)
    went_back(relays.heard(cursor, HERE, gone, 30), cursor)


def test_a_relay_that_lacks_what_the_publisher_has_is_left():
    relays, cursor = moved()

    def says(end: int, now: int) -> list[Effect]:
        answer = Subscribed(subscription="g", stream=STREAM, positions=(Position(ORIGIN, 4),), ends=(end,))
        return relays.heard(cursor, PUBLISHER, answer, now)

    assert says(4, 100) == says(9, 200) == says(9, 200 + LATE_MS) == []
    went_back(says(9, 201 + LATE_MS), cursor)


def test_a_relay_is_chosen_only_where_it_saves_a_fifth():
    far, near, nearer = Server(PUBLISHER, 50.0, 3), Server(HERE, 42.0, 0, 1), Server(FAR, 20.0, 0, 1)
    assert nearest(far, [near], None) is None
    assert nearest(far, [near, nearer], None) == FAR
    assert nearest(far, [near, nearer], HERE) == FAR
    assert nearest(far, [near._replace(delay_ms=22.0), nearer], HERE) == HERE, "it stays where it is nearly as good"
    crowded = far._replace(delay_ms=1.0, readers=40)
    assert nearest(crowded, [Server(HERE, 1.0, 0, 1)], None) == HERE, "a publisher has only one uplink"
