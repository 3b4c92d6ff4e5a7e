"""The entries of a proxy's queries in the directory of the network: written, renewed, and removed when they end.

An entry is written at the first tick after the acknowledgement, half a second later at most. So its writes do not
compete with the first results, and a query that ends sooner costs the directory nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from protocols.catalogue.events import Advertised, AdvertiseFailed, QueryEntry
from protocols.catalogue.queries import LIFE_MS, QueryDirectory
from protocols.effects import Effect
from protocols.ids import Millis, PeerId, StreamName
from queries.plan import sources
from queries.query import likely_streams

if TYPE_CHECKING:
    from protocols.execution.submitted import SubmittedQuery

RENEW_MS: Final = LIFE_MS // 14
RETRY_MS: Final = 5000
AT_ONCE: Final = 16  # Writes under way: after a restart all queries of a peer are written.


@dataclass(slots=True)
class Listings:
    """What a proxy states of its queries, so that every peer finds them.

    Keeps:     soft state only: after a restart the entries are written anew
    Invariant: the entry of a query that has ended is removed, or expires
    """

    peer_id: PeerId
    directory: QueryDirectory
    role: str  # Tokens of what it asks begin with it.
    _due_at: dict[StreamName, Millis] = field(default_factory=dict)  # By query: when its entry is written next.
    _writing: dict[StreamName, None] = field(default_factory=dict)
    _leaving: dict[StreamName, tuple[QueryEntry, Millis]] = field(default_factory=dict)  # Removals, and their next try.

    @property
    def has_work(self) -> bool:
        """Whether something is left to remove."""
        return bool(self._leaving)

    def keep(self, query: SubmittedQuery, now: Millis) -> list[Effect]:
        """Write the entry of an acknowledged query, if it is time to."""
        stream = query.stream
        if now < self._due_at.setdefault(stream, now) or stream in self._writing or len(self._writing) >= AT_ONCE:
            return []
        self._writing[stream] = None
        return self.directory.advertise(self._entry(query), (self.role, "listed", stream), now)

    def note_restored(self, query: SubmittedQuery, now: Millis) -> None:
        """Nobody knows whether its entry is there: write it, or remove it should the query end."""
        self._due_at[query.stream] = now

    def withdraw(self, query: SubmittedQuery, now: Millis) -> list[Effect]:
        """The query is gone: remove its entry, if there may be one."""
        if self._due_at.pop(query.stream, None) is None:
            return []
        self._writing.pop(query.stream, None)
        return self._remove(self._entry(query), now)

    def hand_over(self, query: SubmittedQuery, proxy: PeerId, now: Millis) -> list[Effect]:
        """Another peer is its proxy now: leave an entry that says so, whatever we wrote meanwhile."""
        self._due_at.pop(query.stream, None)
        self._writing.pop(query.stream, None)
        entry = msgspec.structs.replace(self._entry(query), proxy=proxy, term=query.installed.term + 1)
        return self.directory.advertise(entry, (self.role, "handed", query.stream), now)

    def _remove(self, entry: QueryEntry, now: Millis) -> list[Effect]:
        self._leaving[entry.stream] = entry, now + 4 * RETRY_MS  # The store itself tries for 15 s.
        return self.directory.withdraw(entry, (self.role, "withdrawn", entry.stream), now)

    def tick(self, now: Millis) -> list[Effect]:
        """Try removals again that the store has not done."""
        overdue = [entry for entry, at in self._leaving.values() if now >= at]
        return [effect for entry in overdue for effect in self._remove(entry, now)]

    def answered(self, event: Advertised | AdvertiseFailed, now: Millis) -> None:
        """The store has answered; perhaps about something else that the proxy advertises."""
        is_done = isinstance(event, Advertised)
        match event.token:
            case (_, "withdrawn", str(stream)) if is_done:
                self._leaving.pop(stream, None)
            case (_, "listed", str(stream)) if stream in self._writing:
                del self._writing[stream]
                self._due_at[stream] = now + (RENEW_MS if is_done else RETRY_MS)

    def _entry(self, query: SubmittedQuery) -> QueryEntry:
        planning = query.planning
        parsed = planning.parsed
        reads = tuple(each.stream for each in sources(parsed.plan)) if parsed else likely_streams(planning.text)
        return QueryEntry(
            name=query.name,
            stream=query.stream,
            proxy=self.peer_id,
            text=planning.text,
            inserted_at=query.installed.inserted_at,
            reads=tuple(dict.fromkeys(reads)),
            engine=planning.engine,
            placement=planning.placing.placement,
            within_ms=planning.placing.within_ms,
            since=query.installed.since,
            durability=query.durability,
            term=query.installed.term,
        )

    def validate(self) -> None:
        assert len(self._writing) <= AT_ONCE
        assert all(stream in self._due_at for stream in self._writing), "what is written is a query of ours"
