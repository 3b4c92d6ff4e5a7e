"""What a member without a right may do over links: nothing, also where nobody stops it at home."""

from __future__ import annotations

import msgspec
import pytest

from protocols.catalogue.messages import DropStream, ShowStream, StreamShown
from protocols.delivery.messages import (
    Ack,
    Batch,
    BatchMessage,
    Origin,
    Position,
    Published,
    Subscribe,
    Unsubscribe,
)
from protocols.effects import Effect, Send
from protocols.events import Received
from protocols.execution.messages import (
    AskProxy,
    ProxyAnswer,
    QueryAccepted,
    QueryShown,
    ShowQuery,
    StopQuery,
    SubmitQuery,
)
from protocols.ids import PeerId
from protocols.join_index.messages import IndexQuery, JoinQuery, Parcel, QueryRefused, RemoveQuery
from protocols.messages import Message, Refused
from protocols.rights.messages import Grant, NotAllowed, Revoke, RightsNews, SetPolicy
from protocols.rights.needs import DEFINITION
from protocols.rights.table import KEY, grant_item
from protocols.store.entries import Entry
from protocols.store.messages import ItemName, StoreAck, StorePut, StorePutDone, StoreReplicate
from protocols.subgraphs import Deployed, DeployRefused, Prepare, Prepared, Undeploy
from queries import sql
from queries.catalogue import Stream
from tests.protocols.rights.closed import ROGUE, SCHEMA, Closed, create, publish, reading


@pytest.fixture
def network() -> Closed:
    network = Closed()
    network.done(0, create("flights"))
    for peer in range(3):
        network.grant(network.principal(peer), ("publish", "read", "create", "stop"))
    assert isinstance(network.answer(1, publish("flights", 1)), Published)
    network.close()
    return network


def sent_to_rogue(network: Closed, peer: int, message: Message) -> list[Message]:
    """What a peer answers a message of the peer without a right."""
    sender = network.peers[ROGUE].peer_id
    effects: list[Effect] = network.machine(peer).handle(Received(sender, message), network.peers[peer].now)
    return [each.message for each in effects if isinstance(each, Send) and each.peer == sender]


def rogue_of(network: Closed) -> str:
    return network.principal(ROGUE)


def test_it_reads_nothing(network: Closed):
    request = network.ask(ROGUE, reading("flights"))
    network.until(lambda: any(each[0] == "refused" for each in network.audited(1)))
    network.world.run_for(10_000)
    assert network.received(request) == []
    assert ("refused", rogue_of(network), 'read stream "flights"', "SUBSCRIBE") in network.audited(1)
    told = (
        "told",
        rogue_of(network),
        f'read stream "flights", said by peer {network.peers[1].peer_id.short}',
        "SUBSCRIBE",
    )
    assert told in network.audited(ROGUE), "it is told, for its own log"
    network.grant(rogue_of(network), ("read",), "flights")
    network.until(lambda: network.received(request) == [1])


def test_nobody_reads_what_it_publishes(network: Closed):
    readers = [network.ask(peer, reading("flights")) for peer in (0, 2)]
    assert isinstance(network.answer(ROGUE, publish("flights", 66)), Published), "nobody stops it at home"
    network.until(
        lambda: all(
            ("refused", rogue_of(network), 'publish to stream "flights"', "BATCH") in network.audited(peer)
            for peer in (0, 2)
        )
    )
    network.world.run_for(10_000)
    assert [network.received(each) for each in readers] == [[1], [1]]
    network.grant(rogue_of(network), ("publish",), "flights")
    network.until(lambda: all(network.received(each) == [1, 66] for each in readers))


