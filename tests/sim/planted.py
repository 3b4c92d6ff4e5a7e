"""Bugs planted into what keeps streams: the disk, publishing, subscribing, the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from protocols.clock import HybridClock, Stamp
from protocols.commit import SyncGate
from protocols.delivery.dead_letters import DeadLetters, Doubts
from protocols.delivery.feed import Feed
from protocols.delivery.ingress import Ingress
from protocols.delivery.messages import BatchMessage, Gap, PublishNoted
from protocols.delivery.mirror import Mirror
from protocols.delivery.sessions import Sessions
from protocols.delivery.subscriber import Subscriber
from protocols.effects import AfterSync, Append, AppendBatch, Effect, Send
from protocols.events import LogBounds, StoredBatch
from protocols.ids import Key, Millis, PeerId
from protocols.journal.disk import Disk
from protocols.journal.format import MOVED
from protocols.journal.journal import Journal
from protocols.journal.pending import Pending, Remove, Step, Write, segment_name
from protocols.journal.recovery import Scanner
from protocols.messages import Record
from protocols.peer import Peer
from protocols.store import neighbourhood as module_of_neighbours
from protocols.store.comparison import Comparisons
from protocols.store.entries import Entry
from protocols.store.handover import Handovers
from protocols.store.machine import StoreMachine
from protocols.store.messages import KeyDropped, StoreOffer
from protocols.store.neighbourhood import Neighbourhood
from protocols.store.table import versions_in
from tests.sim.bugs import Patch, bug
from tests.sim.series import DISK_LOSS, HARD, LEAVING, POWER_CUTS

# The disk.


@bug("restarts", seeds=20)
def ack_before_fsync() -> Patch:
    """What should wait for the disk is done at once."""
    release = SyncGate.release
    return patch.object(SyncGate, "release", lambda gate, synced: release(gate, 1 << 62))


@bug("restarts", seeds=10)
def fsync_forgotten() -> Patch:
    """The journal writes its segments and never syncs them."""
    return patch.object(Write, "perform", lambda write, disk: disk.append(write.name, b"".join(write.entries)))


@bug("restarts", seeds=20)
def torn_tail_not_cut() -> Patch:
    """Recovery leaves the torn end of a segment where it is, and writes on behind it."""
    load_segment = Scanner._load_segment

    def leave(scanner: Scanner, number: int, is_newest: bool) -> None:
        with patch.object(type(scanner.disk), "truncate", lambda disk, name, size: None):
            load_segment(scanner, number, is_newest)

    return patch.object(Scanner, "_load_segment", leave)


@bug("restarts", seeds=10)
def segment_removed_too_early() -> Patch:
    """A segment goes with the next snapshot, whether or not its batches have been released."""
    removals = Journal._removals

    def remove(journal: Journal) -> list[Step]:
        covered = range(1, journal._segments.covered)
        return removals(journal) + [Remove(segment_name(each)) for each in covered if journal._segments.kept(each)]

    return patch.object(Journal, "_removals", remove)


@bug("restarts", seeds=20)
def segment_removed_before_its_copies_are_safe() -> Patch:
    """Compaction removes a segment first, and then writes what was kept of it."""
    write = Pending.write

    def remove_first(pending: Pending, disk: Disk) -> None:
        pending._steps = deque(sorted(pending._steps, key=lambda step: not isinstance(step, Remove)))
        write(pending, disk)

    return patch.object(Pending, "write", remove_first)


@bug("restarts", seeds=40)
def moved_batches_are_lost() -> Patch:
    """Recovery does not know the batches that compaction has moved."""
    take = Scanner._take

    def skip(scanner: Scanner, data: bytes, name: str, kind: int, *place: int) -> None:
        if kind != MOVED:
            take(scanner, data, name, kind, *place)

    return patch.object(Scanner, "_take", skip)


@bug("restarts", seeds=20)
def snapshot_forgets_a_role() -> Patch:
    """A snapshot leaves out what the publisher had to remember."""

    def snapshot(peer: Peer) -> list[Record]:
        roles = (peer.store, peer.keeper, peer.subscriber)
        return [record for role in roles for record in role.snapshot()]

    return patch.object(Peer, "snapshot", snapshot)


# Publishing.


@bug("churn", seeds=10)
def sequences_used_again() -> Patch:
    """After a restart the log of an outbox is taken for empty."""
    opened = Ingress._open

    def begin_anew(publisher: Ingress, definition: Any, epoch: Millis, backup: PeerId | None, bounds: object) -> Any:
        return opened(publisher, definition, epoch, backup, LogBounds(0, 0))

    return patch.object(Ingress, "_open", begin_anew)


@bug("churn", seeds=20)
def publishes_not_noted() -> Patch:
    """A publish that is asked again is taken for a new one."""
    return patch.object(Sessions, "add", lambda sessions, note: None)


@bug("restarts", seeds=40)
def notes_forgotten_at_restart() -> Patch:
    """A publish that is asked again after a crash is taken for a new one."""
    restore = Ingress.restore

    def forget(publisher: Ingress, record: Record, logs: Any) -> None:
        if not isinstance(record, PublishNoted):
            restore(publisher, record, logs)

    return patch.object(Ingress, "restore", forget)


@bug("restarts", seeds=400)
def note_without_its_tuples() -> Patch:
    """A note survives a crash that its tuples did not, and is believed."""
    restore = Ingress.restore

    def believe(publisher: Ingress, record: Record, logs: Any) -> None:
        if isinstance(record, PublishNoted):
            publisher._sessions.add(record)
        else:
            restore(publisher, record, logs)

    return patch.object(Ingress, "restore", believe)


@bug("restarts", seeds=400)
def tuples_before_their_note() -> Patch:
    """Tuples are written before the note of their publish: a torn write may keep one without the other."""
    accept = Ingress._accept

    def swap(publisher: Ingress, *arguments: Any) -> list[Effect]:
        effects = accept(publisher, *arguments)
        match effects:
            case [Append() as note, AppendBatch() as batch, *rest]:
                return [batch, note, *rest]
        return effects

    return patch.object(Ingress, "_accept", swap)


@bug("short-lived", seeds=30)
def stamps_not_witnessed() -> Patch:
    """A peer stamps by its own clock, whatever stamps it has seen."""
    return patch.object(HybridClock, "witness", lambda clock, stamp: None)


@bug("wrong-clocks", seeds=10)
def stamps_by_a_wrong_clock() -> Patch:
    """A peer that knows its clock to be too far off stamps all the same."""
    return patch.object(HybridClock, "is_off", False)


@bug("disk-loss", seeds=40)
def answered_before_the_backup() -> Patch:
    """A publish to a replicated stream is answered once it is on one disk."""
    return patch.object(Mirror, "safe", lambda mirror, durable, is_alone: durable)


@bug("churn", seeds=10)
def served_before_it_is_safe() -> Patch:
    """Subscribers get tuples that a crash of the ingress peer can still undo."""
    append = Feed.append

    def serve(feed: Feed, batch: StoredBatch) -> None:
        append(feed, batch)
        feed.committed = feed.next

    return patch.object(Feed, "append", serve)


# Feeding subscribers.


@bug("churn", seeds=20)
def nothing_sent_again() -> Patch:
    """What a subscriber did not acknowledge is never sent again."""
    return patch.object(Feed, "resend", lambda feed, now: feed.pump(now))


@bug("churn", seeds=10)
def first_batch_skipped() -> Patch:
    """A new reader begins one batch too late."""
    start = Feed._start

    def late(feed: Feed, since: Stamp) -> int:
        found = start(feed, since)
        later = [first for first in feed._firsts if first > found]
        return later[0] if later else feed.next

    return patch.object(Feed, "_start", late)


@bug("short-lived", seeds=10)
def gap_not_told() -> Patch:
    """A reader that comes too late for some tuples is not told so."""
    pump_one = Feed._pump_one

    def pump_in_silence(feed: Feed, *arguments: Any) -> list[Effect]:
        effects = pump_one(feed, *arguments)
        return [each for each in effects if not (isinstance(each, Send) and isinstance(each.message, Gap))]

    return patch.object(Feed, "_pump_one", pump_in_silence)


# Subscribing.


@bug("churn", seeds=10)
def repeated_batch_taken() -> Patch:
    """A batch that comes twice is handed on twice."""
    take = Subscriber._take

    def take_again(subscriber: Subscriber, sender: PeerId, message: BatchMessage) -> list[Effect]:
        subscription = subscriber.subscriptions.get(message.subscription)
        if subscription is not None and subscription.request is not None:
            repeated = [each for each in message.batches if each.next <= subscription.taken.get(each.origin, 0)]
            subscription.held.extend(repeated)
        return take(subscriber, sender, message)

    return patch.object(Subscriber, "_take", take_again)


@bug("churn", seeds=20)
def batch_after_a_hole_taken() -> Patch:
    """A batch is taken though the one before it has not come."""
    take = Subscriber._take

    def jump(subscriber: Subscriber, sender: PeerId, message: BatchMessage) -> list[Effect]:
        subscription = subscriber.subscriptions.get(message.subscription)
        if subscription is not None and subscription.request is not None and message.batches:
            first = message.batches[0]
            if first.first > subscription.taken.get(first.origin, first.first):
                subscription.taken[first.origin] = first.first
        return take(subscriber, sender, message)

    return patch.object(Subscriber, "_take", jump)


@bug("restarts", seeds=20)
def dead_letters_not_written_down() -> Patch:
    """A tuple is put aside in memory alone."""
    bury = Subscriber._bury

    def forget(subscriber: Subscriber, *arguments: Any) -> list[Effect]:
        return [each for each in bury(subscriber, *arguments) if not isinstance(each, Append)]

    return patch.object(Subscriber, "_bury", forget)


@bug("churn", seeds=10)
def a_tuple_is_tried_for_ever() -> Patch:
    """A tuple that its reader cannot bear comes again and again, and nothing behind it ever comes."""
    return patch.object(Doubts, "failed", lambda doubts, origin, upto: 1)


@bug("churn", seeds=20)
def a_tuple_in_doubt_is_dropped() -> Patch:
    """A tuple tried often enough is left out, and put nowhere."""
    return patch.object(DeadLetters, "add", lambda letters, letter, limits: None)


# The store.


@bug(HARD, seeds=20)
def quorum_of_one() -> Patch:
    """One owner's word is enough."""
    return patch.object(Neighbourhood, "needed", lambda neighbourhood, now: 1)


