"""Planning: from a text to a decision where its query runs.

text ─▶ streams it names ─▶ plan ─▶ who publishes the streams ─▶ view of the network ─▶ decision

The proxy plans the queries it runs, again for each attempt, and while they run it weighs whether another placement is
better. The explainer plans texts that nobody runs. Each step asks somebody and ends with the answer; none waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import msgspec

from protocols.catalogue.messages import ListStreams, ShowStream, StreamShown, StreamsListed
from protocols.catalogue.streams import Reads, StreamDefinition
from protocols.clock import HybridClock, Stamp
from protocols.delivery.messages import Origin
from protocols.delivery.refusals import lost_columns
from protocols.effects import Effect, Tell
from protocols.execution.crowded import Crowded, part_of
from protocols.execution.cut import Cut, cut, indexed, introduced
from protocols.execution.decision import Choice, Decision, Placing, decide
from protocols.execution.expected import demands_of
from protocols.execution.messages import QueryId, StreamVersion
from protocols.execution.refusals import NoEngine, cannot_run, no_placement, not_indexed, not_inline, not_understood
from protocols.ids import Millis, PeerId, StreamName
from protocols.inside import Questions
from protocols.join_index.condition import NotIndexed, algorithm_for, check
from protocols.messages import Answer, Refused
from protocols.placement.delay import Infeasible
from protocols.placement.events import OperatorsPlaced, PlacementAsked, PlacementStopped
from protocols.placement.messages import Distributed, Terms
from protocols.sight import LookAtNetwork, NetworkSeen
from protocols.subgraphs import ALGORITHMS, SKEWS, DeployRefused, Indexed
from queries.errors import QueryError
from queries.plan import Operator, sources
from queries.query import ParsedQuery, likely_streams, parse
from queries.reads import columns_read
from queries.slices import is_sliceable

SHUN_MS: Final = 30_000  # A host that was lost is not chosen again for a while.
PLACED_WITHIN_MS: Final = 3000  # How long the coordinators have for a placement.
HOSTS_TRIED_MAX: Final = 3  # A new query is refused once so many hosts could not start it: it may be the plan.

Purpose = Literal["likely", "streams", "publishers", "rates"]
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)

Outcome = list[Effect] | ParsedQuery | Decision | Refused
"""What is still to be asked; or what the text means, after which `locate` goes on; or where it runs; or why not."""


@dataclass(slots=True)
class Planner:
    """What all plannings of one role share."""

    peer_id: PeerId
    clock: HybridClock
    questions: Questions
    lost: dict[PeerId, Millis] = field(default_factory=dict)  # When each host was lost.
    trouble: str = ""  # Why our own engine did not start.
    # What the rights say: why an owner may not read some streams; whether a host may read one; whether all peers may.
    objection: Callable[[str, Iterable[StreamName]], Refused | None] = lambda _owner, _streams: None
    may_host: Callable[[PeerId, StreamName], bool] = lambda _peer, _stream: True
    all_may_read: Callable[[StreamName], bool] = lambda _stream: True

    def note_lost(self, peer: PeerId, now: Millis) -> None:
        self.lost = {each: at for each, at in self.lost.items() if now - at < SHUN_MS}
        self.lost[peer] = now


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to the coordinators. If they do not answer in time, the decision of this peer holds."""

    attempt: Stamp
    decision: Decision
    until: Millis


