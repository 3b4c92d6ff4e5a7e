"""Who belongs to the network, for one running peer: performs what the roll-over machine (rollover.py) asks for.

The links and the DHT ask here whether a peer that has proved its id is a member, and under which keys to speak. News
about keys travels in RING frames over links and nowhere else; no key is ever logged.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from overlay.identity import TAG_BYTES, Identity, Network, PeerRecord
from overlay.keyring import OVERLAP_MS, REMEMBERED_MS, Keyring, KeyringError, Outcast, Statement, anybody_may
from overlay.rollover import (
    STATE_AGAIN_MS,
    Adopt,
    Begin,
    BlamePeer,
    CastOut,
    Dial,
    Down,
    Heard,
    Linked,
    Met,
    Refused,
    RingEvent,
    RollOvers,
    Save,
    Saved,
    Shut,
    Stated,
    TellPeer,
    Tick,
    Unlinked,
    WantKey,
    decode,
    encode,
)
from overlay.tasks import Tasks
from protocols.ids import Millis, PeerId

TICK_S: Final = 1.0
SAVE_RETRY_S: Final = 1.0
_KNOWN_MAX: Final = 8192

log = structlog.get_logger("overlay.membership")

NewKey = Callable[[], bytes]


class Membership:
    """One peer's keys, and the roster and the expulsions that it goes by."""

    def __init__(
        self,
        identity: Identity,
        ring: Keyring,
        *,
        new_key: NewKey,
        rng: random.Random,
        save: Callable[[Keyring], None] | None = None,
        overlap_ms: Millis = OVERLAP_MS,
    ) -> None:
        self.peer_id = identity.peer_id
        self.machine = RollOvers(identity, ring, rng)
        self.counters: Counter[str] = Counter()
        self.trouble = ""  # Why members refuse this peer; empty while they do not.
        self.on_adopt: list[Callable[[Mapping[PeerId, Statement]], None]] = []
        self.on_keys: list[Callable[[], None]] = []  # The keys that datagrams are sealed with have changed.
        self.on_cast_out: list[Callable[[Statement], None]] = []
        # Set by whoever has the links.
        self.tell: Callable[[PeerId, bytes], None] = lambda _peer, _body: None
        self.dial: Callable[[PeerId], None] = lambda _peer: None
        self.shut: Callable[[PeerId, bytes], None] = lambda _peer, _body: None
        self._new_key = new_key
        self._save = save
        self._overlap_ms = overlap_ms
        self._spoken: list[bytes] = []
        self._known: dict[PeerId, tuple[bytes, Millis]] = {}  # What records said last, and when we passed it on.
        self._events: deque[RingEvent] = deque()
        self._is_busy = False
        self._is_failing = False
        self._tasks = Tasks("membership")

    @property
    def ring(self) -> Keyring:
        """What this peer goes by: it is on the disk."""
        return self.machine.ring

    @property
    def network(self) -> Network:
        return self.ring.current

    @property
    def cast_out(self) -> Statement | None:
        """The statement that expels this peer itself."""
        return self.machine.cast_out

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        await self._tasks.finish()

    # What the DHT and the links ask.

    def spoken(self) -> list[Network]:
        """The network with each key that datagrams may be sealed with now, the present key first."""
        return self.ring.networks(self._overlap_ms, _now())

    def trusted(self) -> list[Network]:
        """The network with each key that a certificate may be made with, the present key first."""
        return self.ring.networks(REMEMBERED_MS, _now())

    def refusal(self, peer: PeerId, tag: bytes) -> str:
        """Why a peer that has proved its id, under the key of this tag, is no member; empty if it is one."""
        return "" if peer == self.peer_id else self.ring.refusal(peer, tag)

    def refusal_for(self, peer: PeerId, tag: bytes) -> bytes:
        """The same as a message for that peer."""
        return encode(self.machine.refusal_of(peer, tag))

    def is_expelled(self, peer: PeerId) -> bool:
        return peer in self.ring.expelled

    def tag_for(self, peer: PeerId) -> bytes:
        """The tag of the key that a peer has said it has; empty if it has said nothing."""
        return (self.machine.ring_of(peer) or self._known.get(peer, (b"", 0))[0])[:TAG_BYTES]

    def behind(self) -> list[PeerId]:
        """The live members that do not have this ring."""
        return self.machine.behind()

    # What they tell.

    def heard_record(self, record: PeerRecord) -> None:
        """A member has sent a datagram, with its record."""
        known, now = self._known.get(record.peer_id), _now()
        if known is None or known[0] != record.ring or now - known[1] > STATE_AGAIN_MS:
            self._known.pop(record.peer_id, None)
            self._known[record.peer_id] = record.ring, now
            if len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._handle(Stated(record.peer_id, record.ring))

    def met(self, peer: PeerId, tag: bytes) -> None:
        """A peer has proved to be a member."""
        if peer not in self.ring.roster:
            self._handle(Met(peer, tag))

    def went_down(self, peer: PeerId) -> None:
        self._known.pop(peer, None)
        self._handle(Down(peer))

    def linked(self, peer: PeerId, tag: bytes, stated: bytes) -> None:
        self.trouble = ""
        self.met(peer, tag)
        self._handle(Linked(peer, tag, stated))

    def not_known_at(self, places: Sequence[str]) -> None:
        """Peers at our old addresses do not take our certificates."""
        trouble = f"the network key of this peer is not known at {', '.join(places)}"
        if trouble != self.trouble:
            log.warning("not a member any more", reason=trouble, hint='"peer join" with a new token keeps all data')
        self.trouble = trouble

    def unlinked(self, peer: PeerId) -> None:
        self._handle(Unlinked(peer))

    def read(self, peer: PeerId, body: bytes) -> None:
        """A RING frame came over the link to a peer."""
        try:
            message = decode(body)
        except (msgspec.DecodeError, RecursionError):
            self._blame(peer, "it cannot be decoded")
            return
        self._handle(Heard(peer, message))

    # Expelling.

    def expel(self, outcasts: Sequence[Outcast], members: Sequence[PeerId], live: Sequence[PeerId]) -> None:
        """Go on with a new key and without these peers; ValueError says why not."""
        if not anybody_may(self.peer_id):
            raise ValueError("this peer may not expel others")
        if self.cast_out is not None:
            raise ValueError("this peer was expelled itself")
        if any(outcast.peer == self.peer_id for outcast in outcasts):
            raise ValueError("a peer cannot expel itself")
        try:
            self._handle(Begin(self._new_key(), tuple(outcasts), tuple(members), tuple(live)))
        except KeyringError as error:
            raise ValueError(f"the present ring does not allow it: {error}") from error

    def progress(self) -> tuple[list[PeerId], list[PeerId]]:
        """Of those who were live when this peer last replaced the key: who has this ring, and who has not."""
        has = [peer for peer in self.machine.awaited if self.machine.has_ours(peer)]
        return has, [peer for peer in self.machine.awaited if peer not in has and peer not in self.ring.expelled]

    # Inside.

    async def _run(self) -> None:
        while True:
            self._handle(Tick())
            tags = [network.tag for network in self.spoken()]
            if tags != self._spoken:
                if self._spoken:
                    self._say_keys()
                self._spoken = tags
            await asyncio.sleep(TICK_S)

    def _say_keys(self) -> None:
        for callback in self.on_keys:
            callback()

    def _handle(self, event: RingEvent) -> None:
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                for effect in self.machine.handle(self._events.popleft(), _now()):
                    self._perform(effect)
        finally:
            self._events.clear()
            self._is_busy = False

    def _perform(self, effect: object) -> None:
        match effect:
            case Save(ring):
                if self._save is None:
                    self._events.append(Saved())
                else:
                    self._tasks.spawn(self._put_on_disk(self._save, ring))
            case Adopt(ring, expelled):
                self._adopt(ring, expelled)
            case TellPeer(peer, message):
                self.tell(peer, encode(message))
            case Dial(peer):
                self.dial(peer)
            case Shut(peer, refusal):
                self.shut(peer, encode(refusal))
            case CastOut(statement):
                self._say_cast_out(statement)
            case Refused(peer, reason):
                if reason != self.trouble:
                    log.warning("a member refuses this peer", member=peer.short, reason=reason)
                self.trouble = reason
            case WantKey():
                self._events.append(Begin(self._new_key(), ()))
            case BlamePeer(peer, reason):
                self._blame(peer, reason)
            case _:
                raise AssertionError(f"nobody performs {effect}")

    async def _put_on_disk(self, save: Callable[[Keyring], None], ring: Keyring) -> None:
        while True:
            try:
                await asyncio.to_thread(save, ring)
            except OSError as error:
                if not self._is_failing:
                    log.warning("cannot write the keyring, so a new network key waits", reason=str(error))
                self._is_failing = True
                await asyncio.sleep(SAVE_RETRY_S)
            else:
                self._is_failing = False
                self._handle(Saved())
                return

    def _adopt(self, ring: Keyring, expelled: Mapping[PeerId, Statement]) -> None:
        for peer, statement in expelled.items():
            log.warning("peer expelled", peer=peer.short, by=statement.maker.short, at=when(statement))
        log.info("network key in use", generation=ring.current.generation, expelled=len(ring.expelled))
        self._spoken = [network.tag for network in self.spoken()]
        self._say_keys()
        for callback in self.on_adopt:
            callback(expelled)

    def _say_cast_out(self, statement: Statement) -> None:
        log.error(
            "this peer was expelled from the network and stops taking part",
            by=statement.maker.hex(),
            at=when(statement),
            generation=statement.body.generation,
        )
        for callback in self.on_cast_out:
            callback(statement)

    def _blame(self, peer: PeerId, reason: str) -> None:
        self.counters["ring_messages_senseless_total"] += 1
        if self.counters["ring_messages_senseless_total"] <= 20:
            log.warning("a roll-over message was dropped", sender=peer.short, reason=reason)


def when(statement: Statement) -> str:
    """The time of a statement, for people."""
    return f"{datetime.fromtimestamp(statement.body.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _now() -> Millis:
    return time.time_ns() // 1_000_000
