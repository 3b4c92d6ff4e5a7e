"""Answers what people ask about a query that nobody runs: who would run it, and what each placement would cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from protocols.clock import HybridClock
from protocols.demand import HOSTING
from protocols.effects import Effect, Reply
from protocols.events import Abandoned, Answered, Event, Requested
from protocols.execution.decision import Basis, Decision, Parts, Placing, basis_of
from protocols.execution.messages import (
    PartPlaced,
    PlanQuery,
    QueryPlanned,
    QueryWeighed,
    SubgraphShown,
    Weighed,
    WeighQuery,
)
from protocols.execution.planning import PURPOSES, Outcome, Planner, Planning
from protocols.execution.refusals import NoEngine, no_placement, without_form
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside, Questions
from protocols.messages import Answer, Refused
from protocols.placement.delay import Infeasible
from protocols.placement.place import ALGORITHMS, Algorithm, place
from protocols.role import Owned
from protocols.sight import NetworkSeen
from queries.query import ParsedQuery

ROLE: Final = "explainer"
NAME: Final = "as written"  # Names the query in refusals.


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, and how far its answer is."""

    request: RequestId
    command: PlanQuery | WeighQuery
    planning: Planning


@dataclass(slots=True)
class Explainer:
    """Plans queries for people to look at; nothing is run.

    In:        PLAN_QUERY, WEIGH_QUERY; what the catalogue and the driver answer
    Out:       PLANNED, QUERY_WEIGHED
    Keeps:     questions until they are answered
    Invariant: every question is answered once, unless its client goes away
    """

    owned: ClassVar[Owned] = Owned(ROLE, commands=(PlanQuery, WeighQuery), events=(NetworkSeen,))

    peer_id: PeerId
    inside: Inside
    clock: HybridClock
    _open: dict[str, _Asked] = field(default_factory=dict)
    planner: Planner = field(init=False)

    def __post_init__(self) -> None:
        self.planner = Planner(self.peer_id, self.clock, Questions(self.inside, ROLE))

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(request=request, command=PlanQuery() | WeighQuery() as command):
                return self._begin(request, command)
            case Answered(request=request, answer=answer):
                asked = self._open.get(self.planner.questions.owner_of(request))
                purpose = self.planner.questions.take(request)
                return self._follow(asked, asked.planning.answered(purpose, answer)) if asked is not None else []
            case NetworkSeen(placement=token) if token in self._open:
                asked = self._open[token]
                is_weighed = isinstance(asked.command, WeighQuery)
                decision = asked.planning.decide(event, now)
                answer = (
                    self._weighed(asked.planning, decision, event) if is_weighed else self._planned(asked, decision)
                )
                return self._reply(asked, answer)
            case Abandoned(request=request):
                self._open.pop(f"explain {request}", None)
        return []

    def _begin(self, request: RequestId, command: PlanQuery | WeighQuery) -> list[Effect]:
        """Placements are weighed as if there were no join index: it finds its peers by keys."""
        token = f"explain {request}"
        if isinstance(command, PlanQuery):
            planning = Planning(self.planner, token, NAME, command.text, command.engine, Placing())
        else:
            placing = Placing("auto", command.within_ms)
            planning = Planning(self.planner, token, NAME, command.text, "placed", placing)
        self._open[token] = _Asked(request, command, planning)
        return planning.begin()

    def _follow(self, asked: _Asked, outcome: Outcome) -> list[Effect]:
        match outcome:
            case Refused():
                return self._reply(asked, outcome)
            case ParsedQuery():
                return self._follow(asked, asked.planning.locate())
            case Decision():
                return self._reply(asked, self._planned(asked, outcome))
        return outcome

    def _reply(self, asked: _Asked, answer: Answer) -> list[Effect]:
        del self._open[asked.planning.token]
        self.planner.questions.stop(asked.planning.token, PURPOSES)
        return [Reply(asked.request, answer)]

    def _planned(self, asked: _Asked, decision: Decision | NoEngine | Infeasible) -> Answer:
        """Who would run which subgraph."""
        if not isinstance(decision, Decision):
            return no_placement(NAME, decision)
        made = asked.planning.cut(decision, 0)
        subgraphs = tuple(SubgraphShown(subgraph, host, None) for subgraph, host in made.placed)
        return without_form(NAME, made) or QueryPlanned(subgraphs=subgraphs, why=decision.choice.why)

    def _weighed(self, planning: Planning, decision: Decision | NoEngine | Infeasible, seen: NetworkSeen) -> Answer:
        """What each placement would cost."""
        placing = planning.placing
        basis = basis_of(planning.plan, placing, seen, self.peer_id, planning.engine, ())
        if isinstance(basis, NoEngine):
            return no_placement(NAME, basis)
        parts, hosts = basis.parts, None
        if isinstance(decision, Decision):
            hosts = parts.hosts(decision.choice)
            assert hosts is not None, "what was chosen can be had"
        return QueryWeighed(
            placement=placing.placement,
            chosen=_parts(parts, hosts) if hosts is not None else (),
            why=decision.choice.why if isinstance(decision, Decision) else "the bound cannot be kept",
            peers=len(basis.view.peers),
            engines=len(basis.able),
            betas=tuple((vertex.name, vertex.beta) for vertex in parts.tree.vertices[:-1]),
            options=tuple(_option(algorithm, basis, placing.bound_ms) for algorithm in ALGORITHMS),
            crowded=(*((peer, HOSTING) for peer in seen.closed), *seen.full),
        )

    def validate(self) -> None:
        assert all(token == f"explain {each.request}" for token, each in self._open.items())


def _parts(parts: Parts, hosts: tuple[PeerId, ...]) -> tuple[PartPlaced, ...]:
    tree = parts.tree
    return tuple(PartPlaced(tree.vertices[number].name, hosts[number]) for number in (*tree.operators, tree.root))


def _option(algorithm: Algorithm, basis: Basis, bound_ms: float) -> Weighed:
    found = place(algorithm, basis.parts.tree, basis.view, bound_ms)
    if isinstance(found, Infeasible):
        return Weighed(algorithm, None, None, None, ())
    return Weighed(algorithm, found.cost / 1000, found.delay_ms, found.stretch, _parts(basis.parts, found.hosts))
