"""The store machine, event by event: what it promises before it says so."""

from __future__ import annotations

import random

import pytest

from protocols.clock import AHEAD_MAX_MS, COUNT_BITS, HybridClock
from protocols.effects import AfterSync, Append, Effect, Route, Send, SetTimer, Tell
from protocols.errors import LocalProtocolError
from protocols.events import PeerDown, PeerUp, Received, Started, TimerFired
from protocols.ids import Key, PeerId
from protocols.store.entries import Entry
from protocols.store.events import StoreFailed, StoreRead, StoreWritten
from protocols.store.limits import StoreLimits
from protocols.store.machine import StoreMachine
from protocols.store.messages import (
    EntryKept,
    ItemName,
    KeyDropped,
    NeighboursKept,
    StoreAck,
    StoreDigest,
    StoreEntries,
    StoreFetch,
    StoreFound,
    StoreGet,
    StoreOffer,
    StorePull,
    StorePut,
    StorePutDone,
    StoreReplicate,
)
from protocols.store.table import digests_of, version_of
from tests.protocols.store.stores import KEY, LIMITS, ME, NOW, A, B, C, D, entry, give, meet, sent, store

FAR = Key(bytes([255]) + bytes(19))  # Its owners are D, C and B.


# Owning.


def test_an_owner_acknowledges_an_entry_once_it_is_on_disk():
    machine = store(A, B)
    effects = machine.handle(Received(A, StoreReplicate(entries=(entry(),))), NOW)
    assert effects[:2] == [
        Append(EntryKept(entry=entry())),
        AfterSync((Send(A, StoreAck(kept=(version_of(entry()),))),)),
    ]
    assert [type(effect) for effect in effects[2:]] == [SetTimer]


def test_a_repeated_entry_is_acknowledged_again_and_written_once():
    machine = store(A, B)
    give(machine, entry())
    assert machine.handle(Received(A, StoreReplicate(entries=(entry(),))), NOW) == [
        AfterSync((Send(A, StoreAck(kept=(version_of(entry()),))),)),
    ]


def test_an_older_version_is_answered_with_the_newer_one_that_is_held():
    machine = store(A, B)
    newer = entry(stamp=9, value=b"newer")
    give(machine, newer)
    assert machine.handle(Received(A, StoreReplicate(entries=(entry(stamp=5),))), NOW) == [
        AfterSync((Send(A, StoreAck(kept=(version_of(newer),))),)),
    ]


def test_what_belongs_to_nearer_peers_is_not_taken():
    machine = store(A, B, C, D)
    assert machine.handle(Received(A, StoreReplicate(entries=(entry(FAR),))), NOW) == [
        AfterSync((Send(A, StoreAck(kept=(), not_mine=(ItemName(FAR, "x"),), closer=(D, C, B))),)),
    ]


def test_a_read_shows_nothing_that_a_crash_could_undo():
    machine = store(A, B)
    give(machine, entry())
    fetch = StoreFetch(key=KEY, reader=B, request=7)
    answer = StoreEntries(key=KEY, reader=B, request=7, entries=(entry(),), is_owner=True)
    assert machine.handle(Received(A, fetch), NOW) == [AfterSync((Send(A, answer),))]


def test_entries_for_which_there_is_no_room_are_refused_and_newer_versions_are_not():
    machine = store(A, B, limits=StoreLimits(entries_max=1))
    give(machine, entry())
    refused = machine.handle(Received(A, StoreReplicate(entries=(entry(item="y"),))), NOW)
    assert refused == [AfterSync((Send(A, StoreAck(kept=(), refused=(ItemName(KEY, "y"),))),))]
    newer = entry(stamp=6)
    assert machine.handle(Received(A, StoreReplicate(entries=(newer,))), NOW)[0] == Append(EntryKept(entry=newer))


def test_what_has_expired_is_not_taken_up_again():
    machine = store(A, B)
    expired = entry(expires_at=NOW)
    assert machine.handle(Received(A, StoreReplicate(entries=(expired,))), NOW) == [
        AfterSync((Send(A, StoreAck(kept=(version_of(expired),))),)),
    ]
    give(machine, entry(expires_at=NOW + 10))
    machine.handle(TimerFired("store/compare"), NOW + 10)
    assert machine.snapshot() == [NeighboursKept(peers=(A, B))]


