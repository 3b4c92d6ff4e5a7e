"""Where a host cannot start its engine, the next one is tried, and only then is a query refused."""

from __future__ import annotations

import pytest

from protocols.events import PeerDown, Received
from protocols.execution.attempt import RETRY_MIN_MS
from protocols.execution.messages import QueryAccepted
from protocols.execution.planning import HOSTS_TRIED_MAX
from protocols.ids import PeerId
from protocols.messages import Refused
from protocols.subgraphs import AttemptLost, DeployRefused, Spark
from tests.protocols.execution.parts import NORTH, ON_SPARK, PROXY, SELECT, SOUTH, WINDOWS
from tests.protocols.execution.proxied import Proxy


def engine_host(proxy: Proxy) -> PeerId | None:
    """Who is asked to run the part that needs an engine."""
    attempt = proxy.proxy.queries["q"].attempt
    placed = attempt.cut.placed if attempt is not None else ()
    return next((host for subgraph, host in placed if isinstance(subgraph.engine, Spark)), None)


def refuse(proxy: Proxy, reason: str) -> PeerId:
    """The host of that part will not run it."""
    host, attempt = engine_host(proxy), proxy.proxy.queries["q"].attempt
    assert host is not None
    assert attempt is not None
    refused = DeployRefused(query=attempt.query, attempt=attempt.number, number=0, reason=reason)
    proxy.happen(Received(host, refused))
    return host


def test_the_next_host_is_tried_before_a_query_is_refused_with_all_reasons():
    proxy = Proxy(engines=(NORTH, SOUTH))
    proxy.begin(ON_SPARK)
    first = refuse(proxy, "no Java was found")
    assert [reply for _, reply in proxy.replies if isinstance(reply, Refused)] == []
    second = refuse(proxy, "its disk is full")
    assert sorted((first, second)) == sorted((NORTH, SOUTH))
    assert proxy.replies[-1][1] == Refused(
        code="unavailable",
        error='query "q" cannot run: no Java was found',
        detail=f"Said by peer {first.short}. Peer {second.short}: its disk is full.",
    )
    assert proxy.proxy.queries["q"].state == "ending"


def engines_after_too_large(text: str, *, is_acknowledged: bool) -> list[str]:
    """What runs a query at first, and what once a daemon has no room for its windows."""
    proxy = Proxy(engines=(PROXY, SOUTH))
    deploys = proxy.begin(text)
    (deploy,) = deploys
    if is_acknowledged:
        proxy.host(deploys)
    too_large = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=0, reason="", is_too_large=True)
    proxy.happen(Received(PROXY, too_large))
    if not (after := proxy.deploys()) and is_acknowledged:
        proxy.tick(RETRY_MIN_MS)
        proxy.show_streams()
        after = proxy.deploys()
    return [each.subgraph.engine.name for each in (deploy, *after)]


@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_windows_that_are_too_large_for_a_daemon_go_to_spark_unless_they_must_not(is_acknowledged: bool):
    assert engines_after_too_large(WINDOWS, is_acknowledged=is_acknowledged) == ["inline", "spark"]
    must = engines_after_too_large(f"{WINDOWS} WITH (engine = inline)", is_acknowledged=is_acknowledged)
    assert must == (["inline", "inline"] if is_acknowledged else ["inline"]), "a new one is refused"


def test_a_query_that_three_hosts_could_not_start_is_refused():
    proxy = Proxy()
    proxy.begin(ON_SPARK)
    tried = [refuse(proxy, "Spark refused the plan") for _ in range(HOSTS_TRIED_MAX)]
    assert len(set(tried)) == HOSTS_TRIED_MAX
    assert engine_host(proxy) is None, "the fourth is not asked"
    assert isinstance(proxy.replies[-1][1], Refused)


def test_a_query_that_starts_at_the_second_host_is_acknowledged_and_may_go_to_the_first_one_later():
    proxy = Proxy(engines=(PROXY, SOUTH))
    proxy.begin(ON_SPARK)
    assert refuse(proxy, "no Java was found") == PROXY
    assert engine_host(proxy) == SOUTH
    proxy.host(proxy.deploys())
    assert isinstance(proxy.replies[-1][1], QueryAccepted)
    proxy.engines = (PROXY,)
    proxy.happen(PeerDown(SOUTH))
    assert engine_host(proxy) == PROXY


def test_a_query_that_ran_before_avoids_a_host_that_cannot_start_it_again_if_there_is_another():
    proxy = Proxy(engines=(PROXY, SOUTH))
    proxy.host(proxy.begin(ON_SPARK))
    query = proxy.proxy.queries["q"]
    assert query.attempt is not None
    proxy.happen(AttemptLost(query.stream, query.attempt.number, "Java died"))
    tried = []
    for retry in range(3):
        proxy.tick(RETRY_MIN_MS << retry)
        proxy.show_streams()
        tried.append(refuse(proxy, "no Java was found"))
    assert tried[:2] == [PROXY, SOUTH], "where it ran it is tried first"
    assert query.state == "waiting", "better an engine that may fail than none"


def test_a_host_that_refuses_for_another_reason_ends_the_query():
    proxy = Proxy()
    (deploy,) = proxy.begin(SELECT)
    refused = DeployRefused(query=deploy.query, attempt=deploy.attempt, number=0, reason="it has too much to do")
    proxy.happen(Received(PROXY, refused))
    (refusal,) = (reply for _, reply in proxy.replies if isinstance(reply, Refused))
    assert refusal.error == 'query "q" cannot run: it has too much to do'
