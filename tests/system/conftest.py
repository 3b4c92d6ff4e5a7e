"""Networks of real daemons that tests share, where they have no wishes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peerd.cluster import Cluster
from peerd.datadir import DataDir
from tests.system.ports import PORTS


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three peers without Spark, for the tests that leave them alive."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("network")))
    cluster.start(3, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Five peers for the tests that kill some, and start them again."""
    cluster = Cluster(DataDir(tmp_path_factory.mktemp("fragile")))
    cluster.start(5, first_port=next(PORTS), settings={"spark": "off"})
    cluster.wait_until_up()
    yield cluster
    cluster.stop()
