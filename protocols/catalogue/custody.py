"""Who keeps the second copy of a query's results, and whether their publisher was taken over.

The copies of one origin form a chain of decisions under the key of its stream: first the backup that the publisher
listed first, then each later backup, and at last perhaps the one that took the stream over. Each link is decided by
all who want one at once (`voting.py`): a publisher that changes its backup, and a backup that takes over. So either the
results that a publisher still tells are at the backup which may take over, or the publisher knows that it is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.catalogue.shards import Read, Step
from protocols.catalogue.streams import stream_key
from protocols.catalogue.voting import Ballot, Vote, Voting
from protocols.clock import HybridClock
from protocols.effects import Effect, Tell
from protocols.events import Event
from protocols.ids import Count, Key, Millis, PeerId, StreamName
from protocols.reading import read
from protocols.store.entries import Entry
from protocols.store.events import StoreFailed, StoreRead, StoreWritten, Token

CUSTODY: Final = "custody/"
READS_MAX: Final = 24  # About six ballots. Then whoever asked tries again.
_ITEM: Final = re.compile(rf"{CUSTODY}([0-9a-f]{{40}})/(\d{{1,16}})/(\d{{1,9}})/([0-9a-f]{{40}})")

Write = Callable[[Key, str, bytes | None, Millis, Step, Millis], list[Effect]]


class Keeping(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One link of the chain: from now on this peer has the second copy; or it has taken the stream over."""

    backup: PeerId
    is_taken: bool = False
    upto: Count = 0  # If taken over: the origin ends here. What its publisher had beyond nobody gets.


