"""The second copy of a `replicated` stream: what goes to the backup, and how much of it is safe there.

Beside the tuples go the notes of whoever makes them: each with the batch that it speaks of, so the copy never has
tuples without their note. The copy of the results of a query is then all that another peer needs to go on with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.clock import Stamp
from protocols.delivery.feed import BATCH_OVERHEAD_BYTES, Feed
from protocols.delivery.messages import Backup, Batch, Note
from protocols.effects import Effect, ReadLog, Send
from protocols.events import StoredBatch
from protocols.ids import Millis, PeerId

ALIVE_MS: Final = 5000  # How often a backup that may have to take over hears that its publisher is alive.


@dataclass(slots=True)
class Mirror:
    """The backup of one feed, as its ingress peer sees it.

    Only what is on our own disk is sent, so the copy never holds more than the original. A tuple that is safe stays
    safe when the backup changes.
    """

    feed: Feed
    backup: PeerId | None
    retention_ms: Millis
    listed: PeerId | None = None  # The backup that the catalogue names; subscribers find it there if our disk is lost.
    is_listed: bool = False  # The catalogue has confirmed the present backup.
    floor: int = 0  # Everything promised before the last start lies below.
    confirmed_next: int = 0
    sent: int = 0
    # What the backup is to keep beside the copy, from the last that stands for all before and speaks of what is safe.
    notes: list[Note] = field(default_factory=list)
    noted: Stamp | None = 0  # The last note that the backup has; None: it keeps none.
    link: int = 0  # How long the chain of custody was when it was last looked at.
    is_checked: bool = False  # The chain was looked at since the last start.
    is_over: bool = False  # The backup has taken the stream over.
    _pending: Note | None = None  # Speaks of a batch that is not in the log yet.
    _told: Stamp = 0  # The last note that was sent.
    _told_at: Millis = 0  # When the backup was last sent anything.
    _safe: int = 0
    _asked_at: Millis = 0
    _reading: int | None = None  # The sequence from which the log is being read.

    def safe(self, durable: int, *, is_alone: bool) -> int:
        """Everything below is on two disks, or on ours alone if there never was another peer to ask."""
        if self.is_over:
            return self._safe
        if self.backup is not None:
            if self.is_listed:
                self._safe = max(self._safe, min(durable, self.confirmed_next))
        elif is_alone:
            self._safe = max(self._safe, durable)
        return self._safe

    def move_to(self, backup: PeerId | None) -> None:
        """Begin a copy at another peer, from our first tuple on. The old one stays listed until the new
        one is whole, and holds all that the old one may have served.
        """
        self.floor = max(self.floor, self.sent)
        self.noted = self._told = 0
        self.backup = backup
        self.is_listed = False
        self.confirmed_next = self.sent = self.feed.first
        self._reading = None

    @property
    def wants_listing(self) -> bool:
        """Whether the catalogue should name this backup now: it holds everything ever promised."""
        is_whole = self.confirmed_next >= max(self._safe, self.floor)
        return self.backup not in (None, self.listed) and is_whole and self._has_notes(self.confirmed_next)

    def _has_notes(self, below: int) -> bool:
        """Whether the backup has all notes that speak of what is below."""
        return self.noted is None or self.noted >= self._last_note(below)

    def _last_note(self, below: int) -> Stamp:
        return next((note.number for note in reversed(self.notes) if note.next <= below), 0)

    def keep(self, number: Stamp, position: int, parts: tuple[bytes, ...], *, is_whole: bool) -> None:
        """Have the backup keep a note; with the batch that it speaks of, if that is still to come."""
        note = Note(number, position, 0 if is_whole else 1, parts)
        if position > self.feed.next:
            self._pending = note
        else:
            self._add(note)

    def amend(self, parts: tuple[bytes, ...]) -> bool:
        """Add to the note that waits for its batch, if there is one."""
        if self._pending is None:
            return False
        self._pending = msgspec.structs.replace(self._pending, parts=self._pending.parts + parts)
        return True

    def appended(self) -> None:
        """A batch is in the log: the note that waited for it can go with it."""
        if self._pending is not None and self._pending.next <= self.feed.next:
            note, self._pending = self._pending, None
            self._add(note)

    def _add(self, note: Note) -> None:
        after = self.notes[-1].number if note.after and self.notes else 0
        self.notes.append(msgspec.structs.replace(note, after=after))
        self._forget_notes()

    def _forget_notes(self) -> None:
        """Nobody needs those before the last one that stands for all and speaks of what is safe."""
        whole = [place for place, note in enumerate(self.notes) if not note.after and note.next <= self._safe]
        if whole:
            del self.notes[: whole[-1]]

    def retire(self, upto: int, durable: int) -> None:
        """The backup has taken the stream over: what it had counts, and nothing else ever will."""
        self.backup, self.is_listed, self.is_over = None, False, True
        self._safe = max(self._safe, min(upto, durable))
        self.notes.clear()
        self._pending = None

    def feed_on(self, durable: int, now: Millis) -> list[Effect]:
        return self._send(durable, now, {})

    def read(self, first: int, batches: tuple[StoredBatch, ...], durable: int, now: Millis) -> list[Effect]:
        if self._reading != first:
            return []
        self._reading = None
        return self._send(durable, now, {batch.first: batch for batch in batches}) if batches else []

    def confirmed(
        self, sender: PeerId, upto: int, durable: int, now: Millis, noted: Stamp | None = None
    ) -> list[Effect]:
        """The backup has everything below on its disk. A lower number than before means it lost some and wants it
        again.
        """
        if sender != self.backup:
            return []
        if noted is not None and (noted > self._told or noted < (self.noted or 0)):
            self._told = noted
        self.noted = noted
        self._forget_notes()
        if upto < self.confirmed_next or upto > self.sent:
            self.sent = upto
        if upto != self.confirmed_next:  # The same number again is no progress: something on the way was lost.
            self._asked_at = now
        self.confirmed_next = min(upto, durable)
        return self._send(durable, now, {})

    def hurry(self, durable: int, now: Millis) -> list[Effect]:
        """Resend what has been unconfirmed for too long."""
        if self.sent > self.confirmed_next and now - self._asked_at >= self.feed.limits.resend_after_ms:
            self.sent = self.confirmed_next
            self._told = self.noted or 0
        if self.notes and self.backup is not None:
            is_lost = not self._has_notes(self.sent) and now - self._told_at >= self.feed.limits.resend_after_ms
            self._told = self.noted or 0 if is_lost else self._told
            if is_lost or now - self._told_at >= ALIVE_MS:
                return [self._backup([], now), *self._send(durable, now, {})]
        return self._send(durable, now, {})

    def _backup(self, batches: list[Batch], now: Millis) -> Send:
        """BACKUP, with the notes that speak of what has been sent by then."""
        assert self.backup is not None
        notes = tuple(note for note in self.notes if note.next <= self.sent and note.number > self._told)
        self._told = notes[-1].number if notes else self._told
        self._told_at = now
        message = Backup(
            origin=self.feed.origin,
            batches=tuple(batches),
            first=self.feed.first,
            retention_ms=self.retention_ms,
            notes=notes,
            noted=self._last_note(self.sent) if self.noted is not None else 0,
        )
        return Send(self.backup, message)

    def _send(self, durable: int, now: Millis, loaded: dict[int, StoredBatch]) -> list[Effect]:
        if self.backup is None:
            return []
        self.sent = max(self.sent, self.feed.first)
        self.confirmed_next = max(self.confirmed_next, self.feed.first)
        batches: list[Batch] = []
        size = 0
        while self.sent < durable and self.sent - self.confirmed_next < self._window and size < self._message_bytes:
            found = self.feed.find(self.sent, loaded)
            if found is None or (batches and size + len(found.rows) > self._message_bytes):
                break
            batches.append(Batch(self.feed.origin, found.first, found.count, found.published_at, found.rows))
            size += len(found.rows) + BATCH_OVERHEAD_BYTES
            self.sent = found.next
        if batches:
            if self.confirmed_next == batches[0].first:
                self._asked_at = now
            return [self._backup(batches, now), *self._send(durable, now, loaded)]
        if self.noted is not None and self._last_note(self.sent) > self._told:
            return [self._backup([], now), *self._send(durable, now, loaded)]
        is_missing = self.sent < durable and self.sent - self.confirmed_next < self._window
        if is_missing and self._reading is None:
            self._reading = self.sent
            return [ReadLog(self.feed.log, self.sent, self._message_bytes)]
        return []

    @property
    def _window(self) -> int:
        """How many tuples may be on their way; their bytes are bounded by the credit of one reader."""
        return max(1, int(self.feed.limits.credit_bytes / max(self.feed.row_bytes, 1.0)))

    @property
    def _message_bytes(self) -> int:
        return self.feed.limits.message_bytes
