"""A publish that is asked again is known, however many clients have published meanwhile."""

from __future__ import annotations

import pytest

from protocols.clock import COUNT_BITS
from protocols.delivery import sessions as module
from protocols.delivery.messages import Publish, PublishNoted
from protocols.delivery.sessions import KEPT_MS, NOTES_MAX, SESSIONS_MIN, Sessions

NOW = 1_800_000_000_000


def note(session: int, number: int = 1, at: int = NOW) -> PublishNoted:
    name = session.to_bytes(4, "big")
    return PublishNoted(stream="s", session=name, number=number, first=session, count=1, stamp=at << COUNT_BITS)


def publish(session: int, number: int = 1) -> Publish:
    return Publish(stream="s", rows=b"", count=1, session=session.to_bytes(4, "big"), number=number)


def test_no_number_of_other_clients_makes_a_recent_publish_unknown():
    sessions = Sessions()
    for session in range(10 * SESSIONS_MIN):
        sessions.add(note(session))
    assert sessions.find(publish(0)) == note(0)


def test_sessions_that_were_silent_for_long_are_forgotten():
    sessions = Sessions()
    for session in range(2 * SESSIONS_MIN):
        sessions.add(note(session))
    late = note(2 * SESSIONS_MIN, at=NOW + KEPT_MS)
    sessions.add(late)
    assert sessions.find(publish(0)) is None
    assert len(sessions.notes()) == SESSIONS_MIN


def test_of_one_client_the_last_publishes_are_known():
    sessions = Sessions()
    for number in range(NOTES_MAX + 1):
        sessions.add(note(1, number))
    assert sessions.find(publish(1, 0)) is None
    assert sessions.find(publish(1, 1)) == note(1, 1)


def test_when_all_places_are_taken_only_known_clients_publish(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "NOTES_TOTAL_MAX", 3)
    sessions = Sessions()
    for session in range(3):
        sessions.add(note(session))
    assert sessions.has_room_for(publish(1, 2))
    assert not sessions.has_room_for(publish(3))
    sessions.forget("s")
    assert sessions.has_room_for(publish(3))
