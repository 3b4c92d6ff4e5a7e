"""The proxy of queries, by hand: what it asks, whom it sends, and what it makes of the answers."""

from __future__ import annotations

import random
from itertools import count

from protocols.catalogue.messages import (
    CreateStream,
    DropStream,
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
    ClockCompared,
    Event,
    NearestPeers,
    PeerDown,
    Received,
    Requested,
    Started,
    TimerFired,
)
from protocols.execution.executor import ResultsReady, ResultsSafe
from protocols.execution.messages import (
    Deploy,
    Deployed,
    DeployRefused,
    PlacementName,
    Progress,
    QueryAccepted,
    QueryInstalled,
    QueryPlanned,
    ResultsNoted,
    StopQuery,
    SubgraphStatus,
    SubmitQuery,
    Undeploy,
)
from protocols.execution.placing import PLACED_WITHIN_MS, SETTLED_MS
from protocols.execution.proxy import SHUN_MS, TICK, TICK_MS, QueryProxy
from protocols.execution.results import NOTE_MS
from protocols.execution.running import RETRY_MIN_MS
from protocols.ids import PeerId
from protocols.messages import Answer, Command, Done, Message, Record, Refused
from protocols.peer import Peer
from protocols.placement.events import OperatorsPlaced, PlacementAsked
from protocols.placement.sight import LookAtNetwork, NetworkSeen
from tests.protocols.execution.parts import JOIN, LEFT, NORTH, PROXY, SCHEMA, SELECT, SOUTH, WORKER, reach

UNAVAILABLE = Refused(code="unavailable", error="the network is torn")