# Asking and coordinating.


def test_a_write_goes_to_the_coordinator_and_is_told_when_it_is_done():
    machine = store(A, B)
    effects = machine.write(KEY, "x", b"v", 0, ("role", 1), NOW)
    assert isinstance(effects[0], Route)
    put = effects[0].message
    assert isinstance(put, StorePut)
    stamp = put.entry.stamp
    done = StorePutDone(name=ItemName(KEY, "x"), stamp=stamp, newest=stamp, is_newest=True, replicas=2)
    assert machine.handle(Received(A, done), NOW) == [Tell(StoreWritten(("role", 1), 2))]
    assert machine.handle(Received(A, done), NOW) == []


def test_a_write_that_came_with_too_old_a_stamp_is_stamped_anew_once():
    machine = store(A, B)
    put = machine.write(KEY, "x", b"v", 0, ("role", 1), NOW)[0].message
    stamp = put.entry.stamp
    late = StorePutDone(name=ItemName(KEY, "x"), stamp=stamp, newest=stamp + 10, is_newest=False, replicas=2)
    again = machine.handle(Received(A, late), NOW)[0]
    assert isinstance(again, Route)
    assert again.message.entry.stamp == stamp + 11
    assert again.message.entry.value == b"v"
    late = StorePutDone(name=ItemName(KEY, "x"), stamp=stamp + 11, newest=stamp + 99, is_newest=False, replicas=2)
    assert machine.handle(Received(A, late), NOW) == [Tell(StoreWritten(("role", 1), 2))]


def test_a_write_that_a_later_one_of_ours_has_overtaken_does_not_come_back():
    machine = store(A, B)
    old, new = (machine.write(KEY, "x", value, 0, ("role", value), NOW)[0].message.entry for value in (b"old", b"new"))
    done = StorePutDone(name=ItemName(KEY, "x"), stamp=new.stamp, newest=new.stamp, is_newest=True, replicas=2)
    assert machine.handle(Received(A, done), NOW) == [Tell(StoreWritten(("role", b"new"), 2))]
    late = StorePutDone(name=ItemName(KEY, "x"), stamp=old.stamp, newest=new.stamp, is_newest=False, replicas=2)
    assert machine.handle(Received(B, late), NOW) == [Tell(StoreWritten(("role", b"old"), 2))]
    machine.validate()


def test_of_two_entries_with_one_stamp_the_higher_writer_wins_and_the_other_is_told():
    machine = store(A, B, C)
    lower, higher = entry(), Entry(KEY, "x", 5, B, b"other", 0)
    give(machine, higher)
    machine.handle(Received(lower.writer, StorePut(entry=lower)), NOW)
    (acked,) = machine.handle(Received(ME, StoreReplicate(entries=(lower,))), NOW)
    assert acked == AfterSync((Tell(Received(ME, StoreAck(kept=(version_of(higher),)))),))
    machine.handle(acked.effects[0].event, NOW)
    done = StorePutDone(name=ItemName(KEY, "x"), stamp=5, newest=5, is_newest=False, replicas=2)
    assert machine.handle(Received(B, StoreAck(kept=(version_of(higher),))), NOW) == [Send(A, done)]


def test_a_write_is_repeated_and_given_up_at_its_deadline():
    machine = store(A, B)
    put = machine.write(KEY, "x", b"v", 0, ("role", 1), NOW)[0]
    assert put in machine.handle(TimerFired("store/retry"), NOW + LIMITS.retry_ms)
    effects = machine.handle(TimerFired("store/retry"), NOW + LIMITS.deadline_ms)
    assert effects == [Tell(StoreFailed(("role", 1), "fewer than 2 owners of key 00000000 answered in time"))]


def test_a_value_that_is_too_large_is_answered_at_once():
    effects = store(A, B).write(KEY, "x", bytes(LIMITS.value_bytes_max + 1), 0, ("role", 1), NOW)
    assert effects == [Tell(StoreFailed(("role", 1), "65537 bytes are too many for one entry: at most 65536"))]


