"""Leaving of one's own will, machine by machine: say so, hand over, say that it is done, and go."""

from __future__ import annotations

from protocols.effects import AfterSync, Effect, Reply, Send
from protocols.events import PeerDown, Received, Requested, TimerFired
from protocols.ids import Key, PeerId
from protocols.store.machine import StoreMachine
from protocols.store.messages import (
    Leave,
    Leaving,
    StoreAck,
    StoreDigest,
    StoreFetch,
    StoreLeaving,
    StoreOffer,
    StoreReplicate,
)
from protocols.store.table import version_of
from tests.protocols.store.stores import LIMITS, NOW, A, B, C, entry, give, meet, sent, store


def leaving(*neighbours: PeerId) -> tuple[StoreMachine, list[Effect]]:
    machine = store(*neighbours)
    give(machine, entry())
    return machine, machine.handle(Requested(7, Leave()), NOW)


def replies(effects: list[Effect]) -> list[Reply]:
    return [effect for effect in effects if isinstance(effect, Reply)]


def retry(machine: StoreMachine, after_ms: int) -> list[Effect]:
    return machine.handle(TimerFired("store/retry"), NOW + after_ms)


def test_a_peer_that_leaves_offers_all_it_holds_to_those_who_own_it_without_it():
    _, effects = leaving(A, B, C)
    assert replies(effects) == [Reply(7, Leaving(entries=1, left=1), last=False)]
    assert sent(effects, StoreLeaving) == [A, B, C]
    assert sent(effects, StoreOffer) == [A, B, C]


def test_it_acknowledges_nothing_any_more():
    machine, _ = leaving(A, B, C)
    (after_sync,) = machine.handle(Received(A, StoreReplicate(entries=(entry(stamp=9),))), NOW)
    assert isinstance(after_sync, AfterSync)
    (ack,) = after_sync.effects
    assert isinstance(ack, Send)
    assert isinstance(ack.message, StoreAck)
    assert (ack.message.kept, len(ack.message.not_mine)) == ((), 1)


def test_it_is_done_when_each_new_owner_has_everything_and_goes_once_it_has_said_so():
    machine, _ = leaving(A, B, C)
    for each in (A, B):
        machine.handle(Received(each, StoreAck(kept=(version_of(entry()),))), NOW)
    assert replies(retry(machine, 500)) == [Reply(7, Leaving(entries=1, left=1), last=False)]
    machine.handle(Received(C, StoreAck(kept=(version_of(entry()),))), NOW)
    effects = retry(machine, 1_000)
    assert replies(effects) == [Reply(7, Leaving(entries=1, left=0), last=False)]
    assert [each.message for each in effects if isinstance(each, Send)] == [StoreLeaving(is_done=True)] * 3
    assert replies(retry(machine, 1_500)) == [Reply(7, Leaving(entries=1, left=0))]
    machine.validate()


def test_it_does_not_wait_for_ever():
    machine, _ = leaving(A, B, C)
    assert replies(retry(machine, LIMITS.drain_ms)) == [Reply(7, Leaving(entries=1, left=1))]


def test_what_expires_meanwhile_need_not_be_handed_over():
    machine = store(A, B, C)
    give(machine, entry(expires_at=NOW + 100))
    assert replies(machine.handle(Requested(7, Leave()), NOW)) == [Reply(7, Leaving(entries=1, left=1), last=False)]
    machine.handle(TimerFired("store/compare"), NOW + 200)
    machine.validate()
    retry(machine, 500)
    assert replies(retry(machine, 1000)) == [Reply(7, Leaving(entries=1, left=0))]


def test_a_peer_alone_has_nobody_to_hand_over_to():
    machine = store()
    give(machine, entry())
    assert replies(machine.handle(Requested(7, Leave()), NOW)) == [Reply(7, Leaving(entries=1, left=1))]


THEIRS = Key(bytes([7]) + bytes(19))  # A, B and C are nearer to it than ME.


def is_answered_for(machine: StoreMachine) -> bool:
    (effect,) = machine.handle(Received(A, StoreFetch(key=THEIRS, reader=A, request=1)), NOW)
    return effect.effects[0].message.is_owner


def test_an_heir_catches_up_with_the_one_that_leaves_too():
    machine = store(A, B, C)
    effects = machine.handle(Received(A, StoreLeaving()), NOW)
    assert sorted(sent(effects, StoreDigest)) == [A, B, C]
    for each in (B, C):
        meet(machine, each)
    assert not is_answered_for(machine)
    meet(machine, A)
    assert is_answered_for(machine)


def test_nobody_is_missed_that_has_handed_over():
    machine = store(A, B, C)
    machine.handle(Received(A, StoreLeaving()), NOW)
    assert not is_answered_for(machine)
    machine.handle(Received(A, StoreLeaving(is_done=True)), NOW)
    assert is_answered_for(machine)
    assert sent(machine.handle(PeerDown(A), NOW), StoreDigest) == []