def test_a_backup_serves_for_its_publisher_and_counts_as_that(network: Closed):
    origin = Origin(network.peers[ROGUE].peer_id, "flights", 1)
    forged = Batch(origin, 0, 1, 7, SCHEMA.encode([(66,)]))
    batch = BatchMessage(subscription="s", batches=(forged,))
    sender = network.peers[1].peer_id
    effects = network.machine(2).handle(Received(sender, batch), network.peers[2].now)
    (answer,) = [each.message for each in effects if isinstance(each, Send)]
    assert isinstance(answer, NotAllowed)
    assert (answer.principal, answer.verb, answer.object) == (rogue_of(network), "publish", "flights")


def test_it_creates_no_stream_whoever_owns_the_key(network: Closed):
    reasons: set[str] = set()
    for name in (f"mine-{number}" for number in range(12)):
        refused = network.refusal(ROGUE, create(name))
        reasons.add("itself" if "owners of the key" in refused.detail else "another")
        assert "may not create stream" in refused.detail or "owners of the key" in refused.detail
        for peer in range(3):
            held = [each for each in network.machine(peer).store._table if each.entry.item in (DEFINITION, name)]
            assert not [each for each in held if name.encode() in (each.entry.value or b"")], "no owner keeps it"
            assert network.refusal(peer, ShowStream(name=name)).code == "unknown"
    assert reasons == {"itself", "another"}, "the member was the coordinator for some, and others were for some"
    network.grant(rogue_of(network), ("create",), "mine-*")
    network.done(ROGUE, create("mine-0"))


def test_it_drops_no_stream(network: Closed):
    assert isinstance(network.refusal(ROGUE, DropStream(name="flights")), Refused)
    network.world.run_for(20_000)
    assert isinstance(network.answer(1, ShowStream(name="flights")), StreamShown)


@pytest.mark.parametrize("seed", range(2, 8))
def test_it_grants_itself_nothing_whoever_owns_the_rights(seed: int):
    network = Closed(seed)
    network.close()
    change = Grant(principal=rogue_of(network), verbs=("admin", "read"))
    refused = network.refusal(ROGUE, change)
    assert refused.code == "unavailable"
    short = network.peers[ROGUE].peer_id.short
    assert f"peer {short} may not change rights" in refused.detail or "owners of the key" in refused.detail
    network.grant("client:a", ("read",))  # All read the rights again.
    network.world.run_for(20_000)
    for peer in range(3):
        assert not network.machine(peer).rights.table.may(rogue_of(network), "admin", "*")
        assert [each.principal for each in network.machine(peer).rights.table.grants()] == [
            "client:a",
            network.principal(0),
        ]


def test_what_it_writes_is_refused_as_a_write_and_as_a_copy(network: Closed):
    sender = network.peers[ROGUE].peer_id
    stamp = network.machine(0).clock.latest + (1 << 40)
    entry = Entry(KEY, grant_item(rogue_of(network), "*"), stamp, sender, msgspec.msgpack.encode(["admin"]), 0)
    done, ack = (
        sent_to_rogue(network, 1, StorePut(entry=entry)),
        sent_to_rogue(network, 1, StoreReplicate(entries=(entry,))),
    )
    assert isinstance(done[0], StorePutDone)
    assert "may not change rights" in done[0].refusal
    assert isinstance(ack[0], NotAllowed)
    assert ack[1] == StoreAck(kept=(), refused=(ItemName(KEY, entry.item),))
    assert sent_to_rogue(network, 1, RightsNews(digest=b"mine", is_answer=True)) == [], "a digest is not believed"


def test_it_runs_no_query_over_what_it_may_not_read(network: Closed):
    request = network.ask(ROGUE, SubmitQuery(text="SELECT n FROM flights", name="q", placement="edge"))
    network.world.run_for(20_000)
    assert not any(isinstance(each, QueryAccepted) and network.received(request) for each in network.answers[request])
    for peer in range(3):
        assert network.machine(peer).executor.hosted == {}
    prepared = sent_to_rogue(network, 1, Prepare(query="q.12-0a0a0a0a-1", attempt=1))
    (answer,) = prepared
    assert isinstance(answer, Prepared)
    assert answer.reason == f'peer {network.peers[ROGUE].peer_id.short} may not create query "q"'


