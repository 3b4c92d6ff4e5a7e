"""One run of a scenario, from its seed to a verdict; and many of them, on several processors.

Two phases. While faults last nothing false may be delivered. Then everything heals, and within a bounded time
everything due must have been delivered, equal to what the oracle says.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from overlay.sim.crowding import capacities_of
from overlay.sim.faults import Faults, draw_rules
from overlay.sim.oracle import Violation
from overlay.sim.query_workload import QueriesWorkload, QueryWorkload
from overlay.sim.ranges import draw
from overlay.sim.scenario import Scenario, parse_scenario
from overlay.sim.surroundings import PeerFailed
from overlay.sim.topology import TOPOLOGY_NAMES, make_topology
from overlay.sim.trace import Trace, places_of
from overlay.sim.workload import Workload
from overlay.sim.world import World
from protocols.ids import Millis, PeerId
from protocols.limits import Limits
from protocols.messages import Message
from protocols.peer import Peer
from protocols.sharing.capacity import Capacity
from protocols.store.limits import StoreLimits
from protocols.wire import MESSAGES, RECORDS

WARM_UP_MS: Final = 1_000
LOOK_MS: Final = 500  # How often the second phase checks whether all is well.
SHOWN_MAX: Final = 10
SMALL_LIMITS: Final = Limits(
    relays_every_ms=1000,
    relays_for_all=True,
    publish_bytes_max=256,
    unsafe_bytes_max=64,
    waiting_publishes_max=2,
    recent_bytes=48,
    message_bytes=32,
    credit_bytes=64,
    client_bytes_max=48,
    shared_bytes=48,
    memory_stream_bytes_max=96,
    late_join_ms=200,
)
SMALL_STORE_LIMITS: Final = StoreLimits(versions_max=2, message_bytes=256, operations_max=24, entries_per_event=20)
SMALL_SEGMENT_BYTES: Final = 1_024
SEGMENT_BYTES: Final = 256 << 10
SYNC_MS_MAX: Final = (6, 30, 300)  # Some disks are slow, so much is unsynced when the power fails.


class Verdict(Enum):
    """How a run ended; the value is the exit code."""

    OK = 0
    CRASH = 10  # A peer broke one of its own rules.
    LIVENESS = 11  # Something due did not happen in time.
    CORRECTNESS = 12  # Something false was delivered or promised.


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed."""

    seed: int
    verdict: Verdict
    trace_hash: str
    peers: int
    events: int
    steps: int
    virtual_ms: Millis
    took_s: float
    accepted: int  # Publishes that were acknowledged,
    delivered: int  # and rows that reached a reader.
    moves: int = 0  # Moves of operators to a better placement.
    joins_apart: int = 0  # Joins that run, at the end, at another peer than the join that reads them.
    refused: int = 0  # Queries for which there was no room.
    faults: dict[str, int] = field(default_factory=dict)
    network: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    last_lines: tuple[str, ...] = ()


def _through_codec(message: Message) -> Message:
    decoded = MESSAGES.decode(MESSAGES.encode(message))
    assert decoded == message, f"{message} comes back from the wire as {decoded}"
    return decoded


