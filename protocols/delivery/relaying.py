"""From whom one reading of a stream gets each origin, where that is another host and not the publisher.

reader ── SUBSCRIBE with its depth ──▶ relay ── SUBSCRIBED, BATCH, HEARTBEAT ──▶ reader
reader ── SUBSCRIBE without credit ──▶ publisher, which keeps what the reader has not acknowledged

The publisher still has the reader's place, so the reader goes back from there at any time, and nobody else notices. It
does so if the relay is lost, lets go, or is behind what the publisher says there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.events import SubscriberEntry
from protocols.delivery.messages import Depth, Origin
from protocols.delivery.search import DEPTH_MAX, GAIN_MIN, Search, Server, nearest
from protocols.ids import Millis, PeerId

ASKED_MS: Final = 30_000  # So long a relay may take until it serves.
SHUNNED_MS: Final = 10_000  # So long a relay that has failed is not asked again.
LATE_MS: Final = 6000  # So long after the publisher has a tuple, a relay must have brought it.
CANDIDATES_MAX: Final = 16


@dataclass(slots=True)
class Relaying:
    """The relays of one reading.

    Invariant: a relay's depth is below ours, and neither changes while they last; so nobody reads what it passes on
    """

    search: Search = nearest
    for_all: bool = False  # Any relay will do, whether it saves something or not.
    depth: int = 0  # 0: not known yet.
    at: dict[Origin, PeerId] = field(default_factory=dict)  # Who serves,
    asked: dict[Origin, PeerId] = field(default_factory=dict)  # and who was asked, while another still serves.
    candidates: tuple[SubscriberEntry, ...] = ()
    told: Depth | None = None
    _asked_at: dict[Origin, Millis] = field(default_factory=dict)
    _shunned: dict[PeerId, Millis] = field(default_factory=dict)
    _ends: dict[Origin, tuple[int, Millis]] = field(default_factory=dict)
    _looked_at: Millis | None = None

    # Who there is.

    def found(self, entries: Iterable[SubscriberEntry], own: PeerId, every_ms: Millis, now: Millis) -> bool:
        """Note who reads the stream; says whether it is time to choose among them."""
        self._shunned = {peer: until for peer, until in self._shunned.items() if now < until}
        able = [each for each in entries if 0 < each.depth < (self.depth or DEPTH_MAX) and each.peer != own]
        self.candidates = tuple(sorted(able, key=lambda each: (each.depth, each.peer))[:CANDIDATES_MAX])
        if not self.candidates:
            self.depth = self.depth or 1
            return False
        if self._looked_at is not None and now - self._looked_at < every_ms:
            return False
        self._looked_at = now
        return True

    def choices(
        self, origins: Iterable[Origin], delay_ms: Callable[[PeerId], float | None], readers: Counter[PeerId]
    ) -> dict[Origin, PeerId | None]:
        """The relay of each origin, None for its publisher; only where that is another one than now."""
        known = [(each, delay_ms(each.peer)) for each in self.candidates if each.peer not in self._shunned]
        found: dict[Origin, PeerId | None] = {}
        for origin in origins:
            relays = [
                Server(each.peer, delay, each.readers, each.depth)
                for each, delay in known
                if delay is not None and each.peer != origin.publisher and each.depth < (self.depth or DEPTH_MAX)
            ]
            delay = delay_ms(origin.publisher)
            publisher = Server(origin.publisher, 1e6 if delay is None else delay, readers[origin.publisher])
            now_at = self.asked.get(origin) or self.at.get(origin)
            found[origin] = self._choice(publisher, relays, now_at)
        if not self.depth:
            chosen = [each.depth for each in self.candidates if each.peer in found.values()]
            self.depth = 1 + max(chosen, default=0)
        return {o: peer for o, peer in found.items() if peer != (self.asked.get(o) or self.at.get(o))}

    def _choice(self, publisher: Server, relays: Sequence[Server], now_at: PeerId | None) -> PeerId | None:
        if not self.for_all:
            return self.search(publisher, relays, now_at, GAIN_MIN)
        return now_at if any(each.peer == now_at for each in relays) else next((each.peer for each in relays), None)

    # What becomes of them.

    def ask(self, origin: Origin, relay: PeerId, now: Millis) -> None:
        self.asked[origin], self._asked_at[origin] = relay, now

    def origins_at(self, peer: PeerId) -> list[Origin]:
        """What a relay serves, or was asked for."""
        return list(dict.fromkeys([o for each in (self.at, self.asked) for o, relay in each.items() if relay == peer]))

    def peers(self) -> list[PeerId]:
        return list(dict.fromkeys([*self.at.values(), *self.asked.values()]))

    def serves(self, origin: Origin, relay: PeerId) -> bool:
        """A relay says that it serves an origin; whether that is new."""
        if self.asked.get(origin) != relay:
            return False
        del self.asked[origin]
        self._ends.pop(origin, None)
        self.at[origin] = relay
        return True

    def is_given_up(self, origin: Origin, relay: PeerId, now: Millis) -> bool:
        """A relay does not serve an origin: whether it did, or has had the time for it."""
        return self.at.get(origin) == relay or now - self._asked_at.get(origin, now) > ASKED_MS

    def is_late(self, origin: Origin, end: int, taken: int, seen: int, now: Millis) -> bool:
        """The publisher says up to where it has tuples: whether the relay should have brought them by now."""
        if origin not in self.at:
            return False
        before = self._ends.get(origin)
        if before is None or taken >= before[0] or seen < taken:  # Or it is ourselves who are slow.
            self._ends[origin] = end, now
            return False
        return now - before[1] > LATE_MS

    def leave(self, origin: Origin, now: Millis) -> PeerId | None:
        """Back to the publisher; returns the relay if it serves us nothing any more."""
        relays = [each for each in (self.at.pop(origin, None), self.asked.pop(origin, None)) if each is not None]
        self._ends.pop(origin, None)
        for relay in relays:
            self._shunned[relay] = now + SHUNNED_MS
        return next((relay for relay in relays if not self.origins_at(relay)), None)

    def news(self) -> Depth | None:
        """What there is to tell the client, if that is new."""
        said = Depth(depth=self.depth, relays=tuple(self.at.items()))
        if said == self.told or not self.depth:
            return None
        self.told = said
        return said

    def validate(self) -> None:
        known = {each.peer: each.depth for each in self.candidates}
        assert all(known.get(peer, 0) < (self.depth or DEPTH_MAX) for peer in self.at.values())
