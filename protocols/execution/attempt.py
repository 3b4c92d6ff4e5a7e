"""An attempt: one deployment of a query, from the first DEPLOY until a host is lost, it moves, or the query ends.

A planned move (`Moving`) belongs to the attempt that it will end. Engines take many seconds to start, so the new hosts
start theirs first (PREPARE), and the query runs on where it is. Once all are ready, the next attempt begins there.
When a host is lost, the next attempt begins without PREPARE: nothing runs on meanwhile. `Retry` says when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocols.clock import Stamp
from protocols.execution.cut import Cut
from protocols.execution.decision import Decision
from protocols.execution.messages import SubgraphShown
from protocols.ids import Millis, PeerId, StreamName
from protocols.messages import Message
from protocols.subgraphs import Deploy, Lease, Prepare, Prepared, Progress, Spark, SubgraphStatus, Undeploy

LEASE_EVERY_MS: Final = 3000
RESEND_MS: Final = 2000
SILENT_MS: Final = 5000  # A host that sends no status for so long is taken for lost.
PREPARED_WITHIN_MS: Final = 120_000  # Long enough for a busy machine: the query runs on meanwhile.
PREPARE_AGAIN_MS: Final = 2000
RETRY_MIN_MS: Final = 500  # Between a loss and the next attempt. Each further loss doubles it,
RETRY_MAX_MS: Final = 15_000  # up to this, until an attempt runs.

Letters = list[tuple[PeerId, Message]]
"""Messages, each with the peer it is for."""


@dataclass(slots=True)
class Attempt:
    """What runs where, in which incarnations, and how it is doing.

    In:        DEPLOYED and SUBGRAPH_STATUS of its hosts
    Out:       DEPLOY until each host has answered, LEASE, UNDEPLOY
    Keeps:     of each subgraph its incarnation, when it was last heard of, and its status
    Invariant: a subgraph that was heard of has an incarnation, and only one
    """

    query: StreamName
    number: Stamp  # Later attempts have greater ones.
    cut: Cut
    resume: Progress
    begun_at: Millis
    is_accepted: bool = False  # Its query had been, before it began.
    sent_at: Millis = 0
    leased_at: Millis = 0
    heard_at: dict[int, Millis] = field(default_factory=dict)  # By the number of a subgraph, from DEPLOYED on.
    lives: dict[int, Millis] = field(default_factory=dict)
    status: dict[int, SubgraphStatus] = field(default_factory=dict)
    moving: Moving | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all subgraphs run."""
        return len(self.heard_at) == len(self.cut.subgraphs)

    def deploys(self, now: Millis) -> Letters:
        """DEPLOY for those that have not answered. A consumer comes before its makers: their rows find it there."""
        self.sent_at = now
        hosts = self.cut.by_number
        return [
            (
                hosts[subgraph.number],
                Deploy(
                    query=self.query,
                    attempt=self.number,
                    subgraph=subgraph,
                    consumer_host=hosts[subgraph.consumer] if subgraph.consumer is not None else None,
                    resume=self.cut.share_of(subgraph, self.resume),
                    demand=self.cut.demands.get(subgraph.number),
                    is_accepted=self.is_accepted,
                ),
            )
            for subgraph in reversed(self.cut.subgraphs)
            if subgraph.number not in self.heard_at
        ]

    def deploys_again(self, now: Millis) -> Letters:
        return self.deploys(now) if now - self.sent_at >= RESEND_MS else []

    def leases(self, now: Millis) -> Letters:
        if now - self.leased_at < LEASE_EVERY_MS:
            return []
        self.leased_at = now
        lease = Lease(query=self.query, attempt=self.number)
        return [(host, lease) for host in dict.fromkeys(self.cut.hosts)]

    def undeploys(self) -> Letters:
        over = Undeploy(query=self.query, attempt=self.number)
        return [(host, over) for host in dict.fromkeys(self.cut.hosts)]

    def deployed(self, number: int, life: Millis, now: Millis) -> bool:
        """A subgraph runs; False if it has another incarnation than before."""
        if self.lives.setdefault(number, life) != life:
            return False
        self.heard_at[number] = now
        return True

    def hear(self, status: SubgraphStatus, now: Millis) -> bool:
        """Take the status of a subgraph; False if this is a new incarnation, which has lost its state."""
        if status.number not in self.heard_at:
            return True
        if self.lives[status.number] != status.life:
            return False
        self.heard_at[status.number], self.status[status.number] = now, status
        return True

    def silent_host(self, now: Millis) -> PeerId | None:
        hosts = self.cut.by_number
        silent = (hosts[number] for number, heard_at in self.heard_at.items() if now - heard_at > SILENT_MS)
        return next(silent, None)

    def late_hosts(self) -> list[PeerId]:
        """Those that have not said yet that they run it."""
        return [host for number, host in self.cut.by_number.items() if number not in self.heard_at]

    def has_engine_at(self, host: PeerId) -> bool:
        """Whether it uses the engine of a host."""
        return host in _engines(self.cut)

    def shown(self) -> tuple[SubgraphShown, ...]:
        return tuple(SubgraphShown(each, host, self.status.get(each.number)) for each, host in self.cut.placed)

    def move_to(self, target: Decision, after: Cut, now: Millis) -> None:
        """Plan a move. Only hosts whose engines the query does not use yet have to prepare."""
        used = _engines(self.cut)
        awaited = {host: None for host in _engines(after) if host not in used}
        self.moving = Moving(self.query, self.number, target, awaited, now + PREPARED_WITHIN_MS)