def test_it_has_no_other_peer_stop_a_query_for_it(network: Closed):
    request = network.ask(1, SubmitQuery(text="SELECT n FROM flights", name="q"))
    network.until(lambda: any(isinstance(each, QueryAccepted) for each in network.answers[request]), 60_000)
    for name in ("q", f"q@{network.peers[1].peer_id.hex()}"):
        (answer,) = sent_to_rogue(network, 1, AskProxy(number=7, command=StopQuery(query=name)))
        assert isinstance(answer, ProxyAnswer)
        assert isinstance(answer.answer, Refused)
        assert (answer.number, answer.answer.code) == (7, "forbidden")
    network.world.run_for(2_000)  # Until the directory has the query.
    refused = network.answer(ROGUE, StopQuery(query="q"))
    assert isinstance(refused, Refused)
    assert refused.code == "forbidden"
    network.done(2, StopQuery(query="q"))  # It has the right.


def test_it_stops_no_query_of_others(network: Closed):
    request = network.ask(1, SubmitQuery(text="SELECT n FROM flights", name="q"))
    network.until(lambda: isinstance(network.answers[request][-1:], list) and len(network.answers[request]) > 1, 60_000)
    accepted = network.answers[request][-1]
    assert isinstance(accepted, QueryAccepted)
    hosts = [peer for peer in range(3) if network.machine(peer).executor.hosted]
    assert hosts
    for peer in hosts:
        (answer,) = sent_to_rogue(network, peer, Undeploy(query=accepted.stream, attempt=1 << 60))
        assert isinstance(answer, NotAllowed)
        assert (answer.verb, answer.object) == ("stop", "query:q")
        assert network.machine(peer).executor.hosted
        (answer,) = sent_to_rogue(network, peer, RemoveQuery(query=f"{accepted.stream}~1"))
        assert isinstance(answer, NotAllowed)
    network.done(1, StopQuery(query="q"))
    network.until(lambda: not any(network.machine(peer).executor.hosted for peer in range(3)))


def test_a_host_reads_only_what_it_may_and_is_left_out_otherwise(network: Closed):
    """Peer 2 may no longer read: it hosts nothing, and a DEPLOY that reaches it all the same is refused."""
    second = network.principal(2)
    network.done(0, Revoke(principal=second, verbs=("read",)))
    network.settle()
    request = network.ask(1, SubmitQuery(text="SELECT n FROM flights", name="q"))
    network.until(lambda: len(network.answers[request]) > 1, 60_000)
    accepted = network.answers[request][-1]
    assert isinstance(accepted, QueryAccepted)
    attempt = network.machine(1).proxy.queries["q"].attempt
    assert attempt is not None
    assert network.peers[2].peer_id not in attempt.cut.hosts
    attempt.heard_at.clear()
    deploys = [message for _, message in attempt.deploys(network.peers[1].now)]
    effects = network.machine(2).handle(Received(network.peers[1].peer_id, deploys[0]), network.peers[2].now)
    (answer,) = [each.message for each in effects if isinstance(each, Send)]
    assert isinstance(answer, DeployRefused)
    assert answer.reason == f'peer {network.peers[2].peer_id.short} may not read stream "flights"'
    assert not any(isinstance(each, Deployed) for each in effects)


def test_what_is_taken_back_is_no_longer_sent(network: Closed):
    request = network.ask(2, reading("flights"))
    network.until(lambda: network.received(request) == [1])
    network.done(0, Revoke(principal=network.principal(2), verbs=("read",)))
    network.until(lambda: isinstance(network.answers[request][-1], Refused))
    feed = network.machine(1).publisher.outboxes["flights"].feed
    network.until(lambda: not any(each.peer == network.peers[2].peer_id for each in feed.consumers.values()))
    assert isinstance(network.answer(1, publish("flights", 2)), Published)
    network.world.run_for(10_000)
    assert network.received(request) == [1]


