"""The bounds of the join index at one peer."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.ids import Millis


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """What one peer allows itself and others."""

    recent_ms: Millis = 30_000  # Clock skew plus the longest retry: a message can still arrive so long after its time.
    late_ms: Millis = 30_000  # How late a tuple may reach an evaluator. For sides with a window: JoinQuery.late_ms.
    sweep_ms: Millis = 1000
    queries_max: int = 100_000  # Indexed here.
    tuples_max: int = 1_000_000  # Tuples and triggers that an evaluator keeps.
