"""Messages on their way to peers and keys, over real links: in order, together, and back as events when they fail."""

from __future__ import annotations

from overlay.overlay import Overlay
from overlay.pace import Paces
from peerd import courier as courier_module
from peerd.courier import Courier
from protocols.delivery.messages import PublisherNews
from protocols.events import Event, Unreachable, Unroutable
from protocols.ids import Key, PeerId
from protocols.subgraphs import Deployed, Flow, Progress
from protocols.wire import MESSAGES
from tests.overlay.networks import started, true_owner, until


def news(number: int) -> PublisherNews:
    return PublisherNews(stream=str(number))


def listen(overlay: Overlay) -> list[tuple[PeerId, str]]:
    heard: list[tuple[PeerId, str]] = []

    def on_message(sender: PeerId, _key: Key | None, payload: bytes) -> None:
        message = MESSAGES.decode(payload)
        assert isinstance(message, PublisherNews)
        heard.append((sender, message.stream))

    overlay.router.on_message = on_message
    return heard


async def test_what_is_sent_in_one_turn_travels_in_few_frames_and_in_order():
    async with started(2) as (one, two):
        failures: list[Event] = []
        courier, heard = Courier(one.router, one.understanding, failures.append), listen(two)
        for number in range(3000):
            courier.send(two.peer_id, news(number))
        await until(lambda: len(heard) == 3000, "all have arrived")
        assert heard == [(one.peer_id, str(number)) for number in range(3000)]
        assert one.router.counters["frames_out_total"] <= 5
        assert failures == []
        await courier.stop()


async def test_a_message_for_a_key_reaches_its_owner():
    async with started(4) as peers:
        courier = Courier(peers[0].router, peers[0].understanding, lambda event: None)
        heard = {peer.peer_id: listen(peer) for peer in peers}
        keys = [Key.of("test", str(number)) for number in range(20)]
        for number, key in enumerate(keys):
            courier.route(key, news(number))
        await until(lambda: sum(map(len, heard.values())) == 20, "all have arrived")
        for number, key in enumerate(keys):
            assert (peers[0].peer_id, str(number)) in heard[true_owner(key, peers)]
        await courier.stop()


async def test_what_cannot_be_delivered_comes_back():
    async with started(1) as (one,):
        failures: list[Event] = []
        courier = Courier(one.router, one.understanding, failures.append)
        nobody = PeerId(bytes(20))
        courier.send(nobody, news(1))
        courier.send(nobody, news(2))
        await until(lambda: len(failures) == 2, "both have failed")
        assert failures == [Unreachable(nobody, news(1)), Unreachable(nobody, news(2))]
        await courier.stop()


async def test_a_lane_that_is_full_takes_no_more(monkeypatch):
    monkeypatch.setattr(courier_module, "LANE_MESSAGES_MAX", 3)
    async with started(2) as (one, two):
        failures: list[Event] = []
        courier, heard = Courier(one.router, one.understanding, failures.append), listen(two)
        for number in range(5):
            courier.send(two.peer_id, news(number))
        assert failures == [Unreachable(two.peer_id, news(number)) for number in (3, 4)]
        await until(lambda: len(heard) == 3, "those that fitted have arrived")
        await courier.stop()


async def test_a_key_that_cannot_be_reached_comes_back(monkeypatch):
    async with started(2) as (one, two):
        failures: list[Event] = []
        courier = Courier(one.router, one.understanding, failures.append)
        theirs = next(key for n in range(100) if true_owner(key := Key.of(str(n)), [one, two]) == two.peer_id)
        monkeypatch.setattr(one.router, "multisend", _with_timeout(one.router.multisend, 0.3))
        two.links.on_control = lambda peer, body: None  # It is there, and says nothing.
        courier.route(theirs, news(1))
        await until(lambda: failures, "it has failed")
        assert failures == [Unroutable(theirs, news(1))]
        await courier.stop()


def _with_timeout(multisend, timeout_s: float):
    return lambda messages: multisend(messages, timeout_s)


async def test_what_fits_no_frame_is_lost_and_nothing_else():
    async with started(2) as (one, two):
        failures: list[Event] = []
        courier, heard = Courier(one.router, one.understanding, failures.append), listen(two)
        theirs = next(key for n in range(100) if true_owner(key := Key.of(str(n)), [one, two]) == two.peer_id)
        large = PublisherNews(stream="x" * (2 << 20))
        endless = Deployed(query="q", attempt=1 << 64, number=0, life=0)
        for message in (large, endless, news(1)):
            courier.send(two.peer_id, message)
            courier.route(theirs, message)
        await until(lambda: len(heard) == 2, "the one that fits has arrived on both ways")
        assert heard == [(one.peer_id, "1")] * 2
        assert failures == []
        assert courier.counters["messages_too_large_total"] == 4
        await courier.stop()


async def test_messages_with_rows_do_not_hold_up_others():
    async with started(2, paces={0: Paces.of(200_000.0, None)}) as (one, two):
        failures: list[Event] = []
        courier = Courier(one.router, one.understanding, failures.append, bulk_bytes_max=50_000)
        heard: list[str] = []
        two.router.on_message = lambda _sender, _key, payload: heard.append(type(MESSAGES.decode(payload)).__name__)
        for number in range(10):
            rows = bytes(40_000)
            flow = {"query": "q.1", "attempt": 1, "subgraph": 1, "life": 1, "is_new": True, "is_whole": True}
            courier.send(two.peer_id, Flow(**flow, sequence=number, rows=rows, count=1, progress=Progress()))  # type: ignore[arg-type]
        await until(lambda: "Flow" in heard, "the first of them comes")
        courier.send(two.peer_id, news(1))
        await until(lambda: len(heard) == 11, "all have arrived")
        assert heard.index("PublisherNews") < 5, "it has overtaken half of them"
        assert failures == []
        await courier.stop()
