"""An engine that the tests of one worker share: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark_jobs.live import Live
from tests.spark_jobs.live import live as running


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    yield from running()