def test_the_coordinator_hands_an_entry_to_its_owners_and_answers_when_two_have_it():
    machine = store(A, B, C)
    wanted = entry()
    assert machine.handle(Received(wanted.writer, StorePut(entry=wanted)), NOW) == [
        Tell(Received(ME, StoreReplicate(entries=(wanted,)))),
        Send(A, StoreReplicate(entries=(wanted,))),
        Send(B, StoreReplicate(entries=(wanted,))),
    ]
    ack = StoreAck(kept=(version_of(wanted),))
    assert machine.handle(Received(B, ack), NOW) == []
    assert machine.handle(Received(B, ack), NOW) == []
    done = StorePutDone(name=ItemName(KEY, "x"), stamp=5, newest=5, is_newest=True, replicas=2)
    assert machine.handle(Received(ME, ack), NOW) == [Send(A, done)]


def test_the_word_of_a_peer_that_is_no_owner_does_not_count():
    machine = store(A, B, C)
    machine.handle(Received(A, StorePut(entry=entry())), NOW)
    machine.handle(Received(ME, StoreAck(kept=(version_of(entry()),))), NOW)
    nearer = PeerId(bytes(19) + b"\1")
    stranger = StoreAck(kept=(), not_mine=(ItemName(KEY, "x"),), closer=(nearer,))
    assert machine.handle(Received(B, stranger), NOW) == [Send(nearer, StoreReplicate(entries=(entry(),)))]


def test_an_entry_that_most_owners_have_no_room_for_is_refused():
    machine = store(A, B, C)
    machine.handle(Received(A, StorePut(entry=entry())), NOW)
    full = StoreAck(kept=(), refused=(ItemName(KEY, "x"),))
    assert machine.handle(Received(A, full), NOW) == []
    refusal = "2 of 3 owners of the key have no room for it, or may not take it"
    done = StorePutDone(name=ItemName(KEY, "x"), stamp=5, newest=5, is_newest=True, replicas=0, refusal=refusal)
    assert machine.handle(Received(B, full), NOW) == [Send(A, done)]


def test_a_read_merges_the_newest_of_two_owners():
    machine = store(A, B, C)
    get = StoreGet(key=KEY, reader=C, request=7)
    fetch = StoreFetch(key=KEY, reader=C, request=7)
    assert machine.handle(Received(C, get), NOW) == [Tell(Received(ME, fetch)), Send(A, fetch), Send(B, fetch)]
    mine = (entry(item="x", stamp=5), entry(item="y", stamp=8))
    theirs = (entry(item="x", stamp=6, value=None), entry(item="z", stamp=1))

    def answer(entries: tuple[Entry, ...]) -> StoreEntries:
        return StoreEntries(key=KEY, reader=C, request=7, entries=entries, is_owner=True)

    assert machine.handle(Received(ME, answer(mine)), NOW) == []
    found = StoreFound(request=7, entries=(theirs[0], mine[1], theirs[1]))
    assert machine.handle(Received(A, answer(theirs)), NOW) == [Send(C, found)]


def test_a_reader_hears_what_was_found_without_what_has_expired():
    machine = store(A, B)
    get = machine.read(KEY, ("role", 1), NOW)[0].message
    live, expired = entry(stamp=NOW + AHEAD_MAX_MS << COUNT_BITS), entry(item="y", expires_at=NOW)
    found = StoreFound(request=get.request, entries=(live, expired))
    assert machine.handle(Received(A, found), NOW) == [Tell(StoreRead(("role", 1), KEY, (live,)))]
    assert machine.write(KEY, "x", b"", 0, ("role", 2), NOW)[0].message.entry.stamp > live.stamp


# A network of one.


def lone(has_company: bool) -> StoreMachine:
    machine = StoreMachine(ME, HybridClock(), random.Random(1), LIMITS)
    machine.restore(NeighboursKept(peers=(A,) if has_company else ()), {})
    machine.handle(Started(), NOW)
    return machine


