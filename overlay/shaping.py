"""Network conditions in user space: delay, jitter, loss and cuts, applied where a peer hands bytes to the kernel.

Tests and demonstrations run many peers on one machine, and not every kernel can delay packets. A shaper holds back what
*its own* peer sends: to separate two peers, cut the address of each in the shaper of the other. The TLS handshake and
the closing of a socket are not shaped; instead the dialler waits as long as the handshake would take.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from overlay.identity import Address

RETRANSMISSION_S: Final = 0.2  # TCP's least retransmission timeout: what one lost segment costs a stream.
_LOOK_AGAIN_S: Final = 0.01  # How often a stream behind a cut checks whether the cut has healed.
_HELD_BYTES_MAX: Final = 4 << 20  # Enough for 40 MB/s over 100 ms.


@dataclass(frozen=True, slots=True)
class Conditions:
    """What happens to bytes on their way to one address."""

    delay_ms: float = 0.0
    jitter: float = 0.0  # Up to this share of the delay is added at random.
    loss: float = 0.0
    cut: bool = False


_FAIR: Final = Conditions()


class Shaper:
    """The conditions one peer sends under, by the address it sends to.

    >>> shaper = Shaper(random.Random(1))
    >>> shaper.shape(delay_ms=40)
    >>> shaper.shape(("10.0.0.7", 7400), cut=True)
    >>> shaper.stream_delay_s(("10.0.0.8", 7400)), shaper.is_cut(("10.0.0.7", 7400))
    (0.04, True)
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rules: dict[Address | None, Conditions] = {}

    def shape(
        self,
        address: Address | None = None,
        *,
        delay_ms: float = 0.0,
        jitter: float = 0.0,
        loss: float = 0.0,
        cut: bool = False,
    ) -> None:
        """Set the conditions towards an address, or towards every address without conditions of its own."""
        if delay_ms < 0 or jitter < 0 or not 0 <= loss <= 1:
            raise ValueError(f"no network has delay_ms={delay_ms}, jitter={jitter}, loss={loss}")
        self._rules[address] = Conditions(delay_ms, jitter, loss, cut)

    def heal(self, address: Address | None = None) -> None:
        """Forget the conditions towards an address, or all conditions."""
        if address is None:
            self._rules.clear()
        else:
            self._rules.pop(address, None)

    def datagram_delay_s(self, address: Address) -> float | None:
        """How long to hold a datagram back; None if it is lost. Datagrams may overtake each other."""
        conditions = self._towards(address)
        if conditions.cut or (conditions.loss and self._rng.random() < conditions.loss):
            return None
        return self._delay_s(conditions)

    def stream_delay_s(self, address: Address) -> float:
        """How long to hold back a write to a stream: a lost segment arrives late, after its retransmission."""
        conditions = self._towards(address)
        delay_s = self._delay_s(conditions)
        if conditions.loss and self._rng.random() < conditions.loss:
            delay_s += max(RETRANSMISSION_S, 2 * delay_s)
        return delay_s

    def is_cut(self, address: Address) -> bool:
        return self._towards(address).cut

    async def hold_dial(self, address: Address) -> None:
        """Wait as long as the packets of a dial (SYN and ClientHello) would take; behind a cut, until it heals."""
        while self.is_cut(address):
            await asyncio.sleep(_LOOK_AGAIN_S)
        await asyncio.sleep(self.stream_delay_s(address) + self.stream_delay_s(address))

    def _towards(self, address: Address) -> Conditions:
        return self._rules.get(address) or self._rules.get(None, _FAIR)

    def _delay_s(self, conditions: Conditions) -> float:
        if not conditions.delay_ms:
            return 0.0
        return conditions.delay_ms / 1000 * (1 + self._rng.random() * conditions.jitter)


class ShapedWriter:
    """The sending side of one shaped stream: bytes leave late and in order, and not at all while cut."""

    def __init__(
        self, shaper: Shaper, address: Address, transport: asyncio.Transport, on_room: Callable[[], None]
    ) -> None:
        self._shaper = shaper
        self._address = address
        self._transport = transport
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[float, bytes | None]] = deque()  # (when due, bytes); None closes the stream.
        self._held_bytes = 0
        self._last_due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        return self._held_bytes >= _HELD_BYTES_MAX

    def write(self, data: bytes) -> None:
        self._held_bytes += len(data)
        self._hold(data)

    def close(self) -> None:
        """Close the stream once everything written before has left."""
        self._hold(None)

    def stop(self) -> None:
        """Drop what is still held; the stream is gone."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold(self, item: bytes | None) -> None:
        due_at = max(self._last_due_at, self._loop.time() + self._shaper.stream_delay_s(self._address))
        self._last_due_at = due_at
        self._held.append((due_at, item))
        if self._timer is None:
            self._release()

    def _release(self) -> None:
        self._timer = None
        was_full = self.full
        while self._held:
            due_at, item = self._held[0]
            now = self._loop.time()
            if self._shaper.is_cut(self._address):
                due_at = now + _LOOK_AGAIN_S
            if due_at > now:
                self._timer = self._loop.call_at(due_at, self._release)
                break
            self._held.popleft()
            if item is None:
                self._transport.close()
            elif not self._transport.is_closing():
                self._held_bytes -= len(item)
                self._transport.write(item)
        if was_full and not self.full:
            self._on_room()
