"""Who is let in at a host: the demand of a subgraph against what the host has left."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protocols.demand import Lack
from protocols.events import Event
from protocols.execution.cut import is_stateful
from protocols.execution.hosted import Hosted
from protocols.ids import Millis, PeerId, StreamName
from protocols.sharing.capacity import Capacity, Use, Work
from protocols.subgraphs import Deploy, Inline, Spark, StreamInput, Subgraph

NO_ROOM: Final = "this peer has no room for it"  # What a proxy tells that does not read the lack.


class UseMeasured(Event, frozen=True):
    """What this peer has used in the last second, and how many events its machines have taken."""

    use: Use
    events: float


@dataclass(slots=True)
class Admission:
    """What the subgraphs at one host take of its capacity.

    Keeps:     a reservation for each subgraph, until a measurement shows what it uses
    Invariant: a query that was accepted is let in, and what runs is never ended for want of room
    """

    peer_id: PeerId
    capacity: Capacity = field(default_factory=Capacity)
    publishes: Callable[[StreamName], bool] = lambda _stream: False
    _rows: dict[Hashable, tuple[int, int]] = field(default_factory=dict)  # In and out, at the last measurement.

    def refuses(self, key: Hashable, deploy: Deploy, proxy: PeerId, heard: Container[StreamName]) -> Lack | None:
        """What this peer lacks for a subgraph; None: it is let in. `heard` are the streams that come here anyway."""
        if lack := self.closed_to(proxy, deploy.subgraph):
            return lack
        if deploy.demand is None:
            return None
        inputs = deploy.subgraph.inputs
        is_heard = {
            place: isinstance(each, StreamInput) and each.sharing == "auto" and each.stream in heard
            for place, each in enumerate(inputs)
        }
        load = self.capacity.load(deploy.demand, work_of(deploy.subgraph), is_heard)
        if not deploy.is_accepted:
            return self.capacity.admit(key, load)
        self.capacity.reserve(key, load)
        return None

    def closed_to(self, proxy: PeerId, subgraph: Subgraph | None = None) -> Lack | None:
        """Whether this peer hosts nothing for others.

        It still narrows what it publishes itself: otherwise it would send the whole of it.
        """
        is_own = proxy == self.peer_id or (subgraph is not None and self._narrows_own(subgraph))
        return self.capacity.closed_to(is_own=is_own)

    def _narrows_own(self, subgraph: Subgraph) -> bool:
        is_selection = isinstance(subgraph.engine, Inline) and not is_stateful(subgraph.plan)
        is_here = all(isinstance(each, StreamInput) and self.publishes(each.stream) for each in subgraph.inputs)
        return is_selection and is_here and subgraph.consumer is not None

    def begin(self, key: Hashable, now: Millis) -> None:
        """It runs: a measurement will show what it uses."""
        self.capacity.begin(key, now)

    def end(self, key: Hashable) -> None:
        self._rows.pop(key, None)
        self.capacity.release(key)

    def measured(self, event: UseMeasured, hosted: Mapping[tuple[StreamName, int], Hosted], now: Millis) -> None:
        """Learn from what was used, and what was done meanwhile, what a row costs."""
        inline: dict[Work, float] = {"event": event.events, "select": 0.0, "window": 0.0, "result": 0.0}
        spark: dict[Work, float] = {"spark": 0.0}
        for key, each in hosted.items():
            rows_in, rows_out = sum(each.run.rows_in.values()), each.run.rows_out
            known_in, known_out = self._rows.get(key, (0, 0))
            work = work_of(each.run.deploy.subgraph)
            (spark if work == "spark" else inline)[work] += rows_in - known_in
            inline["result"] += rows_out - known_out
            self._rows[key] = rows_in, rows_out
        self.capacity.measure(event.use, inline, spark, now)

    def validate(self, hosted: Container[Hashable]) -> None:
        for each in self.capacity.resources.values():
            assert all(key in hosted for key in each.holders), "what has ended has nothing reserved"


def work_of(subgraph: Subgraph) -> Work:
    """What kind of work the rows of a subgraph are."""
    if isinstance(subgraph.engine, Spark):
        return "spark"
    return "window" if is_stateful(subgraph.plan) else "select"
