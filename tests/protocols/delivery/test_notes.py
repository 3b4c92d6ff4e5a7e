"""Notes beside the copy of a query's results: with the tuples they speak of, never behind them, and never many."""

from __future__ import annotations

import random

import pytest

from protocols.delivery.feed import Feed
from protocols.delivery.keeper import CopySynced, Keeper
from protocols.delivery.messages import Backed, Backup, BackupNoted, Note, Origin
from protocols.delivery.mirror import ALIVE_MS, Mirror
from protocols.effects import AfterSync, Append, Effect, Send, Tell
from protocols.events import LogBounds, Received, StoredBatch
from protocols.ids import PeerId
from protocols.limits import Limits
from protocols.messages import Record
from tests.seeds import draw_seed

PUBLISHER, BACKUP, OTHER = (PeerId(bytes([number]) * 20) for number in (1, 2, 3))
ORIGIN = Origin(PUBLISHER, "q.1-01010101-0", 1)
LIMITS = Limits(resend_after_ms=100)
ROW = b"\x91\x91\x07"  # A batch of one row.


class Pair:
    """A publisher's mirror, and its backup."""

    def __init__(self) -> None:
        self.mirror = Mirror(Feed(ORIGIN, "out", LIMITS), BACKUP, 1 << 40, listed=BACKUP)
        self.mirror.is_listed = True
        self.keeper = Keeper(LIMITS)
        self.journal: list[Record] = []
        self.number = self.now = 0

    def note(self, position: int, *, is_whole: bool = True) -> None:
        self.number += 1
        self.mirror.keep(self.number, position, (b"note %d" % position,), is_whole=is_whole)

    def publish(self, *, is_whole: bool = True) -> list[Backup]:
        """A result with its note, as a proxy publishes it; what goes to the backup."""
        feed = self.mirror.feed
        self.note(feed.next + 1, is_whole=is_whole)
        feed.append(StoredBatch(feed.next, 1, feed.next + 1, ROW))
        self.mirror.appended()
        return backups_in(self.mirror.feed_on(feed.next, self.now))

    def back(self, message: Backup) -> Backed:
        """The backup takes a message, and its disk is quick."""
        effects = self.keeper.handle(Received(PUBLISHER, message), self.now)
        self.journal += [each.record for each in effects if isinstance(each, Append)]
        synced = [each.effects[0] for each in effects if isinstance(each, AfterSync)]
        if synced:
            (told,) = synced
            assert isinstance(told, Tell)
            assert isinstance(told.event, CopySynced)
            effects = self.keeper.handle(told.event, self.now)
        answer = effects[0]
        assert isinstance(answer, Send)
        assert isinstance(answer.message, Backed)
        return answer.message

    def confirm(self, backed: Backed) -> list[Backup]:
        durable = self.mirror.feed.next
        effects = self.mirror.confirmed(BACKUP, backed.next, durable, self.now, backed.noted)
        self.mirror.safe(durable, is_alone=False)
        return backups_in(effects)

    @property
    def kept(self) -> tuple[Note, ...]:
        return self.keeper.notes.get(ORIGIN, ())

    @property
    def copied(self) -> int:
        feed = self.keeper.feeds.get(ORIGIN)
        return feed.next if feed is not None else 0


def backups_in(effects: list[Effect]) -> list[Backup]:
    return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Backup)]


def test_a_note_goes_with_the_tuples_that_it_speaks_of():
    pair = Pair()
    (message,) = pair.publish()
    assert (message.notes, message.noted) == ((Note(1, 1, 0, (b"note 1",)),), 1)
    assert pair.back(message) == Backed(origin=ORIGIN, next=1, noted=1)
    assert pair.kept == message.notes


def test_a_backup_takes_no_tuples_without_their_note():
    pair = Pair()
    first = pair.publish()[0]
    (second,) = pair.publish()
    assert pair.back(second) == Backed(origin=ORIGIN, next=0, noted=0)
    torn = Backup(origin=ORIGIN, batches=first.batches, first=0, retention_ms=1 << 40, noted=1)
    assert pair.back(torn) == Backed(origin=ORIGIN, next=0, noted=0)
    assert pair.confirm(pair.back(first)) == []
    assert pair.back(second) == Backed(origin=ORIGIN, next=2, noted=2)


def test_notes_do_not_pile_up_and_those_that_add_are_kept_until_one_stands_for_all():
    pair = Pair()
    for turn in range(300):
        for message in pair.publish(is_whole=turn % 100 == 0):
            pair.confirm(pair.back(message))
        assert len(pair.kept) == turn % 100 + 1
        assert len(pair.mirror.notes) <= 101
    assert [note.next for note in pair.kept[:2]] == [201, 202]
    assert len(pair.keeper.snapshot()) == 101


