"""Everything that can go wrong in a simulation, and when it does: a plan drawn from the seed, undone by `heal()`.

A scenario names its faults; what it leaves open (how often, how long, how many) is drawn from the seed. With `faults =
"all"` the seed switches each kind on or off, because a run with few kinds reaches states that a run with all of them
hides.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, get_args

import msgspec

from overlay.sim.membership import Separation
from overlay.sim.network import Conditions
from overlay.sim.peer import SimPeer
from overlay.sim.world import World
from protocols.ids import Millis

FaultName = Literal[
    "crash",  # A peer stops, loses or tears what it has not synced, and restarts.
    "disk-loss",  # As crash, and its disk comes back empty.
    "join",  # A new peer enters.
    "leave",  # Some peers, neighbours of each other, hand over and go, and are back later.
    "partition",  # Two parts of the network do not hear each other.
    "one-way",  # One part does not hear the other.
    "loss",
    "duplicate",
    "reorder",
    "delay",
    "slow",  # A peer and its disk answer late.
    "pause",  # A peer does nothing for a while.
    "skew",  # A clock is wrong.
    "disk-full",
    "lost-write",  # Crashes lose what was not synced,
    "torn-write",  # or tear it.
    "shift",  # Distances between peers change.
    "proxy-gone",  # A proxy is down, perhaps without its disk afterwards, or is only cut off.
]
FAULT_NAMES: Final[tuple[FaultName, ...]] = get_args(FaultName)
_MESSAGE_FAULTS: Final = ("loss", "duplicate", "reorder", "delay")
_ONLY_WHEN_NAMED: Final = ("shift", "proxy-gone")  # It breaks nothing; only some queries are taken over.
_DISK_HABITS: Final = ("lost-write", "torn-write")
_ON_SHARE: Final = 0.6
_AWKWARD_SHARE: Final = 0.5  # Share of the strikes that hit a peer in the middle of a write, if there is one.
_LEAVING_TOGETHER: Final = (1, 2, 3)
_STAYING_MIN: Final = 3
_SKEW_SMALL_MS: Final = 300
_SKEW_LARGE_MS: Final = 3_000
_SKEW_LARGE_SHARE: Final = 0.5


class FaultRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of a scenario; what is None is drawn from the seed."""

    name: FaultName
    times: int | None = None  # How often it happens.
    share: float | None = None  # Share of the peers it strikes each time, or of the messages.
    at_s: float | None = None  # When it first happens.
    for_s: float | None = None  # How long it lasts: until the restart, the healing, the right time.


