"""A query whose proxy is gone goes on at the backup of its results: asked for at any peer, and once."""

from __future__ import annotations

import msgspec
import pytest

from overlay.sim.network import Endpoint
from overlay.sim.peer import SimPeer
from protocols.catalogue.entries import encode
from protocols.delivery.messages import Backup, Note
from protocols.execution.messages import (
    AdoptQuery,
    QueryAccepted,
    QueryInstalled,
    QueryShown,
    ResultsNoted,
    ShowQuery,
    StopQuery,
    StreamVersion,
    SubmitQuery,
)
from protocols.ids import COUNT_MAX, Key
from protocols.messages import Done, Message, Refused
from protocols.subgraphs import Progress
from tests.sim.asking import TEXT, Asking

decoder = msgspec.msgpack.Decoder(QueryInstalled | ResultsNoted, dec_hook=lambda wanted, raw: wanted(raw))


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


HASTY = f"{TEXT} WITH (durability = replicated, takeover = 15 seconds)"


def test_two_queries_of_one_name_whose_proxies_die_at_once_are_taken_over_one_after_the_other() -> None:
    """They may have one backup, and a peer has one query of a name."""
    asking = Asking()
    by_backup: dict[int, list[SimPeer]] = {}
    for peer in asking.peers:
        backup = backup_of(asking, peer, asking.submit(peer, f"probe{peer.index}", HASTY))
        by_backup.setdefault(backup.index, []).append(peer)
    place, proxies = next((place, peers[:2]) for place, peers in by_backup.items() if len(peers) > 1)
    backup = asking.peers[place]
    twins = [asking.submit(proxy, "twin", HASTY) for proxy in proxies]
    asking.world.run_for(10_000)
    assert [backup_of(asking, proxy, twin) for proxy, twin in zip(proxies, twins, strict=True)] == [backup] * 2
    for proxy in proxies:
        proxy.crash()
    asking.world.run_for(90_000)
    assert backup.is_up
    first = shown(asking, backup, "twin")
    assert first.term == 2
    assert isinstance(asking.ask(backup, StopQuery(query="twin")), Done)
    asking.world.run_for(90_000)
    second = shown(asking, backup, "twin")
    assert (second.term, second.stream != first.stream) == (2, True)
    assert {first.stream, second.stream} == {each.stream for each in twins}


FORGED: dict[str, dict[str, object]] = {
    "of another stream": {"stream": "elsewhere.1-01010101-0"},
    "of a stream without a name": {"stream": ""},
    "of no name": {"query": "a/b c"},
    "of another engine": {"engine": "steam"},
    "with numbers beyond all counts": {"before": COUNT_MAX},
    "of the last term": {"term": COUNT_MAX},
    "with statistics that are none": {"statistics": "[{"},
    "from after all time": {"inserted_at": COUNT_MAX, "since": COUNT_MAX},
    "without an end": {"text": "SELECT " * 20_000},
    "within no time": {"within_ms": float("nan")},
    "of versions that are none": {"versions": (StreamVersion("left_side", COUNT_MAX, COUNT_MAX),) * 3},
    "that resumes nowhere": {"base": ResultsNoted(query="other", next=-1, progress=Progress(floor_us=1 << 62))},
}


def forged(note: Note) -> Note:
    """A note with something else than what the proxy of its query wrote."""
    parts = [decoder.decode(part) for part in note.parts]
    others = [
        msgspec.structs.replace(each, **list(FORGED.values())[int(each.query.removeprefix("forged"))])
        if isinstance(each, QueryInstalled) and each.query.startswith("forged")
        else each
        for each in parts
    ]
    return msgspec.structs.replace(note, parts=tuple(map(encode, others)))


def test_a_backup_goes_on_whatever_a_proxy_notes() -> None:
    """Notes are of the member that wrote them: nothing in them may end who keeps them, now or at its next start."""
    asking = Asking()
    network = asking.world.network
    post = network._post

    def posted(sender: Endpoint, target: Endpoint, key: Key | None, message: Message) -> None:
        if isinstance(message, Backup):
            message = msgspec.structs.replace(message, notes=tuple(map(forged, message.notes)))
        post(sender, target, key, message)

    network._post = posted  # type: ignore[method-assign]
    proxy = asking.peers[2]
    accepted = asking.submit(proxy, "kept", HASTY)
    for number in range(len(FORGED)):
        asking.submit(proxy, f"forged{number}", HASTY)
    asking.world.run_for(10_000)
    backup = backup_of(asking, proxy, accepted)
    assert len(asking.machine(backup).keeper.notes) > len(FORGED)
    before = shown(asking, proxy).results
    proxy.crash()
    asking.world.run_for(60_000)
    for _ in range(2):
        now = shown(asking, backup)
        assert (now.term, now.results) == (2, before), "nobody forged this one"
        backup.crash()
        backup.start()
        asking.world.run_for(20_000)
    asking.machine(backup).validate()


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
