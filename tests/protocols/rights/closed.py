"""A closed network of whole peers in virtual time, one of them without a door: it lets out whatever it is asked."""

from __future__ import annotations

import hashlib
import random
from typing import Any, TypeVar

from overlay.sim.world import World
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import OpenSubscription, Publish, Rows
from protocols.ids import Millis, PeerId
from protocols.limits import Limits
from protocols.messages import Answer, Command, Done, Message, Refused
from protocols.peer import Peer
from protocols.rights.messages import Authenticate, CreateToken, Grant, SetPolicy, Verb
from protocols.wire import MESSAGES, RECORDS
from queries.schema import Schema

SCHEMA = Schema.parse("n int")
SECRET = "open-sesame"
DIGEST = hashlib.sha256(SECRET.encode()).digest()
GUARDED = Limits(rights_every_ms=5000)
ROGUE = 3  # The index of the peer without a door.

Kind = TypeVar("Kind", bound=Answer)


class Closed:
    """Four peers that know each other; peer 0 is admin."""

    def __init__(self, seed: int = 1, limits: Limits = GUARDED) -> None:
        def make(peer_id: PeerId, rng: random.Random) -> Peer:
            is_rogue = peer_id == PeerId.of("simulated", str(seed), str(ROGUE))
            return Peer(peer_id, rng, Limits() if is_rogue else limits)

        def coded(message: Message) -> Message:
            return MESSAGES.decode(MESSAGES.encode(message))

        self.world = World(seed, make, RECORDS.encode, RECORDS.decode, codec=coded)
        self.peers = self.world.start(4)
        self.world.run_for(3000)
        self.answers: dict[int, list[Answer]] = {}
        self.connections = 0

    # Asking.

    def ask(self, peer: int, command: Command, connection: int = 0) -> int:
        """Ask as the peer's own user, or over the connection of a client."""
        heard: list[Answer] = []

        def on_answer(answer: Answer | None, _last: bool) -> None:
            if answer is not None:
                heard.append(answer)

        request = self.peers[peer].request(command, on_answer, connection)
        self.answers[request] = heard
        return request

    def answer(self, peer: int, command: Command, connection: int = 0, within_ms: Millis = 20_000) -> Answer:
        request = self.ask(peer, command, connection)
        self.until(lambda: bool(self.answers[request]), within_ms)
        return self.answers[request][-1]

    def done(self, peer: int, command: Command, connection: int = 0) -> None:
        answer = self.answer(peer, command, connection)
        assert isinstance(answer, Done), answer

    def refusal(self, peer: int, command: Command, connection: int = 0) -> Refused:
        answer = self.answer(peer, command, connection)
        assert isinstance(answer, Refused), answer
        return answer

    def until(self, condition: Any, within_ms: Millis = 20_000) -> None:
        end = self.world.now + within_ms
        while not condition():
            assert self.world.now < end, "not in time"
            self.world.run_for(20)

    # Who may what.

    def principal(self, peer: int) -> str:
        return f"peer:{self.peers[peer].peer_id.hex()}"

    def machine(self, peer: int) -> Peer:
        machine = self.peers[peer].machine
        assert isinstance(machine, Peer)
        return machine

    def close(self) -> None:
        self.done(0, SetPolicy(policy="closed"))
        self.settle()

    def grant(self, principal: str, verbs: tuple[Verb, ...], pattern: str = "*") -> None:
        self.done(0, Grant(principal=principal, verbs=verbs, pattern=pattern))
        self.settle()

    def grant_quietly(self, principal: str, verbs: tuple[Verb, ...]) -> None:
        """Without waiting until everybody knows."""
        self.done(0, Grant(principal=principal, verbs=verbs))

    def settle(self) -> None:
        """Until all peers with a door know the same rights."""
        doors = [peer for peer in range(4) if peer != ROGUE and self.peers[peer].is_up]
        self.until(lambda: len({self.machine(peer).rights.table.digest for peer in doors}) == 1)

    def token(self, client: str, expires_at: Millis = 0) -> str:
        self.done(0, CreateToken(client=client, digest=DIGEST, expires_at=expires_at))
        self.settle()
        return f"{client}.{SECRET}"

    def connect(self, peer: int, token: str) -> int:
        """A connection that acts for a client."""
        self.connections += 1
        answer = self.answer(peer, Authenticate(token=token), self.connections)
        assert not isinstance(answer, Refused), answer
        return self.connections

    def audited(self, peer: int) -> list[tuple[str, str, str, str]]:
        events = self.machine(peer).door.audit.events
        return [(each.what, each.principal, each.action, each.via) for each in events]

    # Streams.

    def received(self, request: int) -> list[int]:
        return [
            row[0]
            for answer in self.answers[request]
            if isinstance(answer, Rows)
            for batch in answer.batches
            for row in SCHEMA.decode(batch.rows)
        ]


def create(name: str) -> CreateStream:
    return CreateStream(definition=StreamDefinition(name=name, schema=SCHEMA))


def publish(name: str, *numbers: int) -> Publish:
    return Publish(stream=name, rows=SCHEMA.encode([(number,) for number in numbers]), count=len(numbers))


def reading(name: str, subscription: str = "s") -> OpenSubscription:
    return OpenSubscription(stream=name, subscription=subscription, since="start")
