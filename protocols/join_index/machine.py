"""The join index as a role of a peer: its rewriter, its evaluator and its subscriber."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.effects import Effect, Send, SetTimer, Tell
from protocols.events import Answered, Event, Received, Started, TimerFired
from protocols.ids import Millis, PeerId
from protocols.inside import Inside
from protocols.join_index import messages
from protocols.join_index.evaluator import Evaluator
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    AskEvaluators,
    Covered,
    Evaluators,
    IndexQuery,
    JoinResults,
    KeepQueries,
    Notified,
    Parcel,
    QueryIndexed,
    QueryLost,
    QueryRefused,
    Receipt,
    RemoveQuery,
)
from protocols.join_index.rewriter import ROLE, Rewriter
from protocols.join_index.subscriber import Subscriber
from protocols.messages import Message
from protocols.role import Owned, messages_in
from protocols.subgraphs import Deploy, Indexed, ResultsSafe, Undeploy
from queries.catalogue import DAY_MS

_FOR_EVALUATOR: Final = (Parcel, Notified)
_FOR_REWRITER: Final = (AskEvaluators, IndexQuery, KeepQueries, RemoveQuery, Receipt)
SWEEP: Final = f"{ROLE}/sweep"
WORK: Final = f"{ROLE}/work"
_Part = Rewriter | Evaluator | Subscriber
LIMITS: Final = JoinLimits(away_ms=DAY_MS)


@dataclass(slots=True)
class JoinIndex:
    """The join index of one peer.

    In:        what its parts take; Started and its own timers
    Out:       what they give; a message to this same peer does not leave it
    Keeps:     its parts, and nothing on disk: a query that has lost state begins a new attempt
    Invariant: that of each part
    """

    owned: ClassVar[Owned] = Owned(ROLE, messages=(*messages_in(messages), Deploy, Undeploy), events=(ResultsSafe,))

    peer_id: PeerId
    inside: Inside
    neighbours: Callable[[], tuple[PeerId, ...]]
    first_late_ms: Millis  # JoinQuery.late_ms of first attempts.
    limits: JoinLimits = LIMITS
    rewriter: Rewriter = field(init=False)
    evaluator: Evaluator = field(init=False)
    subscriber: Subscriber = field(init=False)
    _is_ticking: bool = False
    _is_working: bool = False
    _busy: dict[str, _Part] = field(default_factory=dict)  # The parts that took an event since the last validate().

    def __post_init__(self) -> None:
        self.rewriter = Rewriter(self.peer_id, self.limits, self.inside, self.neighbours)
        self.evaluator = Evaluator(self.peer_id, self.limits)
        self.subscriber = Subscriber(self.peer_id, self.inside, self.neighbours, self.first_late_ms)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        effects = [self._shortened(effect) for effect in self._handle(event, now)]
        if not self._is_ticking and (not self.is_empty() or self.rewriter.remembers or self.evaluator.remembers):
            self._is_ticking = True
            effects.append(SetTimer(SWEEP, self.limits.sweep_ms))
        if not self._is_working and (self.rewriter.has_work or self.evaluator.has_work):
            self._is_working = True
            effects.append(SetTimer(WORK, 0))  # After all other events that wait.
        return effects

    def _handle(self, event: Event, now: Millis) -> list[Effect]:
        if type(event) is Received:
            return self._received(event.sender, event.message, now)
        self._busy = {"rewriter": self.rewriter, "evaluator": self.evaluator, "subscriber": self.subscriber}
        match event:
            case Started():
                self.rewriter.begin(now)
                self.evaluator.begin(now)
                self.subscriber.life = now
            case TimerFired(name=name) if name == WORK:
                self._is_working = False
                return [*self.rewriter.go_on(now), *self.evaluator.go_on(now)]
            case TimerFired():
                self._is_ticking = False
                return [*self.rewriter.sweep(now), *self.evaluator.sweep(now), *self.subscriber.sweep(now)]
            case ResultsSafe():
                return self.subscriber.safe(event)
            case Answered(request=request, answer=answer):
                return self.rewriter.answered(request, answer, now) + self.subscriber.answered(request, answer, now)
        return []

    def _received(self, sender: PeerId, message: Message, now: Millis) -> list[Effect]:
        if type(message) in _FOR_EVALUATOR:
            return self._for_evaluator(sender, message, now)
        if type(message) in _FOR_REWRITER:
            return self._for_rewriter(sender, message, now)
        return self._for_subscriber(sender, message, now)

    def _for_subscriber(self, sender: PeerId, message: Message, now: Millis) -> list[Effect]:
        self._busy["subscriber"] = self.subscriber
        match message:
            case Deploy() if isinstance(message.subgraph.engine, Indexed) and sender == self.peer_id:
                return self.subscriber.deploy(message, now)
            case Undeploy() if sender == self.peer_id:
                return self.subscriber.undeploy(message)
            case Evaluators():
                return self.subscriber.named(message, now)
            case QueryIndexed():
                return self.subscriber.indexed(sender, message, now)
            case QueryRefused():
                return self.subscriber.refused(sender, message)
            case QueryLost():
                return self.subscriber.lost(sender, message, now)
            case Covered():
                return self.subscriber.covered(sender, message, now)
            case JoinResults():
                return self.subscriber.results(sender, message, now)
        return []

    def _for_rewriter(self, sender: PeerId, message: Message, now: Millis) -> list[Effect]:
        self._busy["rewriter"] = self.rewriter
        match message:
            case AskEvaluators():
                return self.rewriter.name_evaluators(sender, message, now)
            case IndexQuery():
                return self.rewriter.index(sender, message, now)
            case KeepQueries():
                return self.rewriter.keep(sender, message, now)
            case RemoveQuery():
                return self.rewriter.remove(sender, message, now)
            case Receipt():
                return self.rewriter.receipt(sender, message, now)
        return []

    def _for_evaluator(self, sender: PeerId, message: Message, now: Millis) -> list[Effect]:
        self._busy["evaluator"] = self.evaluator
        match message:
            case Parcel():
                return self.evaluator.unpack(sender, message, now)
            case Notified():
                return self.evaluator.notified(sender, message)
        return []

    def _shortened(self, effect: Effect) -> Effect:
        """A message to this same peer needs no network."""
        if isinstance(effect, Send) and effect.peer == self.peer_id:
            return Tell(Received(self.peer_id, effect.message))
        return effect

    def is_empty(self) -> bool:
        """Whether there is nothing to look after."""
        return self.rewriter.is_empty() and self.evaluator.is_empty() and self.subscriber.is_empty()

    def validate(self) -> None:
        for part in self._busy.values():
            part.validate()
        self._busy.clear()
