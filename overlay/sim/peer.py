"""One simulated peer: the machine that a daemon runs, driven in virtual time on a disk that may fail.

It performs effects as `peerd/driver.py` does: one event, its effects in order, then the next event; one write to the
disk at a time, and only then what waits for it. A crash forgets everything but the disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from overlay.clocks import Clocks
from overlay.sim import crowding
from overlay.sim.disk import SimDisk
from overlay.sim.engine import ReferenceEngine
from overlay.sim.power import FailingDisk, PowerLost
from overlay.sim.surroundings import Machine, OnAnswer, PeerFailed, Surroundings
from overlay.sim.trace import places_of
from protocols.clock import OFFSET_MAX_MS, PEERS_MIN
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
from protocols.events import (
    Abandoned,
    ClockCompared,
    DiskSpace,
    Event,
    LogRead,
    NearestPeers,
    PeerDown,
    PeerUp,
    Requested,
    Started,
    TimerFired,
)
from protocols.execution.engine import (
    EngineTried,
    FeedRun,
    RunId,
    RunResults,
    RunStarted,
    StartRun,
    StopRun,
    WarmEngine,
)
from protocols.ids import Millis, PeerId, RequestId, TimerName
from protocols.journal.compaction import Piece
from protocols.journal.disk import DiskFull
from protocols.journal.journal import Journal
from protocols.journal.pending import Pending, Reading
from protocols.messages import Answer, Command
from protocols.rights.audit import Audited
from protocols.sight import LookAtNetwork, NetworkSeen
from protocols.store.messages import Leave
from queries.schema import Row

EPOCH_MS: Final = 1_750_000_000_000  # What wall clocks show when a simulation begins.
CONTACTS: Final = 24  # Peers beside its neighbours whose distance a peer measures.
NEAREST: Final = 16
MEASURE_MS: Final = 10_000
COMPARE_CLOCKS_MS: Final = 1_000
SMALL_SKEW_MS: Final = 250  # A clock that is off by less need not be corrected.
FULL_DISK_RETRY_MS: Final = 500
READ_MS: Final = 1
START_RUN_MS: Final = 200
WARM_MS_MAX: Final = 8000  # The longest first start of an engine.
FAILS_SHARE: Final = 0.2  # Share of first starts that fail.
FEED_RUN_MS: Final = 30


class SimPeer:
    """A peer's place in a simulation; its machine comes and goes with its lives."""

    __slots__ = (
        "_around",
        "_by_delay",
        "_clocks",
        "_contacts",
        "_engine",
        "_gate",
        "_is_committing",
        "_is_comparing",
        "_is_holding",
        "_journal",
        "_machine",
        "_made",
        "_meter",
        "_neighbours",
        "_pending",
        "_requests",
        "_timers",
        "_unvalidated",
        "_warm_at",
        "clock_off_since",
        "disk",
        "disk_is_low",
        "disks",
        "index",
        "is_proxy",
        "is_up",
        "life",
        "may_leave",
        "paused_until",
        "peer_id",
        "skew_ms",
        "slow_ms",
        "told_clock",
    )

    def __init__(self, index: int, peer_id: PeerId, around: Surroundings) -> None:
        self.index = index
        self.peer_id = peer_id
        self.disk = SimDisk(around.disk_rng, lost_share=0.0, torn_share=0.0)  # Until a fault says otherwise.
        self.disks = 1  # How many it has had.
        self.is_up = False
        self.life = 0
        self.may_leave = True
        self.is_proxy = False  # Of queries that another peer would take over.
        self.skew_ms: Millis = 0
        self.slow_ms: Millis = 0
        self.paused_until: Millis = 0
        self._around = around
        self._contacts: list[int] | None = None
        self.disk_is_low = False
        self._unvalidated = 0
        self._forget()

    def _forget(self) -> None:
        """Only the disk survives from one life to the next."""
        self._machine: Machine | None = None
        self._journal: Journal | None = None
        self._pending: Pending | None = None
        self._gate = SyncGate()
        self._engine = ReferenceEngine()
        self._made: dict[RunId, tuple[int, tuple[Row, ...]]] = {}  # Results not yet handed over.
        self._warm_at: Millis | None = None  # When its engine is ready, if it was asked for.
        self._is_committing = False
        self._is_holding = False  # Something new waits for the disk, and may be there already.
        self._meter = crowding.SimMeter() if self._around.is_crowded else None
        self._timers: dict[TimerName, int] = {}
        self._requests: dict[RequestId, OnAnswer] = {}
        self._neighbours: list[int] = []
        self._by_delay: list[tuple[int, PeerId]] | None = None  # Neighbours and contacts, nearest first.
        self._clocks = Clocks()
        self._is_comparing = False
        self.told_clock = ClockCompared(0, 0)  # What its machine knows of its clock,
        self.clock_off_since: Millis | None = None  # and since when it knows that the clock is too far off.

    def __repr__(self) -> str:
        return f"p{self.index}({self.peer_id.short})"

    # Its lives.

    def start(self, *, long_ago: bool = False) -> None:
        """Recover from the disk and enter the network."""
        assert not self.is_up
        around = self._around
        self.life += 1
        self._journal = Journal(
            self.disk, around.encode_record, around.decode_record, segment_bytes=around.segment_bytes
        )
        recovered = self._journal.recover()
        rng = random.Random(f"{around.seed}/{self.peer_id.hex()}/{self.life}")
        self._machine = around.make(self.peer_id, rng)
        self._machine.restore(recovered.records, recovered.logs, self.now)
        self.is_up = True
        around.membership.came_up(self.index, long_ago=long_ago)
        self.take(Started(), self.life)
        if self.disk_is_low:
            self.take(DiskSpace(is_low=True), self.life)
        around.agenda.after(0, self.neighbourhood_changed)
        around.agenda.after(int(around.rng.random() * 500), self._measure, self.life)
        if self._meter is not None:
            around.agenda.after(crowding.MEASURE_MS, self._measure_use, self._meter, self.life)
        self._compare_clocks_soon()

    def crash(self) -> None:
        """Stop between two events, or in the midst of a write."""
        assert self.is_up
        self._around.trace.step(self._around.agenda.now, self.index, "crash", ())
        if self._pending is not None:
            self._write_some(self._pending)
        self.disk.crash()
        requests = self._requests
        self.is_up = False
        self.paused_until = 0
        self._forget()
        self._around.membership.went_down(self.index)
        self._around.on_crash(self, False)
        for on_answer in requests.values():
            on_answer(None, True)

    def leave(self, on_gone: Callable[[], None]) -> None:
        """Hand over, then stop, as `peer leave` does; a crash may come first."""

        def answered(answer: Answer | None, last: bool) -> None:
            if answer is not None and last:
                self._around.agenda.after(0, self._go, self.life, on_gone)

        self.request(Leave(), answered)

    def _go(self, life: int, on_gone: Callable[[], None]) -> None:
        if self.is_up and life == self.life:
            self.crash()
            on_gone()

    def lose_disk(self) -> None:
        """All that was stored is gone for good; the peer must be down."""
        assert not self.is_up
        self._around.trace.step(self._around.agenda.now, self.index, "disk lost", ())
        self.disk.lose()
        self.disks += 1
        self._around.on_crash(self, True)

    def pause(self, for_ms: Millis) -> None:
        """Answer nobody for a while, then continue."""
        self.paused_until = self._around.agenda.now + for_ms

    def set_clock(self, skew_ms: Millis) -> None:
        """Set its clock wrong, or right again; after a while the peer can know."""
        self.skew_ms = skew_ms
        self._compare_clocks_soon()

    def disk_space(self, is_low: bool) -> None:
        """The disk has come close to its end, or has room again."""
        self.disk_is_low = is_low
        self.take(DiskSpace(is_low=is_low), self.life)

    @property
    def machine(self) -> Machine | None:
        """What runs on it, for judges to look at; None while it is down."""
        return self._machine

    @property
    def is_writing(self) -> bool:
        """Whether something is on its way to the disk."""
        return self._pending is not None

    @property
    def now(self) -> Millis:
        """What its own clock shows."""
        return self._around.agenda.now + EPOCH_MS + self.skew_ms

    # Its clients.

    def request(self, command: Command, on_answer: OnAnswer, connection: int = 0) -> RequestId:
        """Ask the peer something, as a client connected to it; connection 0 is that of its own user."""
        assert self.is_up
        self._around.requests = request = self._around.requests + 1
        self._requests[request] = on_answer
        self._around.agenda.after(1, self.take, Requested(request, command, connection), self.life)
        return request

    def tell(self, command: Command) -> None:
        """Tell the peer something that it does not answer."""
        self._around.requests = request = self._around.requests + 1
        self._around.agenda.after(1, self.take, Requested(request, command), self.life)

    def abandon(self, request: RequestId, *, is_broken: bool = False) -> bool:
        """The client goes away, or dies; tells whether it was still waiting."""
        if self._requests.pop(request, None) is None:
            return False
        self._around.agenda.after(1, self.take, Abandoned(request, is_broken), self.life)
        return True

    # Events.

    def take(self, event: Event, life: int) -> None:
        """Deliver one event, if the peer still lives the life it was meant for."""
        machine = self._machine
        if machine is None or life != self.life:
            return
        around = self._around
        now = around.agenda.now
        if now < self.paused_until:
            around.agenda.at(self.paused_until, self.take, event, life)
            return
        try:
            if self._meter is not None:
                self._meter.took(event)
            effects = machine.handle(event, now + EPOCH_MS + self.skew_ms)
            self._unvalidated += 1
            if self._unvalidated >= around.validate_every:
                self._unvalidated = 0
                machine.validate()
        except Exception as error:
            around.trace.step(now, self.index, event, ())
            raise PeerFailed(f"{self!r} failed: {type(error).__name__}: {error} {places_of(error)}") from error
        around.trace.step(now, self.index, event, effects)
        for effect in effects:
            self._PERFORM[type(effect)](self, effect)
        journal = self._journal
        if self._is_holding or (journal is not None and journal.appended != journal.synced):
            self._commit()

    def neighbourhood_changed(self) -> None:
        """Compute the neighbours, and tell the machine what changed."""
        if not self.is_up:
            return
        around = self._around
        before, after = self._neighbours, around.membership.neighbours(self.index)
        if before != after:
            self._neighbours, self._by_delay = after, None
            gone = [index for index in before if index not in after]
            come = [index for index in after if index not in before]
            for index in gone:
                self.take(PeerDown(self._id(index)), self.life)
            for index in come:
                self.take(PeerUp(self._id(index)), self.life)

    def _measure(self, life: int) -> None:
        """Tell the machine which peers are near in the network, and repeat from time to time."""
        if life != self.life or not self.is_up:
            return
        around = self._around
        if self._contacts is None:
            self._contacts = around.rng.sample(around.contacts, min(CONTACTS, len(around.contacts)))
        if self._by_delay is None:
            others = [index for index in dict.fromkeys((*self._neighbours, *self._contacts)) if index != self.index]
            others.sort(key=lambda index: (around.topology.delay_ms(self.index, index), index))
            self._by_delay = [(index, self._id(index)) for index in others]
        sees = around.membership.sees
        seen = islice((peer_id for index, peer_id in self._by_delay if sees(self.index, index)), NEAREST)
        self.take(NearestPeers(tuple(seen)), life)
        around.agenda.after(MEASURE_MS, self._measure, life)

    def _measure_use(self, meter: crowding.SimMeter, life: int) -> None:
        """Tell the machine every second what it has used."""
        if life == self.life and self.is_up:
            self.take(meter.read(), life)
            self._around.agenda.after(crowding.MEASURE_MS, self._measure_use, meter, life)

    def _seen(self) -> list[int]:
        """The peers that the overlay would know and find alive."""
        return [
            index
            for index in dict.fromkeys((*self._neighbours, *(self._contacts or ())))
            if index != self.index and self._around.membership.sees(self.index, index)
        ]

    def _compare_clocks_soon(self) -> None:
        is_notable = max(abs(self.skew_ms), abs(self.told_clock.offset_ms)) > SMALL_SKEW_MS
        if is_notable and self.is_up and not self._is_comparing:
            self._is_comparing = True
            self._around.agenda.after(COMPARE_CLOCKS_MS, self._compare_clocks, self.life)

    def _compare_clocks(self, life: int) -> None:
        """Tell the machine how far its clock is off, as the overlay would."""
        if life != self.life or not self.is_up:
            return
        around = self._around
        if around.agenda.now < self.paused_until:
            around.agenda.at(self.paused_until, self._compare_clocks, life)
            return
        others_ms = [float(around.peers[index].skew_ms) for index in self._seen()]
        compared = self._clocks.compare(float(self.skew_ms), others_ms)
        if compared != self.told_clock:
            self.told_clock = compared
            is_off = abs(compared.offset_ms) > OFFSET_MAX_MS and compared.peers >= PEERS_MIN
            since = self.clock_off_since if self.clock_off_since is not None else around.agenda.now
            self.clock_off_since = since if is_off else None
            self.take(compared, life)
        self._is_comparing = False
        self._compare_clocks_soon()

    def _id(self, index: int) -> PeerId:
        return self._around.membership.peer_id(index)

    # Effects.

    def _send(self, effect: Send) -> None:
        if self._meter is not None:
            self._meter.sent(effect)
        self._around.network.send(self, effect.peer, effect.message)

    def _route(self, effect: Route) -> None:
        self._around.network.route(self, effect.key, effect.message)

    def _set_timer(self, effect: SetTimer) -> None:
        turn = self._timers.get(effect.name, 0) + 1
        self._timers[effect.name] = turn
        self._around.agenda.after(effect.after_ms, self._fire, effect.name, turn, self.life)

    def _fire(self, name: TimerName, turn: int, life: int) -> None:
        if life == self.life and self._timers.get(name) == turn:
            self.take(TimerFired(name), life)

    def _reply(self, effect: Reply) -> None:
        on_answer = self._requests.get(effect.request)
        if on_answer is not None:  # The client may have gone away meanwhile.
            if effect.last:
                del self._requests[effect.request]
            on_answer(effect.answer, effect.last)

    def _append(self, effect: Append) -> None:
        assert self._journal is not None
        self._journal.append(effect.record)

    def _append_batch(self, effect: AppendBatch) -> None:
        assert self._journal is not None
        self._journal.append_batch(effect.log, effect.batch)

    def _release_log(self, effect: ReleaseLog) -> None:
        assert self._journal is not None
        self._journal.release(effect.log, effect.below)

    def _forget_log(self, effect: ForgetLog) -> None:
        assert self._journal is not None
        self._journal.forget(effect.log)

    def _read_log(self, effect: ReadLog) -> None:
        assert self._journal is not None
        reading = self._journal.find(effect.log, effect.first, effect.bytes_max)
        self._around.agenda.after(READ_MS + self.slow_ms, self._read, effect, reading, self.life)

    def _read(self, effect: ReadLog, reading: Reading, life: int) -> None:
        if life == self.life and self._journal is not None:
            batches = reading.read(self.disk)
            if not batches and reading.places:  # Moved meanwhile, or released.
                self._read_log(effect)
            else:
                self.take(LogRead(effect.log, effect.first, batches), life)

    def _after_sync(self, effect: AfterSync) -> None:
        assert self._journal is not None
        self._gate.hold(self._journal.appended, effect.effects)
        self._is_holding = True

    def _tell(self, effect: Tell) -> None:
        self.take(effect.event, self.life)

    def _look_at_network(self, effect: LookAtNetwork) -> None:
        """What coordinates would tell: the distances between the peers that the overlay knows."""
        around = self._around
        known = [self.index, *self._seen()]
        known += [peer.index for peer in around.peers if peer.peer_id in effect.peers and peer.index not in known]
        if around.network.versions is not None:
            known = [each for each in known if around.network.shares(self.peer_id, self._id(each), "execution")]
        rows = tuple(tuple(0.0 if a == b else float(around.topology.delay_ms(a, b)) for b in known) for a in known)
        engines = tuple(self._id(each) for each in known if around.has_engine(self._id(each)))
        ids = tuple(map(self._id, known))
        seen = NetworkSeen(effect.placement, ids, rows, engines, sieving=ids)
        if around.is_crowded:
            seen = crowding.told(seen, around.peers)
        around.agenda.after(0, self.take, seen, self.life)

    # The engine.

    def _start_run(self, effect: StartRun) -> None:
        self._engine.start(effect)
        self._around.agenda.after(START_RUN_MS + self.slow_ms, self.take, RunStarted(effect.run), self.life)

    def _feed_run(self, effect: FeedRun) -> None:
        """Results come a little later; inputs that come close together give one batch of results."""
        if self._around.is_stuck(effect.run):
            return
        _, rows = self._made.get(effect.run, (0, ()))
        self._made[effect.run] = effect.number, rows + self._engine.feed(effect)
        self._around.agenda.after(FEED_RUN_MS + self.slow_ms, self._hand_results, effect.run, self.life)

    def _hand_results(self, run: RunId, life: int) -> None:
        if life == self.life and run in self._made:
            number, rows = self._made.pop(run)
            self.take(RunResults(run, number, rows), life)

    def _warm_engine(self, _: WarmEngine) -> None:
        """The first start in a life takes a while. It may fail and is then repeated by itself."""
        around = self._around
        if self._warm_at is None:
            takes_ms = around.rng.randrange(WARM_MS_MAX) + self.slow_ms
            if around.rng.random() < FAILS_SHARE:
                around.agenda.after(takes_ms, self.take, EngineTried("it has no room"), self.life)
                takes_ms += WARM_MS_MAX
            self._warm_at = around.agenda.now + takes_ms
            around.agenda.after(takes_ms, self.take, EngineTried(), self.life)
        elif around.agenda.now >= self._warm_at:
            around.agenda.after(0, self.take, EngineTried(), self.life)

    def _stop_run(self, effect: StopRun) -> None:
        self._engine.stop(effect.run)
        self._made.pop(effect.run, None)

    # The disk.

    def _commit(self) -> None:
        """Perform what the disk has made safe, and begin to write the rest, one write at a time."""
        journal = self._journal
        if journal is None or self._is_committing:
            return
        self._is_committing = True
        while released := self._gate.release(journal.synced):
            for effect in released:
                self._PERFORM[type(effect)](self, effect)
        self._is_committing = self._is_holding = False
        if self._pending is None and (pending := journal.take()) is not None:
            self._pending = pending
            around = self._around
            sync_ms = 1 + int(around.rng.random() * around.sync_ms_max)
            around.agenda.after(sync_ms + self.slow_ms, self._synced, self.life)

    def _synced(self, life: int) -> None:
        """One write has reached the disk, or found it full."""
        journal, pending = self._journal, self._pending
        if life != self.life or journal is None or pending is None:
            return
        try:
            pending.write(self.disk)
        except DiskFull:
            self._around.agenda.after(FULL_DISK_RETRY_MS, self._synced, life)
            return
        journal.done(pending)
        self._pending = None
        self._save_space()
        self._commit()

    def _save_space(self) -> None:
        """Begin what keeps the journal small, as a daemon does."""
        journal, machine = self._journal, self._machine
        assert journal is not None
        if journal.wants_snapshot and machine is not None:
            journal.snapshot(machine.snapshot())
        elif (piece := journal.compact()) is not None:
            self._around.agenda.after(READ_MS + self.slow_ms, self._compact, piece, self.life)

    def _compact(self, piece: Piece, life: int) -> None:
        journal = self._journal
        if life == self.life and journal is not None:
            found = piece.read(self.disk)
            journal.move(piece, found)
            if found is not None:
                self._save_space()
            self._commit()

    def _write_some(self, pending: Pending) -> None:
        """A crash during a write: some of it is safe, some is up to the disk, the rest never began."""
        try:
            pending.write(FailingDisk(self.disk, steps=self._around.disk_rng.randrange(3)))
        except (DiskFull, PowerLost):
            pass

    _PERFORM: Final[dict[type[Effect], Callable[[SimPeer, Any], None]]] = {
        Send: _send,
        Route: _route,
        SetTimer: _set_timer,
        Reply: _reply,
        Append: _append,
        AppendBatch: _append_batch,
        ReleaseLog: _release_log,
        ForgetLog: _forget_log,
        ReadLog: _read_log,
        AfterSync: _after_sync,
        Tell: _tell,
        Blame: lambda _self, _effect: None,  # The trace has it.
        Audited: lambda _self, _effect: None,
        StartRun: _start_run,
        FeedRun: _feed_run,
        StopRun: _stop_run,
        WarmEngine: _warm_engine,
        LookAtNetwork: _look_at_network,
    }
