"""A subgraph at its host, between what comes in for it and what of its results is not acknowledged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from protocols.delivery.messages import Batch, Missed, Publishers, Silence
from protocols.effects import Effect
from protocols.execution.run import RunOutput, SubgraphRun
from protocols.ids import Millis, PeerId
from protocols.part import Part
from protocols.sharing.tap import NoRows, Some, Tap, What
from protocols.subgraphs import Flow, Progress

TIMED_MS: Final = 200  # How often a tap is told how far its stream is, if what is behind it goes by time,
UNTIMED_MS: Final = 1000  # or if not.

Incoming = What | Flow
"""What comes in for a subgraph."""


@dataclass(slots=True)
class Hosted:
    """A subgraph at this host: its run, its inputs, and its output that is not acknowledged."""

    run: SubgraphRun
    proxy: PeerId
    life: Millis
    leased_at: Millis
    is_started: bool = False  # The engine takes rows.
    is_announced: bool = False
    unopened: dict[str, None] = field(default_factory=dict)  # Streams that are not open yet.
    taps: dict[str, Tap] = field(default_factory=dict)  # By alias.
    caught_up_at: Millis = 0
    early: list[tuple[str, Incoming]] = field(default_factory=list)  # Before the engine had started.
    expected: dict[int, int] = field(default_factory=dict)  # Next sequence of each flow that comes in.
    flows: deque[tuple[Flow, Millis]] = field(default_factory=deque)  # Sent and not acknowledged.
    next_sequence: int = 0
    lives: dict[int, Millis] = field(default_factory=dict)  # Incarnations of the subgraphs whose flows come in.
    makers: dict[int, PeerId] = field(default_factory=dict)  # Who sends each flow.
    acked: dict[int, int] = field(default_factory=dict)  # The sequence up to which each flow has had its effect,
    flowed: dict[int, int] = field(default_factory=dict)  # and that which its maker was told last.
    flowed_at: Millis = 0
    unsafe: int = 0  # ResultsReady without their ResultsSafe.
    status_at: Millis = 0
    reported: Progress | None = None  # The last progress that the proxy got without results.

    @property
    def catch_up_ms(self) -> Millis:
        return TIMED_MS if self.run.deploy.subgraph.is_timed else UNTIMED_MS

    def take(self, alias: str, what: Incoming, now: Millis) -> tuple[list[Effect], list[RunOutput]] | None:
        """Give its run what has come in; None where that is no rows and no progress."""
        run = self.run
        match what:
            case Publishers():
                run.meet(alias, what, now)
            case Silence():
                run.take_silence(alias, what, now)
            case Some():
                return run.take_some(alias, what, now)
            case Part():
                return run.take_part(alias, what, now)
            case Flow():
                return run.take_flow(alias, what, now)
            case Missed():
                return run.take_gap(alias, what, now)
            case Batch():
                return run.take_batch(alias, what, now)
            case NoRows():
                return run.pass_over(alias, what.passed, now)
            case _:
                raise AssertionError(f"no rule for {what}")
        return None
