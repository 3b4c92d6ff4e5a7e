"""The text of /metrics, for Prometheus: the peer's counters, the members by status, and the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from overlay.members import STATUSES
from peerd import __version__

if TYPE_CHECKING:
    from peerd.service import Daemon

__all__ = ["CONTENT_TYPE_LATEST", "metrics_text"]


def metrics_text(daemon: Daemon) -> bytes:
    """The present metrics of one daemon."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_DaemonCollector(daemon))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _DaemonCollector(Collector):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        daemon = self._daemon
        labels = {"version": __version__, "peer": daemon.overlay.peer_id.hex(), "network": daemon.overlay.network.name}
        yield InfoMetricFamily("peerd", "This peer.", labels)
        yield GaugeMetricFamily("peerd_up", "1 once this peer is a member of its network.", float(daemon.is_member))
        counts = Counter(member.status for member in daemon.overlay.members())
        members = GaugeMetricFamily("peerd_members", "Members by status, as this peer sees them.", labels=["status"])
        for status in STATUSES:
            members.add_metric([status], counts[status])
        yield members
        stats = {**daemon.overlay.stats(), **daemon.driver.stats(), "clients": daemon.gateway.clients}
        for name, value in sorted(stats.items()):
            # The library adds the suffix of a counter itself.
            if name.endswith("_total"):
                yield CounterMetricFamily(f"peerd_{name.removesuffix('_total')}", _sentence(name), value)
            else:
                yield GaugeMetricFamily(f"peerd_{name}", _sentence(name), value)


def _sentence(name: str) -> str:
    return f"{name.removesuffix('_total').replace('_', ' ').capitalize()}, as the peer counts."
