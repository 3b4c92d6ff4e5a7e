"""The column "live" of E1 to E5: whole peers, as a daemon runs them, on the workload of the paper's machines.

The peers are those of protocols/peer.py, driven by the simulator (overlay/sim) without faults. A client submits a query
`WITH (join = sai)`, and publishes a tuple at a random peer every STEP_MS. So everything that a user runs takes part:
catalogue, logs, disks, subscriptions, leases.

Counted is what carries a tuple and evaluates queries, as for the paper's machines (workload.py): BATCH from a publisher
to a rewriter, and PARCEL with its loads from a rewriter to an evaluator. Both go to a known peer: one hop each. Bytes
are those of the messages as the wire has them; a parcel that brings a query to an evaluator for the first time has the
query's bytes. Beside them stand, each with a count of its own:

    receipts   ACK, RECEIPT and COVERED: they come of tuples, too, and the paper's machines have none
    the rest   JOIN_RESULTS and NOTIFIED, and what peers say as time goes by: leases, subscriptions, the store

RF is the tuples that came to a rewriter. EF is the tuples and triggers that came to an evaluator; a trigger stands for
all queries of its group, where the paper's machines count each rewritten query. A peer keeps the sides of queries that
it rewrites (RS), the queries it evaluates, their tuples and triggers (ES).

A query's evaluators are named by the rewriter of the attribute where its sides meet: itself and its neighbours, 64 at
most. Up to 64 peers these are the same everywhere, and one reading of an attribute serves all queries. In larger
networks an attribute is read once for each rewriter that its queries meet at.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from experiments.cqdht.messages import AnyAlgorithm
from experiments.cqdht.workload import BOS, SCHEMA, ZIPF, Size, Workload
from experiments.report import with_progress
from overlay.sim.peer import SimPeer
from overlay.sim.surroundings import OnAnswer
from overlay.sim.topology import UniformTopology
from overlay.sim.trace import Trace
from overlay.sim.world import World
from protocols.catalogue.messages import CreateStream
from protocols.catalogue.streams import StreamDefinition
from protocols.clock import Stamp
from protocols.delivery.messages import Ack, BatchMessage, Publish, Published
from protocols.effects import Effect
from protocols.events import Event, Received
from protocols.execution.messages import QueryAccepted, SubmitQuery
from protocols.ids import Millis, PeerId
from protocols.join_index.messages import Covered, Parcel, Receipt
from protocols.messages import Answer, Command, Done, Message
from protocols.peer import Peer
from protocols.subgraphs import Algorithm
from protocols.wire import MESSAGES, RECORDS
from queries.expressions import columns_of
from queries.plan import Join, Operator, Project, Source
from queries.schema import Row

STEP_MS: Final[Millis] = 10  # Between two tuples: most of what is said as time goes by is left out.
SETTLE_MS: Final[Millis] = 500  # Then the last tuple has reached its evaluators.
WITHIN_MS: Final[Millis] = 120_000
DELAY_MS: Final = (1, 5)  # Between two peers: no tuple overtakes one that was published a step earlier by much.
READING: Final = "join/"  # How the subscriptions of rewriters begin.
SCALE_MAX: Final = 0.02  # Larger networks of whole peers take too long: there the column is of this size.
ALL_KNOWN: Final = 64  # Peers of a network in which each knows all others,
SOME_KNOWN: Final = 200  # and of one in which each knows 64.

Column = AnyAlgorithm | Literal["live"]


class Sent:
    """Messages and their bytes."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, message: Message) -> None:
        self.messages += 1
        self.bytes += len(MESSAGES.encode(message))


class Tally(Trace):
    """Counts what arrives at peers, in place of writing it down. What a peer tells itself needs no message."""

    def __init__(self) -> None:
        super().__init__()
        self.is_counting = False
        self.ids: list[PeerId] = []
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.index, self.joins, self.receipts, self.rest = Sent(), Sent(), Sent(), Sent()

    def step(self, at: Millis, peer: int, event: Event | str, effects: Sequence[Effect]) -> None:
        self.steps += 1
        if type(event) is Received and self.is_counting and event.sender != self.ids[peer]:
            self._kind(event.message).add(event.message)

    def _kind(self, message: Message) -> Sent:
        match message:
            case BatchMessage() if message.subscription.startswith(READING):
                return self.index
            case Parcel() if message.loads:
                return self.joins
            case Ack() if message.subscription.startswith(READING):
                return self.receipts
            case Receipt() if message.number:
                return self.receipts
            case Covered():
                return self.receipts
        return self.rest


@dataclass
class Posed:
    """One query: who asked, what it means, and since when it counts."""

    peer: SimPeer
    plan: Operator
    accepted: QueryAccepted | None = None


