"""The distributed placement: one peer's part as proxy, as coordinator of zones, and as host (SAND, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.effects import Effect, Route, Send, SetTimer, Tell
from protocols.errors import expect
from protocols.events import Event, Received, TimerFired, Unreachable, Unroutable
from protocols.ids import Millis, PeerId
from protocols.placement import messages
from protocols.placement.configuration import Configuration
from protocols.placement.events import OperatorsPlaced, PlacementAsked, PlacementStopped
from protocols.placement.messages import (
    AddSubtree,
    InvalidateMap,
    Map,
    OperatorMapped,
    OperatorRemapped,
    PlacementId,
    PlacementMessage,
    Terms,
    zone_key,
)
from protocols.placement.tree import ProcessingTree
from protocols.placement.zone import MappedTable, Zone, zones_of
from protocols.role import Owned, messages_in

AGAIN: Final = "placement/again "
FORGET: Final = "placement/forget "


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a host's operators mapped table; without a configuration the operator is no longer here."""

    attempt: int
    decided_by: int
    configuration: Configuration | None

    @property
    def order(self) -> tuple[int, int]:
        return self.attempt, self.decided_by


@dataclass(slots=True)
class Asked:
    """A placement whose proxy is this peer."""

    attempt: int
    tree: ProcessingTree
    terms: Terms
    zones: dict[int, list[int]]
    mapped: dict[int, OperatorMapped] = field(default_factory=dict)  # The latest mapping of each operator,
    hosts: dict[tuple[int, PeerId], None] = field(default_factory=dict)  # and all hosts that were named for it.
    is_done: bool = False


