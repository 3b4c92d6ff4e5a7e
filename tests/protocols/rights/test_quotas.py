"""How much a client may take of its peer, and what it hears when that is used up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from protocols.catalogue.messages import DropStream
from protocols.delivery.messages import Opened, Published, Subscribe, Subscribed, Unsubscribe
from protocols.events import Received
from protocols.execution.cut import cut
from protocols.execution.messages import QueryAccepted, StopQuery, SubmitQuery
from protocols.execution.refusals import QUERIES_MAX
from protocols.join_index.messages import IndexQuery, JoinQuery, QueryRefused, Side
from protocols.messages import Refused
from protocols.rights.audit import EVENTS_MAX, SAME_MS, TOLD_MAX, Audit
from protocols.rights.messages import Authenticate
from protocols.rights.quotas import Bucket, Quotas
from protocols.subgraphs import Deploy, DeployRefused, Progress
from queries import sql
from queries.catalogue import Stream
from tests.protocols.rights.closed import SCHEMA, Closed, create, publish, reading

FEW = Quotas(connections=2, streams=2, subscriptions=2, queries=1, tuples_per_s=100, bytes_per_s=0, peer_subgraphs=1)


@pytest.fixture
def network() -> Closed:
    network = Closed()
    network.machine(1).door.limit(FEW)
    return network


def said(refused: Refused) -> tuple[str, str, str]:
    return refused.code, refused.error, refused.detail


def test_streams_are_counted_for_each_client(network: Closed):
    ann, bob = (network.connect(1, network.token(name)) for name in ("ann", "bob"))
    for name in ("a", "b"):
        network.done(1, create(name), ann)
    assert said(network.refusal(1, create("c"), ann)) == (
        "quota",
        'client "ann" has reached its quota of streams at this peer',
        "quota_streams = 2; 2 in use.",
    )
    assert isinstance(network.answer(1, publish("a", 1), ann), Published)
    network.done(1, create("c"), bob)
    network.done(1, DropStream(name="a"), ann)
    network.done(1, create("d"), ann)
    assert any(what == "quota" and who == "client:ann" for what, who, _, _ in network.audited(1))


def test_connections_with_one_token_are_counted(network: Closed):
    token = network.token("ann")
    for connection in (1, 2):
        assert not isinstance(network.answer(1, Authenticate(token=token), connection), Refused)
    assert said(network.refusal(1, Authenticate(token=token), 3))[2] == "quota_connections = 2; 2 in use."
    assert not isinstance(network.answer(1, Authenticate(token=token), 2), Refused), "it had one already"


def test_what_is_read_at_the_same_time_is_counted_until_it_ends(network: Closed):
    network.done(1, create("a"))
    requests = [network.ask(1, reading("a", name)) for name in ("r", "s")]
    for each in requests:
        network.until(lambda each=each: any(isinstance(answer, Opened) for answer in network.answers[each]))
    assert said(network.refusal(1, reading("a", "t")))[2] == "quota_subscriptions = 2; 2 in use."
    network.peers[1].abandon(requests[0])
    network.world.run_for(100)
    third = network.ask(1, reading("a", "t"))
    network.until(lambda: any(isinstance(answer, Opened) for answer in network.answers[third]))
    for _ in range(5):
        assert network.refusal(1, reading("nothing", "u")).code == "quota"
    network.peers[1].abandon(third)
    network.world.run_for(100)
    for _ in range(5):
        assert network.refusal(1, reading("nothing", "u")).code == "unknown", "what is refused is not in use"


def test_queries_are_counted(network: Closed):
    network.done(1, create("a"))
    request = network.ask(1, SubmitQuery(text="SELECT n FROM a", name="one"))
    network.until(lambda: isinstance(network.answers[request][-1:], list) and len(network.answers[request]) > 1, 60_000)
    assert isinstance(network.answers[request][-1], QueryAccepted)
    assert (
        said(network.refusal(1, SubmitQuery(text="SELECT n FROM a", name="two")))[2] == "quota_queries = 1; 1 in use."
    )
    network.done(1, StopQuery(query="one"))


def test_whoever_keeps_too_much_state_starts_no_other_query(network: Closed):
    network.machine(1).door.limit(Quotas(state_rows=5))
    network.done(1, create("a"))
    request = network.ask(1, SubmitQuery(text="SELECT n FROM a", name="one"))
    network.until(lambda: len(network.answers[request]) > 1, 60_000)
    attempt = network.machine(1).proxy.queries["one"].attempt
    assert attempt is not None
    network.until(lambda: bool(attempt.status), 60_000)
    attempt.status = {number: replace(status, state_rows=7) for number, status in attempt.status.items()}
    refused = network.refusal(1, SubmitQuery(text="SELECT n FROM a", name="two"))
    assert (refused.code, refused.detail) == ("quota", "quota_state_rows = 5; 7 in use.")


def test_without_settings_one_client_may_run_all_that_a_peer_runs():
    assert Quotas().queries >= QUERIES_MAX


def test_bytes_are_counted_beside_tuples(network: Closed):
    network.machine(1).door.limit(Quotas(bytes_per_s=50))
    network.done(1, create("a"))
    assert isinstance(network.answer(1, publish("a", *range(100))), Published), "one may overdraw"
    refused = network.refusal(1, publish("a", 1))
    assert (refused.code, refused.detail.partition(";")[0]) == ("busy", "quota_bytes_per_s = 50")
    assert refused.retry_after_ms > 0


def test_who_publishes_too_fast_is_told_how_long_to_wait(network: Closed):
    network.done(1, create("a"))
    assert isinstance(network.answer(1, publish("a", *range(300))), Published), "one may overdraw"
    refused = network.refusal(1, publish("a", 1))
    assert refused.code == "busy"
    assert refused.detail.startswith("quota_tuples_per_s = 100; ")
    assert 1500 < refused.retry_after_ms <= 2001
    network.world.run_for(refused.retry_after_ms)
    assert isinstance(network.answer(1, publish("a", 1)), Published)


def test_a_count_that_is_not_true_neither_locks_a_client_out_nor_frees_it(network: Closed):
    network.done(1, create("a"))
    untrue = publish("a", 1)
    for count in (1 << 40, -(1 << 40)):
        assert isinstance(network.answer(1, replace(untrue, count=count)), Refused)
    network.world.run_for(2000)
    assert isinstance(network.answer(1, publish("a", *range(300))), Published)
    assert network.refusal(1, publish("a", 1)).code == "busy"


def test_a_rate_is_kept_over_time():
    bucket, used = Bucket(1000 * 50, 0), 0
    for now in range(0, 10_000, 10):
        if not bucket.wait_ms(50, now):
            bucket.use(3)
            used += 3
    assert 50 * 10 <= used <= 50 * 11 + 3


def test_a_peer_runs_so_many_subgraphs_of_another(network: Closed):
    plan = sql.plan("SELECT n FROM a WHERE n > 1", {"a": Stream("a", SCHEMA)}).plan
    sender, host, answers = network.peers[0].peer_id, network.peers[1].peer_id, []
    for turn in ("q", "r"):
        query = f"{turn}.12-{sender.short}-0"
        subgraph = cut(query, plan, 0, {"a": host}, sender, sender, "auto").subgraphs[0]
        deploy = Deploy(query=query, attempt=1, subgraph=subgraph, consumer_host=sender, resume=Progress())
        answers.append(network.machine(1).handle(Received(sender, deploy), network.peers[1].now))
    (refused,) = [each for each in map(_message, answers[1]) if isinstance(each, DeployRefused)]
    assert refused.reason.endswith("has reached its quota here: quota_peer_subgraphs = 1; 1 in use")
    assert not any(isinstance(_message(each), DeployRefused) for each in answers[0])


def test_a_stream_counts_until_it_is_gone(network: Closed):
    """Asking for its removal is not enough: that is refused while somebody reads it."""
    ann = network.connect(1, network.token("ann"))
    for name in ("a", "b"):
        network.done(1, create(name), ann)
        kept = network.ask(1, replace(reading(name, f"reader of {name}"), keep=True))
        network.until(lambda kept=kept: any(isinstance(answer, Opened) for answer in network.answers[kept]))
    for name in ("a", "b"):
        assert network.refusal(1, DropStream(name=name), ann).code == "in use"
    assert network.refusal(1, create("c"), ann).code == "quota"
    network.done(1, DropStream(name="a", force=True), ann)
    network.done(1, create("c"), ann)


def test_a_peer_reads_so_much_of_another(network: Closed):
    network.machine(1).door.limit(Quotas(peer_subscriptions=2))
    network.done(1, create("a"))
    assert isinstance(network.answer(1, publish("a", 1)), Published)
    peer, machine = network.peers[2].peer_id, network.machine(1)

    def served(name: str, stream: str = "a") -> bool:
        message = Subscribe(subscription=name, stream=stream, positions=(), since=0, credit=1)
        effects = machine.handle(Received(peer, message), network.peers[1].now)
        return any(isinstance(_message(each), Subscribed) for each in effects)

    assert [served(name) for name in ("r", "s", "t")] == [True, True, False]
    assert served("r"), "what is there is renewed"
    assert served("u", "nothing"), "what is not published here takes nothing"
    what, who, action, via = network.audited(1)[-1]
    assert (what, who, via) == ("quota", network.principal(2), "SUBSCRIBE")
    assert action.endswith("quota_peer_subscriptions = 2; 2 in use")
    assert machine.handle(Received(peer, Unsubscribe(subscription="s", stream="a")), network.peers[1].now) == []
    assert served("t")


def test_a_peer_has_so_many_join_queries_indexed_at_another(network: Closed):
    network.machine(1).door.limit(Quotas(peer_joins=2))
    network.done(1, create("a"))
    peer, machine = network.peers[2].peer_id, network.machine(1)
    plan = sql.plan("SELECT x.n FROM a x, a y WHERE x.n = y.n", {"a": Stream("a", SCHEMA)}).plan

    def refusals(number: int, side: Side = 0) -> list[str]:
        query = JoinQuery(f"q.{number}-{peer.short}-0~1", peer, 0, "sai", plan, 1000)
        message = IndexQuery(query=query, side=side, replica=0, evaluators=(peer,))
        effects = machine.handle(Received(peer, message), network.peers[1].now)
        return [each.reason for each in map(_message, effects) if isinstance(each, QueryRefused)]

    assert refusals(1) == refusals(2) == []
    (reason,) = refusals(3)
    assert reason.endswith("has reached its quota here: quota_peer_joins = 2; 2 in use")
    assert refusals(1) == [], "what is there is renewed"
    assert len(refusals(1, 1)) == 1


def _message(effect: object) -> object:
    return getattr(effect, "message", None)


def test_the_audit_is_bounded_and_counts_what_repeats():
    audit = Audit()
    assert len(audit.note("refused", "peer:x", "read", "SUBSCRIBE", 1)) == 1
    assert audit.note("refused", "peer:x", "read", "SUBSCRIBE", 2000) == []
    assert len(audit.note("refused", "peer:y", "read", "SUBSCRIBE", 2000)) == 1
    assert audit.note("refused", "peer:x", "read", "SUBSCRIBE", 2000) == []
    assert [(each.principal, each.count) for each in audit.events] == [("peer:x", 3), ("peer:y", 1)]
    assert len(audit.note("refused", "peer:x", "read", "SUBSCRIBE", 20_000)) == 1, "after a while it is told again"
    told = [audit.note("refused", f"peer:{turn}", "read", "SUBSCRIBE", 30_000 + turn) for turn in range(2 * EVENTS_MAX)]
    assert len(audit.events) == EVENTS_MAX
    assert sum(map(len, told)) == TOLD_MAX, "whoever makes up names does not fill the log"
    assert len(audit.note("refused", "peer:last", "read", "SUBSCRIBE", 30_000 + SAME_MS)) == 1
