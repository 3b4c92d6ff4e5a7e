"""What a client asks about the streams that its peer reads for several queries."""

from __future__ import annotations

import msgspec

from protocols.ids import Count, PeerId, StreamName
from protocols.messages import Answer, Command


class ListShared(Command, frozen=True, kw_only=True, tag="LIST_SHARED"):
    """Which streams does this peer read for queries, and for how many together?"""


class SharedShown(msgspec.Struct, frozen=True, array_like=True):
    """One stream that a peer reads for queries."""

    stream: StreamName
    taps: Count  # Inputs of subgraphs that get it from the one reading,
    alone: Count  # and those that read alone: what they need lies further back, or they are slower than the others.
    publishers: Count
    bytes_read: Count
    bytes_saved: Count  # What the taps would have read besides, each for itself.
    conjunctions: Count | None = None  # How many selections the publishers sieve it by; None: all tuples come.
    columns: Count | None = None  # How many columns come of each tuple; None: all.
    windows: Count = 0  # Queries whose windows the daemon puts together from slices,
    slices: Count = 0  # and how many sets of slices that takes.
    relays: tuple[tuple[PeerId, Count], ...] = ()  # Other hosts that it comes from, and of how many publishers.
    guests: Count = 0  # Other peers that read it from here.
    depth: Count = 0  # How many hosts a tuple passes to come here, this one included; 0: not known yet.


class SharedListed(Answer, frozen=True, kw_only=True, tag="SHARED_LISTED"):
    """The answer to LIST_SHARED."""

    streams: tuple[SharedShown, ...]
