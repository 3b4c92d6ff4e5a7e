"""A proxy of queries whose questions a test answers by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

from protocols.catalogue.messages import (
    CreateStream,
    ListStreams,
    PublisherShown,
    ShowStream,
    StreamShown,
    StreamsListed,
)
from protocols.catalogue.streams import StreamDefinition
from protocols.delivery.messages import Publish, Published
from protocols.effects import AfterSync, Append, Effect, Reply, Send, Tell
from protocols.events import (
    Answered,
    Event,
    PeerDown,
    Received,
    Requested,
    Started,
    TimerFired,
)
from protocols.execution.messages import PlacementName, ResultsNoted, SubmitQuery
from protocols.execution.planning import SHUN_MS
from protocols.execution.proxy import TICK, TICK_MS, QueryProxy
from protocols.ids import Millis, PeerId
from protocols.messages import Answer, Command, Done, Message, Record
from protocols.peer import Peer
from protocols.placement.events import PlacementAsked
from protocols.sight import LookAtNetwork, NetworkSeen
from protocols.subgraphs import Deploy, Deployed, Progress, ResultsReady, ResultsSafe, SubgraphStatus
from tests.protocols.execution.parts import JOIN, LEFT, NORTH, PROXY, SCHEMA, SELECT, SOUTH, WORKER, reach


class Proxy:
    """A proxy whose questions the test answers; a peer's other roles are there and not asked."""

    def __init__(self, engines: tuple[PeerId, ...] = (PROXY, NORTH, SOUTH, WORKER)) -> None:
        self.engines = engines
        self.now = 1_800_000_000_000
        self.start([])

    def wait(self, for_ms: Millis, deploys: Sequence[Deploy]) -> None:
        """Let time go by, while all hosts tell how they are doing, as they do."""
        for _ in range(for_ms // TICK_MS):
            self.tick()
            for each in deploys:
                status = SubgraphStatus(
                    query=each.query,
                    attempt=each.attempt,
                    number=each.subgraph.number,
                    life=1,
                    rows_in=0,
                    rows_out=0,
                    waiting=0,
                    inputs=(),
                    progress=Progress(),
                )
                self.happen(Received(self.host_of(each), status))

    def start(self, records: list[Record]) -> None:
        self.peer = Peer(PROXY, random.Random(1))
        self.proxy: QueryProxy = self.peer.proxy
        for record in records:
            self.proxy.restore(record, {})
        self.asked: dict[int, Command] = {}
        self.sent: list[tuple[PeerId, Message]] = []
        self.hosts: dict[tuple[int, int], PeerId] = {}
        self.replies: list[tuple[int, Answer]] = []
        self.journal: list[Record] = list(records)
        self.safe = 0
        self.coordinated: PlacementAsked | None = None
        self.happen(Started())

    def happen(self, event: Event) -> None:
        self.perform(self.proxy.handle(event, self.now))
        self.proxy.validate()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(Requested(request=request, command=command)):
                    self.asked[request] = command
                case Tell(Received(message=message)):
                    self.sent.append((PROXY, message))
                case Tell(ResultsSafe()):
                    self.safe += 1
                case Send(peer, message):
                    self.sent.append((peer, message))
                case Reply(request, answer):
                    self.replies.append((request, answer))
                case Tell(PlacementAsked() as event):
                    self.coordinated = event
                case LookAtNetwork(placement, peers):
                    self.look(placement, peers)
                case Append(record):
                    self.journal.append(record)
                case AfterSync(held):
                    self.perform(list(held))

    def look(self, placement: str, peers: tuple[PeerId, ...]) -> None:
        """All peers on a line, 10 ms from one to the next."""
        line = tuple(dict.fromkeys((PROXY, NORTH, SOUTH, WORKER, *peers)))
        rows = tuple(tuple(10.0 * abs(a - b) for b in range(len(line))) for a in range(len(line)))
        self.happen(NetworkSeen(placement, line, rows, self.engines))

    def tick(self, after_ms: int = TICK_MS) -> None:
        self.now += after_ms
        self.happen(TimerFired(TICK))

    def take(self, kind: type[Command]) -> list[int]:
        """The questions of a kind that are not answered yet."""
        return [request for request, command in self.asked.items() if isinstance(command, kind)]

    def answer(self, kind: type[Command], answer: Answer) -> Command:
        """Answer the oldest question of a kind."""
        request = self.take(kind)[0]
        command = self.asked.pop(request)
        self.happen(Answered(request, answer, last=True))
        return command

    def submit(self, text: str = SELECT, name: str = "q") -> None:
        self.happen(Requested(1, SubmitQuery(text=text, name=name)))

    def list_streams(self) -> None:
        streams = tuple(StreamDefinition(name=name, schema=SCHEMA, event_time="at") for name in ("left", "right"))
        self.answer(ListStreams, StreamsListed(streams=streams))

    def show_streams(self, **publishers: PeerId) -> None:
        for request in self.take(ShowStream):
            command = self.asked.pop(request)
            assert isinstance(command, ShowStream)
            self.happen(Answered(request, shown(command.name, publishers.get(command.name)), last=True))

    def create(self) -> None:
        """The stream of the results is made."""
        self.answer(CreateStream, Done(stamp=1))

    def begin_placed(self, placement: PlacementName) -> PlacementAsked | None:
        """Submit a join that is to be placed so; what is asked of the coordinators."""
        self.happen(Requested(7, SubmitQuery(text=JOIN, name="q", placement=placement)))
        self.show_streams(left=NORTH, right=SOUTH)
        self.create()
        return self.coordinated

    def begin(self, text: str = SELECT, **publishers: PeerId) -> list[Deploy]:
        """Submit a query, and answer all it asks until it is deployed."""
        self.submit(text)
        self.show_streams(**publishers)
        self.create()
        return self.deploys()

    def deploys(self) -> list[Deploy]:
        found = [message for _, message in self.sent if isinstance(message, Deploy)]
        self.hosts |= {
            (message.attempt, message.subgraph.number): peer
            for peer, message in self.sent
            if isinstance(message, Deploy)
        }
        self.sent = [each for each in self.sent if not isinstance(each[1], Deploy)]
        return found

    def host_of(self, deploy: Deploy) -> PeerId:
        """The peer that was sent a subgraph."""
        return self.hosts[deploy.attempt, deploy.subgraph.number]

    def host(self, deploys: list[Deploy], life: int = 1) -> None:
        """All hosts run what they were sent."""
        for each in deploys:
            number = each.subgraph.number
            deployed = Deployed(query=each.query, attempt=each.attempt, number=number, life=life)
            self.happen(Received(self.host_of(each), deployed))

    def results(self, deploy: Deploy, numbers: list[int], covers: int | None) -> None:
        progress = None if covers is None else Progress((reach("left", LEFT, covers),), (reach("left", LEFT, covers),))
        rows = tuple((number,) for number in numbers)
        self.happen(ResultsReady(deploy.query, deploy.attempt, rows, progress))

    def publish(self) -> list[int]:
        """Let the publish under way succeed; what was in it."""
        query = self.proxy.queries["q"]
        assert query.results.schema is not None
        command = self.answer(Publish, Published(first=0, count=1, stamp=1))
        assert isinstance(command, Publish)
        return [row[0] for row in query.results.schema.decode(command.rows)]

    def notes(self) -> list[ResultsNoted]:
        return [record for record in self.journal if isinstance(record, ResultsNoted)]

    def next_attempt(self) -> list[Deploy]:
        """Lose a host, and begin anew."""
        self.happen(PeerDown(NORTH))
        self.tick(SHUN_MS)
        self.show_streams(left=NORTH)
        return self.deploys()


def shown(name: str, publisher: PeerId | None) -> StreamShown:
    publishers = tuple(
        PublisherShown(
            peer=peer,
            epoch=1,
            backup=None,
            accepted=1,
            processed=0,
            pending=0,
            dead_lettered=0,
            expired=0,
            statistics=None,
        )
        for peer in (publisher,)
        if peer is not None
    )
    definition = StreamDefinition(name=name, schema=SCHEMA, event_time="at")
    return StreamShown(definition=definition, publishers=publishers, subscriptions=0)


def running() -> tuple[Proxy, Deploy]:
    proxy = Proxy()
    deploys = proxy.begin(left=NORTH)
    proxy.host(deploys)
    return proxy, deploys[0]
