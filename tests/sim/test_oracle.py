"""The oracle says no to each of the lies it is there for, and yes to the truth."""

from __future__ import annotations

import pytest

from overlay.sim.oracle import Oracle, Publication, Reading, Violation
from protocols.catalogue.messages import PublisherShown, StreamShown
from protocols.catalogue.streams import Durability, StreamDefinition
from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Missed, Origin, Published
from protocols.ids import PeerId
from queries.schema import Schema

PEER = PeerId(bytes(20))
OTHER = PeerId(bytes(19) + b"\x01")
ORIGIN = Origin(PEER, "flights", 1)


def scene(durability: Durability = "disk", *rows: int) -> tuple[Oracle, Reading, Publication]:
    """One reader, open since stamp 10, and one publish of these rows, accepted at stamp 20."""
    oracle, reading = Oracle({"flights": durability}), Reading("r", "flights")
    oracle.readings.append(reading)
    oracle.opened(reading, stamp=10, now=0)
    publication = Publication("flights", PEER, rows or (1, 2), asked_at=5, witness=10)
    oracle.asked(publication)
    oracle.accepted(publication, Published(first=0, count=len(publication.rows), stamp=20))
    return oracle, reading, publication


def test_the_truth_is_accepted():
    oracle, reading, _ = scene()
    assert len(oracle.due()) == 2
    oracle.received(reading, ORIGIN, 0, 1)
    oracle.received(reading, ORIGIN, 1, 2)
    assert oracle.due() == []
    oracle.check_end()


def test_what_was_published_before_the_subscription_is_not_due():
    oracle, _, publication = scene()
    publication.stamp = 10
    assert oracle.due() == []


@pytest.mark.parametrize(
    ("origin", "sequence", "row", "wrong"),
    [
        (ORIGIN, 0, 99, "never published"),
        (Origin(OTHER, "flights", 1), 0, 1, "was published at"),
        (ORIGIN, 1, 2, "came before"),
        (ORIGIN, 0, 1, "came after"),
    ],
)
def test_a_false_row_is_refused(origin: Origin, sequence: int, row: int, wrong: str):
    oracle, reading, _ = scene()
    oracle.received(reading, ORIGIN, 1, 2)
    with pytest.raises(Violation, match=wrong):
        oracle.received(reading, origin, sequence, row)


def test_what_was_refused_may_not_arrive_before_or_after():
    for arrives_first in (True, False):
        oracle, reading, _ = scene()
        refused = Publication("flights", PEER, (7,), asked_at=6, witness=0)
        oracle.asked(refused)
        if arrives_first:
            oracle.received(reading, ORIGIN, 5, 7)
            with pytest.raises(Violation, match="refused"):
                oracle.refused(refused)
        else:
            oracle.refused(refused)
            with pytest.raises(Violation, match="refused"):
                oracle.received(reading, ORIGIN, 5, 7)


@pytest.mark.parametrize(
    ("durability", "with_disk", "is_excused"),
    [
        ("memory", False, True),
        ("disk", False, False),
        ("disk", True, True),
        ("replicated", True, False),
    ],
)
def test_a_crash_excuses_only_what_the_durability_does_not_promise(
    durability: Durability, with_disk: bool, is_excused: bool
):
    oracle, _, _ = scene(durability)
    oracle.crashed(PEER, with_disk=with_disk)
    assert (oracle.due() == []) == is_excused


def test_a_gap_excuses_nothing_and_what_it_skipped_may_not_come_after_all():
    oracle, reading, _ = scene()
    oracle.missed(reading, Missed(origin=ORIGIN, first=0, next=2), now=50)
    assert len(oracle.due()) == 2
    with pytest.raises(Violation, match="came after"):
        oracle.received(reading, ORIGIN, 0, 1)


def test_a_gap_excuses_what_its_stream_no_longer_keeps():
    for age_ms, is_excused in ((30_000, True), (5_000, False)):
        oracle, reading, publication = scene()
        oracle.retentions_ms["flights"] = 10_000
        publication.stamp = 100_000 << COUNT_BITS
        oracle.missed(reading, Missed(origin=ORIGIN, first=0, next=2), now=100_000 + age_ms)
        assert (oracle.due() == []) == is_excused


def test_a_stamp_is_younger_than_what_its_client_had_seen():
    oracle, _, publication = scene()
    with pytest.raises(Violation, match="younger"):
        oracle.accepted(publication, Published(first=0, count=2, stamp=10))


def test_two_names_for_one_tuple_are_found_at_the_end():
    oracle, reading, _ = scene()
    oracle.received(reading, ORIGIN, 4, 1)
    with pytest.raises(Violation, match="delivered as"):
        oracle.check_end()


def test_counters_must_balance():
    definition = StreamDefinition(name="flights", schema=Schema.parse("number int"))
    shown = PublisherShown(
        peer=PEER, epoch=1, backup=None, accepted=5, processed=3, pending=1, dead_lettered=0, expired=0, statistics=None
    )
    with pytest.raises(Violation, match="balance"):
        Oracle().shown(StreamShown(definition=definition, publishers=(shown,), subscriptions=0))


def test_a_peer_that_knows_its_clock_to_be_wrong_may_not_accept():
    oracle, _, _ = scene()
    late = Publication("flights", PEER, (7,), asked_at=100, witness=0)
    oracle.asked(late)
    oracle.accepted(late, Published(first=2, count=1, stamp=30), clock_off_since=101)  # It came to know too late.
    with pytest.raises(Violation, match="clock to be wrong"):
        oracle.accepted(late, Published(first=2, count=1, stamp=30), clock_off_since=100)


def test_what_its_reader_cannot_bear_is_due_in_the_dead_letters():
    oracle, reading, _ = scene()
    reading.refuses = lambda row: row == 2
    oracle.received(reading, ORIGIN, 0, 1)
    assert len(oracle.due()) == 1
    oracle.letters(reading, [(ORIGIN, 2)])
    assert oracle.due() == []
    with pytest.raises(Violation, match="lies in the dead letters"):
        oracle.received(reading, ORIGIN, 1, 2)


@pytest.mark.parametrize(
    ("listed", "wrong"),
    [
        ([(ORIGIN, 2), (ORIGIN, 2)], "twice"),
        ([], "gone"),
        ([(ORIGIN, 2), (ORIGIN, 99)], "never published"),
        ([(ORIGIN, 2), (ORIGIN, 1)], "was processed"),
        ([(ORIGIN, 2), (ORIGIN, 3)], "never refused"),
    ],
)
def test_false_dead_letters_are_found(listed: list[tuple[Origin, int]], wrong: str):
    oracle, reading, _ = scene("disk", 1, 2, 3)
    reading.refuses = lambda row: row == 2
    oracle.received(reading, ORIGIN, 0, 1)
    oracle.letters(reading, [(ORIGIN, 2)])
    with pytest.raises(Violation, match=wrong):
        oracle.letters(reading, listed)