class Run:
    """One seed of one scenario."""

    def __init__(self, scenario: Scenario, seed: int, write: Callable[[str], object] | None = None) -> None:
        self._scenario = scenario
        self._seed = seed
        rng = random.Random(f"{seed}/scenario")
        peers = draw(rng, scenario.peers)
        topology = rng.choice(TOPOLOGY_NAMES)
        rules = draw_rules(rng)
        is_small = rng.random() < scenario.small_limits_share
        limits, store_limits = (SMALL_LIMITS, SMALL_STORE_LIMITS) if is_small else (Limits(), StoreLimits())
        sync_ms_max = rng.choice(SYNC_MS_MAX)

        is_crowded = isinstance(scenario.workload, QueriesWorkload) and scenario.workload.crowded

        def make(peer_id: PeerId, rng: random.Random) -> Peer:
            peer = Peer(peer_id, rng, limits, store_limits)
            peer.executor.has_spark = has_engine(peer_id)
            if is_crowded:
                is_needed = peer_id == self.world.peers[0].peer_id
                peer.executor.admission.capacity = Capacity(capacities_of(seed, peer_id, is_needed=is_needed))
            return peer

        def has_engine(peer_id: PeerId) -> bool:
            if not isinstance(scenario.workload, QueriesWorkload) or peer_id == self.world.peers[0].peer_id:
                return True
            luck = random.Random(f"{seed}/spark/{peer_id.hex()}")  # The same in each of its lives.
            return luck.random() >= scenario.workload.without_spark

        self.world = World(
            seed,
            make,
            RECORDS.encode,
            RECORDS.decode,
            topology=make_topology(
                topology if scenario.topology == "any" else scenario.topology, rng, scenario.transit_stub
            ),
            codec=_through_codec,
            trace=Trace(write),
            validate_every=scenario.validate_every,
            segment_bytes=SMALL_SEGMENT_BYTES if is_small else SEGMENT_BYTES,
            sync_ms_max=sync_ms_max,
            has_engine=has_engine,
            is_crowded=is_crowded,
        )
        self._faults = Faults(
            self.world, rules if scenario.faults == "all" else scenario.faults, int(scenario.for_s * 1000)
        )
        self._workload = (
            QueryWorkload(self.world, scenario.workload)
            if isinstance(scenario.workload, QueriesWorkload)
            else Workload(self.world, scenario.workload)
        )
        self._peers = peers

    def __call__(self) -> Outcome:
        """Run it to its end."""
        started = time.process_time()
        verdict, problem = self._play()
        oracle, world = self._workload.oracle, self.world
        return Outcome(
            seed=self._seed,
            verdict=verdict,
            trace_hash=world.trace.hash,
            peers=len(world.peers),
            events=world.agenda.done,
            steps=world.trace.steps,
            virtual_ms=world.now,
            took_s=time.process_time() - started,
            accepted=oracle.accepted_count,
            delivered=oracle.deliveries,
            moves=self._workload.moves if isinstance(self._workload, QueryWorkload) else 0,
            refused=self._workload.refused if isinstance(self._workload, QueryWorkload) else 0,
            joins_apart=self._workload.joins_apart if isinstance(self._workload, QueryWorkload) else 0,
            faults=dict(self._faults.counters),
            network=dict(world.network.counters),
            problem=problem,
            last_lines=() if verdict is Verdict.OK else tuple(world.trace.last_lines()),
        )

    def _play(self) -> tuple[Verdict, str]:
        try:
            self._under_faults()
            missing = self._healed()
            self._workload.oracle.check_end()
        except Violation as violation:
            return Verdict.CORRECTNESS, str(violation)
        except PeerFailed as failure:
            return Verdict.CRASH, str(failure)
        except Exception as error:  # noqa: BLE001 - a journal's mistake, or our own: whoever made it, tell the seed.
            return Verdict.CRASH, f"{type(error).__name__}: {error} {places_of(error)}"
        if missing:
            shown = "\n".join(missing[:SHOWN_MAX])
            return Verdict.LIVENESS, f"{len(missing)} things due have not happened:\n{shown}"
        return Verdict.OK, ""

    def _under_faults(self) -> None:
        self.world.start(self._peers)
        self.world.run_for(WARM_UP_MS)
        self._workload.begin()
        self._faults.plan()
        self.world.run_for(int(self._scenario.for_s * 1000))

    def _healed(self) -> list[str]:
        """Wait until everything due has happened, and a little longer; returns what is missing at the end."""
        self._faults.heal()
        self._workload.calm()
        deadline = self.world.now + int(self._scenario.heal_s * 1000)
        if not (missing := self._wait(deadline)):
            self.world.run_for(int(self._scenario.settle_s * 1000))
            missing = self._wait(deadline)  # Nothing false may have come since, and a leaving peer may just be back.
        return missing

    def _wait(self, deadline: Millis) -> list[str]:
        while (missing := self._workload.due()) and self.world.now < deadline:
            self.world.run_for(LOOK_MS)
        return missing


def run(scenario: Scenario, seed: int, write: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed."""
    was_on = gc.isenabled()
    gc.disable()  # A run makes millions of objects and few cycles, so collecting costs more than it frees.
    try:
        return Run(scenario, seed, write)()
    finally:
        if was_on:
            gc.enable()
        gc.collect()


def _run_text(text: str, seed: int) -> Outcome:
    return run(parse_scenario(text), seed)


def run_many(text: str, seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Run many seeds of one scenario, in the order of the seeds."""
    if jobs == 1:
        yield from (_run_text(text, seed) for seed in seeds)
        return
    pool = ProcessPoolExecutor(jobs, initializer=gc.freeze)  # Modules stay, so no run's collection need visit them.
    try:
        futures = [pool.submit(_run_text, text, seed) for seed in seeds]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
