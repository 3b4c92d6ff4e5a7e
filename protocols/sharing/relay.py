"""What a host passes on of a stream that it reads: its guests read from its memory as they would from the publisher.

Serving is what a publisher does (`delivery/feed.py`), out of memory alone. A guest that needs what memory does not
have, or is too slow for it, is let go and reads from the publisher, which has kept its place. Nobody waits for a guest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.delivery.feed import Feed, Served, subscribed
from protocols.delivery.messages import Ack, Batch, GuestsChanged, NeedsChanged, Origin, Silence, Subscribe, Unsubscribe
from protocols.delivery.needs import Needs
from protocols.effects import Effect, Send, Tell
from protocols.ids import Millis, PeerId, SubscriptionId
from protocols.limits import Limits
from protocols.sharing.shared import Reading, SharedStream
from protocols.sharing.tap import Guest

SIFT: Final = "executor/sift/"
GUESTS_MAX: Final = 64  # At one stream.
STATED_MAX: Final = 8  # Needs of a guest that it was not served by yet.
SILENT_MS: Final = 20_000  # A guest that has not asked for so long is gone.


def serves_depth(own: int, reader: int) -> bool:
    """Whether a reader is farther from the publisher, so that nothing is read in a circle."""
    return 0 < own < reader


@dataclass(slots=True)
class Relay:
    """What one shared stream passes on.

    Invariant: a guest is sent everything that it needs from its place on, or is told that it is not served
    """

    stream: SharedStream
    limits: Limits
    feeds: dict[Origin, Feed] = field(default_factory=dict)
    _adopted: dict[tuple[SubscriptionId, Origin], int] = field(default_factory=dict)  # Versions of needs.

    # Guests come and go.

    def welcome(self, sender: PeerId, message: Subscribe, now: Millis) -> list[Effect]:
        """Serve what can be served of what another peer asks for."""
        stream = self.stream
        guest = stream.guests.get(message.subscription)
        is_full = guest is None and len(stream.guests) >= GUESTS_MAX
        if not serves_depth(stream.depth, message.depth) or is_full or not message.any_version:
            return [self._answer(sender, message.subscription, message, [])]
        effects: list[Effect] = []
        if guest is None or guest.peer != sender or message.restart:
            self._forget(message.subscription)
            guest = stream.guests[message.subscription] = Guest(sender, message.subscription, now)
            effects.append(self._counted())
        guest.heard_at, guest.is_timed = now, message.heartbeats
        if message.needs is not None and message.needs not in guest.stated:
            guest.stated.append(message.needs)
        if not guest.stated:  # It needs everything, or has not said yet what.
            guest.stated = [Needs(0, stream.needs.schema, stream.needs.event_time)]
        if stream.need_also(guest, guest.needs):
            effects.append(Tell(NeedsChanged(stream.subscription, stream.needs)))
        served: list[Served] = []
        for origin in message.copies_of:
            more, answer = self._serve(guest, origin, message, now)
            effects += more
            served += answer
        return [self._answer(sender, guest.subscription, message, served), *effects]

    def _serve(
        self, guest: Guest, origin: Origin, message: Subscribe, now: Millis
    ) -> tuple[list[Effect], list[Served]]:
        reading, name = self.stream.origins.get(origin), guest.subscription
        place = next((each.next for each in message.positions if each.origin == origin), None)
        if reading is None or place is None:
            return [], []
        feed, latest = self.feeds.get(origin), guest.stated[-1]
        is_new = feed is None or name not in feed.consumers
        usable, _ = reading.usable(guest)
        can_adopt = usable <= place and self.stream.is_heeded(guest, origin)
        if is_new and not (can_adopt and reading.kept_from <= place and self._is_near(reading, place)):
            return [], []
        if feed is None:
            feed = self.feeds[origin] = self._opened(reading)
        if not is_new and (place < feed.first or len(guest.stated) > STATED_MAX):
            feed.unsubscribe(name, guest.peer)
            return [], []
        needs = latest if can_adopt and latest.version else None
        answer = feed.serve(msgspec.structs.replace(message, needs=needs), guest.peer)
        if needs is not None:
            self._adopted[name, origin] = needs.version
        mine = [self._adopted.get((name, each)) for each in self.feeds if name in self.feeds[each].consumers]
        if can_adopt and all(version == latest.version for version in mine):
            guest.stated = guest.stated[-1:]
        return feed.pump(now), [answer]

    def _is_near(self, reading: Reading, place: int) -> bool:
        return place <= reading.read and reading.behind(place) <= self.limits.shared_lag_bytes // 2

    def _opened(self, reading: Reading) -> Feed:
        origin = reading.origin
        feed = Feed(origin, f"{origin.publisher.hex()}/{origin.epoch}/{origin.stream}", self.limits)
        feed.is_logged, feed.is_altered = False, True
        feed.first = feed.next = feed.committed = feed.settled = feed.counted_from = reading.kept_from
        feed.wake = f"{SIFT}{feed.log}"
        for batch in reading.recent:
            feed.append(batch)
        feed.committed = feed.next
        return feed

    def _answer(self, peer: PeerId, name: SubscriptionId, message: Subscribe | None, served: list[Served]) -> Effect:
        asked = message or Subscribe(
            subscription=name, stream=self.stream.stream, positions=(), since=0, credit=0, depth=1
        )
        return Send(peer, msgspec.structs.replace(subscribed(asked, served), depth=max(1, self.stream.depth)))

    def _counted(self) -> Effect:
        return Tell(GuestsChanged(self.stream.subscription, len(self.stream.guests)))

    def _forget(self, name: SubscriptionId) -> None:
        self.stream.dismiss(name)
        for origin, feed in list(self.feeds.items()):
            self._adopted.pop((name, origin), None)
            if name in feed.consumers:
                feed.unsubscribe(name, feed.consumers[name].peer)
            if not feed.consumers:
                del self.feeds[origin]

    def leave(self, sender: PeerId, message: Unsubscribe) -> list[Effect]:
        guest = self.stream.guests.get(message.subscription)
        if guest is None or guest.peer != sender:
            return []
        self._forget(message.subscription)
        return [self._counted()]

    def lost(self, peer: PeerId) -> list[Effect]:
        """A peer is gone: as a guest; or as a publisher, and then guests had better see for themselves."""
        effects: list[Effect] = []
        for name in [name for name, guest in self.stream.guests.items() if guest.peer == peer]:
            self._forget(name)
            effects.append(self._counted())
        return [*effects, *(each for o in list(self.feeds) if o.publisher == peer for each in self.let_go(o))]

    def let_go(self, origin: Origin) -> list[Effect]:
        """An origin is not passed on any more."""
        feed = self.feeds.pop(origin, None)
        names = list(feed.consumers) if feed is not None else []
        return [self._told(name) for name in names]

    def _told(self, name: SubscriptionId) -> Effect:
        """What a guest is still served."""
        guest = self.stream.guests[name]
        served = [
            feed.served(name, feed.consumers[name].acked) for feed in self.feeds.values() if name in feed.consumers
        ]
        return self._answer(guest.peer, name, None, served)

    def close(self) -> list[Effect]:
        """The stream is read no more."""
        self.feeds.clear()
        return [self._told(name) for name in self.stream.guests]

    # Tuples.

    def took(self, batch: Batch, now: Millis) -> list[Effect]:
        """A batch has been read."""
        feed = self.feeds.get(batch.origin)
        if feed is None:
            return []
        feed.append(batch)
        return [*feed.commit(feed.next, now), *self._forget_old(feed)]

    def _forget_old(self, feed: Feed) -> list[Effect]:
        """Keep no more than the stream does. Who is behind that has to go."""
        kept_from = self.stream.origins[feed.origin].kept_from
        if kept_from <= feed.first:
            return []
        slow = [name for name, each in feed.consumers.items() if each.acked < kept_from]
        for name in slow:
            feed.unsubscribe(name, feed.consumers[name].peer)
        feed.drop(kept_from)
        if not feed.consumers:
            del self.feeds[feed.origin]
        return [self._told(name) for name in slow]

    def hush(self, silence: Silence, now: Millis) -> list[Effect]:
        """A publisher that is read to its end has nothing more for now."""
        feed = self.feeds.get(silence.origin)
        return feed.beat(silence, now) if feed is not None and silence.next == feed.next else []

    def acked(self, sender: PeerId, message: Ack, now: Millis) -> list[Effect]:
        return [
            effect
            for each in message.positions
            if each.origin in self.feeds
            for effect in self.feeds[each.origin].ack(message.subscription, sender, each.next, now)
        ]

    # Time.

    def woken(self, log: str, now: Millis) -> list[Effect]:
        return [each for feed in self.feeds.values() if feed.log == log for each in feed.woken(now)]

    def tick(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        for name in [name for name, each in self.stream.guests.items() if now - each.heard_at > SILENT_MS]:
            self._forget(name)
            effects.append(self._counted())
        for feed in list(self.feeds.values()):
            effects += [*feed.resend(now), *self._forget_old(feed)]
        return effects

    def validate(self) -> None:
        for origin, feed in self.feeds.items():
            feed.validate()
            assert feed.next == self.stream.origins[origin].read
            assert feed.consumers.keys() <= self.stream.guests.keys()
