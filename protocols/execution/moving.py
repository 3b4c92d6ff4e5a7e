"""A move that was planned, from the decision until it can be made: engines start at the new hosts meanwhile.

An engine takes many seconds to start. A query that went first and waited there would be without results for as long.
After the death of a host nothing runs on meanwhile, so nothing waits: this is for moves that need not be made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocols.execution.cut import Cut
from protocols.execution.placing import Choice, Provisional
from protocols.ids import Millis, PeerId, StreamName
from protocols.subgraphs import Prepare, Prepared, Spark

PREPARED_WITHIN_MS: Final = 120_000  # Nothing is missed meanwhile, and a machine may have much else to do.
PREPARE_AGAIN_MS: Final = 2000


@dataclass(slots=True)
class Moving:
    """One move of one query.

    In:        PREPARED from new hosts, and that one of them cannot be reached
    Out:       PREPARE, until each has answered; then the move, or why it is given up
    Keeps:     who has not answered yet; nothing outlives the attempt that runs on meanwhile
    Invariant: it is ready once all that were asked have said so, and never after one has failed
    """

    query: StreamName
    attempt: int  # Which runs on.
    target: Choice | Provisional
    awaited: dict[PeerId, None]
    until: Millis
    ask_at: Millis = 0
    failed: tuple[PeerId, str] | None = None  # Whose engine is not to be had, and why.

    @property
    def choice(self) -> Choice:
        return choice_of(self.target)

    @property
    def is_ready(self) -> bool:
        return not self.awaited and self.failed is None

    def hear(self, host: PeerId, message: Prepared) -> None:
        """Of another attempt it may be from before that host was restarted."""
        if message.attempt != self.attempt or host not in self.awaited:
            return
        if message.reason:
            self.fail(host, f"cannot start its engine: {message.reason}")
        else:
            del self.awaited[host]

    def fail(self, host: PeerId, why: str) -> None:
        """The engine of that host is not to be had, so the query stays where it is."""
        if host in self.choice.peers:
            self.failed = self.failed or (host, why)

    def ask(self, now: Millis) -> list[tuple[PeerId, Prepare]]:
        """Whom to send what; who has been asked for too long is asked no more."""
        if self.awaited and now >= self.until:
            self.fail(next(iter(self.awaited)), f"had no engine ready within {PREPARED_WITHIN_MS // 1000} s")
        if self.failed is not None or now < self.ask_at:
            return []
        self.ask_at = now + PREPARE_AGAIN_MS
        return [(host, Prepare(query=self.query, attempt=self.attempt)) for host in self.awaited]


def choice_of(target: Choice | Provisional) -> Choice:
    return target.decision.choice if isinstance(target, Provisional) else target


def move(query: StreamName, attempt: int, target: Choice | Provisional, before: Cut, after: Cut, now: Millis) -> Moving:
    """The move from one set of hosts to another: those whose engines the query does not use yet are awaited."""
    used = _engines(before)
    awaited = {host: None for host in _engines(after) if host not in used}
    return Moving(query, attempt, target, awaited, now + PREPARED_WITHIN_MS)


def _engines(made: Cut) -> dict[PeerId, None]:
    parts = zip(made.subgraphs, made.hosts, strict=True)
    return {host: None for subgraph, host in parts if isinstance(subgraph.engine, Spark)}
