"""The streams between the subgraphs of a query, advertised while it runs: what they are, who makes them, how fast.

A name follows from the canonical plan of the flow, so two queries with the same flow use the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocols.catalogue.events import DerivedEntry
from protocols.catalogue.machine import CatalogueMachine
from protocols.catalogue.statistics import Rate
from protocols.effects import Effect
from protocols.execution.attempt import Attempt
from protocols.ids import Millis, StreamName
from protocols.store.events import Token
from queries.plan import output_schema

LIFE_MS: Final = 30_000
RENEW_MS: Final = 10_000


@dataclass(slots=True)
class DerivedStreams:
    """What the proxy advertises of the streams between its subgraphs.

    Keeps:     soft state only: an advertisement that is not renewed expires
    """

    catalogue: CatalogueMachine
    token: Token
    _advertised_at: dict[StreamName, Millis] = field(default_factory=dict)  # By query.
    _rates: dict[tuple[StreamName, int], tuple[Rate, int]] = field(default_factory=dict)  # With the count so far.

    def renew(self, attempt: Attempt, now: Millis) -> list[Effect]:
        """Advertise the flows of a running attempt, every RENEW_MS."""
        if now - self._advertised_at.get(attempt.query, -RENEW_MS) < RENEW_MS:
            return []
        self._advertised_at[attempt.query] = now
        return [
            effect
            for entry in self._entries(attempt, now)
            for effect in self.catalogue.advertise_derived(entry, LIFE_MS, self.token, now)
        ]

    def withdraw(self, attempt: Attempt, now: Millis) -> list[Effect]:
        """The attempt is over."""
        if self._advertised_at.pop(attempt.query, None) is None:
            return []
        entries = self._entries(attempt, now)
        self._rates = {key: rate for key, rate in self._rates.items() if key[0] != attempt.query}
        withdraw = self.catalogue.withdraw_derived
        return [effect for entry in entries for effect in withdraw(entry, LIFE_MS, self.token, now)]

    def _entries(self, attempt: Attempt, now: Millis) -> list[DerivedEntry]:
        return [
            DerivedEntry(
                name=subgraph.derived,
                schema=output_schema(subgraph.plan),
                host=host,
                query=attempt.query,
                number=subgraph.number,
                rate_per_s=self._rate(attempt, subgraph.number, now),
            )
            for subgraph, host in attempt.cut.placed
            if subgraph.derived
        ]

    def _rate(self, attempt: Attempt, number: int, now: Millis) -> float:
        rate, counted = self._rates.get((attempt.query, number), (Rate(), 0))
        status = attempt.status.get(number)
        made = status.rows_out if status is not None else 0
        rate.count(max(0, made - counted), now)
        self._rates[attempt.query, number] = (rate, made)
        return round(rate.per_second(now), 1)
