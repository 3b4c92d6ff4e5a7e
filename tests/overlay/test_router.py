"""The router between real peers: the right owner, one frame a peer, once each, whoever dies on the way."""

from __future__ import annotations

import asyncio
import random
from typing import NoReturn

import pytest

from overlay import router
from overlay.identity import Identity, PeerRecord
from overlay.overlay import Overlay
from overlay.pace import Paces
from overlay.router import MESSAGE_BYTES_MAX, Delivery, Unreachable
from protocols.ids import Key, PeerId
from tests.overlay.networks import started, true_owner, until

KEYS = [Key.of("message", str(number)) for number in range(500)]
NEVER_S = 120.0  # What takes this long would not have come at all.


class Inboxes:
    """What each peer was handed, in order."""

    def __init__(self, peers: list[Overlay]) -> None:
        self.of: dict[PeerId, list[tuple[PeerId, Key | None, bytes]]] = {}
        for peer in peers:
            inbox = self.of.setdefault(peer.peer_id, [])
            peer.router.on_message = lambda sender, key, payload, inbox=inbox: inbox.append((sender, key, payload))

    def copies(self, payload: bytes) -> int:
        return sum(each[2] == payload for inbox in self.of.values() for each in inbox)


async def test_a_routed_message_reaches_the_owner_of_its_key_and_nobody_else() -> None:
    async with started(8) as peers:
        inboxes = Inboxes(peers)
        for number, key in enumerate(KEYS[:50]):
            sender = peers[number % len(peers)]
            payload = str(number).encode()
            delivery = await sender.router.route(key, payload)
            assert delivery.owner == true_owner(key, peers)
            assert delivery.hops == (0 if delivery.owner == sender.peer_id else 1)
            assert inboxes.of[delivery.owner][-1] == (sender.peer_id, key, payload)
            assert inboxes.copies(payload) == 1


async def test_multisend_takes_one_frame_for_each_peer_and_no_lookup_where_everybody_is_known() -> None:
    async with started(6) as peers:
        inboxes = Inboxes(peers)
        router = peers[0].router
        for round_number in range(2):
            before = router.counters.copy()
            messages = [(key, f"{round_number}-{number}".encode()) for number, key in enumerate(KEYS)]
            deliveries = await router.multisend(messages)
            owners = [true_owner(key, peers) for key in KEYS]
            assert [delivery.owner for delivery in deliveries if isinstance(delivery, Delivery)] == owners
            others = {owner for owner in owners if owner != peers[0].peer_id}
            assert router.counters["frames_out_total"] - before["frames_out_total"] == len(others)
            assert router.counters["lookups_total"] == before["lookups_total"]
            assert all(inboxes.copies(payload) == 1 for _, payload in messages[:20])


async def test_a_newcomer_gets_what_others_had_cached_for_its_neighbour() -> None:
    async with started(3) as peers:
        Inboxes(peers)
        sender = peers[0]
        await sender.router.multisend([(key, b"before") for key in KEYS])

        newcomer = Overlay(Identity.generate(), sender.network, port=0, seeds=[sender.address])
        await newcomer.start()
        try:
            await newcomer.join()
            everybody = [*peers, newcomer]
            inboxes = Inboxes(everybody)
            deliveries = await sender.router.multisend([(key, b"after") for key in KEYS])
            assert [delivery.owner for delivery in deliveries if isinstance(delivery, Delivery)] == [
                true_owner(key, everybody) for key in KEYS
            ]
            assert sender.router.counters["redirects_total"] <= len(inboxes.of[newcomer.peer_id])
            moved = [each for each in deliveries if isinstance(each, Delivery) and each.owner == newcomer.peer_id]
            assert {delivery.hops for delivery in moved} <= {1, 2}
        finally:
            await newcomer.stop()


async def test_messages_to_a_dead_owner_reach_its_heir() -> None:
    async with started(6) as peers:
        sender, victim, *rest = peers
        inboxes = Inboxes(peers)
        await sender.router.multisend([(key, b"before") for key in KEYS[:100]])
        await victim.stop()
        heirs = [sender, *rest]
        deliveries = await sender.router.multisend([(key, b"after") for key in KEYS[:100]])
        assert [delivery.owner for delivery in deliveries if isinstance(delivery, Delivery)] == [
            true_owner(key, heirs) for key in KEYS[:100]
        ]
        assert inboxes.copies(b"after") == 100


