"""A query whose proxy is gone goes on at the backup of its results: asked for at any peer, and once."""

from __future__ import annotations

import pytest

from overlay.sim.peer import SimPeer
from protocols.execution.messages import AdoptQuery, QueryAccepted, QueryShown, ShowQuery, StopQuery, SubmitQuery
from protocols.messages import Done, Refused
from tests.sim.asking import TEXT, Asking


def shown(asking: Asking, peer: SimPeer, query: str = "kept") -> QueryShown:
    answer = asking.ask(peer, ShowQuery(query=query))
    assert isinstance(answer, QueryShown), answer
    return answer


def backup_of(asking: Asking, proxy: SimPeer, accepted: QueryAccepted) -> SimPeer:
    mirror = asking.machine(proxy).publisher.copied(accepted.stream)
    assert mirror is not None
    return next(peer for peer in asking.peers if peer.peer_id == mirror.listed)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disk lost", "down", "cut off"])
def test_a_query_is_adopted_at_any_peer_once_its_proxy_is_gone(how: str) -> None:
    asking = Asking()
    proxy, asker, reader = asking.peers[2], asking.peers[4], asking.peers[5]
    accepted = asking.submit(proxy, "kept", durability="replicated")
    asking.world.run_for(10_000)
    backup = backup_of(asking, proxy, accepted)
    before = shown(asking, asker).results
    assert before > 0
    refusal = asking.refused(asker, AdoptQuery(query="kept"))
    assert "was heard of" in refusal.error, "while its proxy is alive"
    separation = None
    if how == "cut off":
        side = {each.index: each is proxy for each in asking.peers}
        separation = asking.world.membership.separate(side, one_way=False)
    else:
        proxy.crash()
    if how == "disk lost":
        proxy.lose_disk()
    asking.world.run_for(20_000)
    assert isinstance(asking.ask(asker, AdoptQuery(query="kept")), Done)
    asking.world.run_for(5_000)
    now = shown(asking, reader)
    assert (now.proxy, now.term, now.state, now.results) == (backup.peer_id, 2, "running", before)
    assert asking.read(reader, accepted) == asking.read(backup, accepted)
    if separation is not None:
        asking.world.membership.heal(separation)
    else:
        proxy.start()
    asking.world.run_for(30_000)
    assert "kept" not in asking.machine(proxy).proxy.queries
    assert asking.listed(proxy)["kept"].proxy == backup.peer_id
    rows = asking.read(reader, accepted)
    assert len(rows) == len(set(rows)) == before
    assert isinstance(asking.ask(proxy, StopQuery(query="kept")), Done)
    asking.world.run_for(15_000)  # Within 10 s those who publish to a stream notice that it is gone.
    for peer in asking.peers:
        assert "kept" not in asking.listed(peer)
        assert all(accepted.stream not in each for each in asking.machine(peer).publisher.outboxes)


@pytest.mark.slow
def test_a_query_that_asks_for_it_is_taken_over_by_itself_again_and_again() -> None:
    asking = Asking()
    proxies = [asking.peers[2]]
    text = f"{TEXT} WITH (durability = replicated, takeover = 15 seconds)"
    accepted = asking.submit(proxies[0], "kept", text)
    asking.world.run_for(10_000)
    before = shown(asking, proxies[0]).results
    for term in (2, 3):
        proxies.append(backup_of(asking, proxies[-1], accepted))
        proxies[-2].crash()
        if term == 2:
            proxies[-2].lose_disk()
        asking.world.run_for(60_000)
        asker = next(peer for peer in asking.peers if peer.is_up)
        now = shown(asking, asker)
        assert (now.term, now.proxy, now.results, now.takeover_ms) == (term, proxies[-1].peer_id, before, 15_000)
        proxies[-2].start()
        asking.world.run_for(20_000)
        assert len(asking.read(asker, accepted)) == before


def test_what_cannot_be_taken_over_is_refused_with_a_reason() -> None:
    asking = Asking()
    proxy, asker = asking.peers[2], asking.peers[4]
    for text, reason in (
        (f"{TEXT} WITH (takeover = 1 minute)", "its results are on one disk"),
        (f"{TEXT} WITH (durability = replicated, takeover = 3 seconds)", "after 3 s"),
    ):
        answers = asking.begin(proxy, SubmitQuery(text=text, name="hasty"))
        asking.world.run_for(5_000)
        answer = answers[-1]
        assert isinstance(answer, Refused)
        assert (answer.code, reason in answer.error, bool(answer.hint)) == ("invalid", True, True)
    asking.submit(proxy, "plain")
    twice = asking.submit(proxy, "twice", durability="replicated")
    asking.world.run_for(10_000)
    asking.submit(backup_of(asking, proxy, twice), "twice", durability="replicated")
    assert "it runs here" in asking.refused(proxy, AdoptQuery(query="plain")).error
    proxy.crash()
    proxy.lose_disk()
    asking.world.run_for(20_000)
    assert "it is not replicated" in asking.refused(asker, AdoptQuery(query="plain")).error
    name = f"twice@{proxy.peer_id.short}"
    assert "has another query of that name" in asking.refused(asker, AdoptQuery(query=name)).error
    assert asking.refused(asker, AdoptQuery(query="nothing")).code == "unknown"
