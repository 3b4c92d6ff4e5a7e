"""Which protocol families this peer shares with each of the others, and what is said about those it does not share.

Every signed record and the first frame of every link state the versions of their sender (protocols/versions.py). A peer
that shares no version of a required family is refused: it gets neither a place in the table nor a link, and both sides
log one line that says why. A peer that does not share another family is a member all the same; nobody sends it messages
of that family.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from overlay.identity import Address, PeerRecord, format_address
from protocols.ids import PeerId
from protocols.versions import VERSIONS, Difference, Versions, differences, in_words, refusal

PEERS_MAX: Final = 4096
MEANS: Final = {
    "delivery": "neither reads streams of the other",
    "execution": "neither runs parts of the other's queries",
    "join_index": "neither joins for the other",
    "placement": "neither places operators for the other",
    "rights": "the older one allows everything",
}
REFUSED_LIFE_S: Final = 600.0  # A refused peer that has been silent for so long is no longer listed.

log = structlog.get_logger("overlay")


@dataclass(slots=True)
class Apart:
    """A peer that does not share everything with us, as it has described itself."""

    address: Address
    release: str
    versions: Versions
    unshared: Mapping[str, Difference]  # By family.
    refusal: str  # Why there is no link to it; empty where there may be one.
    since_at: float  # Unix seconds,
    heard_at: float  # likewise.
    incarnation: int = 0  # Of its record; 0 where only a link told us.


class Understanding:
    """What one peer knows of the versions of the others; those that share everything are not kept."""

    def __init__(self, versions: Versions = VERSIONS, release: str = "0") -> None:
        self.versions = versions
        self.release = release
        self.apart: OrderedDict[PeerId, Apart] = OrderedDict()  # Oldest first.

    def learn(
        self, peer: PeerId, address: Address, release: str, versions: Versions, incarnation: int = 0
    ) -> Apart | None:
        """Take in what a peer says of itself; None if it shares everything. What is new is logged."""
        if versions == self.versions and peer not in self.apart:
            return None
        known = self.apart.get(peer)
        now_s = time.time()
        if known is not None and known.versions == versions:
            known.address, known.heard_at = address, now_s
            known.incarnation = max(known.incarnation, incarnation)
            return known
        found = differences(self.versions, versions)
        if not found:
            if self.apart.pop(peer, None) is not None:
                log.info("peer shares every protocol now", peer=peer.short, release=release)
            return None
        refused = in_words(refusal(found))
        unshared = {each.family: each for each in found}
        apart = Apart(address, release, versions, unshared, refused, now_s, now_s, incarnation)
        self.apart.pop(peer, None)
        self.apart[peer] = apart
        if len(self.apart) > PEERS_MAX:
            self.apart.popitem(last=False)
        log.warning(
            "peer refused: no common version" if refused else "peer does not share every protocol",
            peer=peer.short,
            address=format_address(address),
            release=release or "unknown",
            not_shared=in_words(found),
            means=meaning(found),
            hint=advice(found),
        )
        return apart

    def admits(self, record: PeerRecord) -> bool:
        """Whether a peer may be a member for us; learns from its record."""
        apart = self.learn(record.peer_id, record.address, record.version, record.versions, record.incarnation)
        return apart is None or not apart.refusal

    def refuses(self, peer: PeerId, incarnation: int) -> bool:
        """Whether this word of a peer is no newer than the record it was refused for."""
        apart = self.apart.get(peer)
        return apart is not None and bool(apart.refusal) and incarnation <= apart.incarnation

    def shares(self, peer: PeerId, family: str) -> bool:
        """Whether messages of a family may be sent to a peer, as far as we know."""
        apart = self.apart.get(peer)
        return apart is None or family not in apart.unshared

    def refused(self) -> list[tuple[PeerId, Apart]]:
        """The peers that were refused lately."""
        oldest_s = time.time() - REFUSED_LIFE_S
        return [(peer, apart) for peer, apart in self.apart.items() if apart.refusal and apart.heard_at > oldest_s]

    def trouble(self) -> str:
        """Why peers that answered were refused, in one sentence; empty if none was."""
        return "; ".join(
            f"peer {peer.short} at {format_address(apart.address)} speaks other versions: {apart.refusal}, "
            f"{advice(tuple(apart.unshared.values()))}"
            for peer, apart in self.refused()
        )


def meaning(found: tuple[Difference, ...]) -> str:
    """What two peers do without."""
    return "they do not link" if refusal(found) else ", ".join(MEANS[each.family] for each in found)


def advice(found: tuple[Difference, ...]) -> str:
    """Which of two peers to upgrade."""
    if not found:
        return ""
    return "upgrade this peer" if any(each.is_older_here for each in found) else "upgrade that peer"