@dataclass(slots=True)
class Planning:
    """One text on its way to a decision, and to the next one.

    In:        answers of the catalogue, the network as the driver sees it, placements by coordinators
    Out:       questions, then the parsed query, then a decision; or a refusal
    Keeps:     what it knows of the streams, and where the query is and was (`placing`)
    Invariant: a running query gets a new decision only to move
    """

    planner: Planner
    token: str  # Names it in questions; of a query, the stream of its results.
    name: QueryId
    text: str
    engine: str  # As the client asked for; the text may ask, too.
    placing: Placing
    parsed: ParsedQuery | None = None
    index: Indexed | None = None  # The join index runs it.
    is_too_large: bool = False  # A daemon had no room for its windows: Spark runs it, if nobody asked for an engine.
    versions: dict[StreamName, StreamVersion] | None = None  # Of its streams; None: not planned yet.
    crowded: Crowded = field(default_factory=Crowded)  # Hosts that had no room for it.
    asked: Asked | None = None  # The open question to the coordinators.
    is_looking: bool = False  # It waits for NetworkSeen.
    _likely: int = 0  # Streams the text seems to name that have not been shown yet.
    _unlocated: dict[StreamName, None] = field(default_factory=dict)  # Streams whose publishers are being looked up.

    @property
    def plan(self) -> Operator:
        assert self.parsed is not None, "the text is parsed"
        return self.parsed.plan

    @property
    def wanted_engine(self) -> str:
        """What is to run it: what the client asked for, else what the text does."""
        options = dict(self.parsed.options) if self.parsed is not None else {}
        wanted = self.engine if self.engine != "auto" else options.get("engine", "auto")
        return "spark" if wanted == "auto" and self.is_too_large else wanted

    # From text to plan.

    def begin(self) -> list[Effect]:
        """Look up the streams that the text seems to name. The answers also say who publishes them."""
        names = likely_streams(self.text)
        self.placing.streams.clear()
        self._likely = len(names)
        if not names:
            return self._ask("streams", ListStreams())
        return [effect for name in names for effect in self._ask("likely", ShowStream(name=name, exactly=True))]

    def answered(self, purpose: str, answer: Answer) -> Outcome:
        match purpose, answer:
            case "likely", StreamShown() | Refused():
                return self._found_likely(answer)
            case "streams", StreamsListed():
                return self._parse(answer.streams, are_all=True)
            case "publishers" | "rates", StreamShown():
                self.placing.streams[answer.definition.name] = answer
                self._unlocated.pop(answer.definition.name, None)
                return [] if self._unlocated else self._located()
            case "rates", Refused():  # The query stays where it is.
                return []
            case _, Refused():
                return answer
        return []

    def _ask(self, purpose: Purpose, command: ListStreams | ShowStream) -> list[Effect]:
        return self.planner.questions.ask(self.token, purpose, command)

    def _found_likely(self, answer: StreamShown | Refused) -> Outcome:
        self._likely -= 1
        if isinstance(answer, StreamShown):
            self.placing.streams[answer.definition.name] = answer
        if self._likely:
            return []
        return self._parse([each.definition for each in self.placing.streams.values()], are_all=False)

    def _parse(self, definitions: Iterable[StreamDefinition], *, are_all: bool) -> Outcome:
        """Parse the text with the likely streams; if that fails, ask for all streams and parse again.

        Only the parser knows which streams a text names.
        """
        known = {each.name: each for each in definitions if each.name != self.token}
        try:
            self.parsed = parse(self.text, {name: each.stream(self._version(each)) for name, each in known.items()})
        except QueryError as error:
            return not_understood(error) if are_all else self._ask("streams", ListStreams())
        self.placing.take_options(self.parsed.options)
        return self._keep_versions(known) or self._must_run_elsewhere() or self._choose_index() or self.parsed

    def _version(self, definition: StreamDefinition) -> int | None:
        """Which version of a stream the text is about: the one it was first planned with; None: the newest."""
        if self.versions is None:
            return None
        kept = self.versions.get(definition.name)
        if kept is None:  # A peer of 0.2 planned it.
            return 1
        return kept.version if kept.created_at == definition.created_at else None

    def _keep_versions(self, known: Mapping[StreamName, StreamDefinition]) -> Refused | None:
        """From now on the query has the columns it was planned with; refused if one that it reads was dropped."""
        read = columns_read(self.plan)
        for source in sources(self.plan):
            reads = Reads(columns=read[source.alias], version=source.schema.version)
            if refusal := lost_columns(known[source.stream], reads):
                return refusal
        self.versions = {
            each.stream: StreamVersion(each.stream, known[each.stream].created_at, each.schema.version)
            for each in sources(self.plan)
        }
        return None

    def _must_run_elsewhere(self) -> Refused | None:
        """Refuse a query that is to run in the daemon and cannot."""
        return not_inline(self.name) if self.wanted_engine == "inline" and not is_sliceable(self.plan) else None

    def _choose_index(self) -> Refused | None:
        """Whether the join index runs it; refused if it must and cannot."""
        assert self.parsed is not None
        options, plan = dict(self.parsed.options), self.plan
        is_placed = self.placing.placement != "auto" or self.placing.within_ms is not None
        wanted = options.get("join", "auto") if self.wanted_engine == "auto" else self.wanted_engine
        is_open = wanted == "auto"
        if is_open:
            wanted = (None if is_placed else algorithm_for(plan)) or "auto"
        self.index = None
        algorithm = next((each for each in ALGORITHMS if each == wanted), None)
        if algorithm is None:
            return None
        secret = [each.stream for each in sources(plan) if not self.planner.all_may_read(each.stream)]
        if secret and is_open:
            return None
        why = "its peers follow from its values; it cannot be placed as well" if is_placed else ""
        try:
            check(plan, algorithm)
        except NotIndexed as error:
            why = why or str(error)
        if secret:
            why = why or f'not every peer may read stream "{secret[0]}", and the index needs that (grant it to peer:*)'
        if why:
            return not_indexed(self.name, algorithm, why, is_placed=is_placed, able=algorithm_for(plan))
        skew = next(each for each in SKEWS if each == options.get("skew", "auto"))
        replicas = options.get("replicas", "auto")
        self.index = Indexed(algorithm, skew, is_open, 0 if replicas == "auto" else int(replicas))
        return None

    # From plan to decision.

    def locate(self, *, anew: bool = False) -> Outcome:
        """Ask who publishes its streams, unless that is known. `anew`: ask in any case, for fresh rates."""
        names = dict.fromkeys(source.stream for source in sources(self.plan))
        shown = {} if anew else self.placing.streams
        self.placing.streams = {name: shown[name] for name in names if name in shown}
        self._unlocated = {name: None for name in names if name not in shown}
        purpose: Purpose = "rates" if anew else "publishers"
        asked = [effect for name in self._unlocated for effect in self._ask(purpose, ShowStream(name=name))]
        return asked or self._located()

    def _located(self) -> Outcome:
        if self.index is not None:
            choice = Choice(self.planner.peer_id, {}, "the join index finds its peers by keys")
            return Decision(self.plan, choice, index=self.index)
        self.is_looking = True
        return [LookAtNetwork(self.token, tuple(self._publishers()))]

    def _publishers(self) -> dict[PeerId, None]:
        return dict.fromkeys(each.peer for shown in self.placing.streams.values() for each in shown.publishers)

    def decide(self, seen: NetworkSeen, now: Millis) -> Decision | NoEngine | Infeasible:
        """Where it would run on the network as it is seen now."""
        lost = [peer for peer, at in self.planner.lost.items() if now - at < SHUN_MS]
        streams = dict.fromkeys(source.stream for source in sources(self.plan))
        lost += [peer for peer in seen.peers if not all(self.planner.may_host(peer, each) for each in streams)]
        if not all(self.planner.may_host(self.planner.peer_id, each) for each in streams):
            seen = msgspec.structs.replace(seen, sieving=())  # This peer may not read what its query reads elsewhere.
        own, publishers = self.planner.peer_id, self._publishers()
        lost += [peer for peer in seen.closed if peer != own and peer not in publishers]
        self.placing.unready = {peer: until for peer, until in self.placing.unready.items() if now < until}
        self.crowded.forget(now)
        self.placing.crowded = self.crowded
        return decide(self.plan, self.placing, seen, own, self.wanted_engine, lost)

    def seen(self, event: NetworkSeen, now: Millis, *, is_running: bool) -> Outcome:
        """Decide where the query begins; or, while it runs, whether it goes elsewhere."""
        if not self.is_looking:
            return []
        self.is_looking = False
        found, placing = self.decide(event, now), self.placing
        if not isinstance(found, Decision):
            if isinstance(found, NoEngine) and placing.unable:
                return cannot_run(self.name, placing.unable)
            return [] if is_running else no_placement(self.name, found, self.planner.trouble)
        roomy = self._where_there_is_room(found)
        if isinstance(roomy, Refused):
            return [] if is_running else roomy
        found = roomy
        stays = placing.choice is not None and found.choice.is_as(placing.choice)
        if not placing.is_distributed or stays:
            return [] if is_running and stays else found
        # These do not wait for the coordinators, who confirm the decision later: a query that runs, or that ran and has
        # no results meanwhile, or that starts fast because it has no state.
        if is_running or placing.choice is not None or found.has_no_state:
            return msgspec.structs.replace(found, is_provisional=True)
        return self.ask_coordinators(found, self.planner.clock.tick(now), now)

    # Coordinators.

    def ask_coordinators(self, decision: Decision, attempt: Stamp, now: Millis) -> list[Effect]:
        """Let coordinators place the operators together, by SAND's protocol."""
        assert decision.basis is not None
        view, tree = decision.basis.view, decision.basis.parts.tree
        algorithm = next(each for each in get_args(Distributed) if each == self.placing.placement)
        within_ms = self.placing.within_ms
        terms = Terms(algorithm, tree.proxy, within_ms)
        is_blind = algorithm == "edge" and within_ms is None
        if not is_blind:
            rows = tuple(map(tuple, view.rows))
            candidates = view.peers if algorithm == "in-network" else ()
            terms = Terms(algorithm, tree.proxy, within_ms, view.peers, rows, candidates)
        self.asked = Asked(attempt, decision, now + PLACED_WITHIN_MS)
        return [Tell(PlacementAsked(self.token, attempt, tree.vertices, terms))]

    def placed(self, event: OperatorsPlaced, *, has_begun: bool) -> Outcome:
        """The coordinators have placed it. A query that has begun stays: they place the same tree as this peer did."""
        asked = self.asked
        if asked is None or asked.attempt != event.attempt:
            return []
        decision = asked.decision.by_coordinators(event.hosts, self.placing.placement)
        if not has_begun:
            return self._where_there_is_room(decision)
        if self.placing.choice is not None and decision.choice.is_as(self.placing.choice):
            self.placing.choice = decision.choice
        return []

    def overdue(self, now: Millis) -> Outcome:
        """The coordinators take too long: what this peer has decided holds."""
        return self.asked.decision if self.asked is not None and now >= self.asked.until else []

    def stop(self) -> list[Effect]:
        """Nobody waits for the network or the coordinators any more."""
        self.is_looking = False
        was_asked, self.asked = self.asked is not None, None
        return [Tell(PlacementStopped(self.token))] if was_asked else []

    # Room.

    def _where_there_is_room(self, decision: Decision) -> Decision | Refused:
        """The decision, without hosts that had no room; refused if it needs one of them."""
        choice = self.crowded.relieved(decision.choice)
        return self.crowded.objection(self.name, choice) or msgspec.structs.replace(decision, choice=choice)

    def note_lack(self, host: PeerId, said: DeployRefused, made: Cut, now: Millis) -> None:
        """A host has refused a part, perhaps for want of room."""
        if said.lack is not None:
            self.crowded.note(host, said.lack, part_of(made, said.number), now)

    def cannot_be_at(self, host: PeerId, said: DeployRefused, *, lacks_engine: bool) -> Refused | None:
        """A host has refused a new query; None: there are others to try."""
        if said.lack is not None:
            return self.crowded.verdict(self.name)
        unable = self.placing.unable
        unable[host] = said.reason
        if lacks_engine and len(unable) < HOSTS_TRIED_MAX:
            return None
        return cannot_run(self.name, unable, is_indexed=self.index is not None)

    # From decision to subgraphs.

    def cut(self, decision: Decision, since: Stamp) -> Cut:
        """The plan that was decided on, taken apart for its hosts."""
        proxy, choice = self.planner.peer_id, decision.choice
        if decision.index is not None:
            return indexed(decision.plan, since, proxy, decision.index)
        engine = self.wanted_engine
        made = cut(self.name, decision.plan, since, choice.chains, proxy, choice.worker, engine, choice.joins)
        known = {name: _on_disk(shown) for name, shown in self.placing.streams.items()}
        made = introduced(made, known, self.placing.patience_ms, self.placing.sharing)
        return msgspec.structs.replace(made, demands=demands_of(made, self.placing.streams, self.placing.rates))


def _on_disk(shown: StreamShown) -> tuple[Origin, ...]:
    """The publishers of a stream on disk: reading can begin there before the catalogue knows that we read.

    Empty for a stream in memory.
    """
    name = shown.definition.name
    is_kept = shown.definition.durability != "memory"
    return tuple(Origin(each.peer, name, each.epoch) for each in shown.publishers) if is_kept else ()
