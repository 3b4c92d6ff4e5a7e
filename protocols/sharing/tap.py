"""One reader's tap on a stream that comes to its host: its place, and what it reads alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocols.catalogue.streams import Reads
from protocols.clock import Stamp
from protocols.delivery.messages import Batch, Missed, Origin, Position, Publishers, Silence
from protocols.delivery.needs import Needs
from protocols.ids import Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.messages import Refused
from protocols.part import Part
from protocols.sharing.needs import Need
from queries.expressions import Expression
from queries.plan import Source
from queries.schema import Row


class TapOpened(NamedTuple):
    """From now on no tuple is missed."""


class Some(NamedTuple):
    """Those rows of a part that a tap's selection keeps, and the latest time of all that it has passed."""

    part: Part
    rows: Sequence[Row]
    first: int  # Where the tap was before.
    latest_us: int
    unfit: int  # How many rows nobody can read, since then.


class Passed(NamedTuple):
    """One origin has come from here to there without a row for a tap."""

    origin: Origin
    first: int
    next: int
    stamp: Stamp
    latest_us: int
    unfit: int  # How many rows nobody can read, since the tap was last told.


class NoRows(NamedTuple):
    """Origins have come further without a row for a tap."""

    passed: tuple[Passed, ...]


class Broken(NamedTuple):
    """Rows that are not of the schema that the tap's query was planned with."""

    reason: str


What = TapOpened | Part | Some | NoRows | Batch | Missed | Publishers | Silence | Refused | Broken
"""What a tap gives its reader."""


@dataclass(slots=True, eq=False)
class Tap:
    """One input of one subgraph. At each origin it does one of three things.

    It reads alone, from `places` on, by a subscription of its own; or it waits at the shared stream, which is not at
    its place yet (`waits`); or it takes what the shared stream reads (`told`).

    Invariant: its reader gets each tuple of an origin once and in order, from its start on
    """

    name: SubscriptionId
    stream: StreamName
    since: Stamp  # Of its query's insertion: earlier tuples are none of its business.
    source: Source  # Under the alias that it has for everybody, and without a window.
    parts: tuple[Expression, ...] | None  # What it selects; None: it wants to see all rows.
    reads: Reads
    is_timed: bool  # It goes by the time of publishers.
    known: tuple[Origin, ...]
    is_private: bool = False  # It shares with nobody.
    needed: tuple[Expression, ...] = ()  # A tuple that does not meet these is of no use to it, though it may get it.
    columns: tuple[str, ...] | None = None  # It reads no other columns; None: all.
    needs_from: int = 0  # This version of the shared stream's needs, and all later ones, have what it needs.
    places: dict[Origin, int] = field(default_factory=dict)  # Where it begins, or what it has taken while alone.
    acked: dict[Origin, int] = field(default_factory=dict)  # Its reader has processed everything below.
    waits: dict[Origin, int | None] = field(default_factory=dict)  # For a place, or (None) for its query's insertion.
    told: dict[Origin, int] = field(default_factory=dict)  # It has got, or was passed by, everything below.
    heard: dict[Origin, Silence] = field(default_factory=dict)  # The last silences it was told of.
    unfit: dict[Origin, int] = field(default_factory=dict)  # Of all that its view of the stream has counted.
    debts: dict[Origin, int] = field(default_factory=dict)  # What it got alone and has not processed yet ends here.
    request: RequestId | None = None  # Its own subscription, while it has one.
    placed: dict[Origin, None] = field(default_factory=dict)  # The origins that this one is served.
    openings: int = 0  # How often it has opened one.
    is_open: bool = False
    is_over: bool = False
    leaves: int = 0  # How often it was too slow.
    rests_until: Millis = 0  # It stays alone so long.

    @property
    def own_name(self) -> SubscriptionId:
        """Of its own subscription; each has another."""
        return self.name if self.openings <= 1 else f"{self.name}+{self.openings}"

    @property
    def need(self) -> Need:
        return Need(self.source, self.needed, self.columns)

    def can_use(self, batch: Batch) -> bool:
        """Whether nothing that it needs was left out of a batch of the shared stream."""
        return batch.sieved is None or batch.sieved.by >= self.needs_from

    def is_shared(self, origin: Origin) -> bool:
        return origin in self.told or origin in self.waits

    def concerns(self, batch: Batch) -> bool:
        """Whether something of a batch may be news."""
        place = self.told.get(batch.origin, self.waits.get(batch.origin))
        return batch.published_at >= self.since if place is None else batch.next > place

    def positions(self) -> tuple[Position, ...]:
        """Where its own subscription is to begin: before all that its reader has not processed."""
        places = self.places | self.told
        return tuple(Position(origin, min(upto, self.acked.get(origin, upto))) for origin, upto in places.items())

    def validate(self) -> None:
        assert not self.told.keys() & self.waits.keys()
        assert self.request is None or not self.is_over
        for origin, upto in self.acked.items():
            assert upto <= max(self.told.get(origin, 0), self.places.get(origin, 0))


@dataclass(slots=True, eq=False)
class Guest:
    """Another peer that reads a shared stream from here: what its own readers need together."""

    peer: PeerId
    subscription: SubscriptionId
    heard_at: Millis
    stated: list[Needs] = field(default_factory=list)  # What it needs; before that, what is still sent to it.
    needs_from: int = 0  # As of a tap.
    is_timed: bool = False  # It goes by the time of publishers.

    @property
    def needs(self) -> list[Need]:
        return [Need(each.source, parts, each.columns) for each in self.stated for parts in each.conjunctions]


class Due(NamedTuple):
    """What one tap gives its reader next."""

    tap: Tap
    what: What
