"""What a publisher has the catalogue tell of it: that it is there, its backup, its counters and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.catalogue.events import PublisherEntry
from protocols.catalogue.machine import CatalogueMachine
from protocols.catalogue.queries import LIFE_MS
from protocols.catalogue.statistics import has_moved
from protocols.delivery.outbox import Outbox
from protocols.effects import Effect
from protocols.ids import Millis
from protocols.limits import Limits

ROLE: Final = "publisher"  # The role that the catalogue answers.


@dataclass(slots=True)
class Advertising:
    """Advertises the outboxes of one peer, and takes that back."""

    catalogue: CatalogueMachine
    limits: Limits

    def advertise(self, outbox: Outbox, purpose: str, now: Millis) -> list[Effect]:
        entry = outbox.advertised = outbox.entry(now)
        outbox.advertised_at = now
        name = outbox.definition.name
        token = (ROLE, purpose, name, entry.backup.hex() if entry.backup else "")
        return self.catalogue.advertise_publisher(name, entry, self._life(outbox), token, now)

    def withdraw(self, outbox: Outbox, now: Millis) -> list[Effect]:
        stream, origin = outbox.definition.name, outbox.feed.origin
        token = (ROLE, "end", stream)
        life_ms = self._life(outbox)
        return self.catalogue.withdraw_publisher(stream, origin.publisher, origin.epoch, life_ms, token, now)

    def renew(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """From time to time: what has changed; or early, if the statistics have."""
        if outbox.advertised is None or now - outbox.advertised_at >= self.limits.advertise_every_ms:
            return self._changes(outbox, now)
        if outbox.feed.next > outbox.weighed and now - outbox.advertised_at >= self.limits.advertise_soonest_ms:
            return self._news(outbox, outbox.advertised, now)
        return []

    def _changes(self, outbox: Outbox, now: Millis) -> list[Effect]:
        if outbox.is_open and outbox.entry(now) == outbox.advertised:
            outbox.advertised_at = now
            return []
        return self.advertise(outbox, "news" if outbox.is_open else "open", now)

    def _news(self, outbox: Outbox, advertised: PublisherEntry, now: Millis) -> list[Effect]:
        """Advertise changed statistics early: a query posed meanwhile is planned by them."""
        outbox.weighed = outbox.feed.next
        if not outbox.is_open or not has_moved(advertised.statistics, outbox.statistics.summary(now)):
            return []
        return self.advertise(outbox, "news", now)

    def _life(self, outbox: Outbox) -> Millis:
        """Who takes a query over looks up the backup of its results, as long as the query is found."""
        return LIFE_MS if outbox.has_custody else self.limits.advertisement_life_ms