@pytest.mark.slow
async def test_each_message_arrives_once_although_links_break_all_the_time() -> None:
    seed = 5
    luck = random.Random(seed)
    async with started(3) as peers:
        inboxes = Inboxes(peers)
        sender, *others = peers
        finished = asyncio.Event()

        async def break_links() -> None:
            while not finished.is_set():
                sender.links.close_peer(luck.choice(others).peer_id)
                await asyncio.sleep(luck.uniform(0.001, 0.02))

        breaking = asyncio.create_task(break_links())
        for number in range(200):
            await sender.router.send(luck.choice(others).peer_id, str(number).encode())
        finished.set()
        await breaking
        assert [inboxes.copies(str(number).encode()) for number in range(200)] == [1] * 200, f"seed={seed}"


async def test_a_message_to_a_peer_nobody_knows_is_refused_by_name() -> None:
    async with started(2) as peers:
        with pytest.raises(Unreachable, match="00000000 is not in the network"):
            await peers[0].router.send(PeerId(bytes(20)), b"hello")


@pytest.mark.slow
async def test_a_message_to_a_silent_peer_gives_up_in_time() -> None:
    async with started(2, shaped=True) as peers:
        sender, other = peers
        shaper = sender.dht.shaper
        assert shaper is not None
        shaper.shape(cut=True)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        with pytest.raises(Unreachable):
            await sender.router.send(other.peer_id, b"hello", timeout_s=1.0)
        assert loop.time() - asked_at < router.TIMEOUT_S


async def test_a_message_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    async with started(2) as peers:
        inboxes = Inboxes(peers)
        largest = bytes(MESSAGE_BYTES_MAX)
        await peers[0].router.send(peers[1].peer_id, largest)
        with pytest.raises(ValueError, match="may have"):
            await peers[0].router.send(peers[1].peer_id, largest + b"x")
        await until(lambda: len(inboxes.of[peers[1].peer_id]) == 1, "the largest message has arrived")