@pytest.mark.parametrize(("has_company", "after_ms"), [(False, LIMITS.settle_ms), (True, LIMITS.ghost_ms)])
def test_a_peer_without_others_waits_a_while_before_it_takes_itself_for_the_network(has_company: bool, after_ms: int):
    machine = lone(has_company)

    def acked_at(now: int) -> list[Effect]:
        machine.handle(Received(A, StorePut(entry=entry())), now)
        (*_, after_sync) = (
            each
            for each in machine.handle(Received(ME, StoreReplicate(entries=(entry(),))), now)
            if isinstance(each, AfterSync)
        )
        (ack,) = after_sync.effects
        assert isinstance(ack, Tell)
        return machine.handle(ack.event, now)

    assert acked_at(NOW + after_ms - 1) == []
    done = StorePutDone(name=ItemName(KEY, "x"), stamp=5, newest=5, is_newest=True, replicas=1)
    assert acked_at(NOW + after_ms) == [Send(A, done)]


def test_a_peer_that_has_lost_sight_of_the_others_does_not_answer_alone():
    machine = store(A)
    machine.handle(PeerDown(A), NOW)
    fetch = StoreFetch(key=KEY, reader=ME, request=7)

    def answers(now: int) -> bool:
        (effect,) = machine.handle(Received(ME, fetch), now)
        return effect.effects[0].event.message.is_owner

    assert not answers(NOW + LIMITS.ghost_ms - 1)
    assert answers(NOW + LIMITS.ghost_ms)


# Catching up.


def test_whoever_comes_up_is_compared_with_and_company_is_remembered():
    machine = store()
    effects = machine.handle(PeerUp(A), NOW)
    assert effects[0] == Append(NeighboursKept(peers=(A,)))
    assert sent(effects, StoreDigest) == [A]


def test_when_a_peer_goes_the_others_are_compared_with_anew():
    machine = store(A, B)
    assert sent(machine.handle(PeerDown(A), NOW), StoreDigest) == [B]
    assert machine.handle(PeerDown(A), NOW) == []


def test_owners_compare_now_and_then():
    machine = store(A, B, C, D)
    give(machine, entry())
    assert sent(machine.handle(TimerFired("store/compare"), NOW), StoreDigest) == [A, B]


def test_a_comparison_pulls_what_we_lack_and_offers_what_the_other_lacks():
    machine = store(A, B)
    give(machine, entry(item="ours", stamp=3), entry(item="both", stamp=3), entry(item="older here", stamp=3))
    digest = next(
        effect.message
        for effect in machine.handle(TimerFired("store/compare"), NOW)
        if isinstance(effect, Send) and effect.peer == A
    )
    theirs = [entry(item="both", stamp=3), entry(item="older here", stamp=4), entry(item="theirs", stamp=3)]
    offer = StoreOffer(versions=tuple(map(version_of, theirs)), round=digest.round, buckets=tuple(range(256)), end=256)
    pull = StorePull(names=(ItemName(KEY, "older here"), ItemName(KEY, "theirs")), round=digest.round)
    assert machine.handle(Received(A, offer), NOW) == [
        Send(A, StoreOffer(versions=(version_of(entry(item="ours", stamp=3)),))),
        Send(A, pull),
    ]
    assert machine.handle(Received(A, offer), NOW) == []  # Repeated.
    effects = machine.handle(Received(A, StoreReplicate(entries=tuple(theirs[1:]), round=digest.round)), NOW)
    assert effects[:2] == [Append(EntryKept(entry=theirs[1])), Append(EntryKept(entry=theirs[2]))]
    assert A not in machine._comparisons._open


def test_whoever_is_compared_with_lists_what_it_holds_where_the_checksums_differ():
    machine, other = store(A, B), store(A, B)
    for each in (machine, other):
        give(each, entry(item="both"))
    give(machine, entry(item="ours"))
    digests = tuple(digests_of(other._table).items())
    digest = StoreDigest(round=7, neighbours=(ME, B), start=0, digests=digests)
    (offer,) = [each.message for each in machine.handle(Received(A, digest), NOW) if isinstance(each, Send)]
    assert offer.versions == (version_of(entry(item="ours")),)
    assert (offer.round, offer.end, len(offer.buckets)) == (7, 256, 1)


