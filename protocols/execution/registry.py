"""The queries of one peer by their names, also across a restart.

A refused query gives its name away at once, although it ends only when the stream of its results is dropped: whoever
corrects it may submit it under the same name. From then on it is kept under its stream, a name that no query can have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.clock import Stamp
from protocols.execution.decision import Placing
from protocols.execution.messages import QueryId, QueryInstalled, ResultsNoted, SubmitQuery
from protocols.execution.planning import Planning
from protocols.execution.results import QueryResults
from protocols.execution.submitted import Services, SubmittedQuery
from protocols.ids import RequestId, StreamName
from protocols.messages import Record


@dataclass(slots=True)
class Registry:
    """Finds the queries of one proxy.

    Keeps:     the queries that have not ended
    Invariant: a query is found under its name, or under its stream once it was refused
    """

    services: Services
    queries: dict[QueryId, SubmittedQuery] = field(default_factory=dict)

    def add(
        self,
        name: QueryId,
        wish: SubmitQuery | QueryInstalled,
        inserted_at: Stamp,
        stream: StreamName,
        client: RequestId | None = None,
    ) -> SubmittedQuery:
        """A query as its client, or the journal, wants it."""
        placing = Placing(wish.placement, wish.within_ms, wish.statistics)
        planning = Planning(self.services.planner, stream, name, wish.text, wish.engine, placing)
        results = QueryResults(name, stream)
        query = SubmittedQuery(self.services, inserted_at, stream, planning, results, client)
        self.queries[name] = query
        return query

    def of(self, stream: StreamName) -> SubmittedQuery | None:
        """The query whose results make a stream."""
        query = self.queries.get(stream.rpartition(".")[0])
        return query if query is not None and query.stream == stream else self.queries.get(stream)

    def make_way(self, name: QueryId, stream: StreamName = "") -> None:
        """Take the name from a query that was refused, unless it is the one of that stream."""
        known = self.queries.get(name)
        if known is not None and known.is_refused and known.stream != stream:
            self.queries[known.stream] = self.queries.pop(name)

    def forget(self, query: SubmittedQuery) -> None:
        del self.queries[query.stream if query.stream in self.queries else query.name]

    def restore(self, record: Record) -> None:
        """Learn what the journal tells. Of two queries with one name, it tells of the earlier one first."""
        match record:
            case QueryInstalled(state="ended"):
                if (ended := self.of(record.stream)) is not None:
                    self.forget(ended)
            case QueryInstalled(state="begun" | "acknowledged" as state):
                self.make_way(record.query, record.stream)
                query = self.queries.get(record.query) or self.add(
                    record.query, record, record.inserted_at, record.stream
                )
                query.journalled = state
            case ResultsNoted() if record.query in self.queries:
                self.queries[record.query].results.notes.append(record)

    def snapshot(self) -> list[Record]:
        oldest_first = sorted(self.queries.values(), key=lambda each: each.inserted_at)
        return [record for each in oldest_first for record in each.records()]