@dataclass(slots=True)
class Moving:
    """A move from the decision until it can be made.

    In:        PREPARED from new hosts, and that one of them cannot be reached
    Out:       PREPARE, until each has answered; then the move, or why it is given up
    Keeps:     who has not answered yet
    Invariant: it is ready once all that were asked have said so, and never after one has failed
    """

    query: StreamName
    attempt: Stamp  # The one that runs on.
    target: Decision
    awaited: dict[PeerId, None]
    until: Millis
    ask_at: Millis = 0
    failed: tuple[PeerId, str] | None = None  # Who has no engine ready, and why.

    @property
    def is_ready(self) -> bool:
        return not self.awaited and self.failed is None

    def hear(self, host: PeerId, message: Prepared) -> None:
        """Take an answer. One to another attempt does not count: the host may have restarted since."""
        if message.attempt != self.attempt or host not in self.awaited:
            return
        if message.reason:
            self.fail(host, f"cannot start its engine: {message.reason}")
        else:
            del self.awaited[host]

    def fail(self, host: PeerId, why: str) -> None:
        """That host will have no engine, so the query stays where it is."""
        if host in self.target.choice.peers:
            self.failed = self.failed or (host, why)

    def ask(self, now: Millis) -> Letters:
        """PREPARE for those that have not answered, until their time is over."""
        if self.awaited and now >= self.until:
            self.fail(next(iter(self.awaited)), f"had no engine ready within {PREPARED_WITHIN_MS // 1000} s")
        if self.failed is not None or now < self.ask_at:
            return []
        self.ask_at = now + PREPARE_AGAIN_MS
        return [(host, Prepare(query=self.query, attempt=self.attempt)) for host in self.awaited]


@dataclass(slots=True)
class Retry:
    """When the next attempt of a query begins, and with what.

    Keeps:     why the last attempt ended, and what is known of the next one
    """

    at: Millis = 0
    wait_ms: Millis = RETRY_MIN_MS  # After the next loss.
    reason: str = ""  # Why the last attempt ended.
    is_hasty: bool = False  # It skips the lookup of its streams.
    decided: Decision | None = None  # Where it runs, if that is known already.

    @property
    def is_first(self) -> bool:
        """Whether nothing was lost since an attempt ran."""
        return self.wait_ms == RETRY_MIN_MS

    def note_lost(self, reason: str, now: Millis) -> None:
        self.reason, self.at = reason, now + self.wait_ms
        self.wait_ms = min(self.wait_ms * 2, RETRY_MAX_MS)

    def note_running(self) -> None:
        self.wait_ms = RETRY_MIN_MS


def _engines(made: Cut) -> dict[PeerId, None]:
    return {host: None for subgraph, host in made.placed if isinstance(subgraph.engine, Spark)}
