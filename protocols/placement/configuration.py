"""Configurations: where an operator and its children are, what that costs, and how one follows from those below it.

The centralised and the distributed algorithms share this part. A `Table` says what is known of one child: its best
configuration, and what it would cost elsewhere. The centralised algorithms may ask it for any location; a coordinator
knows what MAP brought.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from protocols.ids import Amount, PeerId
from protocols.placement.tree import Distance, Site

Location = PeerId | None
"""A peer; or None: any peer that nobody has named. Without distances those are all alike."""


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """An operator at a location, with its children where they are cheapest for that."""

    location: Location
    cost: Amount  # γ: of the whole subtree.
    delay: Amount  # δ: the longest way from a source below to here.
    children: tuple[Location, ...] = ()


class Table(Protocol):
    """What is known of a child."""

    @property
    def best(self) -> Configuration:
        """λ: where the child was placed."""

    def at(self, location: Location) -> Configuration | None:
        """γ: the cost with the child at that location; None if it cannot be there, or if nobody knows."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How edges are paid for, and how long a path may be."""

    proxy: PeerId
    distance: Distance
    bound_ms: float = math.inf
    is_network_aware: bool = True  # Edge counts only what flows between peers, not how far.

    def edge(self, beta: float, a: Location, b: Location) -> float:
        if a == b:
            return 0.0
        return beta * self.apart(a, b) if self.is_network_aware else beta

    def apart(self, a: Location, b: Location) -> float:
        if a is None or b is None:
            assert not self.is_network_aware, "a peer without a name has no distance"
            return 0.0
        return self.distance(a, b)

    def extended(self, child: Configuration, location: Location) -> float | None:
        """The delay of a child's paths if they go on to this location; None if the proxy would then be reached too
        late.

        Adding the way to the proxy is the paper's triangulation: what fits here can still reach the proxy in time. So a
        placement that begins within the bound ends within it.
        """
        delay = child.delay + self.apart(child.location, location)
        return delay if delay + self.apart(location, self.proxy) <= self.bound_ms else None


def joined(location: Location, site: Site, tables: Sequence[Table], measure: Measure) -> Configuration | None:
    """γ (Equation 5): the operator at a location. Each child stays where it is, or moves along if that is cheaper."""
    if not site.can_be_at(location):
        return None
    cost = delay = 0.0
    children: list[Location] = []
    for beta, table in zip(site.betas, tables, strict=True):
        chosen: tuple[float, float, Location] | None = None
        for option in (table.best, table.at(location)):
            if option is None or (extended := measure.extended(option, location)) is None:
                continue
            paid = option.cost + measure.edge(beta, option.location, location)
            if chosen is None or paid < chosen[0]:
                chosen = paid, extended, option.location
        if chosen is None:
            return None
        cost += chosen[0]
        delay = max(delay, chosen[1])
        children.append(chosen[2])
    return Configuration(location, cost, delay, tuple(children))


def arranged(
    location: PeerId, children: Sequence[PeerId], site: Site, tables: Sequence[Table], measure: Measure
) -> Configuration | None:
    """The operator at a location, and each child at a given one."""
    if not site.can_be_at(location):
        return None
    cost = delay = 0.0
    for beta, table, child in zip(site.betas, tables, children, strict=True):
        option = table.best if table.best.location == child else table.at(child)
        if option is None or (extended := measure.extended(option, location)) is None:
            return None
        cost += option.cost + measure.edge(beta, child, location)
        delay = max(delay, extended)
    return Configuration(location, cost, delay, tuple(children))


def cheapest(options: Sequence[Configuration | None]) -> Configuration | None:
    """The first of the cheapest configurations."""
    return min((option for option in options if option is not None), key=lambda option: option.cost, default=None)
