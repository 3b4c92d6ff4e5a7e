"""What clients of a closed network may do at their peer: with tokens, and as the peer's own user."""

from __future__ import annotations

import pytest

from protocols.catalogue.messages import DropStream
from protocols.delivery.messages import CloseSubscription, Opened, Published, Punctuate
from protocols.events import Disconnected
from protocols.execution.messages import QueryAccepted, StopQuery, SubmitQuery
from protocols.messages import Command, Done, Refused
from protocols.rights.messages import (
    AuditListed,
    Authenticate,
    Grant,
    ListAudit,
    RemoveToken,
    Revoke,
    RightsShown,
    SetPolicy,
    ShowRights,
)
from protocols.store.messages import Leave
from tests.protocols.rights.closed import Closed, create, publish, reading


def test_a_new_network_allows_its_members_everything():
    network = Closed()
    network.done(0, create("flights"))
    assert isinstance(network.answer(1, publish("flights", 1)), Published)
    request = network.ask(2, reading("flights"))
    network.until(lambda: network.received(request) == [1])
    token = network.token("sensor-7")
    assert isinstance(network.answer(1, publish("flights", 2), network.connect(1, token)), Published)


REFUSED: list[tuple[Command, str, str]] = [
    (publish("flights", 1), "publish to", 'stream "flights"'),
    (Punctuate(stream="flights"), "publish to", 'stream "flights"'),
    (reading("flights"), "read", 'stream "flights"'),
    (create("other"), "create", 'stream "other"'),
    (DropStream(name="flights"), "create", 'stream "flights"'),
    (SubmitQuery(text="SELECT n FROM flights", name="q"), "create", 'query "q"'),
    (SubmitQuery(text="SELECT n FROM flights"), "create", 'query "q-"'),
    (StopQuery(query="mine"), "stop", 'query "mine"'),
]


@pytest.mark.parametrize(("command", "does", "what"), REFUSED, ids=lambda each: type(each).__name__)
def test_what_is_not_granted_is_refused_to_peers_and_clients_with_words(command: Command, does: str, what: str):
    network = Closed()
    network.done(0, create("flights"))
    token = network.token("sensor-7")
    network.close()
    refused = network.refusal(1, command)
    assert (refused.code, refused.retry_after_ms) == ("forbidden", 0)
    assert refused.error == f"peer {network.peers[1].peer_id.short} may not {does} {what}"
    assert refused.hint.startswith(
        f'Somebody with the right "admin" can allow it: peer rights grant {network.principal(1)}'
    )
    network.grant(network.principal(1), ("publish", "read", "create", "stop"))
    refused = network.refusal(1, command, network.connect(1, token))
    assert refused.error == f'client "sensor-7" may not {does} {what}'
    assert "peer rights grant client:sensor-7" in refused.hint
    verb = {"publish to": "publish"}.get(does, does)
    thing = what.replace('stream "', "").replace('query "', "query:").rstrip('"')
    assert refused.hint.endswith(f"client:sensor-7 {verb} {thing}")
    assert ("refused", "client:sensor-7", f"{does} {what}", "client") in network.audited(1)


def test_a_client_needs_the_right_of_its_peer_too():
    network = Closed()
    network.done(0, create("flights"))
    token = network.token("sensor-7")
    network.grant("client:sensor-7", ("publish",), "flights")
    network.close()
    refused = network.refusal(1, publish("flights", 1), network.connect(1, token))
    assert refused.error == f'peer {network.peers[1].peer_id.short} may not publish to stream "flights"'
    network.grant("peer:*", ("publish",), "fl*")
    assert isinstance(network.answer(1, publish("flights", 1), network.connect(1, token)), Published)
    assert isinstance(network.answer(1, publish("flights", 2)), Published)


def test_a_token_acts_for_its_client_from_its_creation_to_its_removal():
    network = Closed()
    network.done(0, create("flights"))
    network.grant("peer:*", ("publish", "read"))
    network.grant("client:sensor-7", ("publish", "read"), "flights")
    network.close()
    for wrong in ("sensor-7.open-sesame", "sensor-7", "sensor-8.x", "anonymous."):
        refused = network.answer(2, Authenticate(token=wrong), 100, within_ms=60_000)
        while isinstance(refused, Refused) and refused.retry_after_ms:  # It looked whether somebody has just made it.
            network.world.run_for(refused.retry_after_ms)
            refused = network.answer(2, Authenticate(token=wrong), 100)
        assert isinstance(refused, Refused)
        assert refused.code == "forbidden"
        # Whoever presents a bad token is nobody, and not the peer's own user.
        refusal = network.refusal(2, publish("flights", 1), 100)
        assert refusal.error == 'client "anonymous" may not publish to stream "flights"'
    connection = network.connect(2, network.token("sensor-7"))
    assert isinstance(network.answer(2, publish("flights", 1), connection), Published)
    request = network.ask(2, reading("flights"), connection)
    network.until(lambda: network.received(request) == [1])
    network.done(0, RemoveToken(client="sensor-7"))
    network.until(lambda: isinstance(network.answers[request][-1], Refused))
    assert network.refusal(2, publish("flights", 2), connection).code == "forbidden"
    assert "sensor-7" not in str(network.answer(2, reading("flights", "t"))), "the peer itself goes on"
    assert ("token", "client:sensor-8", "present a token", "client") in network.audited(2)