@bug(HARD, seeds=250)
def one_owner_too_many() -> Patch:
    """Off by one: a key has R + 1 owners, of which two quorums need not meet."""
    is_among = module_of_neighbours._is_among

    def owners(neighbourhood: Neighbourhood, key: Key, also: Iterable[PeerId] = ()) -> list[PeerId]:
        peers = dict.fromkeys((*neighbourhood.others, neighbourhood.peer_id, *also))
        return sorted(peers, key=lambda peer: peer.number ^ key.number)[: neighbourhood.limits.owners + 1]

    @contextmanager
    def both() -> Iterator[None]:
        with (
            patch.object(Neighbourhood, "owners", owners),
            patch.object(module_of_neighbours, "_is_among", lambda *rest: is_among(*rest[:3], rest[3] + 1)),
        ):
            yield

    return both()


@bug(HARD, seeds=10)
def owner_without_catching_up() -> Patch:
    """A peer answers for a key from the moment it owns it."""
    return patch.object(Neighbourhood, "answers_for", lambda neighbourhood, key, now: neighbourhood.is_owner(key))


@bug(DISK_LOSS, seeds=30)
def comparison_pulls_nothing() -> Patch:
    """Anti-entropy finds the difference, and leaves it."""
    advance = Comparisons._advance

    def leave(comparisons: Comparisons, peer: PeerId, comparison: Any, now: Millis) -> list[Effect]:
        comparison.wanted.clear()
        return advance(comparisons, peer, comparison, now)

    return patch.object(Comparisons, "_advance", leave)