@dataclass(slots=True)
class PlacementMachine:
    """Places the operators of trees together with the other peers, bottom-up, siblings at the same time.

    In:        PlacementAsked, PlacementStopped; the five messages; Unreachable, Unroutable; its timers
    Out:       the five messages; OperatorsPlaced at the proxy
    Keeps:     as proxy the trees asked for; as coordinator its zones; as host what is mapped to it; nothing on disk
    Invariant: one attempt has one outcome, whoever coordinates and however often a message comes
    Paper:     Ahmad and Çetintemel, VLDB 2004, section 4. Departures: the proxy is told of every mapping, and starts
               again what does not end; distances come with MAP and are not collected by each coordinator
    """

    owned: ClassVar[Owned] = Owned(
        "placement", messages=messages_in(messages), events=(PlacementAsked, PlacementStopped)
    )

    me: PeerId
    again_ms: Millis = 2_000
    forget_ms: Millis = 60_000
    entries_max: int = 10_000  # Zones and mapped operators; what exceeds them is ignored.
    mapped: dict[tuple[PlacementId, int], Row] = field(default_factory=dict)
    refused: int = 0  # Remappings to a place that was never offered.
    _zones: dict[PlacementId, dict[int, Zone]] = field(default_factory=dict)
    _asked: dict[PlacementId, Asked] = field(default_factory=dict)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case PlacementAsked():
                return self._ask(event)
            case PlacementStopped(placement=placement):
                self._asked.pop(placement, None)
                return []
            case Received(message=message):
                return self._receive(message) if isinstance(message, PlacementMessage) else []
            case TimerFired(name=name) if name.startswith(AGAIN):
                return self._again(name.removeprefix(AGAIN))
            case TimerFired(name=name) if name.startswith(FORGET):
                return self._forget(name.removeprefix(FORGET))
            # The driver has given up; this peer goes on trying for as long as it remembers the placement.
            case Unreachable(peer=peer, message=message) if self._is_current(message):
                return [Send(peer, message)]
            case Unroutable(key=key, message=message) if self._is_current(message):
                return [Route(key, message)]
        return []

    # As proxy.

    def _ask(self, event: PlacementAsked) -> list[Effect]:
        tree = ProcessingTree(event.vertices)
        assert event.terms.proxy == self.me == tree.proxy, "a query is placed by its proxy"
        known = self._asked.get(event.placement)
        if known is not None and known.attempt >= event.attempt:
            return []
        zones = zones_of(tree, event.zone_levels)
        self._asked[event.placement] = Asked(event.attempt, tree, event.terms, zones)
        return self._again(event.placement)

    def _again(self, placement: PlacementId) -> list[Effect]:
        """Hand out the zones and start at the sources; what was done already is only repeated."""
        asked = self._asked.get(placement)
        if asked is None or asked.is_done:
            return []
        effects: list[Effect] = [SetTimer(AGAIN + placement, self.again_ms)]
        tree, attempt = asked.tree, asked.attempt
        for zone, operators in asked.zones.items():
            subtree = tuple(tree.sites[operator] for operator in operators)
            boundary = tuple(child for site in subtree for child in site.children if child not in operators)
            message = AddSubtree(placement=placement, attempt=attempt, subtree=subtree, boundary=boundary)
            effects += self._receive(message) if zone == tree.root else [Route(zone_key(placement, zone), message)]
        for source in tree.sources:
            peer = tree.vertices[source].peer
            assert peer is not None
            here = Configuration(peer, 0.0, 0.0)
            mapped = OperatorMapped(
                placement=placement, attempt=attempt, operator=source, configuration=here, decided_by=source
            )
            started = Map(
                placement=placement,
                attempt=attempt,
                operator=source,
                configuration=here,
                alternatives=(),
                elsewhere=None,
                path=(source, *(each for each in tree.path(source) if each in asked.zones)),
                terms=asked.terms,
            )
            effects += [*self._send(peer, mapped), *self._send(peer, started)]
        return effects

    def _gather(self, message: OperatorMapped) -> list[Effect]:
        asked = self._asked.get(message.placement)
        if asked is None or asked.attempt != message.attempt or asked.is_done:
            return []
        operator, children = message.operator, message.configuration.children
        expect(
            operator in asked.tree.sites or operator in asked.tree.sources, f"no operator {operator} in this placement"
        )
        expect(None not in children, "an operator whose children are nowhere")
        expect(len(children) == len(asked.tree.vertices[operator].children), "an operator with other children")
        if message.configuration.location is not None and len(asked.hosts) < self.entries_max:
            asked.hosts[message.operator, message.configuration.location] = None
        latest = asked.mapped.get(message.operator)
        if latest is None or latest.decided_by < message.decided_by:
            asked.mapped[message.operator] = message
        hosts = self._whole(asked)
        if hosts is None:
            return []
        asked.is_done = True
        placed = Tell(OperatorsPlaced(message.placement, message.attempt, hosts))
        return [*self._clear(message.placement, asked, hosts), placed]

    def _clear(self, placement: PlacementId, asked: Asked, hosts: tuple[PeerId, ...]) -> list[Effect]:
        """Tell former hosts: a coordinator may have died before it could."""
        return [
            effect
            for operator, host in asked.hosts
            if host != hosts[operator]
            for effect in self._send(
                host,
                InvalidateMap(
                    placement=placement,
                    attempt=asked.attempt,
                    operator=operator,
                    decided_by=asked.mapped[operator].decided_by,
                ),
            )
        ]

    def _whole(self, asked: Asked) -> tuple[PeerId, ...] | None:
        """The mapping, once the word on each operator is the one that its parent counts on."""
        tree = asked.tree
        hosts: dict[int, PeerId] = {tree.root: tree.proxy}
        for index in reversed(range(len(tree.vertices))):
            children = tree.vertices[index].children
            if not children:
                continue
            mapped = asked.mapped.get(index)
            if mapped is None or mapped.configuration.location != hosts[index]:
                return None
            for child, location in zip(children, mapped.configuration.children, strict=True):
                assert location is not None, "what is mapped is somewhere"
                hosts[child] = location
        return tuple(hosts[index] for index in range(len(tree.vertices)))

    # As anybody.

    def _receive(self, message: PlacementMessage) -> list[Effect]:
        match message:
            case AddSubtree():
                return self._add_subtree(message)
            case Map(operator=operator, path=path) if path[0] == operator:
                return [self._upstream(message, path[1:])]  # A source coordinates itself and passes MAP on.
            case Map():
                return self._map(message)
            case OperatorRemapped():
                return self._remap(message)
            case OperatorMapped():
                noted = self._note(message, message.configuration) if message.configuration.location == self.me else []
                return [*noted, *self._gather(message)]
            case InvalidateMap():
                return self._note(message, None)

    def _send(self, peer: PeerId, message: PlacementMessage) -> list[Effect]:
        return self._receive(message) if peer == self.me else [Send(peer, message)]

    def _upstream(self, message: Map, path: tuple[int, ...]) -> Effect:
        onward = Map(
            placement=message.placement,
            attempt=message.attempt,
            operator=message.operator,
            configuration=message.configuration,
            alternatives=message.alternatives,
            elsewhere=message.elsewhere,
            path=path,
            terms=message.terms,
        )
        if len(path) == 1:  # The last zone is the delivery, and the proxy is its coordinator.
            return Send(message.terms.proxy, onward)
        return Route(zone_key(message.placement, path[0]), onward)

    def _note(self, message: OperatorMapped | InvalidateMap, configuration: Configuration | None) -> list[Effect]:
        place = message.placement, message.operator
        row = Row(message.attempt, message.decided_by, configuration)
        known = self.mapped.get(place)
        if known is None and len(self.mapped) >= self.entries_max:
            return []
        if known is None or known.order < row.order:
            self.mapped[place] = row
        return self._remember(message.placement)

    # As coordinator.

    def _zone(self, placement: PlacementId, attempt: int, root: int) -> Zone | None:
        """The zone, made anew for a new attempt; None if this attempt is over, or if there is no room for it."""
        if placement not in self._zones and len(self._zones) >= self.entries_max:
            return None
        zones = self._zones.setdefault(placement, {})
        zone = zones.get(root)
        if zone is None and len(zones) >= self.entries_max:
            return None
        if zone is None or zone.attempt < attempt:
            zone = zones[root] = Zone(attempt)
        return zone if zone.attempt == attempt else None

    def _add_subtree(self, message: AddSubtree) -> list[Effect]:
        zone = self._zone(message.placement, message.attempt, message.subtree[-1].operator)
        if zone is None:
            return []
        is_new = not zone.subtree
        expect(is_new or (zone.subtree, zone.boundary) == (message.subtree, message.boundary), "another subtree")
        zone.subtree, zone.boundary = message.subtree, message.boundary
        return [*self._remember(message.placement), *self._advance(message.placement, zone)]

    def _map(self, message: Map) -> list[Effect]:
        zone = self._zone(message.placement, message.attempt, message.path[0])
        if zone is None:
            return []
        expect(
            zone.terms is None or (zone.path, zone.terms) == (message.path, message.terms), "a path with other terms"
        )
        expect(
            not zone.subtree or message.operator in zone.boundary, f"operator {message.operator} is not at the boundary"
        )
        expect(len(zone.tables) < self.entries_max, "a zone with too many children")
        zone.path, zone.terms = message.path, message.terms
        zone.tables[message.operator] = MappedTable.of(message)
        return [*self._remember(message.placement), *self._advance(message.placement, zone)]

    def _remap(self, message: OperatorRemapped) -> list[Effect]:
        zone = self._zone(message.placement, message.attempt, message.operator)
        if zone is None or (zone.wanted is not None and message.decided_by < zone.wanted[0]):
            return []
        zone.wanted = message.decided_by, message.location
        effects = self._remember(message.placement)
        return [*effects, *self._decide(message.placement, zone)] if zone.is_mapped else effects

    def _advance(self, placement: PlacementId, zone: Zone) -> list[Effect]:
        """Place the zone once its last child is placed; a repetition gets the same answer again."""
        if not zone.is_ready:
            return []
        if not zone.is_mapped:
            zone.map()
        if not zone.is_mapped:
            return []
        effects = self._decide(placement, zone)
        if len(zone.path) > 1:
            assert zone.terms is not None
            table = zone.tables[zone.root]
            assert isinstance(table, MappedTable)
            placed = Map(
                placement=placement,
                attempt=zone.attempt,
                operator=zone.root,
                configuration=table.best,
                alternatives=tuple(table.alternatives.values()),
                elsewhere=table.elsewhere,
                path=zone.path,
                terms=zone.terms,
            )
            effects.append(self._upstream(placed, zone.path[1:]))
        return effects

    def _decide(self, placement: PlacementId, zone: Zone) -> list[Effect]:
        """Tell hosts, proxy and children where the operators of the zone go now."""
        best = zone.tables[zone.root].best.location
        assert best is not None, "what was placed is somewhere"
        decided_by, location = zone.wanted or (zone.root, best)
        configurations = zone.settle(location)
        if configurations is None:
            self.refused += 1
            return []
        effects: list[Effect] = []
        for operator, configuration in configurations.items():
            effects += self._tell_hosts(placement, zone, operator, configuration, decided_by)
        for child, place in self._moved_children(zone, configurations):
            remapped = OperatorRemapped(
                placement=placement, attempt=zone.attempt, operator=child, location=place, decided_by=decided_by
            )
            effects.append(Route(zone_key(placement, child), remapped))
        return effects

    def _tell_hosts(
        self, placement: PlacementId, zone: Zone, operator: int, configuration: Configuration, decided_by: int
    ) -> list[Effect]:
        host, former = configuration.location, zone.hosts.get(operator)
        assert host is not None, "what is settled is somewhere"
        assert zone.terms is not None, "what is settled was mapped"
        zone.hosts[operator] = host
        mapped = OperatorMapped(
            placement=placement,
            attempt=zone.attempt,
            operator=operator,
            configuration=configuration,
            decided_by=decided_by,
        )
        effects: list[Effect] = []
        if former is not None and former != host:
            void = InvalidateMap(placement=placement, attempt=zone.attempt, operator=operator, decided_by=decided_by)
            effects += self._send(former, void)
        effects += self._send(host, mapped)
        return effects if host == zone.terms.proxy else [*effects, *self._send(zone.terms.proxy, mapped)]

    def _moved_children(self, zone: Zone, configurations: dict[int, Configuration]) -> Iterator[tuple[int, PeerId]]:
        """The boundary children that are elsewhere than they placed themselves, or than they were last told."""
        for site in zone.subtree:
            for child, place in zip(site.children, configurations[site.operator].children, strict=True):
                if child not in zone.boundary:
                    continue
                assert place is not None, "what is settled is somewhere"
                if place != zone.hosts.get(child, zone.tables[child].best.location) or child in zone.hosts:
                    zone.hosts[child] = place
                    yield child, place

    # Ends.

    def _is_current(self, message: object) -> bool:
        """Whether this peer still works on the attempt that a message belongs to."""
        if not isinstance(message, PlacementMessage):
            return False
        asked = self._asked.get(message.placement)
        attempts = [zone.attempt for zone in self._zones.get(message.placement, {}).values()]
        latest = max([*attempts, asked.attempt] if asked is not None else attempts, default=-1)
        return message.attempt == latest

    def _remember(self, placement: PlacementId) -> list[Effect]:
        return [SetTimer(FORGET + placement, self.forget_ms)]

    def _forget(self, placement: PlacementId) -> list[Effect]:
        """Zones and rows are needed only while the placement goes on; a later attempt brings everything again."""
        self._zones.pop(placement, None)
        self.mapped = {place: row for place, row in self.mapped.items() if place[0] != placement}
        return []

    def validate(self) -> None:
        for asked in self._asked.values():
            assert not asked.is_done or self._whole(asked) is not None
        for zones in self._zones.values():
            for root, zone in zones.items():
                assert not zone.subtree or zone.root == root
                assert not zone.is_mapped or zone.is_ready
