"""The join index as a role of a peer: attribute level, value level and subscriber's part of queries, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.streams import DAY_MS
from protocols.effects import Effect, Send, SetTimer, Tell
from protocols.events import Answered, Event, Received, Started, TimerFired
from protocols.ids import Millis, PeerId
from protocols.inside import Inside
from protocols.join_index import messages
from protocols.join_index.attribute_level import ROLE, AttributeLevel
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Covered,
    JoinResults,
    KeepQueries,
    Notified,
    Parcel,
    Query,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
)
from protocols.join_index.proxy_side import IndexedQueries
from protocols.join_index.value_level import ValueLevel
from protocols.messages import Message
from protocols.subgraphs import Deploy, Indexed, ResultsSafe, Undeploy

SWEEP: Final = f"{ROLE}/sweep"
LIMITS: Final = JoinLimits(late_ms=DAY_MS)  # A publisher may be away for as long as it keeps its tuples.
MESSAGES: Final = tuple(
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
)


@dataclass(slots=True)
class Joins:
    """Every part of the join index at one peer.

    In:        what its parts take; Started and its own timer
    Out:       what they give
    Keeps:     the parts, nothing on disk: who forgets is noticed, and the query begins anew
    Invariant: that of each part
    """

    peer_id: PeerId
    inside: Inside
    neighbours: Callable[[], tuple[PeerId, ...]]
    late_ms: Millis
    limits: JoinLimits = LIMITS
    attributes: AttributeLevel = field(init=False)
    values: ValueLevel = field(init=False)
    queries: IndexedQueries = field(init=False)
    _is_ticking: bool = False

    def __post_init__(self) -> None:
        self.attributes = AttributeLevel(self.peer_id, self.limits, self.inside)
        self.values = ValueLevel(self.peer_id, self.limits)
        self.queries = IndexedQueries(self.peer_id, self.inside, self.neighbours, self.late_ms)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        effects = [self._shortened(effect) for effect in self._handle(event, now)]
        if not self._is_ticking and not self.is_empty():
            self._is_ticking = True
            effects.append(SetTimer(SWEEP, self.limits.sweep_ms))
        return effects

    def _handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Started():
                self.attributes.begin(now)
                self.values.begin(now)
                self.queries.life = now
            case TimerFired():
                self._is_ticking = False
                return [*self.attributes.sweep(now), *self.values.sweep(now), *self.queries.sweep(now)]
            case ResultsSafe():
                return self.queries.safe(event)
            case Answered(request=request, answer=answer):
                return self.attributes.answered(request, answer, now) + self.queries.answered(request, answer, now)
            case Received(sender=sender, message=message):
                return self._received(sender, message, now)
        return []

    def _received(self, sender: PeerId, message: Message, now: Millis) -> list[Effect]:  # noqa: C901 - one for each kind
        match message:
            case Deploy() if isinstance(message.subgraph.engine, Indexed) and sender == self.peer_id:
                return self.queries.deploy(message, now)
            case Undeploy() if sender == self.peer_id:
                return self.queries.undeploy(message)
            case QueryIndexed():
                return self.queries.indexed(sender, message, now)
            case QueryRefused():
                return self.queries.refused(message, now)
            case QueryLost():
                return self.queries.lost(message, now)
            case Covered():
                return self.queries.covered(sender, message, now)
            case JoinResults():
                return self.queries.results(sender, message, now)
            case Query():
                return self.attributes.index(sender, message, now)
            case KeepQueries():
                return self.attributes.keep(sender, message, now)
            case RemoveQuery():
                return self.attributes.remove(message, now)
            case Receipt():
                return self.attributes.received(sender, message, now)
            case Parcel():
                return self.values.unpack(sender, message, now)
            case Notified():
                return self.values.notified(sender, message)
        return []

    def _shortened(self, effect: Effect) -> Effect:
        """What is for ourselves needs no network."""
        if isinstance(effect, Send) and effect.peer == self.peer_id:
            return Tell(Received(self.peer_id, effect.message))
        return effect

    def is_empty(self) -> bool:
        """Whether there is nothing to look after."""
        return self.attributes.is_empty() and self.values.is_empty() and self.queries.is_empty()

    def validate(self) -> None:
        self.attributes.validate()
        self.values.validate()
        self.queries.validate()
