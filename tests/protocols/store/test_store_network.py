"""The store in bad weather: whatever happens to peers, disks and network, what was acknowledged is there."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from protocols.ids import Key, PeerId
from protocols.store.events import StoreRead, StoreWritten
from protocols.store.limits import StoreLimits
from tests.protocols.store.network import QUICK, Faults, StoreNetwork

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 16))]


@dataclass
class Item:
    """One entry with one write at a time, counting up: which numbers were acknowledged, and which may be there."""

    key: Key
    name: str
    tried: int = 0
    tried_at: int = 0
    is_waiting: bool = False
    acked: int = 0
    undecided: dict[int, None] = field(default_factory=dict)  # Without an answer: they may take effect at any time.

    def allows(self, found: int, least: int) -> bool:
        return found >= least or found in self.undecided


class Workload:
    """Writes numbers to some items, reads them, and keeps the books."""

    def __init__(self, network: StoreNetwork, items: int, seed: int, check_reads: bool) -> None:
        self.network = network
        self.rng = random.Random(seed)
        self.items = [Item(Key.of("item", str(number // 2)), f"n{number}") for number in range(items)]
        self.check_reads = check_reads
        self.floor: dict[str, int] | None = None  # What a read must show at least, if not all acknowledged before it.
        self.acked = 0
        self.reads = 0
        self._reading: dict[int, dict[str, int]] = {}
        self._read_keys: dict[int, Key] = {}
        self._count = 0

    def step(self) -> None:
        self.collect()
        if not self.network.up:
            return
        peer = self.rng.choice(self.network.up)
        item = self.rng.choice(self.items)
        if self.rng.random() < 0.5:
            if item.is_waiting:
                return
            item.tried, item.tried_at, item.is_waiting = item.tried + 1, self.network.time, True
            self.network.write(peer, item.key, item.name, str(item.tried).encode(), ("w", item.name, item.tried))
        else:
            self._count += 1
            self._read_keys[self._count] = item.key
            self._reading[self._count] = self.floor or self.acknowledged()
            self.network.read(peer, item.key, ("r", self._count))

    def collect(self) -> None:
        for item in self.items:
            if not item.is_waiting:
                continue
            event = self.network.told.pop(("w", item.name, item.tried), None)
            if isinstance(event, StoreWritten):
                item.acked, item.is_waiting = item.tried, False
                self.acked += 1
            elif event is not None or self.network.time > item.tried_at + 2 * self.network.limits.deadline_ms:
                item.undecided[item.tried] = None  # It failed, or the peer that waited for it crashed.
                item.is_waiting = False
        for number in list(self._reading):
            event = self.network.told.pop(("r", number), None)
            if event is None:
                continue
            least = self._reading.pop(number)
            if isinstance(event, StoreRead) and self.check_reads:
                self.reads += 1
                self.check(event, least)

    def check(self, event: StoreRead, least: dict[str, int]) -> None:
        found = {entry.item: int(entry.value or b"0") for entry in event.entries}
        for item in self.items:
            if item.key == event.key and least[item.name]:
                assert item.allows(found.get(item.name, 0), least[item.name]), (
                    f"read {item.name}={found.get(item.name)} under {item.key} "
                    f"after {least[item.name]} was acknowledged"
                )

    def acknowledged(self) -> dict[str, int]:
        return {item.name: item.acked for item in self.items}

    def check_all(self) -> None:
        """Once all is well, every peer reads every acknowledged number, or a later one."""
        loss, self.network.faults.loss = self.network.faults.loss, 0
        self.network.run(20_000)
        self.collect()
        for key in dict.fromkeys(item.key for item in self.items):
            for peer in self.network.up:
                token = ("r", "last", peer.hex(), key.hex())
                self.network.read(peer, key, token)
                self.network.run_until(lambda token=token: token in self.network.told)
                event = self.network.told.pop(token)
                assert isinstance(event, StoreRead), event
                self.check(event, self.acknowledged())
        self.network.faults.loss = loss

    def check_copies(self) -> None:
        """The nearest three hold the same, and nobody else holds anything."""
        for key in dict.fromkeys(item.key for item in self.items):
            owners = self.network.owners(key)
            held = {peer: self.network.held(peer, key) for peer in self.network.up}
            for peer in self.network.up:
                expected = held[owners[0]] if peer in owners else {}
                assert held[peer] == expected, f"{key} at {peer}: {held[peer]}, expected {expected}; owners {owners}"


def steps(seed: int) -> StoreLimits:
    """With every other seed all tables are large ones: what looks at them takes several events."""
    return replace(QUICK, entries_per_event=3) if seed % 2 else QUICK


def weather(seed: int) -> Faults:
    rng = random.Random(seed)
    return Faults(
        loss=rng.choice([0, 0.02, 0.15]),
        repeat=rng.choice([0, 0.1, 0.5]),
        latency_ms=rng.choice([(1, 40), (1, 300)]),
        sync_ms=rng.choice([(0, 5), (5, 200), (200, 1_500)]),
        skew_ms=rng.choice([0, 400]),
    )


class Chaos:
    """Crashes and restarts of the peers nearest to one key, at most `down_max` at once."""

    def __init__(self, network: StoreNetwork, key: Key, seed: int, down_max: int) -> None:
        self.network = network
        self.key = key
        self.rng = random.Random(seed)
        self.down: list[PeerId] = []
        self.down_max = down_max

    def step(self) -> None:
        if self.down and (len(self.down) >= self.down_max or self.rng.random() < 0.3):
            self.network.start(self.down.pop(self.rng.randrange(len(self.down))))
        else:
            victim = self.rng.choice(self.network.owners(self.key, 5))
            self.network.crash(victim)
            self.down.append(victim)

    def power_cut(self) -> None:
        """Everybody goes at once, and comes back."""
        self.down += self.network.up
        for peer in self.network.up:
            self.network.crash(peer)
        self.end()

    def end(self) -> None:
        while self.down:
            self.network.start(self.down.pop())


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_while_peers_crash_and_return(seed: int):
    """Any number of crashes, the disks intact; now and then the power fails everywhere, the moment a write is done."""
    print(f"seed={seed}")
    network = StoreNetwork(seed, peers=7, faults=weather(seed), limits=steps(seed))
    network.run(5_000)
    workload = Workload(network, 4, seed, check_reads=False)
    chaos = Chaos(network, workload.items[0].key, seed, down_max=4)
    for step in range(150):
        workload.step()
        if step % 10 == 0:
            chaos.step()
        if step % 40 == 39:
            acked = workload.acked
            while workload.acked == acked and network.up:
                workload.step()
                network.run(10)
            chaos.power_cut()
            workload.check_all()
        network.run(network.rng.randint(0, 500))
    chaos.end()
    network.faults.loss = 0
    network.run(60_000)
    workload.check_all()
    workload.check_copies()
    assert workload.acked > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_sees_all_that_was_acknowledged_before_it_while_single_peers_crash(seed: int):
    print(f"seed={seed}")
    network = StoreNetwork(seed, peers=8, faults=weather(seed), limits=steps(seed))
    network.faults.notice_ms = (50, 4_000)
    network.run(5_000)
    workload = Workload(network, 2, seed, check_reads=True)
    chaos = Chaos(network, workload.items[0].key, seed, down_max=1)
    for step in range(600):
        workload.step()
        if step % 60 == 59:
            chaos.step()
        network.run(network.rng.randint(0, 100))
    chaos.end()
    network.faults.loss = 0
    network.run(40_000)
    workload.check_all()
    assert workload.acked > 5
    assert workload.reads > 20


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_lost_the_moment_a_write_is_done_costs_nothing(seed: int):
    """One disk at any time, another once repair is over."""
    print(f"seed={seed}")
    network = StoreNetwork(seed, peers=6, faults=weather(seed), limits=steps(seed))
    network.run(5_000)
    workload = Workload(network, 4, seed, check_reads=True)
    for _ in range(8):
        acked = workload.acked
        while workload.acked < acked + 3:
            workload.step()
            network.run(10)
        victim = network.rng.choice(network.owners(workload.items[0].key))
        network.crash(victim, lose_disk=True)
        network.run(network.rng.choice([200, 8_000]))
        network.start(victim)
        network.run(25_000)
    network.faults.loss = 0
    workload.check_all()


@pytest.mark.parametrize("seed", SEEDS)
def test_peers_that_join_take_over_and_the_others_let_go(seed: int):
    """Two peers join at a time, sometimes when hardly any message arrives."""
    print(f"seed={seed}")
    network = StoreNetwork(seed, peers=1, faults=weather(seed), limits=steps(seed))
    network.run(3_000)
    workload = Workload(network, 10, seed, check_reads=True)
    for step in range(120):
        workload.step()
        if step % 16 == 15:
            network.add()
            network.add()
        if step % 40 == 15:
            loss, network.faults.loss = network.faults.loss, 0.9
            network.run(8_000)
            network.faults.loss = loss
            workload.check_all()
        network.run(network.rng.randint(0, 500))
    network.faults.loss = 0
    network.run(60_000)
    workload.check_all()
    workload.check_copies()


@pytest.mark.parametrize("seed", SEEDS)
def test_both_sides_of_a_cut_end_with_the_same(seed: int):
    """Nothing acknowledged is lost, and no side takes a key whose owners are on the other for an empty one."""
    print(f"seed={seed}")
    network = StoreNetwork(seed, peers=8, faults=weather(seed), limits=steps(seed))
    network.run(5_000)
    workload = Workload(network, 8, seed, check_reads=True)
    for step in range(160):
        workload.step()
        if step == 60:
            workload.floor = workload.acknowledged()
            network.cut(network.rng.sample(network.up, network.rng.randint(1, 4)))
        if step == 140:
            network.heal()
        network.run(network.rng.randint(0, 300))
    network.faults.loss = 0
    network.run(60_000)
    workload.check_all()
    workload.check_copies()
