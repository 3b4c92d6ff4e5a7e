"""The queries of one peer by their names, also across a restart.

A refused query gives its name away at once, although it ends only when the stream of its results is dropped: whoever
corrects it may submit it under the same name. From then on it is kept under its stream, a name that no query can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.streams import stream_key
from protocols.clock import Stamp
from protocols.execution.decision import Placing
from protocols.execution.installed import Installed
from protocols.execution.messages import (
    QueriesListed,
    QueryId,
    QueryInstalled,
    ResultsNoted,
    SubmitQuery,
)
from protocols.execution.planning import Planning
from protocols.execution.results import QueryResults
from protocols.execution.shown import listed
from protocols.execution.submitted import Services, SubmittedQuery
from protocols.ids import Key, PeerId, RequestId, StreamName
from protocols.messages import Record

NAMES_TRIED: Final = 64  # In a small network this peer then owns the key of one of them; trying takes milliseconds.


@dataclass(slots=True)
class Registry:
    """Finds the queries of one proxy.

    Keeps:     the queries that have not ended
    Invariant: a query is found under its name, or under its stream once it was refused
    """

    services: Services
    queries: dict[QueryId, SubmittedQuery] = field(default_factory=dict)
    reserved: dict[QueryId, None] = field(default_factory=dict)  # For queries that this peer is taking over.

    def add(
        self,
        name: QueryId,
        wish: SubmitQuery | QueryInstalled,
        installed: Installed,
        client: RequestId | None = None,
    ) -> SubmittedQuery:
        """A query as its client, or the journal, wants it."""
        placing = Placing(wish.placement, wish.within_ms, wish.statistics)
        planning = Planning(self.services.planner, installed.stream, name, wish.text, wish.engine, placing)
        results = QueryResults(name, installed.stream)
        query = SubmittedQuery(self.services, installed, planning, results, client)
        self.queries[name] = query
        return query

    def of(self, stream: StreamName) -> SubmittedQuery | None:
        """The query whose results make a stream."""
        query = self.queries.get(stream.rpartition(".")[0])
        return query if query is not None and query.stream == stream else self.queries.get(stream)

    def named(self, name: QueryId) -> SubmittedQuery | None:
        """The query that a client means: by its name, perhaps with an @ and the beginning of this peer's id."""
        name, _, peer = name.partition("@")
        return self.queries.get(name) if self.services.peer_id.hex().startswith(peer) else None

    def make_way(self, name: QueryId, stream: StreamName = "") -> None:
        """File a refused query under its stream, so that another may have its name; not if it has the given stream."""
        known = self.queries.get(name)
        if known is not None and known.is_refused and known.stream != stream:
            self.queries[known.stream] = self.queries.pop(name)

    def forget(self, query: SubmittedQuery) -> None:
        del self.queries[query.stream if query.stream in self.queries else query.name]

    def restore(self, record: Record) -> None:
        """Take a record of the journal. Of two queries with one name, the earlier one comes first."""
        match record:
            case QueryInstalled(state="ended"):
                if (ended := self.of(record.stream)) is not None:
                    self.forget(ended)
            case QueryInstalled(state="begun" | "acknowledged" as state):
                self.make_way(record.query, record.stream)
                known = self.queries.get(record.query)
                inserted_at = record.inserted_at
                query = known or self.add(record.query, record, Installed(record.stream, inserted_at, inserted_at))
                if known is None and record.base is not None:
                    query.installed.base = record.base
                    query.results.notes.append(record.base)
                query.installed.restore(record, state)
                query.planning.versions = {each.stream: each for each in record.versions or ()}
            case ResultsNoted() if record.query in self.queries:
                self.queries[record.query].results.notes.append(record)

    def snapshot(self) -> list[Record]:
        oldest_first = sorted(self.queries.values(), key=lambda each: each.installed.inserted_at)
        return [record for each in oldest_first for record in each.installed.snapshot(each.planning, each.results)]

    def listed(self) -> QueriesListed:
        return QueriesListed(queries=tuple(listed(each) for each in self.queries.values()))


def results_stream(query: QueryId, inserted_at: Stamp, proxy: PeerId, is_nearest: Callable[[Key], bool]) -> StreamName:
    """A name that no other query has, earlier or of another peer; if possible one whose key this peer owns.

    Then what is written about the stream begins at an owner of its key, and has to reach only the others.
    """
    names = [f"{query}.{inserted_at:x}-{proxy.short}-{turn:x}" for turn in range(NAMES_TRIED)]
    return next((name for name in names if is_nearest(stream_key(name))), names[0])
