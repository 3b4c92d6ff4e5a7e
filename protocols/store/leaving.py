"""Leaving of one's own will: hand over all we hold, wait until every new owner has it, then go.

    peer ── STORE_LEAVING ──▶ others           they count us out, and heirs catch up with us as long as we are here
    peer ── STORE_OFFER ──▶ new owners ── STORE_ACK ──▶ peer
    peer ── STORE_LEAVING, done ──▶ others     nobody need miss us

From the first STORE_LEAVING on we acknowledge nothing and our answers do not count. So no entry can become known to us
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.effects import Effect, Reply, Send
from protocols.ids import Millis, RequestId
from protocols.store.comparison import Comparisons
from protocols.store.messages import Leaving, StoreLeaving
from protocols.store.neighbourhood import Neighbourhood


@dataclass(slots=True)
class Departure:
    """One peer on its way out.

    In:        LEAVE from whoever runs the peer, time
    Out:       STORE_LEAVING; LEAVING, the last one once all is handed over or time is up
    Keeps:     who asked, and when to repeat it all
    """

    neighbourhood: Neighbourhood
    comparisons: Comparisons
    entries: int  # What we held when we were asked to leave.
    deadline_at: Millis
    next_at: Millis
    wait_ms: Millis
    requests: dict[RequestId, None] = field(default_factory=dict)
    is_done: bool = False  # All is handed over, and the others are being told.
    is_over: bool = False

    @classmethod
    def begin(cls, comparisons: Comparisons, now: Millis) -> Departure:
        limits, entries = comparisons.neighbourhood.limits, len(comparisons.table)
        deadline_at = now + limits.drain_ms
        return cls(comparisons.neighbourhood, comparisons, entries, deadline_at, now, limits.retry_ms)

    def is_due(self, now: Millis) -> bool:
        """Whether to repeat what was not heard."""
        return now >= self.next_at

    def advance(self, left: int, offers: list[Effect], now: Millis, *, is_due: bool) -> list[Effect]:
        """All keys were looked at: so many entries are left. Tell the others, and whoever asked how far we are."""
        was_done, self.is_done = self.is_done, not left
        others = self.neighbourhood.others
        is_alone = not others and (not left or self.neighbourhood.is_alone(now))
        self.is_over = was_done or is_alone or now >= self.deadline_at
        told = Leaving(entries=self.entries, left=left)
        effects: list[Effect] = [Reply(request, told, last=self.is_over) for request in self.requests]
        if self.is_done:
            effects += [Send(peer, StoreLeaving(is_done=True)) for peer in others]
        elif not self.is_over and is_due:
            self.wait_ms = min(2 * self.wait_ms, self.neighbourhood.limits.retry_ms_max)
            self.next_at = now + self.wait_ms
            effects += [Send(peer, StoreLeaving()) for peer in others]
        return effects + offers

    def may_begin(self, now: Millis) -> bool:
        """Whether we have caught up ourselves: before that our answers do not count, and nobody can inherit from us."""
        if self.is_over:
            return False
        if not self.neighbourhood.is_leaving:
            if self.neighbourhood.is_starting(now) and now < self.deadline_at - self.neighbourhood.limits.drain_ms // 2:
                return False
            self.neighbourhood.is_leaving = True
            self.comparisons.stop()
        return True
