"""What is said of queries that cannot begin: at once, before anything is looked up, or by the host of a part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from protocols.catalogue.refusals import clock_is_off
from protocols.clock import HybridClock
from protocols.delivery.publisher import Publisher
from protocols.execution.messages import QueryId
from protocols.execution.placing import unreadable
from protocols.ids import Millis, PeerId
from protocols.messages import Refused
from protocols.subgraphs import ALGORITHMS

QUERIES_MAX: Final = 1000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def objection(
    name: QueryId, statistics: str, there: Mapping[QueryId, object], clock: HybridClock, publisher: Publisher
) -> Refused | None:
    """Why a query of that name cannot begin at this peer now."""
    if not _NAME.fullmatch(name):
        error = f'"{name}" cannot name a query'
        return Refused(code="invalid", error=error, hint="Letters, digits, _ and -; up to 64.")
    if clock.is_off:
        error = f'query "{name}" cannot begin here now: the clock of this peer is wrong'
        return msgspec.structs.replace(clock_is_off(name, clock), error=error)
    if refusal := unreadable(statistics):
        return refusal
    if name in there:
        error = f'query "{name}" exists already at this peer'
        hint = f"peer query attach {name} reads its results; peer query stop {name} ends it."
        return Refused(code="exists", error=error, hint=hint)
    if len(there) >= QUERIES_MAX:
        error = f'query "{name}" has no room: this peer runs {QUERIES_MAX} queries already'
        hint = "peer query stop NAME ends one (peer query ls lists them), or submit it at another peer."
        return Refused(code="full", error=error, hint=hint)
    if len(publisher.outboxes) >= publisher.limits.streams_max:
        error = f'query "{name}" has no room: this peer publishes to {publisher.limits.streams_max} streams, its limit'
        return Refused(code="full", error=error, hint="Submit it at another peer.")
    return None


def not_running(name: QueryId, late: Sequence[PeerId], within_ms: Millis) -> Refused:
    """What to tell who asked for a query whose hosts do not say that they run it."""
    error = f'query "{name}" was not running within {within_ms // 1000} s'
    return Refused(
        code="unavailable", error=error, detail=f"No word from peer {', '.join(each.short for each in late)}."
    )


def cannot_run(name: QueryId, engine: str, host: PeerId, reason: str) -> Refused:
    """What to tell who asked for a query that a host will not run."""
    error = f'query "{name}" cannot run: {reason}'
    hint = "Try again later, or let it run without the index: --engine spark." if engine in ALGORITHMS else ""
    return Refused(code="unavailable", error=error, detail=f"Said by peer {host.short}.", hint=hint)
