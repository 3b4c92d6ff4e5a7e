"""The join of join_bench.py in Pathway: one process, nothing on disk. Runs in make bench's environment.

.venv-bench/bin/python -m experiments.benches.join_pathway SHAPE
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any, Final

import pathway as pw

from experiments.benches.join_rows import Arrivals, Shape, StreamName, measure

COMMIT_MS: Final = 10  # How long Pathway gathers rows of its own accord; each batch also ends with a commit.


class Orders(pw.Schema):  # type: ignore[misc]  # Only its own environment knows its types.
    number: int
    customer: str
    amount: float


class Payments(pw.Schema):  # type: ignore[misc]
    of: int
    paid: float


class Feed(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Rows that somebody puts."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        super().__init__()
        self._columns = columns
        self._batches: queue.SimpleQueue[list[tuple[Any, ...]] | None] = queue.SimpleQueue()

    def put(self, rows: list[tuple[Any, ...]] | None) -> None:
        self._batches.put(rows)

    def run(self) -> None:
        while (rows := self._batches.get()) is not None:
            for row in rows:
                self.next(**dict(zip(self._columns, row, strict=True)))
            self.commit()


def main() -> int:
    shape, arrivals = Shape.from_arguments(), Arrivals()
    feeds: dict[StreamName, Feed] = {
        "orders": Feed(("number", "customer", "amount")),
        "payments": Feed(("of", "paid")),
    }
    orders = pw.io.python.read(feeds["orders"], schema=Orders, autocommit_duration_ms=COMMIT_MS)
    payments = pw.io.python.read(feeds["payments"], schema=Payments, autocommit_duration_ms=COMMIT_MS)
    joined = orders.join(payments, orders.number == payments.of).select(orders.number, orders.customer, payments.paid)
    pw.io.subscribe(joined, on_change=lambda key, row, time, is_addition: arrivals.note([row["number"]]))
    running = threading.Thread(target=lambda: pw.run(monitoring_level=pw.MonitoringLevel.NONE), daemon=True)
    running.start()
    figures = measure(shape, lambda stream, rows: feeds[stream].put(rows), arrivals)
    print(json.dumps(figures), flush=True)
    for feed in feeds.values():
        feed.put(None)
    running.join(timeout=10)
    sys.stdout.flush()
    os._exit(0)  # Its threads do not all end by themselves.


if __name__ == "__main__":
    main()
