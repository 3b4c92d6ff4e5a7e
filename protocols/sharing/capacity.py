"""What a peer has room for: measured use, reservations that no measurement shows yet, and admission.

A peer has CPU, an uplink and a downlink. Each has a limit, if its owner has set one, and a measured use. Whoever is
admitted reserves what it needs; ten seconds after it has begun, the measurement shows it. So a hundred queries at
once do not all get the same free capacity.

What a subgraph costs follows from the rows that flow through it, and from what a row of its kind costs here: the
paper's bload times pindex. That is learned from measurements (`Costs`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from protocols.demand import HOSTING, Demand, Lack, ResourceName
from protocols.ids import Millis

MEASURED_AFTER_MS: Final = 10_000
FADE: Final = 0.7  # Of the smoothed use, what is left after one measurement; five of them, and it is a sixth.
SPARE: Final = 1e-9  # Sums in another order differ in their last bits.
CORE_SHARE: Final = 0.9  # Of one core: a daemon that uses more of it answers late.
MICROS: Final = 1e6
NOT_BEGUN: Final = 1 << 53  # Later than any measurement.

Work = Literal["event", "select", "window", "spark", "result"]
"""What costs CPU: an event of the machines; a row that comes in for a subgraph of each kind; a row that goes out."""
WORKS: Final[tuple[Work, ...]] = get_args(Work)
USUAL_US: Final[Mapping[Work, float]] = {"event": 80.0, "select": 1.0, "window": 1.5, "spark": 15.0, "result": 4.0}
OFF_MAX: Final = 20.0  # How far what is learned may be from what is usual, either way.
LEARNED: Final = 0.2  # Of what a measurement says.
TELLING_US: Final = 5000.0  # An interval with less work says little.
EVENTS: Final = 2.0  # That a subgraph causes each second whatever flows: its status, its lease.
BATCHES: Final = 20.0  # Events of one input in a second, at most: rows that come fast come together.


class Use(NamedTuple):
    """What a peer has used, in one second."""

    daemon_us: float
    worker_us: float  # By the engine, once it is ready: its start is no work of a query.
    bytes_out: float
    bytes_in: float


@dataclass(slots=True)
class Resource:
    """One limited thing: what it can do, what is used of it, what is promised."""

    limit: float
    unit: str = ""
    used: float = 0.0
    _reserved: dict[Hashable, tuple[float, Millis]] = field(default_factory=dict)  # By what it is reserved for.

    def measure(self, used: float, now: Millis) -> None:
        """A measurement shows what was reserved long enough before it."""
        self.used = used
        self._reserved = {name: each for name, each in self._reserved.items() if now - each[1] < MEASURED_AFTER_MS}

    def reserve(self, name: Hashable, needed: float, now: Millis) -> None:
        before = self._reserved.get(name, (0.0, now))[0]
        self._reserved[name] = (before + needed, now)

    def begin(self, name: Hashable, now: Millis) -> None:
        """What it is reserved for is used from now on."""
        if name in self._reserved:
            self._reserved[name] = (self._reserved[name][0], now)

    def release(self, name: Hashable) -> None:
        self._reserved.pop(name, None)

    @property
    def holders(self) -> tuple[Hashable, ...]:
        return tuple(self._reserved)

    @property
    def reserved(self) -> float:
        return math.fsum(needed for needed, _ in self._reserved.values())

    @property
    def taken(self) -> float:
        return self.used + self.reserved

    @property
    def is_limited(self) -> bool:
        return math.isfinite(self.limit)

    @property
    def free(self) -> float:
        return max(0.0, self.limit - self.taken)

    def has_room_for(self, needed: float) -> bool:
        return needed <= SPARE or needed <= self.free * (1 + SPARE) + SPARE


@dataclass(slots=True)
class Costs:
    """What each kind of work costs at this peer, in µs of CPU: at first what is usual, then what is measured.

    A measurement tells the sum alone. Each kind is corrected as much as its share of what was expected.
    """

    micros: dict[Work, float] = field(default_factory=lambda: dict(USUAL_US))

    def of(self, done: Mapping[Work, float]) -> float:
        return math.fsum(self.micros[work] * amount for work, amount in done.items())

    def learn(self, done: Mapping[Work, float], spent_us: float) -> None:
        """So much was spent on all of this."""
        expected = self.of(done)
        if min(expected, spent_us) < TELLING_US:
            return
        off = spent_us / expected
        for work, amount in done.items():
            usual, share = USUAL_US[work], self.micros[work] * amount / expected
            learned = self.micros[work] * off ** (LEARNED * share)
            self.micros[work] = min(max(learned, usual / OFF_MAX), usual * OFF_MAX)


class Capacities(NamedTuple):
    """What the owner of a peer lets it use."""

    cpu_share: float | None = None  # Of all cores; None: not limited.
    uplink: float | None = None  # Bytes a second.
    downlink: float | None = None
    hosts_others: bool = True  # Otherwise it has no room for subgraphs of other peers' queries.
    cores: int = 1


@dataclass(slots=True)
class Capacity:
    """The resources of one peer.

    Invariant: nothing is reserved beyond a limit, but for queries that were accepted before
    """

    allowed: Capacities = Capacities()
    costs: Costs = field(default_factory=Costs)
    resources: dict[ResourceName, Resource] = field(init=False)

    def __post_init__(self) -> None:
        allowed = self.allowed
        cpu = math.inf if allowed.cpu_share is None else allowed.cpu_share * self.whole_us
        core = math.inf if allowed.cpu_share is None else min(cpu, CORE_SHARE * MICROS)
        self.resources = {
            "cpu": Resource(cpu, "µs/s"),
            "core": Resource(core, "µs/s"),
            "uplink": Resource(math.inf if allowed.uplink is None else allowed.uplink, "B/s"),
            "downlink": Resource(math.inf if allowed.downlink is None else allowed.downlink, "B/s"),
        }

    @property
    def whole_us(self) -> float:
        """What all cores can do in a second."""
        return self.allowed.cores * MICROS

    # What is used.

    def measure(self, use: Use, inline: Mapping[Work, float], spark: Mapping[Work, float], now: Millis) -> None:
        """Take what was used in a second, and the work that was done for it in the daemon and by its engine."""
        self.costs.learn(inline, use.daemon_us)
        self.costs.learn(spark, use.worker_us)
        used = {
            "cpu": use.daemon_us + use.worker_us,
            "core": use.daemon_us,
            "uplink": use.bytes_out,
            "downlink": use.bytes_in,
        }
        for name, each in self.resources.items():
            each.measure(FADE * each.used + (1 - FADE) * used[name], now)

    # What is promised.

    def load(self, demand: Demand, work: Work, heard: Mapping[int, bool]) -> dict[ResourceName, float]:
        """What a subgraph takes of each resource. `heard` tells the inputs whose stream comes here anyway."""
        events = EVENTS + min(demand.output.rows, BATCHES)
        rows = bytes_in = 0.0
        for place, each in enumerate(demand.inputs):
            rows += each.rows
            if not heard.get(place, False):
                bytes_in += each.bytes
                events += min(each.rows, BATCHES)
        rest_us = self.costs.of({"event": events, "result": demand.output.rows})
        own_us = self.costs.of({work: rows})
        daemon_us = rest_us if work == "spark" else rest_us + own_us
        return {"cpu": rest_us + own_us, "core": daemon_us, "uplink": demand.output.bytes, "downlink": bytes_in}

    def admit(self, name: Hashable, load: Mapping[ResourceName, float]) -> Lack | None:
        """Reserve a load, unless it would overload something. Asked again, it is answered by what is left now."""
        for resource, needed in load.items():
            each = self.resources[resource]
            if not each.has_room_for(needed):
                whole = self.whole_us if resource in ("cpu", "core") else 0.0
                return Lack(resource, needed, each.free, each.limit, whole)
        self.reserve(name, load)
        return None

    def reserve(self, name: Hashable, load: Mapping[ResourceName, float]) -> None:
        """Reserve a load whether there is room or not."""
        for resource, needed in load.items():
            self.resources[resource].reserve(name, needed, NOT_BEGUN)

    def begin(self, name: Hashable, now: Millis) -> None:
        """What is reserved is used from now on, and measured soon."""
        for each in self.resources.values():
            each.begin(name, now)

    def release(self, name: Hashable) -> None:
        for each in self.resources.values():
            each.release(name)

    def closed_to(self, *, is_own: bool) -> Lack | None:
        """Whether this peer hosts nothing for that proxy, however little it is."""
        return None if is_own or self.allowed.hosts_others else Lack(HOSTING)