async def test_messages_sent_together_take_as_many_frames_as_they_need_and_keep_their_order() -> None:
    async with started(2) as (sender, receiver):
        inboxes = Inboxes([sender, receiver])
        large = [bytes([number]) * (MESSAGE_BYTES_MAX // 2) for number in range(5)]
        small = [str(number).encode() for number in range(2 * router.FRAME_ITEMS_MAX + 1)]
        for payloads, frames in ((large, 3), (small, 3), ([], 0), ([b"one"], 1)):
            before = sender.router.counters["frames_out_total"]
            await sender.router.send(receiver.peer_id, *payloads)
            assert sender.router.counters["frames_out_total"] - before == frames
            assert [payload for _, _, payload in inboxes.of[receiver.peer_id]] == payloads
            inboxes.of[receiver.peer_id].clear()
        assert receiver.router.counters["frames_malformed_total"] == 0


async def test_a_peer_that_leaves_sends_the_receipts_it_owes_first() -> None:
    async with started(3) as (sender, leaver, _):
        inboxes = Inboxes([sender, leaver])
        key = next(key for key in KEYS if leaver.dht.table.nearer(key) is None)
        leaver.dht.table.is_home = lambda _: False  # As far from home: it looks before it accepts.
        looked = asyncio.Event()

        async def look(_: Key) -> PeerRecord:
            await looked.wait()
            return leaver.dht.record

        leaver.dht.owner = look
        routing = asyncio.ensure_future(sender.router.route(key, b"hello"))
        await until(lambda: leaver.router._busy, "it looks")
        leaving = asyncio.ensure_future(leaver.leave())
        await asyncio.sleep(0)
        looked.set()
        delivery = await routing
        await leaving
        assert delivery.owner == leaver.peer_id
        assert inboxes.copies(b"hello") == 1
        assert sender.router.counters["frames_repeated_total"] == 0


@pytest.mark.slow
async def test_a_peer_that_leaves_does_not_wait_long_for_a_receipt_nor_hand_on_what_it_cannot_answer() -> None:
    async with started(2) as (sender, leaver):
        inboxes = Inboxes([sender, leaver])
        key = next(key for key in KEYS if leaver.dht.table.nearer(key) is None)
        await sender.router.send(leaver.peer_id, b"link")
        leaver.dht.table.is_home = lambda _: False
        leaver.dht.owner = _never
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        routing = asyncio.ensure_future(sender.router.route(key, b"hello"))
        await until(lambda: leaver.router._busy, "it looks")
        await leaver.router.finish()
        assert router.LAST_RECEIPTS_S <= loop.time() - asked_at < NEVER_S / 2
        leaver.router._read(sender.peer_id, router._encode(router.Deliver(b"bootboot", 1, [(b"", b"too late")])))
        await leaver.leave()
        assert (await routing).owner == sender.peer_id
        assert inboxes.of[leaver.peer_id] == [(sender.peer_id, None, b"link")]
        assert inboxes.copies(b"hello") == 1


async def test_a_message_whose_link_ends_before_the_receipt_is_tried_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "RECEIPT_WAIT_S", NEVER_S)
    async with started(2) as (sender, receiver):
        inboxes = Inboxes([sender, receiver])
        take = receiver.links.on_control
        lost = asyncio.Event()
        receiver.links.on_control = lambda *_: lost.set()
        sending = asyncio.ensure_future(sender.router.send(receiver.peer_id, b"hello", timeout_s=NEVER_S))
        await lost.wait()
        receiver.links.on_control = take
        receiver.links.close_peer(sender.peer_id)
        async with asyncio.timeout(NEVER_S / 2):
            await sending
        assert inboxes.copies(b"hello") == 1


async def _never(*_: object) -> NoReturn:
    await asyncio.sleep(NEVER_S)
    raise AssertionError


async def test_rubbish_in_a_frame_is_counted_and_harms_nobody() -> None:
    seed = 9
    luck = random.Random(seed)
    async with started(2) as peers:
        sender, receiver = peers
        inboxes = Inboxes(peers)
        for _ in range(300):
            rubbish = luck.randbytes(luck.randrange(200))
            await sender.links.send(receiver.peer_id, receiver.address, rubbish)
        nested = b"\x91" * 100_000 + b"\xc0"
        await sender.links.send(receiver.peer_id, receiver.address, nested)
        await sender.router.send(receiver.peer_id, b"still there")
        assert inboxes.of[receiver.peer_id] == [(sender.peer_id, None, b"still there")], f"seed={seed}"
        assert receiver.router.counters["frames_malformed_total"] > 250


async def test_a_peer_outside_the_table_is_sent_to_over_its_link_without_asking_around() -> None:
    async with started(4) as peers:
        inboxes = Inboxes(peers)
        sender, receiver = peers[:2]
        await sender.router.send(receiver.peer_id, b"link")
        for one, other in ((sender, receiver), (receiver, sender)):  # As in a large network, where tables are full.
            contact = one.dht.table.get(other.peer_id)
            assert contact is not None
            one.dht.table.remove_contact(contact)
            one.dht.closest = _nobody_is_asked
        for number in range(20):
            await sender.router.send(receiver.peer_id, str(number).encode())
        assert [payload for _, _, payload in inboxes.of[receiver.peer_id]][1:] == [str(n).encode() for n in range(20)]


async def _nobody_is_asked(*_: object) -> NoReturn:
    raise AssertionError("a lookup for a peer that a link leads to")


async def test_a_message_to_a_peer_outside_the_table_survives_the_loss_of_its_link() -> None:
    async with started(2, shaped=True) as (sender, receiver):
        inboxes = Inboxes([sender, receiver])
        assert sender.dht.shaper is not None
        sender.dht.shaper.shape(delay_ms=50)  # A dial takes a while then.
        sender.dht.find = lambda peer: None  # As in a large network, where tables are full.
        sending = asyncio.ensure_future(sender.router.send(receiver.peer_id, b"hello"))
        await until(lambda: sender.links.stats()["links_dialling"], "it is dialling")
        sender.links.close_peer(receiver.peer_id)
        await sending
        assert inboxes.copies(b"hello") == 1


async def test_a_receipt_of_the_wrong_length_is_a_failure_of_the_peer_not_of_ours() -> None:
    async with started(2) as (sender, liar):
        await sender.router.send(liar.peer_id, b"link")

        def answer_too_much(peer: PeerId, body: bytes) -> None:
            frame = router._decode(body)
            receipt = router._encode(router.Receipt(frame.boot, frame.number, [None, None]))
            replies.append(asyncio.ensure_future(liar.links.send(peer, sender.address, receipt)))

        replies: list[asyncio.Future[None]] = []
        liar.links.on_control = answer_too_much
        key = next(key for key in KEYS if sender.dht.table.nearer(key))
        with pytest.raises(Unreachable):
            await sender.router.route(key, b"hello", timeout_s=0.3)
        await until(lambda: sender.router.counters["frames_malformed_total"] > 0, "the receipt has come")


async def test_a_member_that_sends_and_never_reads_its_receipts_costs_a_bounded_amount() -> None:
    async with started(2) as (peer, other):
        Inboxes([peer, other])
        stuck = asyncio.Event()

        async def send_when_read(*_: object) -> None:
            await stuck.wait()

        peer.links.send = send_when_read
        for number in range(3 * router._BUSY_MAX):
            body = router._encode(router.Deliver(b"bootboot", number, [(b"", b"payload")]))
            peer.router._read(other.peer_id, body)
        assert peer.router._busy[other.peer_id] == router._BUSY_MAX
        assert peer.router.counters["frames_refused_total"] == 2 * router._BUSY_MAX
        stuck.set()
        await until(lambda: not peer.router._busy, "everything is answered")


async def test_a_frame_looked_at_for_long_is_accepted_although_its_sender_was_forgotten() -> None:
    async with started(2) as (peer, other):
        inboxes = Inboxes([peer, other])
        key = next(key for key in KEYS if peer.dht.table.nearer(key) is None)
        peer.dht.table.is_home = lambda _: False
        peer.router._read(other.peer_id, router._encode(router.Deliver(b"bootboot", 1, [(bytes(key), b"hello")])))
        peer.router._received.clear()
        await until(lambda: inboxes.copies(b"hello") == 1, "it is accepted")
        await until(lambda: not peer.router._busy, "it is answered")


async def test_nothing_is_kept_of_a_key_that_has_moved_nor_of_a_peer_that_has_answered() -> None:
    async with started(3) as peers:
        Inboxes(peers)
        sender = peers[0]
        for number in range(3):
            keys = [Key.of(str(number), str(each)) for each in range(100)]
            await sender.router.multisend([(key, b"before") for key in keys])
            guest = Overlay(Identity.generate(), sender.network, port=0, seeds=[sender.address])
            await guest.start()
            await guest.join()
            await sender.router.multisend([(key, b"after") for key in keys])
            await guest.leave()
        cached = {key: owner.peer_id for key, owner in sender.router._cache.items()}
        assert {key: peer for peer, keys in sender.router._keys_of.items() for key in keys} == cached
        assert sum(map(len, sender.router._keys_of.values())) == len(cached)
        assert sender.router._remotes == {}


async def test_a_lookup_that_takes_too_long_ends_with_the_time_of_the_message() -> None:
    async with started(2) as (sender, _):
        sender.dht.owner = sender.dht.closest = _never
        sender.dht.table.is_home = lambda _: False
        key = next(key for key in KEYS if sender.dht.table.nearer(key))
        async with asyncio.timeout(NEVER_S / 2):
            with pytest.raises(Unreachable):
                await sender.router.route(key, b"hello", timeout_s=0.2)
            with pytest.raises(Unreachable, match="not found in time"):
                await sender.router.send(PeerId(bytes(20)), b"hello", timeout_s=0.2)


async def test_bulk_has_as_long_as_a_thin_link_needs_and_is_sent_once() -> None:
    async with started(2, paces={0: Paces.of(100_000.0, None)}) as (sender, receiver):
        inboxes = Inboxes([receiver])
        bodies = [bytes([number]) * 40_000 for number in range(5)]
        sends = [sender.router.send(receiver.peer_id, body, timeout_s=0.3, is_bulk=True) for body in bodies]
        await asyncio.gather(*sends)
        assert sorted(payload for _, _, payload in inboxes.of[receiver.peer_id]) == bodies
        assert sender.router.counters["frames_repeated_total"] == 0


async def test_bulk_for_a_peer_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "_HEARD_WITHIN_S", 0.5)
    monkeypatch.setattr(router, "TIMEOUT_S", 1.0)
    async with started(2, shaped=True) as (sender, receiver):
        await sender.router.send(receiver.peer_id, b"hello")
        for one, other in ((sender, receiver), (receiver, sender)):
            assert one.dht.shaper is not None
            one.dht.shaper.shape(other.address, cut=True)
        with pytest.raises(Unreachable):
            await sender.router.send(receiver.peer_id, b"anybody there?", timeout_s=1.0, is_bulk=True)
