"""How much each client may take of one peer. The defaults are far above what an honest program needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from protocols.ids import Millis

Principal = str
CLIENTS_MAX: Final = 10_000  # Whose rates are remembered; a client that has been silent starts anew anyway.


@dataclass(frozen=True, slots=True)
class Quotas:
    """For each client of this peer; those without a token count as one. 0 is no limit."""

    connections: int = 1000  # That present its token.
    streams: int = 10_000  # That it has created or published to here since the peer started.
    subscriptions: int = 10_000  # That it reads at the same time.
    queries: int = 5000  # That it has running here; by default all that a peer runs.
    state_rows: int = 100_000_000  # That its queries may keep before it can start another.
    tuples_per_s: int = 2_000_000  # That it publishes,
    bytes_per_s: int = 1 << 30  # and their size.
    peer_subgraphs: int = 2500  # Of the queries of one other peer, run here,
    peer_joins: int = 50_000  # sides of its join queries, indexed here,
    peer_subscriptions: int = (
        50_000  # and its subscriptions, served here, one for each publication or copy that it reads.
    )


@dataclass(slots=True)
class Bucket:
    """A rate: what may be used now, in thousandths. One use may overdraw it; the next waits until that is paid back."""

    level: int
    at: Millis

    def wait_ms(self, rate: int, now: Millis) -> Millis:
        """How long until it may be used again; 0: now."""
        if now != self.at:  # In a busy millisecond nothing is added.
            self.level = min(1000 * rate, self.level + rate * max(0, now - self.at))
            self.at = now
        return 0 if self.level > 0 else 1 - self.level // rate

    def use(self, amount: int) -> None:
        self.level -= 1000 * amount


@dataclass(slots=True)
class Rates:
    """How fast each client publishes."""

    quotas: Quotas
    _accounts: dict[Principal, tuple[Bucket, Bucket]] = field(default_factory=dict)  # Tuples, and bytes.

    def exceeded(self, client: Principal, tuples: int, size: int, now: Millis) -> tuple[str, int, int, Millis] | None:
        """Which quota a publish has to wait for: its name, the limit, the overdraft, and how long. Else it is used."""
        tuple_rate, byte_rate = self.quotas.tuples_per_s, self.quotas.bytes_per_s
        account = self._accounts.get(client)
        if account is None:
            if len(self._accounts) >= CLIENTS_MAX:
                self._accounts.clear()
            account = self._accounts[client] = (Bucket(1000 * tuple_rate, now), Bucket(1000 * byte_rate, now))
        of_tuples, of_bytes = account
        if tuple_rate and (wait_ms := of_tuples.wait_ms(tuple_rate, now)):
            return "quota_tuples_per_s", tuple_rate, tuple_rate - of_tuples.level // 1000, wait_ms
        if byte_rate and (wait_ms := of_bytes.wait_ms(byte_rate, now)):
            return "quota_bytes_per_s", byte_rate, byte_rate - of_bytes.level // 1000, wait_ms
        of_tuples.use(tuples)
        of_bytes.use(size)
        return None