def test_a_restart_keeps_the_door_closed_also_where_nobody_can_be_asked(network: Closed):
    for peer in range(4):
        network.peers[peer].crash()
    for _ in range(2):  # By records, then by a snapshot.
        network.peers[2].start()
        network.world.run_for(100)
        assert network.machine(2).rights.is_known
        assert not network.machine(2).rights.table.is_open
        assert network.refusal(2, SetPolicy(policy="open")).code == "forbidden"
        journal = network.peers[2]._journal
        assert journal is not None
        journal.snapshot(network.machine(2).snapshot())
        network.peers[2].take(Received(network.peers[2].peer_id, RightsNews(digest=b"")), network.peers[2].life)
        network.world.run_for(1000)
        network.peers[2].crash()


def test_a_newcomer_allows_nothing_until_it_has_read_the_rights(network: Closed):
    newcomer = network.world.add_peer()
    network.peers.append(newcomer)
    newcomer.start()
    request = network.ask(4, publish("flights", 5))
    network.until(lambda: bool(network.answers[request]))
    refused = network.answers[request][0]
    assert isinstance(refused, Refused)
    if refused.code != "forbidden":
        assert (refused.code, refused.retry_after_ms) == ("unavailable", 300)
    network.until(lambda: network.machine(4).rights.is_known)
    assert network.refusal(4, publish("flights", 5)).code == "forbidden"


def test_a_peer_that_missed_the_news_hears_of_it_within_seconds(network: Closed):
    """Peer 2 is cut off while the rights change; afterwards its neighbours tell it a digest that is not its own."""
    network.peers[2].pause(20_000)
    network.grant_quietly("client:late", ("read",))
    network.world.run_for(20_000)
    took_from = network.world.now
    network.until(lambda: network.machine(2).rights.table.digest == network.machine(0).rights.table.digest)
    assert network.world.now - took_from <= 12_000


def test_a_peer_is_what_its_link_says(network: Closed):
    """The sender of a message is whom TLS has proved; what it says of others does not count."""
    stranger = PeerId(b"z" * 20)
    subscribe = Subscribe(subscription="s", stream="flights", positions=(), since=0, credit=1000)
    effects = network.machine(1).handle(Received(stranger, subscribe), network.peers[1].now)
    assert [type(each.message) for each in effects if isinstance(each, Send)] == [NotAllowed]
    honest = network.machine(1).handle(Received(network.peers[0].peer_id, subscribe), network.peers[1].now)
    assert NotAllowed not in [type(each.message) for each in honest if isinstance(each, Send)]


JOIN = "SELECT a.n FROM flights a, gates b WHERE a.n = b.n"


def test_a_join_uses_the_index_only_where_every_peer_may_read(network: Closed):
    network.done(1, create("gates"))
    refused = network.refusal(1, SubmitQuery(text=JOIN, name="j", engine="sai"))
    assert 'not every peer may read stream "flights"' in refused.error
    network.grant("peer:*", ("read",))
    request = network.ask(1, SubmitQuery(text=JOIN, name="j", engine="sai"))
    network.until(lambda: any(isinstance(each, QueryAccepted) for each in network.answers[request]), 60_000)
    (accepted,) = [each for each in network.answers[request] if isinstance(each, QueryAccepted)]
    reader = network.ask(1, reading(accepted.stream))
    for stream in ("flights", "gates"):
        assert isinstance(network.answer(2, publish(stream, 5, 6)), Published)
    network.until(lambda: sorted(network.received(reader)) == [5, 6], 60_000)
    network.done(0, Revoke(principal="peer:*", verbs=("read",)))
    network.settle()
    network.until(lambda: network.machine(1).proxy.queries["j"].state != "running", 60_000)


