"""Moves that were planned, by hand: engines are made ready first, and the query runs on meanwhile."""

from __future__ import annotations

from protocols.catalogue.messages import ShowStream
from protocols.effects import Send
from protocols.events import Answered, PeerDown, Received, Requested, Unreachable
from protocols.execution.attempt import PREPARE_AGAIN_MS, PREPARED_WITHIN_MS, Attempt, Moving
from protocols.execution.decision import AGAIN_MS, BETTER_PLACED, SETTLED_MS, UNREADY_MS, Choice, Decision
from protocols.execution.engine import EngineTried, WarmEngine
from protocols.execution.executor import FORGET_MS
from protocols.execution.messages import QueryShown, ShowQuery, StopQuery, SubmitQuery
from protocols.ids import PeerId
from protocols.messages import Message
from protocols.subgraphs import Prepare, Prepared, Progress, Undeploy
from tests.protocols.execution.parts import JOIN, NARROW, NORTH, PROXY, PUBLISHERS, SOUTH, WORKER, Host, cut_of, stream
from tests.protocols.execution.proxied import Proxy

ASKED = Prepare(query="q.1", attempt=7)
READY = Prepared(query="q.1", attempt=7)


class Weighed(Proxy):
    """A proxy that runs a join itself, since nobody else has an engine; then somebody has."""

    def __init__(self, *engines: PeerId) -> None:
        super().__init__((PROXY,))
        self.happen(Requested(7, SubmitQuery(text=NARROW, name="q", placement="exact")))
        self.show_busy_streams()
        self.create()
        self.held = self.deploys()
        self.host(self.held)
        self.query = self.proxy.queries["q"]
        assert (self.query.state, self.worker) == ("running", PROXY)
        self.engines = (PROXY, *engines)
        self.wait(SETTLED_MS, self.held)
        self.show_busy_streams()

    def show_busy_streams(self) -> None:
        """Beyond the peers that may have an engine."""
        for request in self.take(ShowStream):
            name = self.asked.pop(request).name  # type: ignore[attr-defined]
            publisher = SOUTH if name == "left" else WORKER
            self.happen(Answered(request, stream(name, (publisher, 1000.0)), last=True))

    @property
    def attempt(self) -> int:
        return self.query.attempt.number if self.query.attempt is not None else 0

    @property
    def moving(self) -> Moving | None:
        return self.query.attempt.moving if self.query.attempt is not None else None

    @property
    def worker(self) -> PeerId:
        assert self.query.planning.placing.choice is not None
        return self.query.planning.placing.choice.worker

    def told(self, kind: type[Message]) -> list[tuple[PeerId, Message]]:
        """What was sent of a kind since it was asked last."""
        found = [each for each in self.sent if isinstance(each[1], kind)]
        self.sent = [each for each in self.sent if not isinstance(each[1], kind)]
        return found

    def answer_prepare(self, host: PeerId, reason: str = "", attempt: int | None = None) -> None:
        attempt = self.attempt if attempt is None else attempt
        self.happen(Received(host, Prepared(query=self.query.stream, attempt=attempt, reason=reason)))

    def given_up(self) -> list[tuple[PeerId, str]]:
        return [(each.after, each.why) for each in self.query.planning.placing.moves if each.is_given_up]

    def shown(self) -> QueryShown:
        self.happen(Requested(99, ShowQuery(query="q")))
        answer = self.replies[-1][1]
        assert isinstance(answer, QueryShown)
        return answer


def move(before: PeerId, after: PeerId) -> Moving:
    """A move that was decided on, from one worker to another."""
    there, here = (cut_of(JOIN, worker=worker, publishers=PUBLISHERS) for worker in (before, after))
    attempt = Attempt("q.1", 7, there, Progress(), 0)
    attempt.move_to(Decision(there.subgraphs[0].plan, Choice(after, {})), here, now=0)
    assert attempt.moving is not None
    return attempt.moving


def test_a_query_runs_on_until_the_engine_of_its_new_host_is_ready_and_then_goes_there_at_once():
    proxy = Weighed(NORTH)
    before = proxy.attempt
    assert proxy.told(Prepare) == [(NORTH, Prepare(query=proxy.query.stream, attempt=before))]
    assert (proxy.query.state, proxy.attempt, proxy.deploys()) == ("running", before, [])
    assert proxy.shown().preparing == (NORTH,)
    proxy.results(proxy.held[0], [1], covers=None)
    assert proxy.publish() == [1], "its results go on"
    assert not proxy.told(Undeploy)
    proxy.answer_prepare(NORTH)
    assert proxy.told(Undeploy), "where it was it is over"
    assert proxy.worker == NORTH, "nothing is looked up: it was all known"
    assert [each.attempt > before for each in proxy.deploys()] == [True] * 4
    (moved,) = proxy.query.planning.placing.moves
    assert (moved.before, moved.after, moved.is_given_up) == (PROXY, NORTH, False)
    assert moved.why.startswith(BETTER_PLACED)
    assert proxy.shown().preparing == ()
    proxy.answer_prepare(NORTH, attempt=before)  # The network may deliver a message twice.
    assert proxy.deploys() == []


