"""The network as one peer sees it when it places operators: the live peers it knows, and their distances."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from overlay.members import Member
from overlay.overlay import Overlay
from protocols.demand import ResourceName
from protocols.ids import PeerId
from protocols.sight import NetworkSeen
from protocols.versions import SIEVES, WINDOWS_INLINE

CANDIDATES_MAX: Final = 64  # The nearest; a look at that many takes a few milliseconds.
UNKNOWN_MS: Final = 250.0  # To or from a peer without a known coordinate: far away, but not excluded.


def look_around(overlay: Overlay, placement: str, wanted: Iterable[PeerId]) -> NetworkSeen:
    """This peer, the wanted live ones and the nearest others, with the delays between them in ms.

    A peer that does not share execution runs no part of a query of ours, so it is left out.
    """
    known, shares = overlay.members(), overlay.understanding.shares
    unshared = [member.peer_id for member in known if not shares(member.peer_id, "execution")]
    alive = [member for member in known if member.status == "alive" and member.peer_id not in unshared]
    no_more = ("dead", "left", "incompatible", "expelled")
    gone = [member.peer_id for member in known if member.status in no_more] + unshared
    alive.sort(key=lambda member: (member.rtt_ms is None, member.rtt_ms, member.peer_id))
    near = (member.peer_id for member in alive[:CANDIDATES_MAX])
    peers = tuple(dict.fromkeys((overlay.peer_id, *(peer for peer in wanted if peer not in gone), *near)))
    rows = [[0.0] * len(peers) for _ in peers]
    for a, one in enumerate(peers):
        for b, other in enumerate(peers[:a]):
            round_trip_ms = overlay.distance(one, other).ms
            rows[a][b] = rows[b][a] = UNKNOWN_MS if round_trip_ms is None else round_trip_ms / 2
    engines = [member.peer_id for member in alive if member.has_engine]
    able = tuple(peer for peer in peers if peer in engines)
    older = tuple(member.peer_id for member in alive if _is_older(member) and member.peer_id in peers)
    sieving = [overlay.peer_id, *(member.peer_id for member in alive if _sieves(member))]
    closed = tuple(member.peer_id for member in alive if not member.room.hosts_others and member.peer_id in peers)
    full = tuple((member.peer_id, lacks) for member in alive if member.peer_id in peers and (lacks := _lacks(member)))
    return NetworkSeen(
        placement, peers, tuple(map(tuple, rows)), able, older, tuple(unshared), tuple(sieving), closed, full
    )


def _lacks(member: Member) -> ResourceName | None:
    """What a peer says it has no room in."""
    room = member.room
    free: tuple[tuple[ResourceName, int], ...] = (
        ("cpu", room.cpu),
        ("uplink", room.uplink),
        ("downlink", room.downlink),
    )
    return next((name for name, tenths in free if tenths == 0), None)


def _is_older(member: Member) -> bool:
    """Whether its release runs no windows in the daemon."""
    return member.versions["execution"].newest < WINDOWS_INLINE


def _sieves(member: Member) -> bool:
    """Whether it leaves out of what it publishes what a reader does not need."""
    span = member.versions.get("delivery")
    return span is not None and span.newest >= SIEVES
