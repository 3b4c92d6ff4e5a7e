"""What a peer says of itself: it follows what others see, and nobody can talk it out of the network."""

from __future__ import annotations

import time

import pytest

from overlay.identity import Identity, PeerRecord
from overlay.own_record import OwnRecord
from overlay.room import Room
from tests.overlay.networks import peer_id

NOW = time.time()


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> OwnRecord:
    monkeypatch.setattr("overlay.own_record.likely_host", lambda wildcard: "192.0.2.1")
    return OwnRecord(Identity.generate(), "1", ("0.0.0.0", 7400), None, NOW)


def test_two_peers_that_see_us_elsewhere_change_our_address_and_one_of_many_does_not(record: OwnRecord) -> None:
    before = record.record
    assert not record.seen_at("192.0.2.7", peer_id(1), 5, NOW)
    assert not record.seen_at("192.0.2.7", peer_id(1), 5, NOW), "it has but one voice"
    assert record.seen_at("192.0.2.7", peer_id(2), 5, NOW)
    assert record.record.address == ("192.0.2.7", 7400)
    assert record.record.incarnation > before.incarnation


def test_the_only_peer_there_is_is_believed(record: OwnRecord) -> None:
    assert record.seen_at("192.0.2.7", peer_id(1), 1, NOW)


def test_an_address_we_were_told_to_advertise_is_not_up_for_a_vote() -> None:
    record = OwnRecord(Identity.generate(), "1", ("0.0.0.0", 7400), "192.0.2.1", NOW)
    for voter in range(8):
        assert not record.seen_at("192.0.2.7", peer_id(voter), 8, NOW)


@pytest.mark.parametrize("host", ["", "x" * 300, "peer1", "192.0.2", "127.0.0.1"])
def test_what_is_no_address_or_that_of_a_loopback_is_not_taken_over(record: OwnRecord, host: str) -> None:
    for voter in range(8):
        assert not record.seen_at(host, peer_id(voter), 8, NOW)
    assert PeerRecord.verify(record.record.raw, NOW)


def test_a_newer_record_is_outdone_unless_it_is_ahead_of_its_time(record: OwnRecord) -> None:
    soon = record.record.incarnation + 60_000
    record.renew(NOW, at_least=soon)
    assert record.record.incarnation == soon
    for impossible in (soon + 3_600_000, 2**63):
        record.renew(NOW, at_least=impossible)
        assert PeerRecord.verify(record.record.raw, NOW)


def test_it_says_whether_what_has_state_can_run_there_and_how_much_room_there_is() -> None:
    own = OwnRecord(Identity.generate(), "1", ("127.0.0.1", 7400), None, NOW, able=(True, Room(cpu=3)))
    own.renew(NOW)
    said = PeerRecord.verify(own.record.raw, NOW)
    assert (said.has_engine, said.room) == (True, Room(cpu=3))
    own.say(False, Room(hosts_others=False), NOW)
    said = PeerRecord.verify(own.record.raw, NOW)
    assert (said.has_engine, said.room) == (False, Room(hosts_others=False))
    said = PeerRecord.verify(OwnRecord(Identity.generate(), "1", ("127.0.0.1", 7400), None, NOW).record.raw, NOW)
    assert (said.has_engine, said.room) == (False, Room())
