"""Everything a client hears when its query cannot run: which query, the facts, and a next step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from protocols.catalogue.events import QueryEntry
from protocols.catalogue.queries import TEXT_LISTED, shortened
from protocols.catalogue.refusals import clock_is_off
from protocols.clock import HybridClock
from protocols.delivery.ingress import Ingress
from protocols.demand import HOSTING, Lack
from protocols.execution.cut import Cut, is_stateful
from protocols.execution.messages import QueryId
from protocols.ids import Millis, PeerId
from protocols.messages import Refused
from protocols.placement.delay import Infeasible
from protocols.subgraphs import Spark
from queries.errors import QueryError
from queries.spark_able import formless
from queries.statistics import from_json

QUERIES_MAX: Final = 5000
TAKEOVER_MIN_MS: Final = 15_000

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class NoEngine(msgspec.Struct, frozen=True):
    """No visible peer runs an engine; or this one does not, if the query must run `here`."""

    peers: int
    here: bool
    unshared: int = 0  # Live peers that were left out: they do not share execution with this one,
    closed: int = 0  # or they host nothing for others.


class Short(NamedTuple):
    """A host that had no room for a part of a query."""

    host: PeerId
    part: str
    lack: Lack


def objection(
    name: QueryId, statistics: str, known: Sequence[QueryId], clock: HybridClock, publisher: Ingress
) -> Refused | None:
    """Why a query of that name cannot begin at this peer now."""
    if not NAME.fullmatch(name):
        error = f'"{name}" cannot name a query'
        return Refused(code="invalid", error=error, hint="Letters, digits, _ and -; up to 64.")
    if clock.is_off:
        error = f'query "{name}" cannot begin here now: the clock of this peer is wrong'
        return msgspec.structs.replace(clock_is_off(name, clock), error=error)
    if refusal := unreadable(statistics):
        return refusal
    if name in known:
        error = f'query "{name}" exists already at this peer'
        hint = f"peer query attach {name} reads its results; peer query stop {name} ends it."
        return Refused(code="exists", error=error, hint=hint)
    if len(known) >= QUERIES_MAX:
        error = f'query "{name}" has no room: this peer runs {QUERIES_MAX} queries already'
        hint = "peer query stop NAME ends one (peer query ls lists them), or submit it at another peer."
        return Refused(code="full", error=error, hint=hint)
    if len(publisher.outboxes) >= publisher.limits.streams_max:
        error = f'query "{name}" has no room: this peer publishes to {publisher.limits.streams_max} streams, its limit'
        return Refused(code="full", error=error, hint="Submit it at another peer.")
    return None


def unreadable(statistics: str) -> Refused | None:
    """Refuse text that is no statistics of streams."""
    try:
        from_json(statistics or "{}")
    except ValueError as error:
        return Refused(code="invalid", error="the statistics of its streams cannot be read", detail=f"{error}.")
    return None


def no_takeover(name: QueryId, takeover_ms: Millis, durability: str) -> Refused | None:
    """Only results that are on two disks leave something to go on from."""
    if takeover_ms and takeover_ms < TAKEOVER_MIN_MS:
        error = f'query "{name}" cannot be taken over after {takeover_ms / 1000:g} s'
        hint = f"The shortest takeover is {TAKEOVER_MIN_MS // 1000} s: a peer says every 5 s that it is alive."
        return Refused(code="invalid", error=error, hint=hint)
    if not takeover_ms or durability == "replicated":
        return None
    return Refused(
        code="invalid",
        error=f'query "{name}" cannot be taken over: its results are on one disk',
        hint="Add durability = replicated (--durability replicated), or leave takeover out.",
    )


def not_adopted(name: QueryId, why: str, hint: str = "") -> Refused:
    """A query stays without its proxy for now."""
    return Refused(code="unavailable", error=f'query "{name}" is not taken over: {why}', hint=hint)


def unknown_query(name: QueryId, known: Sequence[QueryId]) -> Refused:
    there = ", ".join(known[:8]) if known else "none"
    hint = '"peer query ls --all" lists those of all peers.'
    return Refused(
        code="unknown", error=f'query "{name}" is not known', detail=f"Queries of this peer: {there}.", hint=hint
    )


def ambiguous_query(name: QueryId, proxies: Sequence[PeerId]) -> Refused:
    """Several peers have a query of that name."""
    name = name.partition("@")[0]
    error = f'{len(proxies)} peers have a query "{name}"'
    meant = ", ".join(f"{name}@{each.short}" for each in proxies[:8])
    return Refused(code="invalid", error=error, hint=f"Say which: {meant}.")


def directory_silent(name: QueryId, reason: str) -> Refused:
    error = f'query "{name}" is not of this peer' if name else "the queries of other peers cannot be listed"
    return Refused(
        code="unavailable",
        error=f"{error}, and the peers that keep the directory of queries did not answer in time",
        detail=reason,
        hint="Try again; the network may be healing.",
        retry_after_ms=1000,
    )


def proxy_silent(entry: QueryEntry, is_stop: bool) -> Refused:
    """The peer that has the query is down, or cut off."""
    hint = "It goes on, with its results, once that peer is back."
    if is_stop:
        hint = "Stop it once that peer is back. If the peer is only slow, the query may still be stopped."
    elif entry.durability == "replicated":
        hint += f" {_at_its_backup(entry)}"
    error = f'query "{entry.name}": its proxy {entry.proxy.short} does not answer'
    return Refused(code="unavailable", error=error, detail=f"It runs: {shortened(entry.text, TEXT_LISTED)}", hint=hint)


def lost_query(entry: QueryEntry) -> Refused:
    """The peer that had the query does not know it."""
    return Refused(
        code="unknown",
        error=f'query "{entry.name}" is not known at its proxy {entry.proxy.short}',
        detail="It has ended just now, or that peer has lost its disk.",
        hint=_at_its_backup(entry) if entry.durability == "replicated" else "",
    )


def _at_its_backup(entry: QueryEntry) -> str:
    goes_on = f'If that peer is gone for good, "peer query adopt {entry.name}" has the query go on.'
    return f'{goes_on} A backup keeps its results so far: peer subscribe "{entry.stream}" --since start'


def proxy_busy(proxy: PeerId) -> Refused:
    error = f"peer {proxy.short} is asked too much about its queries"
    return Refused(code="busy", error=error, retry_after_ms=1000)


def too_large_to_show(name: QueryId, proxy: PeerId) -> Refused:
    error = f'query "{name}" is too large to be shown by another peer than its proxy'
    return Refused(code="invalid", error=error, hint=f'"peer query show {name}" at peer {proxy.short} shows it.')


def not_understood(error: QueryError) -> Refused:
    """The text has a mistake."""
    mistake = str(error).removesuffix(f"\nhint: {error.hint}")
    return Refused(code="invalid", error=mistake, hint=error.hint)


def not_indexed(name: QueryId, algorithm: str, why: str, *, is_placed: bool, able: str | None) -> Refused:
    """The join index cannot run the query as it was asked to; `able` is an algorithm that could."""
    hint = f"Leave the join algorithm out: {f'{able} can run it' if able else 'it runs without the index'}."
    if is_placed:
        hint = "Leave out the join algorithm, or the placement and the delay bound."
    return Refused(code="invalid", error=f'query "{name}" cannot run as {algorithm}: {why}', hint=hint)


def not_inline(name: QueryId) -> Refused:
    """The query is to run in the daemon, and has more state than the daemon keeps."""
    return Refused(
        code="invalid",
        error=f'query "{name}" cannot run in the daemon, as it was asked to',
        detail="A daemon runs selections, unions and aggregates over windows of time. "
        "Joins, windows of rows or values, and lists of items need Spark.",
        hint="Leave the engine out.",
    )


def without_form(name: QueryId, made: Cut) -> Refused | None:
    """Refuse a subgraph for Spark that cannot be expressed in Spark."""
    for each in made.subgraphs:
        problem = formless(each.plan) if isinstance(each.engine, Spark) else ""
        if problem:
            error = f'query "{name}" cannot run: Spark has no form for it'
            hint = "Without windows and joins it would run in the daemons." if is_stateful(each.plan) else ""
            return Refused(code="invalid", error=error, detail=f"{problem}.", hint=hint)
    return None


def no_placement(name: QueryId, found: NoEngine | Infeasible, trouble: str = "") -> Refused:
    """No peer can run the query, or none near enough; `trouble` is why our own engine cannot be started."""
    if isinstance(found, Infeasible):
        error = f'query "{name}" cannot have its results within {found.bound_ms:g} ms'
        detail = f"Peer {found.source.short}, which publishes for it, is {found.away_ms:.0f} ms away."
        hint = "peer rtt shows distances; try a longer --within."
        return Refused(code="unavailable", error=error, detail=detail, hint=hint)
    if found.here:
        error = f'query "{name}" cannot run on Spark: {trouble or "this peer runs without it"}'
        return Refused(code="unavailable", error=error, hint="Without --engine spark it needs none.")
    error = f'query "{name}" cannot run: it needs Spark, and no peer here has it'
    detail = f"Of {found.peers} peers that this one can see, none runs with Spark."
    if found.unshared:
        left_out = "1 more was" if found.unshared == 1 else f"{found.unshared} more were"
        detail += f' {left_out} left out for another version of execution: "peer doctor" says which.'
    if found.closed:
        detail += f" {found.closed} {'hosts' if found.closed == 1 else 'host'} nothing for others (--host-nothing)."
    detail += f" This one cannot start it: {trouble}." if trouble else ""
    hint = 'Such a query needs a peer that can start Spark: "peer doctor" there says what it lacks.'
    return Refused(code="unavailable", error=error, detail=detail, hint=hint)


def not_running(name: QueryId, late: Sequence[PeerId], within_ms: Millis) -> Refused:
    """Hosts did not say in time that they run it."""
    error = f'query "{name}" was not running within {within_ms // 1000} s'
    return Refused(
        code="unavailable", error=error, detail=f"No word from peer {', '.join(each.short for each in late)}."
    )


def cannot_run(name: QueryId, tried: Mapping[PeerId, str], *, is_indexed: bool = False) -> Refused:
    """No host runs its part; `tried` are those that were asked, with their reasons."""
    host, reason = next(iter(tried.items()))
    error = f'query "{name}" cannot run: {reason}'
    others = "".join(f" Peer {each.short}: {why}." for each, why in tried.items() if each != host)
    hint = "Try again later, or let it run without the index: --engine spark." if is_indexed else ""
    return Refused(code="unavailable", error=error, detail=f"Said by peer {host.short}.{others}", hint=hint)


def no_room(name: QueryId, found: Sequence[Short]) -> Refused:
    """No placement that was tried has room everywhere: what was needed, what was free, what would help."""
    overloads = [each.lack.resource for each in found if each.lack.resource != HOSTING]
    error = f'query "{name}" refused: ' + (
        "every plan would overload something" if overloads else "no other peer hosts a part of it"
    )
    detail = " ".join(f"{each.part} at peer {each.host.short}: {_lack_in_words(each.lack)}." for each in found)
    return Refused(code="full", error=error, detail=detail, hint=f"{_relief(overloads)} {WHO_HAS_ROOM}")


WHO_HAS_ROOM: Final = '"peer explain --why" names the peers that have no room.'


def _relief(overloads: Sequence[str]) -> str:
    if not overloads:
        return "Submit it at another peer."
    if all(each in ("cpu", "core") for each in overloads):
        return "A narrower selection, or another peer to subscribe at, needs less."
    return "A narrower selection, fewer columns or a window aggregate needs less."


def _lack_in_words(lack: Lack) -> str:
    """What a host lacks.

    >>> _lack_in_words(Lack("uplink", 14_000.0, 4_750.0, 125_000.0))
    'uplink has 38 of 1,000 kbit/s left, it needs 112'
    >>> _lack_in_words(Lack("cpu", 80_000.0, 40_000.0, 200_000.0, 2e6))
    'CPU has 2 % of 10 % left, it needs 4 %'
    """
    if lack.resource == HOSTING:
        return "it hosts nothing for others (--host-nothing)"
    amounts = (lack.free, lack.limit, lack.needed)
    if lack.whole:
        free, limit, needed = (_digits(100 * each / lack.whole) for each in amounts)
        what = "CPU" if lack.resource == "cpu" else "CPU of its daemon, which is one thread,"
        return f"{what} has {free} % of {limit} % left, it needs {needed} %"
    free, limit, needed = (_digits(each * 8 / 1000) for each in amounts)
    return f"{lack.resource} has {free} of {limit} kbit/s left, it needs {needed}"


def _digits(amount: float) -> str:
    """Two digits, or all before the point."""
    if 0 < amount < 0.01:
        return "less than 0.01"
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"
