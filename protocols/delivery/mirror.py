"""The second copy of a `replicated` stream: what goes to the backup, and how much of it is safe there."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.delivery.feed import BATCH_OVERHEAD_BYTES, Feed
from protocols.delivery.messages import Backup, Batch
from protocols.effects import Effect, ReadLog, Send
from protocols.events import StoredBatch
from protocols.ids import Millis, PeerId


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
    _safe: int = 0
    _asked_at: Millis = 0
    _reading: int | None = None  # The sequence from which the log is being read.

    def safe(self, durable: int, *, is_alone: bool) -> int:
        """Everything below is on two disks, or on ours alone if there never was another peer to ask."""
        if self.backup is not None:
            if self.is_listed:
                self._safe = max(self._safe, min(durable, self.confirmed_next))
        elif is_alone:
            self._safe = max(self._safe, durable)
        return self._safe

    def move_to(self, backup: PeerId | None) -> None:
        """Begin a copy at another peer, from our first tuple on. The old one stays listed until the new
        one is whole.
        """
        self.backup = backup
        self.is_listed = False
        self.confirmed_next = self.sent = self.feed.first
        self._reading = None

    @property
    def wants_listing(self) -> bool:
        """Whether the catalogue should name this backup now: it holds everything ever promised."""
        return self.backup not in (None, self.listed) and self.confirmed_next >= max(self._safe, self.floor)

    def feed_on(self, durable: int, now: Millis) -> list[Effect]:
        return self._send(durable, now, {})

    def read(self, first: int, batches: tuple[StoredBatch, ...], durable: int, now: Millis) -> list[Effect]:
        if self._reading != first:
            return []
        self._reading = None
        return self._send(durable, now, {batch.first: batch for batch in batches}) if batches else []

    def confirmed(self, sender: PeerId, upto: int, durable: int, now: Millis) -> list[Effect]:
        """The backup has everything below on its disk. A lower number than before means it lost some and wants it
        again.
        """
        if sender != self.backup:
            return []
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
        return self._send(durable, now, {})

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
            message = Backup(
                origin=self.feed.origin,
                batches=tuple(batches),
                first=self.feed.first,
                retention_ms=self.retention_ms,
            )
            return [Send(self.backup, message), *self._send(durable, now, loaded)]
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