class Proxy:
    """A proxy whose questions the test answers; a peer's other roles are there and not asked."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000
        self.start([])

    def start(self, records: list[Record]) -> None:
        self.peer = Peer(PROXY, random.Random(1))
        self.proxy: QueryProxy = self.peer.queries
        for record in records:
            self.proxy.restore(record)
        self.asked: dict[int, Command] = {}
        self.sent: list[tuple[PeerId, Message]] = []
        self.replies: list[tuple[int, Answer]] = []
        self.journal: list[Record] = list(records)
        self.safe = 0
        self.coordinated: PlacementAsked | None = None
        self.happen(Started())
        self.happen(NearestPeers((NORTH, SOUTH, WORKER)))

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
        self.happen(NetworkSeen(placement, line, rows))

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
        """The stream of the results is made, and this peer is ready to publish to it."""
        self.answer(CreateStream, Done(stamp=1))
        self.answer(Publish, Published(first=0, count=0, stamp=1))

    def begin_placed(self, placement: PlacementName) -> PlacementAsked | None:
        """Submit a join that is to be placed so; what is asked of the coordinators."""
        self.happen(Requested(7, SubmitQuery(text=JOIN, name="q", placement=placement)))
        self.list_streams()
        self.create()
        self.show_streams(left=NORTH, right=SOUTH)
        return self.coordinated

    def begin(self, text: str = SELECT, **publishers: PeerId) -> list[Deploy]:
        """Submit a query, and answer all it asks until it is deployed."""
        self.submit(text)
        self.list_streams()
        self.create()
        self.show_streams(**publishers)
        return self.deploys()

    def deploys(self) -> list[Deploy]:
        found = [message for _, message in self.sent if isinstance(message, Deploy)]
        self.sent = [each for each in self.sent if not isinstance(each[1], Deploy)]
        return found

    def host(self, deploys: list[Deploy], life: int = 1) -> None:
        """All hosts run what they were sent."""
        for each in deploys:
            number = each.subgraph.number
            self.happen(Received(NORTH, Deployed(query=each.query, attempt=each.attempt, number=number, life=life)))

    def results(self, deploy: Deploy, numbers: list[int], covers: int | None) -> None:
        progress = None if covers is None else Progress((reach("left", LEFT, covers),), (reach("left", LEFT, covers),))
        rows = tuple((number,) for number in numbers)
        self.happen(ResultsReady(deploy.query, deploy.attempt, rows, progress))

    def publish(self) -> list[int]:
        """Let the publish under way succeed; what was in it."""
        query = self.proxy.running["q"]
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
        self.list_streams()
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


def test_a_query_is_acknowledged_once_all_its_hosts_run_it():
    proxy = Proxy()
    deploys = proxy.begin(left=NORTH)
    assert [each.subgraph.number for each in deploys] == [0, 1], "who reads comes first"
    proxy.host(deploys[:1])
    assert not [each for _, each in proxy.replies if isinstance(each, QueryAccepted)]
    proxy.host(deploys[1:])
    assert [each.query for _, each in proxy.replies if isinstance(each, QueryAccepted)] == ["q"]
    states = [each.state for each in proxy.journal if isinstance(each, QueryInstalled)]
    assert states == ["begun", "acknowledged"]


def test_hosts_need_not_wait_for_the_stream_of_the_results_but_the_acknowledgement_does():
    proxy = Proxy()
    proxy.submit()
    proxy.list_streams()
    proxy.show_streams(left=NORTH)
    deploys = proxy.deploys()
    proxy.host(deploys)
    proxy.results(deploys[0], [1], 1)
    assert not [each for _, each in proxy.replies if isinstance(each, QueryAccepted)]
    proxy.answer(CreateStream, Done(stamp=1))
    (opening,) = proxy.take(Publish)
    command = proxy.asked[opening]
    assert isinstance(command, Publish)
    assert command.count == 0, "no result before its stream can take it"
    proxy.answer(Publish, Published(first=0, count=0, stamp=1))
    assert [each.query for _, each in proxy.replies if isinstance(each, QueryAccepted)] == ["q"]
    assert proxy.publish() == [1]


def test_a_query_whose_results_have_no_stream_is_taken_from_its_hosts():
    proxy = Proxy()
    proxy.submit()
    proxy.list_streams()
    proxy.show_streams(left=NORTH)
    deploys = proxy.deploys()
    proxy.host(deploys)
    proxy.answer(CreateStream, Refused(code="exists", error="somebody else has it"))
    assert [(peer, type(message)) for peer, message in proxy.sent] == [(NORTH, Undeploy), (PROXY, Undeploy)]
    assert proxy.replies[-1] == (1, Refused(code="exists", error="somebody else has it"))
    assert proxy.proxy.running == {}


def test_a_query_that_spark_has_no_form_for_is_refused_before_anybody_is_sent_anything():
    proxy = Proxy()
    text = "SELECT max(CAST(number / 2 AS string)) AS half FROM left [RANGE 1 MINUTE]"
    assert proxy.begin(text, left=PROXY) == []
    (_, refusal) = proxy.replies[-1]
    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.error) == ("invalid", 'query "q" cannot run: Spark has no form for it')
    assert refusal.detail in ("Spark writes floats in another way.", "Spark writes decimals with all their places.")
    assert proxy.proxy.running["q"].state == "ending"


def test_a_query_that_is_only_planned_is_told_and_forgotten():
    proxy = Proxy()
    proxy.happen(Requested(1, SubmitQuery(text=SELECT, only_plan=True)))
    proxy.list_streams()
    proxy.show_streams(left=NORTH)
    ((request, planned),) = proxy.replies
    assert isinstance(planned, QueryPlanned)
    assert (request, [each.host for each in planned.subgraphs]) == (1, [NORTH, PROXY])
    assert (proxy.deploys(), proxy.journal, proxy.take(CreateStream), proxy.proxy.running) == ([], [], [], {})


def test_hosts_know_a_query_by_its_stream_which_no_other_peer_has():
    (deploy,) = Proxy().begin()
    assert deploy.query.startswith("q.")


def test_a_query_that_is_stopped_while_it_is_looked_up_does_not_begin():
    proxy = Proxy()
    proxy.submit(JOIN)
    proxy.list_streams()
    proxy.create()
    proxy.happen(Requested(2, StopQuery(query="q")))
    proxy.show_streams(left=NORTH)
    assert proxy.deploys() == []
    proxy.tick()
    proxy.answer(DropStream, Done(stamp=1))
    assert proxy.replies[-1][0] == 2
    assert proxy.proxy.running == {}


def test_a_query_that_is_stopped_before_it_is_planned_leaves_nothing_to_make():
    proxy = Proxy()
    proxy.submit()
    proxy.happen(Requested(2, StopQuery(query="q")))
    assert [type(each) for _, each in proxy.replies] == [Refused, Done]
    proxy.list_streams()
    assert proxy.take(CreateStream) == []
    assert proxy.journal == []


def test_a_stream_that_is_still_being_made_is_dropped_after_that():
    proxy = Proxy()
    proxy.submit()
    proxy.list_streams()
    proxy.happen(Requested(2, StopQuery(query="q")))
    proxy.tick()
    assert proxy.take(DropStream) == []
    proxy.answer(CreateStream, Done(stamp=1))
    proxy.tick()
    assert len(proxy.take(DropStream)) == 1


def test_a_query_refused_for_one_stream_is_not_deployed_when_another_is_found():
    proxy = Proxy()
    proxy.submit(JOIN)
    proxy.list_streams()
    proxy.create()
    proxy.answer(ShowStream, UNAVAILABLE)
    assert proxy.replies == [(1, UNAVAILABLE)]
    proxy.show_streams(right=SOUTH)
    assert proxy.deploys() == []
    assert proxy.proxy.running["q"].state == "ending"


def test_a_host_lost_before_the_acknowledgement_is_replaced():
    """The stream of the results is there by then: making it again would be refused."""
    proxy = Proxy()
    proxy.begin(left=NORTH)
    proxy.happen(PeerDown(NORTH))
    proxy.tick(RETRY_MIN_MS)
    proxy.list_streams()
    assert proxy.take(CreateStream) == []
    proxy.show_streams()
    proxy.host(proxy.deploys())
    assert isinstance(proxy.replies[-1][1], QueryAccepted)


def test_an_answer_meant_for_an_earlier_query_of_that_name_is_nothing_to_this_one():
    proxy = Proxy()
    (deploy,) = proxy.begin()
    proxy.host([deploy])
    proxy.results(deploy, [1], covers=1)
    (publish,) = proxy.take(Publish)
    proxy.happen(Requested(2, StopQuery(query="q")))
    proxy.tick()
    proxy.answer(DropStream, Done(stamp=1))
    proxy.submit()
    proxy.happen(Answered(publish, Published(first=0, count=1, stamp=1), last=True))
    proxy.happen(Received(NORTH, Deployed(query=deploy.query, attempt=deploy.attempt, number=0, life=1)))
    assert proxy.sent[-1][1] == Undeploy(query=deploy.query, attempt=deploy.attempt)


def test_a_crash_after_the_stop_does_not_bring_a_query_back():
    proxy = Proxy()
    proxy.host(proxy.begin())
    proxy.happen(Requested(2, StopQuery(query="q")))
    proxy.start(proxy.journal)
    proxy.tick()
    proxy.answer(DropStream, Refused(code="unknown", error="gone"))
    assert proxy.proxy.running == {}
    assert proxy.proxy.snapshot() == []


def test_what_a_host_without_spark_refuses_goes_to_another():
    proxy = Proxy()
    (deploy,) = proxy.begin(JOIN)
    refusal = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=0, reason="this peer runs without Spark")
    proxy.happen(Received(PROXY, refusal))
    proxy.list_streams()
    proxy.show_streams()
    hosts = {message.subgraph.number: peer for peer, message in proxy.sent if isinstance(message, Deploy)}
    assert hosts == {0: PROXY, 1: NORTH}


def test_a_host_that_began_anew_is_noticed_by_its_status():
    proxy = Proxy()
    deploys = proxy.begin(left=NORTH)
    proxy.host(deploys)
    maker = next(each for each in deploys if each.subgraph.number == 1)
    status = SubgraphStatus(
        query=maker.query,
        attempt=maker.attempt,
        number=1,
        life=2,
        rows_in=0,
        rows_out=0,
        waiting=0,
        inputs=(),
        progress=Progress(),
    )
    proxy.happen(Received(NORTH, status))
    assert proxy.proxy.running["q"].state == "waiting"
    assert proxy.proxy.running["q"].reason == "subgraph 1 began anew"


def test_a_peer_whose_clock_is_off_takes_no_queries():
    proxy = Proxy()
    proxy.peer.handle(ClockCompared(900, 3), proxy.now)
    proxy.submit()
    ((_, refused),) = proxy.replies
    assert isinstance(refused, Refused)
    assert refused.error == 'query "q" cannot begin here now: the clock of this peer is wrong'
    assert proxy.proxy.running == {}


# Results.


def running() -> tuple[Proxy, Deploy]:
    proxy = Proxy()
    deploys = proxy.begin(left=NORTH)
    proxy.host(deploys)
    return proxy, deploys[0]


def test_the_note_of_what_results_are_made_of_is_written_before_them():
    proxy, deploy = running()
    proxy.results(deploy, [1, 2], covers=4)
    (note,) = proxy.notes()
    assert (note.next, note.progress.covers, note.beyond) == (2, (reach("left", LEFT, 4),), ())
    assert proxy.safe == 0
    assert proxy.publish() == [1, 2]
    assert proxy.safe == 1


def test_results_that_come_while_others_are_written_go_together_after_them():
    proxy, deploy = running()
    for number in range(4):
        proxy.results(deploy, [number], covers=number + 1)
    assert proxy.publish() == [0]
    assert proxy.publish() == [1, 2, 3]
    assert proxy.notes()[-1].progress.covers == (reach("left", LEFT, 4),)
    assert proxy.safe == 4


def test_the_next_attempt_goes_on_behind_what_is_in_the_stream():
    proxy, deploy = running()
    proxy.results(deploy, [1], covers=1)
    proxy.publish()
    proxy.results(deploy, [2], covers=2)  # Never written.
    (publish,) = proxy.take(Publish)
    proxy.happen(Answered(publish, UNAVAILABLE, last=True))
    again = proxy.next_attempt()
    assert [each.resume.covers for each in again] == [(reach("left", LEFT, 1),)] * 2
    proxy.results(deploy, [7], covers=9)
    assert proxy.take(Publish) == [publish], "what comes of the attempt before is not wanted"


def test_a_refused_publish_leaves_no_note_in_memory_and_is_tried_later():
    proxy, deploy = running()
    for number in range(20):
        proxy.results(deploy, [number], covers=number + 1)
    for _ in range(8):
        proxy.answer(Publish, Refused(code="full", error="the disk is full", retry_after_ms=400))
        proxy.results(deploy, [99], covers=99)
        assert proxy.take(Publish) == [], "not before the time"
        assert proxy.proxy.running["q"].results.notes == []
        proxy.tick()
    assert proxy.publish()[:20] == list(range(20))


def test_a_query_without_results_gets_on_and_says_so_now_and_then():
    proxy, deploy = running()
    proxy.results(deploy, [], covers=5)
    assert proxy.proxy.running["q"].results.resume.covers == (reach("left", LEFT, 5),)
    first = len(proxy.notes())
    for upto in range(6, 60):
        proxy.results(deploy, [], covers=upto)
    assert len(proxy.notes()) == first, "not with every row"
    proxy.now += NOTE_MS
    proxy.results(deploy, [], covers=70)
    assert len(proxy.notes()) == first + 1
    proxy.start(proxy.journal)
    assert proxy.proxy.running["q"].results.resume.covers == (reach("left", LEFT, 70),)


def test_results_whose_cover_cannot_be_said_are_remembered_until_it_can():
    proxy, deploy = running()
    proxy.results(deploy, [1], covers=None)
    proxy.publish()
    assert len(proxy.notes()[-1].beyond) == 1
    again = proxy.next_attempt()[0]
    proxy.results(again, [1, 2], covers=3)
    assert proxy.publish() == [2], "1 is in the stream already"
    assert proxy.notes()[-1].beyond == ()


def test_what_was_told_beyond_is_not_forgotten_before_it_is_made_again():
    """Attempt 1 tells 1; attempt 2 tells 2, which covers other rows, and is lost before it has made 1 again."""
    proxy, deploy = running()
    proxy.results(deploy, [1], covers=None)
    proxy.publish()
    second = proxy.next_attempt()[0]
    proxy.results(second, [2], covers=3)
    proxy.publish()
    third = proxy.next_attempt()[0]
    proxy.results(third, [1, 3], covers=4)
    assert proxy.publish() == [3]


def test_a_group_too_large_for_one_batch_is_told_in_parts_and_no_part_twice():
    proxy, deploy = running()
    numbers = list(range(1 << 60, (1 << 60) + 80_000))
    proxy.results(deploy, numbers, covers=5)
    first = proxy.publish()
    assert 0 < len(first) < len(numbers)
    (publish,) = proxy.take(Publish)
    proxy.happen(Answered(publish, UNAVAILABLE, last=True))
    del proxy.asked[publish]
    again = proxy.next_attempt()[0]
    assert again.resume.covers == ()
    proxy.results(again, numbers, covers=5)
    told = list(first)
    for _ in count():
        if not proxy.take(Publish):
            break
        told += proxy.publish()
    assert told == numbers
    assert proxy.notes()[-1].progress.covers == (reach("left", LEFT, 5),)


def test_a_part_that_was_refused_is_tried_again():
    proxy, deploy = running()
    numbers = list(range(1 << 60, (1 << 60) + 80_000))
    proxy.results(deploy, numbers, covers=5)
    proxy.answer(Publish, Refused(code="busy", error="not now", retry_after_ms=400))
    proxy.tick()
    told: list[int] = []
    while proxy.take(Publish):
        told += proxy.publish()
    assert told == numbers


def test_a_result_that_no_stream_takes_is_dropped_and_counted():
    """XML of more than a stream's row may have: asking again would not help, and those behind it wait."""
    text = 'for $l in stream("left")/rows/row[part = 1] return <r> { $l/number } </r>'
    proxy = Proxy()
    deploys = proxy.begin(text, left=NORTH)
    proxy.host(deploys)
    large = "x" * (1 << 20)
    progress = Progress((reach("left", LEFT, 5),), (reach("left", LEFT, 5),))
    proxy.happen(ResultsReady(deploys[0].query, deploys[0].attempt, (("a",), (large,), ("b",)), progress))
    told: list[object] = []
    for _ in range(4):
        if not proxy.take(Publish):
            break
        command = proxy.asked[proxy.take(Publish)[0]]
        assert isinstance(command, Publish)
        if len(command.rows) > len(large):
            proxy.answer(Publish, Refused(code="invalid", error="a publish of 1048588 bytes is too large"))
            proxy.tick()
        else:
            told += proxy.publish()
    assert told == ["a", "b"]
    shown = proxy.proxy.running["q"].shown()
    assert (shown.results, shown.dropped) == (2, 1)
    assert shown.dropped_for == "expected at most 1048576 bytes, got 1048583 bytes"
    assert proxy.notes()[-1].progress.covers == (reach("left", LEFT, 5),)


