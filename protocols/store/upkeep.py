"""Looking after all keys, one after the other: what has expired is forgotten, what is not ours is handed over.

A pass over a large table takes many events, so that none of them takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocols.effects import Effect
from protocols.ids import Key, Millis, PeerId
from protocols.store.handover import Handovers
from protocols.store.neighbourhood import Neighbourhood
from protocols.store.table import EntryTable

SURPLUS_WORK: Final = 10  # Entries are looked at while the owners of a key that is not ours are found.


@dataclass(slots=True)
class Pass:
    """One look at each key that was there when it began.

    Out:       what handovers offer and drop
    Keeps:     how far it has come, and what it has found out on the way
    Invariant: a key is looked at once
    """

    table: EntryTable
    neighbourhood: Neighbourhood
    handovers: Handovers
    compares: bool = False  # Find those who own some key together with us.
    leaves: bool = False  # We are about to go: count what others lack.
    reviews: bool = True  # Find what is not ours,
    offers: bool = True  # and offer it to those whose it is.
    left: int = 0  # Entries that some new owner lacks.
    _sharing: dict[PeerId, None] = field(default_factory=dict)
    _keys: tuple[Key, ...] = ()
    _place: int = 0

    def __post_init__(self) -> None:
        self._keys = self.table.keys

    @property
    def is_over(self) -> bool:
        return self._place == len(self._keys)

    def go_on(self, now: Millis) -> list[Effect]:
        """Look at as many keys as one event may."""
        keys = self._portion(now)
        if not self.reviews:
            return []
        self.handovers.review(keys, now)
        if self.leaves:
            self.left += self.handovers.entries_left(keys)
        return self.handovers.advance(keys, now) if self.offers else []

    def sharing_with(self, peer_id: PeerId) -> list[PeerId]:
        """Those who own some key together with us."""
        return [peer for peer in self._sharing if peer != peer_id]

    def _portion(self, now: Millis) -> list[Key]:
        """The next keys, without what has expired."""
        found: list[Key] = []
        work = 0
        while work < self.table.limits.entries_per_event and not self.is_over:
            key = self._keys[self._place]
            self._place += 1
            work += 1
            if key not in self.table:
                continue
            if not self.table.expire(key, now):
                self.handovers.forget(key)
                continue
            is_ours = self.neighbourhood.is_owner(key)
            work += self.table.count(key) + (0 if is_ours else SURPLUS_WORK)
            found.append(key)
            # They are our kin: once all of our kin are found, that is all.
            if self.compares and is_ours and len(self._sharing) <= len(self.neighbourhood.near):
                self._sharing |= dict.fromkeys(self.neighbourhood.owners(key))
        return found
