"""The experiment with many joins, small: every result is made, and only those."""

from __future__ import annotations

from experiments.join_queries import BATCH_ROWS, BATCHES, by_amount, by_customer, measure


def test_each_order_concerns_as_many_queries_as_it_should():
    cost = measure(60, 3, by_customer, lambda each, customers: (each, each % customers, 1.0))
    assert cost.results == 3 * BATCHES * BATCH_ROWS
    cost = measure(60, 2, by_amount, lambda each, _: (each, 0, 1.5))
    assert cost.results == 2 * BATCHES * BATCH_ROWS
