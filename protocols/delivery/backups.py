"""Which peer has the second copy of a stream, and what happens when that changes.

A backup counts once the catalogue names it. The backup of a query's results may take the query over once its publisher
is gone (`protocols/catalogue/custody.py`), so of those the chain of custody has the last word: another backup is one
more link, and a publisher that comes back reads the chain before any backup counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.catalogue.custody import Custody, CustodyDecided, Keeping
from protocols.catalogue.events import StreamFound
from protocols.catalogue.machine import CatalogueMachine
from protocols.delivery.advertising import ROLE, Advertising
from protocols.delivery.messages import Backed
from protocols.delivery.outbox import Outbox
from protocols.effects import AfterSync, Append, Effect, Tell
from protocols.events import Event
from protocols.ids import Millis, PeerId, StreamName


class StreamTaken(Event, frozen=True):
    """Another peer has taken over a stream of results that this peer published."""

    stream: StreamName
    by: PeerId


class StreamClosed(Event, frozen=True):
    """A stream of results that this peer published has been removed."""

    stream: StreamName


@dataclass(slots=True)
class Backups:
    """The backups of one peer's outboxes.

    In:        BACKED; what the catalogue answers; which peers are near, and which are lost
    Out:       BACKUP; advertisements; wishes for the next link of a chain; StreamTaken
    Keeps:     the peers that are near
    Invariant: nothing counts as safe at a backup that may not be the one to take over
    """

    peer_id: PeerId
    catalogue: CatalogueMachine
    advertising: Advertising
    near: tuple[PeerId, ...] = ()
    _refused: dict[tuple[StreamName, PeerId], None] = field(default_factory=dict)  # Who takes no more of a stream.

    def nearest(self, stream: StreamName = "") -> PeerId | None:
        found = (peer for peer in self.near if peer != self.peer_id and (stream, peer) not in self._refused)
        return next(found, None)

    def lost(self, peer: PeerId) -> None:
        self.near = tuple(near for near in self.near if near != peer)

    def _forget_refusals(self, stream: StreamName) -> None:
        """Ask them again."""
        self._refused = {each: None for each in self._refused if each[0] != stream}

    def backed(self, outbox: Outbox, sender: PeerId, message: Backed, now: Millis) -> list[Effect]:
        """A backup says what it has; the caller commits what is safe by that."""
        mirror, stream = outbox.mirror, outbox.definition.name
        if mirror is None or mirror.is_over:
            return []
        if message.is_over:
            self._refused[stream, sender] = None
            return self._look(outbox, now) if sender in (mirror.backup, mirror.listed) else []
        effects: list[Effect] = []
        if outbox.has_custody and sender == mirror.backup and message.next < mirror.confirmed_next:
            mirror.is_listed = False  # Perhaps it has lost its disk, and does not know that it took the stream over.
            return [
                *mirror.confirmed(sender, message.next, outbox.durable, now, message.noted),
                *self._look(outbox, now),
            ]
        effects = mirror.confirmed(sender, message.next, outbox.durable, now, message.noted)
        return [*effects, *self.name_backup(outbox, now)]

    def name_backup(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """Have the catalogue name a new backup once it holds everything promised. Our own journal is written first."""
        mirror = outbox.mirror
        if mirror is None or not mirror.wants_listing:
            return []
        if not outbox.has_custody or mirror.listed is None:
            return self._name(outbox, mirror.backup, now)
        assert mirror.backup is not None
        origin, wish = mirror.feed.origin, Keeping(backup=mirror.backup)
        token = (ROLE, "custody", origin.stream, origin.epoch)
        return self.catalogue.custody.wish(origin.stream, self.peer_id, origin.epoch, wish, lambda *_: True, token, now)

    def _name(self, outbox: Outbox, backup: PeerId | None, now: Millis) -> list[Effect]:
        assert outbox.mirror is not None
        outbox.mirror.listed = backup
        return [Append(outbox.opened()), AfterSync(tuple(self.advertising.advertise(outbox, "news", now)))]

    def listed(self, outbox: Outbox, backup: str, now: Millis) -> list[Effect]:
        """The catalogue now names our backup: from here on its confirmations count."""
        mirror = outbox.mirror
        if mirror is None or mirror.backup is None:
            return []
        is_named = mirror.listed == mirror.backup and mirror.backup.hex() == backup
        if outbox.has_custody and is_named and not mirror.is_listed:
            return self._look(outbox, now)
        mirror.is_listed = is_named
        return []

    def _look(self, outbox: Outbox, now: Millis) -> list[Effect]:
        stream = outbox.definition.name
        return self.catalogue.lookup(stream, (ROLE, "custody", stream), now)

    def found(self, outbox: Outbox, event: StreamFound, now: Millis) -> list[Effect]:
        """What the catalogue says of the second copy, whatever it was asked for."""
        mirror, origin = outbox.mirror, outbox.feed.origin
        if mirror is None or not outbox.has_custody or mirror.is_over:
            return []
        mirror.is_checked = True
        ours = [each for each in event.custodies if (each.publisher, each.epoch) == (self.peer_id, origin.epoch)]
        effects = self._follow(outbox, ours[0], now) if ours else []
        if mirror.is_over or mirror.backup is None:
            return effects
        if (origin.stream, mirror.backup) in self._refused:
            return [*effects, *self.move(outbox, now)]
        if event.token[1] == "check":
            self._forget_refusals(origin.stream)
        named = [each.backup for each in event.publishers if (each.peer, each.epoch) == (self.peer_id, origin.epoch)]
        if event.token[1] == "custody" and mirror.backup == mirror.listed and named == [mirror.backup]:
            mirror.is_listed = True
        return effects

    def decided(self, outbox: Outbox, event: CustodyDecided, now: Millis) -> list[Effect]:
        if event.custody is None or outbox.mirror is None or outbox.mirror.is_over:
            return []
        return self._follow(outbox, event.custody, now)

    def _follow(self, outbox: Outbox, custody: Custody, now: Millis) -> list[Effect]:
        """The last link of the chain: the backup that counts; or that this peer has lost the stream."""
        assert outbox.mirror is not None
        keeping = custody.keeping
        if custody.version <= outbox.mirror.link:
            return []
        outbox.mirror.link = custody.version
        if keeping.is_taken:
            return self._retire(outbox, keeping)
        return self._name(outbox, keeping.backup, now) if keeping.backup != outbox.mirror.listed else []

    def _retire(self, outbox: Outbox, keeping: Keeping) -> list[Effect]:
        """Serve what was published, up to where the other peer went on, and take nothing more."""
        assert outbox.mirror is not None
        outbox.mirror.retire(keeping.upto, outbox.durable)
        return [Tell(StreamTaken(outbox.definition.name, keeping.backup))]

    def move(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """Begin a copy at another peer."""
        assert outbox.mirror is not None
        outbox.mirror.move_to(self.nearest(outbox.definition.name))
        return [*outbox.mirror.feed_on(outbox.durable, now), *self.name_backup(outbox, now)]

    def tend(self, outbox: Outbox, now: Millis) -> list[Effect]:
        """From time to time: find a backup where there is none, and send again what was lost."""
        mirror = outbox.mirror
        if mirror is None or mirror.is_over:
            return []
        effects: list[Effect] = []
        if mirror.backup is None and self.nearest(outbox.definition.name):
            effects += self.move(outbox, now)
        effects += mirror.hurry(outbox.durable, now)
        is_named = mirror.backup is not None and mirror.backup == mirror.listed
        if outbox.has_custody and outbox.is_open and is_named and not mirror.is_listed:
            effects += self._look(outbox, now)  # An answer was lost.
        return effects + (self.name_backup(outbox, now) if outbox.has_custody else [])
