"""What the journal of a proxy has of a query: what its client wants, who its proxies were, and how far it is accepted.

`submitted.py` says when it is written. A restart, or the next proxy, goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocols.catalogue.streams import Durability, StreamDefinition
from protocols.clock import Stamp
from protocols.execution.messages import QueryId, QueryInstalled, ResultsDurability, ResultsNoted, SubmitQuery
from protocols.execution.planning import Planning
from protocols.execution.results import QueryResults
from protocols.ids import Millis, StreamName
from protocols.messages import Record
from queries.query import ParsedQuery
from queries.schema import Schema

Journalled = Literal["nothing", "begun", "acknowledged"]
"""What the journal has of a query: nothing; that its stream may exist (a restart ends it); that it was accepted."""


@dataclass(slots=True)
class Installed:
    """A query as QueryInstalled has it; `planning.py` has its text, and how it is to be placed.

    Keeps:     what the client asked for, and what earlier proxies of the query have published
    """

    stream: StreamName  # Of its results.
    inserted_at: Stamp
    since: Stamp  # It reads what was published from then on.
    owner: str = ""  # Who submitted it; empty for the peer's own user.
    durability: ResultsDurability = "auto"  # Of its results, as the client wants it; auto: as the text says.
    takeover_ms: Millis | None = None  # Its backup takes it over after so long; None: as its text says.
    journalled: Journalled = "nothing"
    term: int = 1  # Which of its proxies this is, counted from the first.
    before: int = 0  # Results that earlier proxies have published.
    base: ResultsNoted | None = None  # What those cover.

    @classmethod
    def of(cls, command: SubmitQuery, owner: str, stream: StreamName, inserted_at: Stamp) -> Installed:
        """A new query, as its client wants it."""
        match command.since:
            case "now":
                since = inserted_at
            case "start":
                since = 0
            case int():
                since = min(command.since, inserted_at)
        return cls(stream, inserted_at, since, owner, command.durability, command.takeover_ms)

    @property
    def is_acknowledged(self) -> bool:
        return self.journalled == "acknowledged"

    @property
    def is_noted(self) -> bool:
        """Whether the journal knows of it."""
        return self.journalled != "nothing"

    def restore(self, record: QueryInstalled, state: Journalled) -> None:
        """Take a record of the journal."""
        self.journalled, self.owner = state, record.owner
        self.takeover_ms, self.term, self.before = record.takeover_ms, record.term, record.before
        self.since = record.inserted_at if record.since is None else record.since

    def definition(self, name: QueryId, parsed: ParsedQuery, schema: Schema) -> StreamDefinition:
        """The stream of its results."""
        wanted = dict(parsed.options).get("durability") if self.durability == "auto" else self.durability
        durability: Durability = "replicated" if wanted == "replicated" else "disk"
        return StreamDefinition(name=self.stream, schema=schema, query=name, durability=durability)

    def record(
        self, state: Literal["begun", "acknowledged", "ended"], planning: Planning, results: QueryResults
    ) -> QueryInstalled:
        placing = planning.placing
        return QueryInstalled(
            query=planning.name,
            text=planning.text,
            engine=planning.engine,
            inserted_at=self.inserted_at,
            stream=self.stream,
            state=state,
            placement=placing.placement,
            within_ms=placing.within_ms,
            statistics=placing.statistics,
            since=self.since,
            owner=self.owner,
            versions=tuple(planning.versions.values()) if planning.versions is not None else None,
            takeover_ms=self.takeover_ms or 0,
            term=self.term,
            before=self.before,
            base=self.base if results.notes[:1] == [self.base] else None,
        )

    def snapshot(self, planning: Planning, results: QueryResults) -> list[Record]:
        """What a snapshot of the journal says of it."""
        if self.journalled == "nothing":  # Nothing was made for it yet.
            return []
        return [self.record(self.journalled, planning, results), *results.notes]
