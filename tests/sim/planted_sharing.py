"""Bugs planted into what queries share: a stream that comes to a host once, and the taps on it."""

from __future__ import annotations

from unittest.mock import patch

from protocols.delivery import sieving as module_of_sieving
from protocols.delivery.cursor import Cursor
from protocols.delivery.messages import Origin
from protocols.delivery.relay_reader import RelayReader
from protocols.delivery.relaying import Relaying
from protocols.delivery.search import Server
from protocols.effects import Effect
from protocols.ids import Millis, PeerId
from protocols.sharing import relay as module_of_relays
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
    """Of several batches without a tuple that a reader needs, only the last one is told."""
    return patch.object(module_of_sieving, "_joined", lambda span, batch: batch)


# Reading from another host.


@bug("relays", seeds=40)
def hosts_read_from_each_other() -> Patch:
    """A relay serves whoever asks, and readers ask whomever they find: nobody reads from the publisher any more."""
    found = Relaying.found

    def forget_depth(relaying: Relaying, *args: object) -> bool:
        depth, relaying.depth = relaying.depth, 0
        is_due = found(relaying, *args)  # type: ignore[arg-type]
        relaying.depth = depth or relaying.depth
        return is_due

    def choose(relaying: Relaying, publisher: Server, relays: list[Server], now_at: PeerId | None) -> PeerId | None:
        return now_at or next((each.peer for each in relays), None)

    choices = Relaying.choices

    def without_depth(relaying: Relaying, *args: object) -> object:
        depth, relaying.depth = relaying.depth, 0
        found = choices(relaying, *args)  # type: ignore[arg-type]
        relaying.depth = depth or relaying.depth
        return found

    class Everybody:
        def __init__(self) -> None:
            self._patches = [
                patch.object(Relaying, "found", forget_depth),
                patch.object(Relaying, "choices", without_depth),
                patch.object(Relaying, "_choice", choose),
                patch.object(Relaying, "is_late", lambda *_: False),
                patch.object(module_of_relays, "serves_depth", lambda own, readers: True),
            ]

        def __enter__(self) -> None:
            for each in self._patches:
                each.start()

        def __exit__(self, *_: object) -> None:
            for each in self._patches:
                each.stop()

    return Everybody()


@bug("relays", seeds=40)
def a_reader_goes_back_to_where_the_relay_is() -> Patch:
    """Who leaves a relay forgets its own place, and has the publisher begin at what it has now."""
    back = RelayReader.back

    def hurry(reader: RelayReader, cursor: Cursor, origin: Origin, now: Millis) -> list[Effect]:
        if cursor.relaying is not None and origin in cursor.relaying.at:
            cursor.seen[origin] = cursor.taken[origin] = cursor.taken[origin] + 2
        return back(reader, cursor, origin, now)

    return patch.object(RelayReader, "back", hurry)
