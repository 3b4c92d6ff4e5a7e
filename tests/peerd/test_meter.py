"""What a peer measures of itself, and what it makes of its limits."""

from __future__ import annotations

import pytest

from overlay.room import UNLIMITED, Room
from peerd import meter as meter_module
from peerd.courier import Courier
from peerd.engines import Engines
from peerd.meter import Meter, counters, fitted, room_of, shown
from protocols.delivery.messages import PublisherNews
from protocols.events import Event
from protocols.execution.admission import UseMeasured
from protocols.limits import Limits
from protocols.sharing.capacity import Capacities, Capacity, Use
from tests.overlay.networks import started, until

LIMITED = Capacities(cpu_share=0.5, uplink=100_000.0, hosts_others=False, cores=2)


def test_without_limits_nothing_is_said_and_nothing_made_smaller():
    assert room_of(Capacity()) == Room()
    assert fitted(Limits(), Capacities()) == (Limits(), None)


def test_thin_links_have_small_messages_and_little_in_flight():
    limits, bulk = fitted(Limits(), Capacities(uplink=125_000.0, downlink=125_000.0))
    assert (bulk, limits.message_bytes, limits.credit_bytes) == (31_250, 31_250, 125_000)
    fast, bulk = fitted(Limits(), Capacities(uplink=1e9, downlink=1e9))
    assert (fast, bulk) == (Limits(), 250_000_000)


def test_what_is_free_is_told_in_tenths():
    capacity = Capacity(LIMITED)
    capacity.reserve("q", {"cpu": 700_000.0, "uplink": 100_000.0})
    assert room_of(capacity) == Room(hosts_others=False, cpu=3, uplink=0, downlink=UNLIMITED)


def test_people_and_metrics_get_limits_use_and_reservations():
    capacity = Capacity(LIMITED)
    capacity.reserve("q", {"uplink": 4000.0})
    for _ in range(60):
        capacity.measure(Use(100_000.0, 100_000.0, 5000.0, 0.0), {}, {}, 0)
    told = shown(capacity)
    assert (told["cpu"]["limit"], round(told["cpu"]["used"], 3), told["downlink"]["limit"]) == (0.5, 0.1, None)
    metrics = counters(capacity)
    assert round(metrics["capacity_cpu_cores_used"], 3) == 0.2
    assert metrics["capacity_uplink_bytes_per_second_reserved"] == 4000.0
    assert metrics["capacity_cpu_cores_limit"] == 1.0
    assert "capacity_downlink_bytes_per_second_limit" not in metrics
    assert metrics["capacity_hosts_others"] == 0.0


async def test_what_links_carry_is_measured_and_others_hear_when_it_is_used_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(meter_module, "SAY_AGAIN_S", 0.0)
    async with started(2) as (one, two):
        measured: list[Event] = []
        capacity = Capacity(Capacities(uplink=1000.0))
        meter = Meter(one, Engines(None, measured.append), capacity, measured.append, lambda: 7.0)
        courier = Courier(one.router, one.understanding, measured.append)
        for number in range(200):
            courier.send(two.peer_id, PublisherNews(stream=str(number)))
        await until(lambda: one.router.counters["frames_out_total"], "they are sent")
        meter.look()
        (event,) = measured
        assert isinstance(event, UseMeasured)
        assert event.use.bytes_out > 0
        assert event.use.daemon_us > 0
        capacity.reserve("q", {"uplink": 1000.0})
        meter.look()
        await one.ping(two.peer_id)
        seen = next(member for member in two.members() if member.peer_id == one.peer_id)
        assert seen.room == Room(uplink=0)
        await courier.stop()
