"""A walk through the whole network: ask each peer whom it knows, until nobody new is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, Protocol

from overlay.datagrams import HINTS_MAX, Found, ListPeers, Message
from overlay.members import Member
from overlay.rpc import Reply
from overlay.table import Candidate, Table
from protocols.ids import PeerId

VISITORS: Final = 16


class _Walker(Protocol):
    """What the walk needs of the DHT."""

    peer_id: PeerId
    table: Table

    def members(self) -> list[Member]: ...
    def ask(self, candidate: Candidate, message: Message) -> Awaitable[Reply | None]: ...


async def crawl(dht: _Walker, peers_max: int) -> list[Member]:
    """Everybody who answered, and those this peer remembers as gone."""
    members = {member.peer_id: member for member in dht.members()}
    heard_of = {contact.peer_id: contact.candidate for contact in dht.table.contacts()}
    waiting = list(heard_of.values())

    def learn(reply: Reply, hints: list[Candidate]) -> None:
        record = reply.record
        known = members.get(record.peer_id)
        if known is None or known.status in ("left", "dead"):
            members[record.peer_id] = Member(record.peer_id, record.address, record.version, "alive", time.time(), None)
        for candidate in hints:
            peer = candidate.peer_id
            if peer not in heard_of and peer != dht.peer_id and len(heard_of) < peers_max:
                heard_of[peer] = candidate
                waiting.append(candidate)

    async def visit() -> None:
        while waiting:
            candidate = waiting.pop()
            after = bytes(20)
            while (reply := await dht.ask(candidate, ListPeers(after))) and isinstance(reply.message, Found):
                hints = reply.message.hints
                learn(reply, [hint.candidate() for hint in hints])
                if len(hints) < HINTS_MAX or hints[-1].peer_id <= after:  # The last page, or one that leads nowhere.
                    break
                after = hints[-1].peer_id

    # A visitor that finds nothing to do ends, while others may still bring names: go on until none is left.
    while waiting:
        await asyncio.gather(*(visit() for _ in range(min(VISITORS, len(waiting)))))
    return list(members.values())
