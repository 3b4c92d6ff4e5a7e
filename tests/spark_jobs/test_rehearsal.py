"""A Spark that is to be warm has joined something before it says that it is ready."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pyspark")

from tests.spark_jobs.feeder import START, plan_of, us
from tests.spark_jobs.live import PATIENCE_S, Live, live

pytestmark = pytest.mark.system
live = pytest.fixture(live)  # type: ignore[assignment]

JOIN = "SELECT a.k FROM a [RANGE 5 SECONDS], b [RANGE 8 SECONDS] WHERE a.k = b.k"


def test_a_warm_engine_has_joined_before_it_is_ready_and_nobody_hears_of_it(live: Live) -> None:
    seen: dict[str, None] = {}

    async def warm() -> None:
        live.engine.warm()
        live.engine.warm()
        async with asyncio.timeout(PATIENCE_S):
            while (status := live.engine.status()).state == "starting":
                seen[status.waits_for] = None
                await asyncio.sleep(0.01)
        assert (status.state, status.runs, live.told) == ("ready", {}, {}), status.last_failure

    live.loop.run_until_complete(warm())
    assert "its first join" in seen
    told = live.started("first", plan_of(JOIN))
    assert live.fed("first", 1, "a", [], us(START)) == []
    assert not told.reason
