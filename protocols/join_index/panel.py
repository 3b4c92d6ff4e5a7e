"""The evaluators that a rewriter names, the same to all who ask: so queries of different proxies share its reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from protocols.ids import Millis, PeerId
from protocols.join_index.expiry import Recently

EVALUATORS_MAX: Final = 64
SHUN_MS: Final = 30_000  # An evaluator that was lost is not named again for this time.


@dataclass(slots=True)
class Panel:
    """One peer and its neighbours, as evaluators of what meets at its attributes.

    Invariant: it stays the same while queries use it, unless one of its peers was lost or twice as many are there now
    """

    peer_id: PeerId
    neighbours: Callable[[], tuple[PeerId, ...]]
    _peers: tuple[PeerId, ...] = ()
    _shunned: Recently[PeerId] = field(default_factory=Recently)

    def shun(self, lost: Iterable[PeerId], now: Millis) -> None:
        """Name none of these for a while. Others than might be named are not remembered."""
        mine = {*self._peers, *self._here()}
        for peer in lost:
            if peer in mine:
                self._shunned.add(peer, now + SHUN_MS)

    def peers(self, now: Millis, is_used: Callable[[tuple[PeerId, ...]], bool]) -> tuple[PeerId, ...]:
        self._shunned.sweep(now)
        there = [peer for peer in self._here() if peer not in self._shunned][:EVALUATORS_MAX]
        is_whole = not any(peer in self._shunned for peer in self._peers)
        if not is_whole or len(there) >= 2 * len(self._peers) or not is_used(self._peers):
            self._peers = tuple(sorted(there or [self.peer_id]))
        return self._peers

    def _here(self) -> tuple[PeerId, ...]:
        return (self.peer_id, *(peer for peer in self.neighbours() if peer != self.peer_id))
