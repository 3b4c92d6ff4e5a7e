"""Eight peers that run the live join index in one process: messages arrive at once and in order, streams are lists."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from protocols.catalogue.messages import ShowStream
from protocols.clock import COUNT_BITS
from protocols.delivery.messages import Batch, Opened, OpenSubscription, Origin, Rows, Seen
from protocols.effects import Effect, Route, Send, SetTimer, Tell
from protocols.events import Abandoned, Answered, Event, Received, Requested, Started, TimerFired
from protocols.ids import Millis, PeerId, RequestId, distance
from protocols.inside import Inside
from protocols.join_index.machine import SWEEP, WORK, JoinIndex
from protocols.messages import Answer, Command, Message, Refused
from protocols.subgraphs import (
    Algorithm,
    Deploy,
    Deployed,
    Indexed,
    Progress,
    ResultsReady,
    ResultsSafe,
    StreamInput,
    Subgraph,
    SubgraphStatus,
    Undeploy,
)
from queries import sql
from queries.catalogue import Stream
from queries.plan import Operator, sources
from queries.schema import Row

STEP_MS = 100


class Network:
    """Peers, the streams they publish, and the results they get."""

    def __init__(self, streams: dict[str, Stream], peers: int = 8) -> None:
        self.streams = streams
        self.now: Millis = 1_000_000
        self.ids = [PeerId.of_public_key(b"0 %d" % number) for number in range(peers)]  # As in the paper's network.
        # The last peer is nobody's neighbour: it rewrites, and evaluates for itself alone.
        self.machines = {peer: JoinIndex(peer, Inside(), lambda: tuple(self.ids[:-1]), 0) for peer in self.ids}
        self.plans: dict[str, Operator] = {}
        self.results: list[tuple[str, Row]] = []
        self.on_message: Callable[[PeerId, PeerId, Message], None] = lambda sender, to, message: None
        self.on_read: Callable[[PeerId, Batch], None] = lambda reader, batch: None
        self._waiting: deque[tuple[PeerId, Event]] = deque()
        self._readings: dict[tuple[PeerId, RequestId], OpenSubscription] = {}
        self._sequences: Counter[Origin] = Counter()
        self._happen(*((peer, Started()) for peer in self.ids))

    # What clients do.

    def pose(self, text: str, algorithm: Algorithm, peer: PeerId) -> str:
        name = f"q{len(self.plans) + 1}"
        plan = self.plans[name] = sql.plan(text, self.streams).plan
        inputs = tuple(StreamInput(each.alias, each.stream, self._stamp, None, 0) for each in sources(plan))
        subgraph = Subgraph(0, plan, inputs, Indexed(algorithm))
        deploy = Deploy(query=name, attempt=1, subgraph=subgraph, consumer_host=None, resume=Progress())
        self._happen((peer, Received(peer, deploy)))
        return name

    def stop(self, name: str, peer: PeerId) -> None:
        self._happen((peer, Received(peer, Undeploy(query=name, attempt=1))))

    def publish(self, stream: str, row: Row, peer: PeerId) -> None:
        schema, origin = self.streams[stream].schema, Origin(peer, stream, 1)
        batch = Batch(origin, self._sequences[origin], 1, self._stamp, schema.encode([schema.row(row)]))
        self._sequences[origin] += 1
        read: list[tuple[PeerId, Event]] = []
        for (reader, request), command in self._readings.items():
            if command.stream == stream and command.share.has(peer):
                self.on_read(reader, batch)
                read.append((reader, Answered(request, Rows(batches=(batch,)), last=False)))
        self._happen(*read)

    def wait(self, for_ms: Millis) -> None:
        """Let time pass, and every peer look after what it has."""
        self.now += for_ms
        self._happen(*((peer, TimerFired(SWEEP)) for peer in self.ids))

    # The world.

    @property
    def _stamp(self) -> int:
        return self.now << COUNT_BITS

    def _happen(self, *events: tuple[PeerId, Event]) -> None:
        """Some events, and everything that follows from them."""
        self._waiting.extend(events)
        while self._waiting:
            peer, event = self._waiting.popleft()
            for effect in self.machines[peer].handle(event, self.now):
                self._perform(peer, effect)
            self.machines[peer].validate()
        self.now += STEP_MS

    def _perform(self, peer: PeerId, effect: Effect) -> None:
        match effect:
            case Route(key=key, message=message):
                self._travel(peer, min(self.ids, key=lambda each: distance(each, key)), message)
            case Send(peer=to, message=message):
                self._travel(peer, to, message)
            case Tell(event=Received(message=Deployed() | SubgraphStatus())):
                pass  # For the proxy.
            case Tell(event=Received(message=message)):
                self._travel(peer, peer, message)
            case Tell(event=Requested(request=request, command=command)):
                self._answer(peer, request, command)
            case Tell(event=Abandoned(request=request)):
                del self._readings[peer, request]
            case Tell(event=ResultsReady(query=query, attempt=attempt, rows=rows)):
                self.results += ((query, row) for row in rows)
                self._waiting.append((peer, ResultsSafe(query, attempt)))
            case SetTimer(name=name) if name == WORK:
                self._waiting.append((peer, TimerFired(WORK)))
            case SetTimer(name=name):
                assert name == SWEEP
            case _:
                raise AssertionError(f"nobody performs {effect}")

    def _answer(self, peer: PeerId, request: RequestId, command: Command) -> None:
        """As the other roles of a peer would; the catalogue knows nothing of the streams yet."""
        answer: Answer
        match command:
            case OpenSubscription(subscription=name):
                self._readings[peer, request] = command
                answer = Opened(subscription=name, stamp=self._stamp)
            case ShowStream():
                answer = Refused(code="unavailable", error="nothing is known of it")
            case Seen():
                return
            case _:
                raise AssertionError(f"nobody answers {command}")
        self._waiting.append((peer, Answered(request, answer, last=isinstance(answer, Refused))))

    def _travel(self, sender: PeerId, to: PeerId, message: Message) -> None:
        self.on_message(sender, to, message)
        self._waiting.append((to, Received(sender, message)))
