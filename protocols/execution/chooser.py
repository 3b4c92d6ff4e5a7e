"""Choosing where a query of this peer runs: who publishes its streams, how far peers are, what coordinators say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocols.catalogue.messages import ListStreams, ShowStream, StreamShown
from protocols.clock import HybridClock
from protocols.delivery.messages import Origin
from protocols.effects import Effect
from protocols.execution.cut import Cut, cut, indexed, introduced
from protocols.execution.placing import Choice, Decision, Provisional, decide, no_engine, too_far
from protocols.execution.questions import Purpose, Questions
from protocols.execution.running import Running
from protocols.ids import Millis, PeerId
from protocols.join_index.condition import NotIndexed, algorithm_for, check
from protocols.messages import Refused
from protocols.placement.delay import Infeasible
from protocols.placement.events import OperatorsPlaced
from protocols.placement.sight import NetworkSeen
from protocols.subgraphs import ALGORITHMS, SKEWS, Indexed
from queries.plan import sources
from queries.query import likely_streams

SHUN_MS: Final = 30_000  # A host that was lost is not chosen again for a while.

Outcome = list[Effect] | Choice | Provisional | Refused
"""What is still to be asked; or where the query is to run, for certain or until others agree; or why it cannot."""


@dataclass(slots=True)
class Chooser:
    """Chooses hosts for the queries of one proxy.

    Keeps:     the peers that were lost a while ago
    Invariant: a query that runs where it is best is told nothing
    """

    peer_id: PeerId
    clock: HybridClock
    questions: Questions
    lost: dict[PeerId, Millis] = field(default_factory=dict)
    trouble: str = ""  # Why our own engine could not be started.

    def note_lost(self, peer: PeerId, now: Millis) -> None:
        self.lost = {each: at for each, at in self.lost.items() if now - at < SHUN_MS}
        self.lost[peer] = now

    def look_up(self, query: Running) -> list[Effect]:
        """Ask for the streams that its text seems to name, and who publishes them."""
        names = likely_streams(query.text)
        query.placing.streams.clear()
        query.likely = len(names)
        if not names:
            return self.questions.ask(query, "streams", ListStreams())
        shows = [ShowStream(name=name, exactly=True) for name in names]
        return [effect for show in shows for effect in self.questions.ask(query, "likely", show)]

    def find_publishers(self, query: Running) -> Outcome:
        """Ask where its streams are published, unless that is known, to begin it or to weigh it again."""
        assert query.parsed is not None
        names = dict.fromkeys(source.stream for source in sources(query.parsed.plan))
        is_running = query.state == "running"
        shown = {} if is_running else query.placing.streams
        query.placing.streams = {name: shown[name] for name in names if name in shown}
        query.looking_for = {name: None for name in names if name not in shown}
        purpose: Purpose = "rates" if is_running else "stream"
        asked = [self.questions.ask(query, purpose, ShowStream(name=name)) for name in query.looking_for]
        return [effect for effects in asked for effect in effects] if asked else self._known(query)

    def found(self, query: Running, shown: StreamShown) -> Outcome:
        """Where a stream is published, and how much of it."""
        query.placing.streams[shown.definition.name] = shown
        query.looking_for.pop(shown.definition.name, None)
        return self._known(query)

    def _known(self, query: Running) -> Outcome:
        if query.engine in ALGORITHMS and not query.looking_for:
            return Choice(self.peer_id, {}, "the join index finds its peers by keys")
        return [] if query.looking_for else query.placing.look(query.stream)

    def seen(self, query: Running, event: NetworkSeen, now: Millis) -> Outcome:
        """Choose where a query begins; or, while it runs, whether it goes elsewhere."""
        placing, lost = query.placing, [peer for peer, at in self.lost.items() if now - at < SHUN_MS]
        if not placing.is_looking:
            return []
        placing.is_looking = False
        placing.unready = {peer: until for peer, until in placing.unready.items() if now < until}
        assert query.parsed is not None
        found = decide(query.parsed.plan, placing, event, self.peer_id, query.engine, lost)
        if not isinstance(found, Decision):
            if query.state != "starting":
                return []
            if isinstance(found, Infeasible):
                return too_far(query.query, found)
            return no_engine(query.query, found, self.trouble)
        stays = placing.choice is not None and found.choice.is_as(placing.choice)
        if query.state != "starting":
            target = Provisional(found) if placing.is_distributed else found.choice
            return [] if stays else target
        if placing.is_distributed and not stays and not query.only_plan:
            # What has no state is soon begun; what ran has been without results for long enough.
            if found.parts.work is None or placing.choice is not None:
                return Provisional(found)
            return placing.ask(query.stream, found, self.clock.tick(now), now)
        return found.choice

    def placed(self, query: Running, event: OperatorsPlaced) -> Outcome:
        """The coordinators have placed it."""
        asked = query.placing.asked
        if asked is None or asked.attempt != event.attempt:
            return []
        choice = asked.decision.parts.choice(event.hosts, f"{query.placing.placement}, by its coordinators")
        choice = msgspec.structs.replace(choice, is_by_coordinators=True)
        if query.cut is None:
            return choice
        if query.placing.choice is not None and choice.is_as(query.placing.choice):
            query.placing.choice = choice
        return []  # It runs: of the same tree and distances they make what we have made, or it stays as it is.

    def await_coordinators(self, query: Running, now: Millis) -> Outcome:
        """They take too long: place it from here."""
        asked = query.placing.asked
        return asked.decision.choice if asked and now >= asked.until else []

    def cut(self, query: Running, choice: Choice) -> Cut:
        """Its plan, taken apart for those hosts."""
        assert query.parsed is not None
        plan, inserted_at = query.parsed.plan, query.inserted_at
        if query.engine in ALGORITHMS:
            options = dict(query.parsed.options)
            skew = next(each for each in SKEWS if each == options.get("skew", "auto"))
            asked = options.get("replicas", "auto")
            replicas = 0 if asked == "auto" else int(asked)
            return indexed(plan, inserted_at, self.peer_id, Indexed(query.engine, skew, query.is_join_open, replicas))
        made = cut(
            query.query,
            plan,
            inserted_at,
            choice.chains,
            self.peer_id,
            choice.worker,
            query.engine,
            choice.joins,
        )
        return introduced(made, {name: _on_disk(shown) for name, shown in query.placing.streams.items()})


def _on_disk(shown: StreamShown) -> tuple[Origin, ...]:
    """Who publishes to a stream, where reading can begin before the catalogue knows that we read."""
    name = shown.definition.name
    is_kept = shown.definition.durability != "memory"
    return tuple(Origin(each.peer, name, each.epoch) for each in shown.publishers) if is_kept else ()


def adopt_join(query: Running) -> str:
    """Whether it goes through the join index, and if that was asked for and cannot be, why."""
    assert query.parsed is not None
    is_placed = query.placing.placement != "auto" or query.placing.within_ms is not None
    if query.engine == "auto":
        wanted = dict(query.parsed.options).get("join", "auto")
        found = None if is_placed else algorithm_for(query.parsed.plan)
        query.engine = found or "auto" if wanted == "auto" else wanted
        query.is_join_open = wanted == "auto"
    if query.engine not in ALGORITHMS:
        return ""
    if is_placed:
        return "its peers follow from its values; it cannot be placed as well"
    try:
        check(query.parsed.plan, query.engine)
    except NotIndexed as error:
        return str(error)
    return ""


def instead_of_join(query: Running) -> str:
    """What to do about a query that the index cannot run as it was asked to."""
    assert query.parsed is not None
    if query.placing.placement != "auto" or query.placing.within_ms is not None:
        return "Leave out the join algorithm, or the placement and the delay bound."
    able = algorithm_for(query.parsed.plan)
    return f"Leave the join algorithm out: {f'{able} can run it' if able else 'it runs without the index'}."