@dataclass
class LiveRun:
    """One network of whole peers: queries posed, tuples published one after the other."""

    size: Size
    seed: int
    bos: float = BOS
    zipf: float = ZIPF
    algorithm: Algorithm = "sai"
    replicas: int = 1
    queries: list[Posed] = field(default_factory=list)
    published: dict[str, list[tuple[Stamp, Row]]] = field(default_factory=dict)
    inserted: int = 0

    def __post_init__(self) -> None:
        gc.collect()
        gc.disable()  # Messages make no cycles, and there are many.
        self.workload = Workload(self.size, self.seed, self.bos, self.zipf)
        self.tally = Tally()
        self.world = World(
            self.seed,
            Peer,
            RECORDS.encode,
            RECORDS.decode,
            topology=UniformTopology(random.Random(self.seed), DELAY_MS),
            trace=self.tally,
            validate_every=1 << 30,  # The simulator's scenarios look at what must hold.
        )
        self.world.start(self.size.peers)
        self.tally.ids = [peer.peer_id for peer in self.world.peers]
        self.world.run_for(SETTLE_MS)
        self._open()

    def _open(self) -> None:
        """Create the relations, and let each peer be ready to publish to all of them."""
        names = [f"r{relation}" for relation in range(self.size.relations)]
        definitions = [StreamDefinition(name=name, schema=SCHEMA) for name in names]
        self._ask([(self.world.peers[0], CreateStream(definition=each)) for each in definitions])
        self._ask(
            [
                (peer, Publish(stream=name, rows=SCHEMA.encode([]), count=0))
                for peer in self.world.peers
                for name in names
            ]
        )
        self.published = {name: [] for name in names}

    def _peer(self) -> SimPeer:
        return self.world.peers[self.workload.luck.randrange(self.size.peers)]

    def _ask(self, commands: Sequence[tuple[SimPeer, Command]]) -> None:
        """All of these at once, each done within a while."""
        missing = len(commands)

        def answered(answer: Answer | None, last: bool) -> None:
            nonlocal missing
            assert isinstance(answer, Done | Published), answer
            missing -= 1

        for peer, command in commands:
            peer.request(command, answered)
        self._wait(lambda: not missing)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        deadline = self.world.now + WITHIN_MS
        while not is_done():
            assert self.world.now < deadline, "a peer does not answer"
            self.world.run_for(SETTLE_MS)

    def pose(self) -> None:
        for number in with_progress(range(self.size.queries), "live: queries"):
            peer, plan = self._peer(), self.workload.query()
            self.queries.append(Posed(peer, plan))
            text = f"{text_of(plan)} WITH (join = {self.algorithm}, replicas = {self.replicas})"
            peer.request(SubmitQuery(text=text, name=f"q{number}"), self._heard(number))
            self.world.run_for(STEP_MS)
        self._wait(lambda: all(query.accepted is not None for query in self.queries))

    def _heard(self, number: int) -> OnAnswer:
        def answered(answer: Answer | None, last: bool) -> None:
            if last:
                assert isinstance(answer, QueryAccepted), answer
                self.queries[number].accepted = answer

        return answered

    def insert(self, tuples: int) -> None:
        for _ in with_progress(range(tuples), f"live: tuples from {self.inserted} on"):
            relation, row = self.workload.tuple()
            command = Publish(stream=relation, rows=SCHEMA.encode([row]), count=1)
            self._peer().request(command, self._accepted(relation, row))
            self.inserted += 1
            self.world.run_for(STEP_MS)
        self.world.run_for(SETTLE_MS)
        self._wait(lambda: sum(map(len, self.published.values())) == self.inserted)

    def _accepted(self, relation: str, row: Row) -> OnAnswer:
        def answered(answer: Answer | None, last: bool) -> None:
            assert isinstance(answer, Published), answer
            self.published[relation].append((answer.stamp, row))

        return answered

    def measure(self, tuples: int) -> dict[str, float]:
        """Publish tuples; what each costs."""
        self.tally.reset()
        self.tally.is_counting = True
        self.insert(tuples)
        self.tally.is_counting = False
        index, joins, receipts, rest = self.tally.index, self.tally.joins, self.tally.receipts, self.tally.rest
        return {
            "hops": (index.messages + joins.messages) / tuples,
            "bytes": (index.bytes + joins.bytes) / tuples,
            "index": index.messages / tuples,
            "joins": joins.messages / tuples,
            "receipts": receipts.messages / tuples,
            "receipt_bytes": receipts.bytes / tuples,
            "rest": rest.messages / tuples,
            "rest_bytes": rest.bytes / tuples,
            "readings": self.readings,
        }

    @property
    def machines(self) -> list[Peer]:
        found = [peer.machine for peer in self.world.peers]
        return [machine for machine in found if isinstance(machine, Peer)]

    @property
    def readings(self) -> int:
        """How often rewriters read a stream, all together."""
        return sum(len(machine.joins.rewriter.readers) for machine in self.machines)

    def rewriting(self) -> list[int]:
        """RF of each peer."""
        return [sum(reader.tuples for reader in machine.joins.rewriter.readers.values()) for machine in self.machines]

    def filtering(self) -> list[int]:
        """TF of each peer: RF and EF."""
        taken = [machine.joins.evaluator.tables.taken for machine in self.machines]
        return [one + other for one, other in zip(self.rewriting(), taken, strict=True)]

    def storage(self) -> list[int]:
        """TS of each peer: RS and ES."""
        found = []
        for machine in self.machines:
            held = sum(len(reader.held) for reader in machine.joins.rewriter.readers.values())
            tables = machine.joins.evaluator.tables
            found.append(held + len(tables.queries) + tables.stored)
        return found


def text_of(plan: Operator) -> str:
    """A query of the workload as a client writes it."""
    assert isinstance(plan, Project)
    join = plan.input
    assert isinstance(join, Join)
    assert isinstance(join.left, Source)
    assert isinstance(join.right, Source)
    one, other = (column.path[0] for each in plan.outputs for column in columns_of(each.expression))
    select, streams = f"s.{one} AS small, b.{other} AS big", f"{join.left.stream} s, {join.right.stream} b"
    return f"SELECT {select} FROM {streams} WHERE s.{one} = b.{other}"  # noqa: S608 - of names made here


def labelled(column: str) -> str:
    """As tables, claims and plots name it: no peer runs cells.

    >>> labelled("cells"), labelled("live")
    ('cells (model)', 'live')
    """
    return "cells (model)" if column == "cells" else column


def size_of(scale: float, peers: int) -> Size:
    """The relations and queries of a scale, if that is not too large, with so many peers."""
    return Size.of(min(scale, SCALE_MAX))._replace(peers=peers)
