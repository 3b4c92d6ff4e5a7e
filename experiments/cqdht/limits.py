"""The bounds of the paper's machines at one peer, and what all peers of a network must agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protocols.ids import Millis


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """What one peer allows itself and others."""

    replicas: int = 1  # DR: rewriters of an attribute. The same on all peers.
    recent_ms: Millis = 30_000  # Skew of clocks plus the longest retry: how long what is late can still arrive.
    late_ms: Millis = 30_000  # How much later than its time a tuple may come to an evaluator and still meet others.
    sweep_ms: Millis = 1000
    rate_ms: Millis = 60_000  # Over which a rewriter counts tuples,
    arrivals_max: int = 1000  # of this many at most.
    queries_max: int = 100_000  # Indexed here.
    tuples_max: int = 1_000_000  # In the VLTT.
    rewritten_max: int = 1_000_000  # In the VLQT.
    fingers_max: int = 100_000  # Likewise holders of cells, and cells with parts, that a rewriter knows.
    groups: bool = True  # One JOIN for all queries that have the same evaluator; else one for each.
    busy_above: int = 10_000  # A peer that has had less to compare keeps all its cells (cells.py);
    load_ms: Millis = 60_000  # it counts anew after this time.
    cells_max: int = 1_000_000  # Who knows of so many, here or elsewhere, hands none on and halves none.
    choose_by: Literal["rate", "skew"] = "rate"  # SAI's index attribute: section 4.1.
