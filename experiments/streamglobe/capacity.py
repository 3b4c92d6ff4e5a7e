"""What a peer or a connection has left: measured use, reservations that no measurement shows yet, and admission.

A resource is named ("CPU of SP4", "uplink of 3f9a"). Whoever admits a query reserves what its plan needs; ten seconds
later the measurement shows it. So a hundred queries at once do not all get the same free capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocols.ids import Millis
from protocols.sharing.capacity import Resource

Needs = Mapping[str, float]
"""What a plan adds to each resource, in its unit a second."""


class Work(NamedTuple):
    """CPU of each kind of work on an item, in units of one selection on one photon, most of which is parsing it."""

    carry_byte: float
    parse: float = 0.8
    test: float = 0.2
    project: float = 0.3
    aggregate: float = 0.4
    restructure: float = 0.5


def link_name(one: int, other: int) -> str:
    return f"link {min(one, other)}-{max(one, other)}"


def cpu_name(node: int) -> str:
    return f"CPU of SP{node}"


class Shortage(NamedTuple):
    """A resource that a plan would overload."""

    resource: str
    needed: float
    free: float
    limit: float
    unit: str

    def __str__(self) -> str:
        return (
            f"{self.resource} has {self.free:,.0f} of {self.limit:,.0f} {self.unit} left, it needs {self.needed:,.0f}"
        )


class Refusal(NamedTuple):
    """Why a query was not admitted: the shortages of the plan that came nearest."""

    query: str
    shortages: tuple[Shortage, ...]

    def __str__(self) -> str:
        worst = max(self.shortages, key=lambda each: _share(each.needed - each.free, each.limit))
        return (
            f'query "{self.query}" refused: every plan would overload something\n'
            f"detail: {'. '.join(map(str, self.shortages))}.\n"
            f"hint: {HINTS['CPU' if worst.resource.startswith('CPU') else 'link']}"
        )


HINTS: Final = {
    "CPU": "A narrower selection of a stream that is already shared, or another peer to subscribe at, needs less.",
    "link": "A narrower selection, fewer columns or a window aggregate needs less.",
}


@dataclass(slots=True)
class Capacity:
    """All resources of a network, or of one peer."""

    resources: dict[str, Resource] = field(default_factory=dict)

    def shortages(self, needs: Needs) -> tuple[Shortage, ...]:
        """What a plan would overload; a resource that nobody limits never is."""
        found = []
        for name, needed in needs.items():
            resource = self.resources.get(name)
            if resource is not None and not resource.has_room_for(needed):
                found.append(Shortage(name, needed, resource.free, resource.limit, resource.unit))
        return tuple(found)

    def admit(self, query: str, needs: Needs, now: Millis) -> Refusal | None:
        """Reserve what a query needs, or say why not. A repeated question is answered by what is left now."""
        if shortages := self.shortages(needs):
            return Refusal(query, shortages)
        for name, needed in needs.items():
            if name in self.resources:
                self.resources[name].reserve(query, needed, now)
        return None

    def release(self, query: str) -> None:
        for each in self.resources.values():
            each.release(query)

    def cost(self, needs: Needs, weights: Mapping[str, float]) -> float:
        """C(P) of section 3.2: the shares of capacity that a plan adds, with an exponential penalty for overload.

        `weights` has γ or 1 - γ by the kind of a resource, the first word of its name.
        """
        total = 0.0
        for name, needed in needs.items():
            if (resource := self.resources.get(name)) is None:
                continue
            added, left = _share(needed, resource.limit), _share(resource.free, resource.limit)
            over = max(0.0, added - left)
            total += weights[name.partition(" ")[0]] * (added + over * math.exp(min(added - left, 50.0)))
        return total


def _share(part: float, limit: float) -> float:
    """The share of a limit; of nothing, a small part is everything."""
    if part <= 0:
        return 0.0
    return part / limit if limit > 0 else math.inf
