"""What happened in a run: (time, peer, event, effects) of every step, as one hash, as text, and as the last lines.

The hash covers every value of every step, so two runs with equal hashes did the same. An identifier is hashed once,
when it first appears, and is a number from then on. Steps are immutable, so the last ones are kept by reference and
become text only when somebody reads them.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from protocols.effects import Effect
from protocols.events import Event
from protocols.ids import Key, Millis

LAST_STEPS: Final = 40
PLACES: Final = 3
_HASH_EVERY_BYTES: Final = 1 << 16
_HASH_DIGITS: Final = 32


class Step(NamedTuple):
    """One event at one peer, and its effects; a fault is a step without effects."""

    at: Millis
    peer: int
    event: Event | str
    effects: Sequence[Effect]

    def __str__(self) -> str:
        seconds, ms = divmod(self.at, 1000)
        return f"{seconds}.{ms:03} p{self.peer} {self.event!r} -> {list(self.effects)!r}"


class _Numbers(dict[Key, int]):
    """A number for each identifier in the order of appearance; the identifier itself is hashed."""

    def __init__(self, hash_bytes: Callable[[bytes], object]) -> None:
        self._hash_bytes = hash_bytes

    def __missing__(self, key: Key) -> int:
        self._hash_bytes(bytes(key))
        self[key] = number = len(self)
        return number


class Trace:
    """The record of one run; `write`, if given, gets every step as a line."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self.steps = 0
        self._write = write
        self._digest = hashlib.sha256()
        # msgspec does not know our identifiers and asks what to write for them.
        self._encode = msgspec.msgpack.Encoder(enc_hook=_Numbers(self._digest.update).__getitem__).encode_into
        self._buffer = bytearray()
        self._last: deque[tuple[Millis, int, Event | str, Sequence[Effect]]] = deque(maxlen=LAST_STEPS)

    def step(self, at: Millis, peer: int, event: Event | str, effects: Sequence[Effect]) -> None:
        self.steps += 1
        self._last.append((at, peer, event, effects))
        buffer = self._buffer
        # Two kinds of events can have the same fields, so the kind is hashed too; effects of different kinds differ in
        # fields.
        self._encode((at, peer, type(event).__name__, event, effects), buffer, -1)
        if len(buffer) > _HASH_EVERY_BYTES:
            self._digest.update(buffer)
            buffer.clear()
        if self._write is not None:
            self._write(f"{Step(at, peer, event, effects)}\n")

    @property
    def hash(self) -> str:
        """Of everything so far."""
        self._digest.update(self._buffer)
        self._buffer.clear()
        return self._digest.hexdigest()[:_HASH_DIGITS]

    def last_lines(self, peer: int | None = None) -> list[str]:
        """The latest steps as text, of one peer or of all."""
        steps = [Step(*parts) for parts in self._last]
        return [str(step) for step in steps if peer is None or step.peer == peer]


def places_of(error: BaseException) -> str:
    """Where an error came from: the innermost calls."""
    frames = traceback.extract_tb(error.__traceback__)[-PLACES:]
    return ", ".join(f"in {frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(frames))