def test_another_backup_first_gets_what_stands_for_all_and_is_listed_only_with_it():
    pair = Pair()
    for _ in range(5):
        for message in pair.publish():
            pair.confirm(pair.back(message))
    pair.mirror.move_to(OTHER)
    assert not pair.mirror.wants_listing
    messages = backups_in(pair.mirror.feed_on(5, pair.now))
    assert [note.next for message in messages for note in message.notes][-1:] == [5]
    pair.mirror.confirmed(OTHER, 5, 5, pair.now, 0)
    assert not pair.mirror.wants_listing, "the tuples are there, and their note is not"
    pair.mirror.confirmed(OTHER, 5, 5, pair.now, 5)
    assert pair.mirror.wants_listing


def test_a_backup_of_an_older_release_is_listed_without_notes():
    pair = Pair()
    pair.mirror.move_to(OTHER)
    pair.note(0)
    assert not pair.mirror.wants_listing
    pair.mirror.confirmed(OTHER, 0, 0, pair.now)
    assert pair.mirror.wants_listing


def test_a_silent_publisher_says_that_it_is_alive_and_sends_a_lost_note_again():
    pair = Pair()
    pair.note(0)
    (lost,) = backups_in(pair.mirror.feed_on(0, pair.now))
    pair.now += LIMITS.resend_after_ms
    assert backups_in(pair.mirror.hurry(0, pair.now)) == [lost]
    pair.confirm(pair.back(lost))
    assert backups_in(pair.mirror.hurry(0, pair.now)) == []
    pair.now += ALIVE_MS
    (alive,) = backups_in(pair.mirror.hurry(0, pair.now))
    assert (alive.notes, alive.batches, alive.noted) == ((), (), 1)
    pair.back(alive)
    assert pair.keeper.heard_at == {ORIGIN: pair.now}


def test_a_frozen_copy_takes_nothing_and_says_so_until_it_is_thawed():
    pair = Pair()
    pair.back(pair.publish()[0])
    (second,) = pair.publish()
    pair.keeper.freeze(ORIGIN)
    assert pair.back(second) == Backed(origin=ORIGIN, next=1, noted=1, is_over=True)
    pair.keeper.thaw(ORIGIN)
    assert pair.back(second) == Backed(origin=ORIGIN, next=2, noted=2)


def test_a_note_whose_tuples_were_lost_in_a_crash_is_void():
    pair = Pair()
    for _ in range(3):
        for message in pair.publish():
            pair.confirm(pair.back(message))
    again = Keeper(LIMITS)
    for record in pair.journal:
        again.restore(record, {f"copy/{PUBLISHER.hex()}/{ORIGIN.stream}/1": LogBounds(0, 2, ((0, 1), (1, 2)))})
    assert [note.next for note in again.notes[ORIGIN]] == [2]
    assert sum(isinstance(record, BackupNoted) for record in again.snapshot()) == 1


@pytest.mark.parametrize("turn", range(20))
def test_a_copy_is_always_one_to_go_on_from(turn: int):
    """Messages are lost, repeated and late, notes stand for all or add, and the publisher sends again."""
    seed = draw_seed() + turn
    print(f"PEER_SEED={seed}")
    rng = random.Random(seed)
    pair = Pair()
    there: list[Backup] = []
    back: list[Backed] = []
    for step in range(400):
        pair.now += rng.randrange(60)
        if rng.random() < 0.3 and step < 350:
            there += pair.publish(is_whole=step == 0 or pair.number == 0 or rng.random() < 0.3)
        if there and rng.random() < 0.6:
            message = there.pop(rng.randrange(len(there)) if rng.random() < 0.3 else 0)
            back += [pair.back(message)] if rng.random() < 0.8 else []
            there += [message] if rng.random() < 0.1 else []
        if back and rng.random() < 0.6:
            there += pair.confirm(back.pop(rng.randrange(len(back)) if rng.random() < 0.3 else 0))
        if rng.random() < 0.2:
            there += backups_in(pair.mirror.hurry(pair.mirror.feed.next, pair.now))
        if pair.copied:
            assert pair.kept[-1].next == pair.copied
            assert pair.kept[0].after == 0
            numbers = [note.number for note in pair.kept]
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "none is missing in between"
    for _ in range(200):
        pair.now += 100
        for message in backups_in(pair.mirror.hurry(pair.mirror.feed.next, pair.now)):
            pair.confirm(pair.back(message))
    assert pair.copied == pair.mirror.feed.next
