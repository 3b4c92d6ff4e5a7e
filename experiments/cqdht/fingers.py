"""JFRT, the join fingers routing table of section 7: evaluators that a rewriter has met, one hop away."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.effects import Effect, Route, Send
from protocols.ids import Key, PeerId
from protocols.messages import Message


@dataclass(slots=True)
class JoinFingers:
    """Who evaluates which key, as far as we have been told. The one used longest ago makes room for a new one.

    A finger may be wrong: the peer has gone (then it is Unreachable, and the key is routed again).
    """

    fingers_max: int
    _peers: dict[Key, PeerId] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._peers)

    def find(self, key: Key) -> PeerId | None:
        """The evaluator of a key, if it is known; it counts as used."""
        peer = self._peers.pop(key, None)
        if peer is not None:
            self._peers[key] = peer
        return peer

    def towards(self, key: Key, message: Message) -> Effect:
        """One hop where the evaluator is known, else through the DHT."""
        peer = self.find(key)
        return Route(key, message) if peer is None else Send(peer, message)

    def learn(self, key: Key, peer: PeerId) -> None:
        self._peers.pop(key, None)
        self._peers[key] = peer
        if len(self._peers) > self.fingers_max:
            del self._peers[next(iter(self._peers))]

    def forget(self, peer: PeerId) -> None:
        """A peer does not answer."""
        self._peers = {key: each for key, each in self._peers.items() if each != peer}

    def validate(self) -> None:
        assert len(self._peers) <= self.fingers_max
