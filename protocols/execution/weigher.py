"""What each placement of a query would cost on this network, for people to look at; nothing is run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.messages import ListStreams, ShowStream, StreamShown, StreamsListed
from protocols.effects import Effect, Reply
from protocols.events import Abandoned, Answered, Event, Requested
from protocols.execution.messages import PartPlaced, QueryWeighed, Weighed, WeighQuery
from protocols.execution.placing import (
    Decision,
    NoEngine,
    Parts,
    Placing,
    decide,
    no_engine,
    parts_of,
    published_in,
    stand_ins,
)
from protocols.execution.running import stream_of
from protocols.ids import Millis, PeerId, RequestId
from protocols.inside import Inside
from protocols.messages import Answer, Command, Refused
from protocols.placement.delay import Infeasible
from protocols.placement.place import ALGORITHMS, place
from protocols.placement.sight import NetworkSeen
from protocols.placement.view import NetworkView
from queries.errors import QueryError
from queries.plan import Operator, sources
from queries.query import parse

ROLE: Final = "weigher"


@dataclass(slots=True)
class _Weighing:
    request: RequestId
    text: str
    placing: Placing
    plan: Operator | None = None
    looking_for: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Weigher:
    """Weighs placements of queries that people ask about.

    In:        WEIGH_QUERY; what the catalogue and the driver answer
    Out:       QUERY_WEIGHED
    Keeps:     questions until they are answered
    Invariant: every question is answered once, unless its client goes away
    """

    peer_id: PeerId
    inside: Inside
    _open: dict[str, _Weighing] = field(default_factory=dict)
    _asked: dict[RequestId, str] = field(default_factory=dict)

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        match event:
            case Requested(request=request, command=WeighQuery() as command):
                token = f"weigh {request}"
                self._open[token] = _Weighing(request, command.text, Placing("auto", command.within_ms))
                return self._ask(token, ListStreams())
            case Answered(request=request, answer=answer):
                token = self._asked.pop(request, "")
                return self._answered(token, answer) if token in self._open else []
            case NetworkSeen(placement=token) if token in self._open:
                return self._weigh(self._open.pop(token), event)
            case Abandoned(request=request):
                self._open.pop(f"weigh {request}", None)
        return []

    def _ask(self, token: str, command: Command) -> list[Effect]:
        request, effect = self.inside.ask(ROLE, command)
        self._asked[request] = token
        return [effect]

    def _answered(self, token: str, answer: Answer) -> list[Effect]:
        weighing = self._open[token]
        match answer:
            case StreamsListed():
                return self._plan(token, weighing, answer)
            case StreamShown():
                weighing.placing.streams[answer.definition.name] = answer
                weighing.looking_for.pop(answer.definition.name, None)
                return [] if weighing.looking_for else weighing.placing.look(token)
            case Refused():
                del self._open[token]
                return [Reply(weighing.request, answer)]
        return []

    def _plan(self, token: str, weighing: _Weighing, listed: StreamsListed) -> list[Effect]:
        try:
            query = parse(weighing.text, {each.name: stream_of(each) for each in listed.streams})
        except QueryError as error:
            del self._open[token]
            said = str(error).removesuffix(f"\nhint: {error.hint}")
            return [Reply(weighing.request, Refused(code="invalid", error=said, hint=error.hint))]
        weighing.plan = query.plan
        weighing.placing.adopt(query.options)
        weighing.looking_for = dict.fromkeys(source.stream for source in sources(query.plan))
        return [effect for name in weighing.looking_for for effect in self._ask(token, ShowStream(name=name))]

    def _weigh(self, weighing: _Weighing, seen: NetworkSeen) -> list[Effect]:
        assert weighing.plan is not None
        placing, view = weighing.placing, NetworkView(seen.peers, seen.rows)
        bound_ms = math.inf if placing.within_ms is None else placing.within_ms
        decision = decide(weighing.plan, placing, seen, self.peer_id, "auto", ())
        if isinstance(decision, NoEngine):
            return [Reply(weighing.request, no_engine("as written", decision))]
        streams = published_in(view, placing.streams)
        instead = stand_ins(view, streams, self.peer_id, seen.engines)
        parts = parts_of(weighing.plan, streams, self.peer_id, seen.engines, instead=instead)
        chosen = _placed(parts, decision) if isinstance(decision, Decision) else ()
        answer = QueryWeighed(
            placement=placing.placement,
            chosen=chosen,
            why=decision.choice.why if isinstance(decision, Decision) else "the bound cannot be kept",
            peers=len(view.peers),
            engines=len(seen.engines),
            betas=tuple((vertex.name, vertex.beta) for vertex in parts.tree.vertices[:-1]),
            options=tuple(_weighed(algorithm, parts, view, bound_ms) for algorithm in ALGORITHMS),
        )
        return [Reply(weighing.request, answer)]

    def validate(self) -> None:
        assert all(token == f"weigh {each.request}" for token, each in self._open.items())


def _placed(parts: Parts, decision: Decision) -> tuple[PartPlaced, ...]:
    hosts = parts.hosts(decision.choice)
    assert hosts is not None, "what was chosen can be had"
    return _parts(parts, hosts)


def _parts(parts: Parts, hosts: tuple[PeerId, ...]) -> tuple[PartPlaced, ...]:
    tree = parts.tree
    return tuple(PartPlaced(tree.vertices[number].name, hosts[number]) for number in (*tree.operators, tree.root))


def _weighed(algorithm: str, parts: Parts, view: NetworkView, bound_ms: float) -> Weighed:
    name = next(each for each in ALGORITHMS if each == algorithm)
    found = place(name, parts.tree, view, bound_ms)
    if isinstance(found, Infeasible):
        return Weighed(name, None, None, None, ())
    return Weighed(name, found.cost / 1000, found.delay_ms, found.stretch, _parts(parts, found.hosts))
