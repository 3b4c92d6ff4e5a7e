"""Who is near, who owns which key, and whether this peer may answer for it.

Any two quorums of a key must meet in an owner that knows what the earlier one decided, while peers come and go and no
two peers see that at the same moment. Three rules see to it, as far as failures are noticed one by one:

1. A peer that starts answers for a key once it has caught up with each of the R others nearest to it. By then those
   know that it is back, and count themselves out where it takes their place.
2. A peer that goes away leaves a ghost. Whoever inherits a key from it answers for that key once it has caught up with
   so many of the former owners that one of them must know any acknowledged entry.
3. A ghost fades after a while; until then a part of a torn network that has lost the owners of a key does not mistake
   itself for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from protocols.ids import Key, Millis, PeerId
from protocols.store.limits import StoreLimits

_NEVER: Final[Millis] = 1 << 62


@dataclass(slots=True)
class _Ghost:
    """The place a departed peer still holds."""

    peer: PeerId
    fades_at: Millis
    met: dict[PeerId, None] = field(default_factory=dict)  # With whom we have caught up since it left.


@dataclass(slots=True)
class Neighbourhood:
    """The peers around one peer, as it knows them."""

    peer_id: PeerId
    limits: StoreLimits
    has_company: bool = False  # Whether it is known, perhaps from an earlier life, that there are others.
    _known: dict[PeerId, None] = field(default_factory=dict)
    _near: dict[PeerId, None] = field(default_factory=dict)  # The nearest of the known.
    _heard: dict[PeerId, Millis] = field(default_factory=dict)  # Others that compare their entries with ours; until.
    _others: dict[PeerId, int] = field(default_factory=dict)  # Near or heard, with their numbers.
    _ghosts: list[_Ghost] = field(default_factory=list)  # In the order in which they left.
    _awaited: dict[PeerId, None] = field(default_factory=dict)  # We have not caught up with these since our start.
    _settles_at: Millis | None = None  # Until then, neighbours of before our start are still coming in.
    _fades_at: Millis = _NEVER  # When the first of the heard and the ghosts is to be forgotten.
    _alone_at: Millis | None = None  # When we take ourselves for a network of one, if nobody comes.

    @property
    def others(self) -> tuple[PeerId, ...]:
        return tuple(self._others)

    @property
    def near(self) -> tuple[PeerId, ...]:
        return tuple(self._near)

    # Coming and going.

    def start(self, now: Millis) -> None:
        self._settles_at = now + self.limits.settle_ms
        if not self._others:
            self._alone_at = now + (self.limits.ghost_ms if self.has_company else self.limits.settle_ms)

    def up(self, peer: PeerId, now: Millis) -> None:
        if peer != self.peer_id:
            self._known[peer] = None
            self._refresh(now)

    def down(self, peer: PeerId, now: Millis) -> bool:
        """Tells whether that peer had been among our neighbours."""
        was_here = peer in self._others
        self._known.pop(peer, None)
        self._heard.pop(peer, None)
        self._refresh(now)
        if was_here:
            self._ghosts.append(_Ghost(peer, now + self.limits.ghost_ms))
            self._fades_at = min(self._fades_at, now + self.limits.ghost_ms)
            if not self._others:
                self._alone_at = now + self.limits.ghost_ms
        return was_here

    def hear(self, peer: PeerId, now: Millis) -> bool:
        """A peer counts us among its neighbours, so it is one of ours for a while; tells whether that is new."""
        is_new = peer not in self._others
        self._heard[peer] = now + self.limits.heard_ms
        if is_new:
            self._refresh(now)
        return is_new

    def fade(self, now: Millis) -> bool:
        """Forget who was last heard, or left, long ago; tells whether the neighbours changed."""
        if now < self._fades_at:
            return False
        before = self.others
        self._heard = {peer: until for peer, until in self._heard.items() if until > now}
        self._ghosts = [ghost for ghost in self._ghosts if ghost.fades_at > now]
        self._refresh(now)
        return self.others != before

    def met(self, peer: PeerId) -> None:
        """We have all that peer had for us when we last compared, and it knows that we are here."""
        self._awaited.pop(peer, None)
        for ghost in self._ghosts:
            ghost.met[peer] = None

    def _refresh(self, now: Millis) -> None:
        ours = self.peer_id.number
        nearest = nsmallest(self.limits.neighbours_max, self._known, key=lambda peer: peer.number ^ ours)
        arrived = [peer for peer in nearest if peer not in self._near]
        self._near = dict.fromkeys(nearest)
        self._others = {peer: peer.number for peer in (*self._near, *self._heard)}
        if self._awaited or self._settles_at is None or now < self._settles_at:
            self._awaited |= dict.fromkeys(arrived)
        self._awaited = {peer: None for peer in self._awaited if peer in self._others}
        self._ghosts = [ghost for ghost in self._ghosts if ghost.peer not in self._others]
        if self._others:
            self._alone_at = None
        self._fades_at = min((*self._heard.values(), *(ghost.fades_at for ghost in self._ghosts)), default=_NEVER)

    # Who owns what.

    def owners(self, key: Key, also: Iterable[PeerId] = ()) -> list[PeerId]:
        """The R peers nearest to a key, ourselves perhaps among them, nearest first; `also` by hearsay."""
        point = key.number
        peers = {**self._others, self.peer_id: self.peer_id.number, **{peer: peer.number for peer in also}}
        return nsmallest(self.limits.owners, peers, key=lambda peer: peers[peer] ^ point)

    def is_owner(self, key: Key) -> bool:
        return self._is_owner_beside(key, self._others.values())

    def both_own(self, peer: PeerId, neighbours: tuple[PeerId, ...]) -> Callable[[Key], bool]:
        """Of which keys are that peer and we both owners, among these neighbours?"""
        ours, theirs, most = self.peer_id, peer, self.limits.owners
        numbers: dict[PeerId, int] = {}  # Read at the first question: who holds nothing never asks.

        def is_meant(key: Key) -> bool:
            if not numbers:
                numbers.update((each, each.number) for each in (*neighbours, ours, theirs))
            everyone = numbers.values()
            return _is_among(numbers[ours], key, everyone, most) and _is_among(numbers[theirs], key, everyone, most)

        return is_meant

    def answers_for(self, key: Key, now: Millis) -> bool:
        """Whether our word on a key counts: we own it, and no acknowledged entry of it can have escaped us."""
        if not self._others:
            return self.is_alone(now)
        if self._settles_at is None or now < self._settles_at or not self.is_owner(key):
            return False
        if self._awaited:
            point = key.number
            nearest = nsmallest(self.limits.owners, self._others, key=lambda peer: self._others[peer] ^ point)
            if any(peer in self._awaited for peer in nearest):
                return False
        return not self._ghosts or self._has_inherited(key)

    def is_alone(self, now: Millis) -> bool:
        """Whether this is a network of one, and not one peer cut off from the others."""
        return not self._others and self._alone_at is not None and now >= self._alone_at

    def needed(self, now: Millis) -> int:
        """How many owners must answer."""
        return 1 if self.is_alone(now) else self.limits.quorum

    def _has_inherited(self, key: Key) -> bool:
        """Whether a key was ours before anybody left, or we have caught up with enough of those who owned it then."""
        present = self._others | {ghost.peer: ghost.peer.number for ghost in self._ghosts}
        if self._is_owner_beside(key, present.values()):
            return True
        point = key.number
        former = nsmallest(self.limits.owners, present, key=lambda peer: present[peer] ^ point)
        for ghost in self._ghosts:
            # What we compared since it left took in the keys that were ours without it, and without those before it.
            del present[ghost.peer]
            caught_up = sum(peer in ghost.met for peer in former)
            if caught_up > self.limits.owners - self.limits.quorum and self._is_owner_beside(key, present.values()):
                return True
        return False

    def _is_owner_beside(self, key: Key, numbers: Iterable[int]) -> bool:
        return _is_among(self.peer_id.number, key, numbers, self.limits.owners)

    def validate(self) -> None:
        assert self.peer_id not in self._others
        assert len(self._near) <= self.limits.neighbours_max
        assert all(peer in self._others for peer in self._awaited)
        assert not any(ghost.peer in self._others for ghost in self._ghosts)


def _is_among(number: int, key: Key, numbers: Iterable[int], most: int) -> bool:
    """Whether fewer than `most` of the numbers are nearer to a key than this one."""
    point = key.number
    ours, nearer = number ^ point, 0
    for other in numbers:
        if other ^ point < ours:
            nearer += 1
            if nearer == most:
                return False
    return True
