"""How peers come to one decision over the store: Disk Paxos, with the store's entries as its blocks.

Each peer has a block of its own, which only it writes. It begins a ballot, reads the blocks of all, backs a value, and
reads again. If nobody has begun a later ballot meanwhile, the value is decided: whoever comes later finds it backed and
backs the same.

Paper: Gafni and Lamport, Disk Paxos, 2003. The store stands for the disks: a write is on W owners, a read asks enough
of them to meet it. A peer's own block is read back from the store, as a restart forgets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from protocols.clock import HybridClock, Stamp
from protocols.ids import Millis, PeerId

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
Ballot = tuple[Stamp, PeerId]


class Block(Protocol[V_co]):
    """What one peer has said about a question."""

    @property
    def begun(self) -> Ballot: ...  # It takes no part in earlier ballots.
    @property
    def backed_in(self) -> Ballot | None: ...  # The ballot in which it backed this value.
    @property
    def backs(self) -> V_co | None: ...


class Vote(NamedTuple, Generic[V]):
    """What a peer says next."""

    begun: Ballot
    backed_in: Ballot | None = None
    backs: V | None = None
    is_decided: bool = False


@dataclass(slots=True)
class Voting(Generic[V]):
    """One peer's part in the decision of one question.

    In:        the blocks of all, after each write of its own
    Out:       what its own block is to say
    Invariant: two peers never decide differently
    """

    peer_id: PeerId
    clock: HybridClock
    ballot: Ballot | None = None
    phase: Literal["begun", "backed"] = "begun"

    def must_begin(self, blocks: Mapping[PeerId, Block[V]]) -> bool:
        """Whether its ballot is none, or lost: somebody has begun a later one, or another life of this peer has.

        A block of its own that says something else than it wrote is of a peer that lies.
        """
        if self.ballot is None or _latest(blocks) > self.ballot:
            return True
        own = blocks.get(self.peer_id)
        is_backed = self.phase == "backed"
        return own is None or own.begun != self.ballot or (is_backed and (own.backs is None or not own.backed_in))

    def begin(self, blocks: Mapping[PeerId, Block[V]], now: Millis) -> Vote[V]:
        self.clock.witness(_latest(blocks)[0])
        self.ballot, self.phase = (self.clock.tick(now), self.peer_id), "begun"
        own = blocks.get(self.peer_id)
        return Vote(self.ballot) if own is None else Vote(self.ballot, own.backed_in, own.backs)

    def likely(self, blocks: Mapping[PeerId, Block[V]]) -> V | None:
        """What it must back: what was backed in the latest ballot; None: it is free to back what it wants."""
        backed = [(each.backed_in, each.backs) for each in blocks.values() if each.backed_in is not None]
        return max(backed, key=lambda each: each[0])[1] if backed else None

    def back(self, value: V) -> Vote[V]:
        assert self.ballot is not None
        self.phase = "backed"
        return Vote(self.ballot, self.ballot, value)

    def decide(self, blocks: Mapping[PeerId, Block[V]]) -> Vote[V]:
        """Nobody has begun a later ballot since it backed a value."""
        own = blocks[self.peer_id]
        assert self.ballot is not None
        assert own.backs is not None
        return Vote(self.ballot, self.ballot, own.backs, is_decided=True)


def _latest(blocks: Mapping[PeerId, Block[V]]) -> Ballot:
    return max((each.begun for each in blocks.values()), default=(0, PeerId(bytes(20))))
