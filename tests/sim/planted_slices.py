"""Bugs planted into the slices that window aggregates of several queries share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

from queries.partials import Part
from queries.plan import Aggregate, Window
from queries.schema import Row
from queries.slices import Slices
from tests.sim.bugs import Patch, bug


@bug("sharing", seeds=40)
def state_too_young() -> Patch:
    """A query that joins others reads their slices from the start: no layer begins with it."""
    join = Slices.join

    def join_all(
        slices: Slices, window: Window, aggregates: Sequence[Aggregate], closed_until_us: int | None = None
    ) -> int:
        number = join(slices, window, aggregates, closed_until_us)
        for layer in slices._layers.values():
            if all(Part.of(each) in layer.places for each in aggregates):
                layer.readers[number] = slices._readers[number]
        return number

    return patch.object(Slices, "join", join_all)


@bug("sharing", seeds=40)
def a_query_that_ends_takes_the_state_of_others() -> Patch:
    """The slices that a query has read go with it, whoever else reads them."""
    leave = Slices.leave

    def take_along(slices: Slices, number: int) -> None:
        slices._layers = {key: each for key, each in slices._layers.items() if number not in each.readers}
        leave(slices, number)

    return patch.object(Slices, "leave", take_along)


@bug("sharing", seeds=40)
def closed_for_one_closed_for_all() -> Patch:
    """The watermark of one query closes the windows of all that share with it."""
    close = Slices.close

    def close_all(slices: Slices, number: int, watermark_us: int) -> Iterator[list[Row]]:
        yield from close(slices, number, watermark_us)
        for reader in slices._readers.values():
            reader.closed_us = watermark_us if reader.closed_us is None else max(reader.closed_us, watermark_us)

    return patch.object(Slices, "close", close_all)
