"""The paper's join index at one peer: the parts of publisher, subscriber, rewriter and evaluator.

As in the paper, tuples are sent to rewriters, evaluators are found through the DHT, and nobody crashes. What peers run
is protocols/join_index/machine.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from experiments.cqdht.cell_holder import CellHolder
from experiments.cqdht.evaluator import Evaluator
from experiments.cqdht.events import QueryPosed, QueryStopped, TuplePublished
from experiments.cqdht.indexer import TupleIndexer
from experiments.cqdht.interests import Interests
from experiments.cqdht.limits import JoinLimits
from experiments.cqdht.messages import (
    AlIndex,
    AskLoad,
    AskRate,
    Bundle,
    Finger,
    ForgetQuery,
    Halved,
    HandedOn,
    Join,
    Moved,
    Notify,
    PeerLoad,
    Query,
    QueryIndexed,
    QueryRefused,
    Rate,
    RemoveQuery,
    VlIndex,
)
from experiments.cqdht.rewriter import Rewriter
from experiments.cqdht.subscriber import JoinSubscriber
from protocols.effects import Effect, SetTimer
from protocols.events import Event, Received, Started, TimerFired, Unreachable, Unroutable
from protocols.ids import Millis
from protocols.messages import Message

SWEEP: Final = "join_index.sweep"
_FOR_EVALUATORS: Final = frozenset((VlIndex, Join, ForgetQuery))
_FOR_HOLDERS: Final = frozenset((Bundle, Moved, AskLoad, PeerLoad))
_FOR_REWRITERS: Final = frozenset((AlIndex, Query, RemoveQuery, AskRate, Finger, HandedOn, Halved))
_FOR_SUBSCRIBERS: Final = frozenset((Rate, QueryIndexed, QueryRefused, Notify))


@dataclass(slots=True)
class JoinIndex:
    """Every role of the join index at one peer.

    In:        what its roles take; Started and its own timer
    Out:       what they give
    Keeps:     the roles
    Invariant: that of each role
    """

    limits: JoinLimits = field(default_factory=JoinLimits)
    interests: Interests | None = None
    indexer: TupleIndexer = field(init=False)
    subscriber: JoinSubscriber = field(init=False)
    rewriter: Rewriter = field(init=False)
    evaluator: Evaluator = field(init=False)
    holder: CellHolder = field(init=False)

    def __post_init__(self) -> None:
        self.indexer = TupleIndexer(self.limits, self.interests)
        self.subscriber = JoinSubscriber(self.limits)
        self.rewriter = Rewriter(self.limits)
        self.evaluator = Evaluator(self.limits)
        self.holder = CellHolder(self.limits, self.evaluator, self.rewriter)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Received(message=message):
                return self._receiver(message).handle(event, now)
            case Started():
                return [SetTimer(SWEEP, self.limits.sweep_ms)]
            case TimerFired(name=name) if name == SWEEP:
                self.subscriber.sweep(now)
                self.rewriter.sweep(now)
                self.evaluator.sweep(now)
                self.holder.sweep(now)
                return [SetTimer(SWEEP, self.limits.sweep_ms)]
            case TuplePublished():
                return self.indexer.handle(event, now)
            case QueryPosed() | QueryStopped():
                return self.subscriber.handle(event, now)
            case Unroutable(message=message) | Unreachable(message=message):
                return self._sender(message).handle(event, now)
        raise AssertionError(f"no rule for {event}")

    def _receiver(self, message: Message) -> JoinSubscriber | Rewriter | Evaluator | CellHolder:
        kind = type(message)
        if kind in _FOR_HOLDERS or (isinstance(message, ForgetQuery) and message.part >= 0):
            return self.holder
        if kind in _FOR_EVALUATORS:
            return self.evaluator
        if kind in _FOR_REWRITERS:
            return self.rewriter
        assert kind in _FOR_SUBSCRIBERS, f"no role for {message}"
        return self.subscriber

    def _sender(self, message: Message) -> TupleIndexer | JoinSubscriber | Rewriter | Evaluator | CellHolder:
        match message:
            case AlIndex() | VlIndex():
                return self.indexer
            case Query() | RemoveQuery() | AskRate():
                return self.subscriber
            case Join() | ForgetQuery() | Bundle() | Rate() | QueryIndexed() | QueryRefused():
                return self.rewriter
            case Notify() | Finger():
                return self.evaluator
            case Moved() | HandedOn() | Halved() | AskLoad() | PeerLoad():
                return self.holder
        raise AssertionError(f"no role for {message}")

    def is_empty(self) -> bool:
        """Whether nothing of any query is left here."""
        return self.subscriber.is_empty() and self.rewriter.is_empty() and self.evaluator.is_empty()

    def validate(self) -> None:
        self.subscriber.validate()
        self.rewriter.validate()
        self.evaluator.validate()
        self.holder.validate()
