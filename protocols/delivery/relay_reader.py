"""The reader's end of a relay: finds one, moves to it, and goes back to the publisher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from protocols.catalogue.events import StreamFound
from protocols.catalogue.shares import WHOLE
from protocols.delivery.cursor import Cursor
from protocols.delivery.messages import GuestsChanged, Origin, Subscribed, Unsubscribe
from protocols.effects import Effect, Reply, Send
from protocols.ids import Millis, PeerId, SubscriptionId
from protocols.limits import Limits
from protocols.sight import LookAtNetwork, NetworkSeen


@dataclass(slots=True)
class RelayReader:
    """What one peer does about the relays of its readings.

    Invariant: of an origin that a relay serves, the publisher keeps what is not acknowledged, and sends nothing
    """

    peer_id: PeerId
    limits: Limits
    role: str

    def ask_server(self, cursor: Cursor, peer: PeerId, origins: list[Origin], copies: bool) -> Effect:
        """Ask a publisher or a backup. What a relay brings, its publisher is to keep only."""
        relays = cursor.relaying.at if cursor.relaying is not None else {}
        is_kept_only = not copies and max(origins, key=lambda each: each.epoch) in relays
        credit = 0 if is_kept_only else self.limits.credit_bytes
        return Send(peer, cursor.question(peer, origins, copies, credit, is_here=peer == self.peer_id))

    def told(
        self, cursors: Mapping[SubscriptionId, Cursor], event: NetworkSeen | GuestsChanged, now: Millis
    ) -> list[Effect]:
        """How far others are; or how many read from one of ours."""
        name = event.subscription if isinstance(event, GuestsChanged) else event.placement.removeprefix(f"{self.role}/")
        cursor = cursors.get(name)
        if cursor is None:
            return []
        if isinstance(event, NetworkSeen):
            return self.weigh(cursor, event, now)
        cursor.guests = event.readers
        return []

    def look(self, cursor: Cursor, event: StreamFound, now: Millis) -> list[Effect]:
        """The catalogue says who reads a stream: perhaps one of them is a better source."""
        relaying = cursor.relaying
        if relaying is None or cursor.share != WHOLE:
            return []
        relaying.for_all = self.limits.relays_for_all
        effects: list[Effect] = []
        listed = {each.peer for each in event.subscribers}
        for origin in [o for peer in relaying.peers() if peer not in listed for o in relaying.origins_at(peer)]:
            effects += self.back(cursor, origin, now)
        readers = Counter(each.peer for each in event.subscribers)
        cursor.readers_listed = len(readers)
        if relaying.found(event.subscribers, self.peer_id, self.limits.relays_every_ms, now):
            peers = [each.peer for each in relaying.candidates] + [origin.publisher for origin in cursor.publishers]
            effects.append(LookAtNetwork(f"{self.role}/{cursor.subscription}", tuple(dict.fromkeys(peers))))
        return [*effects, *self._told(cursor)]

    def weigh(self, cursor: Cursor, seen: NetworkSeen, now: Millis) -> list[Effect]:
        """Choose whom to read from, now that distances are known."""
        relaying = cursor.relaying
        if relaying is None or cursor.request is None:
            return []
        places = {peer: number for number, peer in enumerate(seen.peers)}
        here = places[self.peer_id]

        def delay_ms(peer: PeerId) -> float | None:
            return seen.rows[places[peer]][here] if peer in places else None

        readers = Counter({origin.publisher: cursor.readers_listed for origin in cursor.publishers})
        effects: list[Effect] = []
        asked: dict[PeerId, None] = {}
        for origin, relay in relaying.choices(self._open_to_choice(cursor), delay_ms, readers).items():
            if relay is None:
                effects += self.back(cursor, origin, now)
            else:
                relaying.ask(origin, relay, now)
                asked[relay] = None
        # It answers for what it was asked, so it is always asked for everything.
        effects += [self._ask(cursor, relay, relaying.origins_at(relay)) for relay in asked]
        return [*effects, *self._told(cursor)]

    def _open_to_choice(self, cursor: Cursor) -> list[Origin]:
        """Origins that their publisher serves, or has served: what is our own, or only a copy, is read as it is."""
        return [
            origin
            for origin in cursor.publishers
            if origin in cursor.taken
            and origin.publisher != self.peer_id
            and origin not in cursor.over
            and origin not in cursor.absent
        ]

    def _ask(self, cursor: Cursor, relay: PeerId, origins: list[Origin]) -> Effect:
        assert cursor.relaying is not None
        credit, depth = self.limits.credit_bytes, cursor.relaying.depth
        return Send(relay, cursor.question(relay, origins, copies=True, credit=credit, is_here=False, depth=depth))

    def ask_again(self, cursor: Cursor) -> list[Effect]:
        """A relay serves only who asks it from time to time."""
        relaying = cursor.relaying
        if relaying is None:
            return []
        return [self._ask(cursor, relay, relaying.origins_at(relay)) for relay in relaying.peers()]

    def _told(self, cursor: Cursor) -> list[Effect]:
        before = cursor.relaying.told if cursor.relaying is not None else None
        said = cursor.relaying.news() if cursor.relaying is not None else None
        if said is not None and before is None:
            cursor.advertised_at = 0  # The next poll lists it with its depth, so that others find it.
        return [Reply(cursor.request, said, last=False)] if said is not None and cursor.request is not None else []

    # What they answer.

    def heard(self, cursor: Cursor, sender: PeerId, message: Subscribed, now: Millis) -> list[Effect]:
        """SUBSCRIBED: of a relay, which says what it serves; or of a publisher, which says up to where it has some."""
        relaying = cursor.relaying
        if relaying is None:
            return []
        effects: list[Effect] = []
        served = [position.origin for position in message.positions]
        if message.depth:
            for origin in relaying.origins_at(sender):
                before = relaying.at.get(origin)
                if origin not in served:
                    effects += self.back(cursor, origin, now) if relaying.is_given_up(origin, sender, now) else []
                elif relaying.serves(origin, sender):
                    effects += self._moved(cursor, origin, before)
            return [*effects, *self._told(cursor)]
        for origin, end in zip(served, message.ends, strict=False):
            taken, seen = cursor.taken.get(origin, 0), cursor.seen.get(origin, 0)
            if origin.publisher == sender and relaying.is_late(origin, end, taken, seen, now):
                effects += self.back(cursor, origin, now)
        return [*effects, *self._told(cursor)]

    def _moved(self, cursor: Cursor, origin: Origin, before: PeerId | None) -> list[Effect]:
        """A relay serves an origin from now on: its publisher is to keep our place, and another relay to forget us."""
        assert cursor.relaying is not None
        effects: list[Effect] = []
        if before is not None and not cursor.relaying.origins_at(before):
            effects.append(self._unsubscribe(cursor, before))
        publisher = origin.publisher
        return [*effects, Send(publisher, cursor.question(publisher, [origin], copies=False, credit=0, is_here=False))]

    def _unsubscribe(self, cursor: Cursor, relay: PeerId) -> Effect:
        cursor.forget_asked(relay)
        return Send(relay, Unsubscribe(subscription=cursor.subscription, stream=cursor.stream))

    def back(self, cursor: Cursor, origin: Origin, now: Millis) -> list[Effect]:
        """Read from the publisher again, from our own place on."""
        assert cursor.relaying is not None
        was_served = origin in cursor.relaying.at
        relay = cursor.relaying.leave(origin, now)
        effects: list[Effect] = [self._unsubscribe(cursor, relay)] if relay is not None else []
        if was_served and origin in cursor.publishers:
            publisher, credit = origin.publisher, self.limits.credit_bytes
            cursor.told.pop((publisher, False), None)  # Asked as if for the first time, it sends again.
            question = cursor.question(publisher, [origin], copies=False, credit=credit, is_here=False)
            effects.append(Send(publisher, question))
        return effects

    def lost(self, cursor: Cursor, peer: PeerId, now: Millis) -> list[Effect]:
        """A peer is gone, be it a relay or a publisher whose tuples one passes on."""
        relaying = cursor.relaying
        if relaying is None:
            return []
        gone = [*relaying.origins_at(peer), *(origin for origin in relaying.at if origin.publisher == peer)]
        effects = [effect for origin in dict.fromkeys(gone) for effect in self.back(cursor, origin, now)]
        return [*effects, *self._told(cursor)]
