"""The life of queries at their proxy, by hand: what it asks, whom it sends, and what it makes of the answers."""

from __future__ import annotations

from protocols.catalogue.messages import (
    CreateStream,
    DropStream,
    ListStreams,
    ShowStream,
)
from protocols.delivery.messages import Publish, Published
from protocols.events import (
    Answered,
    ClockCompared,
    PeerDown,
    Received,
    Requested,
)
from protocols.execution.attempt import RETRY_MIN_MS
from protocols.execution.messages import QueryAccepted, QueryInstalled, StopQuery, SubmitQuery
from protocols.messages import Done, Refused
from protocols.subgraphs import Deploy, Deployed, Progress, SubgraphStatus, Undeploy
from tests.protocols.execution.parts import JOIN, NORTH, PROXY, SELECT, SOUTH, WINDOWS
from tests.protocols.execution.proxied import Proxy

UNAVAILABLE = Refused(code="unavailable", error="the network is torn")


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
    proxy.show_streams(left=NORTH)
    deploys = proxy.deploys()
    proxy.host(deploys)
    proxy.results(deploys[0], [1], 1)
    assert not [each for _, each in proxy.replies if isinstance(each, QueryAccepted)]
    assert proxy.take(Publish) == [], "no result before its stream is known"
    proxy.create()
    assert [each.query for _, each in proxy.replies if isinstance(each, QueryAccepted)] == ["q"]
    assert proxy.publish() == [1]


def test_a_query_whose_results_have_no_stream_is_taken_from_its_hosts():
    proxy = Proxy()
    proxy.submit()
    proxy.show_streams(left=NORTH)
    deploys = proxy.deploys()
    proxy.host(deploys)
    proxy.answer(CreateStream, Refused(code="exists", error="somebody else has it"))
    assert [(peer, type(message)) for peer, message in proxy.sent] == [(NORTH, Undeploy), (PROXY, Undeploy)]
    assert proxy.replies[-1] == (1, Refused(code="exists", error="somebody else has it"))
    assert proxy.proxy.queries == {}


def test_a_query_that_spark_has_no_form_for_is_refused_before_anybody_is_sent_anything():
    proxy = Proxy()
    text = "SELECT max(CAST(number / 2 AS string)) AS half FROM left [RANGE 1 MINUTE] WITH (engine = spark)"
    assert proxy.begin(text, left=PROXY) == []
    (_, refusal) = proxy.replies[-1]
    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.error) == ("invalid", 'query "q" cannot run: Spark has no form for it')
    assert refusal.detail in ("Spark writes floats in another way.", "Spark writes decimals with all their places.")
    assert proxy.proxy.queries["q"].state == "ending"


def test_what_the_daemon_cannot_run_is_refused_if_it_must_and_the_text_may_say_what_runs_it():
    proxy = Proxy()
    proxy.submit(f"{JOIN} WITH (engine = inline)")
    proxy.show_streams(left=NORTH)
    (_, refusal) = proxy.replies[-1]
    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.error) == ("invalid", 'query "q" cannot run in the daemon, as it was asked to')
    for engine in ("inline", "spark"):
        deploys = Proxy().begin(f"{WINDOWS} WITH (engine = {engine})")
        assert {each.subgraph.engine.name for each in deploys} >= {engine}


def test_hosts_know_a_query_by_its_stream_which_no_other_peer_has():
    (deploy,) = Proxy().begin()
    assert deploy.query.startswith("q.")


def test_a_query_that_is_stopped_while_it_is_looked_up_does_not_begin():
    proxy = Proxy()
    proxy.submit(JOIN)
    proxy.happen(Requested(2, StopQuery(query="q")))
    proxy.show_streams(left=NORTH)
    assert (proxy.deploys(), proxy.take(CreateStream), proxy.journal) == ([], [], [])
    assert proxy.replies[-1][0] == 2
    assert proxy.proxy.queries == {}


def test_a_query_that_is_stopped_before_it_is_planned_leaves_nothing_to_make():
    proxy = Proxy()
    proxy.submit()
    proxy.happen(Requested(2, StopQuery(query="q")))
    assert [type(each) for _, each in proxy.replies] == [Refused, Done]
    proxy.show_streams(left=NORTH)
    assert proxy.take(CreateStream) == []
    assert proxy.journal == []


def test_a_stream_that_is_still_being_made_is_dropped_after_that():
    proxy = Proxy()
    proxy.submit()
    proxy.show_streams(left=NORTH)
    proxy.happen(Requested(2, StopQuery(query="q")))
    proxy.tick()
    assert proxy.take(DropStream) == []
    proxy.answer(CreateStream, Done(stamp=1))
    proxy.tick()
    assert len(proxy.take(DropStream)) == 1


