"""How a plan runs in Spark: in real-time mode, in micro-batches or in batches."""

from __future__ import annotations

from typing import Literal

from queries.plan import Join, Nest, Operator, Source, Union, WindowAggregate, walk

Mode = Literal["real-time", "micro-batch", "batch"]


def mode(plan: Operator, *, is_local: bool = True) -> Mode:
    """How a plan can run over streams: in real-time mode, in micro-batches, or as batch jobs over what is kept.

    On a cluster nothing runs in real-time mode. Its tasks never end, so rows and results cannot travel with the tasks,
    and each task would occupy a core of the cluster.
    """
    operators = list(walk(plan))
    aggregates = [each for each in operators if isinstance(each, WindowAggregate)]
    windows = [each.window for each in operators if isinstance(each, Source | WindowAggregate)]
    in_order = any(window is not None and window.kind != "time" for window in windows)
    if in_order or any(isinstance(each, Nest) for each in operators) or _is_aggregate_read(operators):
        return "batch"  # It orders the rows of a stream itself, which only a batch job can do.
    gathers = any(each.distinct or each.function == "collect" for node in aggregates for each in node.aggregates)
    if any(isinstance(each, Join) for each in operators) or len(aggregates) > 1 or gathers:
        return "micro-batch"
    if aggregates and any(isinstance(each, Union) for each in operators):
        return "micro-batch"
    return "real-time" if is_local else "micro-batch"


def joins(plan: Operator) -> bool:
    """Whether rows wait for rows of other streams."""
    return any(isinstance(each, Join | Nest) for each in walk(plan))


def _is_aggregate_read(operators: list[Operator]) -> bool:
    """Whether a join or an aggregate has an aggregate below it."""
    return any(
        isinstance(below, WindowAggregate)
        for each in operators
        if isinstance(each, Join | WindowAggregate)
        for input_ in each.inputs
        for below in walk(input_)
    )