def test_who_does_not_answer_is_asked_again_and_then_left_alone_for_a_while():
    proxy = Weighed(NORTH)
    proxy.told(Prepare)
    proxy.wait(PREPARE_AGAIN_MS, proxy.held)
    assert [host for host, _ in proxy.told(Prepare)] == [NORTH]
    proxy.wait(PREPARED_WITHIN_MS, proxy.held)
    assert proxy.given_up() == [(NORTH, f"peer {NORTH.short} had no engine ready within 120 s")]
    assert (proxy.query.state, proxy.worker, proxy.deploys()) == ("running", PROXY, [])
    assert proxy.shown().moves[-1].is_given_up
    proxy.told(Prepare)
    proxy.wait(AGAIN_MS, proxy.held)
    proxy.show_busy_streams()
    assert not proxy.told(Prepare), "not again so soon"
    proxy.engines = (PROXY, NORTH, SOUTH)
    proxy.wait(AGAIN_MS, proxy.held)
    proxy.show_busy_streams()
    assert [host for host, _ in proxy.told(Prepare)] == [SOUTH], "another will do"
    proxy.answer_prepare(SOUTH, reason="no Java was found")
    proxy.engines = (PROXY, NORTH)
    proxy.wait(UNREADY_MS - 2 * AGAIN_MS, proxy.held)
    proxy.show_busy_streams()
    proxy.wait(AGAIN_MS, proxy.held)
    proxy.show_busy_streams()
    assert proxy.told(Prepare)[0][0] == NORTH, "a while has passed"


def test_a_host_that_says_why_it_has_no_engine_is_not_moved_to():
    proxy = Weighed(NORTH)
    proxy.answer_prepare(NORTH, reason="no Java was found", attempt=1)
    assert proxy.given_up() == [], "said in another attempt"
    proxy.answer_prepare(SOUTH, reason="no Java was found")
    assert proxy.given_up() == [], "it was not asked"
    proxy.answer_prepare(NORTH, reason="no Java was found")
    assert proxy.given_up() == [(NORTH, f"peer {NORTH.short} cannot start its engine: no Java was found")]
    proxy.answer_prepare(NORTH)
    assert (proxy.query.state, proxy.worker, proxy.deploys()) == ("running", PROXY, [])


def test_a_host_that_dies_while_it_prepares_is_not_waited_for():
    for event, why in (
        (PeerDown(NORTH), "died or left"),
        (Unreachable(NORTH, Prepare(query="q", attempt=1)), "cannot be reached"),
    ):
        proxy = Weighed(NORTH)
        proxy.happen(event)
        assert (proxy.moving, proxy.query.state) == (None, "running")
        assert proxy.given_up() == [(NORTH, f"peer {NORTH.short} {why}")]


def test_a_query_that_loses_a_host_while_another_prepares_waits_for_nobody():
    proxy = Weighed(NORTH)
    attempt = proxy.attempt
    proxy.happen(PeerDown(SOUTH))
    assert proxy.moving is None
    assert proxy.attempt > attempt
    assert proxy.deploys()
    assert proxy.given_up() == []


def test_a_query_that_is_stopped_while_a_host_prepares_ends():
    proxy = Weighed(NORTH)
    proxy.happen(Requested(5, StopQuery(query="q")))
    assert (proxy.query.state, proxy.moving) == ("ending", None)
    proxy.answer_prepare(NORTH)
    assert proxy.deploys() == []


def test_results_on_their_way_into_the_stream_are_waited_for_before_it_begins_elsewhere():
    proxy = Weighed(NORTH)
    proxy.results(proxy.held[0], [1, 2], covers=2)
    proxy.answer_prepare(NORTH)
    assert (proxy.query.state, proxy.deploys()) == ("waiting", [])
    proxy.publish()
    assert proxy.worker == NORTH
    assert len(proxy.deploys()) == 4


def test_only_hosts_whose_engines_the_query_does_not_use_yet_are_asked():
    moving = move(WORKER, NORTH)
    assert moving.ask(now=0) == [(NORTH, ASKED)]
    assert moving.ask(now=PREPARE_AGAIN_MS - 1) == []
    moving.hear(NORTH, READY)
    moving.hear(NORTH, READY)
    assert moving.is_ready
    assert move(WORKER, WORKER).is_ready, "it is there already"


def test_a_move_is_not_made_after_one_of_its_hosts_has_failed():
    moving = move(WORKER, NORTH)
    moving.fail(SOUTH, "died or left")
    assert moving.failed is None, "it has no part in it"
    moving.fail(NORTH, "died or left")
    moving.hear(NORTH, READY)
    assert not moving.is_ready
    assert moving.ask(now=PREPARED_WITHIN_MS) == []
    assert moving.failed == (NORTH, "died or left")


def test_a_host_says_that_its_engine_is_ready_to_all_who_asked_and_once():
    host = Host()
    assert host.hear(ASKED) == [WarmEngine()]
    assert host.hear(ASKED) == [WarmEngine()], "asked again: the engine may have died meanwhile"
    assert host.happen(Received(SOUTH, ASKED)) == [WarmEngine()]
    assert host.happen(EngineTried()) == [Send(PROXY, READY), Send(SOUTH, READY)]
    assert host.happen(EngineTried()) == []


def test_a_host_whose_engine_cannot_be_started_says_why():
    host = Host()
    host.hear(ASKED)
    refused = Prepared(query="q.1", attempt=7, reason="no Java was found")
    assert host.happen(EngineTried("no Java was found")) == [Send(PROXY, refused)]
    assert host.hear(ASKED) == [Send(PROXY, refused)], "until it has been tried again"
    host.happen(EngineTried())
    assert host.hear(ASKED) == [WarmEngine()]
    host.executor.has_spark = False
    without = Prepared(query="q.1", attempt=7, reason="this peer runs without Spark")
    assert host.hear(ASKED) == [Send(PROXY, without)]


def test_a_host_forgets_who_has_stopped_asking():
    host = Host()
    for attempt in range(50):
        host.hear(Prepare(query="q.1", attempt=attempt))
        host.now += FORGET_MS
    host.hear(ASKED)
    assert host.happen(EngineTried()) == [Send(PROXY, READY)]
