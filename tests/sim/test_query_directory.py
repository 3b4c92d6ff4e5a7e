"""Every peer knows the queries of all: it lists and shows them, and stops them at their proxies."""

from __future__ import annotations

import pytest

from protocols.catalogue.messages import DropStream
from protocols.execution.finder import PROXY_DOWN
from protocols.execution.messages import (
    ListQueries,
    QueriesListed,
    QueryShown,
    ShowQuery,
    StopQuery,
    SubmitQuery,
)
from protocols.messages import Done, Refused
from tests.sim.asking import TEXT, Asking


@pytest.fixture(scope="module")
def asking() -> Asking:
    """Tests take queries and peers from it that no other needs."""
    return Asking()


def test_every_peer_lists_the_queries_of_all_and_shows_each(asking: Asking) -> None:
    proxies = asking.proxies()
    assert len(proxies) >= 5
    assert len(set(proxies.values())) > 1
    for peer in asking.peers:
        listed = asking.listed(peer)
        assert {name: each.proxy for name, each in listed.items()} == {
            name: proxy.peer_id for name, proxy in proxies.items()
        }
        assert {each.state for each in listed.values()} == {"running"}
        for name, proxy in proxies.items():
            shown = asking.ask(peer, ShowQuery(query=name))
            assert isinstance(shown, QueryShown)
            assert (shown.query, shown.proxy, shown.stream) == (name, proxy.peer_id, listed[name].stream)
    own = asking.ask(asking.peers[0], ListQueries())
    assert isinstance(own, QueriesListed)
    assert {each.query for each in own.queries} == {n for n, peer in proxies.items() if peer is asking.peers[0]}


def test_a_query_is_stopped_from_any_peer_and_is_gone_everywhere(asking: Asking) -> None:
    asking.submit(asking.peers[0], "short")
    assert isinstance(asking.ask(asking.peers[3], StopQuery(query="short")), Done)
    assert "short" not in asking.proxies()
    for peer in asking.peers:
        assert "short" not in asking.listed(peer)
        refusal = asking.refused(peer, ShowQuery(query="short"))
        assert (refusal.code, refusal.error) == ("unknown", 'query "short" is not known')
    assert asking.machine(asking.peers[0]).proxy._services.listings._leaving == {}


def test_of_two_queries_with_one_name_a_third_peer_must_say_which(asking: Asking) -> None:
    one, other, third = asking.peers[:3]
    streams = {peer: asking.submit(peer, "busy").stream for peer in (one, other)}
    for peer in (one, other):  # A peer means its own.
        shown = asking.ask(peer, ShowQuery(query="busy"))
        assert isinstance(shown, QueryShown)
        assert shown.stream == streams[peer]
    refusal = asking.refused(third, StopQuery(query="busy"))
    assert (refusal.code, refusal.error) == ("invalid", '2 peers have a query "busy"')
    assert refusal.hint == f"Say which: busy@{one.peer_id.short}, busy@{other.peer_id.short}."
    for asker in (one, third):
        shown = asking.ask(asker, ShowQuery(query=f"busy@{other.peer_id.short}"))
        assert isinstance(shown, QueryShown)
        assert shown.stream == streams[other]
    assert isinstance(asking.ask(third, StopQuery(query=f"busy@{other.peer_id.short}")), Done)
    shown = asking.ask(third, ShowQuery(query="busy"))
    assert isinstance(shown, QueryShown)
    assert shown.stream == streams[one]
    assert isinstance(asking.ask(third, StopQuery(query="busy")), Done)


def test_a_stream_that_is_read_is_removed_only_by_force_and_its_queries_say_so() -> None:
    asking = Asking(seed=2)
    asking.submit(asking.peers[0], "reader")
    refusal = asking.refused(asking.peers[4], DropStream(name="left_side"))
    assert (refusal.code, refusal.error) == ("in use", 'stream "left_side" is still read')
    assert f'query "reader" of peer {asking.peers[0].peer_id.short}' in refusal.detail
    # One that begins while the stream is removed is not known to who removes it.
    late = asking.begin(asking.peers[1], SubmitQuery(text=TEXT, name="late"))
    assert isinstance(asking.ask(asking.peers[4], DropStream(name="left_side", force=True)), Done)
    asking.world.run_for(30_000)
    for name in ("reader", "late"):
        if name == "late" and isinstance(late[-1], Refused):  # The stream was gone before it was planned.
            continue
        shown = asking.ask(asking.peers[3], ShowQuery(query=name))
        assert isinstance(shown, QueryShown)
        assert (shown.state, 'unknown stream "left_side"' in shown.reason) == ("waiting", True), shown
        assert isinstance(asking.ask(asking.peers[3], StopQuery(query=name)), Done)


def test_a_query_whose_proxy_is_down_is_listed_and_goes_on_with_it() -> None:
    asking = Asking()
    proxy, asker = asking.peers[2], asking.peers[4]
    stream = asking.submit(proxy, "kept").stream
    proxy.crash()
    asking.world.run_for(20_000)
    down = asking.listed(asker)["kept"]
    assert (down.state, down.proxy, down.stream, down.text) == (PROXY_DOWN, proxy.peer_id, stream, TEXT)
    for command in (ShowQuery(query="kept"), StopQuery(query="kept")):
        refusal = asking.refused(asker, command)
        assert (refusal.code, refusal.error) == (
            "unavailable",
            f'query "kept": its proxy {proxy.peer_id.short} does not answer',
        )
    proxy.start()
    asking.world.run_for(20_000)
    assert asking.listed(asker)["kept"].state == "running"
    assert isinstance(asking.ask(asker, StopQuery(query="kept")), Done)
    assert "kept" not in asking.listed(asker)


@pytest.mark.parametrize(
    "durability",
    ["replicated", *(pytest.param(each, marks=pytest.mark.slow) for each in ("disk", "replicated by its text"))],
)
def test_results_survive_the_disk_of_their_proxy_if_they_are_replicated(durability: str) -> None:
    asking = Asking()
    proxy, asker = asking.peers[2], asking.peers[4]
    if durability == "replicated by its text":
        accepted = asking.submit(proxy, "kept", f"{TEXT} WITH (durability = replicated)")
    else:
        accepted = asking.submit(proxy, "kept", durability="disk" if durability == "disk" else "replicated")
    asking.world.run_for(10_000)
    shown = asking.ask(asker, ShowQuery(query="kept"))
    assert isinstance(shown, QueryShown)
    assert (shown.durability, shown.results > 0) == (durability.split(maxsplit=1)[0], True)
    before = asking.read(asker, accepted)
    assert len(before) == len(set(before)) == shown.results
    proxy.crash()
    proxy.lose_disk()
    asking.world.run_for(20_000)
    after = asking.read(asking.peers[5], accepted)
    assert after == (before if shown.durability == "replicated" else [])
    refusal = asking.refused(asker, ShowQuery(query="kept"))
    assert ("A backup keeps its results so far" in refusal.hint) == (shown.durability == "replicated")
    proxy.start()
    asking.world.run_for(10_000)
    for peer in (proxy, asker):
        refusal = asking.refused(peer, ShowQuery(query="kept"))
        assert refusal.error == f'query "kept" is not known at its proxy {proxy.peer_id.short}'