def test_a_token_expires():
    network = Closed()
    network.done(0, create("flights"))
    network.grant("*", ("publish", "read"))
    network.close()
    ends_at = network.peers[0].now + 30_000
    connection = network.connect(1, network.token("brief", ends_at))
    request = network.ask(1, reading("flights"), connection)
    assert isinstance(network.answer(1, publish("flights", 1), connection), Published)
    network.world.run_for(40_000)
    assert network.refusal(1, publish("flights", 2), connection).error == (
        'client "brief" may not publish to stream "flights"'
    )
    assert isinstance(network.answers[request][-1], Refused), "and reads no more"
    network.token("brief")
    assert isinstance(network.answer(1, publish("flights", 2), connection), Published)


def test_a_door_where_a_token_is_expected_has_a_name_for_those_without():
    network = Closed()
    network.done(0, create("flights"))
    network.grant("peer:*", ("publish",))
    network.close()
    connection = network.connect(1, "")
    assert "anonymous" in network.refusal(1, publish("flights", 1), connection).error
    assert isinstance(network.answer(0, Authenticate(token="x"), 9), Refused)


def test_whoever_submits_a_query_may_read_its_results_and_stop_it_and_nobody_else():
    network = Closed()
    network.done(0, create("flights"))
    network.grant("peer:*", ("publish", "read", "create"))
    network.grant("client:ann", ("create", "read"))
    network.grant("client:bob", ("create",), "query:*")
    network.grant("client:bob", ("read",), "flights")
    network.close()
    ann, bob = (network.connect(1, network.token(name)) for name in ("ann", "bob"))
    secret = SubmitQuery(text="SELECT n FROM flights", name="mine")
    accepted = until_accepted(network, 1, secret, bob)
    refused = network.refusal(1, StopQuery(query="mine"), ann)
    assert refused.error == 'client "ann" may not stop query "mine"'
    assert network.refusal(1, StopQuery(query="mine")).error.endswith('may not stop query "mine"')
    request = network.ask(1, reading(accepted.stream), bob)
    assert isinstance(network.answer(2, publish("flights", 7)), Published)
    network.until(lambda: network.received(request) == [7])
    network.done(0, Revoke(principal="client:ann", verbs=("read",)))
    network.settle()
    refused = network.refusal(1, reading(accepted.stream, "t"), ann)
    assert refused.error == 'client "ann" may not read the results of query "mine"'
    network.done(1, StopQuery(query="mine"), bob)


def until_accepted(network: Closed, peer: int, command: SubmitQuery, connection: int = 0) -> QueryAccepted:
    request = network.ask(peer, command, connection)
    network.until(lambda: isinstance(network.answers[request][-1:], list) and len(network.answers[request]) > 1, 60_000)
    answer = network.answers[request][-1]
    assert isinstance(answer, QueryAccepted), answer
    return answer


def test_a_query_reads_with_the_right_of_whoever_submits_it():
    network = Closed()
    network.done(0, create("flights"))
    network.done(0, create("secrets"))
    network.grant("peer:*", ("read", "create"))
    network.grant("client:ann", ("create",), "query:*")
    network.grant("client:ann", ("read",), "flights")
    network.close()
    ann = network.connect(1, network.token("ann"))
    both = "SELECT n FROM flights UNION ALL SELECT n FROM secrets"
    refused = network.refusal(1, SubmitQuery(text=both, name="both"), ann)
    assert refused.error == 'client "ann" may not read stream "secrets"'
    until_accepted(network, 1, SubmitQuery(text="SELECT n FROM flights", name="one"), ann)
    network.done(0, Revoke(principal="client:ann", verbs=("read",), pattern="flights"))
    network.settle()
    query = network.machine(1).proxy.queries["one"]
    network.until(lambda: query.state == "waiting")
    assert query.retry.reason == 'client "ann" may not read stream "flights"'
    network.grant("client:ann", ("read",), "flights")
    network.until(lambda: query.state == "running", 60_000)