@bug(HARD, seeds=10)
def older_entry_wins() -> Patch:
    """Whatever arrives last is taken for the newest."""
    return patch.object(Entry, "supersedes", lambda entry, other: entry != other)


@bug(POWER_CUTS, seeds=10)
def replica_confirms_before_its_sync() -> Patch:
    """An owner acknowledges an entry that is not on its disk yet."""
    replicated = StoreMachine._replicated

    def at_once(machine: StoreMachine, *arguments: Any) -> list[Effect]:
        effects: list[Effect] = []
        for effect in replicated(machine, *arguments):
            effects += effect.effects if isinstance(effect, AfterSync) else [effect]
        return effects

    return patch.object(StoreMachine, "_replicated", at_once)


@bug(LEAVING, seeds=10)
def key_dropped_without_acks() -> Patch:
    """What belongs to others now is dropped as soon as it has been offered to them."""
    advance = Handovers.advance

    def drop(handovers: Handovers, keys: Sequence[Key], now: Millis) -> list[Effect]:
        effects = advance(handovers, keys, now)
        dropped = [key for key in keys if key in handovers._open]
        for key in dropped:
            del handovers._open[key]
            handovers.table.drop(key)
        return [*effects, *(Append(KeyDropped(key=key)) for key in dropped)]

    return patch.object(Handovers, "advance", drop)


@bug(HARD, seeds=10)
def absence_taken_for_deletion() -> Patch:
    """What the other side of a comparison does not hold is dropped."""
    offer_back = Comparisons._offer_back

    def believe(comparisons: Comparisons, peer: PeerId, comparison: Any, message: StoreOffer) -> list[Effect]:
        theirs = {version.key for version in message.versions}
        ours = versions_in(comparisons.table.meant(comparison.is_meant, message.buckets), message.buckets)
        for key in dict.fromkeys(version.key for bucket in message.buckets for version in ours.get(bucket, ())):
            if key not in theirs:
                comparisons.table.drop(key)
        return offer_back(comparisons, peer, comparison, message)

    return patch.object(Comparisons, "_offer_back", believe)


@bug(LEAVING, seeds=10)
def leave_without_draining() -> Patch:
    """A peer that leaves says that all is handed over, and hands over nothing."""
    return patch.object(Handovers, "entries_left", lambda handovers, keys: 0)


@bug(LEAVING, seeds=20)
def leave_without_catching_up() -> Patch:
    """The heirs of a peer that leaves answer for its keys before they have them."""
    return patch.object(Neighbourhood, "_has_inherited", lambda neighbourhood, key: True)
