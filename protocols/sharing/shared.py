"""A stream that comes to a host once, for all its readers there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.catalogue.streams import Reads
from protocols.clock import Stamp
from protocols.delivery.feed import BATCH_OVERHEAD_BYTES
from protocols.delivery.messages import Batch, Missed, Origin, Position, Publishers, Silence
from protocols.delivery.needs import Needs
from protocols.ids import COUNT_MAX, Millis, PeerId, RequestId, StreamName, SubscriptionId
from protocols.limits import Limits
from protocols.part import Part, parts_of
from protocols.sharing.needs import Need, covers, together, widened
from protocols.sharing.tap import Broken, Due, Guest, NoRows, Passed, Some, Tap
from protocols.sieve import Sieve
from queries.plan import Source
from queries.schema import MISFITS

PEAKS_MAX: Final = 256
UNSIEVED: Final = COUNT_MAX  # No needs have so high a version.
VERSIONS_MAX: Final = 64  # Of the needs, so many are known; what is sieved by earlier ones is of no use to new taps.
NARROW_MS: Final = 10_000  # Needs become narrower so long after a tap has gone: another may come that needs the same.


@dataclass(slots=True, eq=False)
class Reading:
    """What has been read of one origin."""

    origin: Origin
    kept_from: int  # Everything from here to `read` is in memory.
    read: int
    settled: int  # Acknowledged upstream: all taps have processed everything below.
    stamp: Stamp = 0  # Of the last tuple.
    forgotten: Stamp = -1  # The latest stamp among tuples that were read and are no longer in memory.
    silence: Silence | None = None  # What its publisher has said behind its last tuple.
    heeded: int = 0  # Everything to come has what this version of the needs names.
    recent: deque[Batch] = field(default_factory=deque)
    waiting: dict[Tap, None] = field(default_factory=dict)  # Taps whose place, or insertion, is not reached yet.
    joined: dict[Tap, None] = field(default_factory=dict)  # Taps that get what is read.
    owing: dict[Tap, None] = field(default_factory=dict)  # Taps that have not processed all that they got.
    held: dict[Tap, int] = field(default_factory=dict)  # Taps that left, until they are served alone; their places.
    unsettled_bytes: int = 0
    # The batches in memory by the version of the needs that they were sieved by: where those of one version end, and
    # the stamp there.
    _sieved: deque[tuple[int, int, Stamp]] = field(default_factory=deque)
    _unsettled: deque[tuple[int, int]] = field(default_factory=deque)  # Where each batch ends, and its size.

    def note(self, batch: Batch) -> None:
        """A batch has been read."""
        size = len(batch.rows) + BATCH_OVERHEAD_BYTES
        self.recent.append(batch)
        self._unsettled.append((batch.next, size))
        self.unsettled_bytes += size
        self.read, self.stamp, self.silence = batch.next, batch.published_at, None
        by = batch.sieved.by if batch.sieved is not None else UNSIEVED
        if self._sieved and self._sieved[-1][0] == by:
            self._sieved.pop()
        self._sieved.append((by, batch.next, batch.published_at))
        if batch.sieved is not None:
            self.heeded = max(self.heeded, by)

    def skip(self, upto: int) -> None:
        """What lies before is kept nowhere any more."""
        self.recent.clear()
        self._sieved.clear()
        self._unsettled.append((upto, 0))
        self.kept_from = self.read = upto
        self.forgotten = max(self.forgotten, self.stamp)

    def forget(self) -> int:
        """Drop the oldest batch from memory; returns its size."""
        batch = self.recent.popleft()
        self.kept_from, self.forgotten = batch.next, batch.published_at
        while self._sieved and self._sieved[0][1] <= self.kept_from:
            self._sieved.popleft()
        return len(batch.rows)

    def usable(self, tap: Tap | Guest) -> tuple[int, Stamp]:
        """From where on the memory has all that a reader needs, and the stamp of the last tuple before."""
        for by, upto, stamp in reversed(self._sieved):
            if by < tap.needs_from:
                return upto, stamp
        return self.kept_from, self.forgotten

    def behind(self, place: int) -> int:
        """How many bytes in memory lie behind a place."""
        return sum(len(batch.rows) for batch in self.recent if batch.next > place)

    def settle(self) -> bool:
        """Whether more can be acknowledged upstream than was."""
        places = [*(tap.acked[self.origin] for tap in self.owing), *self.held.values()]
        upto = min([self.read, *places])
        if upto <= self.settled:
            return False
        self.settled = upto
        while self._unsettled and self._unsettled[0][0] <= upto:
            self.unsettled_bytes -= self._unsettled.popleft()[1]
        return True

    def laggards(self, bytes_max: int) -> list[Tap]:
        """Taps that hold back more than so many bytes."""
        size, last = 0, self.settled  # The last place of those that hold back too much.
        for upto, more in reversed(self._unsettled):
            if size > bytes_max:
                last = upto
                break
            size += more
        if size <= bytes_max:
            return []
        return [tap for tap in self.owing if tap.acked[self.origin] <= last]


def _is_span(batch: Batch) -> bool:
    """Whether a batch stands for several that were published, of which nothing was sent."""
    return batch.sieved is not None and not batch.sieved.skipped


@dataclass(slots=True)
class _View:
    """Taps that see the rows of a stream the same way: rows are decoded once for all of them."""

    source: Source
    whole: dict[Tap, None] = field(default_factory=dict)  # Those that want to see all rows.
    sieve: Sieve[Tap] = field(init=False)
    taps: int = 0
    unfit: Counter[Origin] = field(default_factory=Counter)  # Rows that nobody can read.
    # For each origin: where parts ended, and their latest times, without those that a later part exceeds.
    _peaks: dict[Origin, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sieve = Sieve(self.source)

    def add(self, tap: Tap) -> None:
        self.taps += 1
        if tap.parts is None:
            self.whole[tap] = None
        else:
            self.sieve.add(tap, tap.parts)

    def remove(self, tap: Tap) -> None:
        self.taps -= 1
        if tap.parts is None:
            del self.whole[tap]
        else:
            self.sieve.remove(tap, tap.parts)

    def parts(self, batch: Batch) -> Iterator[Part]:
        return parts_of(self.source.schema, self.source.event_time, batch)

    def note(self, part: Part) -> None:
        peaks = self._peaks.setdefault(part.origin, [])
        while peaks and peaks[-1][1] <= part.latest_us:
            peaks.pop()
        peaks.append((part.next, part.latest_us))
        self.unfit[part.origin] += len(part.rows) - len(part.fit) + len(part.unfit)
        del peaks[:-PEAKS_MAX]

    def newly_unfit(self, tap: Tap, origin: Origin) -> int:
        """How many rows nobody can read, since a tap was last told of such."""
        count = self.unfit[origin] - tap.unfit.get(origin, self.unfit[origin])
        tap.unfit[origin] = self.unfit[origin]
        return count

    def latest_us(self, origin: Origin, place: int) -> int:
        """The latest time among the rows behind a place."""
        return next(latest_us for upto, latest_us in self._peaks[origin] if upto > place)


@dataclass(slots=True, eq=False)
class SharedStream:
    """One subscription of a host, and the taps on it.

    Invariant: what is acknowledged upstream, every tap that is served from here has processed
    """

    stream: StreamName
    subscription: SubscriptionId
    since: Stamp  # It reads everything from here on.
    request: RequestId
    reads: Reads
    heartbeats: bool
    limits: Limits
    needs: Needs
    is_open: bool = False
    publishers: Publishers | None = None
    depth: int = 0  # How far it is from its publishers; 0: not known yet.
    relays: tuple[tuple[Origin, PeerId], ...] = ()  # Origins that come from another host.
    guests: dict[SubscriptionId, Guest] = field(default_factory=dict)
    taps: dict[Tap, None] = field(default_factory=dict)
    origins: dict[Origin, Reading] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_saved: int = 0  # What its taps would have read, each for itself, besides.
    _views: dict[Source, _View] = field(default_factory=dict)
    _order: deque[Reading] = field(default_factory=deque)  # Whose batches are in memory, the oldest first.
    _recent_bytes: int = 0
    _unseen: deque[tuple[Reading, int, int]] = field(default_factory=deque)  # Batches as they came, and their bytes.
    _unseen_bytes: int = 0
    _moved: dict[Reading, None] = field(default_factory=dict)  # Perhaps there is more to acknowledge.
    _versions: dict[int, Needs] = field(default_factory=dict)  # Of the needs, those by which there may be batches.
    _is_loose: bool = False  # A tap has gone: perhaps the others need less.
    _narrow_at: Millis | None = None  # When to look whether they do.
    _unmet: dict[Tap, None] = field(default_factory=dict)  # Taps that wait for what is sieved by newer needs.

    def __post_init__(self) -> None:
        self._versions[self.needs.version] = self.needs

    # Taps come and go.

    def add(self, tap: Tap) -> bool:
        """One more tap; says whether it needs more than those before."""
        is_wider = self.need_also(tap, [tap.need])
        self._add(tap)
        return is_wider

    def need_also(self, reader: Tap | Guest, needed: Sequence[Need]) -> bool:
        """Need what one more reader does; says whether that is more than before."""
        needs = self.needs
        for need in needed:
            if not covers(needs, need):
                needs = widened(needs, need)
        is_wider = needs is not self.needs
        if is_wider:
            self._need(msgspec.structs.replace(needs, version=self.needs.version + 1))
        reader.needs_from = self.needs.version
        for version in sorted(self._versions, reverse=True):
            if not all(covers(self._versions[version], need) for need in needed):
                break
            reader.needs_from = version
        return is_wider

    def _need(self, needs: Needs) -> None:
        self.needs = self._versions[needs.version] = needs
        for version in list(self._versions)[:-VERSIONS_MAX]:
            del self._versions[version]

    def narrow(self, now: Millis) -> bool:
        """Need no more than the taps that are left, once some have been gone for a while; says whether that is less."""
        if self._is_loose:
            self._is_loose, self._narrow_at = False, now + NARROW_MS
        if self._narrow_at is None or now < self._narrow_at or not self.taps:
            return False
        self._narrow_at = None
        of_guests = [need for guest in self.guests.values() for need in guest.needs]
        needs = together(self.needs.version + 1, [*(tap.need for tap in self.taps), *of_guests])
        if needs.is_like(self.needs):
            return False
        self._need(needs)
        return True

    def dismiss(self, subscription: SubscriptionId) -> None:
        """A guest is gone."""
        self._is_loose = self.guests.pop(subscription, None) is not None or self._is_loose

    def _add(self, tap: Tap) -> None:
        self.taps[tap] = None
        self._views.setdefault(tap.source, _View(tap.source)).add(tap)

    def remove(self, tap: Tap) -> None:
        """A tap is over."""
        self._is_loose = True
        self._unmet.pop(tap, None)
        for reading in self.origins.values():
            for group in (reading.waiting, reading.joined, reading.owing):
                group.pop(tap, None)
            reading.held.pop(tap, None)
            self._moved[reading] = None
        del self.taps[tap]
        view = self._views[tap.source]
        view.remove(tap)
        if not view.taps:
            del self._views[tap.source]

    def wanted(self) -> tuple[Reads, bool]:
        """What its taps read together, and whether some of them go by the time of publishers."""
        every = [tap.reads for tap in self.taps]
        columns = None
        if all(each.columns is not None for each in every):
            columns = tuple(dict.fromkeys(name for each in every for name in each.columns or ()))
        version = min((each.version for each in every), default=0)
        reader = every[0].reader if every else ""
        others = len({each.reader: None for each in every}) - 1
        reader += f" and {others} more" if others > 0 else ""
        is_timed = any(tap.is_timed for tap in self.taps) or any(guest.is_timed for guest in self.guests.values())
        return Reads(columns=columns, version=version, reader=reader), is_timed

    def reaches(self, tap: Tap, origin: Origin) -> bool:
        """Whether it has, or will read, everything of an origin from the place of a tap on."""
        place = tap.places.get(origin)
        usable, before = self.origins[origin].usable(tap)
        if place is not None:
            return place >= usable
        return usable == 0 or (tap.since >= self.since and tap.since > before)

    def is_heeded(self, tap: Tap | Guest, origin: Origin) -> bool:
        """Whether all that is to come of an origin has what a reader needs."""
        return self.origins[origin].heeded >= tap.needs_from

    def await_needs(self, tap: Tap, origin: Origin) -> None:
        """All in memory is of use to a tap; what comes next may not be. Nothing of it is let go until that is known."""
        reading, place = self.origins[origin], tap.places.get(origin)
        self._unmet[tap] = None
        if place is None:
            place = next((each.first for each in reading.recent if tap.concerns(each)), reading.read)
        reading.held.setdefault(tap, min(place, reading.read))

    def unmet(self, origin: Origin) -> list[Tap]:
        """Taps that wait at an origin for what is sieved by newer needs."""
        return [tap for tap in self._unmet if not tap.is_shared(origin)]

    def heed(self, origin: Origin, version: int) -> None:
        """Everything to come of an origin has what this version of the needs names."""
        if origin in self.origins:
            self.origins[origin].heeded = max(self.origins[origin].heeded, version)

    def is_near(self, tap: Tap, origin: Origin) -> bool:
        """Whether little lies between a tap that reads alone and what is read here."""
        place = tap.places.get(origin)
        return place is None or self.origins[origin].behind(place) <= self.limits.shared_lag_bytes // 2

    def join(self, tap: Tap, origin: Origin) -> list[Due]:
        """From its place on, a tap gets what is read here; first what is in memory."""
        reading, place = self.origins[origin], tap.places.get(origin)
        assert not tap.is_shared(origin)
        if place is None or place > reading.read:
            tap.waits[origin] = place
            reading.waiting[tap] = None
        else:
            tap.told[origin] = place
            tap.unfit[origin] = self._views[tap.source].unfit[origin]
            reading.joined[tap] = None
        if reading.held.pop(tap, None) is not None:
            self._moved[reading] = None
        if place is not None and tap.acked.get(origin, place) < place:
            tap.debts[origin] = place  # Processed or not, it got this by a subscription of its own.
            reading.owing[tap] = None
        due: list[Due] = []
        for batch in [each for each in reading.recent if tap.concerns(each)]:
            due += self._offer(reading, tap, batch)
        if all(map(tap.is_shared, self.origins)):
            self._unmet.pop(tap, None)
        return due

    def _offer(self, reading: Reading, tap: Tap, batch: Batch) -> list[Due]:
        """Give one tap a batch, as far as it is due."""
        due: list[Due] = []
        try:
            for part in self._views[tap.source].parts(batch):
                due += self._give(reading, tap, part)
        except MISFITS as error:
            due.append(Due(tap, Broken(str(error))))
        return due

    def _give(self, reading: Reading, tap: Tap, part: Part) -> list[Due]:
        """Give one tap all rows of a part that lie behind its place."""
        origin = reading.origin
        if origin in tap.waits:
            place = tap.waits[origin]
            if part.published_at < tap.since if place is None else part.next <= place:
                return []
            if place is None:  # A span may begin before the insertion, but none of its tuples is of use.
                self._admit(reading, tap, part.first if part.rows else part.next)
            else:
                self._admit(reading, tap, max(place, part.first))
        if tap.told[origin] >= part.next:
            return []
        part = part.since(tap.told[origin], tap.source.schema)
        self._owe(reading, tap, part)
        return [Due(tap, part)]

    def _admit(self, reading: Reading, tap: Tap, place: int) -> None:
        """What a tap has waited for is reached: it gets what is read from this place on."""
        del tap.waits[reading.origin], reading.waiting[tap]
        tap.unfit[reading.origin] = self._views[tap.source].unfit[reading.origin]
        reading.joined[tap] = None
        tap.told[reading.origin] = place

    def _owe(self, reading: Reading, tap: Tap, part: Part) -> None:
        if tap not in reading.owing:
            reading.owing[tap] = None
            tap.acked[reading.origin] = part.first
        tap.told[reading.origin] = part.next

    def leave(self, tap: Tap) -> None:
        """A tap is to read alone, from its place on. That place is held until it is served there."""
        self._unmet.pop(tap, None)
        for origin, reading in self.origins.items():
            if origin in tap.told:
                place = tap.places[origin] = tap.told.pop(origin)
                if tap not in reading.owing:
                    tap.acked[origin] = place
                reading.held[tap] = tap.acked[origin]
            tap.waits.pop(origin, None)
            for group in (reading.waiting, reading.joined, reading.owing):
                group.pop(tap, None)
        tap.debts.clear()

    def release(self, tap: Tap, origin: Origin) -> None:
        """A tap that left is served alone."""
        self._unmet.pop(tap, None)
        reading = self.origins.get(origin)
        if reading is not None and reading.held.pop(tap, None) is not None:
            self._moved[reading] = None

    def laggards(self) -> list[Tap]:
        """Taps that others will soon wait for. If all are as slow, they wait together."""
        found: dict[Tap, None] = {}
        for reading in self.origins.values():
            if reading.unsettled_bytes > self.limits.shared_lag_bytes:
                slow = dict.fromkeys(reading.laggards(self.limits.shared_lag_bytes))
                if any(tap not in slow for tap in (*reading.joined, *reading.waiting)):
                    found |= slow
        if self._unseen_bytes > self.limits.client_bytes_max // 2:
            slow = self._hindering(self.limits.client_bytes_max // 2)
            if any(tap not in slow and tap.request is None for tap in self.taps):
                found |= slow
        return list(found)

    def _hindering(self, bytes_max: int) -> dict[Tap, None]:
        """Taps behind which more than so many bytes of all origins lie: a subscription hands out only so many."""
        size = 0
        found: dict[Tap, None] = {}
        for reading, upto, more in reversed(self._unseen):
            if size > bytes_max:
                found |= dict.fromkeys(tap for tap in reading.owing if tap.acked[reading.origin] < upto)
            size += more
        return found

    # Tuples.

    def place(self, position: Position) -> None:
        """An origin is served from here on."""
        origin, upto = position.origin, position.next
        if origin not in self.origins:
            self.origins[origin] = Reading(origin, upto, upto, upto)

    def take(self, batch: Batch) -> list[Due]:
        """A batch has come: what each tap gets of it."""
        reading = self.origins[batch.origin]
        assert batch.first == reading.read
        self._remember(reading, batch)
        for tap in self.unmet(batch.origin):
            if not tap.concerns(batch) and tap in reading.held:  # Published before its query: it need not be kept.
                reading.held[tap] = batch.next
        due: list[Due] = []
        for tap in [each for each in reading.waiting if each.concerns(batch)]:
            if (tap.waits[batch.origin] or 0) > batch.first or _is_span(batch):
                due += self._offer(reading, tap, batch)  # Its place is inside, or behind it.
            else:
                self._admit(reading, tap, batch.first)
        self.bytes_saved += len(batch.rows) * max(0, len(reading.joined) - 1)
        for view in self._views.values():
            due += self._show(reading, view, batch)
        self._moved[reading] = None
        return due

    def _remember(self, reading: Reading, batch: Batch) -> None:
        reading.note(batch)
        self._unseen.append((reading, batch.next, len(batch.rows)))
        self._unseen_bytes += len(batch.rows)
        self._order.append(reading)
        self._recent_bytes += len(batch.rows)
        self.bytes_read += len(batch.rows)
        while self._recent_bytes > self.limits.shared_bytes:
            oldest = self._order.popleft()
            if oldest.recent:  # A gap may have emptied it.
                self._recent_bytes -= oldest.forget()

    def _show(self, reading: Reading, view: _View, batch: Batch) -> list[Due]:
        """A batch for all taps that see it the same way."""
        origin = batch.origin
        is_latest = batch.sieved is None or batch.sieved.by == self.needs.version
        may_test = None if is_latest else lambda tap: tap.can_use(batch)
        due: list[Due] = []
        try:
            for part in view.parts(batch):
                view.note(part)
                for tap in view.whole:
                    if tap.told.get(origin, part.next) <= part.first:
                        self._owe(reading, tap, part)
                        due.append(Due(tap, part))
                for rows, taps in view.sieve.sifted(part.fit, may_test):
                    for tap in taps:
                        first = tap.told.get(origin, part.next)
                        if first <= part.first:
                            self._owe(reading, tap, part)
                            latest_us, unfit = view.latest_us(origin, first), view.newly_unfit(tap, origin)
                            due.append(Due(tap, Some(part, rows, first, latest_us, unfit)))
        except MISFITS as error:
            broken = Broken(str(error))
            due += [Due(tap, broken) for tap in reading.joined if tap.source == view.source]
        return due

    def miss(self, missed: Missed) -> list[Due]:
        """Tuples that are kept nowhere any more: taps go on behind them."""
        reading = self.origins[missed.origin]
        self._recent_bytes -= reading.behind(0)
        reading.skip(missed.next)
        due: list[Due] = []
        for tap in self.taps:
            place = tap.waits.get(missed.origin, tap.told.get(missed.origin))
            if tap.is_shared(missed.origin) and (place is None or place < missed.next):
                first = missed.first if place is None else place
                tap.waits.pop(missed.origin, None)
                reading.waiting.pop(tap, None)
                reading.joined[tap] = None
                tap.told[missed.origin] = missed.next
                due.append(Due(tap, Missed(origin=missed.origin, first=first, next=missed.next)))
        self._moved[reading] = None
        return due

    def hush(self, silence: Silence) -> None:
        """A publisher that is read to its end has nothing more for now."""
        reading = self.origins.get(silence.origin)
        if reading is not None and silence.next == reading.read:
            reading.silence = silence

    def catch_up(self, tap: Tap) -> list[Due]:
        """Tell a tap how far the stream has come without a row for it."""
        passed: list[Passed] = []
        view = self._views[tap.source]
        for origin, first in tap.told.items():
            reading = self.origins[origin]
            if first < reading.read:
                latest_us, unfit = view.latest_us(origin, first), view.newly_unfit(tap, origin)
                passed.append(Passed(origin, first, reading.read, reading.stamp, latest_us, unfit))
                tap.told[origin] = reading.read
        due = [Due(tap, NoRows(tuple(passed)))] if passed else []
        return [*due, *self._silences(tap)] if tap.is_timed else due

    def _silences(self, tap: Tap) -> Iterator[Due]:
        """What publishers have said since, of themselves, to a tap that has read all they have."""
        for origin, reading in self.origins.items():
            said = reading.silence
            is_there = origin in tap.told or (origin in tap.waits and tap.waits[origin] is None)
            if said is not None and is_there and tap.heard.get(origin) is not said:
                tap.heard[origin] = said
                yield Due(tap, said)

    # What is processed.

    def acknowledge(self, tap: Tap, position: Position) -> None:
        """The reader of a tap has processed everything below."""
        reading = self.origins.get(position.origin)
        if reading is None:
            return
        due = max(tap.told.get(position.origin, 0), tap.debts.get(position.origin, 0))
        if tap in reading.owing and tap.acked[position.origin] >= due:
            del reading.owing[tap]
        if tap in reading.held:
            reading.held[tap] = tap.acked[position.origin]
        self._moved[reading] = None

    def settled(self) -> tuple[Position, ...]:
        """What can be acknowledged upstream by now."""
        moved, self._moved = self._moved, {}
        positions = tuple(Position(each.origin, each.settled) for each in moved if each.settle())
        while self._unseen and self._unseen[0][1] <= self._unseen[0][0].settled:
            self._unseen_bytes -= self._unseen.popleft()[2]
        return positions

    def validate(self) -> None:
        assert self._recent_bytes == sum(len(b.rows) for each in self.origins.values() for b in each.recent)
        for origin, reading in self.origins.items():
            assert reading.settled <= reading.read
            for tap in reading.waiting:
                assert origin in tap.waits
            for tap in reading.joined:
                assert origin in tap.told
            for tap in reading.owing:
                assert tap.is_shared(origin)
        for tap in self.taps:
            tap.validate()