class Faults:
    """The faults of one run; call `plan()` once, and `heal()` when the second phase begins."""

    def __init__(self, world: World, rules: Sequence[FaultRule], span_ms: Millis) -> None:
        self.counters: Counter[str] = Counter()
        self._world = world
        self._rules = rules
        self._span_ms = span_ms
        self._rng = world.rng("faults")
        self._separations: list[Separation] = []
        self._healed = False
        self._proxies_taken = 0

    def plan(self) -> None:
        """Decide what happens when, up to the end of the first phase."""
        for rule in self._rules:
            times = rule.times if rule.times is not None else self._draw_times(rule.name)
            for time in range(times):
                self._world.agenda.at(self._world.now + self._draw_at(rule, time), self._strike, rule)

    def heal(self) -> None:
        """Undo everything: all peers are up and hear each other, and all clocks are nearly right."""
        self._healed = True
        self._world.network.conditions = Conditions()
        for separation in self._separations:
            self._world.membership.heal(separation)
        for peer in self._world.peers:
            peer.slow_ms = 0
            peer.paused_until = 0
            peer.set_clock(self._rng.randint(-100, 100))
            self._free_disk(peer)
            self._restart(peer)

    def _draw_at(self, rule: FaultRule, time: int) -> Millis:
        if rule.at_s is None:
            return 0 if rule.name in _DISK_HABITS else self._rng.randrange(self._span_ms)
        first_ms = int(rule.at_s * 1000)
        return first_ms if time == 0 else self._rng.randrange(first_ms, self._span_ms)

    def _draw_times(self, name: FaultName) -> int:
        match name:
            case "crash":
                return self._rng.randint(1, max(2, len(self._world.peers) // 2))
            case "disk-loss":
                return 1  # A second loss is survived only after the first has been repaired.
            case "skew" | "slow" | "pause" | "disk-full" | "join" | "leave":
                return self._rng.randint(1, 4)
            case "lost-write" | "torn-write":
                return 1  # Once, at the beginning: it is a property of these disks.
        return self._rng.randint(1, 3)

    def _strike(self, rule: FaultRule) -> None:
        if self._healed:
            return
        self.counters[rule.name] += 1
        for_ms = self._draw_ms(rule)
        if rule.name in _MESSAGE_FAULTS:
            self._spoil(rule, for_ms)
        elif rule.name in {"partition", "one-way"}:
            self._separate(for_ms, one_way=rule.name == "one-way")
        elif rule.name in _DISK_HABITS:
            self._spoil_disks(rule)
        elif rule.name == "shift":
            self._world.topology.shift(self._rng)
        elif rule.name == "join":
            self._world.add_peer().start()
        elif rule.name == "leave":
            self._leave(rule, for_ms)
        elif rule.name == "proxy-gone":
            self._take_proxy()
        else:
            strike = self._STRIKES[rule.name]
            for peer in self._victims(rule):
                strike(self, peer, for_ms)

    def _draw_ms(self, rule: FaultRule) -> Millis:
        """How long a fault lasts: anything from a moment to long enough for everybody to notice."""
        if rule.for_s is not None:
            return int(rule.for_s * 1000)
        longest = 5_000 if rule.name == "pause" else 15_000
        return int(math.exp(self._rng.uniform(math.log(50), math.log(longest))))

    def _victims(self, rule: FaultRule) -> list[SimPeer]:
        up = [peer for peer in self._world.peers if peer.is_up]
        count = 1 if rule.share is None else round(rule.share * len(self._world.peers))
        writing = [peer for peer in up if peer.is_writing]
        if rule.share is None and writing and self._rng.random() < _AWKWARD_SHARE:
            up = writing
        return self._rng.sample(up, min(count, len(up)))

    # What befalls the network.

    def _spoil(self, rule: FaultRule, for_ms: Millis) -> None:
        share = rule.share if rule.share is not None else self._rng.choice((0.005, 0.02, 0.1, 0.25))
        self._set_share(rule.name, share)
        self._later(for_ms, self._set_share, rule.name, 0.0)

    def _set_share(self, name: str, share: float) -> None:
        network = self._world.network
        network.conditions = replace(network.conditions, **{name: share})

    def _separate(self, for_ms: Millis, *, one_way: bool) -> None:
        peers = list(range(len(self._world.peers)))
        self._rng.shuffle(peers)
        cut = self._rng.randint(1, max(1, len(peers) - 1))
        side = {index: place < cut for place, index in enumerate(peers)}
        separation = self._world.membership.separate(side, one_way=one_way)
        self._separations.append(separation)
        self._later(for_ms, self._world.membership.heal, separation)

    def _spoil_disks(self, rule: FaultRule) -> None:
        share = rule.share if rule.share is not None else self._rng.choice((0.2, 0.5))
        for peer in self._world.peers:
            if rule.name == "lost-write":
                peer.disk.lost_share = share
            else:
                peer.disk.torn_share = share

    # What befalls a peer.

    def _crash(self, peer: SimPeer, for_ms: Millis) -> None:
        peer.crash()
        self._later(for_ms, self._restart, peer)

    def _lose_disk(self, peer: SimPeer, for_ms: Millis) -> None:
        peer.crash()
        peer.lose_disk()
        self._later(for_ms, self._restart, peer)

    def _take_proxy(self) -> None:
        """Only the first may lose its disk: a second loss is survived once the first has been repaired."""
        proxies = [peer for peer in self._world.peers if peer.is_up and peer.is_proxy]
        if not proxies:
            return
        peer = self._rng.choice(proxies)
        how = self._rng.choice(("down", "cut off", "disk lost") if not self._proxies_taken else ("down", "cut off"))
        self._proxies_taken += 1
        for_ms = self._rng.randrange(2_000, 40_000)
        if how == "cut off":
            side = {each.index: each is peer for each in self._world.peers}
            separation = self._world.membership.separate(side, one_way=False)
            self._separations.append(separation)
            self._later(for_ms, self._world.membership.heal, separation)
            return
        peer.crash()
        if how == "disk lost":
            peer.lose_disk()
        self._later(for_ms, self._restart, peer)

    def _leave(self, rule: FaultRule, for_ms: Millis) -> None:
        """Neighbours that own the same keys leave together; enough others must remain to own these keys."""
        up = [peer for peer in self._world.peers if peer.is_up and peer.may_leave]
        point = self._rng.choice(up).peer_id.number if up else 0
        up.sort(key=lambda peer: peer.peer_id.number ^ point)
        count = self._rng.choice(_LEAVING_TOGETHER) if rule.share is None else round(rule.share * len(up))
        staying = sum(peer.is_up for peer in self._world.peers) - _STAYING_MIN
        for peer in up[: max(0, min(count, staying))]:
            peer.leave(partial(self._world.agenda.after, for_ms, self._restart, peer))

    def _restart(self, peer: SimPeer) -> None:
        if not peer.is_up:
            peer.start()

    def _slow(self, peer: SimPeer, for_ms: Millis) -> None:
        peer.slow_ms = self._rng.choice((5, 50, 500))
        self._later(for_ms, setattr, peer, "slow_ms", 0)

    def _pause(self, peer: SimPeer, for_ms: Millis) -> None:
        peer.pause(for_ms)

    def _skew(self, peer: SimPeer, for_ms: Millis) -> None:
        width = _SKEW_LARGE_MS if self._rng.random() < _SKEW_LARGE_SHARE else _SKEW_SMALL_MS
        peer.set_clock(self._rng.randint(-width, width))
        self._later(for_ms, peer.set_clock, 0)

    def _fill_disk(self, peer: SimPeer, for_ms: Millis) -> None:
        peer.disk.fill(1.0)
        peer.disk_space(is_low=True)
        self._later(for_ms, self._free_disk, peer)

    def _free_disk(self, peer: SimPeer) -> None:
        if peer.disk_is_low:
            peer.disk.fill(0.0)
            peer.disk_space(is_low=False)

    def _later(self, wait_ms: Millis, undo: Callable[..., None], *arguments: object) -> None:
        self._world.agenda.after(wait_ms, self._undo, undo, arguments)

    def _undo(self, undo: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._healed:
            undo(*arguments)

    _STRIKES: Final[dict[str, Callable[[Faults, SimPeer, Millis], None]]] = {
        "crash": _crash,
        "disk-loss": _lose_disk,
        "slow": _slow,
        "pause": _pause,
        "skew": _skew,
        "disk-full": _fill_disk,
    }


def draw_rules(rng: random.Random) -> tuple[FaultRule, ...]:
    """A random set of faults; at least crashes, if nothing else."""
    drawn = (name for name in FAULT_NAMES if name not in _ONLY_WHEN_NAMED)
    chosen = tuple(FaultRule(name=name) for name in drawn if rng.random() < _ON_SHARE)
    return chosen or (FaultRule(name="crash"),)
