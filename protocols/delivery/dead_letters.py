"""Dead letters: a tuple that its client cannot process is tried three times, then put aside, and the rest goes on.

A client that refuses a tuple names it. A client that dies leaves only what it was holding, perhaps thousands of tuples.
These are handed out again in portions, and the portion on which it dies again, one by one. The last tuple handed out is
the culprit. A restart of the peer forgets the tries, but not the dead letters.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import isqrt
from typing import Final

from protocols.delivery.messages import DeadLetter, Origin
from protocols.limits import Limits

TRIES_MAX: Final = 3
TOLD_MAX: Final = 64  # Of one origin: more than a subscription buries between two ACKs to the publisher.
REASON_CHARACTERS_MAX: Final = 500


@dataclass(slots=True)
class Doubts:
    """Which tuples a client has failed on, or was holding when it failed, and how often.

    For each origin: up to where tuples were tried once, up to where of these twice, and so on.
    """

    _ends: dict[Origin, list[int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._ends)

    def failed(self, origin: Origin, upto: int) -> int:
        """The client failed on what it was handed, up to here; returns the number of tries so far."""
        ends = self._ends.setdefault(origin, [])
        if len(ends) < TRIES_MAX:
            ends.append(min([upto, *ends]))
        return len(ends)

    def passed(self, origin: Origin, upto: int) -> None:
        """The client has processed everything below."""
        ends = self._ends.get(origin)
        if ends is not None:
            while ends and ends[-1] <= upto:
                ends.pop()
            if not ends:
                del self._ends[origin]

    def found(self) -> None:
        """The culprit is known, so no other tuple is in doubt."""
        self._ends.clear()

    def portion(self, origin: Origin, first: int) -> int | None:
        """How many tuples may be handed out at once from here on; None: as many as there are.

        After one failure the square root of what is in doubt, then single tuples: three tries find the culprit among
        any number.
        """
        ends = self._ends.get(origin)
        if ends is None:
            return None
        return max(1, isqrt(max(0, ends[0] - first))) if len(ends) == 1 else 1

    def validate(self) -> None:
        for ends in self._ends.values():
            assert 0 < len(ends) <= TRIES_MAX
            assert ends == sorted(ends, reverse=True)


@dataclass(slots=True)
class DeadLetters:
    """The tuples put aside for one subscription. All are counted, and the newest are kept."""

    count: int = 0
    letters: deque[DeadLetter] = field(default_factory=deque)
    _bytes: int = 0
    _told: dict[Origin, tuple[int, ...]] = field(default_factory=dict)

    def add(self, letter: DeadLetter, limits: Limits) -> None:
        self.count += 1
        self.letters.append(letter)
        self._bytes += len(letter.batch.rows)
        while len(self.letters) > limits.dead_letters_max or (
            len(self.letters) > 1 and self._bytes > limits.dead_letter_bytes_max
        ):
            self._bytes -= len(self.letters.popleft().batch.rows)
        self.tell(letter.batch.origin, (letter.batch.first,))

    def tell(self, origin: Origin, sequences: tuple[int, ...]) -> None:
        """Name these to the publisher with every ACK from now on."""
        told = dict.fromkeys((*self._told.get(origin, ()), *sequences))
        self._told[origin] = tuple(told)[-TOLD_MAX:]

    def told(self, origin: Origin) -> tuple[int, ...]:
        return self._told.get(origin, ())

    def newest(self, bytes_max: int) -> tuple[DeadLetter, ...]:
        """The newest letters, newest first, as many as fit; one at least."""
        chosen: list[DeadLetter] = []
        size = 0
        for letter in reversed(self.letters):
            size += len(letter.batch.rows) + len(letter.reason)
            if chosen and size > bytes_max:
                break
            chosen.append(letter)
        return tuple(chosen)
