"""Things that are kept for a limited time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from protocols.ids import Millis

T = TypeVar("T")


@dataclass(slots=True)
class Expiry(Generic[T]):
    """A heap of names and when they expire. A name cannot be removed earlier: the caller ignores it when it is due."""

    _heap: list[tuple[Millis, int, T]] = field(default_factory=list)
    _count: int = 0

    def add(self, ends_at: Millis, name: T) -> None:
        self._count += 1
        heappush(self._heap, (ends_at, self._count, name))

    def due(self, now: Millis) -> Iterator[T]:
        """The names that have expired, earliest first, each once."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]

    def every(self) -> Iterator[T]:
        """All names, in no order, each once."""
        while self._heap:
            yield self._heap.pop()[2]

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class Recently(Generic[T]):
    """A set whose members expire: for messages that may arrive twice, or after their query is over."""

    _until: dict[T, Millis] = field(default_factory=dict)
    _expiry: Expiry[T] = field(default_factory=Expiry)

    def __contains__(self, name: object) -> bool:
        return name in self._until

    def __len__(self) -> int:
        return len(self._until)

    def add(self, name: T, until: Millis) -> None:
        if until > self._until.get(name, 0):
            self._until[name] = until
            self._expiry.add(until, name)

    def __iter__(self) -> Iterator[T]:
        return iter(self._until)

    def sweep(self, now: Millis) -> bool:
        """Forget what has expired; says whether nothing is left."""
        for name in self._expiry.due(now):
            if self._until.get(name, now + 1) <= now:
                del self._until[name]
        return not self._until


def decrement(counter: Counter[T], name: T) -> None:
    """Count one fewer; a count of 0 is removed."""
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
