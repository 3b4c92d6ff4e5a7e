"""One simulated network: its peers, the network between them, and their common time; everything from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from overlay.sim.agenda import Agenda
from overlay.sim.membership import Membership
from overlay.sim.network import Codec, Network
from overlay.sim.peer import SimPeer
from overlay.sim.surroundings import Machine, OnCrash, Surroundings
from overlay.sim.topology import Topology, UniformTopology
from overlay.sim.trace import Trace
from protocols.execution.engine import RunId
from protocols.ids import Millis, PeerId
from protocols.messages import Record


class World:
    """Peers in virtual time.

    Every purpose has a random generator of its own, so drawing one more number for the disks does not change what the
    network does.
    """

    def __init__(
        self,
        seed: int,
        make: Callable[[PeerId, random.Random], Machine],
        encode_record: Callable[[Record], bytes],
        decode_record: Callable[[bytes], Record],
        *,
        topology: Topology | None = None,
        codec: Codec | None = None,
        trace: Trace | None = None,
        validate_every: int = 1,
        segment_bytes: int = 1 << 20,
        sync_ms_max: Millis = 6,
        has_engine: Callable[[PeerId], bool] = lambda _: True,
        is_crowded: bool = False,
    ) -> None:
        self.seed = seed
        self.agenda = Agenda()
        self.trace = trace or Trace()
        self.topology = topology or UniformTopology(self.rng("topology"), (5, 80))
        self.membership = Membership(self.agenda, self.rng("membership").getrandbits(32))
        self.network = Network(self.agenda, self.membership, self.topology, self.rng("network"), codec)
        self.peers: list[SimPeer] = []
        self._around = Surroundings(
            seed=seed,
            agenda=self.agenda,
            membership=self.membership,
            network=self.network,
            topology=self.topology,
            trace=self.trace,
            make=make,
            encode_record=encode_record,
            decode_record=decode_record,
            disk_rng=self.rng("disks"),
            rng=self.rng("peers"),
            validate_every=validate_every,
            segment_bytes=segment_bytes,
            sync_ms_max=sync_ms_max,
            has_engine=has_engine,
            is_crowded=is_crowded,
            peers=self.peers,
        )

    def rng(self, purpose: str) -> random.Random:
        """The random generator for one purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def now(self) -> Millis:
        return self.agenda.now

    def on_crash(self, listener: OnCrash) -> None:
        """Call a listener at every crash."""
        self._around.on_crash = listener

    def let_engines_stick(self, is_stuck: Callable[[RunId], bool]) -> None:
        """From now on engines take rows of these runs and never answer."""
        self._around.is_stuck = is_stuck

    def add_peer(self) -> SimPeer:
        """A peer that is not up yet."""
        index = len(self.peers)
        peer = SimPeer(index, PeerId.of("simulated", str(self.seed), str(index)), self._around)
        self.peers.append(peer)
        self.membership.add(peer)
        self.network.add(peer)
        self._around.contacts.append(index)
        return peer

    def start(self, count: int) -> list[SimPeer]:
        """Add peers that know each other from the beginning."""
        added = [self.add_peer() for _ in range(count)]
        for peer in added:
            peer.start(long_ago=True)
        return added

    def run_for(self, span_ms: Millis) -> None:
        self.agenda.run_until(self.now + span_ms)
