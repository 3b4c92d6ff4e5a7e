"""Runs a peer's machines in the real world: the only place where an effect meets asyncio.

One event at a time: the machines answer it with effects, which are performed in order before the next event. The
overlay is the network, the journal is the disk. Everything appended within one turn of the event loop, and while the
disk is busy, is committed together (group commit). Effects inside AfterSync are performed after that.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import structlog

from overlay.identity import PeerRecord
from overlay.overlay import Overlay
from overlay.tasks import Tasks
from peerd.courier import Courier
from peerd.descriptors import Descriptors, patiently
from peerd.disk import FileDisk
from peerd.engines import EngineMaker, Engines
from peerd.meter import Meter, counters, fitted, room_of
from peerd.mistakes import Mistakes
from peerd.sight import look_around
from protocols.commit import SyncGate
from protocols.effects import (
    AfterSync,
    Append,
    AppendBatch,
    Blame,
    Effect,
    ForgetLog,
    ReadLog,
    ReleaseLog,
    Reply,
    Route,
    Send,
    SetTimer,
    Tell,
)
from protocols.errors import RemoteProtocolError, UnknownKind
from protocols.events import (
    ClockCompared,
    DiskSpace,
    Event,
    LogRead,
    NearestPeers,
    PeerDown,
    PeerUp,
    Received,
    Requested,
    Started,
    TimerFired,
)
from protocols.execution.engine import FeedRun, StartRun, StopRun, WarmEngine
from protocols.ids import Key, Millis, PeerId, RequestId, TimerName
from protocols.journal.compaction import Piece
from protocols.journal.disk import DiskFull
from protocols.journal.format import JournalCorrupt
from protocols.journal.journal import Journal
from protocols.journal.pending import Pending, Reading
from protocols.limits import Limits
from protocols.messages import Answer, Refused
from protocols.peer import Peer
from protocols.rights.audit import Audited
from protocols.rights.messages import Verb
from protocols.rights.quotas import Quotas
from protocols.sharing.capacity import Capacities, Capacity
from protocols.sight import LookAtNetwork
from protocols.store.messages import Leave
from protocols.wire import FAMILY_OF_NAME, MESSAGES, RECORDS, kind_in

EVENTS_PER_TURN: Final = 256  # After so many, the network has its turn.
TURN_S: Final = 0.02  # After this time, too.
LONG_S: Final = 0.05  # No event should take longer: meanwhile the peer answers nobody.
NEAREST_EVERY_S: Final = 10.0
NEAREST_PEERS_MAX: Final = 32
DISK_LOOK_EVERY_S: Final = 5.0
CLOCK_LOOK_EVERY_S: Final = 1.0
LINKS_LOOK_EVERY_S: Final = 2.0
DISK_USED_MAX: Final = 0.90
DISK_FULL_RETRY_S: Final = 1.0
TRACE_EVENTS: Final = 32
LIFE_FILE: Final = "life"
UNKNOWN_SAID_MAX: Final = 1024
WAITING_BYTES_MAX: Final = 32 << 20  # Of one peer, in messages that wait. Its next frames are not taken meanwhile.
MESSAGE_BYTES: Final = 1024  # What a message takes beside its own bytes, about.
OWN_REQUEST: Final[RequestId] = 0  # Requests of the driver itself; clients count from 1.
_TRACE_CHARACTERS: Final = 400

log = structlog.get_logger("peerd.driver")


class _Heard(msgspec.Struct, frozen=True):
    """A message of another peer that waits, and how much it takes."""

    event: Received
    size: int


class Driver:
    """One peer's machines, running."""

    def __init__(
        self,
        overlay: Overlay,
        disk: FileDisk,
        rng: random.Random,
        limits: Limits,
        maker: EngineMaker | None = None,
        allowed: Capacities = Capacities(),
    ) -> None:
        limits, bulk_bytes = fitted(limits, allowed)
        self.on_reply: Callable[[RequestId, Answer, bool], None] = _nobody_asked
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.counters: Counter[str] = Counter()
        self.is_running = False
        self.life = b""  # Identifies this journal, from its first use until it is lost.
        self._overlay = overlay
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._peer = Peer(overlay.peer_id, rng, limits)
        self.engines = Engines(maker, self.submit, overlay.say_engine)
        self._peer.executor.has_spark = self.engines.has_spark
        self._peer.executor.admission.capacity = self.capacity = Capacity(allowed)
        self._peer.shares = overlay.understanding.shares
        self._journal = Journal(disk, RECORDS.encode, RECORDS.decode)
        self._gate = SyncGate()
        self._courier = Courier(overlay.router, overlay.understanding, self.submit, bulk_bytes)
        self._events: deque[Event | _Heard] = deque()
        self._waiting: Counter[PeerId] = Counter()  # Bytes of their messages among these.
        self._turn_is_due = False
        self._longest_s = 0.0  # What the longest event took.
        self._timers: dict[TimerName, asyncio.TimerHandle] = {}
        self.mistakes = Mistakes(self._loop.time)
        self._neighbours: dict[PeerId, None] = {}
        self._unknown: dict[tuple[PeerId, str], None] = {}  # Who sent which kind of message that we do not know.
        self._commit: asyncio.Task[None] | None = None
        self._on_leaving: Callable[[Answer, bool], None] = lambda _answer, _last: None
        self._tasks = Tasks("driver")
        self._trace: deque[tuple[Millis, Event, list[Effect]]] = deque(maxlen=TRACE_EVENTS)
        # One thread, so writes are in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    # From start to end.

    async def recover(self) -> None:
        """Restore what this peer has promised, from its journal. What arrives meanwhile waits for begin()."""
        started_at = time.monotonic()
        self.life = _life(self._disk)
        recovered = await self._loop.run_in_executor(self._thread, self._journal.recover)
        self._peer.restore(recovered.records, recovered.logs, _now())
        log.info(
            "journal recovered",
            records=len(recovered.records),
            logs=len(recovered.logs),
            cut_bytes=recovered.cut_bytes,
            took_s=round(time.monotonic() - started_at, 3),
        )
        self._overlay.router.has_room = lambda peer: self._waiting[peer] < WAITING_BYTES_MAX
        self._overlay.router.on_message = self._received
        self._overlay.say_room(room_of(self.capacity))  # Before anybody hears of us.
        self._overlay.on_up.append(self._neighbourhood_changed)
        self._overlay.on_down.append(self._neighbourhood_changed)

    def begin(self) -> None:
        """The peer is in the network: let its machines work."""
        if not self.is_running:
            self.is_running = True
            self._events.appendleft(Started())
            self._neighbourhood_changed()
            self._tasks.spawn(self._look_around())
            self._tasks.spawn(self._keep_links())
            self._tasks.spawn(self._watch_the_clock())
            self._tasks.spawn(self.engines.watch())
            meter = Meter(self._overlay, self.engines, self.capacity, self.submit, self._events_taken)
            self._tasks.spawn(meter.watch())
            self._tasks.spawn(Descriptors().watch())
            self._turn_soon()

    async def leave(self, tell: Callable[[Answer], None]) -> None:
        """Hand over what this peer holds for others, as far as they take it in time; `tell` reports progress."""
        if self.is_running:
            over: asyncio.Future[None] = self._loop.create_future()

            def told(answer: Answer, last: bool) -> None:
                tell(answer)
                if last and not over.done():
                    over.set_result(None)

            self._on_leaving = told
            self.submit(Requested(OWN_REQUEST, Leave()))
            await asyncio.wait([over, self.failure], return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Finish the running write, and stop. Nothing acknowledged is lost, whenever this is called."""
        self.is_running = False
        for timer in self._timers.values():
            timer.cancel()
        await self._courier.stop()
        await self._tasks.finish()
        await self.engines.close()
        if (commit := self._commit) is not None:
            await asyncio.wait([commit], timeout=DISK_FULL_RETRY_S)
            commit.cancel()
        self._thread.shutdown()
        self.failure.cancel()

    def submit(self, event: Event) -> None:
        """Queue an event for the machines."""
        self._queue(event)

    def _queue(self, event: Event | _Heard) -> None:
        self._events.append(event)
        self._turn_soon()

    def _next_event(self) -> Event:
        event = self._events.popleft()
        if not isinstance(event, _Heard):
            return event
        sender = event.event.sender
        self._waiting[sender] -= event.size
        if not self._waiting[sender]:
            del self._waiting[sender]
        return event.event

    def limit(self, quotas: Quotas) -> None:
        """Set the quotas of this peer's clients."""
        self._peer.door.limit(quotas)

    def objection(self, token: str, verb: Verb, thing: str = "*") -> Refused | None:
        """Why whoever presents a token, or the peer's own user without one, may not do this."""
        refusal, effects = self._peer.door.objection_to(token, verb, thing, _now())
        self._perform(effects)
        return refusal

    def stats(self) -> dict[str, float]:
        """Flat counters for metrics."""
        return {
            **self.counters,
            **self._courier.counters,
            "events_waiting": len(self._events),
            "event_longest_seconds": self._longest_s,
            "journal_bytes": self.journal_bytes,
            "journal_kept_bytes": self.journal_kept_bytes,
            "store_entries": self._peer.store.entries,
            "join_stored": self._peer.joins.evaluator.tables.stored,
            "join_taken_total": self._peer.joins.evaluator.tables.taken,
            **self._peer.executor.streams.counters(),
            "sieved_bytes_saved_total": self._peer.publisher.sieved_bytes + self._peer.keeper.sieved_bytes,
            **self._peer.executor.aggregations.counters(),
            **counters(self.capacity),
        }

    def _events_taken(self) -> int:
        return self.counters["events_total"]

    @property
    def journal_bytes(self) -> int:
        """What the journal takes of the disk."""
        return self._journal.bytes_on_disk

    @property
    def journal_kept_bytes(self) -> int:
        """How much of that is still needed."""
        return self._journal.bytes_kept

    # One event after the other.

    def _turn_soon(self) -> None:
        if not self._turn_is_due and self.is_running:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        begun_at = time.monotonic()
        ends_at = begun_at + TURN_S
        try:
            for _ in range(min(EVENTS_PER_TURN, len(self._events))):
                if not self.is_running:
                    return
                event = self._next_event()
                self._handle(event)
                done_at = time.monotonic()
                if (took_s := done_at - begun_at) > min(LONG_S, self._longest_s):
                    self._note_long(event, took_s)
                if done_at > ends_at:
                    break
                begun_at = done_at
            self._commit_soon()
        except Exception as error:  # noqa: BLE001 - Whatever it is, a machine in an unknown state makes no promises.
            self._fail(error)
            return
        if self._events:
            self._turn_soon()

    def _handle(self, event: Event) -> None:
        now = _now()
        effects: list[Effect] = []
        self._trace.append((now, event, effects))
        self.counters["events_total"] += 1
        effects += self._peer.handle(event, now)
        self._perform(effects)

    def _note_long(self, event: Event, took_s: float) -> None:
        """Keep what the longest event took; count those that are too long, and log the longest of them so far."""
        if took_s > LONG_S:
            self.counters["events_long_total"] += 1
            if took_s > self._longest_s:
                log.info("an event held the loop", took_ms=round(took_s * 1000), happened=_shortened(event))
        self._longest_s = max(self._longest_s, took_s)

    def _perform(self, effects: Sequence[Effect]) -> None:  # noqa: C901 - one branch for each effect
        journal = self._journal
        for effect in effects:
            match effect:
                case Send(peer, message):
                    if peer == self._overlay.peer_id:
                        self.submit(Received(peer, message))
                    else:
                        self._courier.send(peer, message)
                case Append(record):
                    journal.append(record)
                case AppendBatch(log_id, batch):
                    journal.append_batch(log_id, batch)
                case AfterSync(held):
                    self._gate.hold(journal.appended, held)
                case Reply(request, answer, last):
                    (self.on_reply if request != OWN_REQUEST else self._answered)(request, answer, last)
                case SetTimer(name, after_ms):
                    self._set_timer(name, after_ms)
                case Route(key, message):
                    self._courier.route(key, message)
                case Tell(event):  # From one role to another, once everything before it is safe.
                    self._handle(event)
                case ReadLog():
                    self._tasks.spawn(self._read(effect, journal.find(effect.log, effect.first, effect.bytes_max)))
                case ReleaseLog(log_id, below):
                    journal.release(log_id, below)
                case ForgetLog(log_id):
                    journal.forget(log_id)
                case LookAtNetwork(placement, peers):
                    self.submit(look_around(self._overlay, placement, peers))
                case StartRun() | FeedRun() | StopRun():
                    self.engines.perform(effect)
                case WarmEngine():
                    self.engines.warm()
                case Audited(event=happened):
                    self.counters[f"audit_{happened.what}_total"] += 1
                    tell = log.info if happened.what == "changed" else log.warning
                    tell("audit", **msgspec.structs.asdict(happened))
                case Blame(peer, reason):
                    self.counters["messages_senseless_total"] += 1
                    self.mistakes.note(peer, reason)
                case _:
                    raise AssertionError(f"no driver performs {effect}")

    def _answered(self, _request: RequestId, answer: Answer, last: bool) -> None:
        self._on_leaving(answer, last)

    def _fail(self, error: Exception) -> None:
        """A machine broke its own rules: stop before it promises anything more, and report what led to it."""
        self.is_running = False
        for at, event, effects in self._trace:
            log.error("trace", at=at, happened=_shortened(event), effects=[_shortened(effect) for effect in effects])
        log.critical("a protocol machine failed; the peer stops", error=repr(error))
        if not self.failure.done():
            self.failure.set_exception(error)

    # Time.

    def _set_timer(self, name: TimerName, after_ms: Millis) -> None:
        if (before := self._timers.get(name)) is not None:
            before.cancel()
        self._timers[name] = self._loop.call_later(after_ms / 1000, self._fire, name)

    def _fire(self, name: TimerName) -> None:
        del self._timers[name]
        self.submit(TimerFired(name))

    # The disk.

    def _commit_soon(self) -> None:
        if self._commit is None:
            self._release()
            if (pending := self._journal.take()) is not None:
                self._commit = asyncio.create_task(self._commit_all(pending))

    def _release(self) -> None:
        """Perform what waited for the disk; it may cause more that need not wait."""
        while released := self._gate.release(self._journal.synced):
            self._perform(released)

    async def _commit_all(self, pending: Pending | None) -> None:
        """Write and sync, again while more was appended meanwhile; then perform what waited for it."""
        try:
            while pending is not None:
                await self._write(pending)
                self._journal.done(pending)
                self.counters["commits_total"] += 1
                self._release()
                self._save_space()
                pending = self._journal.take()
        except Exception as error:  # noqa: BLE001 - A disk that fails in any other way than being full ends the peer.
            self._fail(error)
        finally:
            self._commit = None

    def _save_space(self) -> None:
        """Begin what keeps the journal small, if there is enough to gain."""
        if self._journal.wants_snapshot:
            self._journal.snapshot(self._peer.snapshot())
        elif (piece := self._journal.compact()) is not None:
            self._tasks.spawn(self._compact(piece))

    async def _compact(self, piece: Piece | None) -> None:
        """Move what is kept of an old segment; _save_space() goes on once so much of it is moved that it must be
        written first.
        """
        try:
            while piece is not None:
                found = await patiently(None, piece.read, self._disk)
                self._journal.move(piece, found)
                self._turn_soon()
                piece = self._journal.compact() if found is not None else None
        except Exception as error:  # noqa: BLE001 - As in a commit: nobody knows what the disk holds.
            self._fail(error)

    async def _read(self, wanted: ReadLog, reading: Reading) -> None:
        try:
            batches = await patiently(None, reading.read, self._disk)
            while not batches and reading.places:  # Moved meanwhile, or released: then there are no places any more.
                reading = self._journal.find(wanted.log, wanted.first, wanted.bytes_max)
                batches = await patiently(None, reading.read, self._disk)
        except JournalCorrupt as error:
            self._fail(error)
        else:
            self.submit(LogRead(wanted.log, wanted.first, batches))

    async def _write(self, pending: Pending) -> None:
        while True:
            try:
                return await patiently(self._thread, pending.write, self._disk)
            except DiskFull:
                log.warning("the disk is full; nothing is acknowledged until there is room")
                self.submit(DiskSpace(is_low=True))
                await asyncio.sleep(DISK_FULL_RETRY_S)

    # The network.

    def _received(self, sender: PeerId, _key: Key | None, payload: bytes) -> None:
        if self.mistakes.is_throttled(sender):
            self.counters["messages_throttled_total"] += 1
            return
        apart = self._overlay.understanding.apart.get(sender)
        if apart is not None and FAMILY_OF_NAME.get(kind_in(payload)) in apart.unshared:
            self.counters["messages_unread_total"] += 1  # Its sender knows: there it has failed.
            return
        try:
            message = MESSAGES.decode(payload)
        except UnknownKind as error:
            self._say_unknown(sender, error.kind)
            return
        except RemoteProtocolError as error:
            self.counters["messages_malformed_total"] += 1
            self.mistakes.note(sender, str(error))
            return
        self.counters["messages_in_total"] += 1
        size = len(payload) + MESSAGE_BYTES
        self._waiting[sender] += size
        self._queue(_Heard(Received(sender, message), size))

    def _say_unknown(self, sender: PeerId, kind: str) -> None:
        """A newer release has a kind of message that this one lacks: count it, and say so once for each peer."""
        self.counters["messages_unknown_total"] += 1
        if (sender, kind) not in self._unknown and len(self._unknown) < UNKNOWN_SAID_MAX:
            self._unknown[sender, kind] = None
            log.warning("a message of a kind this release does not know", sender=sender.short, kind=kind)

    def _neighbourhood_changed(self, *_: PeerRecord | str) -> None:
        """Tell the machines who entered and who left the neighbourhood."""
        if not self.is_running:
            return
        now = {record.peer_id: None for record in self._overlay.neighbours()}
        for peer in self._neighbours.keys() - now.keys():
            self.submit(PeerDown(peer))
        for peer in now.keys() - self._neighbours.keys():
            self.submit(PeerUp(peer))
        self._neighbours = now

    async def _look_around(self) -> None:
        """Tell the machines now and then who is near, and how full the disk is; see to it that it does not fill."""
        disk_was_low = False
        nearest_due_at = 0.0
        while True:
            is_low = self._disk.used_share >= DISK_USED_MAX
            if is_low != disk_was_low:
                self.submit(DiskSpace(is_low))
                disk_was_low = is_low
            if self._loop.time() >= nearest_due_at:
                self.submit(NearestPeers(self._nearest()))
                nearest_due_at = self._loop.time() + NEAREST_EVERY_S
            self._neighbourhood_changed()
            self._save_space()
            await asyncio.sleep(DISK_LOOK_EVERY_S)

    async def _keep_links(self) -> None:
        """Dial early, because a dial takes two round trips and the first query should not wait for it."""
        while True:
            await self._overlay.keep_links()
            await asyncio.sleep(LINKS_LOOK_EVERY_S)

    async def _watch_the_clock(self) -> None:
        """Tell the machines how far our clock is from the others'."""
        last = ClockCompared(0, 0)
        while True:
            compared = self._overlay.clock()
            if compared != last:
                self.submit(compared)
                last = compared
            await asyncio.sleep(CLOCK_LOOK_EVERY_S)

    def _nearest(self) -> tuple[PeerId, ...]:
        """Whom a publisher may ask to keep a copy: the nearest that share delivery."""
        shares = self._overlay.understanding.shares
        alive = [member for member in self._overlay.members() if member.status == "alive" and not member.is_self]
        near = [member for member in alive if shares(member.peer_id, "delivery")]
        near.sort(key=lambda member: (member.rtt_ms is None, member.rtt_ms, member.peer_id))
        return tuple(member.peer_id for member in near[:NEAREST_PEERS_MAX])


def _life(disk: FileDisk) -> bytes:
    """The name of a journal, created together with it."""
    if LIFE_FILE not in disk.names():
        disk.replace(LIFE_FILE, secrets.token_bytes(16))
    return disk.read(LIFE_FILE)


def _now() -> Millis:
    return time.time_ns() // 1_000_000


def _shortened(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= _TRACE_CHARACTERS else f"{text[:_TRACE_CHARACTERS]}…"


def _nobody_asked(request: RequestId, answer: Answer, _last: bool) -> None:
    log.warning("an answer for nobody", request=request, answer=type(answer).__name__)