def test_it_indexes_no_join_at_others(network: Closed):
    network.grant("peer:*", ("read",), "nothing")
    streams = {name: Stream(name, SCHEMA) for name in ("flights", "gates")}
    sender = network.peers[ROGUE].peer_id
    query = JoinQuery(f"j.12-{sender.short}-0~1", sender, 1, "sai", sql.plan(JOIN, streams).plan, 1000)
    (answer,) = sent_to_rogue(network, 1, IndexQuery(query=query, side=0, replica=0))
    assert answer == QueryRefused(query=query.id, reason=f'peer {sender.short} may not create query "j"')
    (answer,) = sent_to_rogue(network, 1, Parcel(number=1, queries=(query,)))
    assert isinstance(answer, NotAllowed)
    assert (answer.kind, answer.verb, answer.object) == ("PARCEL", "read", "flights")


def test_it_does_not_speak_for_readers(network: Closed):
    """An ACK says that tuples need not be kept, and an UNSUBSCRIBE that nobody reads: not from whoever may not read."""
    request = network.ask(2, reading("flights"))
    network.until(lambda: network.received(request) == [1])
    feed = network.machine(1).publisher.outboxes["flights"].feed
    before = {name: each.acked for name, each in feed.consumers.items()}
    ack = Ack(subscription="s", positions=(Position(feed.origin, 1),))
    for message in (ack, Unsubscribe(subscription="s", stream="flights")):
        (answer,) = sent_to_rogue(network, 1, message)
        assert isinstance(answer, NotAllowed)
        assert (answer.verb, answer.object) == ("read", "flights")
    assert {name: each.acked for name, each in feed.consumers.items()} == before


def test_it_stops_no_query_of_another_peer_by_asking_its_proxy(network: Closed):
    request = network.ask(1, SubmitQuery(text="SELECT n FROM flights", name="q"))
    network.until(lambda: any(isinstance(each, QueryAccepted) for each in network.answers[request]), 60_000)
    network.until(lambda: isinstance(network.answer(ROGUE, ShowQuery(query="q")), QueryShown))
    refused = network.refusal(ROGUE, StopQuery(query="q"))
    assert (refused.code, refused.error) == (
        "forbidden",
        f'peer {network.peers[ROGUE].peer_id.short} may not stop query "q"',
    )
    assert network.machine(1).proxy.queries["q"].state == "running"
    network.done(2, StopQuery(query=f"q@{network.peers[1].peer_id.hex()[:8]}"))


def test_a_client_stops_a_query_of_another_peer_only_with_the_right(network: Closed):
    request = network.ask(1, SubmitQuery(text="SELECT n FROM flights", name="q"))
    network.until(lambda: any(isinstance(each, QueryAccepted) for each in network.answers[request]), 60_000)
    network.until(lambda: isinstance(network.answer(2, ShowQuery(query="q")), QueryShown))
    ann = network.connect(2, network.token("ann"))
    name = f"q@{network.peers[1].peer_id.hex()[:8]}"
    assert network.refusal(2, StopQuery(query=name), ann).error == 'client "ann" may not stop query "q"'
    network.grant("client:ann", ("stop",), "query:q")
    network.done(2, StopQuery(query=name), ann)


@pytest.mark.parametrize("seed", range(1, 5))
def test_what_was_written_with_the_right_to_is_read_after_the_right_is_gone(seed: int):
    """Whoever owns the key: streams made while the network was open, and those of a peer that may create no more."""
    network = Closed(seed)
    names = [f"early-{number}" for number in range(8)]
    for name in names:
        network.done(0, create(name))
    network.grant(network.principal(1), ("create",), "late-*")
    network.close()
    for number in range(8):
        network.done(1, create(f"late-{number}"))
    network.done(0, Revoke(principal=network.principal(1), verbs=("create",), pattern="late-*"))
    network.done(0, SetPolicy(policy="closed"))
    network.settle()
    for name in (*names, *(f"late-{number}" for number in range(8))):
        for peer in range(3):
            assert isinstance(network.answer(peer, ShowStream(name=name)), StreamShown), (name, peer)
