"""The bounds of the join index at one peer."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.ids import Millis


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """What one peer allows itself and others."""

    recent_ms: Millis = 30_000  # Clock skew plus the longest retry: a message can still arrive so long after its time.
    away_ms: Millis = 30_000  # How long a publisher may be away. With windows JoinQuery.late_ms counts instead.
    sweep_ms: Millis = 1000
    queries_max: int = 100_000  # Indexed here.
    tuples_max: int = 1_000_000  # Tuples and triggers that an evaluator keeps.
