"""The hosts that had no room for a part of a query: avoided for a while, and named when the query is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from protocols.demand import Lack
from protocols.execution.cut import Cut, is_stateful
from protocols.execution.decision import Choice
from protocols.execution.messages import QueryId
from protocols.execution.refusals import Short, no_room
from protocols.ids import Millis, PeerId
from protocols.messages import Refused
from protocols.subgraphs import StreamInput, Subgraph

AVOIDED_MS: Final = 30_000
TRIES_MAX: Final = 4  # The first placement of a new query, and three more.
MOVABLE: Final = ("cpu", "core", "hosting")  # What a publisher lacks for narrowing: its reader can do that instead.


class _Full(NamedTuple):
    short: Short
    until: Millis


@dataclass(slots=True)
class Crowded:
    """What hosts have said that they lack for one query.

    Invariant: no plan uses a host that is avoided; if every plan would, the query is refused
    """

    _full: dict[PeerId, _Full] = field(default_factory=dict)
    _refused: list[PeerId] = field(default_factory=list)  # By whom, one after the other.

    def note(self, host: PeerId, lack: Lack, part: str, now: Millis) -> None:
        self._full[host] = _Full(Short(host, part, lack), now + AVOIDED_MS)
        self._refused.append(host)

    def forget(self, now: Millis) -> None:
        self._full = {host: each for host, each in self._full.items() if now < each.until}

    def __contains__(self, host: object) -> bool:
        return host in self._full

    def relieved(self, choice: Choice) -> Choice:
        """The same, but what narrows a source does so at its reader if its publisher has no CPU for it.

        A publisher without uplink has even less for all of its rows.
        """
        kept = {alias: host for alias, host in choice.chains.items() if not self._lacks(host, MOVABLE)}
        return choice if kept == choice.chains else msgspec.structs.replace(choice, chains=kept)

    def _lacks(self, host: PeerId, resources: tuple[str, ...]) -> bool:
        return host in self._full and self._full[host].short.lack.resource in resources

    def objection(self, name: QueryId, choice: Choice) -> Refused | None:
        """Refuse a query whose best placement is where there is no room."""
        return self._refusal(name) if any(peer in self._full for peer in choice.peers) else None

    def verdict(self, name: QueryId) -> Refused | None:
        """Whether it was tried often enough. A host that has refused it twice has to be in every plan."""
        is_over = len(self._refused) >= TRIES_MAX or len(set(self._refused)) < len(self._refused)
        return self._refusal(name) if is_over else None

    def _refusal(self, name: QueryId) -> Refused:
        return no_room(name, [each.short for each in self._full.values()])


def part_of(made: Cut, number: int) -> str:
    """What a subgraph does for its query, in words."""
    subgraph = next((each for each in made.subgraphs if each.number == number), None)
    return _described(subgraph) if subgraph is not None else "A part of it"


def _described(subgraph: Subgraph) -> str:
    streams = ", ".join(f'"{each.stream}"' for each in subgraph.inputs if isinstance(each, StreamInput))
    if is_stateful(subgraph.plan):
        return "Its windows and joins"
    if subgraph.consumer is not None and streams:
        return f"Narrowing of {streams}"
    return f"Reading of {streams}" if streams else "Its results"