class KeepingClaim(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What one peer has said about one link."""

    stream: StreamName
    begun: Ballot
    backed_in: Ballot | None = None
    backs: Keeping | None = None
    is_decided: bool = False


class Custody(msgspec.Struct, frozen=True, array_like=True):
    """The last link that was decided for one origin."""

    publisher: PeerId
    epoch: Millis
    version: int
    keeping: Keeping


class CustodyDecided(Event, frozen=True):
    """The answer to a wish for the next link: what holds now, which may be the wish of somebody else.

    None: whoever wishes to take over is not the backup that the publisher listed first, or the stream is gone.
    """

    token: Token
    custody: Custody | None


class CustodyUndecided(Event, frozen=True):
    """The owners of the stream's key did not answer in time. What was wished may still come to hold: ask again."""

    token: Token
    reason: str


_encode: Final = msgspec.msgpack.Encoder(enc_hook=bytes).encode
_decoder: Final = msgspec.msgpack.Decoder(KeepingClaim, dec_hook=lambda wanted, raw: wanted(raw))
_Claims = dict[PeerId, KeepingClaim]
_Links = dict[int, _Claims]


def claimed_keeping(entry: Entry | None) -> StreamName | None:
    """The stream that an entry claims a link for."""
    claim = read(_decoder, entry.value) if entry is not None else None
    return claim.stream if claim is not None else None


def custodies_in(entries: tuple[Entry, ...], stream: StreamName) -> tuple[Custody, ...]:
    """What was decided last, for each origin of a stream about which anything was."""
    found = []
    for (publisher, epoch), links in sorted(_links_in(entries, stream).items()):
        decided = _decided(publisher, epoch, links)
        found += [decided] if decided is not None else []
    return tuple(found)


def _links_in(entries: tuple[Entry, ...], stream: StreamName) -> dict[tuple[PeerId, Millis], _Links]:
    found: dict[tuple[PeerId, Millis], _Links] = {}
    for entry in sorted(entries, key=lambda each: each.item):
        place = _ITEM.fullmatch(entry.item)
        claim = read(_decoder, entry.value) if place is not None else None
        if place is None or claim is None or claim.stream != stream:
            continue
        origin = PeerId.fromhex(place[1]), int(place[2])
        found.setdefault(origin, {}).setdefault(int(place[3]), {})[PeerId.fromhex(place[4])] = claim
    return found


def _decided(publisher: PeerId, epoch: Millis, links: _Links) -> Custody | None:
    last: Custody | None = None
    version = 1
    while decided := [each.backs for each in links.get(version, {}).values() if each.is_decided and each.backs]:
        last = Custody(publisher, epoch, version, decided[0])
        version += 1
    return last


@dataclass(slots=True)
class _Wish:
    """One wish for the next link of a chain, on its way."""

    stream: StreamName
    publisher: PeerId
    epoch: Millis
    mine: Keeping
    token: Token
    is_listed: Callable[[tuple[Entry, ...], Custody | None], bool]  # Whether it still makes sense.
    voting: Voting[Keeping] | None = None
    version: int = 0
    reads: int = 0


@dataclass(slots=True)
class CustodyBook:
    """The chains of custody, for the other roles of this peer.

    Keeps:     wishes that are not decided yet
    Invariant: a link is decided once, whoever wishes for it
    """

    peer_id: PeerId
    clock: HybridClock
    read: Read
    write: Write
    _wishes: dict[tuple[StreamName, PeerId, Millis], _Wish] = field(default_factory=dict)

    def wish(
        self,
        stream: StreamName,
        publisher: PeerId,
        epoch: Millis,
        mine: Keeping,
        is_listed: Callable[[tuple[Entry, ...], Custody | None], bool],
        token: Token,
        now: Millis,
    ) -> list[Effect]:
        """Wish for the next link; answered with CustodyDecided or CustodyUndecided. One wish for an origin at a time.

        `is_listed` says, by the entries of the stream and by what was decided last, whether the wish still makes sense.
        """
        origin = stream, publisher, epoch
        if origin in self._wishes:  # It would share the block of the other.
            return []
        wish = self._wishes[origin] = _Wish(stream, publisher, epoch, mine, token, is_listed)

        def step(event: Event, now: Millis) -> list[Effect]:
            if isinstance(event, StoreFailed):
                return end(CustodyUndecided(token, event.reason))
            if isinstance(event, StoreWritten):
                return self.read(stream_key(stream), step, now)
            assert isinstance(event, StoreRead)
            match self._next(wish, event.entries, now):
                case KeepingClaim() as claim:
                    item = f"{CUSTODY}{publisher.hex()}/{epoch}/{wish.version}/{self.peer_id.hex()}"
                    return self.write(stream_key(stream), item, _encode(claim), 0, step, now)
                case Custody() | None as custody:
                    return end(CustodyDecided(token, custody))
            return end(CustodyUndecided(token, "Others vote at the same time."))

        def end(event: Event) -> list[Effect]:
            del self._wishes[origin]
            return [Tell(event)]

        return self.read(stream_key(stream), step, now)

    def _next(self, wish: _Wish, entries: tuple[Entry, ...], now: Millis) -> KeepingClaim | Custody | str | None:
        """What to claim next; or what holds; or why that cannot be known now."""
        wish.reads += 1
        links = _links_in(entries, wish.stream).get((wish.publisher, wish.epoch), {})
        last = _decided(wish.publisher, wish.epoch, links)
        if last is not None and (last.keeping.is_taken or last.keeping == wish.mine):
            return last
        if wish.voting is None and not wish.is_listed(entries, last):
            return last
        if wish.reads > READS_MAX:
            return "undecided"
        version = last.version + 1 if last is not None else 1
        if wish.voting is not None and version != wish.version and wish.mine.is_taken:
            return last  # The publisher has another backup now.
        claims = links.get(version, {})
        if wish.voting is None or version != wish.version:
            wish.voting, wish.version = Voting(self.peer_id, self.clock), version
        voting = wish.voting
        if voting.must_begin(claims):
            vote = voting.begin(claims, now)
        elif voting.phase == "backed":
            vote = voting.decide(claims)
        else:
            vote = voting.back(voting.likely(claims) or wish.mine)
        return _claim(wish.stream, vote)


def _claim(stream: StreamName, vote: Vote[Keeping]) -> KeepingClaim:
    return KeepingClaim(stream=stream, **vote._asdict())
