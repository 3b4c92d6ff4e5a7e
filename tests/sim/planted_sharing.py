"""Bugs planted into what queries share: a stream that comes to a host once, and the taps on it."""

from __future__ import annotations

from unittest.mock import patch

from protocols.delivery.messages import Batch, Origin
from protocols.sharing import shared as module_of_streams
from protocols.sharing.needs import together
from protocols.sharing.shared import Reading, SharedStream
from protocols.sharing.tap import Due, Tap
from tests.sim.bugs import Patch, bug


def _joining(place_of: object) -> Patch:
    """Taps join at another place than their own."""
    join = SharedStream.join

    def elsewhere(stream: SharedStream, tap: Tap, origin: Origin) -> list[Due]:
        place = place_of(stream, tap, origin)  # type: ignore[operator]
        if place is not None:
            tap.places[origin] = place
        return join(stream, tap, origin)

    return patch.object(SharedStream, "join", elsewhere)


@bug("sharing", seeds=20)
def taps_without_a_prelude() -> Patch:
    """A tap joins at once, though what it needs lies further back than the memory reaches."""
    return patch.object(SharedStream, "reaches", lambda stream, tap, origin: True)


@bug("sharing", seeds=20)
def no_insertion_check() -> Patch:
    """A tap gets all that is in memory, also what was published before its query."""

    def oldest(stream: SharedStream, tap: Tap, origin: Origin) -> int | None:
        return stream.origins[origin].kept_from if origin not in tap.places else None

    return _joining(oldest)


@bug("sharing", seeds=40)
def a_boundary_off_by_one() -> Patch:
    """A tap that changes over begins one tuple behind its place."""

    def one_more(stream: SharedStream, tap: Tap, origin: Origin) -> int | None:
        return tap.places[origin] + 1 if origin in tap.places else None

    return _joining(one_more)


@bug("sharing", seeds=40)
def joined_too_soon() -> Patch:
    """A tap that is ahead of the shared stream takes what that reads next, though it has had it."""

    def here(stream: SharedStream, tap: Tap, origin: Origin) -> int | None:
        return min(tap.places[origin], stream.origins[origin].read) if origin in tap.places else None

    return _joining(here)


@bug("sharing", seeds=40)
def a_slow_reader_stalls_others() -> Patch:
    """A tap whose engine never answers stays, and all others wait for it."""
    return patch.object(SharedStream, "laggards", lambda stream: [])


@bug("sharing", seeds=40)
def a_tap_that_leaves_goes_on_where_others_are() -> Patch:
    """Who reads alone again begins where the shared stream is, not at its own place."""
    leave = SharedStream.leave

    def hurry(stream: SharedStream, tap: Tap) -> None:
        leave(stream, tap)
        for origin, reading in stream.origins.items():
            tap.places[origin] = tap.acked[origin] = reading.read + 1

    return patch.object(SharedStream, "leave", hurry)


# What a host needs of a stream, and what publishers leave out of it.


@bug("sharing", seeds=60)
def needs_narrowed_too_early() -> Patch:
    """The needs of a stream shrink to those of its newest reader."""
    return patch.object(module_of_streams, "widened", lambda needs, need: together(needs.version + 1, [need]))


@bug("sharing", seeds=60)
def a_reader_joins_before_its_needs_are_heeded() -> Patch:
    """A tap joins though publishers still leave out what it needs."""
    return patch.object(SharedStream, "is_heeded", lambda stream, tap, origin: True)


@bug("sharing", seeds=60)
def the_version_of_a_batch_is_ignored() -> Patch:
    """A tap takes from memory what was sieved before its needs were known."""
    return patch.object(Reading, "usable", lambda reading, tap: (reading.kept_from, reading.forgotten))


@bug("sharing", seeds=60)
def positions_of_left_out_tuples_are_forgotten() -> Patch:
    """Who reads a sieved batch goes on behind as many tuples as it has rows."""

    def end(batch: Batch) -> int:
        count = batch.count if batch.sieved is None else max(1, len(batch.sieved.skipped))
        return batch.first + count

    return patch.object(Batch, "next", property(end))
