"""The bounds of one peer: every queue, window and wait has a name here, and a scenario may shrink it."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.ids import Millis


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer allows itself and others."""

    publish_bytes_max: int = 1 << 20  # Rows in one publish,
    publish_rows_max: int = 50_000  # and how many: tiny ones take as long as others.
    unsafe_bytes_max: int = 8 << 20  # Accepted from clients and not yet safe on disk, over all streams.
    waiting_publishes_max: int = 1000  # Publishes whose stream is still being looked up.
    recent_bytes: int = 4 << 20  # Kept in memory for each stream, for readers that keep up.
    memory_stream_bytes_max: int = 64 << 20  # Size of a stream that is not on disk.
    message_bytes: int = 256 << 10  # Tuples in one message.
    credit_bytes: int = 1 << 20  # In flight to one subscription from one publisher.
    client_bytes_max: int = 4 << 20  # Handed to a client and not yet seen by it.
    shared_bytes: int = 4 << 20  # Kept in memory of each stream that queries here share, for those that come later.
    relays_every_ms: Millis = 10_000  # How often a better host to read a stream from is looked for.
    relays_for_all: bool = False  # Read from another host wherever that is possible, not only where it saves something.
    resend_after_ms: Millis = 3000
    poll_ms: Millis = 2000  # How often a subscriber looks up the publishers.
    tick_ms: Millis = 1000
    heartbeat_ms: Millis = 500  # How often a silent publisher says so to readers that go by its time.
    greet_ms: Millis = 1000  # How long a new publisher waits for such readers before its first tuple,
    greet_least_ms: Millis = 500  # and how long in any case if tuples have an event time, for others who begin with it.
    advertise_every_ms: Millis = 10_000  # How often live statistics are advertised,
    advertise_soonest_ms: Millis = 2000  # or sooner, if they have changed by much.
    advertisement_life_ms: Millis = 24 * 3600 * 1000
    # Life of the advertisement of a subscription that is not kept; renewed while it lasts.
    passing_life_ms: Millis = 60_000
    # How late a tuple may be for a window of a join, at first; a later one makes the query read again.
    late_join_ms: Millis = 30_000
    subscriptions_max: int = 10_000
    dead_letters_max: int = 1000  # How many are kept for one subscription; all are counted.
    dead_letter_bytes_max: int = 4 << 20
    streams_max: int = 10_000
    # How often a peer compares its copy of the rights with another's. 0: nobody closes this network, as in simulations.
    rights_every_ms: Millis = 0

    @property
    def shared_lag_bytes(self) -> int:
        """How far a query may be behind others that read a stream with it. Then it reads alone, before its publisher's
        credit is used up and all would wait for it.
        """
        return self.credit_bytes // 2
