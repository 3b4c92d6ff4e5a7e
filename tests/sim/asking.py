"""A small network in which queries run, and clients that ask its peers about them."""

from __future__ import annotations

from overlay.sim.peer import SimPeer
from overlay.sim.run import Run, Verdict
from overlay.sim.scenario import parse_scenario
from protocols.delivery.messages import OpenSubscription, Rows
from protocols.execution.messages import (
    ListQueries,
    QueriesListed,
    QueryAccepted,
    QueryListed,
    ResultsDurability,
    SubmitQuery,
)
from protocols.messages import Answer, Command, Refused
from protocols.peer import Peer
from queries.schema import Row

SCENARIO = """
peers = 6
for_s = 5
faults = []
small_limits_share = 0.0

[workload]
name = "queries"
publishers = 1
queries = 5
rows = 10
"""
TEXT = "SELECT number FROM left_side WHERE part = 1"


class Asking:
    """A network in which five queries run, and a client at each of its peers."""

    def __init__(self, seed: int = 1) -> None:
        self.trial = Run(parse_scenario(SCENARIO), seed)
        assert self.trial().verdict is Verdict.OK
        self.world = self.trial.world

    @property
    def peers(self) -> list[SimPeer]:
        return self.world.peers

    def machine(self, peer: SimPeer) -> Peer:
        assert isinstance(peer.machine, Peer)
        return peer.machine

    def proxies(self) -> dict[str, SimPeer]:
        """By the name of the query."""
        return {name: peer for peer in self.peers if peer.is_up for name in self.machine(peer).proxy.queries}

    def begin(self, peer: SimPeer, command: Command) -> list[Answer]:
        """Ask; the answers come into the list."""
        answers: list[Answer] = []
        peer.request(command, lambda answer, _last: answers.append(answer) if answer is not None else None)
        return answers

    def ask(self, peer: SimPeer, command: Command, within_ms: int = 60_000) -> Answer:
        """The last answer; a query that is submitted has two."""
        answers = self.begin(peer, command)
        for _ in range(within_ms // 100):
            if answers and not (isinstance(command, SubmitQuery) and len(answers) < 2):
                return answers[-1]
            self.world.run_for(100)
        raise AssertionError(f"no answer to {command}")

    def listed(self, peer: SimPeer) -> dict[str, QueryListed]:
        answer = self.ask(peer, ListQueries(everywhere=True))
        assert isinstance(answer, QueriesListed)
        return {each.query: each for each in answer.queries}

    def submit(
        self, peer: SimPeer, name: str, text: str = TEXT, durability: ResultsDurability = "auto"
    ) -> QueryAccepted:
        accepted = self.ask(peer, SubmitQuery(text=text, name=name, since="start", durability=durability))
        assert isinstance(accepted, QueryAccepted), accepted
        self.world.run_for(1000)  # From then on other peers know it.
        return accepted

    def read(self, peer: SimPeer, accepted: QueryAccepted, for_ms: int = 10_000) -> list[Row]:
        """All results that a reader at some peer finds in that time."""
        name = f"reader-{self.world.now}"
        answers = self.begin(peer, OpenSubscription(stream=accepted.stream, subscription=name, since="start"))
        self.world.run_for(for_ms)
        batches = [batch for answer in answers if isinstance(answer, Rows) for batch in answer.batches]
        return [row for batch in batches for row in accepted.schema.decode(batch.rows)]

    def refused(self, peer: SimPeer, command: Command) -> Refused:
        answer = self.ask(peer, command)
        assert isinstance(answer, Refused), answer
        return answer
