"""Handover: a key that now belongs to other peers is kept until each new owner has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocols.effects import Append, Effect, Send
from protocols.ids import Key, Millis, PeerId
from protocols.store.comparison import parts_of
from protocols.store.entries import OLDEST, Order
from protocols.store.limits import CLOSER_MAX
from protocols.store.messages import KeyDropped, StoreAck, StoreOffer, Version
from protocols.store.neighbourhood import Neighbourhood
from protocols.store.table import EntryTable


@dataclass(slots=True)
class _Handover:
    """One key that is no longer ours."""

    since: Millis
    acked: dict[PeerId, dict[str, Order]] = field(default_factory=dict)
    closer: dict[PeerId, None] = field(default_factory=dict)  # Owners known only by hearsay.


@dataclass(slots=True)
class Handovers:
    """All keys this peer holds and does not own.

    In:        STORE_ACK
    Out:       STORE_OFFER
    Keeps:     who of the owners has what
    Invariant: a key is dropped only when all its R owners answer for every entry we hold of it
    """

    table: EntryTable
    neighbourhood: Neighbourhood
    _open: dict[Key, _Handover] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def review(self, keys: Sequence[Key], now: Millis) -> None:
        """Find those of the keys that are no longer ours. Hearsay about their owners is dropped; whatever is still true
        is heard again.
        """
        for key in keys:
            if self.neighbourhood.is_owner(key):
                self._open.pop(key, None)
            else:
                self._open.setdefault(key, _Handover(now)).closer.clear()

    def advance(self, keys: Sequence[Key], now: Millis) -> list[Effect]:
        """Offer to each owner of these keys what it has not acknowledged; drop what all have."""
        effects: list[Effect] = []
        offers: dict[PeerId, list[Version]] = {}
        for key, handover in self._of(keys):
            missing = self._missing(key, handover)
            for peer, versions in missing.items():
                offers.setdefault(peer, []).extend(versions)
            if not missing and now >= handover.since + self.table.limits.linger_ms:
                del self._open[key]
                self.table.drop(key)
                effects.append(Append(KeyDropped(key=key)))
        for peer, versions in offers.items():
            effects += [Send(peer, StoreOffer(versions=part)) for part in parts_of(versions, self.table.limits)]
        return effects

    def forget(self, key: Key) -> None:
        """What has expired needs no handover."""
        self._open.pop(key, None)

    def acked(self, sender: PeerId, message: StoreAck) -> None:
        for version in message.kept:
            handover = self._open.get(version.key)
            if handover:
                handover.acked.setdefault(sender, {})[version.item] = version.order
        for name in message.not_mine:
            handover = self._open.get(name.key)
            if handover and len(handover.closer) < CLOSER_MAX:
                handover.closer |= dict.fromkeys(message.closer)

    def entries_left(self, keys: Sequence[Key]) -> int:
        """How many entries of these keys some owner still lacks; all of them if there is no other peer."""
        if not self.neighbourhood.others:
            return sum(map(self.table.count, keys))
        left = 0
        for key, handover in self._of(keys):
            left += len({version.item for versions in self._missing(key, handover).values() for version in versions})
        return left

    def lost(self, peer: PeerId) -> None:
        """A peer has gone, and what it acknowledged may be gone with it."""
        for handover in self._open.values():
            handover.acked.pop(peer, None)

    def _of(self, keys: Sequence[Key]) -> list[tuple[Key, _Handover]]:
        return [(key, self._open[key]) for key in keys if key in self._open]

    def _missing(self, key: Key, handover: _Handover) -> dict[PeerId, list[Version]]:
        held = self.table.held(key)
        missing: dict[PeerId, list[Version]] = {}
        for owner in self.neighbourhood.owners(key, handover.closer):
            acked = handover.acked.get(owner, {})
            lacking = [each.version for each in held if acked.get(each.entry.item, OLDEST) < each.entry.order]
            if lacking:
                missing[owner] = lacking
        return missing

    def validate(self) -> None:
        for key in self._open:
            assert key in self.table
