"""The experiment with many joins, small: every result is made, and only those."""

from __future__ import annotations

import pytest

from experiments.benches.join_queries import BATCH_ROWS, BATCHES, BY_AMOUNT, BY_CUSTOMER, measure


@pytest.mark.slow
def test_each_order_concerns_as_many_queries_as_it_should():
    assert measure(60, 3, BY_CUSTOMER).results == 3 * BATCHES * BATCH_ROWS
    assert measure(60, 2, BY_AMOUNT).results == 2 * BATCHES * BATCH_ROWS