def test_peers_lost_long_ago_are_forgotten():
    proxy, _ = running()
    for number in range(50):
        proxy.happen(PeerDown(PeerId(bytes([number]) * 20)))
        proxy.now += SHUN_MS
    assert len(proxy.proxy._lost) == 1


def test_coordinators_place_what_asks_for_their_algorithms():
    proxy = Proxy()
    asked = proxy.begin_placed("in-network")
    assert asked is not None
    assert asked.terms.candidates == asked.terms.peers
    assert not proxy.deploys()
    work = next(number for number, vertex in enumerate(asked.vertices) if vertex.name == "work")
    hosts = [vertex.peer or PROXY for vertex in asked.vertices]
    hosts[work] = SOUTH
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt - 1, tuple(hosts)))  # Of another attempt.
    assert not proxy.deploys()
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, tuple(hosts)))
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, tuple(hosts)))
    assert proxy.proxy.running["q"].placing.choice.worker == SOUTH
    assert 1 in [each.subgraph.number for each in proxy.deploys()]


def test_coordinators_that_take_too_long_are_not_waited_for():
    proxy = Proxy()
    asked = proxy.begin_placed("edge")
    assert asked is not None
    assert asked.terms.distances == ()  # Edge does not look at them.
    proxy.tick(PLACED_WITHIN_MS)
    deploys = proxy.deploys()
    assert deploys
    late = tuple(vertex.peer or WORKER for vertex in asked.vertices)
    proxy.happen(OperatorsPlaced(asked.placement, asked.attempt, late))
    assert not proxy.deploys()


def test_a_running_query_is_weighed_again_and_stays_where_it_is_if_nothing_has_changed():
    proxy = Proxy()
    assert proxy.begin_placed("exact") is None
    deploys = proxy.deploys()
    proxy.host(deploys)
    for _ in range(SETTLED_MS // TICK_MS):
        proxy.tick()
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
            proxy.happen(Received(NORTH, status))
    assert len(proxy.take(ShowStream)) == 2
    proxy.show_streams(left=NORTH, right=SOUTH)
    assert proxy.proxy.running["q"].state == "running"
    assert not proxy.deploys()


def test_a_bound_that_cannot_be_kept_is_refused():
    proxy = Proxy()
    proxy.happen(Requested(7, SubmitQuery(text=JOIN, name="q", within_ms=5.0)))
    proxy.list_streams()
    proxy.create()
    proxy.show_streams(left=NORTH, right=SOUTH)
    ((_, refusal),) = proxy.replies
    assert isinstance(refusal, Refused)
    assert refusal.error == 'query "q" cannot have its results within 5 ms'
