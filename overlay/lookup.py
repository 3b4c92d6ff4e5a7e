"""The iterative lookup: who are the k live peers nearest to a key?

Pure: it says whom to ask and is told the outcome. A few questions run at once and none waits for a round to end; a slow
peer gives up its turn to the next. Its result holds only peers that answered during this lookup.
"""

from __future__ import annotations

import bisect
from enum import Enum
from typing import Final

from overlay.table import Candidate
from protocols.ids import Key, PeerId

PARALLEL: Final = 3


class _State(Enum):
    NEW = 0
    ASKED = 1
    SLOW = 2  # Asked and still awaited, but without a turn.
    ANSWERED = 3
    FAILED = 4


class Lookup:
    """One search, from the contacts nearest in our own table towards the key.

    In:        learn(candidate), answered(peer), slow(peer), failed(peer)
    Out:       ask(): the candidates to ask now; finished, result()
    Invariant: the result holds only peers that answered, and no nearer candidate that has not failed is unasked
    """

    def __init__(self, target: Key, count: int, parallel: int = PARALLEL) -> None:
        self._target = target.number
        self._count = count
        self._parallel = parallel
        self._states: dict[PeerId, _State] = {}
        self._candidates: dict[PeerId, Candidate] = {}
        self._order: list[tuple[int, PeerId]] = []  # Nearest first.
        self._turns_taken = 0

    def learn(self, candidate: Candidate, *, answered: bool = False) -> None:
        """Hear of a peer. We ourselves are learnt as answered."""
        if candidate.peer_id in self._states:
            return
        self._states[candidate.peer_id] = _State.ANSWERED if answered else _State.NEW
        self._candidates[candidate.peer_id] = candidate
        bisect.insort(self._order, (candidate.peer_id.number ^ self._target, candidate.peer_id))

    def ask(self) -> list[Candidate]:
        """Whom to ask now; each peer is named once."""
        chosen = []
        for peer in self._front():
            if self._turns_taken == self._parallel:
                break
            if self._states[peer] is _State.NEW:
                self._states[peer] = _State.ASKED
                self._turns_taken += 1
                chosen.append(self._candidates[peer])
        return chosen

    def answered(self, peer: PeerId) -> None:
        self._settle(peer, _State.ANSWERED)

    def failed(self, peer: PeerId) -> None:
        self._settle(peer, _State.FAILED)

    def slow(self, peer: PeerId) -> None:
        if self._states[peer] is _State.ASKED:
            self._settle(peer, _State.SLOW)

    @property
    def finished(self) -> bool:
        return all(self._states[peer] is _State.ANSWERED for peer in self._front())

    def result(self) -> list[PeerId]:
        answered = (peer for _, peer in self._order if self._states[peer] is _State.ANSWERED)
        return [peer for peer, _ in zip(answered, range(self._count), strict=False)]

    def _front(self) -> list[PeerId]:
        """The nearest candidates that have not failed, as many as are wanted."""
        front = []
        for _, peer in self._order:
            if self._states[peer] is not _State.FAILED:
                front.append(peer)
                if len(front) == self._count:
                    break
        return front

    def _settle(self, peer: PeerId, state: _State) -> None:
        if self._states[peer] is _State.ASKED:
            self._turns_taken -= 1
        self._states[peer] = state
