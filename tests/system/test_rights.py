"""Rights over real daemons: what is not granted is refused at every socket and over every link."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from overlay.identity import Identity
from overlay.overlay import Overlay
from peerd.admission import stored_token
from peerd.client import Client, PeerError, PeerRefused
from peerd.cluster import Cluster
from peerd.datadir import DataDir
from protocols.delivery.messages import OpenSubscription, Published, Rows
from protocols.execution.messages import SubmitQuery
from protocols.messages import Refused
from protocols.subgraphs import Undeploy
from tests.peerd.desk import SCHEMA, Desk, create, publish, running
from tests.system.clients import DEADLINE_S, client, peer, until
from tests.system.ports import PORTS


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three peers with the right to everything, in a closed network; peer 1 is admin."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("closed")))
    cluster.start(3, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    asyncio.run(_close(cluster))
    yield cluster
    cluster.stop()


async def _close(cluster: Cluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client(cluster, number)) for number in (1, 2, 3)]
        for name in ("flights", "secrets"):
            await clients[0].create_stream(name, "n int")
        for each in clients:
            principal = f"peer:{(await each.rights()).peer.hex()}"
            await clients[0].grant(principal, ("publish", "read", "create", "stop"))
        await clients[0].set_policy("closed")
        for each in clients:
            await until_async(each, lambda shown: shown.policy == "closed")


async def until_async(each: Client, condition: object) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition(await each.rights()):  # type: ignore[operator]
            await asyncio.sleep(0.05)


def as_client(cluster: Cluster, number: int, token: str) -> Client:
    return Client(cluster.base.embedded(number).path, patience_s=DEADLINE_S, token=token)


async def forbidden(work: object) -> str:
    with pytest.raises(PeerRefused) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code == "forbidden"
    assert caught.value.hint is not None
    assert "peer rights grant" in caught.value.hint
    return caught.value.error


async def test_a_client_does_what_its_token_is_granted_and_nothing_else(closed: Cluster):
    async with client(closed, 1) as admin:
        token = await admin.create_token("sensor-7")
        await admin.grant("client:sensor-7", ("publish",), "flights")
        async with as_client(closed, 2, token) as sensor:
            await until_granted(sensor, "client:sensor-7")
            assert (await sensor.publish("flights", [(1,)])).count == 1
            who = 'client "sensor-7" may not'
            assert await forbidden(sensor.publish("secrets", [(1,)])) == f'{who} publish to stream "secrets"'
            assert await forbidden(sensor.create_stream("mine", "n int")) == f'{who} create stream "mine"'
            assert await forbidden(sensor.drop_stream("flights")) == f'{who} create stream "flights"'
            assert await forbidden(sensor.subscribe("flights").open()) == f'{who} read stream "flights"'
            assert await forbidden(sensor.submit("SELECT n FROM flights")) == f'{who} create query "q-"'
            assert await forbidden(sensor.stop_query("q")) == f'{who} stop query "q"'
            assert await forbidden(sensor.set_policy("open")) == f"{who} change rights"
            await admin.remove_token("sensor-7")
            assert await forbidden(publish_on_and_on(sensor)) == f'{who} publish to stream "flights"'
        with pytest.raises(PeerRefused, match='the token of client "sensor-7" is not good'):
            async with as_client(closed, 1, token):
                pass


async def publish_on_and_on(each: Client) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await each.publish("flights", [(2,)])


async def until_granted(each: Client, principal: str, grants: int = 1) -> None:
    await until_async(each, lambda shown: sum(grant.principal == principal for grant in shown.grants) >= grants)


async def test_the_results_of_a_query_are_for_whoever_submitted_it(closed: Cluster):
    async with client(closed, 1) as admin:
        ann, bob = await admin.create_token("ann"), await admin.create_token("bob")
        await admin.grant("client:ann", ("create",), "query:*")
        await admin.grant("client:ann", ("read",), "flights")
        async with as_client(closed, 3, ann) as owner, as_client(closed, 3, bob) as other, client(closed, 2) as two:
            await until_granted(owner, "client:ann", 2)
            assert "secrets" in await forbidden(owner.submit("SELECT n FROM secrets", name="no"))
            async with owner.query("SELECT n FROM flights WHERE n > 100", name="mine") as rows:
                await two.publish("flights", [(100,), (101,)])
                async with asyncio.timeout(DEADLINE_S):
                    assert (await anext(aiter(rows)))[0] == 101
                stream = (await owner.show_query("mine")).stream
                assert "may not read" in await forbidden(other.subscribe(stream).open())
                assert await forbidden(other.stop_query("mine")) == 'client "bob" may not stop query "mine"'


def test_the_control_socket_and_the_commands_ask_for_rights_too(closed: Cluster, tmp_path: Path):
    file = tmp_path / "token"
    peer(closed, "rights", "token", "create", "ops", "--for", "1h", "--to", str(file), "-p", "1")
    assert file.stat().st_mode & 0o777 == 0o600
    refused = peer(closed, "rights", "token", "create", "ops2", "--to", str(file), "-p", "1", code=2)
    assert "File exists" in refused.stderr
    token = file.read_text().strip()
    for command in ("leave", "token"):
        refused = peer(closed, "--token", token, command, "-p", "1", code=1)
        assert 'client "ops" may not change rights' in refused.stderr, command
    refused = peer(closed, "token", "-p", "2", code=1)
    assert "may not change rights" in refused.stderr
    assert "peer rights grant peer:" in refused.stderr
    assert peer(closed, "token", "-p", "1").stdout.startswith("peer1-")
    dead = "0123456789"
    assert "may not change rights" in peer(closed, "force-leave", dead, "-p", "3", code=1).stderr
    refused = peer(closed, "--token", token, "publish", "flights", '{"n": 1}', "-p", "1", code=1)
    assert 'client "ops" may not publish to stream "flights"' in refused.stderr
    peer(closed, "rights", "grant", "client:ops", "publish", "flights", "-p", "1")
    peer(closed, "--token", token, "publish", "flights", '{"n": 1}', "-p", "1")
    shown = json.loads(peer(closed, "rights", "show", "-o", "json", "-p", "1").stdout)
    assert shown["policy"] == "closed"
    assert {"principal": "client:ops", "verbs": ["publish"], "pattern": "flights"} in shown["grants"]
    listed = peer(closed, "rights", "token", "ls", "-o", "json", "-p", "1").stdout
    assert "ops" in listed
    lines = [json.loads(line) for line in peer(closed, "rights", "log", "-o", "jsonl", "-p", "1").stdout.splitlines()]
    assert any(line["what"] == "refused" and line["principal"] == "client:ops" for line in lines)
    secret = token.partition(".")[2]
    logs = "".join(path.read_text(errors="replace") for path in closed.base.path.rglob("*.log"))
    assert secret not in listed + logs + json.dumps(lines)
    peer(closed, "rights", "revoke", "client:ops", "-p", "1", code=4)  # There is no grant for "*".
    peer(closed, "rights", "revoke", "client:ops", "publish", "flights", "-p", "1")
    peer(closed, "rights", "token", "rm", "ops", "-p", "1")


@contextlib.asynccontextmanager
async def member_without_a_door(cluster: Cluster, path: Path) -> AsyncIterator[tuple[Desk, Overlay]]:
    """A member of the network that nobody has granted anything, and that asks nobody: its own rights are open."""
    token = stored_token(cluster.base.embedded(1))
    assert token is not None
    overlay = Overlay(Identity.generate(), token.network, port=0, version="test", seeds=token.seeds)
    await overlay.start()
    try:
        await overlay.join()
        async with running(overlay, path) as desk:
            yield desk, overlay
    finally:
        await overlay.stop()


async def test_a_member_without_a_right_gets_nothing_over_links(closed: Cluster, tmp_path: Path):
    async with client(closed, 1) as admin, member_without_a_door(closed, tmp_path) as (desk, overlay):
        me = f"peer:{overlay.peer_id.hex()}"

        async def audited(action: str, via: str) -> None:
            """Until one of the daemons has refused this to us."""
            async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
                peers = [await stack.enter_async_context(client(closed, number)) for number in (1, 2, 3)]
                while True:
                    for each in peers:
                        for event in await each.audit():
                            if (event.principal, event.action, event.via) == (me, action, via):
                                return
                    await asyncio.sleep(0.05)

        await admin.publish("flights", [(1000,)])
        reading = desk.ask(OpenSubscription(stream="flights", subscription="mine", since="start"))
        await audited('read stream "flights"', "SUBSCRIBE")
        assert isinstance(await desk.answer(publish("flights", 666)), Published), "nobody stops it at home"
        subscription = admin.subscribe("flights", since="start")
        await subscription.open()
        await audited('publish to stream "flights"', "BATCH")
        made = desk.ask(create("mine"))
        await until(lambda: desk.answers[made], "the stream is refused")
        answer = desk.answers[made][0]
        assert isinstance(answer, Refused)
        # Whoever owns the key of the stream says so; if that is the member itself, the two other owners do.
        said = (f'peer {overlay.peer_id.short} may not create stream "mine"', "owners of the key")
        assert any(each in answer.detail for each in said), answer
        with pytest.raises(PeerError, match='stream "mine" is not known'):
            await admin.stream("mine")
        running_query = await admin.submit("SELECT n FROM flights", name="theirs")
        undeploy = Undeploy(query=running_query.stream, attempt=1 << 60)
        for each in overlay.members():
            if not each.is_self:
                desk.driver._courier.send(each.peer_id, undeploy)
        await audited('stop query "theirs"', "UNDEPLOY")
        desk.ask(SubmitQuery(text="SELECT n FROM flights", name="mine"))
        await asyncio.sleep(0.5)
        assert (await admin.show_query("theirs")).state == "running"
        got = [row[0] for each in desk.answers[reading] if isinstance(each, Rows) for row in _rows(each)]
        assert got in ([], [666]), "it has read nothing of others"
        rows = aiter(subscription)
        await admin.publish("flights", [(2000,)])
        read: list[int] = []
        async with asyncio.timeout(DEADLINE_S):
            while 2000 not in read:
                read.append((await anext(rows)).n)
        assert 666 not in read
        subscription.close()
        await admin.stop_query("theirs")


def _rows(answer: Rows) -> list[tuple[int, ...]]:
    return [row for batch in answer.batches for row in SCHEMA.decode(batch.rows)]


async def test_a_restarted_peer_is_closed_from_its_first_answer(closed: Cluster):
    """All are killed, and the admin stays away: what the two others know is on their disks."""
    for number in (1, 2, 3):
        closed.kill(number)
    await asyncio.gather(*(asyncio.to_thread(closed.restart, number) for number in (3, 2)))
    for number in (3, 2):
        async with client(closed, number) as each:
            shown = await each.rights()
            assert (shown.policy, shown.is_known) == ("closed", True)
            assert "may not change rights" in await forbidden(each.set_policy("open"))
    await asyncio.to_thread(closed.restart, 1)