def test_an_offer_is_pulled_acknowledged_or_sent_on_to_nearer_peers():
    machine = store(A, B, C, D)
    give(machine, entry())
    offer = StoreOffer(versions=(version_of(entry()), version_of(entry(item="y")), version_of(entry(FAR))))
    assert machine.handle(Received(C, offer), NOW) == [
        Send(C, StorePull(names=(ItemName(KEY, "y"),))),
        AfterSync((Send(C, StoreAck(kept=(version_of(entry()),), not_mine=(ItemName(FAR, "x"),), closer=(D, C, B))),)),
    ]


def test_a_pull_is_answered_with_what_is_there():
    machine = store(A, B)
    give(machine, entry())
    pull = StorePull(names=(ItemName(KEY, "x"), ItemName(KEY, "gone")), round=7)
    assert machine.handle(Received(A, pull), NOW) == [Send(A, StoreReplicate(entries=(entry(),), round=7))]


# Handing over.


HANDED = Key(bytes([16]) + bytes(19))
OWNERS = [PeerId(bytes([16, number]) + bytes(18)) for number in (1, 2, 3)]


def handing_over() -> tuple[StoreMachine, list[Effect]]:
    """A store with one key that belongs to three others since a moment ago, and what it does about that."""
    machine = store(A, B)
    give(machine, entry(HANDED))
    for owner in OWNERS:
        machine.handle(PeerUp(owner), NOW)
        meet(machine, owner)
    return machine, machine.handle(TimerFired("store/retry"), NOW)


def test_a_key_is_dropped_only_when_all_its_new_owners_answer_for_it():
    machine, effects = handing_over()
    offer = StoreOffer(versions=(version_of(entry(HANDED)),))
    assert [effect for effect in effects if isinstance(effect, Send)] == [Send(owner, offer) for owner in OWNERS]
    late = NOW + LIMITS.linger_ms
    ack = StoreAck(kept=(version_of(entry(HANDED)),))
    for owner in OWNERS[:2]:
        machine.handle(Received(owner, ack), NOW)
    assert Send(OWNERS[2], offer) in machine.handle(TimerFired("store/compare"), late)
    machine.handle(Received(OWNERS[2], ack), NOW)
    assert Append(KeyDropped(key=HANDED)) in machine.handle(TimerFired("store/compare"), late)
    assert HANDED not in machine._table


def test_what_a_peer_acknowledged_before_it_went_does_not_count():
    machine, _ = handing_over()
    for owner in OWNERS:
        machine.handle(Received(owner, StoreAck(kept=(version_of(entry(HANDED)),))), NOW)
    machine.handle(PeerDown(OWNERS[0]), NOW)
    machine.handle(PeerUp(OWNERS[0]), NOW)
    effects = machine.handle(TimerFired("store/compare"), NOW + LIMITS.linger_ms)
    assert sent(effects, StoreOffer) == [OWNERS[0]]
    assert HANDED in machine._table


def test_what_was_handed_over_is_kept_for_a_while_and_for_good_if_it_is_ours_again():
    machine, _ = handing_over()
    for owner in OWNERS:
        machine.handle(Received(owner, StoreAck(kept=(version_of(entry(HANDED)),))), NOW)
    machine.handle(TimerFired("store/compare"), NOW + LIMITS.linger_ms - 1)
    assert HANDED in machine._table
    for owner in OWNERS:
        machine.handle(PeerDown(owner), NOW + LIMITS.linger_ms - 1)
    machine.handle(TimerFired("store/compare"), NOW + LIMITS.linger_ms)
    assert HANDED in machine._table


# Crashes.


def test_a_store_is_restored_from_its_records_and_from_its_snapshot():
    machine = store(A, B)
    give(machine, entry(), entry(item="y", value=None))
    restored = StoreMachine(ME, HybridClock(), random.Random(1), LIMITS)
    for record in machine.snapshot():
        restored.restore(record, {})
    assert restored.snapshot() == machine.snapshot()
    restored.restore(KeyDropped(key=KEY), {})
    restored.restore(KeyDropped(key=KEY), {})
    assert restored.snapshot() == [NeighboursKept(peers=(A, B))]
    restored.validate()


def test_a_record_of_another_role_is_our_mistake():
    with pytest.raises(LocalProtocolError, match="no rule for the record"):
        store().restore(object(), {})
