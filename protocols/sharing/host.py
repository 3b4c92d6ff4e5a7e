"""How a host reads streams: once for all its readers, and for one alone that is not there yet, or too slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.clock import COUNT_BITS, wall_ms
from protocols.delivery.cursor import tail
from protocols.delivery.feed import subscribed
from protocols.delivery.messages import (
    Ack,
    Depth,
    Heeded,
    Missed,
    NeedsChanged,
    Opened,
    OpenSubscription,
    Origin,
    Placed,
    Position,
    Publishers,
    ReadsChanged,
    Rows,
    Seen,
    Silent,
    Subscribe,
    Unsubscribe,
)
from protocols.effects import Effect, Send, Tell
from protocols.events import Abandoned
from protocols.ids import Millis, PeerId, RequestId, StreamName
from protocols.inside import Inside
from protocols.limits import Limits
from protocols.messages import Answer, Refused
from protocols.sharing.messages import SharedListed, SharedShown
from protocols.sharing.needs import together
from protocols.sharing.relay import Relay
from protocols.sharing.shared import SharedStream
from protocols.sharing.tap import Due, Tap, TapOpened

REST_MS: Final = 10_000  # A tap that was too slow reads alone for so long; twice as long the next time.
REST_MAX_MS: Final = 300_000
NEAR_MS: Final = 10_000  # A stream is read for all from the insertion of its first query on, if that is so recent.
SLACK_MS: Final = 1000  # Queries of other proxies may have been inserted a little earlier than the first one.
TICK_MS: Final = 1000

Outcome = tuple[list[Effect], list[Due]]
"""What is to be done, and what taps give their readers."""


@dataclass(slots=True)
class StreamHost:
    """The streams that one host reads.

    A tap whose place the memory of a shared stream reaches takes its tuples from there. Any other reads alone, by a
    subscription of its own, until it does: origin by origin.

    Invariant: a tap is served at each origin by its own subscription or by the shared one, never by both
    """

    peer_id: PeerId
    inside: Inside
    role: str
    limits: Limits = field(default_factory=Limits)
    shared: dict[StreamName, SharedStream] = field(default_factory=dict)
    _streams: dict[RequestId, SharedStream] = field(default_factory=dict)
    _taps: dict[RequestId, Tap] = field(default_factory=dict)
    _dirty: dict[SharedStream, None] = field(default_factory=dict)  # Perhaps there is something to acknowledge.
    _alone: Counter[StreamName] = field(
        default_factory=Counter
    )  # Taps that share and have a subscription of their own.
    _ticked_at: Millis = 0
    _openings: int = 0
    _relays: dict[StreamName, Relay] = field(default_factory=dict)  # What other peers read from here.
    _saved: int = 0  # By streams that are read no more.

    # Taps come and go.

    def attach(self, tap: Tap, now: Millis) -> Outcome:
        """A reader wants a stream, from the places of its tap on."""
        if tap.is_private:
            return self._read_alone(tap), []
        effects: list[Effect] = []
        stream = self.shared.get(tap.stream)
        if stream is None:
            stream = self._open(tap, now, effects)
        if stream.add(tap):
            effects.append(_needing(stream))
        effects += self._relist(stream)
        due: list[Due] = []
        if tap.is_timed and stream.publishers is not None:
            due.append(Due(tap, _met(stream.publishers, tap.known)))
        for origin in stream.origins:
            more, some = self._consider(stream, tap, origin, now)
            effects += more
            due += some
        is_late = tap.since < stream.since or any(origin not in stream.origins for origin in tap.places)
        if is_late and tap.request is None:
            effects += self._read_alone(tap)
        if stream.is_open and tap.request is None:
            due += self._opened(tap)
        return effects, due

    def _open(self, tap: Tap, now: Millis, effects: list[Effect]) -> SharedStream:
        begins_ms = wall_ms(tap.since) if wall_ms(tap.since) > now - NEAR_MS else now
        since = max(0, begins_ms - SLACK_MS) << COUNT_BITS
        self._openings += 1
        name, needs = f"{tap.stream}~{now}-{self._openings}@{self.peer_id.hex()}", together(1, [tap.need])
        command = OpenSubscription(
            stream=tap.stream,
            subscription=name,
            since=since,
            known=tap.known,
            heartbeats=tap.is_timed,
            reads=tap.reads,
            places=True,
            needs=needs,
            relays=True,
        )
        request, effect = self.inside.ask(self.role, command)
        effects.append(effect)
        stream = SharedStream(tap.stream, name, since, request, tap.reads, tap.is_timed, self.limits, needs)
        self.shared[tap.stream] = self._streams[request] = stream
        return stream

    def _read_alone(self, tap: Tap) -> list[Effect]:
        tap.openings += 1
        command = OpenSubscription(
            stream=tap.stream,
            subscription=tap.own_name,
            since=tap.since,
            positions=tap.positions(),
            known=tap.known,
            heartbeats=tap.is_timed,
            reads=tap.reads,
            places=not tap.is_private,
            needs=None if tap.is_private else together(1, [tap.need]),
        )
        request, effect = self.inside.ask(self.role, command)
        tap.request, tap.placed = request, {}
        self._alone[tap.stream] += not tap.is_private
        self._taps[request] = tap
        return [effect]

    def detach(self, tap: Tap) -> list[Effect]:
        """A reader is over."""
        tap.is_over = True
        effects = self._close_own(tap)
        stream = self.shared.get(tap.stream)
        if stream is not None and tap in stream.taps:
            stream.remove(tap)
            self._dirty[stream] = None
            effects += self._relist(stream) if stream.taps else self._close(stream)
        return effects

    def _close_own(self, tap: Tap) -> list[Effect]:
        request, tap.request = tap.request, None
        if request is None:
            return []
        del self._taps[request]
        self._alone[tap.stream] -= not tap.is_private
        if not self._alone[tap.stream]:
            del self._alone[tap.stream]
        self.inside.forget(request)
        return [Tell(Abandoned(request))]

    def _close(self, stream: SharedStream) -> list[Effect]:
        del self._streams[stream.request], self.shared[stream.stream]
        self._dirty.pop(stream, None)
        self._saved += stream.bytes_saved
        self.inside.forget(stream.request)
        relay = self._relays.pop(stream.stream, None)
        return [Tell(Abandoned(stream.request)), *(relay.close() if relay is not None else [])]

    def _relist(self, stream: SharedStream) -> list[Effect]:
        """Tell the catalogue what all readers need together."""
        reads, heartbeats = stream.wanted()
        is_same = (reads.columns, reads.version) == (stream.reads.columns, stream.reads.version)
        if is_same and heartbeats == stream.heartbeats:
            return []
        stream.reads, stream.heartbeats = reads, heartbeats
        return [Tell(ReadsChanged(stream.subscription, reads, heartbeats))]

    # Other peers that read from here.

    def guest(self, sender: PeerId, message: Subscribe | Ack | Unsubscribe, now: Millis) -> list[Effect]:
        """Another peer reads a stream from here, or wants to."""
        match message:
            case Subscribe() if message.depth:
                stream = self.shared.get(message.stream)
                if stream is None:
                    return [Send(sender, msgspec.structs.replace(subscribed(message, ()), depth=1))]
                relay = self._relays.setdefault(message.stream, Relay(stream, self.limits))
                return [*relay.welcome(sender, message, now), *self._relist(stream)]
            case Ack():
                streams = dict.fromkeys(each.origin.stream for each in message.positions)
                relays = [self._relays[name] for name in streams if name in self._relays]
                return [effect for relay in relays for effect in relay.acked(sender, message, now)]
            case Unsubscribe() if message.stream in self._relays:
                return self._relays[message.stream].leave(sender, message)
        return []

    def woken(self, log: str, now: Millis) -> list[Effect]:
        """There is more to sieve for another peer, or something to tell of what was left out."""
        return [effect for relay in self._relays.values() for effect in relay.woken(log, now)]

    def lost(self, peer: PeerId) -> list[Effect]:
        """A peer is gone that perhaps read from here, or published what others read from here."""
        return [effect for relay in self._relays.values() for effect in relay.lost(peer)]

    # What subscriptions say.

    def knows(self, request: RequestId) -> bool:
        return request in self._streams or request in self._taps

    def answered(self, request: RequestId, answer: Answer, now: Millis) -> Outcome:
        if request in self._streams:
            return self._of_shared(self._streams[request], answer, now)
        return self._of_own(self._taps[request], answer, now)

    def _of_shared(self, stream: SharedStream, answer: Answer, now: Millis) -> Outcome:
        match answer:
            case Opened():
                stream.is_open = True
                return [], [due for tap in stream.taps if tap.request is None for due in self._opened(tap)]
            case Placed():
                return self._placed(stream, answer, now)
            case Rows():
                return self._rows(stream, answer, now)
            case Missed():
                self._dirty[stream] = None
                relay = self._relays.get(stream.stream)
                return relay.let_go(answer.origin) if relay is not None else [], stream.miss(answer)
            case Depth():
                stream.depth, stream.relays = answer.depth, answer.relays
            case Heeded():
                stream.heed(answer.origin, answer.version)
                return self._consider_unmet(stream, [answer.origin], now)
            case Publishers():
                stream.publishers = answer
                return [], [Due(tap, _met(answer, tap.known)) for tap in stream.taps if tap.is_timed]
            case Silent():
                stream.hush(answer.silence)
                relay = self._relays.get(stream.stream)
                return relay.hush(answer.silence, now) if relay is not None else [], []
            case Refused():
                return self._refused(stream, now)
        return [], []

    def _placed(self, stream: SharedStream, answer: Placed, now: Millis) -> Outcome:
        effects: list[Effect] = []
        due: list[Due] = []
        for position in answer.positions:
            stream.place(position)
            for tap in list(stream.taps):
                more, some = self._consider(stream, tap, position.origin, now)
                effects += more
                due += some
        return effects, due

    def _rows(self, stream: SharedStream, answer: Rows, now: Millis) -> Outcome:
        due: list[Due] = []
        effects: list[Effect] = []
        relay = self._relays.get(stream.stream)
        for batch in answer.batches:
            due += stream.take(batch)
            effects += relay.took(batch, now) if relay is not None else []
        self._dirty[stream] = None
        relieved, passed = self._relieve(stream, now)
        effects += relieved
        more, met = self._consider_unmet(stream, dict.fromkeys(batch.origin for batch in answer.batches), now)
        return effects + more, due + passed + met

    def _consider_unmet(self, stream: SharedStream, origins: Iterable[Origin], now: Millis) -> Outcome:
        """Let taps join that have waited for tuples sieved by newer needs, or read alone what is of no use to them."""
        effects: list[Effect] = []
        due: list[Due] = []
        for origin in origins:
            for tap in stream.unmet(origin):
                more, some = self._consider(stream, tap, origin, now)
                effects += more
                due += some
        return effects, due

    def _relieve(self, stream: SharedStream, now: Millis) -> Outcome:
        """Let those read alone who would hold up others."""
        effects: list[Effect] = []
        due: list[Due] = []
        for tap in stream.laggards():
            tap.rests_until = now + min(REST_MS << tap.leaves, REST_MAX_MS)
            tap.leaves += 1
            more, some = self._leave(stream, tap)
            effects += more
            due += some
        return effects, due

    def _refused(self, stream: SharedStream, now: Millis) -> Outcome:
        """Let each reader hear for itself what is wrong: it may be the matter of one of them."""
        effects = self._close(stream)
        due: list[Due] = []
        for tap in list(stream.taps):
            tap.rests_until = now + REST_MS
            more, some = self._leave(stream, tap)
            effects += more
            due += some
            stream.remove(tap)
        return effects, due

    def _leave(self, stream: SharedStream, tap: Tap) -> Outcome:
        due = stream.catch_up(tap)
        stream.leave(tap)
        self._dirty[stream] = None
        return [*self._close_own(tap), *self._read_alone(tap)], due  # One that it still had has gone past its place.

    def _of_own(self, tap: Tap, answer: Answer, now: Millis) -> Outcome:
        match answer:
            case Opened():
                return [], self._opened(tap)
            case Placed():
                return self._placed_alone(tap, answer, now)
            case Rows():
                return self._rows_alone(tap, answer, now)
            case Missed():
                return self._missed_alone(tap, answer)
            case Publishers():
                return [], [Due(tap, answer)]
            case Silent(silence=silence):
                place = tap.places.get(silence.origin, silence.next)
                is_due = not tap.is_shared(silence.origin) and place == silence.next
                return [], [Due(tap, silence)] if is_due else []
            case Refused():
                return [], [Due(tap, answer)]
        return [], []

    def _opened(self, tap: Tap) -> list[Due]:
        if tap.is_open:
            return []
        tap.is_open = True
        return [Due(tap, TapOpened())]

    def _placed_alone(self, tap: Tap, answer: Placed, now: Millis) -> Outcome:
        stream = self._stream_of(tap)
        effects: list[Effect] = []
        due: list[Due] = []
        for position in answer.positions:
            origin = position.origin
            tap.placed[origin] = None
            if not tap.is_shared(origin):
                tap.places.setdefault(origin, position.next)
                tap.acked.setdefault(origin, position.next)
            if stream is not None:
                stream.release(tap, origin)
                self._dirty[stream] = None
                more, some = self._consider(stream, tap, origin, now)
                effects += more
                due += some
        return effects, due

    def _rows_alone(self, tap: Tap, answer: Rows, now: Millis) -> Outcome:
        due: list[Due] = []
        known: list[Position] = []
        read: dict[Origin, None] = {}
        for batch in answer.batches:
            origin = batch.origin
            place = tap.places.get(origin, batch.first)
            if tap.is_shared(origin):
                known.append(Position(origin, batch.next))
            elif batch.next <= place:
                known.append(Position(origin, min(batch.next, tap.acked.get(origin, 0))))
            else:
                tap.places[origin] = batch.next
                read[origin] = None
                due.append(Due(tap, batch if batch.first >= place else tail(batch, place)))
        effects = self._seen(tap.own_name, known)
        stream = self._stream_of(tap)
        for origin in read:
            if stream is not None:
                more, some = self._consider(stream, tap, origin, now)
                effects += more
                due += some
        return effects, due

    def _missed_alone(self, tap: Tap, missed: Missed) -> Outcome:
        place = tap.places.get(missed.origin, missed.first)
        if tap.is_shared(missed.origin) or missed.next <= place:
            return self._seen(tap.own_name, [Position(missed.origin, missed.next)]), []
        tap.places[missed.origin] = missed.next
        return [], [Due(tap, Missed(origin=missed.origin, first=max(place, missed.first), next=missed.next))]

    def _seen(self, subscription: str, positions: list[Position] | tuple[Position, ...]) -> list[Effect]:
        if not positions:
            return []
        return [self.inside.tell(Seen(subscription=subscription, positions=tuple(positions)))]

    def _stream_of(self, tap: Tap) -> SharedStream | None:
        stream = self.shared.get(tap.stream)
        return stream if stream is not None and tap in stream.taps else None

    # From one to the other.

    def _consider(self, stream: SharedStream, tap: Tap, origin: Origin, now: Millis) -> Outcome:
        """Share an origin if the memory reaches the tap's place; else let the tap read alone."""
        if origin not in stream.origins or tap.is_shared(origin):
            return [], []
        if now < tap.rests_until:
            return [], []
        if not stream.reaches(tap, origin) or not stream.is_near(tap, origin):
            return self._read_alone(tap) if tap.request is None else [], []
        if not stream.is_heeded(tap, origin):
            if tap.request is None:
                stream.await_needs(tap, origin)
            return [], []
        due = stream.join(tap, origin)
        self._dirty[stream] = None
        return self._end_own(stream, tap), due

    def _end_own(self, stream: SharedStream, tap: Tap) -> list[Effect]:
        """Close a tap's own subscription once everything that it served comes from the shared one."""
        origins = dict.fromkeys([*tap.placed, *stream.origins])
        is_needed = tap.debts or not stream.is_open or not all(tap.is_shared(origin) for origin in origins)
        if tap.request is None or not tap.is_open or is_needed:
            return []
        return self._close_own(tap)

    # What is processed.

    def acknowledge(self, tap: Tap, positions: tuple[Position, ...]) -> list[Effect]:
        """The reader of a tap has processed everything below."""
        stream = self._stream_of(tap)
        own: list[Position] = []
        for position in positions:
            origin = position.origin
            tap.acked[origin] = max(position.next, tap.acked.get(origin, 0))
            if tap.debts.get(origin, position.next + 1) <= position.next:
                del tap.debts[origin]
            if stream is not None:
                stream.acknowledge(tap, position)
                self._dirty[stream] = None
            if tap.request is not None:
                own.append(position)
        return self._seen(tap.own_name, own)

    def settled(self) -> list[Effect]:
        """Acknowledge what all taps of a stream have processed."""
        dirty, self._dirty = self._dirty, {}
        return [effect for stream in dirty for effect in self._seen(stream.subscription, stream.settled())]

    # Time.

    def catch_up(self, tap: Tap) -> list[Due]:
        """Tell a tap how far the shared stream has come without a row for it."""
        stream = self._stream_of(tap)
        return [] if stream is None else stream.catch_up(tap)

    def tick(self, now: Millis) -> Outcome:
        """Let taps share again, and those leave that others wait for."""
        effects: list[Effect] = []
        due: list[Due] = []
        if now - self._ticked_at < TICK_MS:
            return effects, due
        self._ticked_at = now
        effects += [effect for relay in self._relays.values() for effect in relay.tick(now)]
        for stream in list(self.shared.values()):
            if stream.narrow(now):
                effects.append(_needing(stream))
            more, some = self._relieve(stream, now)
            effects += more
            due += some
        for tap in [each for each in self._taps.values() if not each.is_private and now >= each.rests_until]:
            more, some = self._share_again(tap, now)
            effects += more
            due += some
        return effects, due

    def _share_again(self, tap: Tap, now: Millis) -> Outcome:
        """A tap that reads alone looks whether it can share by now."""
        stream = self._stream_of(tap)
        if stream is None:
            return self.attach(tap, now)
        effects: list[Effect] = []
        due: list[Due] = []
        for origin in stream.origins:
            more, some = self._consider(stream, tap, origin, now)
            effects += more
            due += some
        return [*effects, *self._end_own(stream, tap)], due

    # What people see.

    def others(self, taps: Mapping[str, Tap]) -> dict[str, int]:
        """By alias: with how many others a tap shares its stream. Those that read alone are left out."""
        found: dict[str, int] = {}
        for alias, tap in taps.items():
            stream = self._stream_of(tap)
            if stream is not None and tap.request is None:
                found[alias] = max(0, self._together(stream) - 1)
        return found

    def _together(self, stream: SharedStream) -> int:
        """How many taps read nothing alone."""
        return max(0, len(stream.taps) - self._alone[stream.stream])

    def listed(self, windows: Callable[[StreamName], tuple[int, int]] = lambda stream: (0, 0)) -> SharedListed:
        """`windows`: how many queries read slices of a stream, and how many sets of slices these are."""
        return SharedListed(
            streams=tuple(
                SharedShown(
                    name,
                    self._together(each),
                    self._alone[name],
                    len(each.origins),
                    each.bytes_read,
                    each.bytes_saved,
                    None if () in each.needs.conjunctions else len(each.needs.conjunctions),
                    None if each.needs.columns is None else len(each.needs.columns),
                    *windows(name),
                    tuple(sorted(Counter(peer for _, peer in each.relays).items())),
                    len(each.guests),
                    each.depth,
                )
                for name, each in sorted(self.shared.items())
            )
        )

    def counters(self) -> dict[str, int]:
        """For /metrics."""
        streams = self.shared.values()
        return {
            "shared_streams": len(streams),
            "shared_taps": sum(map(self._together, streams)),
            "shared_taps_alone": self._alone.total(),
            "shared_guests": sum(len(each.guests) for each in streams),
            "shared_origins_relayed": sum(len(each.relays) for each in streams),
            "shared_bytes_saved_total": self._saved + sum(each.bytes_saved for each in streams),
        }

    def validate(self) -> None:
        for request, tap in self._taps.items():
            assert tap.request == request
        assert self._alone.total() == sum(not tap.is_private for tap in self._taps.values())
        for stream in self.shared.values():
            assert self._streams[stream.request] is stream
            stream.validate()
        for name, relay in self._relays.items():
            assert self.shared[name] is relay.stream
            relay.validate()


def _needing(stream: SharedStream) -> Effect:
    return Tell(NeedsChanged(stream.subscription, stream.needs))


def _met(publishers: Publishers, known: tuple[Origin, ...]) -> Publishers:
    """The publishers that a reader is to wait for: also those that its proxy has just seen."""
    new = [origin for origin in known if origin not in publishers.origins and origin not in publishers.over]
    return Publishers(origins=(*publishers.origins, *new), over=publishers.over) if new else publishers