def test_streams_that_the_text_does_not_name_as_they_are_called_are_looked_for_among_all():
    proxy = Proxy()
    proxy.submit(SELECT.replace("left", "LEFT"))
    proxy.answer(ShowStream, Refused(code="unknown", error='stream "LEFT" is not known'))
    proxy.list_streams()
    proxy.show_streams(left=NORTH)
    assert {each.query[:2] for each in proxy.deploys()} == {"q."}


def test_a_query_refused_for_one_stream_is_not_deployed_when_another_is_found():
    proxy = Proxy()
    proxy.submit(JOIN)
    proxy.answer(ShowStream, UNAVAILABLE)
    proxy.show_streams(right=SOUTH)
    proxy.answer(ListStreams, UNAVAILABLE)
    assert proxy.replies == [(1, UNAVAILABLE)]
    assert (proxy.deploys(), proxy.proxy.queries) == ([], {})


def test_the_stream_of_results_that_was_never_made_is_forgotten_here_too():
    proxy = Proxy()
    proxy.submit()
    proxy.show_streams(left=NORTH)
    assert len(proxy.peer.publisher.outboxes) == 1
    proxy.answer(CreateStream, UNAVAILABLE)
    proxy.tick()
    proxy.answer(DropStream, Refused(code="unknown", error="gone"))
    assert (proxy.proxy.queries, proxy.peer.publisher.outboxes) == ({}, {})


def test_a_host_lost_before_the_acknowledgement_is_replaced():
    """The stream of the results is there by then: making it again would be refused."""
    proxy = Proxy()
    proxy.begin(left=NORTH)
    proxy.happen(PeerDown(NORTH))
    proxy.tick(RETRY_MIN_MS)
    assert proxy.take(CreateStream) == []
    proxy.show_streams()
    proxy.host(proxy.deploys())
    assert isinstance(proxy.replies[-1][1], QueryAccepted)


def test_a_query_goes_on_without_a_lost_host_at_once_but_waits_before_it_tries_again():
    proxy = Proxy()
    proxy.host(proxy.begin(JOIN, left=NORTH, right=SOUTH))
    first = proxy.proxy.queries["q"].attempt.number
    proxy.happen(PeerDown(NORTH))
    deploys = proxy.deploys()
    assert deploys
    assert (proxy.take(ShowStream), deploys[0].attempt > first) == ([], True)
    proxy.happen(PeerDown(SOUTH))
    assert proxy.proxy.queries["q"].state == "waiting", "this one has not run yet"
    proxy.tick(2 * RETRY_MIN_MS)
    assert len(proxy.take(ShowStream)) == 2


def test_what_is_being_written_of_an_attempt_is_waited_for_before_the_next_begins():
    proxy = Proxy()
    deploys = proxy.begin(left=NORTH)
    proxy.host(deploys)
    proxy.results(deploys[0], [1], covers=1)
    proxy.happen(PeerDown(NORTH))
    assert (proxy.deploys(), proxy.proxy.queries["q"].state) == ([], "waiting")
    assert proxy.publish() == [1]
    assert [each.resume.covers[0].next for each in proxy.deploys()] == [1]


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
    assert proxy.proxy.queries == {}
    assert proxy.proxy.snapshot() == []


def test_a_query_that_was_refused_gives_its_name_away_though_its_stream_is_not_dropped_yet():
    proxy = Proxy(engines=())
    proxy.submit(JOIN)
    proxy.show_streams(left=NORTH, right=SOUTH)
    ((_, refused),) = proxy.replies
    assert isinstance(refused, Refused)
    assert proxy.begin(left=NORTH), "under the same name, though the first stream is not even made yet"
    assert proxy.proxy.queries["q"].state == "starting"
    proxy.start(proxy.journal)  # Nobody was told of the second one: both end.
    proxy.tick()
    drops = [proxy.asked[request] for request in proxy.take(DropStream)]
    assert sorted(each.name for each in drops if isinstance(each, DropStream)) == sorted(
        {each.stream for each in proxy.journal if isinstance(each, QueryInstalled)}
    )


