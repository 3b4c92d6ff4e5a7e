"""Telling the dead from the slow, and letting everybody know.

A peer that does not answer becomes a suspect, and a suspect is judged: its host refuses connections for a dead process,
accepts them for a paused one, and is silent if it is cut off itself. A death is told to every contact and gossiped on;
whoever knew the dead peer checks for itself before believing it. A leaving peer signs its own farewell, which needs no
check.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from overlay.datagrams import Message, Obituary, Ping
from overlay.identity import Address, IdentityError, PeerRecord
from overlay.knock import Knock, knock
from overlay.members import Gone
from overlay.shaping import Shaper
from overlay.table import Candidate, Contact, Table
from overlay.tasks import Tasks
from protocols.ids import PeerId

REFUSED_MAX_S: Final = 0.1  # A host that refuses connections, and answers no datagram within this, has a dead peer.
SILENT_MAX_S: Final = 1.4  # A host that answers neither datagram nor connection is dead after this.
STALLED_MAX_S: Final = 10.0  # A process whose kernel still accepts connections may be paused this long.
GOSSIP_FANOUT: Final = 6  # If everybody passes a rumour on to six, one peer in 400 misses it.
RUMOURS_MAX: Final = 4096


class _Voice(Protocol):
    """How to reach others; implemented by the DHT."""

    def ask(self, candidate: Candidate, message: Message) -> Awaitable[object | None]: ...
    def tell(self, address: Address, message: Message) -> None: ...


class Liveness:
    """One peer's watch over its contacts."""

    def __init__(
        self,
        table: Table,
        gone: Gone,
        voice: _Voice,
        on_removed: Callable[[Contact, str], None],
        rng: random.Random,
        shaper: Shaper | None,
    ) -> None:
        self._table = table
        self._gone = gone
        self._voice = voice
        self._on_removed = on_removed
        self._rng = rng
        self._shaper = shaper
        self._tasks = Tasks("watch over peers")
        self._judged: dict[PeerId, None] = {}
        self._mourners: dict[PeerId, set[PeerId]] = {}  # Who told us of a death that we are still checking.
        self._rumours: OrderedDict[tuple[bytes, int, bool], None] = OrderedDict()

    def stop(self) -> None:
        self._tasks.cancel()

    def is_judging(self, peer: PeerId) -> bool:
        return peer in self._judged

    def suspect(self, contact: Contact, since: float) -> None:
        """A contact is overdue: stop naming it to others."""
        if contact.silent_since is None:
            contact.silent_since, contact.since_at = since, time.time()

    def judge(self, contact: Contact, since: float) -> None:
        """Find out whether a contact that has been silent since then is dead."""
        self.suspect(contact, since)
        if contact.peer_id not in self._judged:
            self._judged[contact.peer_id] = None
            self._tasks.spawn(self._judge(contact))

    async def _judge(self, contact: Contact) -> None:
        loop = asyncio.get_running_loop()
        try:
            while contact.silent_since is not None and self._table.get(contact.peer_id) is contact:
                answer = asyncio.ensure_future(self._voice.ask(contact.candidate, Ping()))
                verdict = await knock(contact.record.address, contact.rtt_ms, self._shaper)
                # Wait for one round trip: a firewall may refuse what the peer would accept.
                if verdict is Knock.REFUSED:
                    await asyncio.wait([answer], timeout=max(REFUSED_MAX_S, 2 * (contact.rtt_ms or 0) / 1000))
                    has_answered = answer.done() and answer.result() is not None
                    answer.cancel()
                else:
                    has_answered = await answer is not None
                if has_answered or contact.silent_since is None:
                    return
                silent_s = loop.time() - contact.silent_since
                limit_s = {Knock.REFUSED: 0.0, Knock.SILENT: SILENT_MAX_S, Knock.OPEN: STALLED_MAX_S}[verdict]
                if silent_s >= limit_s:
                    self._bury(contact, f"{verdict.value} for {silent_s:.1f} s")
        finally:
            self._judged.pop(contact.peer_id, None)
            self._mourners.pop(contact.peer_id, None)

    def _bury(self, contact: Contact, why: str) -> None:
        self._gone.bury(contact.record, "dead", time.time())
        self._remove(contact, f"dead: {why}")
        self._flood(Obituary(bytes(contact.peer_id), contact.record.incarnation, b"", forced=False))

    def force_leave(self, record: PeerRecord) -> None:
        """An operator declares that a dead peer will not come back."""
        self._gone.bury(record, "left", time.time())
        self._flood(Obituary(bytes(record.peer_id), record.incarnation, b"", forced=True))

    def farewell(self, record: PeerRecord) -> None:
        """A peer's own signed farewell; pass it on once."""
        contact = self._table.get(record.peer_id)
        newest = contact.record if contact else self._gone.record(record.peer_id)
        if newest is None or record.incarnation <= newest.incarnation:
            return
        self._gone.bury(record, "left", time.time())
        if contact:
            self._remove(contact, "left")
        self._flood(Obituary(bytes(record.peer_id), record.incarnation, record.raw, forced=False))

    def read(self, message: Obituary, sender: PeerId) -> None:
        """Somebody tells us that a peer is gone."""
        peer = PeerId(message.peer_id)
        if message.farewell:
            try:
                record = PeerRecord.verify(message.farewell, time.time())
            except IdentityError:
                return
            if record.peer_id == peer and record.left:
                self._gossip(message, sender)
                self.farewell(record)
            return
        self._gossip(message, sender)
        gone = self._gone.record(peer)
        if message.forced and gone is not None and self._gone.status(peer) == "dead":
            self.force_leave(gone)
            return
        contact = self._table.get(peer)
        if contact is not None and contact.record.incarnation <= message.incarnation:
            self._mourners.setdefault(peer, set()).add(sender)
            self.judge(contact, asyncio.get_running_loop().time())

    def _remove(self, contact: Contact, why: str) -> None:
        self._table.remove_contact(contact)
        self._on_removed(contact, why)

    def _gossip(self, message: Obituary, sender: PeerId) -> None:
        """Pass an obituary on once, whether we know that peer or not: those who do may be anywhere."""
        rumour = (message.peer_id, message.incarnation, message.forced)
        if rumour in self._rumours:
            return
        self._rumours[rumour] = None
        if len(self._rumours) > RUMOURS_MAX:
            self._rumours.popitem(last=False)
        contacts = [contact for contact in self._table.contacts() if contact.peer_id != sender]
        for contact in self._rng.sample(contacts, min(GOSSIP_FANOUT, len(contacts))):
            self._voice.tell(contact.record.address, message)

    def _flood(self, message: Obituary) -> None:
        """Tell every contact that has not told us."""
        informed = self._mourners.pop(PeerId(message.peer_id), set())
        for contact in self._table.contacts():
            if contact.peer_id not in informed:
                self._voice.tell(contact.record.address, message)
