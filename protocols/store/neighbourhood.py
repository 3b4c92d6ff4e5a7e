"""Who is near, who owns which key, and whether this peer may answer for it.

Any two quorums of a key must meet in an owner that knows what the earlier one decided, while peers come and go and no
two peers see that at the same moment. Three rules see to it, as far as failures are noticed one by one:

1. A peer that starts answers for a key once it has caught up with each of the R others nearest to it. By then those
   know that it is back, and count themselves out where it takes their place. Others that it remembers from an earlier
   life, or is told of, and that are not there, count too: few of them may be missing.
2. A peer that goes away leaves a ghost. Whoever inherits a key from it answers for that key once it has caught up with
   so many of the former owners that one of them must know any acknowledged entry. The word of one that has itself not
   caught up yet does not count.
3. A ghost fades after a while; until then a part of a torn network that has lost the owners of a key does not mistake
   itself for the whole.

Whom it takes to know. Let level i be the peers that share exactly i leading bits with our identifier, and our half the
peers that share more, with ourselves. Of a key that shares i bits with us, all of level i are nearer than we are; in
our half the same peers are nearer to the key as to the key with bit i turned, which shares more bits with us. So, level
by level, R peers of each level, or all where there are fewer, tell us exactly which keys we own: these are our
witnesses. And another peer of level i and we can be among the R + 1 nearest to one key only if level i or our half has
no more than R peers: these are our kin. With them alone we share keys, before or after one peer comes or goes, and so
with them alone we compare. In a network larger than our neighbourhood we own nothing as far away as the farthest that
we know: the chance that a level there has fewer than R peers, and our half so many, is below 2 ** -40.
`tests/protocols/store/test_kin.py` tries all this against all peers of random networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from protocols.ids import ID_BITS, Key, Millis, PeerId
from protocols.store.limits import StoreLimits
from protocols.store.messages import Sighting

_NEVER: Final[Millis] = 1 << 62
_REMEMBERED_MAX: Final = 4_096  # Keys of which we remember the owners.


@dataclass(slots=True)
class _Ghost:
    """The place that a departed peer still holds."""

    peer: PeerId
    fades_at: Millis
    is_missed: bool = False  # It left before we had caught up with it,
    is_from_before: bool = False  # and even before we started.
    met: dict[PeerId, tuple[Sighting, ...]] = field(default_factory=dict)
    """With whom we have caught up since it left, and what those had not got over then."""


@dataclass(slots=True)
class Neighbourhood:
    """The peers around one peer, as that peer knows them."""

    peer_id: PeerId
    limits: StoreLimits
    remembered: tuple[PeerId, ...] | None = None  # Who was around, here or just gone, before this start.
    _known: dict[PeerId, None] = field(default_factory=dict)
    # Peers that compare their entries with ours, and until when that counts.
    _heard: dict[PeerId, Millis] = field(default_factory=dict)
    _others: dict[PeerId, int] = field(default_factory=dict)  # Known or heard, as numbers.
    # The same, by the number of leading bits they share with us.
    _levels: dict[int, dict[PeerId, None]] = field(default_factory=dict)
    _near: dict[PeerId, int] = field(default_factory=dict)  # Our kin.
    _witnesses: dict[PeerId, int] = field(default_factory=dict)  # Our kin, and R of each other level.
    _far: int = -1  # A key that shares only so many bits with us, or fewer, lies beyond what we know.
    _ghosts: list[_Ghost] = field(default_factory=list)  # In the order in which they left.
    _awaited: dict[PeerId, None] = field(default_factory=dict)  # We have not caught up with these since our start.
    _is_intact: bool = False  # Our disk was not lost: we have everything we ever answered for.
    is_leaving: bool = False  # We are about to go: we own nothing any more.
    # Other leaving peers, and until when; their ghosts exist already.
    _leaving: dict[PeerId, Millis] = field(default_factory=dict)
    _settles_at: Millis | None = None  # Until then, neighbours from before our start are still appearing.
    _fades_at: Millis = _NEVER  # When the next heard peer or ghost is to be forgotten.
    _alone_at: Millis | None = None  # From then on we count as a network of one, if nobody comes.
    # What we found out about keys, until the peers around us change: do we own it, and who are its owners?
    _owned: dict[Key, bool] = field(default_factory=dict)
    _owners: dict[Key, list[PeerId]] = field(default_factory=dict)
    # And until a ghost has met somebody or is laid: have we caught up on it?
    _caught_up: dict[Key, bool] = field(default_factory=dict)
    _is_valid: bool = False  # Nothing has changed since validate() last looked.

    @property
    def others(self) -> tuple[PeerId, ...]:
        return tuple(self._others)

    @property
    def compared(self) -> tuple[PeerId, ...]:
        """With whom we catch up: our kin, including leaving ones as long as they are there."""
        return (*self._near, *(peer for peer in self._leaving if self._was_kin(peer)))

    def is_present(self, peer: PeerId) -> bool:
        return peer in self._others or peer in self._leaving

    def is_awaited(self, peer: PeerId) -> bool:
        return peer in self._awaited

    def is_heir(self, peer: PeerId) -> bool:
        """Whether one of the two of us is leaving, and the other inherits."""
        return self.is_leaving or peer in self._leaving

    @property
    def near(self) -> tuple[PeerId, ...]:
        return tuple(self._near)

    @property
    def witnesses(self) -> tuple[PeerId, ...]:
        """The peers by which anybody can tell which keys we own."""
        return tuple(self._witnesses)

    # Coming and going.

    @property
    def around(self) -> tuple[PeerId, ...]:
        """Whom to remember across a crash: all that are here, or were until just now."""
        return tuple(sorted((*self._others, *(ghost.peer for ghost in self._ghosts))))

    def start(self, now: Millis) -> None:
        self._settles_at = now + self.limits.settle_ms
        self._is_intact = self.remembered is not None
        for peer in self.remembered or ():
            self._miss(peer, now + self.limits.ghost_ms)
        self._refresh(now)
        if not self._others:
            self._alone_at = now + (self.limits.ghost_ms if self.remembered else self.limits.settle_ms)

    def up(self, peer: PeerId, now: Millis) -> None:
        if peer != self.peer_id:
            self._leaving.pop(peer, None)
            self._known[peer] = None
            self._add(peer)
            self._refresh(now)

    def down(self, peer: PeerId, now: Millis) -> bool:
        """A peer is gone; tells whether it was among our neighbours."""
        self._leaving.pop(peer, None)
        return self._went(peer, now)

    def leaves(self, peer: PeerId, now: Millis, *, is_done: bool = False) -> bool:
        """A peer is about to go: it owns nothing, but can still be compared with. Tells whether that is new.

        Once it is done, all new owners have what it had, and it leaves no ghost.
        """
        is_new = self._went(peer, now)
        self._caught_up.clear()
        if is_new or peer in self._leaving:
            self._leaving[peer] = now + self.limits.heard_ms
        if is_done:
            self._leaving.pop(peer, None)
            self._ghosts = [ghost for ghost in self._ghosts if ghost.peer != peer]
        return is_new

    def _went(self, peer: PeerId, now: Millis) -> bool:
        was_here = peer in self._others
        self._known.pop(peer, None)
        self._heard.pop(peer, None)
        if was_here:
            self._remove(peer)
            self._ghosts.append(_Ghost(peer, now + self.limits.ghost_ms, is_missed=peer in self._awaited))
        self._refresh(now)
        if was_here and not self._others:
            self._alone_at = now + self.limits.ghost_ms
        return was_here

    def hear(self, peer: PeerId, now: Millis) -> bool:
        """A peer counts us among its neighbours, so it is one of ours for a while. Tells whether that is new."""
        is_new = peer not in self._others
        if self._leaving.pop(peer, None) is not None:
            self._caught_up.clear()
        self._heard[peer] = now + self.limits.heard_ms
        if is_new:
            self._add(peer)
            self._refresh(now)
        return is_new

    def fade(self, now: Millis) -> bool:
        """Forget peers that were last heard, or left, long ago. Tells whether the neighbours changed."""
        if now < self._fades_at:
            return False
        before = len(self._others)
        for peer in [peer for peer, until in self._heard.items() if until <= now]:
            del self._heard[peer]
            if peer not in self._known:
                self._remove(peer)
        self._leaving = {peer: until for peer, until in self._leaving.items() if until > now}
        self._ghosts = [ghost for ghost in self._ghosts if ghost.fades_at > now]
        self._refresh(now)
        return len(self._others) != before

    def met(self, peer: PeerId, doubts: tuple[Sighting, ...] = ()) -> None:
        """A comparison with that peer is over: we have all it had for us, and it knows that we are here.

        `doubts` are those with whom it had not caught up itself, and those from whom it may inherit keys.
        """
        self._awaited.pop(peer, None)
        self._caught_up.clear()
        for ghost in self._ghosts:
            if ghost.peer == peer:
                ghost.is_missed = False
            if len(doubts) <= len(ghost.met.get(peer, doubts)):
                ghost.met[peer] = doubts
        self._lay_ghosts()

    def _lay_ghosts(self) -> None:
        """Forget departed peers once we certainly know everything they did.

        Of the three owners of any key at most one may have gone before we caught up with it. We have caught up with all
        others since the last one left, and they have no ghosts but the same.
        """
        ghosts = [ghost for ghost in self._ghosts if not ghost.is_missed]
        if not ghosts or self._awaited or len(ghosts) < len(self._ghosts):
            return
        peers, met = {ghost.peer for ghost in ghosts}, ghosts[-1].met
        asked = self.compared
        if (
            sum(peer not in met for peer in peers) <= self.limits.owners - self.limits.quorum
            and all(peer in met for peer in asked)
            and all(each.peer in peers or each.peer == self.peer_id for peer in asked for each in met[peer])
        ):
            self._ghosts = [ghost for ghost in ghosts if ghost.peer in self._leaving]

    # What peers tell each other of third ones.

    def wants_sightings(self, now: Millis) -> bool:
        return bool(self._ghosts) or self.is_starting(now)

    def sightings(self, now: Millis) -> tuple[Sighting, ...]:
        here = [Sighting(peer, 0, peer in self._awaited) for peer in self._others]
        gone = [Sighting(ghost.peer, max(1, ghost.fades_at - now), ghost.is_missed) for ghost in self._ghosts]
        return (*here, *gone)

    def told(self, sightings: Iterable[Sighting], now: Millis) -> None:
        """While we start: a peer that others know of and that is not here may know what we should know."""
        if not self.is_starting(now):
            return
        own = self.peer_id.number
        farthest = max((peer.number ^ own for peer in self._known), default=0)
        for sighting in sightings:
            if len(self._known) < self.limits.neighbours_max or sighting.peer.number ^ own < farthest:
                self._miss(sighting.peer, now + (sighting.gone_ms or self.limits.heard_ms))
        self._refresh(now)

    def is_starting(self, now: Millis) -> bool:
        return bool(self._awaited) or self._settles_at is None or now < self._settles_at

    def _miss(self, peer: PeerId, fades_at: Millis) -> None:
        is_known = peer == self.peer_id or peer in self._others or any(ghost.peer == peer for ghost in self._ghosts)
        if not is_known:
            self._ghosts.append(_Ghost(peer, fades_at, is_missed=True, is_from_before=True))

    def _add(self, peer: PeerId) -> None:
        if peer not in self._others:
            self._others[peer] = peer.number
            self._levels.setdefault(self._level_of(peer), {})[peer] = None

    def _remove(self, peer: PeerId) -> None:
        del self._others[peer]
        level = self._level_of(peer)
        del self._levels[level][peer]
        if not self._levels[level]:
            del self._levels[level]

    def _level_of(self, point: Key) -> int:
        """How many leading bits a peer or a key shares with us."""
        return ID_BITS - (point.number ^ self.peer_id.number).bit_length()

    def _was_kin(self, peer: PeerId) -> bool:
        """Whether a departed peer would be kin if it were still here."""
        owners, level = self.limits.owners, self._level_of(peer)
        if len(self._levels.get(level, ())) < owners:
            return True
        return 1 + sum(len(peers) for deeper, peers in self._levels.items() if deeper > level) <= owners

    def _find_kin(self) -> None:
        numbers, owners, half = self._others, self.limits.owners, 1
        self._near, self._witnesses = {}, {}
        for level in sorted(self._levels, reverse=True):
            peers = self._levels[level]
            if len(peers) <= owners or half <= owners:
                self._near.update((peer, numbers[peer]) for peer in peers)
            else:
                self._witnesses.update((peer, numbers[peer]) for peer in islice(peers, owners))
            half += len(peers)
        self._witnesses |= self._near
        # Some neighbours may be about to go, before others have taken their places.
        is_part = 4 * (len(self._known) + len(self._leaving)) >= 3 * self.limits.neighbours_max
        outer = (level for level in sorted(self._levels) if any(peer in self._known for peer in self._levels[level]))
        self._far = next(outer, -1) if is_part else -1

    def _refresh(self, now: Millis) -> None:
        self._is_valid = False
        before, beside = self._near, (self._witnesses, self._far)
        self._find_kin()
        self._owners.clear()
        self._caught_up.clear()
        if (self._witnesses, self._far) != beside:
            self._owned.clear()
        if self.is_starting(now):
            self._awaited |= {peer: None for peer in self._near if peer not in before}
        self._awaited |= {ghost.peer: None for ghost in self._ghosts if ghost.is_missed}
        self._awaited = {peer: None for peer in self._awaited if peer in self._near}
        self._ghosts = [ghost for ghost in self._ghosts if ghost.peer not in self._others]
        if self._others:
            self._alone_at = None
        self._fades_at = min(
            (*self._heard.values(), *self._leaving.values(), *(ghost.fades_at for ghost in self._ghosts)),
            default=_NEVER,
        )

    # Who owns what.

    def owners(self, key: Key, also: Iterable[PeerId] = ()) -> list[PeerId]:
        """The R peers nearest to a key, nearest first, perhaps with ourselves; `also` are peers known by hearsay."""
        if self.is_leaving or any(peer not in self._others for peer in also):
            return self._find_owners(key, also)
        found = self._owners.get(key)
        if found is None:
            _make_room(self._owners, _REMEMBERED_MAX)
            found = self._owners[key] = self._find_owners(key, also)
        return list(found)

    def _find_owners(self, key: Key, also: Iterable[PeerId]) -> list[PeerId]:
        known = self._near if self.is_owner(key) else self._others  # All who share a key with us are kin.
        peers = {**known, self.peer_id: self.peer_id.number, **_numbered(also)}
        if self.is_leaving and len(peers) > 1:
            del peers[self.peer_id]
        return _nearest(key, peers, self.limits.owners)

    def is_owner(self, key: Key) -> bool:
        if self.is_leaving and self._others:
            return False
        found = self._owned.get(key)
        if found is None:
            _make_room(self._owned, self.limits.entries_max)
            found = not self._is_far(key) and self._is_owner_beside(key, self._witnesses.values())
            self._owned[key] = found
        return found

    def both_own(self, peer: PeerId, neighbours: tuple[PeerId, ...]) -> Callable[[Key], bool]:
        """Which keys do that peer and we both own, judged by these witnesses of one of us?

        If one of us is leaving: the keys that the other then owns.
        """
        if self.is_heir(peer):
            heir, leaver = (peer, self.peer_id) if self.is_leaving else (self.peer_id, peer)
            beside = tuple(each.number for each in neighbours if each != leaver)
            return lambda key: _is_among(heir.number, key, beside, self.limits.owners)
        ours, theirs, most = self.peer_id.number, peer.number, self.limits.owners
        numbers: dict[int, None] = {}  # Filled at the first question: a peer that holds nothing never asks.

        def is_meant(key: Key) -> bool:
            if not numbers:
                numbers.update((each.number, None) for each in (*neighbours, self.peer_id, peer))
            point = key.number
            farther = ours if ours ^ point > theirs ^ point else theirs
            return _is_among(farther, key, numbers, most)

        return is_meant

    def answers_for(self, key: Key, now: Millis) -> bool:
        """Whether our answer on a key counts: we own it, and we cannot have missed an acknowledged entry of it."""
        if not self._others:
            return self.is_alone(now)
        if self._settles_at is None or now < self._settles_at or not self.is_owner(key):
            return False
        if not self._awaited and not self._ghosts:
            return True
        found = self._caught_up.get(key)
        if found is None:
            _make_room(self._caught_up, _REMEMBERED_MAX)
            found = self._caught_up[key] = self._has_started(key) and self._has_inherited(key)
        return found

    def is_alone(self, now: Millis) -> bool:
        """Whether this is a network of one, and not one peer cut off from the others."""
        return not self._others and self._alone_at is not None and now >= self._alone_at

    def needed(self, now: Millis) -> int:
        """How many owners must answer."""
        return 1 if self.is_alone(now) else self.limits.quorum

    def _has_started(self, key: Key) -> bool:
        """Whether we know what was acknowledged before we started.

        While we were away, two of the R others nearest to the key acknowledged it. While we were here, perhaps we and
        one of the R - 1 nearest did. Then we have it ourselves, unless our disk was lost.
        """
        missed = [ghost.peer for ghost in self._ghosts if ghost.is_missed]
        if not self._awaited and not missed:
            return True
        nearest = self._nearest(key, self._near | _numbered(missed))
        if any(peer in self._awaited for peer in nearest):
            return False
        is_missing = [peer in missed for peer in nearest]
        return sum(is_missing) <= self.limits.owners - self.limits.quorum and (
            self._is_intact or not any(is_missing[: self.limits.owners - 1])
        )

    def _has_inherited(self, key: Key) -> bool:
        """Whether a key was ours before anybody left, or we have caught up with enough of its former owners."""
        ghosts = [ghost for ghost in self._ghosts if not ghost.is_from_before]
        present = self._near | {ghost.peer: ghost.peer.number for ghost in ghosts}
        if self._is_owner_beside(key, present.values()):
            return True
        former = self._nearest(key, present)
        for ghost in ghosts:
            # Comparisons since it left covered the keys that were ours without it, and without those that left before
            # it.
            del present[ghost.peer]
            if any(peer in self._leaving and peer not in ghost.met for peer in former):
                continue  # It is still there to be asked, and may just have acknowledged something.
            caught_up = sum(peer in ghost.met and self._vouches(peer, ghost, key, former) for peer in former)
            if caught_up > self.limits.owners - self.limits.quorum and self._is_owner_beside(key, present.values()):
                return True
        return False

    def _vouches(self, peer: PeerId, ghost: _Ghost, key: Key, former: list[PeerId]) -> bool:
        """Whether a peer that we have caught up with had itself caught up on a key."""
        told = [each for each in ghost.met[peer] if each.peer != self.peer_id]
        if not told:
            return True
        doubts = [each.peer for each in told if each.is_doubted]
        heirless = [each.peer for each in told if not each.is_doubted]
        # It owned the key beside all those it may still inherit from, and has caught up wherever it had to.
        return peer in self._nearest(key, _numbered((*former, *heirless))) and not any(
            each in doubts for each in self._nearest(key, _numbered((*former, *doubts)))
        )

    def _is_far(self, key: Key) -> bool:
        return self._far >= 0 and self._level_of(key) <= self._far

    def _nearest(self, key: Key, peers: dict[PeerId, int]) -> list[PeerId]:
        return _nearest(key, peers, self.limits.owners)

    def _is_owner_beside(self, key: Key, numbers: Iterable[int]) -> bool:
        return _is_among(self.peer_id.number, key, numbers, self.limits.owners)

    def validate(self) -> None:
        if self._is_valid:
            return
        self._is_valid = True
        assert self.peer_id not in self._others
        assert self._others.keys() == self._known.keys() | self._heard.keys()
        assert len(self._others) == sum(map(len, self._levels.values()))
        assert all(peer in self._others for peer in self._witnesses)
        assert all(peer in self._near for peer in self._awaited)
        assert not any(ghost.peer in self._others for ghost in self._ghosts)
        assert not any(peer in self._others for peer in self._leaving)


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


def _nearest(key: Key, peers: dict[PeerId, int], most: int) -> list[PeerId]:
    """The peers nearest to a key, nearest first."""
    point = key.number
    by_distance = {number ^ point: peer for peer, number in peers.items()}
    return [by_distance[each] for each in sorted(by_distance)[:most]]


def _numbered(peers: Iterable[PeerId]) -> dict[PeerId, int]:
    return {peer: peer.number for peer in peers}


def _make_room(known: dict[Key, Any], most: int) -> None:
    if len(known) >= most:
        known.clear()