def test_of_two_queries_of_one_name_the_one_that_was_refused_ends_and_the_other_goes_on():
    proxy = Proxy(engines=())
    proxy.submit(JOIN)
    proxy.show_streams(left=NORTH, right=SOUTH)
    proxy.create()
    proxy.submit(SELECT)
    proxy.show_streams(left=NORTH)
    proxy.create()
    proxy.host(proxy.deploys())
    running = proxy.proxy.queries["q"]
    assert (running.state, len(proxy.proxy.queries)) == ("running", 2)
    for records in (proxy.journal, proxy.proxy.snapshot()):
        again = Proxy(engines=())
        again.start(list(records))
        again.tick()
        assert again.proxy.queries["q"].stream == running.stream
        assert again.proxy.queries["q"].state != "ending"
        drop = again.answer(DropStream, Done(stamp=1))
        assert isinstance(drop, DropStream)
        assert drop.name != running.stream
        assert list(again.proxy.queries) == ["q"]
    proxy.tick()
    proxy.answer(DropStream, Done(stamp=1))
    assert list(proxy.proxy.queries.values()) == [running]
    last = [each for each in proxy.journal if isinstance(each, QueryInstalled)][-1]
    assert (last.state, last.stream != running.stream) == ("ended", True)
    proxy.happen(Requested(3, SubmitQuery(text=SELECT, name="q")))
    ((request, refused),) = proxy.replies[-1:]
    assert isinstance(refused, Refused)
    assert (request, refused.code) == (3, "exists"), "what runs keeps its name"


def test_a_peer_that_says_it_has_no_spark_is_not_asked_for_it():
    proxy = Proxy(engines=(SOUTH,))
    proxy.submit(JOIN)
    proxy.show_streams()
    hosts = {message.subgraph.number: peer for peer, message in proxy.sent if isinstance(message, Deploy)}
    assert hosts == {0: PROXY, 1: SOUTH}


def test_where_nobody_has_spark_a_query_that_needs_it_is_refused_at_once():
    for text, engine, error in (
        (JOIN, "auto", 'query "q" cannot run: it needs Spark, and no peer here has it'),
        (SELECT, "spark", 'query "q" cannot run on Spark: this peer runs without it'),
    ):
        proxy = Proxy(engines=())
        proxy.happen(Requested(1, SubmitQuery(text=text, name="q", engine=engine)))
        proxy.show_streams()
        assert proxy.sent == []
        ((_, refused),) = proxy.replies
        assert isinstance(refused, Refused)
        assert (refused.code, refused.error) == ("unavailable", error)
    assert Proxy(engines=()).begin(SELECT), "what needs none runs"


def test_statistics_outlive_a_crash_with_their_query_and_must_be_some():
    proxy = Proxy()
    proxy.happen(Requested(1, SubmitQuery(text=SELECT, name="q", statistics="[1]")))
    ((_, refused),) = proxy.replies
    assert isinstance(refused, Refused)
    assert (refused.code, refused.error) == ("invalid", "the statistics of its streams cannot be read")
    known = '{"left": {"rate_per_s": 5, "row_bytes": 10, "retention_s": 60}}'
    proxy.happen(Requested(2, SubmitQuery(text=SELECT, name="q", statistics=known)))
    proxy.show_streams(left=NORTH)
    proxy.start(proxy.journal)
    assert proxy.proxy.queries["q"].planning.placing.rates["left"].rate_per_s == 5


def test_a_query_whose_last_peer_with_spark_is_gone_waits_for_one():
    proxy = Proxy(engines=(SOUTH,))
    proxy.host(proxy.begin(JOIN))
    proxy.engines = ()
    proxy.happen(PeerDown(SOUTH))
    proxy.tick(RETRY_MIN_MS)
    proxy.show_streams()
    query = proxy.proxy.queries["q"]
    assert (query.state, query.retry.reason) == (
        "waiting",
        'query "q" cannot run: it needs Spark, and no peer here has it',
    )
    proxy.engines = (NORTH,)
    proxy.tick(10 * RETRY_MIN_MS)
    proxy.show_streams()
    assert [peer for peer, message in proxy.sent[-2:] if isinstance(message, Deploy)] == [PROXY, NORTH]


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
    assert proxy.proxy.queries["q"].state == "waiting"
    assert proxy.proxy.queries["q"].retry.reason == "subgraph 1 began anew"


def test_a_peer_whose_clock_is_off_takes_no_queries():
    proxy = Proxy()
    proxy.peer.handle(ClockCompared(900, 3), proxy.now)
    proxy.submit()
    ((_, refused),) = proxy.replies
    assert isinstance(refused, Refused)
    assert refused.error == 'query "q" cannot begin here now: the clock of this peer is wrong'
    assert proxy.proxy.queries == {}
