"""Anti-entropy: two peers compare what both should hold, and each pulls what it lacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from protocols.clock import HybridClock
from protocols.effects import Effect, Send
from protocols.errors import expect
from protocols.ids import Key, Millis, PeerId
from protocols.store.entries import OLDEST
from protocols.store.limits import BUCKETS, StoreLimits
from protocols.store.messages import ItemName, Round, Sighting, StoreDigest, StoreOffer, StorePull, Version
from protocols.store.neighbourhood import Neighbourhood
from protocols.store.table import EntryTable, digests_of, version_size, versions_in

Named = TypeVar("Named", Version, ItemName)
AT_ONCE: Final = 2  # Comparisons of a large table that one event begins; the others are begun later.


@dataclass(slots=True)
class _Comparison:
    """One pass over all buckets with one other peer."""

    round: Round
    neighbours: tuple[PeerId, ...]
    is_meant: Callable[[Key], bool]
    next_at: Millis  # When to ask again if no answer comes.
    wait_ms: Millis
    asked: range = range(0)  # The buckets being compared.
    start: int = 0  # The first bucket not yet compared.
    is_compared: bool = False  # The offer came; what we lack of it is being pulled.
    doubts: tuple[Sighting, ...] | None = None  # With whom the other had not caught up when it first answered.
    wanted: deque[Version] = field(default_factory=deque)


@dataclass(slots=True)
class Comparisons:
    """All comparisons that this peer has begun, one with each other peer at most.

    In:        STORE_OFFER, STORE_REPLICATE as answers; STORE_DIGEST of others
    Out:       STORE_DIGEST, STORE_PULL; STORE_OFFER
    Keeps:     how far each comparison has come
    Invariant: when one is over, we hold all the other held for us when we began it, and it knows that we are here
    """

    table: EntryTable
    neighbourhood: Neighbourhood
    clock: HybridClock
    _open: dict[PeerId, _Comparison] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, *peers: PeerId, now: Millis) -> list[Effect]:
        """Compare with these from the first bucket on; a running comparison starts anew. A peer that leaves has nothing
        to catch up.

        Each takes a look at many entries. So of a large table some wait for the next retry().
        """
        if self.neighbourhood.is_leaving:
            return []
        retry_ms = self.table.limits.retry_ms
        neighbours = self.neighbourhood.witnesses
        for place, peer in enumerate(peers):
            self._open[peer] = _Comparison(
                round=self.clock.tick(now),
                neighbours=neighbours,
                is_meant=self.neighbourhood.both_own(peer, neighbours),
                next_at=now + retry_ms if place < self._at_once else now,
                wait_ms=retry_ms,
            )
        return [self._ask(peer, now) for peer in peers[: self._at_once]]

    def begin_missing(self, peers: list[PeerId], now: Millis) -> list[Effect]:
        """Compare with those with whom no comparison runs."""
        return self.begin(*(peer for peer in peers if peer not in self._open), now=now)

    @property
    def _at_once(self) -> int:
        """How many comparisons one event may begin."""
        most = self.table.limits.entries_per_event
        return AT_ONCE * most // max(1, min(len(self.table), most))

    def end(self, peer: PeerId) -> None:
        self._open.pop(peer, None)

    def stop(self) -> None:
        self._open.clear()

    def retry(self, now: Millis) -> list[Effect]:
        effects: list[Effect] = []
        due = self._at_once
        for peer, comparison in list(self._open.items()):
            if not self.neighbourhood.is_present(peer):
                self.end(peer)
            elif comparison.next_at <= now and due:
                due -= 1
                wait_ms = min(2 * comparison.wait_ms, self.table.limits.retry_ms_max)
                effects += self.begin(peer, now=now)
                self._open[peer].wait_ms = wait_ms
                self._open[peer].next_at = now + wait_ms
        return effects

    def compare(self, sender: PeerId, message: StoreDigest, now: Millis) -> list[Effect]:
        """Another peer compares with us: list what we hold in the buckets that differ.

        If we hold much more than it does, we answer for less than it has asked.
        """
        expect(message.start < message.until <= BUCKETS, "a comparison of no bucket")
        limits = self.table.limits
        end = min(message.until, self.table.portion(message.start).stop)
        buckets = range(message.start, end)
        meant = self.table.meant(self.neighbourhood.both_own(sender, message.neighbours), buckets)
        ours, theirs = digests_of(meant), {bucket: each for bucket, each in message.digests if bucket in buckets}
        differing = [bucket for bucket in sorted(ours | theirs) if ours.get(bucket) != theirs.get(bucket)]
        held = versions_in(meant, differing)
        listed, versions, size = list[int](), list[Version](), 0
        for bucket in differing:
            if len(versions) >= limits.versions_max or size >= limits.message_bytes:
                end = bucket
                break
            listed.append(bucket)
            versions += held.get(bucket, ())
            size += sum(version_size(each.item) for each in held.get(bucket, ()))
        sightings = self.neighbourhood.sightings(now) if message.wants_sightings else ()
        offer = StoreOffer(
            round=message.round, versions=tuple(versions), buckets=tuple(listed), end=end, sightings=sightings
        )
        return [Send(sender, offer)]

    def offered(self, sender: PeerId, message: StoreOffer, now: Millis) -> list[Effect]:
        """The answer to our digest: pull what we lack, and offer what the other lacks."""
        comparison = self._open.get(sender)
        if comparison is None or comparison.round != message.round or comparison.is_compared:
            return []
        expect(message.end > comparison.start, "an offer of no bucket")
        self.neighbourhood.told(message.sightings, now)
        if comparison.doubts is None:
            comparison.doubts = tuple(each for each in message.sightings if each.is_doubted or each.gone_ms)
        is_owner = self.neighbourhood.is_owner
        comparison.wanted.extend(each for each in message.versions if self.table.lacks(each) and is_owner(each.key))
        comparison.start, comparison.is_compared = message.end, True
        return [*self._offer_back(sender, comparison, message), *self._advance(sender, comparison, now)]

    def replicated(self, sender: PeerId, round_: Round, now: Millis) -> list[Effect]:
        """What we pulled has arrived, as far as the other still had it: go on."""
        comparison = self._open.get(sender)
        if comparison is None or comparison.round != round_ or not comparison.is_compared:
            return []
        for _ in range(_fitting(comparison.wanted, self.table.limits.message_bytes)):
            comparison.wanted.popleft()
        return self._advance(sender, comparison, now)

    def _advance(self, peer: PeerId, comparison: _Comparison, now: Millis) -> list[Effect]:
        comparison.next_at = now + comparison.wait_ms
        if comparison.wanted:
            count = _fitting(comparison.wanted, self.table.limits.message_bytes)
            names = tuple(ItemName(each.key, each.item) for each in list(comparison.wanted)[:count])
            return [Send(peer, StorePull(names=names, round=comparison.round))]
        if comparison.start < BUCKETS:
            comparison.round, comparison.is_compared = self.clock.tick(now), False
            return [self._ask(peer, now)]
        del self._open[peer]
        self.neighbourhood.met(peer, comparison.doubts or ())
        return []

    def _ask(self, peer: PeerId, now: Millis) -> Effect:
        comparison = self._open[peer]
        comparison.asked = self.table.portion(comparison.start)
        digests = tuple(sorted(digests_of(self.table.meant(comparison.is_meant, comparison.asked)).items()))
        message = StoreDigest(
            round=comparison.round,
            neighbours=comparison.neighbours,
            start=comparison.start,
            digests=digests,
            wants_sightings=self.neighbourhood.wants_sightings(now),
            until=comparison.asked.stop,
        )
        return Send(peer, message)

    def _offer_back(self, peer: PeerId, comparison: _Comparison, message: StoreOffer) -> list[Effect]:
        if not message.buckets or self.neighbourhood.is_heir(peer):  # A leaving peer needs nothing more.
            return []
        theirs = {(version.key, version.item): version.order for version in message.versions}
        buckets = [bucket for bucket in message.buckets if bucket in comparison.asked]
        ours = versions_in(self.table.meant(comparison.is_meant, buckets), buckets)
        lacking = tuple(
            version
            for bucket in buckets
            for version in ours.get(bucket, ())
            if theirs.get((version.key, version.item), OLDEST) < version.order
        )
        return [Send(peer, StoreOffer(versions=part)) for part in parts_of(lacking, self.table.limits)]

    def validate(self) -> None:
        assert self.neighbourhood.peer_id not in self._open


def parts_of(named: Sequence[Named], limits: StoreLimits) -> list[tuple[Named, ...]]:
    """Versions, or names, in portions that fit into a message each."""
    parts: list[list[Named]] = []
    size = 0
    for each in named:
        size += version_size(each.item)
        if not parts or len(parts[-1]) == limits.versions_max or size > limits.message_bytes:
            parts.append([])
            size = version_size(each.item)
        parts[-1].append(each)
    return [tuple(part) for part in parts]


def pulls_of(versions: list[Version], bytes_max: int) -> list[StorePull]:
    """Split the pull so that each answer fits into a message."""
    left, pulls = deque(versions), list[StorePull]()
    while left:
        chosen = [left.popleft() for _ in range(_fitting(left, bytes_max))]
        pulls.append(StorePull(names=tuple(ItemName(each.key, each.item) for each in chosen)))
    return pulls


def _fitting(versions: deque[Version], bytes_max: int) -> int:
    """How many from the front fit into one message, at least one."""
    total = 0
    for count, version in enumerate(versions):
        total += version.size
        if count and total > bytes_max:
            return count
    return len(versions)
