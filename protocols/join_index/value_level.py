"""The value level of a peer that may crash: an evaluator, what it has told, and for how long its word holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from protocols.effects import Effect, Send
from protocols.events import Received
from protocols.ids import Millis, PeerId
from protocols.join_index.condition import NotIndexed
from protocols.join_index.evaluator import Evaluator
from protocols.join_index.limits import JoinLimits
from protocols.join_index.messages import (
    Join,
    Notification,
    Notified,
    Notify,
    Parcel,
    QueryId,
    Receipt,
    VlIndex,
)

RESEND_MS: Final = 2000
LAPSE_MS: Final = 60_000  # A query that nobody has mentioned for so long is over.
NOTIFY_BYTES: Final = 256 << 10  # Of rows in one message.


@dataclass(slots=True)
class _Telling:
    """What this evaluator has told of one query."""

    heard_at: Millis
    sequence: int = 0
    unheard: dict[int, tuple[PeerId, Notify, Millis]] = field(default_factory=dict)


@dataclass(slots=True)
class ValueLevel:
    """An evaluator among peers that come and go.

    In:        PARCEL from attribute levels, NOTIFIED from subscribers
    Out:       RECEIPT; NOTIFY, numbered for each query, until it is NOTIFIED
    Keeps:     the evaluator, the results that have not arrived yet
    Invariant: in one life it has all it was given of every query that its subscriber has not ended. Whoever finds it in
               another life must not count on what it had in the one before.
    """

    peer_id: PeerId
    limits: JoinLimits
    life: Millis = 0
    evaluator: Evaluator = field(init=False)
    _telling: dict[QueryId, _Telling] = field(default_factory=dict)
    _asked_at: Millis = 0  # When anybody last sent or asked anything.

    def __post_init__(self) -> None:
        self.evaluator = Evaluator(self.limits)

    def begin(self, now: Millis) -> None:
        """Have nothing, in a new life."""
        self.life = max(now, self.life + 1)
        self.evaluator = Evaluator(self.limits)
        self._telling = {}

    # Parcels.

    def unpack(self, sender: PeerId, parcel: Parcel, now: Millis) -> list[Effect]:
        self._asked_at = now
        for query in parcel.wanted:
            if query in self._telling:
                self._hear_of(query, now)
        for query in parcel.over:
            self._forget(query, now)
        refused, reason = self.evaluator.refused, ""
        concerned: dict[QueryId, None] = {}
        found: dict[tuple[PeerId, QueryId], list[Notification]] = {}
        for part in parcel.parts:
            try:
                for subscriber, each in self._evaluate(sender, part, now):
                    found.setdefault((subscriber, each.query), []).append(each)
            except NotIndexed as error:
                reason = str(error)
                break
            concerned.update(dict.fromkeys(self._concerned(part)))
        effects = [effect for (subscriber, _), some in found.items() for effect in self._tell(subscriber, some, now)]
        if self.evaluator.refused > refused:
            reason = f"peer {self.peer_id.short} has no room for more of it"
        told = tuple((query, self._telling[query].sequence) for query in concerned if query in self._telling)
        return [*effects, Send(sender, Receipt(number=parcel.number, life=self.life, told=told, refused=reason))]

    def _evaluate(self, sender: PeerId, part: Join | VlIndex, now: Millis) -> Iterator[tuple[PeerId, Notification]]:
        if isinstance(part, Join):
            for rewritten in part.rewritten:
                self._hear_of(rewritten.query.id, now)
        for effect in self.evaluator.handle(Received(sender, part), now):
            assert isinstance(effect, Send), "an evaluator tells subscribers"
            assert isinstance(effect.message, Notify)
            for each in effect.message.notifications:
                yield effect.peer, each

    def _hear_of(self, query: QueryId, now: Millis) -> None:
        known = self._telling.get(query)
        if known is not None:
            known.heard_at = now
        elif not self.evaluator.is_removed(query):  # Else it comes late.
            for each in [each for each in self._telling if is_earlier_attempt(each, query)]:
                self._forget(each, now)  # Its subscriber has begun anew.
            self._telling[query] = _Telling(now)

    def _concerned(self, part: Join | VlIndex) -> tuple[QueryId, ...]:
        """Whose results may have come of it, now or when it came before."""
        if isinstance(part, Join):
            return tuple(rewritten.query.id for rewritten in part.rewritten)
        return self.evaluator.queries_at(part.at, part.value)

    def _forget(self, query: QueryId, now: Millis) -> None:
        self._telling.pop(query, None)
        self.evaluator.drop(query, now)

    # Results.

    def _tell(self, subscriber: PeerId, notifications: list[Notification], now: Millis) -> Iterator[Effect]:
        """Results of one query."""
        telling = self._telling[notifications[0].query]
        for some in _portions(notifications):
            telling.sequence += 1
            message = Notify(notifications=some, life=self.life, sequence=telling.sequence)
            telling.unheard[telling.sequence] = (subscriber, message, now)
            yield Send(subscriber, message)

    def notified(self, message: Notified) -> None:
        telling = self._telling.get(message.query)
        if telling is not None:
            telling.unheard.pop(message.sequence, None)

    # Time.

    def sweep(self, now: Millis) -> list[Effect]:
        """Say again what was not heard, and let go of what has ended."""
        is_over = any(now - telling.heard_at > LAPSE_MS for telling in self._telling.values())
        if is_over or (not self.is_empty() and now - self._asked_at > LAPSE_MS):
            self.begin(now)  # To forget one query alone would go unnoticed, should it be wanted after all.
            return []
        self.evaluator.sweep(now)
        effects: list[Effect] = []
        for telling in self._telling.values():
            for sequence, (peer, message, sent_at) in telling.unheard.items():
                if now - sent_at >= RESEND_MS:
                    telling.unheard[sequence] = (peer, message, now)
                    effects.append(Send(peer, message))
        return effects

    def is_empty(self) -> bool:
        """Whether nothing of any query is left, nor tuples for one."""
        return self.evaluator.is_empty() and not self._telling and not self.evaluator.stored_tuples

    def validate(self) -> None:
        self.evaluator.validate()
        for telling in self._telling.values():
            assert all(sequence <= telling.sequence for sequence in telling.unheard)


def is_earlier_attempt(one: QueryId, other: QueryId) -> bool:
    """Whether both are attempts of one query, the second the later one.

    >>> is_earlier_attempt("q.1~7", "q.1~12"), is_earlier_attempt("q.1~7", "q.2~12"), is_earlier_attempt("a", "b")
    (True, False, False)
    """
    (name, _, attempt), (other_name, _, other_attempt) = one.rpartition("~"), other.rpartition("~")
    are_numbers = attempt.isdecimal() and other_attempt.isdecimal()
    return bool(name) and name == other_name and are_numbers and int(attempt) < int(other_attempt)


def _portions(notifications: list[Notification]) -> list[tuple[Notification, ...]]:
    """Results in messages that are not too large."""
    portions: list[list[Notification]] = []
    size = NOTIFY_BYTES
    for each in notifications:
        if size >= NOTIFY_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(each)
        size += len(each.row) + 200
    return [tuple(portion) for portion in portions]
