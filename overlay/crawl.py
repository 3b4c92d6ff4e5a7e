"""A walk through the whole network: ask each peer whom it knows, until no new peer is named."""

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
    """All peers that answered, and those this peer remembers as gone."""
    members = {member.peer_id: member for member in dht.members()}
    heard_of: dict[PeerId, None] = {}
    turns = asyncio.Semaphore(VISITORS)

    def hear_of(candidate: Candidate) -> None:
        peer = candidate.peer_id
        if peer not in heard_of and peer != dht.peer_id and len(heard_of) < peers_max:
            heard_of[peer] = None
            visits.create_task(visit(candidate))

    def learn(reply: Reply, hints: list[Candidate]) -> None:
        record = reply.record
        known = members.get(record.peer_id)
        if known is None or known.status in ("left", "dead"):
            members[record.peer_id] = Member.of(record, "alive", time.time())
        for candidate in hints:
            hear_of(candidate)

    async def visit(candidate: Candidate) -> None:
        after = bytes(20)
        async with turns:
            while (reply := await dht.ask(candidate, ListPeers(after))) and isinstance(reply.message, Found):
                hints = reply.message.hints
                learn(reply, [hint.candidate() for hint in hints])
                if len(hints) < HINTS_MAX or hints[-1].peer_id <= after:  # The last page, or one without progress.
                    break
                if len(heard_of) >= peers_max:  # Otherwise a peer that invents names could go on for ever.
                    break
                after = hints[-1].peer_id

    async with asyncio.TaskGroup() as visits:
        for contact in dht.table.contacts():
            hear_of(contact.candidate)
    for member in dht.members():  # Some may have been refused on the way.
        members.setdefault(member.peer_id, member)
    return list(members.values())