def test_a_query_reads_with_its_owners_right_after_a_restart_too():
    network = Closed()
    network.done(0, create("flights"))
    network.grant("peer:*", ("read", "create"))
    network.grant("client:ann", ("create", "read"))
    network.close()
    until_accepted(
        network, 1, SubmitQuery(text="SELECT n FROM flights", name="one"), network.connect(1, network.token("ann"))
    )
    network.peers[1].crash()
    network.peers[1].start()
    query = network.machine(1).proxy.queries["one"]
    assert query.owner == "client:ann"
    network.until(lambda: query.state == "running", 60_000)
    network.done(0, RemoveToken(client="ann"))
    network.until(lambda: query.state == "waiting")
    assert query.retry.reason == 'client "ann" may not read stream "flights"'


def test_whoever_closes_a_network_is_its_admin_and_the_last_one_cannot_go():
    network = Closed()
    network.close()
    assert network.refusal(1, SetPolicy(policy="open")).error == (
        f"peer {network.peers[1].peer_id.short} may not change rights"
    )
    own = network.principal(0)
    for refused in (Revoke(principal=own), Revoke(principal=own, verbs=("admin",))):
        assert network.refusal(0, refused).error == "nobody would be left who can change rights"
    network.grant("client:boss", ("admin",))
    assert network.refusal(0, Revoke(principal=own)).code == "invalid", "there is no such token"
    boss = network.connect(0, network.token("boss"))
    network.grant(network.principal(1), ("admin",))
    network.done(1, Revoke(principal=own))
    network.settle()
    assert network.refusal(0, SetPolicy(policy="open")).code == "forbidden"
    assert network.refusal(0, SetPolicy(policy="open"), boss).error.endswith("may not change rights"), (
        "its peer may not"
    )
    network.done(1, SetPolicy(policy="open"), network.connect(1, "boss.open-sesame"))


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Grant(principal="sensor-7", verbs=("read",)), '"sensor-7" is no principal'),
        (Grant(principal="peer:12", verbs=("read",)), '"peer:12" is no principal'),
        (Grant(principal="*", verbs=("read",), pattern="a b"), '"a b" is no pattern'),
        (Revoke(principal="*", pattern="flights"), '"*" has no such grant for "flights"'),
        (RemoveToken(client="nobody"), 'there is no token for client "nobody"'),
    ],
)
def test_a_change_without_sense_is_refused(command: Command, error: str):
    assert Closed().refusal(0, command).error == error


def test_rights_are_shown_to_everybody_and_the_audit_to_admins_and_the_peers_own_user():
    network = Closed()
    token = network.token("sensor-7")
    network.grant("client:sensor-7", ("read",), "plant.*")
    network.close()
    connection = network.connect(1, token)
    shown = network.answer(1, ShowRights(), connection)
    assert isinstance(shown, RightsShown)
    assert (shown.policy, shown.client, shown.is_known) == ("closed", "sensor-7", True)
    assert [(each.principal, each.pattern, each.verbs) for each in shown.grants] == [
        ("client:sensor-7", "plant.*", ("read",)),
        (network.principal(0), "*", ("admin",)),
    ]
    assert [each.client for each in shown.tokens] == ["sensor-7"]
    assert network.refusal(1, ListAudit(), connection).error == 'client "sensor-7" may not change rights'
    listed = network.answer(1, ListAudit())
    assert isinstance(listed, AuditListed)
    assert listed.events[-1].what == "refused"
    assert network.refusal(1, Leave(), connection).code == "forbidden"
    assert ("change", network.principal(0), "SET_POLICY policy=closed", "client") in network.audited(0)
    assert not any("digest" in action for _, _, action, _ in network.audited(0))


def test_a_connection_that_ends_is_forgotten():
    network = Closed()
    connection = network.connect(1, network.token("sensor-7"))
    door = network.machine(1).door
    assert door._askers == {connection: "client:sensor-7"}
    network.peers[1].take(Disconnected(connection), network.peers[1].life)
    assert door._askers == {}


def test_a_subscription_is_closed_only_by_those_who_may_read_its_stream():
    network = Closed()
    network.done(0, create("flights"))
    request = network.ask(1, reading("flights"))
    network.until(lambda: any(isinstance(each, Opened) for each in network.answers[request]))
    token = network.token("sensor-7")
    network.grant("peer:*", ("read",))
    network.close()
    assert network.refusal(1, CloseSubscription(subscription="s"), network.connect(1, token)).code == "forbidden"
    assert isinstance(network.answer(1, CloseSubscription(subscription="s")), Done)
